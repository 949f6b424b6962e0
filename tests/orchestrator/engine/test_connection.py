"""Which Ray a run joins."""

from __future__ import annotations

import pytest

from lp_sweep.orchestrator.engine.connection import connection, found_by
from lp_sweep.storage.errors import PreflightError


@pytest.mark.parametrize(
    ("address", "environment", "how"),
    [
        ("b:1", {"RAY_ADDRESS": "a:1"}, "--address names it"),
        ("a:1", {"RAY_ADDRESS": "a:1"}, "RAY_ADDRESS names it"),
        ("a:1", {"LP_SWEEP_ADDRESS": "a:1"}, "LP_SWEEP_ADDRESS names it"),
        ("auto", {"RAY_ADDRESS": "a:1"}, "RAY_ADDRESS names it"),
        ("auto", {"RAY_ADDRESS": ""}, "it is at work on this machine; --address names another"),
    ],
)
def test_how_a_cluster_was_found(address: str, environment: dict[str, str], how: str) -> None:
    assert found_by(address, environment) == how


def test_a_job_server_is_no_ray_to_join() -> None:
    with pytest.raises(PreflightError, match=r"job server.*ray job submit .* -- lp-sweep run"):
        connection("http://127.0.0.1:8265").__enter__()
