"""Identifiers of trials and profiles, made from exactly what determines their results (`specs`).

An identifier is a versioned hash of canonical JSON. Fields at their default are left out, so a
field added later changes no identifier, if its default means what was done before. Order, spelt-out
defaults, the user's names for folders and tasks, GPUs, concurrency and folders do not matter. A
golden test pins the identifiers: changing any default requires a new `IDENTITY_VERSION`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any

from lp_sweep.trials.spec.specs import (
    DeploymentSpec,
    HeldOutSpec,
    ProfileSpec,
    Recipe,
    SpeedSpec,
    TaskDefinition,
    TrialSpec,
)

IDENTITY_VERSION = 1


def canonical_json(value: Any) -> str:
    """Canonical JSON: without fields at their default, sorted, without blanks, ASCII. A record
    keeps it as its `spec`."""
    if is_dataclass(value):
        return _object(_stated(value))
    if isinstance(value, tuple | list):
        return f"[{','.join(map(canonical_json, value))}]"
    if isinstance(value, float) and value.is_integer():
        return _encode(int(value))  # 1 and 1.0 in a sweep file mean the same
    return _encode(value)


def _object(items: Iterable[tuple[str, Any]]) -> str:
    parts = (
        f'"{name}":{_encode(held) if isinstance(held, str | int) else _shared_json(held)}'
        for name, held in items
    )
    return f"{{{','.join(parts)}}}"


@lru_cache(1000, typed=True)  # thousands of specs share a task or a recipe
def _shared_json(value: Any) -> str:
    return canonical_json(value)


def _stated(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that are not at their default, sorted by name."""
    for name, default in _defaults(type(value)):  # type: ignore[arg-type]  # a class is hashable
        held = getattr(value, name)
        if held != default:
            yield name, held


@cache
def _defaults(kind: type) -> list[tuple[str, Any]]:
    return sorted(
        (item.name, item.default if item.default_factory is MISSING else item.default_factory())
        for item in fields(kind)
    )


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def content_hash(payload: Any) -> str:
    return _hash(_encode(payload))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def identifier(prefix: str, kind: str, spec: str, version: int | str = IDENTITY_VERSION) -> str:
    """That of a spec in canonical JSON. `kind`: the name of its class."""
    payload = f'{{"identity":{version},"kind":"{kind}","spec":{spec}}}'
    return f"{prefix}{version}-{_hash(payload)[:20]}"


def trial_id(spec: TrialSpec) -> str:
    """`t1-` and 20 hex digits."""
    return identifier("t", "TrialSpec", canonical_json(spec))


def ids_by_seed(spec: TrialSpec) -> Callable[[int], str]:
    """Gives the `trial_id` of the spec with another seed: many trials differ in no more."""
    before, after = canonical_json(spec).split(f'"seed":{spec.seed},')
    return lambda seed: identifier("t", "TrialSpec", f'{before}"seed":{seed},{after}')


def profile_id(spec: ProfileSpec | SpeedSpec) -> str:
    """`p1-` and 20 hex digits. A contribution profile uses only dev rows, so its `spec` must not
    have a train subset."""
    return identifier("p", type(spec).__name__, canonical_json(spec))


def deployment_id(spec: DeploymentSpec) -> str:
    """`d1-` and 20 hex digits."""
    return identifier("d", "DeploymentSpec", canonical_json(spec))


def held_out_id(spec: HeldOutSpec) -> str:
    """`h1-` and 20 hex digits."""
    return identifier("h", "HeldOutSpec", canonical_json(spec))


def setup_text(
    model_fingerprint: str, task: TaskDefinition, data_fingerprint: str, recipe: Recipe
) -> str:
    """The settings that comparable networks share, as canonical JSON: the pre-trained weights, the
    rows and how they are read and scored, the recipe."""
    shared = [
        ("data", data_fingerprint),
        ("model", model_fingerprint),
        ("recipe", recipe),
        ("task", task),
    ]
    return _object(shared)


def setup_id(text: str) -> str:
    """`s1-` and 20 hex digits, for a `setup_text`. Scores of two setups are not comparable."""
    return f"s{IDENTITY_VERSION}-{_hash(text)[:20]}"
