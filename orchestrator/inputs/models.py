"""Finds what a plan needs to know about a model, such as its depth, without loading it.

Reads `config.json` from a folder, the Hugging Face cache or the hub, and the headers of weights on
this machine; imports no torch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.inputs import hub, weights
from lp_sweep.orchestrator.inputs.folder import TornFile, config_depth, file_problems, read_object
from lp_sweep.orchestrator.inputs.pins import Pins
from lp_sweep.orchestrator.sweepfile.entries import is_folder
from lp_sweep.storage.errors import PreflightError, SpecError
from lp_sweep.storage.printable import did_you_mean, listed, short, shown
from lp_sweep.storage.sense import DEEPEST
from lp_sweep.trials.data.tasks import is_commit
from lp_sweep.trials.model.modelfiles import (
    ADAPTER,
    DEPTH_FIELDS,
    folder_fingerprint,
    longest_row,
    type_problem,
)
from lp_sweep.trials.model.sentencefolder import digest, read_sentence_folder
from lp_sweep.trials.spec.feedforward import REMOVED

# depths of well-known encoders, for plans without a network
KNOWN_DEPTHS = {
    "bert-base-cased": 12,
    "bert-base-uncased": 12,
    "bert-large-cased": 24,
    "bert-large-uncased": 24,
    "bert-base-multilingual-cased": 12,
    "roberta-base": 12,
    "roberta-large": 24,
    "xlm-roberta-base": 12,
    "xlm-roberta-large": 24,
    "xlnet-base-cased": 12,
    "xlnet-large-cased": 24,
    "distilbert-base-cased": 6,
    "distilbert-base-uncased": 6,
    "distilroberta-base": 6,
    "camembert-base": 12,
    "google/electra-small-discriminator": 12,
    "google/electra-base-discriminator": 12,
    "google/electra-large-discriminator": 24,
    "microsoft/mpnet-base": 12,
    "microsoft/deberta-v3-small": 6,
    "microsoft/deberta-v3-base": 12,
    "microsoft/deberta-v3-large": 24,
    "answerdotai/ModernBERT-base": 22,
    "answerdotai/ModernBERT-large": 28,
}


class Prompts(NamedTuple):
    """The texts before a query and before a document."""

    query: str
    document: str


class ModelInput(NamedTuple):
    """A model as the plan and the workers need it."""

    name: str  # as the user wrote it
    path: str  # hub id, or absolute folder
    revision: str | None  # of a hub model: the commit, or a branch if the commit is unknown
    depth: int
    fingerprint: str
    layer_parameters: int | None  # of one layer, roughly, for estimates
    hidden: int | None = None  # width
    longest_row: int | None = None  # the most tokens; None: no limit, or unknown
    why_not_pinned: str | None = None
    asked: str = hub.DEFAULT_REVISION  # of a hub model: the revision that the user wrote
    # of a Sentence Transformers folder
    pooling: str = "mean"  # modes joined by +, of which a sweep knows POOLING_KEYS
    includes_prompt: bool = True  # whether the pooling covers the tokens of a prompt
    vector_problem: str | None = None  # why its vectors can't be made
    modules: str = ""  # the digest of what changes vectors after the pooling, such as Dense
    similarity: str = "cosine"  # or dot
    default_prompt: str = ""
    search_prompts: Prompts = Prompts("", "")
    family: str | None = None  # the model type in its config, if known

    def prompts(self, *, search: bool) -> Prompts:
        """The prompts for a search, or for pairs, both of whose texts have the default prompt."""
        return self.search_prompts if search else Prompts(self.default_prompt, self.default_prompt)

    @property
    def of_hub(self) -> bool:
        return self.fingerprint.startswith("hub:")

    @property
    def pinned(self) -> bool:
        """Whether its weights can't change."""
        return not self.of_hub or is_commit(self.revision)


def find_model(
    name: str,
    *,
    revision: str | None,
    layers: int | None,
    folder: Path,
    pins: Pins,
    known: Iterable[str] = (),
) -> ModelInput:
    """Finds a model. `known`: names to suggest for a wrong one. Raises SpecError for an unknown
    model, PreflightError for a folder without weights."""
    local = as_folder(name, folder)
    if local.is_dir():
        return _local_model(name, local)
    if local.exists() and is_folder(name):
        raise SpecError(
            f"model {name!r} is no folder. Name the folder of its files: {local.parent}"
        )
    if is_folder(name):
        raise SpecError(f"no model folder at {local}. {_near_folders(local)}".rstrip())
    return _hub_model(name, revision, layers, pins, known)


