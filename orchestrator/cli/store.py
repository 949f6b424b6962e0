"""The commands that need no sweep file: the progress of a store, a trial's record, maintenance, and
networks as folders."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from lp_sweep.orchestrator import service
from lp_sweep.orchestrator.cli.output import emit, end_in_order, say, stored, warn_unreadable
from lp_sweep.orchestrator.options import (
    ExportOptions,
    ForceOption,
    JsonOption,
    MeasureOptions,
    MirrorKind,
    OfflineOption,
    OutOption,
    StoreOption,
    SweepOption,
    names_in_store,
    strategies,
    takes_options,
)
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import page
from lp_sweep.trials.spec.scoring import facts_of
from lp_sweep.trials.spec.select import by_position

if TYPE_CHECKING:
    from lp_sweep.orchestrator.export.trialfolder import ExportResult
    from lp_sweep.storage.store import Store, Unreadable

app = typer.Typer()


@app.command()
def status(
    store: StoreOption = None,
    sweep: SweepOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, Option("--watch", help="Follow one sweep until Ctrl-C.")] = False,
    every: Annotated[
        str | None,
        Option("--every", envvar="LP_SWEEP_EVERY", help="With --watch: time between updates. [5s]"),
    ] = None,
) -> None:
    """Show the progress of a store's sweeps, and the active runs.

    Example: lp-sweep status --store lp-sweep-store --watch
    """
    if every is not None and not watch:
        raise SpecError("--every needs --watch.")
    if watch:
        from lp_sweep.orchestrator.cli import watching

        watching.watch(store, sweep, every or "5s", as_json)
        return
    from lp_sweep.orchestrator.watch.states import states_text, sweep_states

    states = sweep_states(stored(store), sweep)
    warn_unreadable(states.unreadable)
    emit(json.dumps(states.plain()) if as_json else states_text(states))


def _records(ctx: typer.Context) -> Collection[str]:
    return names_in_store(ctx, lambda store: store.names("trials") | store.names("profiles"))


TrialArgument = Annotated[
    str,
    Argument(
        autocompletion=_records, help="A trial's or profile's identifier, or the beginning of one."
    ),
]


@app.command()
def show(trial: TrialArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print a trial's whole record: scores, recipe, data, model, versions, machine, command.

    Example: lp-sweep show t1-0c1f --store lp-sweep-store
    """
    found = service.store.history(stored(store), trial)
    emit(json.dumps(found.plain(), indent=2) if as_json else service.store.show_text(found))


