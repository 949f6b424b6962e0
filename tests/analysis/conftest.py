from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_records import FakeSweep


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    """A sweep without cells yet, in an empty store."""
    return FakeSweep(tmp_path)
