"""`export` and `prune`: a smaller network as a folder that plain transformers loads. `measure`: its
cost."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from lp_sweep.orchestrator.options import (
    MEASURED,
    ExportOptions,
    MeasureOptions,
    Request,
    ShippedFormat,
    ShippedVocabulary,
)
from lp_sweep.orchestrator.service.store import existing, history
from lp_sweep.storage.errors import LpSweepError, PreflightError, SpecError, StoreError
from lp_sweep.storage.places import DEFAULT_STORE, expanded, options_of
from lp_sweep.storage.printable import ranges, say
from lp_sweep.storage.store import Store

if TYPE_CHECKING:
    from lp_sweep.analysis.tabledef import Table
    from lp_sweep.orchestrator.export.choice import TrialChoice
    from lp_sweep.orchestrator.export.prunedfolder import PruneResult
    from lp_sweep.orchestrator.export.trialfolder import ExportResult
    from lp_sweep.orchestrator.inputs.models import ModelInput
    from lp_sweep.orchestrator.inputs.resolve import SweepInputs


def export_trial(asked: ExportOptions) -> ExportResult:
    """Writes the network to the folder `out`, which appears complete or not at all. Progress goes
    to stderr. Raises LpSweepError."""
    _check(asked)
    from lp_sweep.orchestrator.export.folder import check_free
    from lp_sweep.orchestrator.export.places import Where
    from lp_sweep.orchestrator.export.trialfolder import export, kept_instead, refuse_unsupported

    check_free(expanded(asked.out), force=asked.force)
    store = existing(asked.store or DEFAULT_STORE)
    if asked.as_shipped:
        choice, asked = _to_ship(store, asked)
        record = _record(store, choice.trial_id)
    else:
        record, choice = _chosen(store, asked)
    refuse_unsupported(record, graphs=bool(asked.graphs))
    caution = " ".join(filter(None, (choice.caution, _caution(store, record, asked))))
    say(f"{record['trial_id']}: {choice.why}")
    hint = kept_instead(store, record["trial_id"], choice.seeds)
    for note in (choice.luck, caution and f"warning: {caution}", hint):
        if note:
            say(note)
    where = Where(asked, store, _sweep(asked, store, record))
    chosen = " ".join(filter(None, (choice.why, choice.luck, caution)))
    return export(record, chosen, where)


class DeploymentResult(NamedTuple):
    """The networks of a task as they are shipped, on this machine. The notes of `table` say what
    was left out, and why."""

    table: Table
    measured: int  # records that this call made


def measure_task(asked: MeasureOptions) -> DeploymentResult:
    """Measures the best network of each number of layers and the full model on this machine, each
    in every format, and stores a record of each. What the store has is not measured again.
    Progress goes to stderr. Raises LpSweepError."""
    formats = [ShippedFormat(name) for name in dict.fromkeys(asked.formats or MEASURED)]
    vocabularies = [*dict.fromkeys(asked.vocabularies)] or [ShippedVocabulary.full]
    _check_texts(asked.texts, vocabularies)
    from lp_sweep.orchestrator.export import deployments
    from lp_sweep.orchestrator.export.places import Where, extra_texts, spec_of
    from lp_sweep.trials.device import pick_device

    store = existing(asked.store or DEFAULT_STORE)
    if asked.device not in ("auto", "cpu") and pick_device() == pick_device("cpu"):
        raise PreflightError(f"--device {asked.device}: torch sees no GPU here. Use --device cpu.")
    on = deployments.Machine(
        device=pick_device(asked.device), threads=asked.threads, seconds=asked.seconds
    )
    records, notes = _front(store, asked)
    extra = {"full": "", "task": extra_texts(spec_of(records[0]).task, asked.texts)}
    every = [
        deployments.Deployment.of(
            row, on, format=each.value, vocabulary=pieces.value, extra_texts=extra[pieces]
        )
        for row in records
        for pieces in vocabularies
        for each in formats
    ]
    baseline = deployments.Deployment.of(records[0], on)
    ids = [each.id for each in every]
    asked_for = [baseline.id, *ids]
    known = store.read_all(
        deployments.TABLE, asked_for, ("deployment_id", "error")
    ).rows.to_pylist()
    done = {row["deployment_id"] for row in known if row["error"] is None}
    wanted = [each for each in every if asked.again or each.id not in done]
    made: list[dict[str, Any]] = []
    if wanted:
        # the others' change and share are counted from its record
        if baseline.id not in done and baseline not in wanted:
            wanted = [baseline, *wanted]
        options = ExportOptions(out=Path(), **{name: getattr(asked, name) for name in _PLACES})
        where = Where(options, store, _sweep(options, store, records[0]))
        with TemporaryDirectory(prefix="lp-sweep-") as scratch:
            made = deployments.measure_all(wanted, baseline, on, where, Path(scratch))
    others = store.read_all(deployments.TABLE, columns=("device_name", "task")).rows.to_pylist()
    elsewhere = {row["device_name"] for row in others if row["task"] == asked.task} - {on.name}
    if elsewhere:
        notes.append(
            f"Not shown: deployments on {', '.join(sorted(elsewhere))}. Times of two devices are "
            "not comparable."
        )
    threads = f"{on.threads} thread{'s' * (on.threads > 1)}"
    title = f"{asked.task} as shipped, on {on.name}, {threads}"
    shown = ids if baseline.id in ids else [baseline.id, *ids]
    return DeploymentResult(_table(store, shown, title, notes), len(made))


_PLACES = (
    "store",
    "task",
    "data_dir",
    "offline",
    "manifest",
    "sweep",
    "setup",
    "file",
    "cache_dir",
    "texts",
)


def _front(store: Store, asked: MeasureOptions) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The records of the networks to measure, the full model first, and notes on those that are
    left out. Raises LpSweepError if none is left."""
    from lp_sweep.analysis.views import open_views
    from lp_sweep.orchestrator.export.choice import front
    from lp_sweep.storage.networks import has_network

    with open_views(store, sweep=asked.sweep, setup=asked.setup, only=("cells",)) as catalog:
        networks = front(catalog, asked.task, asked.model)
    found: list[Mapping[str, Any]] = []
    notes: list[str] = []
    for network in networks:
        kept = [trial for trial in network.trials if has_network(store, trial)]
        if not kept and not asked.retrain:
            layers = f"Layers {ranges(network.kept_layers)} of {network.depth}"
            notes.append(
                f"{layers}: the network of {network.trials[0]} was not kept. --retrain "
                "trains it again here; `keep: best` in the sweep file keeps later trials'."
            )
            if network.is_full:
                raise StoreError(f"every artefact is compared with the full model. {notes[0]}")
            continue
        (row,) = store.read("trials", (kept or network.trials)[0])
        found.append(row)
    return found, notes


