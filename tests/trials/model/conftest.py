"""Checkpoints of every family, each written once for all tests of this folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.support.families import DEBERTA_1, FAMILIES, save_pretrained
from tests.support.networks import Checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    root = tmp_path_factory.mktemp("checkpoints")

    @cache
    def saved(name: str, depth: int) -> Path:
        family = DEBERTA_1 if name == DEBERTA_1.name else FAMILIES[name]
        return save_pretrained(family, depth, root / f"{name}-{depth}")

    return saved
