"""Work from plain data: the inverse of `dataclasses.asdict`, and of the canonical text of a record.

What is left out is at its default; lists become the tuples that `specs` holds. Nothing here is
hashed, see `identity`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lp_sweep.storage.specs import (
    Distillation,
    ProfileSpec,
    Recipe,
    SpeedSpec,
    TaskDefinition,
    TrialSpec,
)


def trial_spec_from_plain(plain: Mapping[str, Any]) -> TrialSpec:
    """Raises KeyError, TypeError or ValueError for other data."""
    made = {
        "task": TaskDefinition(**plain["task"]),
        "recipe": Recipe(**plain.get("recipe", {})),
    }
    if plain.get("distill") is not None:
        made["distill"] = Distillation(**plain["distill"])
    return TrialSpec(**{**plain, **made})


def trial_spec_from_canonical(text: str) -> TrialSpec:
    """The inverse of `canonical_json`: `trial_id` of it is the identifier that the text is of.

    Raises KeyError, TypeError or ValueError for other text.
    """
    return trial_spec_from_plain(json.loads(text))


def profile_spec_from_plain(plain: Mapping[str, Any]) -> ProfileSpec:
    recipe = Recipe(**plain["recipe"]) if plain.get("recipe") is not None else None
    return ProfileSpec(**{**plain, "task": TaskDefinition(**plain["task"]), "recipe": recipe})


def speed_spec_from_plain(plain: Mapping[str, Any]) -> SpeedSpec:
    return SpeedSpec(**plain)
