"""Whether a cluster file can be used, found before `ray up` spends money.

Ray's own validator checks what is Ray's, and boto3's what goes to AWS. This file adds what neither
knows: prices, files to send, the versions of this installation, and lines still to change.
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
    """`keys` lead to the place in the file; `line` counts from 1."""

    what: str
    keys: tuple[str | int, ...] = ()
    line: int | None = None

    def text(self) -> str:
        """`available_node_types.gpu: ...`"""
        return ": ".join(filter(None, (".".join(map(str, self.keys)), self.what)))


def mistakes_of(path: Path) -> list[Mistake]:
    """Everything found wrong with a file of `ray up` or of KubeRay, each with its line where it has
    one.

    Raises SpecError for a file that can't be read, or is no cluster file at all, and
    PreflightError where Ray's launcher is not installed.
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
    """Does with the file what `ray up` does before it asks the cloud anything."""
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
        pass  # it has printed why
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
    """A RayCluster: Ray's autoscaler reads its sizes. The rest only Kubernetes checks."""
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
    """Ray hands `node_config` to EC2 as it is: a slip in it is found when the machine starts, or a
    spot machine is an on-demand one."""
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
    """Ray looks for them where it is started, and not beside the file."""
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
    """The line of the innermost of the keys that the file has; None without keys."""
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
