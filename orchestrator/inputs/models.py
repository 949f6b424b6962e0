"""Finds what a plan needs to know about a model, such as its depth, without loading it.

Reads `config.json` from a folder, the Hugging Face cache or the hub, and the headers of weights on
this machine; imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.inputs import hub, weights
from lp_sweep.orchestrator.inputs.folder import (
    HIDDEN,
    INNER,
    ModelFault,
    config_depth,
    file_problems,
    first_int,
    read_config,
    read_object,
)
from lp_sweep.orchestrator.inputs.pins import Pins
from lp_sweep.orchestrator.sweepfile.entries import TaskEntry, is_folder
from lp_sweep.storage.errors import PreflightError, SpecError
from lp_sweep.storage.printable import did_you_mean, listed, short, shown
from lp_sweep.storage.sense import DEEPEST
from lp_sweep.trials.data.tasks import is_commit
from lp_sweep.trials.kinds import KINDS
from lp_sweep.trials.model.modelfiles import (
    ADAPTER,
    DEPTH_FIELDS,
    folder_fingerprint,
    longest_row,
    type_problem,
)
from lp_sweep.trials.model.sentencefolder import (
    MODULES,
    POOLING_KEYS,
    SentenceFolder,
    digest,
    read_sentence_folder,
)
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


class VectorSettings(NamedTuple):
    """How the vectors of a model are made and compared; the defaults are those of an encoder."""

    pooling: str = "mean"  # modes joined by +, of which a sweep knows POOLING_KEYS
    includes_prompt: bool = True  # whether the pooling covers the tokens of a prompt
    problem: str | None = None  # why they can't be made
    similarity: str = "cosine"  # or dot
    query_prompt: str = ""  # of a search
    document_prompt: str = ""
    default_prompt: str = ""  # of both texts of a pair


class ModelInput(NamedTuple):
    """A model as the plan and the workers need it."""

    name: str  # as the user wrote it
    path: str  # hub id, or absolute folder
    revision: str | None  # of a hub model: the commit, or a branch if the commit is unknown
    depth: int
    fingerprint: str
    layer_parameters: int | None = None  # of one layer, roughly, for estimates
    hidden: int | None = None  # width
    longest_row: int | None = None  # the most tokens; None: no limit, or unknown
    why_not_pinned: str | None = None
    asked: str = hub.DEFAULT_REVISION  # of a hub model: the revision that the user wrote
    vectors: VectorSettings = VectorSettings()
    modules: str = ""  # the digest of what changes vectors after the pooling, such as Dense
    family: str | None = None  # the model type in its config, if known

    @property
    def of_hub(self) -> bool:
        return self.fingerprint.startswith("hub:")

    @property
    def folder(self) -> Path:
        """Its files: its own folder, or that of its commit in the cache, which may not exist."""
        own = Path(self.path)
        return hub.snapshot("model", self.path, str(self.revision)) if self.of_hub else own

    @property
    def pinned(self) -> bool:
        """Whether its weights can't change."""
        return not self.of_hub or is_commit(self.revision)


def find_model(
    name: str,
    *,
    revision: str | None = None,
    layers: int | None = None,
    folder: Path,
    pins: Pins,
    known: Iterable[str] = (),
) -> ModelInput:
    """Finds a model. `known`: names to suggest for a wrong one. Raises SpecError for an unknown
    model, PreflightError for a folder without weights."""
    try:
        local = (folder / Path(name).expanduser()).resolve()
        local.stat()
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, ValueError) as error:  # too long, ~nobody, a NUL
        raise SpecError(f"model {name!r} is neither a name nor a folder: {error}") from None
    if local.is_dir():
        return _local_model(name, local)
    beside = (path.name for path in local.parent.glob("*") if path.is_dir())
    if not is_folder(name):
        return _hub_model(name, revision, layers, pins, chain(known, beside))
    if local.exists():
        raise SpecError(
            f"model {name!r} is no folder. Name the folder of its files: {local.parent}"
        )
    nowhere = f"There is no folder {local.parent} either."
    hint = did_you_mean(local.name, beside).strip() if local.parent.is_dir() else nowhere
    raise SpecError(f"no model folder at {local}. Check the path. {hint}".rstrip())