@app.command()
def logs(trial: TrialArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print each failed attempt of a trial with its traceback, then its epochs.

    Example: lp-sweep logs t1-0c1f
    """
    found = service.store.history(stored(store), trial)
    emit(json.dumps(found.plain(), indent=2) if as_json else service.store.logs_text(found))


@app.command()
def compact(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Merge small records into large files, for faster queries. Safe while a sweep runs.

    Example: lp-sweep compact --store lp-sweep-store
    """
    from lp_sweep.storage import upkeep

    done = upkeep.compact(stored(store))
    text = f"{done.records} records: {done.files_before} files before, {done.files_after} now"
    emit(json.dumps(done._asdict()) if as_json else text)


@app.command()
def doctor(
    store: StoreOption = None,
    fix: Annotated[
        bool, Option("--fix", help="Move damaged files to the store's set-aside/.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List records that a store can't read or has lost; exit 1 if there are any. Kept networks are
    checked when they are exported or measured.

    Example: lp-sweep doctor --fix
    """
    from lp_sweep.storage import upkeep

    found = stored(store)
    findings = upkeep.examine(found)
    if fix:
        upkeep.set_aside(found, findings)
    if as_json:
        emit(json.dumps([item._asdict() for item in findings]))
    else:
        emit(_findings_text(found, findings, fixed=fix))
    raise typer.Exit(int(any(not fix or item.lost for item in findings if not item.newer)))


def _findings_text(store: Store, findings: list[Unreadable], *, fixed: bool) -> str:
    damaged = [item for item in findings if not item.lost and not item.newer]
    lines = [f"{item.location}: {item.reason}" for item in findings]
    if not findings:
        lines = [f"{store.location} is in order"]
    elif damaged and fixed:
        lines.append("the unreadable files are in set-aside/; the next run does their work again")
        if any("/predictions/" in item.location for item in damaged):
            lines.append("a trial whose own record is whole is not done again for its predictions")
    elif damaged:
        where = shlex.quote(store.location)
        lines.append(f"to move unreadable files away: lp-sweep doctor --fix --store {where}")
    return page(lines)


_MIRRORED = (
    "{to}  {sweep}: {written} trials written, {failures} of them failures; {there} were there"
)


@app.command()
def mirror(
    to: Annotated[
        list[MirrorKind],
        Option("--to", envvar="LP_SWEEP_MIRROR", help="Where to copy. May be repeated."),
    ],
    store: StoreOption = None,
    sweep: SweepOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the trials of a store into MLflow, W&B or trackio. Trials that are already there
    stay as they are.

    Example: lp-sweep mirror --to mlflow --store lp-sweep-store
    """
    from lp_sweep.orchestrator.mirrors.copying import copy_store

    told = []
    for done in copy_store(stored(store), to, sweep):
        told.append(done)
        if not as_json:  # before the next, which may fail
            emit(page([_MIRRORED.format_map(done)]))
    if as_json:
        emit(json.dumps(told))


# -- networks as folders

PushOption = Annotated[
    str | None, Option("--push-to-hub", help="Also send it to this hub repository.")
]
PrivateOption = Annotated[
    bool, Option("--private", envvar="LP_SWEEP_PRIVATE", help="Create the repository as private.")
]


@app.command()
@takes_options
def export(
    options: ExportOptions,
    push_to_hub: PushOption = None,
    private: PrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a trained network as a verified folder for plain transformers.

    Example: lp-sweep export --best --task rte --within 1 --out smaller
    """
    _check_push(push_to_hub, options.offline, private)
    end_in_order()
    done = service.export.export_trial(options)
    for line in export_lines(done):
        say(line)
    told = done._asdict() | {"verified": done.verified._asdict()}
    told["graphs"] = [graph._asdict() for graph in done.graphs]
    told["vocabulary"] = done.vocabulary and done.vocabulary._asdict()
    told["held_out"] = done.held_out and done.held_out._asdict()
    _finish(told, push_to_hub, private, as_json)


def export_lines(done: ExportResult) -> Iterator[str]:
    """Lines on the folder, its files and their scores."""
    metric = facts_of(done.metric).label
    score = f"{metric} {done.score:.2f}"
    if done.interval:
        score += f" (95% {done.interval[0]:.2f} to {done.interval[1]:.2f} over the dev set)"
    every, others = done.verified.examples, done.verified.other_labels
    same = f"the folder gives the {every:,} answers of the trial"
    if others or round(100 * done.verified.score - done.score, 2):  # the trial was in bf16
        same = f"the folder scores {100 * done.verified.score:.2f} in fp32"
        same += f", where {others:,} of {every:,} answers are others" if others else ""
    if done.vocabulary:
        pieces = f"{done.vocabulary.pieces:,} of {done.vocabulary.of:,} pieces"
        same = f"with {pieces}, {100 * done.verified.score:.2f}"
    layers = f"{len(done.kept_layers)} layer{'s' * (len(done.kept_layers) > 1)}"
    yield f"{layers}, {score}; {same}. How to load it: {done.folder}/README.md"
    for graph in done.graphs:
        yield f"{graph.file}, {graph.bytes / 1e6:.1f} MB: {metric} {100 * graph.score:.2f}"
    if done.held_out:
        yield done.held_out.sentence()


@app.command()
@takes_options
def measure(options: MeasureOptions, as_json: JsonOption = False) -> None:
    """Measure kept networks as they are shipped, on this machine: score, time, size. Exit 1 if one
    could not be measured.

    Example: lp-sweep measure --store lp-sweep-store --task rte --as torch --as onnx-int8
    """
    from lp_sweep.analysis.render import render
    from lp_sweep.orchestrator.service.export import measure_task

    end_in_order()
    form = "json" if as_json else "table"
    done = measure_task(options)
    for note in done.notes if as_json else ():
        say(note)
    emit(render(done.table, form), end="", form=form)
    raise typer.Exit(int(done.failed > 0))


@app.command()
def prune(
    model: Annotated[str, Argument(help="A model folder, or a hub model.")],
    out: OutOption,
    strategy: Annotated[
        str | None, Option("--strategy", autocompletion=strategies, help=f"{by_position()}.")
    ] = None,
    k: Annotated[int | None, Option("--k", help="How many layers to drop.")] = None,
    layers: Annotated[
        str | None, Option("--layers", help="Layers to keep, such as 1,2,5; 1 is the lowest.")
    ] = None,
    revision: Annotated[str | None, Option("--revision", help="Hub commit, branch or tag.")] = None,
    offline: OfflineOption = False,
    force: ForceOption = False,
    push_to_hub: PushOption = None,
    private: PrivateOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a pre-trained model without some of its layers, to fine-tune elsewhere.

    Example: lp-sweep prune bert-base-cased --strategy top --k 6 --out bert-6-layers
    """
    _check_push(push_to_hub, offline, private)
    try:
        kept = [int(part) for part in layers.split(",")] if layers is not None else []
    except ValueError:
        raise SpecError(f"--layers {layers!r}: give numbers, such as 1,2,5.") from None
    end_in_order()
    done = service.export.prune_model(
        model,
        out=out,
        strategy=strategy,
        k=k,
        layers=kept,
        revision=revision,
        offline=offline,
        force=force,
    )
    _finish(done._asdict(), push_to_hub, private, as_json)


def _check_push(repo_id: str | None, offline: bool, private: bool) -> None:
    if private and repo_id is None:
        raise SpecError("--private is for --push-to-hub.")
    if repo_id is not None:
        from lp_sweep.orchestrator.export.folder import check_may_push

        check_may_push(repo_id, offline=offline)


def _finish(told: dict[str, Any], repo_id: str | None, private: bool, as_json: bool) -> None:
    """Pushes the folder if asked to, then prints the folder, or all facts as JSON."""
    if repo_id is not None:
        from lp_sweep.orchestrator.export.folder import push

        told["hub"] = push(Path(told["folder"]), repo_id, private=private)
        say(f"sent to {told['hub']}")
    emit(json.dumps(told) if as_json else told["folder"])
