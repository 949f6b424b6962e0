"""`lp-sweep attach` and `stop`, for the runs that `--detach` has submitted to a cluster."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from lp_sweep.orchestrator.cli.output import emit, say
from lp_sweep.orchestrator.flags import JOB_SERVER
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.printable import printable

app = typer.Typer()

RunArgument = Annotated[
    str | None, typer.Argument(metavar="RUN", help="Name from `run --detach`. [the last run]")
]
JobAddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar=["LP_SWEEP_ADDRESS", JOB_SERVER, "RAY_ADDRESS"],
        help="The cluster or its job server, http://127.0.0.1:8265. [this machine's]",
    ),
]


@app.command()
def attach(run: RunArgument = None, address: JobAddressOption = None) -> None:
    """Show the output of a detached run and end with its exit code. Ctrl-C leaves it running.

    Example: lp-sweep attach lp-sweep-3f9a2c71
    """
    from lp_sweep.orchestrator.cluster.jobs import Jobs

    jobs = Jobs(address)
    job = jobs.named(run) if run else jobs.last()
    try:
        if not jobs.follow(job.id, lambda text: emit(printable(text, keep="\n\t"), end="")):
            return  # `| head`: the run continues
        ended = jobs.ended(job.id, seconds=10)  # the log ends a moment before the job
    except KeyboardInterrupt:
        say(f"the run continues. Look again: {again('attach', job.id, jobs.address)}")
        say(f"End it: {again('stop', job.id, jobs.address)}")
        raise typer.Exit(130) from None
    if ended is None:
        raise PreflightError(
            f"the log of {job.id} has ended, and the run has not: the connection was lost. Look "
            f"again: {again('attach', job.id, jobs.address)}"
        )
    if ended.status == "FAILED" and ended.driver_code is None:  # otherwise the run has printed why
        say(f"Ray has lost the run: {ended.message}")
    raise typer.Exit(ended.exit_code)


@app.command()
def stop(run: RunArgument = None, address: JobAddressOption = None) -> None:
    """Stop a detached run as Ctrl-C would: finished trials stay in the store, and the next run
    continues the others from their checkpoints.

    Example: lp-sweep stop lp-sweep-3f9a2c71
    """
    from lp_sweep.orchestrator.cluster.jobs import STOP_SECONDS, Jobs

    jobs = Jobs(address)
    job = jobs.named(run) if run else jobs.only_running()
    if job.over:
        say(f"it has ended before: {job.sentence()}")
        return
    ended = jobs.stop(job.id)
    if ended is None:
        raise PreflightError(
            f"{job.id} has not ended, {STOP_SECONDS} s after the request. Its last output: "
            f"{again('attach', job.id, jobs.address)}"
        )
    last = [line for line in jobs.log(job.id).splitlines() if line.startswith("stopped ")]
    say(last[-1] if last else "it was ended before it could say how far it is.")
    say(f"{job.id} has ended. Continue it with the same `lp-sweep run`, or `resume`.")


def again(verb: str, id_: str, address: str | None) -> str:
    """The command `verb` for a run, with the address that it needs."""
    return shlex.join(["lp-sweep", verb, id_, *(("--address", address) if address else ())])
