"""`lp-sweep report`: a store as one page that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lp_sweep.orchestrator.cli.options import (
    DEFAULT_STORE,
    SetupOption,
    StoreOption,
    SweepOption,
    losses,
)
from lp_sweep.orchestrator.cli.output import doing, say

app = typer.Typer()


@app.command()
def report(
    store: StoreOption = None,
    sweep: SweepOption = None,
    setup: SetupOption = None,
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Write its figures into this folder, too.")
    ] = None,
    within: Annotated[
        str, typer.Option("--within", help="Allowed losses in points, comma-separated.")
    ] = "1,2,3",
) -> None:
    """Write a page with the answer, all tables and figures, what is missing and where it is from:
    one HTML file for any browser, which asks nothing of any network.

    Example: lp-sweep report --out report.html --figures figures
    """
    from lp_sweep.orchestrator.cli import verbs

    deltas = losses(within)
    with doing("report") as tell:
        written = verbs.report(
            store or DEFAULT_STORE,
            out,
            sweep=sweep,
            setup=setup,
            within=deltas,
            figures=figures,
            tell=tell,
        )
    for path in written.figures:
        say(f"wrote {path}")
    say(f"wrote {written.page} ({written.size / 1e3:,.0f} kB)")