_SHOWN = """
FROM deployments
WHERE list_contains($ids, deployment_id)
ORDER BY n_kept DESC, list_position($ids, deployment_id)
"""
_COLUMNS = {  # heading -> column of the view, and how it is shown
    "as": ("artefact", "{}"),
    "score": ("score", "{:.2f}"),
    "change": ("change", "{:+.2f}"),
    "ms": ("ms", "{:.2f}"),
    "95%": ("ms_p95", "{:.2f}"),
    "times as fast": ("times_as_fast", "{:.1f}"),
    "texts/s": ("texts_per_second", "{:,.0f}"),
    "MB": ("mb", "{:.1f}"),
    "memory, MB": ("peak_memory_mb", "{:,.0f}"),
}


def _table(store: Store, ids: Sequence[str], title: str, notes: Sequence[str]) -> Table:
    from lp_sweep.analysis.tabledef import Table, text
    from lp_sweep.analysis.views import open_views

    with open_views(store, only=("deployments",)) as catalog:
        found = catalog.query(_SHOWN, {"ids": list(ids)})
    rows = found.to_pylist()
    shown = [text(column, how) for column, how in _COLUMNS.values()]
    failed = [
        f"Layers {ranges(row['kept_layers'])} as {row['artefact']}: {row['error']}."
        for row in rows
        if row["error"]
    ]
    explained = (
        "ms: one text with its tokenizer, wall time, median and 95th percentile; texts/s: in "
        "batches of 32; memory: of a process that serves it. Change and times as fast: against all "
        "layers as torch."
    )
    return Table(
        title=title,
        columns=("layers", *_COLUMNS),
        rows=tuple(
            (ranges(row["kept_layers"]), *(column(row) for column in shown)) for row in rows
        ),
        notes=(explained, *failed, *notes),
        long=found,
    )


