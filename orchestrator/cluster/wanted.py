"""The checked options of `lp-sweep cluster init`.

All of them end up in YAML and in shell commands on other machines. So names allow few characters,
and free text (a store, the path of a key) is one printable line, which is quoted. Prices differ by
hour and region, so the user states them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Annotated, NamedTuple

from lp_sweep.orchestrator.flags import Flag, flags_of
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import choose, listed, shown


class Machine(NamedTuple):
    """One instance type. `accelerator` is what GCP attaches to a type without a GPU."""

    instance: str
    cpus: int
    gpus: int
    memory_gib: int
    accelerator: str | None = None


# https://aws.amazon.com/ec2/instance-types/ (accelerated computing): the smallest machine with each
# GPU, since a trial needs one GPU. A100 comes only by eight.
AWS = {
    "a10g": Machine("g5.xlarge", cpus=4, gpus=1, memory_gib=16),
    "a100": Machine("p4d.24xlarge", cpus=96, gpus=8, memory_gib=1152),
    "h100": Machine("p5.4xlarge", cpus=16, gpus=1, memory_gib=256),
    "l4": Machine("g6.xlarge", cpus=4, gpus=1, memory_gib=16),
    "l40s": Machine("g6e.xlarge", cpus=4, gpus=1, memory_gib=32),
    "t4": Machine("g4dn.xlarge", cpus=4, gpus=1, memory_gib=16),
}

# https://cloud.google.com/compute/docs/gpus (a T4 is attached to an n1 machine, the others are
# part of theirs)
GCP = {
    "a100": Machine("a2-highgpu-1g", cpus=12, gpus=1, memory_gib=85),
    "h100": Machine("a3-highgpu-1g", cpus=26, gpus=1, memory_gib=234),
    "l4": Machine("g2-standard-4", cpus=4, gpus=1, memory_gib=16),
    "t4": Machine("n1-standard-4", cpus=4, gpus=1, memory_gib=15, accelerator="nvidia-tesla-t4"),
}

MACHINES = {"aws": AWS, "gcp": GCP}

# GPUs that clouds still offer, but that would cost money and fail.
REFUSED = {
    "v100": "torch's wheels are built with CUDA 13, which has no code for Volta",
    "p100": "torch's wheels are built with CUDA 13, which has no code for Pascal",
    "k80": "torch's wheels are built with CUDA 13, which has no code for Kepler",
}

KINDS = ("head", "gpu")
DEFAULT_GPU = {"aws": "a10g", "gcp": "l4"}
REGIONS = {"aws": "us-west-2", "gcp": "us-central1"}
CHANGE = "CHANGE-"  # prefix of values that only the user knows

_EVERY = {"name", "store"}
_CLOUD = _EVERY | {"gpus", "gpu_type", "on_demand", "region", "prices", "ssh_user", "ssh_key"}
TAKES = {
    "aws": _CLOUD | {"max_price"},
    "gcp": _CLOUD | {"project"},
    "onprem": _EVERY | {"head_ip", "worker_ips", "ssh_user", "ssh_key"},
    "kuberay": _EVERY | {"gpus", "image"},
}
# Names follow RFC 1123 and GCP's labels, users follow useradd.
_FORMS = {
    "name": (re.compile(r"[a-z][a-z0-9-]{0,38}[a-z0-9]"), "small letters, digits and -, as lab-2"),
    "region": (re.compile(r"[a-z]{2,20}(-[a-z0-9]{1,20}){1,3}"), "a region such as us-west-2"),
    "project": (re.compile(r"[A-Za-z][A-Za-z0-9:.-]{1,60}"), "a project's id, such as lab-1234"),
    "ssh_user": (re.compile(r"[a-z_][a-z0-9_.-]{0,31}"), "a user's name, such as ubuntu"),
    "head_ip": (re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]*"), "an address, such as 10.0.0.10"),
    "worker_ips": (re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]*"), "addresses, such as 10.0.0.11"),
    "image": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@-]*"), "an image, such as me/lp-sweep:0.1.0"),
    "store": (re.compile(r".*"), "a folder or s3://bucket/prefix"),
    "ssh_key": (re.compile(r".*"), "the path of a private key"),
}


def _prices(told: Iterable[str]) -> dict[str, float]:
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


def _addresses(told: str) -> tuple[str, ...]:
    return tuple(filter(None, told.split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`gpus` is the maximum in total; money is per hour of a machine; `prices` are by kind of
    machine. None means the provider's default. Raises SpecError."""

    provider: Annotated[
        str, Flag("onprem: your own machines.", argument=True, metavar="|".join(TAKES))
    ]
    gpus: Annotated[int | None, Flag("Maximum number of GPUs. [8]")] = None
    gpu_type: Annotated[str | None, Flag("GPU: t4, a10g, l4, a100, ... [a10g, l4]")] = None
    max_price: Annotated[float | None, Flag("Maximum hourly price of a spot machine.")] = None
    on_demand: Annotated[bool, Flag("Use on-demand instances, not spot.")] = False
    prices: Annotated[
        dict[str, float],
        Flag(
            "Hourly prices, for estimates: gpu=0.6, head=0.2.",
            name="--price",
            typed=list[str],
            read=_prices,
        ),
    ] = field(default_factory=dict)
    region: Annotated[str | None, Flag("[us-west-2, us-central1]")] = None
    project: Annotated[str | None, Flag("gcp: the project's id.")] = None
    name: Annotated[str, Flag("Name of the cluster.")] = "lp-sweep"
    store: Annotated[str | None, Flag("Records: s3://bucket/prefix or a shared folder.")] = None
    head_ip: Annotated[str | None, Flag("onprem: address of the head.")] = None
    worker_ips: Annotated[
        tuple[str, ...], Flag("onprem: 10.0.0.11,10.0.0.12", typed=str | None, read=_addresses)
    ] = ()
    ssh_user: Annotated[str | None, Flag("[in a cloud: ubuntu]")] = None
    ssh_key: Annotated[str | None, Flag("A private key.")] = None
    image: Annotated[str | None, Flag("kuberay: container image.")] = None

    def __post_init__(self) -> None:
        self._machines_that_can_be_had()
        self._only_what_the_provider_takes()
        self._every_text_in_its_form()
        self._money()
        if self.provider == "onprem" and not (self.head_ip and self.worker_ips):
            raise SpecError("onprem needs --head-ip 10.0.0.10 and --worker-ips 10.0.0.11,10.0.0.12")
        if self.gpus is not None and self.gpus < 1:
            raise SpecError(f"--gpus is {self.gpus}: give 1 or more.")

    @property
    def machine(self) -> Machine:
        """The instance type of a cloud. Raises SpecError if `gpus` does not fill whole machines."""
        machine = MACHINES[self.provider][self.gpu_type or DEFAULT_GPU[self.provider]]
        if self.most_gpus % machine.gpus:
            up = -(-self.most_gpus // machine.gpus) * machine.gpus
            raise SpecError(
                f"{machine.instance} has {machine.gpus} GPUs, and --gpus is {self.most_gpus}: "
                f"ask for {up}."
            )
        return machine

    @property
    def most_gpus(self) -> int:
        return self.gpus or 8

    def _machines_that_can_be_had(self) -> None:
        try:
            choose("provider", self.provider, TAKES)
            if self.gpu_type in REFUSED:
                raise ValueError(f"{self.gpu_type} can't be used: {REFUSED[self.gpu_type]}.")
            if self.gpu_type is not None and self.provider in MACHINES:
                choose("GPU type", self.gpu_type, MACHINES[self.provider])
        except ValueError as error:
            raise SpecError(str(error)) from None

    def _only_what_the_provider_takes(self) -> None:
        takes = TAKES[self.provider]
        for entry in fields(self):
            if entry.name != "provider" and entry.name not in takes and getattr(self, entry.name):
                owners = [name for name, taken in TAKES.items() if entry.name in taken]
                raise SpecError(
                    f"{option(entry.name)} is for {listed(owners)}, and not for {self.provider}. "
                    f"{self.provider} takes: {listed(sorted(map(option, takes)))}."
                )

    def _every_text_in_its_form(self) -> None:
        for name, (form, example) in _FORMS.items():
            value = getattr(self, name)
            for text in value if isinstance(value, tuple) else (value,):
                if text is not None and not (text and text.isprintable() and form.fullmatch(text)):
                    raise SpecError(f"{option(name)} is {shown(text)}: give {example}.")

    def _money(self) -> None:
        if self.max_price is not None and self.on_demand:
            raise SpecError("--max-price is what a spot machine may cost: not with --on-demand.")
        asked = {"--max-price": self.max_price}
        asked |= {f"--price {kind}": price for kind, price in self.prices.items()}
        for name, price in asked.items():
            if price is not None and not 0.001 <= price < 1e5:  # also refuses NaN
                raise SpecError(f"{name} is {price}: give money per hour, such as 0.6.")
        for kind in self.prices.keys() - set(KINDS):
            raise SpecError(f"--price {shown(kind)}: the kinds are {listed(KINDS)}, as gpu=0.6.")


def option(name: str) -> str:
    """The command-line option of a field."""
    return flags_of(Wanted)[name].name
