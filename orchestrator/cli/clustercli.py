"""`lp-sweep cluster`: the commands around a cluster of `ray up`."""

from __future__ import annotations

import typer

from lp_sweep.orchestrator.cli.clustercheck import check
from lp_sweep.orchestrator.cli.clusterfiles import init, validate
from lp_sweep.orchestrator.cli.spot import watch_spot

app = typer.Typer(no_args_is_help=True)
app.command()(init)
app.command()(validate)
app.command()(check)
app.command("watch-spot")(watch_spot)


@app.callback()
def _root() -> None:
    """Write a cluster file for `ray up`; check one before it costs money, and a cluster that is up.

    Example: lp-sweep cluster init aws --gpus 8
    """
