"""The part of W&B's API that our mirror calls, offline: a run is a JSON file in a folder with W&B's
name for it. Stands in for the package where that is not installed. Not a test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Error(Exception):
    pass


def login(**_: Any) -> bool:
    return bool(os.environ.get("WANDB_API_KEY"))


def Settings(**settings: Any) -> dict[str, Any]:
    return settings


class Run:
    def __init__(self, **told: Any) -> None:
        self.told = told | {"history": []}
        self.summary: dict[str, Any] = {}

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None: ...

    def log(self, values: dict[str, Any], step: int) -> None:
        self.told["history"].append({"_step": step, **values})

    def finish(self, exit_code: int = 0) -> None:
        place = Path(
            os.environ["WANDB_DIR"], "wandb", f"offline-run-20260101_000000-{self.told['id']}"
        )
        place.mkdir(parents=True)
        told = self.told | {"summary": self.summary, "exit_code": exit_code}
        (place / "run.json").write_text(json.dumps(told, default=str), encoding="utf-8")


def init(**told: Any) -> Run:
    return Run(**told)
