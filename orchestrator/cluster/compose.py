"""From what a user wants to the text of a cluster file: a pure function.

The files that it fills lie in `templates/`, whole and with their comments; `%{name}` is a place to
fill. A line that only some want begins with a place that is `# ` for the others, so that every
file shows what else there is.
"""

from __future__ import annotations

import json
import re
import shlex
import string
import textwrap
from collections.abc import Mapping
from importlib.resources import files

from lp_sweep.orchestrator.cluster.versions import PYTHON, UV
from lp_sweep.orchestrator.cluster.wanted import CHANGE, DEFAULT_GPU, REGIONS, Wanted

_PLAIN = re.compile(r"[A-Za-z~/][A-Za-z0-9_./~@-]*|\d+\.\d+\.\d+\.\d+")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "~"}  # YAML 1.1
_APT = """\
  # CHANGE on another system than Ubuntu: what makes Python's venv
  - python3 -c 'import ensurepip' || { sudo apt-get -o DPkg::Lock::Timeout=300 update -qq;
    sudo apt-get -o DPkg::Lock::Timeout=300 install -qq -y python3-venv; }
"""
_KEYS_OF_S3 = """\
  # The store is S3's, at AWS or elsewhere, and a machine of Google's needs keys for it. CHANGE:
  # ~/.aws/credentials: ~/.aws/credentials
"""
_GCP_CLIENT = {"google-api-python-client": "2.202.0"}  # with it Ray rents; Ray itself has none


class _Template(string.Template):
    delimiter = "%"  # `$` is the shell's


def compose(wanted: Wanted, pins: Mapping[str, str]) -> str:
    """The text of a cluster file. `pins` are versions by package (`versions.pins`).

    Raises SpecError where `wanted` can't be had.
    """
    places = {"name": _scalar(wanted.name), "ray": pins["ray"]}
    match wanted.provider:
        case "kuberay":
            places |= _kubernetes(wanted, pins)
        case "onprem":
            places |= _machines_of_ones_own(wanted)
            places["setup"] = _setup(wanted, pins)
        case _:
            places |= _rented(wanted) | _market(wanted)
            places["setup"] = _setup(wanted, pins)
    return _filled(f"cluster-{wanted.provider}.yaml", places)


def _rented(wanted: Wanted) -> dict[str, str]:
    machine = wanted.machine
    key = wanted.ssh_key or "~/.ssh/lp-sweep.pem"
    return {
        "machines": str(wanted.most_gpus // machine.gpus),
        "cpus": str(machine.cpus),
        "gpus": str(machine.gpus),
        "memory_gib": str(machine.memory_gib),
        "instance": machine.instance,
        "gpu_type": (wanted.gpu_type or DEFAULT_GPU[wanted.provider]).upper(),
        "accelerator": str(machine.accelerator),
        "attached": _live(machine.accelerator is not None),
        "region": _scalar(wanted.region or REGIONS[wanted.provider]),
        "project": _scalar(wanted.project or f"{CHANGE}project"),
        "ssh_user": _scalar(wanted.ssh_user or "ubuntu"),
        "key": _live(wanted.ssh_key is not None),
        "ssh_key": _scalar(key),
        "key_name": _scalar(key.rpartition("/")[2].removesuffix(".pem")),
    }


def _market(wanted: Wanted) -> dict[str, str]:
    """What it may cost, and what it does. Where the user has not said, an example in a comment."""
    prices = wanted.prices or {"head": 0.2, "gpu": 0.6}
    return {
        "priced": _live(bool(wanted.prices)),
        "prices": "{" + ", ".join(f"{kind}: {price:g}" for kind, price in prices.items()) + "}",
        "spot": _live(not wanted.on_demand),
        "capped": _live(wanted.max_price is not None),
        "max_price": f"{wanted.max_price or 0.6:g}",
    }


def _machines_of_ones_own(wanted: Wanted) -> dict[str, str]:
    return {
        "machines": str(len(wanted.worker_ips)),
        "head_ip": _scalar(wanted.head_ip or ""),
        "worker_ips": ", ".join(map(_scalar, wanted.worker_ips)),
        "ssh_user": _scalar(wanted.ssh_user or f"{CHANGE}user"),
        "ssh_key": _scalar(wanted.ssh_key or "~/.ssh/id_ed25519"),
    }


def _kubernetes(wanted: Wanted, pins: Mapping[str, str]) -> dict[str, str]:
    return {
        "machines": str(wanted.most_gpus),
        "image": wanted.image or f"{CHANGE}registry/lp-sweep:{pins['lp-sweep']}",
        "quoted_store": json.dumps(_store(wanted), ensure_ascii=False),
    }


def _setup(wanted: Wanted, pins: Mapping[str, str]) -> str:
    """What is sent to each machine and done there, in the same way for every provider."""
    environment = {"LP_SWEEP_STORE": _store(wanted)}
    if wanted.provider == "aws":  # the bucket is where the machines are
        environment["AWS_REGION"] = wanted.region or REGIONS["aws"]
    pinned = {name: version for name, version in pins.items() if name != "lp-sweep"}
    pinned |= _GCP_CLIENT if wanted.provider == "gcp" else {}
    packages = [shlex.quote(f"{_with_extra(name)}=={pinned[name]}") for name in pinned]
    return _filled(
        "cluster-setup.yaml",
        {
            "more_mounts": _KEYS_OF_S3 if wanted.provider == "gcp" else "",
            "before_setup": "" if wanted.provider == "onprem" else _APT,
            "environment": "".join(
                f"    export {name}={shlex.quote(value)}\n" for name, value in environment.items()
            ),
            "python": PYTHON,
            "uv": UV,
            "version": pins["lp-sweep"],
            "pins": textwrap.indent(
                textwrap.fill(" ".join(packages), 92, break_on_hyphens=False), "    "
            ),
        },
    )


def _with_extra(name: str) -> str:
    return "ray[default]" if name == "ray" else name  # the dashboard has the job API


def _store(wanted: Wanted) -> str:
    return wanted.store or f"s3://{CHANGE}bucket/lp-sweep"


def _filled(template: str, places: Mapping[str, str]) -> str:
    path = files("lp_sweep.orchestrator") / "templates" / template
    return _Template(path.read_text(encoding="utf-8")).substitute(places)


def _live(wanted: bool) -> str:
    return "" if wanted else "# "


def _scalar(text: str) -> str:
    """A string as YAML writes it: JSON's quotes where it needs any."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
