"""`lp-sweep mirror`: the trials of a store, shown in the tools of experiments."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from lp_sweep.orchestrator.cli.options import (
    DEFAULT_STORE,
    JsonOption,
    StoreOption,
    SweepOption,
)
from lp_sweep.orchestrator.cli.output import emit
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind, check_installed, open_mirror
from lp_sweep.storage.printable import page
from lp_sweep.storage.wording import unknown_sweep

_LINE = "{to}  {sweep}: {written} trials written, {failures} of them failures; {there} were there"

app = typer.Typer()


@app.command()
def mirror(
    to: Annotated[
        list[MirrorKind],
        typer.Option("--to", envvar="LP_SWEEP_MIRROR", help="Where to. May be repeated."),
    ],
    store: StoreOption = None,
    sweep: SweepOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the trials of a store into MLflow, Weights & Biases or TensorBoard. What is there
    already is left as it is.

    Example: lp-sweep mirror --to mlflow --store lp-sweep-store
    """
    from lp_sweep.orchestrator.cli.verbs import existing
    from lp_sweep.orchestrator.mirrors.copying import copy_trials

    kinds = dict.fromkeys(to)
    check_installed(kinds)
    opened = existing(store or DEFAULT_STORE)
    names = sorted(opened.names("sweeps"))
    if sweep is not None and sweep not in names:
        raise unknown_sweep(sweep, names, opened.location)
    told = []
    for name in [sweep] if sweep else names:
        for kind in kinds:
            done = copy_trials(opened, name, open_mirror(kind, name))
            told.append({"to": kind.value, "sweep": name, **done._asdict()})
            if not as_json:  # at once: the next may be refused
                emit(page([_LINE.format_map(told[-1])]))
    if as_json:
        emit(json.dumps(told))
