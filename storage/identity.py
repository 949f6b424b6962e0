"""The identifier of a trial or profile, made from exactly what determines its result (`specs`).

`trial_id` is a versioned hash of canonical JSON. Fields at their default are left out, so a field
that a later version adds (with a default that means what was done before) changes no identifier.
Order, spelt-out defaults, names the user gave to a folder or a task, GPUs, concurrency and folders
never change it. A golden test pins it: a change of any default there is a new `IDENTITY_VERSION`.
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
    """Plain data with defaults left out: what is hashed."""
    if is_dataclass(value):
        return {name: canonical(held) for name, held in _stated(value)}
    if isinstance(value, tuple | list):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1 and 1.0 in a sweep file mean the same
    return value


def _stated(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that are not at their default, by name."""
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
    """`canonical` as text: sorted, without blanks, ASCII. What a record keeps as its `spec`."""
    if not is_dataclass(value):
        return _encode(canonical(value))
    parts = (f'"{name}":{_part_json(held)}' for name, held in _stated(value))
    return f"{{{','.join(parts)}}}"


def _part_json(value: Any) -> str:
    """One field as JSON. Thousands of specs share a task or a recipe: each is written once."""
    if isinstance(value, str | int):
        return _encode(value)
    known = _shared.get(id(value))
    if known is None:
        if len(_shared) >= _MOST_SHARED:
            _shared.clear()
        known = _shared[id(value)] = (value, canonical_json(value))  # held: no other has its id
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
    """Seed -> `trial_id` of the trial with that seed: what seeds share is written and hashed once,
    which of 100,000 trials saves seconds."""
    mark = '"seed":'  # a key of no part, and in a string its quotes are escaped
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
    """The setup of networks that can be compared, as canonical JSON: the pre-trained weights, the
    rows and how they are read and scored, the recipe."""
    shared = {
        "model": model_fingerprint,
        "task": canonical(task),
        "data": data_fingerprint,
        "recipe": canonical(recipe),
    }
    return _encode(shared)


def setup_id(text: str) -> str:
    """`s1-` and 20 hex digits, of a `setup_text`. Scores of two setups are of two experiments."""
    return f"s{IDENTITY_VERSION}-{_hash(text)[:20]}"


def profile_id(spec: ProfileSpec | SpeedSpec) -> str:
    """`p1-` and 20 hex digits. For a contribution profile only the dev rows count, so a train
    subset must not be in `spec`."""
    return _identifier("p", spec)
