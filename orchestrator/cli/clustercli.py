"""`lp-sweep cluster`: the commands around a cluster of `ray up`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lp_sweep.orchestrator.cli.clustercheck import check
from lp_sweep.orchestrator.cli.output import emit, say
from lp_sweep.orchestrator.cli.spot import watch_spot
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import is_file
from lp_sweep.storage.printable import shown

if TYPE_CHECKING:
    from lp_sweep.orchestrator.cluster.wanted import Wanted

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Write a cluster file for `ray up`; check one before it costs money, and a cluster that is up.

    Example: lp-sweep cluster init aws --gpus 8
    """


@app.command()
def init(
    provider: Annotated[
        str, typer.Argument(metavar="aws|gcp|onprem|kuberay", help="onprem: your own machines.")
    ],
    gpus: Annotated[int | None, typer.Option("--gpus", help="Most GPUs in all. [8]")] = None,
    gpu_type: Annotated[
        str | None, typer.Option("--gpu-type", help="Such as t4, a10g, l4, a100. [a10g, l4]")
    ] = None,
    max_price: Annotated[
        float | None, typer.Option("--max-price", help="The most an hour of a spot machine costs.")
    ] = None,
    on_demand: Annotated[
        bool, typer.Option("--on-demand", help="Use on-demand instances, not spot.")
    ] = False,
    prices: Annotated[
        list[str] | None,
        typer.Option("--price", help="What an hour costs you: gpu=0.6, head=0.2. For estimates."),
    ] = None,
    region: Annotated[str | None, typer.Option("--region", help="[us-west-2, us-central1]")] = None,
    project: Annotated[str | None, typer.Option("--project", help="gcp: the project's id.")] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the cluster.")] = "lp-sweep",
    store: Annotated[
        str | None, typer.Option("--store", help="Records: s3://bucket/prefix or a shared folder.")
    ] = None,
    head_ip: Annotated[
        str | None, typer.Option("--head-ip", help="onprem: address of the head.")
    ] = None,
    worker_ips: Annotated[
        str | None, typer.Option("--worker-ips", help="onprem: 10.0.0.11,10.0.0.12")
    ] = None,
    ssh_user: Annotated[str | None, typer.Option("--ssh-user", help="[in a cloud: ubuntu]")] = None,
    ssh_key: Annotated[str | None, typer.Option("--ssh-key", help="A private key.")] = None,
    image: Annotated[str | None, typer.Option("--image", help="kuberay: container image.")] = None,
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path("cluster.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
) -> None:
    """Write a commented cluster file, with the versions that are installed here.

    Example: lp-sweep cluster init aws --gpus 8 --gpu-type a10g --max-price 0.6
    """
    from lp_sweep.orchestrator.cluster.compose import compose, pins, wheel_command

    if is_file(out) and not force:
        raise SpecError(f"{out} exists. Name another with --out, or overwrite it with --force.")
    options: dict[str, Any] = {
        "gpus": gpus,
        "gpu_type": gpu_type,
        "max_price": max_price,
        "on_demand": on_demand,
        "prices": _prices(prices or []),
        "region": region,
        "project": project,
        "name": name,
        "store": store,
        "head_ip": head_ip,
        "worker_ips": tuple(filter(None, (worker_ips or "").split(","))),
        "ssh_user": ssh_user,
        "ssh_key": ssh_key,
        "image": image,
    }
    _write(out, compose(_wanted(provider, options), pins()))
    say(f"wrote {out}. Look at its lines with CHANGE. Next:")
    for step in _steps(provider, wheel_command(), out):
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


app.command()(check)
app.command("watch-spot")(watch_spot)


def _wanted(provider: str, options: dict[str, Any]) -> Wanted:
    from lp_sweep.orchestrator.cluster.wanted import MACHINES, PROVIDERS, REFUSED, Wanted
    from lp_sweep.orchestrator.sweepfile.wording import choose

    gpu_type = options["gpu_type"]
    try:
        choose("provider", provider, PROVIDERS)
        if gpu_type in REFUSED:
            raise ValueError(f"{gpu_type} can't be used: {REFUSED[gpu_type]}.")
        if gpu_type is not None and provider in MACHINES:
            choose("GPU type", gpu_type, MACHINES[provider])
    except ValueError as error:
        raise SpecError(str(error)) from None
    return Wanted(provider=provider, **options)


def _prices(told: list[str]) -> dict[str, float]:
    """`gpu=0.6` by kind of machine."""
    prices = {}
    for text in told:
        kind, _, price = text.partition("=")
        try:
            prices[kind] = float(price)
        except ValueError:
            raise SpecError(
                f"--price is {shown(text)}: give a kind of machine and money per hour, as gpu=0.6."
            ) from None
    return prices


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise SpecError(f"can't write {path}: {error}. Name another file with --out.") from None


def _steps(provider: str, wheel_command: str, file: Path) -> list[str]:
    steps = [
        f"{wheel_command}   # this lp-sweep, for the machines",
        "ray get-auth-token --generate   # who has the token can use the cluster",
        f"lp-sweep cluster validate {file}",
        f"ray up {file}",
    ]
    if provider == "kuberay":  # has a token of its own
        steps = [steps[0], steps[2], f"kubectl apply -f {file}"]
    return steps
