"""The text of the sweep file that `init` writes: which networks are tried on a kind of task, and
how long each trains on so many rows."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from lp_sweep.orchestrator.inputs.data import FEWEST_STEPS
from lp_sweep.orchestrator.inputs.folder import read_config
from lp_sweep.orchestrator.options import InitOptions
from lp_sweep.orchestrator.sweepfile.yamlfile import yaml_text
from lp_sweep.storage.printable import shown
from lp_sweep.trials.data.formats import suffix_of
from lp_sweep.trials.data.tasks import canonical_name
from lp_sweep.trials.kinds import Kind
from lp_sweep.trials.model.familytable import family_of
from lp_sweep.trials.spec.autorecipe import ENOUGH_STEPS, USUAL_EPOCHS, epochs_within

SCHEMA = "lp-sweep.schema.json"
_ENCODER, _BI_ENCODER = "bert-base-cased", "sentence-transformers/all-MiniLM-L6-v2"
BATCH = 16
SMALL = 5000  # train rows: fewer are trained for ENOUGH_STEPS
_WIDE = 384  # the narrowest network that is measured to train faster in bf16; one of 64 is slower
# a look in a minute or two, with six layers on two cores
QUICK_TRAIN, QUICK_DEV, QUICK_EPOCHS, QUICK_LENGTH = 480, 240, 4, 64
_LONGEST_NAME = 90
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def epochs_of(rows: int, kind: Kind) -> int:
    """For few rows as many as ENOUGH_STEPS need."""
    steps = ENOUGH_STEPS if rows < SMALL else FEWEST_STEPS
    each, least = (kind.rows_each, 1) if kind.embeds else (1, USUAL_EPOCHS)
    return epochs_within(steps, rows * each, BATCH, least=least)


def task_name(data: Path, otherwise: str = "my-sweep") -> str:
    """The name of a file or folder as that of a sweep and its task, which no GLUE task has."""
    name = _NO_NAME.sub("-", stem_of(data)).strip("-._")[:_LONGEST_NAME] or otherwise
    return f"my-{name}" if canonical_name(name) else name


def sweep_text(
    options: InitOptions,
    kind: Kind,
    *,
    length: int,
    task: Mapping[str, Any] | None = None,
    why: Mapping[str, str] | None = None,
    rows: int = 0,
) -> str:
    """The sweep file of one task with so many train rows, which names the sweep; without a task, of
    GLUE. `why` has the comments, by key of the task."""
    epochs = epochs_of(rows, kind) if task else USUAL_EPOCHS
    if options.quick:
        epochs, length = min(epochs, QUICK_EPOCHS), min(length, QUICK_LENGTH)
    model = Path(model_of(options, kind)).expanduser()
    if model.is_dir() and not model.is_absolute():  # relative to the sweep file
        place = os.path.relpath(model, options.file.parent)
        named = place if place.startswith(".") else f"./{place}"
    else:
        named = str(model) if model.is_dir() else model_of(options, kind)
    config = read_config(model / "config.json")  # {}: it is on the hub
    width = config.get("hidden_size")
    return rendered(
        "init.yaml",
        schema=SCHEMA,
        options=options,
        kind=kind,
        name=(task["name"] if task else "my-sweep") + "-quick" * options.quick,
        model=named,
        task=task,
        why=why or {},
        bridged=not config or family_of(config.get("model_type")).feed_forward is not None,
        batch=BATCH,
        epochs=epochs,
        length=length,
        is_narrow=isinstance(width, int) and width < _WIDE,
        most_train=QUICK_TRAIN,
        most_dev=QUICK_DEV,
    )


def rendered(template: str, /, **values: Any) -> str:
    """The text of a template."""
    environment = Environment(
        loader=PackageLoader("lp_sweep.orchestrator"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["yaml"] = lambda value: yaml_text([value], in_line=True)[1:-2]
    environment.filters["shown"] = shown
    return environment.get_template(f"{template}.j2").render(values)


def stem_of(data: Path) -> str:
    """The name of a file without its suffix, of a folder, or of a pattern's folder."""
    if "*" in data.name:
        return data.absolute().parent.name
    return data.name if data.is_dir() else data.name.removesuffix(suffix_of(data))


def model_of(options: InitOptions, kind: Kind) -> str:
    return options.model or (_BI_ENCODER if kind.embeds else _ENCODER)
