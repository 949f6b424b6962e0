"""The command that shows the live view on a page; `status --watch` is in `storecli`."""

from __future__ import annotations

from typing import Annotated

import typer

from lp_sweep.orchestrator.cli.options import DEFAULT_STORE, StoreOption, SweepOption

app = typer.Typer()


@app.command()
def dashboard(
    store: StoreOption = None,
    sweep: SweepOption = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Of 127.0.0.1; 0: any that is free.")
    ] = 8080,
) -> None:
    """Show the sweeps of a store on a page of this machine, which follows the store. Only reads.

    Example: lp-sweep dashboard --store lp-sweep-store --port 8080
    """
    from lp_sweep.orchestrator.cli import dashboard as page

    page.serve(store or DEFAULT_STORE, sweep, port)