def _check(asked: ExportOptions) -> None:
    if asked.best == (asked.trial is not None):
        both = "; not both" if asked.best else ""
        raise SpecError(f"name a trial, or choose one with --best --task NAME{both}.")
    if asked.best and not asked.task:
        raise SpecError("--best: on which task? Name it with --task.")
    if asked.as_shipped and not asked.best:
        raise SpecError("--fastest, --smallest, --max-ms and --max-mb are for --best --task NAME.")
    _check_texts(asked.texts, [asked.vocabulary])
    if asked.setup and not asked.best:
        raise SpecError("--setup is for --best: an identifier names one trial in any setup.")


def _check_texts(texts: Sequence[str], vocabularies: Sequence[ShippedVocabulary]) -> None:
    if texts and "task" not in vocabularies:
        raise SpecError("--texts: only a vocabulary is cut on texts. Add --vocabulary task.")


def prune_model(
    model: str,
    *,
    out: str | Path,
    strategy: str | None = None,
    k: int | None = None,
    layers: Sequence[int] = (),
    revision: str | None = None,
    offline: bool = False,
    force: bool = False,
) -> PruneResult:
    """Writes a model, from a folder or the hub, to the folder `out`: without the layers that
    `strategy` drops, or with `layers` (1-based) alone, and not fine-tuned. Raises LpSweepError."""
    from lp_sweep.orchestrator.export.folder import check_free
    from lp_sweep.orchestrator.export.prunedfolder import chosen_layers, prune
    from lp_sweep.orchestrator.inputs.models import find_model
    from lp_sweep.orchestrator.inputs.pins import Pins

    out = expanded(out)
    check_free(out, force=force)
    pins = Pins(offline=offline)
    found = find_model(model, revision=revision, layers=None, folder=Path.cwd(), pins=pins)
    kept = chosen_layers(found.depth, strategy, k, layers)
    how = f"strategy {strategy}" if strategy else "layers named by hand"
    say(f"{found.name}: {len(kept)} of {found.depth} layers stay, {how}")
    files = _files_of(found, offline)
    return prune(found, files, kept, how, out=out, force=force, offline=offline)


def _chosen(store: Store, asked: ExportOptions) -> tuple[Mapping[str, Any], TrialChoice]:
    """The record, and why it was chosen."""
    from lp_sweep.analysis.views import open_views
    from lp_sweep.orchestrator.export import choice

    if not asked.best:
        chosen = choice.TrialChoice(str(asked.trial), "Named by its identifier.", {})
    else:
        deltas = (asked.within,)
        views = open_views(
            store, sweep=asked.sweep, setup=asked.setup, deltas=deltas, only=choice.VIEWS
        )
        with views as catalog:
            for file in catalog.unreadable:
                say(f"warning: {file.sentence}")
            chosen = choice.best(catalog, asked, choice.stored_answers(store))
    return _record(store, chosen.trial_id), chosen


def _to_ship(store: Store, asked: ExportOptions) -> tuple[TrialChoice, ExportOptions]:
    """The network of the artefact to ship, and options that ask for its form."""
    from lp_sweep.analysis.views import open_views
    from lp_sweep.orchestrator.export.choice import SHIPPED_VIEWS, to_ship
    from lp_sweep.trials.device import device_name, pick_device

    views = open_views(
        store, sweep=asked.sweep, setup=asked.setup, deltas=(asked.within,), only=SHIPPED_VIEWS
    )
    with views as catalog:
        choice, row = to_ship(catalog, asked, device_name(pick_device("auto")))
    form, pieces = ShippedFormat(row["format"]), ShippedVocabulary(row["vocabulary"])
    return choice, replace(asked, formats=[form], vocabulary=pieces)


def _record(store: Store, trial: str) -> Mapping[str, Any]:
    """Raises StoreError and SpecError where there is none."""
    found = history(store, trial)
    if found.id[0] in "pd":
        raise SpecError(f"{found.id} is a measurement and has no network. Name a trial.")
    if found.record is None:
        raise StoreError(f"{found.id} failed. Why: lp-sweep logs {found.id}. Next: lp-sweep retry")
    return found.record


