"""The text of the sweep file that `init` writes: which networks are tried on a kind of task, and
how long each trains on so many rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.inputs.data import FEWEST_STEPS
from lp_sweep.orchestrator.inputs.folder import read_config
from lp_sweep.orchestrator.options import InitOptions
from lp_sweep.orchestrator.sweepfile.yamlfile import yaml_text
from lp_sweep.trials.data.formats import suffix_of
from lp_sweep.trials.data.tasks import CORPUS, canonical_name
from lp_sweep.trials.kinds import KINDS, Kind
from lp_sweep.trials.model.familytable import family_of
from lp_sweep.trials.spec.autorecipe import ENOUGH_STEPS, USUAL_EPOCHS, epochs_within
from lp_sweep.trials.spec.specs import TaskKind

SCHEMA = "lp-sweep.schema.json"
_ENCODER, _BI_ENCODER = "bert-base-cased", "sentence-transformers/all-MiniLM-L6-v2"
BATCH = 16
SMALL = 5000  # train rows: fewer are trained for ENOUGH_STEPS
# a look in a minute or two, with six layers on two cores
QUICK_TRAIN, QUICK_DEV, QUICK_EPOCHS, QUICK_LENGTH = 480, 240, 4, 64
# name -> why, for networks that are first scored without training, or not. In Poor Man's BERT, top
# is the best strategy, and odd-alternate where few layers go
_STRATEGIES = {
    True: {
        "block-influence": "those that change their input least",
        "greedy": "one after another, each time the one that hurts least",
    },
    False: {
        "top": "the highest",
        "odd-alternate": "every other, below the last",
        "block-influence": "those that change their input least",
    },
}
# file names that say nothing: then the folder names the task
_SIDES = ("train", "data", "rows", CORPUS)
_LONGEST_NAME = 90
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def epochs_of(rows: int, kind: Kind) -> int:
    """For few rows as many as ENOUGH_STEPS need."""
    steps = ENOUGH_STEPS if rows < SMALL else FEWEST_STEPS
    each, least = (kind.rows_each, 1) if kind.embeds else (1, USUAL_EPOCHS)
    return epochs_within(steps, rows * each, BATCH, least=least)


def task_name(data: Path, otherwise: str = "my-sweep") -> str:
    """The name of a file or folder as that of a sweep and its task, which no GLUE task has."""
    stem = stem_of(data)
    place = data.absolute().parent.name if stem in _SIDES else stem
    name = _NO_NAME.sub("-", place).strip("-._")[:_LONGEST_NAME] or otherwise
    return f"my-{name}" if canonical_name(name) else name


def _model(options: InitOptions) -> str:
    """A hub id, or a folder: relative to the sweep file unless its path is absolute."""
    model = model_of(options)
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return model
    if folder.is_absolute():
        return str(folder)
    path = os.path.relpath(folder, options.file.parent)
    return path if path.startswith(".") else f"./{path}"


def task_text(
    options: InitOptions,
    kind: TaskKind,
    task: dict[str, Any],
    why: dict[str, str],
    *,
    rows: int,
    length: int,
) -> str:
    """The sweep file of one task with so many train rows, which names the sweep. `why` has the
    comments, by key."""
    lines = [
        f"    {key}: {_scalar(value)}{f'   # {why[key]}' if key in why else ''}"
        for key, value in task.items()
    ]
    tasks = ["tasks:", f"  - {lines[0].lstrip()}", *lines[1:]]
    epochs, options = epochs_of(rows, KINDS[kind]), replace(options, kind=kind)
    return sweep_text(task["name"], options, tasks, epochs=epochs, length=length)


def sweep_text(
    name: str, options: InitOptions, tasks: Sequence[str], *, epochs: int, length: int
) -> str:
    """The sweep file as text."""
    kind = KINDS[options.kind or "classification"]
    rate, quick = ("1e-4" if kind.embeds or options.quick else "3e-5"), ""
    if options.quick:
        epochs, length = min(epochs, QUICK_EPOCHS), min(length, QUICK_LENGTH)
        quick = f", limit_train: {QUICK_TRAIN}, limit_dev: {QUICK_DEV}"
    recipe = f"learning_rate: {rate}, batch_size: {BATCH}, epochs: {epochs}, max_length: {length}"
    lines = [
        f"# yaml-language-server: $schema={SCHEMA}",
        *filter(None, [options.made_by]),
        "schema_version: 1",
        f"name: {_scalar(name + '-quick' * options.quick)}",
        f"models: [{_scalar(_model(options))}]   # a hub id or a folder",
        *tasks,
        *_networks(options, kind),
        f"recipe: {{{recipe}{quick}}}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _networks(options: InitOptions, kind: Kind) -> Iterator[str]:
    """The lines on which networks are tried. Which layers go and what replaces them decides for
    embeddings, and the seed hardly: there networks are first scored untrained, in seconds. So are
    rerankers, as soon as the full model has learned its task."""
    scored_first = "untrained" if kind.embeds else "one_shot" if kind.ranks else ""
    if scored_first and not options.quick:
        yield f"procedures: [{scored_first}, direct]   # as it is, and after training"
        if _can_be_bridged(options):
            yield "bridge: [none, linear]   # what takes the place of the layers that go"
            yield "exclude: [{procedure: direct}]   # training starts from the bridge"
    elif scored_first and kind.embeds:
        yield f"procedures: [{scored_first}]"
    yield f"seeds: {'[42]' if kind.embeds or options.quick else '[42, 43, 44]'}"
    yield "strategies:   # drop K layers; train only what the answer needs"
    within = f", within: {options.within:g}" if options.within is not None else ""
    tried = [*_STRATEGIES[bool(scored_first)].items()][: 1 if options.quick else None]
    for strategy, why in tried:
        yield f"  - {{name: {strategy}, k: all, until: min_layers{within}}}   # {why}"
    if not options.quick:
        formats = "torch, onnx-int8" if find_spec("onnxruntime") else "torch"
        yield "keep: best   # the weights of the best seed of each network"
        yield f"deploy: [{formats}]   # measured at the end as they are shipped"


def _can_be_bridged(options: InitOptions) -> bool:
    """True for what only the hub knows: a plan tells of it."""
    config = read_config(Path(options.model or "").expanduser() / "config.json")
    return not config or family_of(config.get("model_type")).feed_forward is not None


def _scalar(value: Any) -> str:
    """A value as YAML on one line, also between others in a list."""
    return yaml_text([value], in_line=True)[1:-2]


def stem_of(data: Path) -> str:
    """The name of a file without its suffix, of a folder, or of a pattern's folder."""
    if "*" in data.name:
        return data.absolute().parent.name
    return data.name if data.is_dir() else data.name.removesuffix(suffix_of(data))


def model_of(options: InitOptions) -> str:
    usual = _BI_ENCODER if options.kind and KINDS[options.kind].embeds else _ENCODER
    return options.model or usual
