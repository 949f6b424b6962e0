"""Ray's own checks of a cluster file, with every error and not the first alone."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.cluster.mistake import Mistake, unknown_keys
from lp_sweep.storage.printable import short


def schema_mistakes(content: Mapping[str, Any]) -> Iterator[Mistake]:
    """Against ray-schema.json. Of machines of one's own Ray takes `min_workers`, before its schema
    sees it; elsewhere it drops it without a word."""
    import jsonschema
    import ray.autoscaler

    file = Path(ray.autoscaler.__file__).with_name("ray-schema.json")
    schema = json.loads(file.read_text(encoding="utf-8"))
    seen = dict(content)
    if _provider(content) == "local":
        seen.pop("min_workers", None)
    for error in jsonschema.Draft7Validator(schema).iter_errors(seen):
        if error.validator == "additionalProperties":
            where = ".".join(map(str, error.path))
            yield from unknown_keys(where, error.instance, error.schema["properties"])
        else:
            yield Mistake(".".join(map(str, error.path)), short(error.message))


def _provider(content: Mapping[str, Any]) -> object:
    provider = content["provider"]
    return provider.get("type") if isinstance(provider, dict) else None


def refused_by_ray(content: dict[str, Any]) -> Iterator[Mistake]:
    """What `ray up` does with a file of the right schema before it asks the cloud anything: what
    it warns of and goes on, and what it refuses."""
    import click
    from ray.autoscaler._private.util import prepare_config, validate_config

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            validate_config(prepare_config(content))
    except click.ClickException:
        pass  # it has printed why
    except Exception as error:  # of any type: a missing key is a KeyError, of no message
        yield Mistake("", f"Ray refuses it: {type(error).__name__}: {short(str(error))}")
    for line in filter(None, printed.getvalue().splitlines()):
        yield Mistake("", f"Ray says: {short(line.rpartition(' -- ')[2])}")
