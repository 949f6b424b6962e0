"""The commands that read a sweep file and do it, or say what it takes: run, resume, retry, plan,
prefetch."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from lp_sweep.orchestrator.cli import completion
from lp_sweep.orchestrator.cli.interrupt import told_if_interrupted
from lp_sweep.orchestrator.cli.options import (
    DEFAULT_STORE,
    AddressOption,
    CacheDirOption,
    ClusterFileOption,
    DataDirOption,
    DetachOption,
    EventsOption,
    FailFastOption,
    FileArgument,
    Format,
    FormatOption,
    JsonOption,
    ManifestOption,
    MaxCostOption,
    MaxFailuresOption,
    MaxHoursOption,
    MirrorOption,
    OfflineOption,
    Overrides,
    StoreOption,
)
from lp_sweep.orchestrator.cli.output import emit, warn_unreadable
from lp_sweep.storage.errors import SpecError

_IDENTIFIER = re.compile(r"^[tp]\d+-[0-9a-f]*$")

app = typer.Typer()


@app.command()
def run(
    file: FileArgument = "sweep.yaml",
    overrides: Overrides = None,
    store: StoreOption = None,
    data_dir: DataDirOption = None,
    offline: OfflineOption = False,
    address: AddressOption = None,
    cache_dir: CacheDirOption = None,
    fail_fast: FailFastOption = False,
    max_failures: MaxFailuresOption = None,
    max_hours: MaxHoursOption = None,
    max_cost: MaxCostOption = None,
    cluster: ClusterFileOption = None,
    manifest: ManifestOption = None,
    mirror: MirrorOption = None,
    detach: DetachOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only plan.")] = False,
    as_json: JsonOption = False,
    events: EventsOption = False,
) -> None:
    """Do what a sweep file asks for and the store does not have yet.

    Example: lp-sweep run sweep.yaml task=rte seed=42,43
    """
    if dry_run:
        if events:
            raise SpecError("--events tells of a run; a plan is JSON with --json.")
        plan(file, overrides, store, data_dir, offline, manifest, cluster, as_json)
        return
    _check_printed(as_json=as_json, events=events, detach=detach)
    with told_if_interrupted():
        from lp_sweep.orchestrator.cli import running
        from lp_sweep.orchestrator.cli.farewell import farewell
        from lp_sweep.orchestrator.plan.policy import Limits
        from lp_sweep.orchestrator.service.request import Request

        request = Request(file, overrides or [], store, data_dir, offline, manifest)
        may_use = running.MayUse(max_hours, max_cost, cluster)
        limits = Limits(fail_fast, max_failures)
        how = running.How(address, cache_dir, limits, as_json, may_use, events, mirror or ())
        if detach:
            from lp_sweep.orchestrator.cli.detach import submit

            raise typer.Exit(submit(request, how))
        ended = running.run(request, how)
    raise typer.Exit(farewell(ended, request, how))


@app.command()
def resume(
    file: FileArgument = "sweep.yaml",
    overrides: Overrides = None,
    store: StoreOption = None,
    data_dir: DataDirOption = None,
    offline: OfflineOption = False,
    address: AddressOption = None,
    cache_dir: CacheDirOption = None,
    fail_fast: FailFastOption = False,
    max_failures: MaxFailuresOption = None,
    max_hours: MaxHoursOption = None,
    max_cost: MaxCostOption = None,
    cluster: ClusterFileOption = None,
    manifest: ManifestOption = None,
    mirror: MirrorOption = None,
    detach: DetachOption = False,
    as_json: JsonOption = False,
    events: EventsOption = False,
) -> None:
    """Go on with an interrupted sweep. The same as `run`, which always does what is missing.

    Example: lp-sweep resume sweep.yaml
    """
    options = locals()
    run(**options, dry_run=False)


@app.command()
def retry(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.failures,
            help="[sweep file] [failed trials] [key=value]; default sweep.yaml, all.",
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All that failed: the default.")] = False,
    error_type: Annotated[
        str | None, typer.Option("--type", help="Only failures of this type, such as bug.")
    ] = None,
    store: StoreOption = None,
    data_dir: DataDirOption = None,
    offline: OfflineOption = False,
    address: AddressOption = None,
    cache_dir: CacheDirOption = None,
    fail_fast: FailFastOption = False,
    max_failures: MaxFailuresOption = None,
    max_hours: MaxHoursOption = None,
    max_cost: MaxCostOption = None,
    cluster: ClusterFileOption = None,
    manifest: ManifestOption = None,
    mirror: MirrorOption = None,
    detach: DetachOption = False,
    as_json: JsonOption = False,
    events: EventsOption = False,
) -> None:
    """Try again what has failed; `run` leaves alone what would only fail in the same way.

    Example: lp-sweep retry sweep.yaml --type out_of_memory
    """
    words = what or []
    names = [word for word in words if _IDENTIFIER.match(word)]
    overrides = [word for word in words if "=" in word]
    files = [word for word in words if word not in (*names, *overrides)]
    if len(files) > 1:
        raise SpecError(f"two sweep files: {', '.join(files)}. A trial is named t1-0c1f...")
    if names and (error_type or failed):
        raise SpecError("name trials, or choose them with --failed or --type: not both.")
    _check_printed(as_json=as_json, events=events, detach=detach)
    with told_if_interrupted():
        from lp_sweep.orchestrator.cli import running
        from lp_sweep.orchestrator.cli.farewell import farewell
        from lp_sweep.orchestrator.plan.policy import Limits
        from lp_sweep.orchestrator.service.request import Request

        file = (files or ["sweep.yaml"])[0]
        request = Request(file, overrides, store, data_dir, offline, manifest)
        may_use = running.MayUse(max_hours, max_cost, cluster)
        limits = Limits(fail_fast, max_failures)
        how = running.How(address, cache_dir, limits, as_json, may_use, events, mirror or ())
        if detach:
            from lp_sweep.orchestrator.cli.detach import submit

            raise typer.Exit(submit(request, how))
        ended = running.retry(request, how, names, error_type)
    raise typer.Exit(farewell(ended, request, how))


def _check_printed(*, as_json: bool, events: bool, detach: bool) -> None:
    """With --detach the one is of this command, the other of the run."""
    if as_json and events and not detach:
        raise SpecError(
            "--events is JSON already, and its last line has what --json prints. Keep one of them."
        )


@app.command()
def plan(
    file: FileArgument = "sweep.yaml",
    overrides: Overrides = None,
    store: StoreOption = None,
    data_dir: DataDirOption = None,
    offline: OfflineOption = False,
    manifest: ManifestOption = None,
    cluster: ClusterFileOption = None,
    as_json: JsonOption = False,
    audit: Annotated[
        str | None,
        typer.Option(
            "--audit",
            autocompletion=completion.sweeps,
            help="Of this sweep of the store: estimated and actual hours.",
        ),
    ] = None,
    form: FormatOption = Format.table,
) -> None:
    """Show what a sweep file asks for, what the store has, and an estimate of hours and price.

    Example: lp-sweep plan sweep.yaml --json | jq .totals
    """
    from lp_sweep.orchestrator.service import plan as service
    from lp_sweep.orchestrator.service.request import Request

    if audit is not None:
        _audit(store or DEFAULT_STORE, audit, Format.json if as_json else form)
        return
    if form != Format.table:
        raise SpecError("--format is for --audit; a plan is text, or JSON with --json.")
    request = Request(file, overrides or [], store, data_dir, offline, manifest)
    made = service.plan(request, cluster)
    warn_unreadable(made.made.ledger.unreadable)
    emit(json.dumps(made.plain()) if as_json else made.text())


def _audit(location: str, sweep: str, form: Format) -> None:
    """Estimated against actual hours of a sweep's finished trials."""
    from lp_sweep.analysis.render import render
    from lp_sweep.orchestrator.estimate.audit import audit
    from lp_sweep.orchestrator.service.store import existing

    found = audit(existing(location), sweep)
    warn_unreadable(found.unreadable)
    emit(render(found.table, form), end="", form=form)


@app.command()
def prefetch(
    file: FileArgument = "sweep.yaml",
    overrides: Overrides = None,
    data_dir: DataDirOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Download the models and data sets of a sweep at pinned revisions, for `run --offline`.

    Example: lp-sweep prefetch sweep.yaml
    """
    from lp_sweep.orchestrator.service import plan as service
    from lp_sweep.orchestrator.service.request import Request

    fetched = service.prefetch(Request(file, overrides or [], None, data_dir, False, manifest))
    emit(json.dumps(fetched.plain()) if as_json else fetched.text())
