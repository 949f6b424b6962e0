"""Keeps what the imports have made out of every garbage collection: a trial collects often."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="session", autouse=True)
def imports_are_no_garbage() -> None:
    gc.freeze()
