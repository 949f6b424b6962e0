"""`lp-sweep cluster`: the commands around a cluster of `ray up`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lp_sweep.orchestrator.cli.options import Commands, JsonOption, Overrides
from lp_sweep.orchestrator.cli.output import emit, say
from lp_sweep.orchestrator.cluster.wanted import Wanted
from lp_sweep.orchestrator.flags import AddressOption, CacheDirOption
from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.storage.errors import PreflightError, SpecError
from lp_sweep.storage.places import node_folder

if TYPE_CHECKING:
    from lp_sweep.orchestrator.inputs.nodes import Node
    from lp_sweep.orchestrator.service.clustercheck import Checked


app = Commands(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Write a cluster file for `ray up`, validate it, and check a running cluster.

    Example: lp-sweep cluster init aws --gpus 8
    """


@app.command()
def init(
    *,
    asked: Wanted,
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path("cluster.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
) -> None:
    """Write a commented cluster file, with the versions that are installed here.

    Example: lp-sweep cluster init aws --gpus 8 --gpu-type a10g --max-price 0.6
    """
    from lp_sweep.orchestrator.cluster.compose import write_cluster_file

    steps = write_cluster_file(asked, out, force=force)
    say(f"wrote {out}. Look at its lines with CHANGE. Next:")
    for step in steps:
        say(f"  {step}")


@app.command()
def validate(
    file: Annotated[
        Path, typer.Argument(help="File of `ray up`, or a RayCluster of KubeRay.")
    ] = Path("cluster.yaml"),
) -> None:
    """Check a cluster file with Ray's own validator, and its prices, files and versions. Asks no
    cloud, and costs nothing.

    Example: lp-sweep cluster validate cluster.yaml
    """
    from lp_sweep.orchestrator.cluster.validate import mistakes_of

    found = mistakes_of(file)
    if found:
        places = (f"{file}:{mistake.line}" if mistake.line else str(file) for mistake in found)
        lines = zip(places, found, strict=True)
        raise SpecError("\n".join(f"{place}: {mistake.text()}" for place, mistake in lines))
    emit(f"{file}: nothing wrong was found. Quotas and images only the cloud can check.")


_COLUMNS = ("node", "state", "GPUs", "store", "models and data", "free")
_GIB = 2**30


@app.command()
def check(
    file: Annotated[
        str | None,
        typer.Argument(help="Sweep file; without it, only machines and store are checked."),
    ] = None,
    overrides: Overrides = None,
    *,
    inputs: Request,
    address: AddressOption = None,
    cache_dir: CacheDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every machine of a running cluster: versions, GPUs, store, models and data, disk and
    clock. Exit 4 if one can't run the sweep.

    Example: lp-sweep cluster check sweep.yaml --address auto
    """
    from lp_sweep.orchestrator.service.clustercheck import Question, check_cluster

    location, sweep = inputs.store, None
    if file is not None:
        request = replace(inputs, file=file, overrides=overrides or ())
        found = request.sweep_file()
        sweep, location = request.resolved(found), request.location(found)
    question = Question(location, sweep, node_folder(cache_dir), inputs.offline)
    try:
        checked = check_cluster(address or "auto", question, say)
    except PreflightError as error:
        if address is None:
            raise PreflightError(_no_cluster(file)) from error
        raise
    emit(_json(checked) if as_json else _text(checked))
    raise typer.Exit(0 if checked.can_run else PreflightError.exit_code)


def _no_cluster(file: str | None) -> str:
    return (
        "no cluster is up on this machine. On the head of `ray up`: ray exec cluster.yaml "
        f"'lp-sweep cluster check {file or 'sweep.yaml'}'; elsewhere name one with --address. A "
        "cluster file that is not up yet: lp-sweep cluster validate."
    )


def _text(checked: Checked) -> str:
    import pyarrow as pa

    from lp_sweep.analysis.render import render_rows

    stopped = {finding.node for finding in checked.findings if finding.blocks}
    rows = [_row(node, checked, stopped) for node in checked.nodes]
    absent = sorted(stopped - {node.name for node in checked.nodes})
    rows += [{"node": name, "state": "problem"} for name in absent]
    table = pa.table({name: [row.get(name, "-") for row in rows] for name in _COLUMNS})
    lines = [finding.line() for finding in checked.findings]
    # terminal=False: one line for each node at any width
    return "\n".join([render_rows(table, "table", terminal=False).rstrip("\n"), *lines])


def _row(node: Node, checked: Checked, stopped: set[str]) -> dict[str, str]:
    """A row of the table, without unknown values."""
    row = {"node": node.name, "state": "problem" if node.name in stopped else "ok"}
    look = node.look
    if look is None:
        return row
    inputs: Counter[str] = Counter(item.state for item in look.inputs)
    inputs["through the store"] = checked.shipped
    return row | {
        "GPUs": f"{len(look.gpus)} of {node.gpus}",
        "store": ("not seen" if look.store else "ok") if checked.store_seen else "-",
        "models and data": ", ".join(f"{n} {state}" for state, n in inputs.items() if n) or "-",
        "free": f"{look.free_bytes / _GIB:.0f} GiB",
    }


def _json(checked: Checked) -> str:
    nodes = [node._asdict() | {"look": node.look and _plain(node.look)} for node in checked.nodes]
    findings = [finding._asdict() for finding in checked.findings]
    return json.dumps({"can_run": checked.can_run, "nodes": nodes, "findings": findings})


def _plain(look: Any) -> dict[str, Any]:
    told: dict[str, Any] = look._asdict()
    for name in ("gpus", "inputs"):
        told[name] = [item._asdict() for item in told[name]]
    return told
