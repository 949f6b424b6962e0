"""`run --data`: from a file of rows to a smaller model, by steps that have commands of their own.

`init` writes the sweep file, `run` does its trials, `measure` measures the networks as they are
shipped, and `export` writes the one to ship. The same command goes on after a break: the sweep file
has a mark of the rows and options that it was written for.
"""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lp_sweep.analysis.phrases import points
from lp_sweep.orchestrator import service
from lp_sweep.orchestrator.engine.capacity import PerTrial
from lp_sweep.orchestrator.engine.inline import slots_here
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.estimate import Span, duration
from lp_sweep.orchestrator.inputs.models import find_model
from lp_sweep.orchestrator.inputs.pins import Pins
from lp_sweep.orchestrator.options import (
    ExportOptions,
    InitOptions,
    MeasureOptions,
    RowsOptions,
    SmallerOptions,
)
from lp_sweep.orchestrator.service import export, init, initfile
from lp_sweep.orchestrator.sweepfile.axes import WITHIN
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import DEFAULT_STORE, expanded
from lp_sweep.trials.data.formats import parts_of
from lp_sweep.trials.spec.procedures import UNTRAINED

if TYPE_CHECKING:
    from lp_sweep.orchestrator.export.trialfolder import ExportResult
    from lp_sweep.orchestrator.plan.plan import Plan
    from lp_sweep.orchestrator.service.run import RunResult

_FILES = ("data", "dev", "corpus", "queries", "qrels")
# of --max-hours, for measuring and the export: a share, and hours at most
_LATER, _MOST_LATER = 1 / 4, 1 / 6
# trainings: the fewest that find an answer by one strategy, by several, and with several seeds
_ONE, _SEVERAL, _SEEDS = 4, 10, 30
_USUAL = RunOptions().file


class SmallerModel(NamedTuple):
    """The result of a run. `exported`: the folder's content; None if the answer is the full model,
    if no folder was asked for, or if the run has no answer yet. `notes` say so."""

    notes: list[str]
    exported: ExportResult | None = None


def written(asked: SmallerOptions, run: RunOptions) -> tuple[RunOptions, list[str]]:
    """The run of the sweep file, which is written beside the store unless it is there already; and
    notes. Raises LpSweepError."""
    from lp_sweep.orchestrator.export.folder import check_free

    if asked.quick and asked.out:
        raise SpecError("--quick ships nothing: leave out --out, or for a model leave out --quick.")
    if "=" in run.file and not Path(run.file).is_file():  # no file was named, but overrides
        run = replace(run, file=_USUAL, overrides=[run.file, *run.overrides])
    _refuse_other_tasks(run)
    file = _sweep_file(asked, run)
    mark = f"# written by `lp-sweep run --data`; its rows and options: {_mark(asked)}"
    run = replace(run, file=str(file))
    try:
        there = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    except (OSError, ValueError) as error:
        raise SpecError(f"can't read {file}: {error}. Name another file before --data.") from None
    if asked.out and not (mark in there and _is_exported(asked.out)):
        check_free(expanded(asked.out), force=asked.force)
    if mark in there:
        notes = [f"{file} was written for these rows and options: it is used again"]
    elif there and not asked.force:
        raise SpecError(
            f"{file} was written for other rows or options. Replace it: --force (what was trained "
            f"stays in the store); or name another, as in `lp-sweep run other.yaml --data ...`; or "
            f"go on with it: {run.again('run')}."
        )
    else:
        if asked.model:  # a mistake in it leaves no file
            find_model(asked.model, folder=Path(), pins=Pins(offline=run.offline))
        rows = {one.name: getattr(asked, one.name) for one in fields(RowsOptions)}
        rows["within"] = _within(asked)  # a search for what is shipped, and for no more
        made = init.write_sweep(
            InitOptions(**rows, file=file, force=asked.force, quick=asked.quick, made_by=mark)
        )
        notes = [*made.notes, f"wrote {', '.join(map(str, made.files))}"]
    run, more = _sized(run, asked)
    return run, [*notes, *more]


def _sized(run: RunOptions, asked: SmallerOptions) -> tuple[RunOptions, list[str]]:
    """The part of the sweep for which the hours of the run are enough, with time to measure and
    export; and notes. The same command again, or with more hours, takes the rest. An axis that the
    command line sets stays as it is."""
    if not run.max_hours or asked.quick:
        return run, []
    later = min(_LATER * run.max_hours, _MOST_LATER)
    hours = run.max_hours - later
    run = replace(run, max_hours=hours)
    notes = [f"{duration(Span(later))} are left for measuring and the export"]
    if run.address and not (run.inline or run.processes):  # how many slots it has is not known
        return run, notes
    plan = service.plan.plan(run)
    spec, each = plan.made.sweep.spec, plan.training_hours()
    slots = 1 if run.inline else slots_here(PerTrial.of(spec)).number
    fit = hours * min(slots, _ONE) / each  # a search waits for its first trainings
    scored_first = len(spec.procedures) > 1  # before networks are trained, one by one
    taken = _part(spec, fit, run.overrides)
    sized = replace(run, overrides=[*run.overrides, *taken])
    if taken and not service.plan.plan(sized).made.plan.missing():
        return run, notes  # an earlier run has done the part
    if taken:
        notes.append(
            f"{duration(Span(hours))} are short for the whole sweep: this run tries "
            f"{' '.join(taken)} alone. The same command again tries the rest"
        )
    if round(fit) < (1 if scored_first else _ONE) and spec.procedures[0] != UNTRAINED:
        train = hours * _ONE / fit
        enough = train + min(train * _LATER / (1 - _LATER), _MOST_LATER)
        allow = f"--max-hours {rounded_up(enough)}"
        notes.append(f"too short for an answer, probably: allow {allow}, or try --quick")
    return sized, notes