def find_teacher(name: str, folder: Path, pins: Pins) -> ModelInput:
    """Finds the folder of a fine-tuned classifier. Raises SpecError or PreflightError."""
    found = find_model(name, revision=None, layers=None, folder=folder, pins=pins)
    kinds = read_config(Path(found.path) / "config.json").get("architectures") or ["none"]
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
    cached = is_commit(pin.revision)
    snapshot = hub.snapshot("model", name, pin.revision)
    config = read_config(snapshot / "config.json") if cached else {}
    depth = layers or config_depth(config) or KNOWN_DEPTHS.get(name)
    why_unknown = pin.why_not or pins.unreachable
    if depth is None and why_unknown is None:
        try:
            config = hub.read_json(name, "config.json", pin.revision) or {}
            why_unknown = "the hub has no config with a depth"
        except hub.HubRefusal as error:
            why_unknown = str(error)
        depth = config_depth(config)
    if depth is None and cached and pins.unreachable:
        raise PreflightError(
            f"model {name!r}: config.json of commit {pin.revision} is not in the Hugging Face "
            f"cache, and {pins.unreachable}. `lp-sweep prefetch` fetches it where there is a "
            "network."
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
    return ModelInput(
        name=name,
        path=name,
        revision=pin.revision,
        depth=depth,
        fingerprint=f"hub:{name}@{pin.revision}",
        why_not_pinned=pin.why_not,
        asked=revision or hub.DEFAULT_REVISION,
        **_stated(name, config),
    )


def _local_model(name: str, folder: Path) -> ModelInput:
    """Raises PreflightError where files are missing or do not fit each other, else SpecError."""
    if problems := file_problems(folder):
        raise PreflightError(f"model {name!r} ({folder}): {'; '.join(problems)}")
    if (folder / ADAPTER).is_file():  # what transformers does with one depends on what is installed
        base = read_config(folder / ADAPTER).get("base_model_name_or_path")
        raise SpecError(
            f"model {name!r}: {folder} holds an adapter ({ADAPTER}) for {shown(base)}. Merge it: "
            "load both with peft, call merge_and_unload() and save_pretrained(NEW_FOLDER), and "
            f"name that folder. If its weights are merged already, remove {ADAPTER}."
        )
    try:
        config = read_object(folder / "config.json")
    except ModelFault as fault:
        why = f"{folder} has no readable config.json: {fault}. {_named_instead(folder)}"
        raise SpecError(f"model {name!r}: {why}") from None
    stated, depth = _stated(name, config), config_depth(config)
    if depth is None:
        fields = [f"{field}: {config[field]!r}" for field in DEPTH_FIELDS if field in config]
        has = short(", ".join(fields)) or f"none of {', '.join(DEPTH_FIELDS)}"
        raise SpecError(
            f"model {name!r}: its config.json has {has}. lp-sweep prunes encoders that are a list "
            f"of layers, and reads their number there: from 1 to {DEEPEST:,}."
        )
    if problem := weights.absent_weights(folder):
        raise PreflightError(f"model {name!r} ({folder}): {problem}")
    with suppress(ModelFault):  # which the preflight reports
        if problems := weights.shape_problems(folder):
            raise PreflightError(f"model {name!r}: {'; '.join(problems)}")
    modules = read_sentence_folder(folder)
    return ModelInput(
        name=name,
        path=str(folder),
        revision=None,
        depth=depth,
        fingerprint=folder_fingerprint(folder),
        modules="" if modules.problem else digest(folder, modules.changing),
        vectors=_vector_settings(folder, modules),
        **stated,
    )


def _vector_settings(folder: Path, modules: SentenceFolder) -> VectorSettings:
    """Those of the folder's Sentence Transformers configuration."""
    config = read_config(folder / "config_sentence_transformers.json")
    prompts = config.get("prompts")
    items = prompts.items() if isinstance(prompts, dict) else ()
    named = {name: text for name, text in items if isinstance(text, str)}
    usual = named.get(config.get("default_prompt_name") or "", "")
    by_dot = str(config.get("similarity_fn_name")) in ("dot", "dot_product")
    lower = "sentence_bert_config.json has do_lower_case, and its tokenizer keeps upper case"
    return VectorSettings(
        pooling="+".join(modules.pooling),
        includes_prompt=modules.includes_prompt,
        problem=modules.problem or (lower if modules.lower and not _lowers(folder) else None),
        similarity="dot" if by_dot and not modules.normalises else "cosine",
        query_prompt=named.get("query", usual),
        document_prompt=next(
            (named[name] for name in ("document", "passage", "corpus") if name in named), usual
        ),
        default_prompt=usual,
    )


def _lowers(folder: Path) -> bool:
    """Whether the tokenizer puts texts into lower case itself."""
    steps = json.dumps(read_config(folder / "tokenizer.json").get("normalizer"))
    return '"Lowercase"' in steps or '"lowercase": true' in steps


def _stated(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config that a plan needs, {} if there is none. Raises SpecError for a model
    that can't be pruned."""
    if not config:
        return {}
    if problem := type_problem(config):
        raise SpecError(f"model {name!r}: {problem}")
    if config.get(REMOVED):
        raise SpecError(
            f"model {name!r} lost the feed-forwards of layers {config[REMOVED]} in a sweep and "
            "can't be pruned again. Name the model that it was made from."
        )
    hidden, inner = first_int(config, HIDDEN), first_int(config, INNER)
    return {
        "hidden": hidden,
        # attention and feed-forward weights: 4 h^2 + 2 h f
        "layer_parameters": 2 * hidden * (2 * hidden + inner) if hidden and inner else None,
        "longest_row": longest_row(config),
        "family": str(config["model_type"]) if "model_type" in config else None,
    }


def _named_instead(folder: Path) -> str:
    found = [*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")]
    if inner := sorted(f"{path.parent.relative_to(folder)}" for path in found):
        return f"Name a folder in it: {listed(inner, most=3)}"
    return (
        "A model folder is what `save_pretrained` writes: config.json, model.safetensors, "
        "tokenizer files."
    )


# -- how the texts of a task become vectors: as the task says, else as the models do, if they agree


def vectors_of(entry: TaskEntry, models: Sequence[ModelInput]) -> dict[str, str]:
    """The fields of an embedding task's definition that say how vectors are made; {} for other
    tasks. Raises SpecError where the models differ, or one can't make such vectors."""
    kind = KINDS[entry.kind]
    if not kind.embeds:
        return {}

    def agreed(key: str, own: str | None, do: str, of: Callable[[VectorSettings], str]) -> str:
        ways = {of(model.vectors): model.name for model in models}
        if own is None and len(ways) > 1:
            made = ", ".join(f"{name} {shown(way)}" for way, name in ways.items())
            raise SpecError(
                f"task {entry.name!r}: the models {do} in different ways ({made}). Write "
                f"`{key}:` in the task, or put each model into its own sweep."
            )
        return next(iter(ways)) if own is None else own

    def prompt(which: str) -> str:
        own = getattr(entry.prompts, which) if entry.prompts else None
        key = f"{which}_prompt" if kind.searches else "default_prompt"
        return agreed("prompts", own, "prompt", lambda settings: getattr(settings, key))

    similarity = agreed("similarity", entry.similarity, "are compared", lambda s: s.similarity)
    found = {
        "pooling": agreed("pooling", entry.pooling, "pool", lambda settings: settings.pooling),
        "similarity": "" if similarity == "cosine" else similarity,
        "query_prompt": prompt("query"),
        "document_prompt": prompt("document"),
    }
    prompted = bool(found["query_prompt"] or found["document_prompt"])
    for model in models:
        problem = _hub_fault(model, entry) or _fault(model, found["pooling"], prompted)
        if problem:
            raise SpecError(
                f"task {entry.name!r}: the vectors of {model.name} can't be made: {problem}"
            )
    return found


def _hub_fault(model: ModelInput, entry: TaskEntry) -> str | None:
    """Why a cached model of the hub would be scored otherwise than Sentence Transformers does: its
    modules are not read, since a machine that has not fetched them would plan other trials."""
    if not model.of_hub:
        return None
    found = read_sentence_folder(hub.snapshot("model", model.name, model.revision or ""))
    remedy = (
        "which is not looked up for models on the hub. Name a downloaded folder: "
        f"`hf download {model.name} --local-dir model`"
    )
    if found.problem or found.changing:
        why = found.problem or f"it has {listed([module.name for module in found.changing])}"
        return f"{why}, {remedy}."
    if entry.pooling is not None or found.pooling == ("mean",):
        return None
    [pooling, *more] = found.pooling
    can_write = pooling in POOLING_KEYS and not more
    how = f", or write `pooling: {pooling}` in the task" if can_write else ""
    return f"its pooling is {listed(found.pooling)}, {remedy}{how}."


def _fault(model: ModelInput, pooling: str, prompted: bool) -> str | None:
    """Why a sweep can't make the vectors that Sentence Transformers makes of the model's folder."""
    alone = f"name a copy of the folder without {MODULES}"
    by_mean = "write `pooling: mean` in the task"
    if model.vectors.problem:
        return f"{model.vectors.problem}. To score its encoder alone, {alone} and {by_mean}."
    if pooling not in POOLING_KEYS or (model.modules and "+" in model.vectors.pooling):
        return (
            f"its pooling is {shown(model.vectors.pooling)}, and a sweep's is one of "
            f"{', '.join(POOLING_KEYS)}. To score it by the mean of its tokens, "
            f"{alone if model.modules else by_mean}."
        )
    if prompted and not model.vectors.includes_prompt:
        return (
            "it pools without the tokens of the prompt (include_prompt: false), and a sweep with "
            "them. Write `prompts: {query: '', document: ''}` in the task to score it without."
        )
    return None
