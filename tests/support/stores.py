"""Where stores of each kind can be made. Not a test."""

from __future__ import annotations

import pytest


def place_of(request: pytest.FixtureRequest) -> str:
    """By the fixture's parameter: a bucket of a real S3 server, or a folder; nothing is there."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_location"))
    return str(request.getfixturevalue("tmp_path") / "store")