def rounded_up(hours: float) -> str:
    """With two digits. Never fewer hours: what was asked for must not be advised again."""
    step = 10 ** (math.floor(math.log10(hours)) - 1)
    return f"{math.ceil(hours / step) * step:g}"


def _part(spec: SweepSpec, fit: float, overrides: Sequence[str]) -> list[str]:
    """The overrides that choose a part of the sweep, where `fit` trainings end in time."""
    set_here = {word.partition("=")[0].strip() for word in overrides}
    part: dict[str, Any] = {}
    if fit < _SEEDS and len(spec.seeds) > 1 and not any(s.max_seeds for s in spec.strategies):
        part["seed"] = spec.seeds[0]
    if fit < _SEVERAL and len(spec.procedures) > 1:
        part["procedure"] = spec.procedures[0]
    elif fit < _SEVERAL and len(spec.strategies) > 1:
        part["strategy"] = spec.strategies[0].name
    return [f"{key}={value}" for key, value in part.items() if not {key, f"{key}s"} & set_here]


def _within(asked: SmallerOptions) -> float:
    return WITHIN[0] if asked.within is None else asked.within


def _is_exported(folder: Path) -> bool:
    """Whether an export wrote the folder: the same command replaces what it wrote."""
    return (expanded(folder) / "lp_sweep.json").is_file()


def _refuse_other_tasks(run: RunOptions) -> None:
    """Before hours of training: the answer is of one model on one task."""
    for override in run.overrides:
        if override.partition("=")[0].strip() in ("task", "tasks", "model", "models"):
            raise SpecError(f"{override}: --data has the task, --model the model. Leave it out.")


def finished(asked: SmallerOptions, run: RunOptions, result: RunResult) -> SmallerModel:
    """Measures and exports, as far as the run came. Raises LpSweepError."""
    if asked.quick:
        if result.exit_code and result.stopped_by != "nothing-learned":
            return SmallerModel([])
        rows = f"{initfile.QUICK_TRAIN} train and {initfile.QUICK_DEV} dev rows at most, one seed"
        return SmallerModel([f"a first look only: {rows}. For the answer, leave out --quick."])
    stopped = result.stopped_by == "max-hours"
    if result.exit_code and not stopped:
        return SmallerModel(["nothing is exported yet: the run did not come to its answer"])
    if stopped and not _has_full_model(result.plan):
        return SmallerModel(["the full model is not trained yet: there is no answer. Go on."])
    [task] = result.plan.sweep.tasks
    spec, within = result.plan.sweep.spec, _within(asked)
    place: dict[str, Any] = {
        "task": task,
        "store": result.store.location,
        "sweep": spec.name,
        "file": run.file,
        "offline": run.offline,
        "manifest": run.manifest,
        "cache_dir": run.cache_dir,
    }
    export.measure_task(MeasureOptions(**place, formats=[*spec.deploy], within=within))
    notes = ["the time is up: this is the best so far. The same command continues"] * stopped
    chosen = ExportOptions(
        **place,
        best=True,
        fastest=True,
        within=within,
        out=asked.out or Path("smaller"),
        force=asked.force or bool(asked.out and _is_exported(asked.out)),
    )
    choice, shipped = export.choose(result.store, chosen)
    [record] = result.store.read("trials", choice.trial_id)
    said = [*notes, choice.why]
    if problem := export.not_learned(result.store, record):
        return SmallerModel([*said, f"{problem} Nothing was exported."])
    if len(record["kept_layers"]) == record["depth"]:
        words = ["lp-sweep", "export", choice.trial_id, "--as", *shipped.formats]
        words += ["--out", "full", "--file", run.file, "--store", result.store.location]
        answer = (
            f"the answer is the full model: no smaller one that was tried loses at most "
            f"{points(within)}, and nothing was exported. To export the full one: "
            f"{shlex.join(words)}"
        )
        return SmallerModel([*said, answer])
    if asked.out is None:
        return SmallerModel([*said, "to export it, add --out FOLDER to the same command"])
    return SmallerModel(notes, export.export_chosen(result.store, choice, shipped))


def _has_full_model(plan: Plan) -> bool:
    known = plan.known.trials
    return any(work.is_full_model and id_ in known for id_, work in plan.trials.items())


def _sweep_file(asked: SmallerOptions, run: RunOptions) -> Path:
    """The file that the command names; else one that is named after the data, beside the store."""
    if run.file != _USUAL:
        return Path(run.file)
    store = run.store or str(DEFAULT_STORE)
    folder = Path() if "://" in store else expanded(store).parent
    data = asked.data if asked.data is not None else asked.corpus
    assert data is not None
    return folder / f"{initfile.task_name(data)}{'-quick' * asked.quick}.yaml"


def _mark(asked: SmallerOptions) -> str:
    """A digest of the options and of the files that they name; of those that can't be read, their
    names alone."""
    digest = hashlib.sha256()
    for one in fields(RowsOptions):
        value = getattr(asked, one.name)
        digest.update(f"{one.name} {value!s}\n".encode("utf-8", "surrogateescape"))
        if one.name in _FILES and value is not None:
            for file in _files(expanded(value)):
                with suppress(OSError), file.open("rb") as content:
                    digest.update(hashlib.file_digest(content, "sha256").digest())
    return f"{digest.hexdigest()[:16]}{' quick' * asked.quick}"


def _files(path: Path) -> list[Path]:
    """All files of a folder: it may hold several sets of rows."""
    try:
        found = sorted(path.rglob("*")) if path.is_dir() else parts_of(path)
        return [file for file in found if file.is_file()]
    except OSError:  # a name that is too long
        return []
