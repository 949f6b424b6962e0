"""The command line: parse, call one function, print. Data goes to stdout, all else to stderr.

Exit codes: 0 complete, 1 some trials failed, 2 usage or sweep file, 3 stopped and resumable,
4 preflight (no data, no model, no space, no cluster), 130 interrupted. `storecli` holds the
commands that need no sweep file.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from lp_sweep.orchestrator.commands import (
    clustercli,
    completion,
    exporting,
    jobcli,
    livecli,
    mirrorcli,
    reportcli,
    storecli,
)
from lp_sweep.orchestrator.commands.options import (
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
from lp_sweep.orchestrator.commands.output import complain, emit, say
from lp_sweep.orchestrator.commands.root import Root
from lp_sweep.storage.errors import LpSweepError, SpecError
from lp_sweep.storage.places import is_file

_IDENTIFIER = re.compile(r"^[tp]\d+-[0-9a-f]*$")

app = typer.Typer(
    name="lp-sweep",
    cls=Root,
    help="How many layers of an encoder does your task need? Sweeps of layer-pruned, fine-tuned "
    "networks on Ray; every number in SQL.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point: a user's mistake is one message and an exit code, a bug keeps its traceback."""
    try:
        app()  # leaves by SystemExit; a wrong option or command is shown there, Ctrl-C is 130
    except LpSweepError as error:
        complain(str(error))
        sys.exit(error.exit_code)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        emit(f"lp-sweep {version('lp-sweep')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


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
    from lp_sweep.orchestrator.commands import running
    from lp_sweep.orchestrator.commands.detach import submit
    from lp_sweep.orchestrator.commands.farewell import farewell
    from lp_sweep.orchestrator.commands.request import Request
    from lp_sweep.orchestrator.plan.policy import Limits

    request = Request(file, overrides or [], store, data_dir, offline, manifest)
    may_use = running.MayUse(max_hours, max_cost, cluster)
    limits = Limits(fail_fast, max_failures)
    how = running.How(address, cache_dir, limits, as_json, may_use, events, mirror or ())
    if detach:
        raise typer.Exit(submit(request, how))
    raise typer.Exit(farewell(running.run(request, how), request, how))


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
    from lp_sweep.orchestrator.commands import running
    from lp_sweep.orchestrator.commands.detach import submit
    from lp_sweep.orchestrator.commands.farewell import farewell
    from lp_sweep.orchestrator.commands.request import Request
    from lp_sweep.orchestrator.plan.policy import Limits

    words = what or []
    names = [word for word in words if _IDENTIFIER.match(word)]
    overrides = [word for word in words if "=" in word]
    files = [word for word in words if word not in (*names, *overrides)]
    if len(files) > 1:
        raise SpecError(f"two sweep files: {', '.join(files)}. A trial is named t1-0c1f...")
    if names and (error_type or failed):
        raise SpecError("name trials, or choose them with --failed or --type: not both.")
    request = Request((files or ["sweep.yaml"])[0], overrides, store, data_dir, offline, manifest)
    may_use = running.MayUse(max_hours, max_cost, cluster)
    limits = Limits(fail_fast, max_failures)
    how = running.How(address, cache_dir, limits, as_json, may_use, events, mirror or ())
    if detach:
        raise typer.Exit(submit(request, how))
    raise typer.Exit(farewell(running.retry(request, how, names, error_type), request, how))


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
    from lp_sweep.orchestrator.commands import verbs
    from lp_sweep.orchestrator.commands.request import Request

    if audit is not None:
        emit(verbs.audit(store or DEFAULT_STORE, audit, Format.json if as_json else form), end="")
        return
    if form != Format.table:
        raise SpecError("--format is for --audit; a plan is text, or JSON with --json.")
    request = Request(file, overrides or [], store, data_dir, offline, manifest)
    emit(verbs.plan(request, as_json, cluster))


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
    from lp_sweep.orchestrator.commands import verbs
    from lp_sweep.orchestrator.commands.request import Request

    request = Request(file, overrides or [], None, data_dir, False, manifest)
    emit(verbs.prefetch(request, as_json))


@app.command()
def cka(
    first: Annotated[
        str,
        typer.Argument(autocompletion=completion.trials, help="A trial whose network was kept."),
    ],
    second: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.trials_and_pretrained, help="Another, or `pretrained`."
        ),
    ],
    file: Annotated[str, typer.Option("--file", help="The sweep that they are of.")] = "sweep.yaml",
    store: StoreOption = None,
    data_dir: DataDirOption = None,
    offline: OfflineOption = False,
    cache_dir: CacheDirOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two kept networks of one task, layer by layer: linear CKA on the dev set.

    Example: lp-sweep cka t1-0c1f t1-77ab --file sweep.yaml
    """
    from lp_sweep.orchestrator.commands import cka as view
    from lp_sweep.orchestrator.commands.request import Request
    from lp_sweep.orchestrator.commands.running import How
    from lp_sweep.orchestrator.plan.policy import Limits

    request = Request(file, [], store, data_dir, offline, manifest)
    folder = How(None, cache_dir, Limits(False, None), as_json).node_folder
    emit(view.compare(request, (first, second), folder, as_json))


app.add_typer(storecli.app)
app.add_typer(livecli.app)
app.add_typer(reportcli.app)
app.add_typer(exporting.app)
app.add_typer(mirrorcli.app)
app.add_typer(jobcli.app)
app.add_typer(clustercli.app, name="cluster")


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="File to write.")] = Path("sweep.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
) -> None:
    """Write a commented sweep file.

    Example: lp-sweep init sweep.yaml
    """
    from importlib.resources import files

    if is_file(file) and not force:
        raise SpecError(f"{file} exists. Name another file, or overwrite it with --force.")
    text = (files("lp_sweep.orchestrator") / "templates" / "sweep.yaml").read_text(encoding="utf-8")
    try:
        file.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise SpecError(f"can't write {file}: {error}. Name another file.") from None
    say(f"wrote {file}. Next: lp-sweep plan {file}")


@app.command()
def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="As a page for people.")] = False,
) -> None:
    """Print every key of a sweep file, as a JSON Schema or as a page.

    Example: lp-sweep schema > sweep.schema.json
    """
    from lp_sweep.orchestrator.sweepfile.reference import reference
    from lp_sweep.orchestrator.sweepfile.spec import SweepSpec

    if markdown:
        emit(reference(), end="")
    else:
        emit(json.dumps(SweepSpec.model_json_schema(), indent=2))


if __name__ == "__main__":
    main()
