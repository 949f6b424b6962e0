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
    from_environment,
)
from lp_sweep.orchestrator.service.store import existing, history
from lp_sweep.orchestrator.sweepfile.axes import WITHIN
from lp_sweep.storage.errors import LpSweepError, PreflightError, SpecError, StoreError
from lp_sweep.storage.places import DEFAULT_STORE, expanded, options_of
from lp_sweep.storage.printable import ranges, say
from lp_sweep.storage.store import Store

if TYPE_CHECKING:
    from lp_sweep.analysis.tabledef import Table
    from lp_sweep.orchestrator.export.choice import TrialChoice
    from lp_sweep.orchestrator.export.prunedfolder import PruneResult
    from lp_sweep.orchestrator.export.trialfolder import ExportResult
    from lp_sweep.orchestrator.export.verify import HeldOutScore
    from lp_sweep.orchestrator.inputs.models import ModelInput
    from lp_sweep.orchestrator.inputs.resolve import SweepInputs


def export_trial(asked: ExportOptions) -> ExportResult:
    """Writes the network to the folder `out`, which appears complete or not at all. Progress goes
    to stderr. Raises LpSweepError."""
    _check(asked)
    from lp_sweep.orchestrator.export.folder import check_free

    check_free(expanded(asked.out), force=asked.force)
    store = existing(asked.store or DEFAULT_STORE)
    return export_chosen(store, *choose(store, asked))


def export_chosen(store: Store, choice: TrialChoice, asked: ExportOptions) -> ExportResult:
    """The same, of what `choose` has chosen. Raises LpSweepError."""
    record = _record(store, choice.trial_id)  # before imports that take seconds
    from lp_sweep.orchestrator.export.heldout import exported_score
    from lp_sweep.orchestrator.export.places import Where
    from lp_sweep.orchestrator.export.trialfolder import export, kept_instead, refuse_unsupported

    refuse_unsupported(record, graphs=bool(asked.graphs))
    # the choice of the best network has already warned about the full model
    unlearned = not_learned(store, record, with_full=not asked.best)
    caution = " ".join(filter(None, (choice.caution, unlearned)))
    say(f"{choice.why.removesuffix('.')} ({record['trial_id']})")
    hint = kept_instead(store, record["trial_id"], choice.seeds)
    for note in (choice.luck, caution and f"warning: {caution}", hint):
        if note:
            say(note)
    where = Where(asked, store, _sweep(asked, store, record))
    chosen = " ".join(filter(None, (choice.why, choice.luck, caution)))
    return export(record, chosen, asked, where, exported_score)


def test_chosen(asked: ExportOptions) -> HeldOutScore | None:
    """Scores the artefact to ship on the rows that its task set aside; None if it set none aside.
    Raises LpSweepError, also if there is no such artefact."""
    from lp_sweep.orchestrator.export.heldout import held_out_score
    from lp_sweep.orchestrator.export.places import Where, extra_texts, spec_of

    store = existing(asked.store or DEFAULT_STORE)
    choice, asked = choose(store, asked)
    record = _record(store, choice.trial_id)
    where = Where(asked, store, _sweep(asked, store, record))
    extra = extra_texts(spec_of(record).task, asked.texts)
    return held_out_score(record, where, (asked.formats[0], asked.vocabulary), extra)


class DeploymentResult(NamedTuple):
    """The networks of a task as they are shipped, on this machine."""

    store: Store
    asked: MeasureOptions
    ids: Sequence[str]  # of all that were asked for, and of the full model as torch
    notes: Sequence[str]  # on what was left out, and why
    measured: int  # artefacts, in this call
    failed: int

    @property
    def table(self) -> Table:
        """`candidates` of them: which to ship. Its intervals take seconds, so it is made when it is
        asked for."""
        from lp_sweep.analysis.tables import TABLES
        from lp_sweep.analysis.views import open_views

        candidates, asked = TABLES["candidates"], self.asked
        most = WITHIN[-1] if asked.within is None else asked.within
        views = open_views(
            self.store,
            sweep=asked.sweep,
            setup=asked.setup,
            deltas=sorted({most, *(loss for loss in WITHIN if loss < most)}),
            only=candidates.views,
        )
        with views as catalog:
            table = candidates(catalog, deployments=self.ids)
        return replace(table, notes=(*table.notes, *self.notes))


_GAIN = 0.5  # points that an artefact may score more than its network