def _caution(store: Store, record: Mapping[str, Any], asked: ExportOptions) -> str:
    """A warning if the network, or the full model, is no better than guessing. The choice of the
    best network has already warned about the full model."""
    from lp_sweep.analysis.notes import untaught_network
    from lp_sweep.orchestrator.export.card import full_record
    from lp_sweep.orchestrator.export.places import spec_of

    full = None if asked.best else full_record(store, spec_of(record), record["depth"])
    return untaught_network(record, full)


def _sweep(asked: ExportOptions, store: Store, record: Mapping[str, Any]) -> SweepInputs | None:
    """The sweep that knows where the record's model and data are: that of the file, or else of
    sweep.yaml here or of the file that the record's run used. Without a file of the user's own an
    unusable one is skipped with a note, since model and data may all be on the hub."""
    named = Request(
        asked.file or "sweep.yaml",
        data_dir=asked.data_dir,
        offline=asked.offline,
        manifest=asked.manifest,
    )
    if asked.file is not None:
        given: SweepInputs = named.resolved(named.sweep_file())
        return given
    found: SweepInputs | None = None
    for request in (
        *([named] if Path(named.file).is_file() else ()),
        *_of_run(named, store, record),
    ):
        try:
            sweep: SweepInputs = request.resolved(request.sweep_file())
        except LpSweepError as error:
            say(f"note: {request.file} is not looked at: {error}")
            continue
        found = found or sweep
        if record["data_fingerprint"] in {task.fingerprint for task in sweep.tasks.values()}:
            return sweep
    return found


def _of_run(named: Request, store: Store, record: Mapping[str, Any]) -> Iterator[Request]:
    """The files with which sweeps of the store were run that have this trial."""
    for name in sorted(store.names("sweeps")):
        cells = store.read_all("sweeps", [name], ("trial_id", "overrides")).rows.to_pylist()
        overrides = [row["overrides"] for row in cells if row["trial_id"] == record["trial_id"]]
        options = options_of(store.read_text("sweeps", f"{name}.yaml")) if overrides else []
        if options:
            places = dict(zip(options[::2], options[1::2], strict=True))
            folder = places.get("--data-dir")
            yield replace(
                named,
                file=places["--file"],
                overrides=shlex.split(overrides[0] or ""),
                data_dir=named.data_dir or (Path(folder) if folder else None),
            )


def _files_of(model: ModelInput, offline: bool) -> Path:
    """The folder of the model's files, downloaded if needed. Raises PreflightError."""
    if not model.of_hub:
        return Path(model.path)
    from lp_sweep.orchestrator.inputs.prefetch import fetch_model
    from lp_sweep.orchestrator.inputs.weights import folder_problems

    if not model.pinned:
        why = model.why_not_pinned
        raise PreflightError(f"model {model.name!r}: its commit is not known: {why}.")
    folder = model.folder
    if not offline and folder_problems(folder, depth=model.depth):
        fetch_model(model)
    if problems := folder_problems(folder, depth=model.depth):
        raise PreflightError(
            f"model {model.name!r} at {model.revision} is not in the Hugging Face cache: "
            f"{'; '.join(problems)}. Leave out --offline to fetch it."
        )
    return folder


def dev_texts(store: Store, trial: str) -> tuple[list[list[str]], Sequence[str]] | None:
    """The texts of a trial's dev rows, in their order, and the names of its classes; None, with a
    note, if its data is not found."""
    from lp_sweep.orchestrator.export.places import Where, spec_of, task_source
    from lp_sweep.trials.data.datasource import load_task

    asked = ExportOptions(trial=trial, out=Path())
    try:
        record = _record(store, trial)
        spec = spec_of(record)
        source = task_source(spec, record, Where(asked, store, _sweep(asked, store, record)))
        if source is None:
            raise PreflightError(f"the data of task {record['task']!r} is not found")
        task = load_task(
            spec.task,
            source,
            limit_train=spec.recipe.limit_train,
            limit_dev=spec.recipe.limit_dev,
            offline=asked.offline,
        )
    except LpSweepError as error:
        say(f"note: dev rows are listed without their texts: {error}")
        return None
    columns = zip(*task.dev[task.main_split].texts, strict=True)
    texts = [[t if isinstance(t, str) else " ".join(t) for t in row] for row in columns]
    return texts, task.label_names
