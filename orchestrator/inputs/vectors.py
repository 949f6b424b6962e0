"""How the texts of a task become vectors and how these are compared: as the task says, else as the
models do, if they agree. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.models import ModelInput, VectorSettings
from lp_sweep.orchestrator.sweepfile.entries import TaskEntry
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import listed, shown
from lp_sweep.trials.kinds import KINDS
from lp_sweep.trials.model.sentencefolder import (
    MODULES,
    POOLING_KEYS,
    read_sentence_folder,
)


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
        problem = _hub_problem(model, entry) or _problem(model, found["pooling"], prompted)
        if problem:
            raise SpecError(
                f"task {entry.name!r}: the vectors of {model.name} can't be made: {problem}"
            )
    return found


def _hub_problem(model: ModelInput, entry: TaskEntry) -> str | None:
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


def _problem(model: ModelInput, pooling: str, prompted: bool) -> str | None:
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