def measure_task(asked: MeasureOptions) -> DeploymentResult:
    """Measures the full model and the best network of each number of layers on this machine, unless
    it loses too much or a smaller one scores no less, each in every format, and stores a record of
    each. What the store has is not measured again. Progress goes to stderr. Raises LpSweepError."""
    vocabularies = [*dict.fromkeys(asked.vocabularies)] or ["full"]
    _check_texts(asked.texts, vocabularies)
    from lp_sweep.orchestrator.export.deployments import TABLE, Deployment, Machine, measure_all
    from lp_sweep.orchestrator.export.places import Where, extra_texts, spec_of

    store = existing(asked.store or DEFAULT_STORE)
    formats = [*dict.fromkeys(asked.formats or MEASURED)]
    on = Machine.of(asked.device, asked.threads, formats)
    records, notes = _front(store, asked)
    if on.beside_gpu:
        notes.append("On the CPU, which runs all forms. On the GPU: --as torch --device cuda.")
    extra = {"full": "", "task": extra_texts(spec_of(records[0]).task, asked.texts)}
    every = [
        Deployment.of(record, on, format=form, vocabulary=pieces, extra_texts=extra[pieces])
        for record in records
        for pieces in vocabularies
        for form in formats
    ]
    baseline = Deployment.of(records[0], on)
    ids = [*dict.fromkeys([baseline.id, *(each.id for each in every)])]
    known = store.read_all(TABLE, columns=("deployment_id", "error", "device_name", "task"))
    rows = known.rows.to_pylist()
    done = {row["deployment_id"] for row in rows if row["error"] is None}
    wanted = [each for each in every if asked.again or each.id not in done]
    if wanted and baseline.id not in done and baseline not in wanted:
        wanted = [baseline, *wanted]  # the others' change and share are counted from its record
    made: list[dict[str, Any]] = []
    if wanted:
        where = Where(asked, store, _sweep(asked, store, records[0]))
        with TemporaryDirectory(prefix="lp-sweep-") as scratch:
            made = measure_all(wanted, baseline, on, asked.seconds, where, Path(scratch))
    elsewhere = {row["device_name"] for row in rows if row["task"] == asked.task} - {on.name}
    if elsewhere:
        notes.append(
            f"Not shown: deployments on {', '.join(sorted(elsewhere))}. Times of two devices are "
            "not comparable."
        )
    failed = sum("error" in row for row in made)
    return DeploymentResult(store, asked, ids, notes, len(made) - failed, failed)


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
    best = float("-inf")  # mean score of the smaller networks
    if asked.within is not None:
        least = networks[0]["mean"] - asked.within - _GAIN
        networks = [network for network in networks if network["mean"] >= least]

    def able(network: Mapping[str, Any], seed: int | None = None) -> Mapping[str, Any] | None:
        trials = sorted(network["trials"], key=lambda one: one["seed"] != seed)
        kept = (one for one in trials if has_network(store, one["trial_id"]))
        return next(kept, trials[0] if asked.retrain else None)

    seed = (able(networks[0]) or {}).get("seed")
    for network in reversed(networks):
        if network["n_kept"] < network["depth"] and network["mean"] <= best:
            continue  # a smaller one scores no less
        if trial := able(network, seed):  # of the full model's seed: its change is paired
            found += store.read("trials", trial["trial_id"])
            best = max(best, network["mean"])
            continue
        layers, first = ranges(network["kept_layers"]), network["trials"][0]["trial_id"]
        notes.append(
            f"Layers {layers} of {network['depth']}: the network of {first} was not kept. --retrain"
            " trains it again, and keeps it; `keep: best` in the sweep file keeps later trials'."
        )
        if network["n_kept"] == network["depth"]:
            raise StoreError(f"every artefact is compared with the full model. {notes[-1]}")
    return found[::-1], notes[::-1]


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


def _check_texts(texts: Sequence[str], vocabularies: Sequence[str]) -> None:
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

    out = expanded(out)
    check_free(out, force=force)
    found, files = model_files(model, revision, offline)
    kept = chosen_layers(found.depth, strategy, k, layers)
    how = f"strategy {strategy}" if strategy else "layers named by hand"
    say(f"{found.name}: {len(kept)} of {found.depth} layers stay, {how}")
    return prune(found, files, kept, how, out=out, force=force, offline=offline)


