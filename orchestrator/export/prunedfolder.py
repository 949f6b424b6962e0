"""Writes a pre-trained model with fewer layers as a folder, verified first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.orchestrator.export.card import base_of, pruned_card
from lp_sweep.orchestrator.export.folder import describe, staged
from lp_sweep.orchestrator.export.verify import FolderAnswers, ask
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.storage.errors import ExportError, SpecError
from lp_sweep.storage.printable import say
from lp_sweep.trials.model.sentencefolder import (
    MODULES,
    copy_modules,
    copy_settings,
    read_sentence_folder,
)
from lp_sweep.trials.spec.select import by_position, dropped_layers, find_rule, kept_layers

_ROUNDING = 1e-5  # between two processes on one machine; x the largest state
_LENGTHS = (16, 7, 3)  # tokens in the rows whose states are compared


class PruneResult(NamedTuple):
    """The finished folder; as JSON it is what `--json` prints."""

    folder: str
    model: str
    kept_layers: list[int]
    depth: int
    largest_difference: float  # of a hidden state


def chosen_layers(
    depth: int, strategy: str | None, k: int | None, layers: Sequence[int]
) -> tuple[int, ...]:
    """The layers that stay: `layers`, or what `strategy` leaves. Raises SpecError unless exactly
    one of them is given."""
    if strategy is not None and not layers:
        return _left_by(strategy, depth, k)
    if strategy is not None or not layers:
        raise SpecError("name the layers to keep: --strategy with --k, or --layers 1,2,5.")
    if k is not None:
        raise SpecError("--layers names the layers to keep: it takes no --k.")
    if len(set(layers)) < len(layers) or not 1 <= min(layers) <= max(layers) <= depth:
        named = ",".join(map(str, layers))
        raise SpecError(f"--layers {named}: the layers are 1..{depth}, each named once.")
    return tuple(sorted(layers))


def _left_by(strategy: str, depth: int, k: int | None) -> tuple[int, ...]:
    rule = find_rule(strategy)
    if k is None and rule is not None and rule.takes == "layers":
        k = len(rule.dropped(depth, 0))
    if k is None:
        raise SpecError(f"--strategy {strategy}: say how many layers to drop: --k 2.")
    try:
        return kept_layers(depth, dropped_layers(strategy, depth, k))
    except KeyError:
        raise SpecError(
            f"--strategy {strategy}: choose one that needs no data: {by_position()}. For others, "
            "run a sweep, and name the layers that it kept: --layers 1,2,5."
        ) from None
    except ValueError as error:
        raise SpecError(f"--strategy: {error}") from None


def prune(
    model: ModelInput,
    files: Path,
    kept: tuple[int, ...],
    strategy: str,
    *,
    out: Path,
    force: bool,
    offline: bool,
) -> PruneResult:
    """Write the `kept` layers (1-based) of the model in `files` as the folder `out`.
    Raises LpSweepError; then `out` is as it was before."""
    from lp_sweep.trials.model.load import read_whole
    from lp_sweep.trials.model.plainload import states_of
    from lp_sweep.trials.model.prune import cut

    sentences = read_sentence_folder(files)
    if sentences.problem and not sentences.pools_nothing:
        raise SpecError(
            f"model {model.name!r} is of Sentence Transformers, and its vectors can't be made: "
            f"{sentences.problem}. To prune its encoder alone, name a copy of the folder without "
            f"{MODULES}."
        )
    network, missing = read_whole(files)
    ids = _rows(network.config)
    before = states_of(network, ids)
    with staged(out, force=force) as folder:
        cut(files, network, kept, folder)
        say("loading the folder in a new process, and comparing the states of every layer")
        request = {"kinds": list(missing), "ids": ids, "device": "cpu", "threads": None}
        answer = ask(folder, request)
        _check_weights(answer, missing)
        difference = _compare(answer.values, states_of(network, ids), "the network in memory")
        _check_lowest(answer.values, before, kept)
        copy_settings(files, folder)
        embeds = bool(sentences.modules) and not sentences.problem
        if embeds:
            copy_modules(files, folder, sentences.modules[1:])
            say("comparing the vectors of texts, as Sentence Transformers makes them")
            difference = max(difference, _check_vectors(files, folder, network))
        base = base_of(model.fingerprint, model.name, str(files), offline=offline)
        card = pruned_card(base, model.depth, kept, strategy, embeds=embeds)
        about = {
            "model_fingerprint": model.fingerprint,
            "depth": model.depth,
            "kept_layers": list(kept),
            "strategy": strategy,
            "fine_tuned": False,
            "verified": {"largest_difference": difference},
        }
        describe(folder, card, about)
    return PruneResult(str(out), base.name, list(kept), model.depth, difference)


def _check_vectors(files: Path, folder: Path, network: Any) -> float:
    """The largest difference of a vector from that of the network in memory with the modules of
    the model's own folder. The texts suit any tokenizer."""
    from transformers import AutoTokenizer

    from lp_sweep.trials.model.plainload import embeddings_of, vector_modules

    tokenizer, length = AutoTokenizer.from_pretrained(files), max(_LENGTHS)
    texts = [
        [tokenizer.decode(ids, skip_special_tokens=True).lower() for ids in _rows(network.config)]
    ]
    own, written = read_sentence_folder(files), read_sentence_folder(folder)
    request = {
        "kinds": ["AutoModel"],
        "texts": texts,
        "pooling": written.pooling,
        "after": written.after,
        "max_length": min(length, written.max_length or length),
        "device": "cpu",
        "threads": None,
    }
    found = ask(folder, request).values
    after = vector_modules(files, own.after)
    made = (network.float(), tokenizer, texts, min(length, own.max_length or length), own.pooling)
    return _compare(found, embeddings_of(*made, after), "the model's folder", "vector")


def _rows(config: Any) -> list[list[int]]:
    """Rows of random tokens, which are enough to compare arithmetic."""
    draw = np.random.default_rng(0)
    return [draw.integers(0, config.vocab_size, size=length).tolist() for length in _LENGTHS]


def _check_weights(answer: FolderAnswers, before: dict[str, list[str]]) -> None:
    for kind, missing in answer.missing.items():
        new = sorted(set(missing) - set(before[kind]))
        if new:
            raise ExportError(f"{kind} finds {len(new)} weights missing, such as {new[0]}.")


def _compare(states: np.ndarray, expected: np.ndarray, what: str, compared: str = "state") -> float:
    """The largest difference between states, both (layers + 1, tokens, width), or vectors."""
    if states.shape != expected.shape:
        raise ExportError(
            f"the folder's {compared}s are {states.shape}, those of {what} "
            f"{expected.shape}. Nothing was published."
        )
    difference = float(np.abs(states - expected).max())
    allowed = _ROUNDING * max(1.0, float(np.abs(expected).max()))
    if not difference <= allowed:
        raise ExportError(
            f"a {compared} of the folder differs from that of {what} by {difference:.2g}, and "
            f"rounding explains {allowed:.2g}. Nothing was published."
        )
    return difference


def _check_lowest(states: np.ndarray, before: np.ndarray, kept: Sequence[int]) -> None:
    """Below the first removed layer the whole model has the same states. The state after the last
    layer is left out, since some families normalise it."""
    same = next((i + 1 for i, layer in enumerate(kept) if layer != i + 1), len(kept))
    _compare(states[:same], before[:same], "the whole model")
