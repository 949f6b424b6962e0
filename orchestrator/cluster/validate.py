"""Finds the mistakes of a cluster file before `ray up` costs money.

Ray's own validator checks Ray's part, and boto3's what is sent to AWS. This module adds what
neither knows: prices, files to send, the versions installed here, and lines still to change.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lp_sweep.orchestrator.cluster.clusterfile import (
    cluster_content,
    read_cluster_file,
    yaml_content,
)
from lp_sweep.orchestrator.cluster.compose import pins
from lp_sweep.orchestrator.cluster.wanted import CHANGE
from lp_sweep.storage.errors import PreflightError, SpecError
from lp_sweep.storage.printable import did_you_mean, short, shown

_OF_RAY = {"SubnetIds"}  # Ray takes one of them for each machine
_VERSIONS = {
    "ray": re.compile(r"\bray(?:\[[\w,-]*\])?==([\w.]+)|rayVersion: \"?([\w.]+)"),
    "lp-sweep": re.compile(r"lp_sweep-([\w.]+)-py3"),
}


class Mistake(NamedTuple):
    """`keys` are the path to the place in the file; `line` counts from 1."""

    what: str
    keys: tuple[str | int, ...] = ()
    line: int | None = None

    def text(self) -> str:
        """`available_node_types.gpu: ...`"""
        return ": ".join(filter(None, (".".join(map(str, self.keys)), self.what)))


def mistakes_of(path: Path) -> list[Mistake]:
    """All mistakes of a file for `ray up` or KubeRay, with their lines if known.

    Raises SpecError if the file can't be read or is not a cluster file, and PreflightError if
    Ray's launcher is not installed.
    """
    path = path.expanduser()
    content = yaml_content(path)
    if isinstance(content, dict) and content.get("kind") == "RayCluster":
        found = [*_refused_by_autoscaler(content)]
    else:
        file = cluster_content(path)
        # Only a file that Ray can read can be read further.
        found = [*_refused_by_ray(file)] or [
            *_refused_by_aws(file),
            *_wrong_prices(path),
            *_missing_files(file),
        ]
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, yaml.SafeLoader)
    placed = [mistake._replace(line=_line(root, mistake.keys)) for mistake in found]
    return [*placed, *_lines_to_change(text)]


def _refused_by_ray(content: dict[str, Any]) -> Iterator[Mistake]:
    """Does what `ray up` does with the file before it contacts the cloud."""
    try:
        import click
        import jsonschema
        from ray.autoscaler._private.util import prepare_config, validate_config
    except ImportError as error:
        raise _not_installed() from error
    printed = io.StringIO()
    logging.disable(logging.INFO)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            validate_config(prepare_config(copy.deepcopy(content)))
    except click.ClickException:
        pass  # Ray has printed why
    except jsonschema.ValidationError as error:
        yield _of_schema(error)
    except Exception as error:  # of any type: a missing key is a KeyError, of no message
        yield Mistake(f"Ray refuses it: {type(error).__name__}: {short(str(error))}")
    finally:
        logging.disable(logging.NOTSET)
    for line in filter(None, printed.getvalue().splitlines()):
        yield Mistake(f"Ray says: {short(line.rpartition(' -- ')[2])}")


def _of_schema(error: Any) -> Mistake:
    keys = tuple(error.absolute_path)
    if error.validator != "additionalProperties":
        return Mistake(short(error.message), keys)
    allowed = error.schema["properties"]
    unknown = next(str(key) for key in error.instance if key not in allowed)
    return Mistake(f"unknown key.{did_you_mean(unknown, allowed)}", (*keys, unknown))


def _refused_by_autoscaler(content: dict[str, Any]) -> Iterator[Mistake]:
    """Reads a RayCluster as Ray's autoscaler does. Only Kubernetes can check the rest."""
    try:
        from ray.autoscaler._private.kuberay import autoscaling_config
    except ImportError as error:
        raise _not_installed() from error
    try:
        metadata = {"namespace": "default", **content["metadata"]}
        autoscaling_config._derive_autoscaling_config_from_ray_cr({**content, "metadata": metadata})
    except Exception as error:  # of any type: a missing key is a KeyError, of no message
        said = short(f"{type(error).__name__}: {error}")
        yield Mistake(f"Ray's autoscaler can't read it: {said}")


def _refused_by_aws(content: Mapping[str, Any]) -> Iterator[Mistake]:
    """Ray passes `node_config` to EC2 unchecked: a typo would fail at the start of a machine, or
    make a spot machine an on-demand one."""
    if content["provider"]["type"] != "aws":
        return
    for name, kind in content.get("available_node_types", {}).items():
        config = {key: value for key, value in kind["node_config"].items() if key not in _OF_RAY}
        for line in _ec2_report(config | {"MinCount": 1, "MaxCount": 1}).splitlines():
            what, _, allowed = line.partition(", must be one of: ")
            if allowed:
                what += "." + did_you_mean(what.split('"')[-2], allowed.split(", "))
            yield Mistake(short(what), ("available_node_types", name, "node_config"))


def _ec2_report(parameters: Mapping[str, Any]) -> str:
    try:
        from botocore.validate import ParamValidator
    except ImportError as error:
        raise _not_installed() from error
    report = ParamValidator().validate(parameters, _run_instances())
    return str(report.generate_report())


@cache  # botocore reads 10 MB of JSON for it
def _run_instances() -> Any:
    import botocore.session

    session = botocore.session.get_session()
    return session.get_service_model("ec2").operation_model("RunInstances").input_shape


def _not_installed() -> PreflightError:
    return PreflightError(
        "Ray's launcher is not installed: it checks a cluster file, and starts the cluster. "
        "Next: pip install 'lp-sweep[cluster]'"
    )


def _wrong_prices(path: Path) -> Iterator[Mistake]:
    try:
        read_cluster_file(path)
    except SpecError as error:
        yield Mistake(str(error).removeprefix(f"{path}: "), ("metadata",))


def _missing_files(file: Mapping[str, Any]) -> Iterator[Mistake]:
    """Ray looks for them in the current folder, not next to the file."""
    places: dict[tuple[str, str], Any] = {
        ("file_mounts", to): here for to, here in file.get("file_mounts", {}).items()
    }
    places["auth", "ssh_private_key"] = file.get("auth", {}).get("ssh_private_key")
    for keys, here in places.items():
        if here is not None and not Path(str(here)).expanduser().exists():
            yield Mistake(f"{shown(here)} is not here; docs/cluster.md says how to make it.", keys)


def _lines_to_change(text: str) -> Iterator[Mistake]:
    here = pins()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            continue
        if CHANGE in line:
            yield Mistake(f"still to change: {short(line.strip())}", line=number)
        for name, pattern in _VERSIONS.items():
            for found in pattern.finditer(line):
                version = found[found.lastindex or 0]
                if version != here[name]:
                    what = f"{name} {version}, and this machine has {here[name]}: install that, or"
                    yield Mistake(f"{what} write the file again with cluster init.", line=number)


def _line(node: Any, keys: Iterable[str | int]) -> int | None:
    """The line of the innermost key that is in the file; None without keys."""
    line = None
    for key in keys:
        entries = {}
        if isinstance(node, yaml.MappingNode):
            entries = {name.value: (name, value) for name, value in node.value}
        elif isinstance(node, yaml.SequenceNode):
            entries = {str(index): (value, value) for index, value in enumerate(node.value)}
        if str(key) not in entries:
            break
        name, node = entries[str(key)]
        line = name.start_mark.line + 1
    return line