def choose(store: Store, asked: ExportOptions) -> tuple[TrialChoice, ExportOptions]:
    """The network, and options that ask for the form to ship, if that was chosen also."""
    from lp_sweep.analysis.views import open_views
    from lp_sweep.orchestrator.export import choice
    from lp_sweep.orchestrator.export.places import extra_texts, spec_of
    from lp_sweep.trials.device import device_name, pick_device

    if not asked.best:
        return choice.TrialChoice(str(asked.trial), "Named by its identifier.", {}), asked
    only, deltas = choice.SHIPPED_VIEWS if asked.as_shipped else choice.VIEWS, (asked.within,)
    views = open_views(store, sweep=asked.sweep, setup=asked.setup, deltas=deltas, only=only)
    with views as catalog:
        for file in catalog.unreadable:
            say(f"warning: {file.sentence}")
        if not asked.as_shipped:
            return choice.best(catalog, asked, choice.stored_answers(store)), asked
        # as `measure` goes by: all forms run on the CPU
        devices = [device_name(pick_device(name)) for name in ("cpu", "auto")]
        chosen, row = choice.to_ship(catalog, asked, devices)
    task = spec_of(_record(store, chosen.trial_id)).task
    if row["extra_texts"] != extra_texts(task, asked.texts):
        again = "add --vocabulary task --texts FILE" if row["extra_texts"] else "leave out --texts"
        raise SpecError(
            f"{chosen.why} It was measured with {'other' if row['extra_texts'] else 'no'} texts to "
            f"cut its vocabulary on: {again}, as in `lp-sweep measure`."
        )
    return chosen, replace(asked, formats=[row["format"]], vocabulary=row["vocabulary"])


def _record(store: Store, trial: str) -> Mapping[str, Any]:
    """Raises StoreError and SpecError where there is none."""
    found = history(store, trial)
    if found.id[0] in "pd":
        raise SpecError(f"{found.id} is a measurement and has no network. Name a trial.")
    if found.record is None:
        raise StoreError(f"{found.id} failed. Why: lp-sweep logs {found.id}. Next: lp-sweep retry")
    return found.record


def not_learned(store: Store, record: Mapping[str, Any], *, with_full: bool = True) -> str:
    """A warning if the network, or the full model, is no better than guessing."""
    from lp_sweep.analysis.notes import network_not_learned
    from lp_sweep.orchestrator.export.card import full_record
    from lp_sweep.orchestrator.export.places import spec_of

    full = full_record(store, spec_of(record), record["depth"]) if with_full else None
    return network_not_learned(record, full)


def _sweep(
    asked: ExportOptions | MeasureOptions, store: Store, record: Mapping[str, Any]
) -> SweepInputs | None:
    """The sweep that knows where the record's model and data are: that of the file, or else of
    sweep.yaml here or of the file that the record's run used. Without a file of the user's own an
    unusable one is skipped with a note, since model and data may all be on the hub."""
    named = Request(
        asked.file or "sweep.yaml",
        data_dir=asked.data_dir,
        offline=asked.offline,
        manifest=asked.manifest,
        own=asked.file is not None,  # else the file may have come with the store
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
                own=False,  # a store may name any file
                overrides=shlex.split(overrides[0] or ""),
                data_dir=named.data_dir or (Path(folder) if folder else None),
            )


def model_files(name: str, revision: str | None, offline: bool) -> tuple[ModelInput, Path]:
    """A model by its folder or hub name, and the folder of its files, downloaded if needed. Raises
    LpSweepError."""
    from lp_sweep.orchestrator.inputs.models import find_model
    from lp_sweep.orchestrator.inputs.pins import Pins
    from lp_sweep.orchestrator.inputs.prefetch import fetch_model
    from lp_sweep.orchestrator.inputs.weights import folder_problems

    pins = Pins(offline=offline)
    model = find_model(name, revision=revision, layers=None, folder=Path.cwd(), pins=pins)
    if not model.of_hub:
        return model, Path(model.path)
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
    return model, folder


def dev_texts(store: Store, trial: str) -> tuple[list[list[str]], Sequence[str]] | None:
    """The texts of a trial's dev rows, in their order, and the names of its classes; None, with a
    note, if its data is not found."""
    from lp_sweep.orchestrator.export.places import Where, spec_of, task_source
    from lp_sweep.trials.data.datasource import load_task

    places = from_environment(Request)
    asked = ExportOptions(trial=trial, out=Path(), offline=places.offline, data_dir=places.data_dir)
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
