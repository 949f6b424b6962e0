"""Identifiers of trials and profiles, made from exactly what determines their results (`specs`).

An identifier is a versioned hash of canonical JSON. Fields at their default are left out, so a
field added later changes no identifier, if its default means what was done before. Order, spelt-out
defaults, the user's names for folders and tasks, GPUs, concurrency and folders do not matter. A
golden test pins the identifiers: changing any default requires a new `IDENTITY_VERSION`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

from lp_sweep.storage.specs import ProfileSpec, Recipe, SpeedSpec, TaskDefinition, TrialSpec

IDENTITY_VERSION = 1


def canonical(value: Any) -> Any:
    """Plain data without defaults, to be hashed."""
    if is_dataclass(value):
        return {name: canonical(held) for name, held in _stated(value)}
    if isinstance(value, tuple | list):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1 and 1.0 in a sweep file mean the same
    return value


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


def canonical_json(value: Any) -> str:
    """`canonical` as JSON: sorted, without blanks, ASCII. A record keeps it as its `spec`."""
    if not is_dataclass(value):
        return _encode(canonical(value))
    parts = (f'"{name}":{_part_json(held)}' for name, held in _stated(value))
    return f"{{{','.join(parts)}}}"


def _part_json(value: Any) -> str:
    """One field as JSON. Cached, since thousands of specs share a task or a recipe."""
    if isinstance(value, str | int):
        return _encode(value)
    known = _shared.get(id(value))
    if known is None:
        if len(_shared) >= _MOST_SHARED:
            _shared.clear()
        known = _shared[id(value)] = (
            value,
            canonical_json(value),
        )  # keeps the value alive, and so its id unique
    return known[1]


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode
_shared: dict[int, tuple[Any, str]] = {}
_MOST_SHARED = 1000


def content_hash(payload: Any) -> str:
    return _hash(_encode(payload))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _identifier(prefix: str, spec: TrialSpec | ProfileSpec | SpeedSpec) -> str:
    return f"{prefix}{IDENTITY_VERSION}-{_hash(_payload(spec))[:20]}"


def _payload(spec: TrialSpec | ProfileSpec | SpeedSpec) -> str:
    kind, text = type(spec).__name__, canonical_json(spec)
    return f'{{"identity":{IDENTITY_VERSION},"kind":"{kind}","spec":{text}}}'


def trial_id(spec: TrialSpec) -> str:
    """`t1-` and 20 hex digits."""
    return _identifier("t", spec)


def trial_ids(spec: TrialSpec) -> Callable[[int], str]:
    """Returns a function: seed -> `trial_id` of the trial with that seed. It encodes and hashes the
    common part only once, which saves seconds for 100,000 trials."""
    mark = '"seed":'  # occurs once: no part has this key, and strings escape their quotes
    head, _, rest = _payload(spec).partition(mark)
    tail = rest.removeprefix(str(spec.seed))
    shared = hashlib.sha256(f"{head}{mark}".encode())

    def of_seed(seed: int) -> str:
        whole = shared.copy()
        whole.update(f"{seed}{tail}".encode())
        return f"t{IDENTITY_VERSION}-{whole.hexdigest()[:20]}"

    return of_seed


def setup_text(
    model_fingerprint: str, task: TaskDefinition, data_fingerprint: str, recipe: Recipe
) -> str:
    """The settings that comparable networks share, as canonical JSON: the pre-trained weights, the
    rows and how they are read and scored, the recipe."""
    shared = {
        "model": model_fingerprint,
        "task": canonical(task),
        "data": data_fingerprint,
        "recipe": canonical(recipe),
    }
    return _encode(shared)


def setup_id(text: str) -> str:
    """`s1-` and 20 hex digits, for a `setup_text`. Scores of two setups are not comparable."""
    return f"s{IDENTITY_VERSION}-{_hash(text)[:20]}"


def profile_id(spec: ProfileSpec | SpeedSpec) -> str:
    """`p1-` and 20 hex digits. A contribution profile uses only dev rows, so its `spec` must not
    have a train subset."""
    return _identifier("p", spec)
