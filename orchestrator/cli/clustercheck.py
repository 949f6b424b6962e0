"""`lp-sweep cluster check`: whether each machine of a cluster that is up can do the sweep."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lp_sweep.orchestrator.cli.options import (
    AddressOption,
    CacheDirOption,
    DataDirOption,
    JsonOption,
    ManifestOption,
    OfflineOption,
    Overrides,
    StoreOption,
)
from lp_sweep.orchestrator.cli.output import emit, say
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.places import node_folder

if TYPE_CHECKING:
    from lp_sweep.orchestrator.inputs.nodes import Node
    from lp_sweep.orchestrator.service.clustercheck import Checked

_COLUMNS = ("node", "state", "GPUs", "store", "models and data", "free")
_GIB = 2**30


def check(
    file: Annotated[
        str | None, typer.Argument(help="Sweep file; without one only machines and store.")
    ] = None,
    overrides: Overrides = None,
    store: StoreOption = None,
    data_dir: DataDirOption = None,
    manifest: ManifestOption = None,
    offline: OfflineOption = False,
    address: AddressOption = None,
    cache_dir: CacheDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at every machine of a cluster that is up: versions, GPUs, store, models and data, disk
    and clock. Exit 4 where one can't do the sweep.

    Example: lp-sweep cluster check sweep.yaml --address auto
    """
    from lp_sweep.orchestrator.service.clustercheck import Question, check_cluster
    from lp_sweep.orchestrator.service.request import Request

    location, sweep = store, None
    if file is not None:
        request = Request(file, overrides or [], store, data_dir, offline, manifest)
        found = request.sweep_file()
        sweep, location = request.resolved(found), request.location(found)
    question = Question(location, sweep, node_folder(cache_dir), offline)
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
    rows = [_row(node, checked) | _state(node.name in stopped) for node in checked.nodes]
    absent = sorted(stopped - {node.name for node in checked.nodes})
    rows += [{"node": name, "state": "problem"} for name in absent]
    table = pa.table({name: [row.get(name, "-") for row in rows] for name in _COLUMNS})
    lines = [finding.line() for finding in checked.findings]
    # a line for each node on a terminal, too
    return "\n".join([render_rows(table, "table", terminal=False).rstrip("\n"), *lines])


def _state(stopped: bool) -> dict[str, str]:
    return {"state": "problem" if stopped else "ok"}


def _row(node: Node, checked: Checked) -> dict[str, str]:
    """What is not known is left out."""
    look, row = node.look, {"node": node.name}
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