def find_teacher(name: str, folder: Path, pins: Pins) -> ModelInput:
    """Finds the folder of a fine-tuned classifier. Raises SpecError or PreflightError."""
    found = find_model(name, revision=None, layers=None, folder=folder, pins=pins)
    config = read_config(Path(found.path) / "config.json") or {}
    kinds = config.get("architectures") or ["none"]
    if not any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        raise SpecError(
            f"teacher {name!r} has not learned to classify: its config.json names {kinds[0]}. List "
            "it under `models:`, and the sweep fine-tunes it first."
        )
    return found


def _hub_model(
    name: str, revision: str | None, layers: int | None, pins: Pins, known: Iterable[str]
) -> ModelInput:
    pin = pins.find("model", name, revision)
    snapshot = hub.snapshot("model", name, pin.revision) if is_commit(pin.revision) else None
    config = read_config(snapshot / "config.json") if snapshot else None
    depth = layers or config_depth(config) or KNOWN_DEPTHS.get(name)
    why_unknown = pin.why_not or pins.unreachable
    if depth is None and why_unknown is None:
        why_unknown = "the hub has no config with a depth"
        try:
            config = hub.read_json(name, "config.json", pin.revision)
        except hub.HubRefusal as error:
            why_unknown = str(error)
        depth = config_depth(config)
    if depth is None and snapshot and pins.unreachable:
        raise PreflightError(
            f"model {name!r}: config.json of commit {pin.revision} is not in the Hugging Face "
            f"cache, and {pins.unreachable}. `lp-sweep prefetch` fetches it where there is a "
            f"network."
        )
    if depth is None:
        others = [other for other in known if other != name]
        raise SpecError(
            f"unknown model {name!r}: no such folder, no config in the Hugging Face cache, and "
            f"{why_unknown}.{did_you_mean(name, [*others, *KNOWN_DEPTHS])} "
            f"If the name is right, fetch it first: `lp-sweep prefetch` does so for a sweep file, "
            f"in which {{id: {name}, layers: 12}} lets you plan without it."
        )
    found = config_depth(config)
    if layers and found and layers != found:
        raise SpecError(
            f"model {name!r}: `layers: {layers}`, but its config.json says {found}. "
            "Remove `layers:`."
        )
    _refuse_kind(name, config)
    return ModelInput(
        name=name,
        path=name,
        revision=pin.revision,
        depth=depth,
        fingerprint=f"hub:{name}@{pin.revision}",
        layer_parameters=_layer_parameters(config),
        hidden=_hidden(config),
        longest_row=longest_row(config) if config else None,
        why_not_pinned=pin.why_not,
        asked=revision or hub.DEFAULT_REVISION,
        family=_family(config),
    )


def _refuse_kind(name: str, config: Mapping[str, Any] | None) -> None:
    """Raises SpecError for a model that can't be pruned."""
    if config and (problem := type_problem(config)):
        raise SpecError(f"model {name!r}: {problem}")
    if config and config.get(REMOVED):
        raise SpecError(
            f"model {name!r} lost the feed-forwards of layers {config[REMOVED]} in a sweep and "
            "can't be pruned again. Name the model that it was made from."
        )


def as_folder(name: str, folder: Path) -> Path:
    try:
        local = (folder / Path(name).expanduser()).resolve()
        local.stat()
    except FileNotFoundError:
        return local
    except (OSError, RuntimeError, ValueError) as error:  # too long, ~nobody, a NUL
        raise SpecError(f"model {name!r} is neither a name nor a folder: {error}") from None
    return local


