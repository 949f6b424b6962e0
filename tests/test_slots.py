"""How a cluster's nodes are cut into slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.run.cluster import Slots, cut
from lp_sweep.orchestrator.run.runoptions import Options
from lp_sweep.storage.errors import PreflightError


def node(cpu: float, gpu: float = 0.0, *, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpu, **({"GPU": gpu} if gpu else {})}}


@pytest.mark.parametrize(
    ("nodes", "options", "slots"),
    [
        pytest.param([node(16, 4), node(8, 2)], {}, Slots(6, 1.0, 1.0), id="one per GPU"),
        pytest.param([node(16, 2)], {"trials_per_gpu": 4}, Slots(8, 1.0, 0.25), id="four a GPU"),
        pytest.param([node(16, 1)], {"trials_per_gpu": 3}, Slots(3, 1.0, 0.3333), id="three"),
        pytest.param([node(16, 1)], {"trials_per_gpu": 7}, Slots(7, 1.0, 0.1428), id="seven"),
        pytest.param([node(4, 1)], {"trials_per_gpu": 9}, Slots(4, 1.0, 0.1111), id="few cores"),
        pytest.param([node(2)], {"trials_per_gpu": 4}, Slots(2, 1.0, 0.0), id="no GPU"),
        pytest.param([node(32)], {}, Slots(8, 4.0, 0.0), id="core groups"),
        pytest.param([node(4, 1)], {"gpus_per_trial": 0.5}, Slots(2, 1.0, 0.5), id="said"),
        pytest.param([node(4, 1), node(64, 8, alive=False)], {}, Slots(1, 1.0, 1.0), id="dead"),
    ],
)
def test_slots(nodes: list[Any], options: dict[str, Any], slots: Slots) -> None:
    assert cut(nodes, Options(cache_dir=Path("cache"), **options)) == slots


def test_no_node_is_large_enough() -> None:
    with pytest.raises(PreflightError, match="asks for 8 CPU and 0 GPU on one node"):
        cut([node(4), node(4)], Options(cache_dir=Path("cache"), cpus_per_trial=8.0))
