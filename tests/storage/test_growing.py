"""A run on a cluster that grows for it: all machines at once, and no longer than there is work."""

from __future__ import annotations

from pathlib import Path

import pytest

from lp_sweep.storage.store import Store
from tests.support.autoscaled import autoscaled
from tests.support.faults import sweep, wait_for, with_changes
from tests.support.toyworld import save_world

WORKERS, TRIALS = 4, 24
ADDED = r"Adding (\d+) node\(s\) of type gpu"
REMOVED = r"Removing (\d+) nodes of type gpu \(idle\)"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_machines_come_at_once_and_go_when_idle(tmp_path: Path) -> None:
    """By what Ray's autoscaler itself says: one decision for all that it may start."""
    save_world(tmp_path, seeds=f"0-{TRIALS - 1}", strategies=[{"name": "top", "k": [0]}])
    short = with_changes(LP_SWEEP_TEST_NOOP="1", LP_SWEEP_TEST_SECONDS="1")
    with autoscaled(tmp_path, WORKERS, **short) as cluster:
        where = ("--address", cluster.address)
        with sweep(tmp_path, "sweep.yaml", *where, **cluster.of_a_run) as run:
            assert run.wait() == 0, run.text()
            assert f"{TRIALS} to do on {WORKERS} slots" in run.text()
            assert cluster.said(ADDED) == [str(WORKERS)]
        wait_for(lambda: sum(map(int, cluster.said(REMOVED))) == WORKERS, "all have gone")
        assert cluster.said(ADDED) == [str(WORKERS)]
    assert len(Store(tmp_path / "lp-sweep-store").names("trials")) == TRIALS