def _local_model(name: str, folder: Path) -> ModelInput:
    if problems := file_problems(folder):
        raise PreflightError(f"model {name!r} ({folder}): {'; '.join(problems)}")
    _refuse_adapter(name, folder)
    try:
        config = read_object(folder / "config.json")
    except TornFile as error:
        why = f"{folder} has no readable config.json: {error}. {_named_instead(folder)}"
        raise SpecError(f"model {name!r}: {why}") from None
    _refuse_kind(name, config)
    depth = config_depth(config)
    if depth is None:
        stated = {field: config[field] for field in DEPTH_FIELDS if field in config}
        if stated:
            what = ", ".join(f"{field}: {value!r}" for field, value in stated.items())
            raise SpecError(
                f"model {name!r}: its config.json has {short(what)}. Give a number of layers from "
                f"1 to {DEEPEST:,}."
            )
        raise SpecError(
            f"model {name!r}: its config.json has none of {', '.join(DEPTH_FIELDS)}; "
            "lp-sweep prunes encoders that are a list of layers."
        )
    if problem := weights.absent_weights(folder):
        raise PreflightError(f"model {name!r} ({folder}): {problem}")
    with contextlib.suppress(TornFile):  # which the preflight reports
        if problems := weights.shape_problems(folder):
            raise PreflightError(f"model {name!r}: {'; '.join(problems)}")
    return ModelInput(
        name=name,
        path=str(folder),
        revision=None,
        depth=depth,
        fingerprint=folder_fingerprint(folder),
        layer_parameters=_layer_parameters(config),
        hidden=_hidden(config),
        longest_row=longest_row(config),
        family=_family(config),
        **_sentence_config(folder),
    )


def _refuse_adapter(name: str, folder: Path) -> None:
    """Raises SpecError: whether transformers applies an adapter depends on what is installed."""
    if (folder / ADAPTER).is_file():
        base = (read_config(folder / ADAPTER) or {}).get("base_model_name_or_path")
        raise SpecError(
            f"model {name!r}: {folder} holds an adapter ({ADAPTER}) for {shown(base)}. Merge it: "
            "load both with peft, call merge_and_unload() and save_pretrained(NEW_FOLDER), and "
            f"name that folder. If its weights are merged already, remove {ADAPTER}."
        )


def _named_instead(folder: Path) -> str:
    found = [*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")]
    if inner := sorted(f"{path.parent.relative_to(folder)}" for path in found):
        return f"Name a folder in it: {listed(inner, most=3)}"
    return (
        "A model folder is what `save_pretrained` writes: config.json, model.safetensors, "
        "tokenizer files."
    )


def _sentence_config(folder: Path) -> dict[str, Any]:
    """Similarity and prompts from the folder's Sentence Transformers configuration."""
    config = read_config(folder / "config_sentence_transformers.json") or {}
    prompts = config.get("prompts")
    items = prompts.items() if isinstance(prompts, dict) else ()
    named = {name: text for name, text in items if isinstance(text, str)}
    usual = named.get(config.get("default_prompt_name") or "", "")
    search = Prompts(
        named.get("query", usual),
        next((named[n] for n in ("document", "passage", "corpus") if n in named), usual),
    )
    by_dot = str(config.get("similarity_fn_name")) in ("dot", "dot_product")
    found = read_sentence_folder(folder)
    lower = "sentence_bert_config.json has do_lower_case, and its tokenizer keeps upper case"
    return {
        "similarity": "dot" if by_dot and not found.normalises else "cosine",
        "default_prompt": usual,
        "search_prompts": search,
        "pooling": "+".join(found.pooling),
        "includes_prompt": found.includes_prompt,
        "vector_problem": found.problem or (lower if found.lower and not _lowers(folder) else None),
        "modules": "" if found.problem else digest(folder, found.changing),
    }


def _lowers(folder: Path) -> bool:
    """Whether the tokenizer puts texts into lower case itself."""
    steps = (read_config(folder / "tokenizer.json") or {}).get("normalizer") or {}
    written = json.dumps(steps)
    return '"Lowercase"' in written or '"lowercase": true' in written


def read_config(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(TornFile, OSError):
        return read_object(path) if path.is_file() else None
    return None


def _layer_parameters(config: dict[str, Any] | None) -> int | None:
    """Attention and feed-forward weights of one layer: 4 h^2 + 2 h f."""
    if not config:
        return None
    hidden = _hidden(config)
    inner = _first_int(config, weights.INNER)
    return 4 * hidden * hidden + 2 * hidden * inner if hidden and inner else None


def _family(config: Mapping[str, Any] | None) -> str | None:
    return str(config["model_type"]) if config and "model_type" in config else None


def _hidden(config: dict[str, Any] | None) -> int | None:
    return _first_int(config or {}, weights.HIDDEN)


def _first_int(config: dict[str, Any], names: Iterable[str]) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def _near_folders(missing: Path) -> str:
    if not missing.parent.is_dir():
        return f"There is no folder {missing.parent} either."
    names = [path.name for path in missing.parent.iterdir() if path.is_dir()]
    return did_you_mean(missing.name, names).strip()
