"""The versions that a cluster file pins: those of the machine that writes it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

_NAME = re.compile(r"[A-Za-z0-9._-]+")
PYTHON = "3.11"  # what lp-sweep is tested with: constraints.txt
UV = "0.13.9"  # decides, too, which 3.11 a machine gets that has none


def pins() -> dict[str, str]:
    """What lp-sweep names as its dependencies, and their versions here; `lp-sweep` itself first.

    Theirs without a local suffix: which build of torch fits (`+cpu`, `+cu130`) differs by machine.
    """
    asked = [text for text in metadata.requires("lp-sweep") or [] if "extra ==" not in text]
    found = [_NAME.match(text) for text in asked]
    names = sorted((match[0] for match in found if match), key=str.lower)
    versions = {name: metadata.version(name).split("+")[0] for name in names}
    return {"lp-sweep": metadata.version("lp-sweep"), **versions}


def wheel_command() -> str:
    """What puts the wheel of the lp-sweep that is installed here into `./dist`."""
    told = metadata.distribution("lp-sweep").read_text("direct_url.json")
    return wheel_command_of(json.loads(told) if told else None, metadata.version("lp-sweep"))


def wheel_command_of(origin: Mapping[str, Any] | None, version: str) -> str:
    """`origin` is a direct_url.json (PEP 610), which pip writes for all that it has from elsewhere
    than from a registry: a folder, a wheel, a repository."""
    if origin is None:
        return f"python -m pip download lp-sweep=={version} --no-deps -d dist"
    url = str(origin["url"])
    place = shlex.quote(url2pathname(urlsplit(url).path) if url.startswith("file:") else url)
    if "dir_info" in origin:
        return f"python -m build --wheel --outdir dist {place}"
    if "vcs_info" in origin:
        place = f"{origin['vcs_info']['vcs']}+{place}@{origin['vcs_info']['commit_id']}"
    return f"python -m pip wheel --no-deps -w dist {place}"
