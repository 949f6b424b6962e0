"""Writes a cluster file from a template, the user's options and the versions installed here.

The templates in `templates/` are complete and commented; `%{name}` is a place to fill. An optional
line begins with a place that becomes `# ` if the line is not wanted, so every file shows the other
options.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import string
import textwrap
from collections.abc import Mapping
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import yaml

from lp_sweep.orchestrator.cluster.wanted import CHANGE, DEFAULT_GPU, MACHINES, REGIONS, Wanted
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import is_file

PYTHON = "3.11"  # the version of constraints.txt
UV = "0.13.9"  # also chooses the 3.11 that a machine without one gets
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_APT = """\
  # CHANGE if the system is not Ubuntu: this installs Python's venv
  - python3 -c 'import ensurepip' || { sudo apt-get -o DPkg::Lock::Timeout=300 update -qq;
    sudo apt-get -o DPkg::Lock::Timeout=300 install -qq -y python3-venv; }
"""
_KEYS_OF_S3 = """\
  # The store is an S3 bucket, at AWS or elsewhere, and a Google machine needs keys for it. CHANGE:
  # ~/.aws/credentials: ~/.aws/credentials
"""
_GCP_CLIENT = {
    "google-api-python-client": "2.202.0"
}  # Ray needs it to start machines, but does not install it


def write_cluster_file(wanted: Wanted, out: Path, *, force: bool) -> list[str]:
    """Returns the commands that follow. Raises SpecError if `out` exists (without `force`) or can't
    be written, and if no machines fit."""
    if is_file(out) and not force:
        raise SpecError(f"{out} exists. Name another with --out, or overwrite it with --force.")
    text = compose(wanted, pins())
    try:
        out.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise SpecError(f"can't write {out}: {error}. Name another file with --out.") from None
    wheel = f"{wheel_command()}   # this lp-sweep, for the machines"
    check = f"lp-sweep cluster validate {out}"
    if wanted.provider == "kuberay":  # KubeRay makes its own token
        return [wheel, check, f"kubectl apply -f {out}"]
    token = "ray get-auth-token --generate   # who has the token can use the cluster"
    return [wheel, token, check, f"ray up {out}"]


class _Template(string.Template):
    delimiter = "%"  # `$` is the shell's


def compose(wanted: Wanted, pins: Mapping[str, str]) -> str:
    """The text of a cluster file. `pins`: versions by package, as the function `pins` returns them.

    Raises SpecError if no machines fit `wanted`.
    """
    places = _places(wanted, pins) | (_rented(wanted) if wanted.provider in MACHINES else {})
    places["setup"] = _filled("cluster-setup.yaml", _setup(wanted, pins))
    return _filled(f"cluster-{wanted.provider}.yaml", places)


def _places(wanted: Wanted, pins: Mapping[str, str]) -> dict[str, str]:
    """Values that the user has not stated become an example in a comment, or the word CHANGE."""
    own = wanted.provider == "onprem"
    key = wanted.ssh_key or ("~/.ssh/id_ed25519" if own else "~/.ssh/lp-sweep.pem")
    prices = wanted.prices or {"head": 0.2, "gpu": 0.6}
    return {
        "name": _scalar(wanted.name),
        "ray": pins["ray"],
        "machines": str(len(wanted.worker_ips) if own else wanted.most_gpus),
        "head_ip": _scalar(wanted.head_ip or ""),
        "worker_ips": ", ".join(map(_scalar, wanted.worker_ips)),
        "region": _scalar(wanted.region or REGIONS.get(wanted.provider, "")),
        "project": _scalar(wanted.project or f"{CHANGE}project"),
        "image": wanted.image or f"{CHANGE}registry/lp-sweep:{pins['lp-sweep']}",
        "quoted_store": json.dumps(_store(wanted), ensure_ascii=False),
        "ssh_user": _scalar(wanted.ssh_user or (f"{CHANGE}user" if own else "ubuntu")),
        "key": _live(wanted.ssh_key is not None),
        "ssh_key": _scalar(key),
        "key_name": _scalar(key.rpartition("/")[2].removesuffix(".pem")),
        "priced": _live(bool(wanted.prices)),
        "prices": "{" + ", ".join(f"{kind}: {price:g}" for kind, price in prices.items()) + "}",
        "spot": _live(not wanted.on_demand),
        "capped": _live(wanted.max_price is not None),
        "max_price": f"{wanted.max_price or 0.6:g}",
    }


def _rented(wanted: Wanted) -> dict[str, str]:
    machine = wanted.machine
    return {
        "machines": str(wanted.most_gpus // machine.gpus),
        "cpus": str(machine.cpus),
        "gpus": str(machine.gpus),
        "memory_gib": str(machine.memory_gib),
        "instance": machine.instance,
        "gpu_type": (wanted.gpu_type or DEFAULT_GPU[wanted.provider]).upper(),
        "accelerator": str(machine.accelerator),
        "attached": _live(machine.accelerator is not None),
    }


def _setup(wanted: Wanted, pins: Mapping[str, str]) -> dict[str, str]:
    """The files and commands of each machine, for every provider."""
    environment = {"LP_SWEEP_STORE": _store(wanted)}
    if wanted.provider == "aws":  # the bucket is in the region of the machines
        environment["AWS_REGION"] = wanted.region or REGIONS["aws"]
    exports = (f"    export {name}={shlex.quote(text)}\n" for name, text in environment.items())
    pinned = {name: version for name, version in pins.items() if name != "lp-sweep"}
    pinned |= _GCP_CLIENT if wanted.provider == "gcp" else {}
    extras = {"ray": "ray[default]"}  # includes the job API
    packages = " ".join(shlex.quote(f"{extras.get(name, name)}=={pinned[name]}") for name in pinned)
    return {
        "more_mounts": _KEYS_OF_S3 if wanted.provider == "gcp" else "",
        "before_setup": "" if wanted.provider == "onprem" else _APT,
        "environment": "".join(exports),
        "python": PYTHON,
        "uv": UV,
        "version": pins["lp-sweep"],
        "pins": textwrap.indent(textwrap.fill(packages, 92, break_on_hyphens=False), "    "),
    }


def _store(wanted: Wanted) -> str:
    return wanted.store or f"s3://{CHANGE}bucket/lp-sweep"


def _filled(template: str, places: Mapping[str, str]) -> str:
    path = files("lp_sweep.orchestrator") / "templates" / template
    return _Template(path.read_text(encoding="utf-8")).substitute(places)


def _live(wanted: bool) -> str:
    return "" if wanted else "# "


def _scalar(text: str) -> str:
    """A string as YAML, also between others in a list."""
    return str(yaml.safe_dump([text], default_flow_style=True, width=math.inf, allow_unicode=True))[
        1:-2
    ]


def pins() -> dict[str, str]:
    """The installed versions of lp-sweep, which is first, and of its dependencies.

    Without a local suffix, since the right build of torch (`+cpu`, `+cu130`) differs by machine.
    """
    asked = [text for text in metadata.requires("lp-sweep") or [] if "extra ==" not in text]
    found = [_NAME.match(text) for text in asked]
    names = sorted((match[0] for match in found if match), key=str.lower)
    versions = {name: metadata.version(name).split("+")[0] for name in names}
    return {"lp-sweep": metadata.version("lp-sweep"), **versions}


def wheel_command() -> str:
    """The command that writes a wheel of the installed lp-sweep to `./dist`."""
    told = metadata.distribution("lp-sweep").read_text("direct_url.json")
    return wheel_command_of(json.loads(told) if told else None, metadata.version("lp-sweep"))


def wheel_command_of(origin: Mapping[str, Any] | None, version: str) -> str:
    """`origin`: the direct_url.json (PEP 610) that pip writes for a package from a folder, a wheel
    or a repository; None for one from a registry."""
    if origin is None:
        return f"python -m pip download lp-sweep=={version} --no-deps -d dist"
    url = str(origin["url"])
    place = shlex.quote(url2pathname(urlsplit(url).path) if url.startswith("file:") else url)
    if "dir_info" in origin:
        return f"python -m build --wheel --outdir dist {place}"
    if "vcs_info" in origin:
        place = f"{origin['vcs_info']['vcs']}+{place}@{origin['vcs_info']['commit_id']}"
    return f"python -m pip wheel --no-deps -w dist {place}"
