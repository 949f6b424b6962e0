"""Work from plain data: the inverse of `dataclasses.asdict`, and of the canonical text of a record.

What is left out is at its default. Nothing here is hashed, see `identity`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lp_sweep.storage.specs import ProfileSpec, Recipe, SpeedSpec, TaskDefinition, TrialSpec


def trial_spec_from_plain(plain: Mapping[str, Any]) -> TrialSpec:
    """The inverse of `dataclasses.asdict`, and of `canonical`: what is left out is at its default.

    Raises KeyError, TypeError or ValueError for other data.
    """
    return TrialSpec(
        **{
            **plain,
            "kept_layers": tuple(plain["kept_layers"]),
            "removed_feed_forwards": tuple(plain.get("removed_feed_forwards", ())),
            "task": task_from_plain(plain["task"]),
            "recipe": recipe_from_plain(plain.get("recipe", {})),
        }
    )


def trial_spec_from_canonical(text: str) -> TrialSpec:
    """The inverse of `canonical_json`: `trial_id` of it is the identifier that the text is of.

    Raises KeyError, TypeError or ValueError for other text.
    """
    return trial_spec_from_plain(json.loads(text))


def profile_spec_from_plain(plain: Mapping[str, Any]) -> ProfileSpec:
    """The inverse of `dataclasses.asdict`."""
    recipe = plain.get("recipe")
    return ProfileSpec(
        **{
            **plain,
            "task": task_from_plain(plain["task"]),
            "recipe": None if recipe is None else recipe_from_plain(recipe),
        }
    )


def speed_spec_from_plain(plain: Mapping[str, Any]) -> SpeedSpec:
    """The inverse of `dataclasses.asdict`."""
    return SpeedSpec(**plain)  # which makes tuples of lists


def recipe_from_plain(plain: Mapping[str, Any]) -> Recipe:
    """The inverse of `dataclasses.asdict`."""
    return Recipe(**{**plain, "freeze_layers": tuple(plain.get("freeze_layers", ()))})


def task_from_plain(plain: Mapping[str, Any]) -> TaskDefinition:
    """The inverse of `dataclasses.asdict`."""
    task = TaskDefinition(**plain)
    return replace(
        task,
        text_columns=tuple(task.text_columns),
        extra_metrics=tuple(task.extra_metrics),
        labels=tuple(task.labels),
    )
