"""`lp-sweep cluster`: the commands around a cluster of `ray up`."""

from __future__ import annotations

import typer

from lp_sweep.orchestrator.commands.spot import watch_spot

app = typer.Typer(no_args_is_help=True)
app.command("watch-spot")(watch_spot)


@app.callback()
def _root() -> None:
    """What runs on the machines of a cluster.

    Example: lp-sweep cluster watch-spot aws
    """
