"""How a cluster's nodes are cut into slots."""

from __future__ import annotations

import re
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest
import yaml

from lp_sweep.orchestrator.engine import capacity as cutting
from lp_sweep.orchestrator.engine.capacity import (
    Capacity,
    ClusterFile,
    PerTrial,
    Slots,
    cut,
    file_on_head,
    sizes,
)
from lp_sweep.orchestrator.engine.opening import crowded_note, mixed_note
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.runs import Announcement


def node(cpu: float, gpu: float = 0.0, *, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpu, **({"GPU": gpu} if gpu else {})}}


@pytest.mark.parametrize(
    ("nodes", "options", "slots"),
    [
        pytest.param([node(16, 4), node(8, 2)], {}, Slots(6, 1.0, 1.0), id="one per GPU"),
        pytest.param([node(16, 1)], {"trials_per_gpu": 7}, Slots(7, 1.0, 0.1428), id="seven"),
        pytest.param([node(4, 1)], {"trials_per_gpu": 9}, Slots(4, 1.0, 0.1111), id="few cores"),
        pytest.param([node(2)], {"trials_per_gpu": 4}, Slots(2, 1.0, 0.0), id="no GPU"),
        pytest.param([node(32)], {}, Slots(8, 4.0, 0.0), id="core groups"),
        pytest.param([node(4, 1)], {"gpus": 0.5}, Slots(2, 1.0, 0.5), id="asked for"),
        pytest.param([node(4, 1), node(64, 8, alive=False)], {}, Slots(1, 1.0, 1.0), id="dead"),
    ],
)
def test_slots(nodes: list[Any], options: dict[str, Any], slots: Slots) -> None:
    assert cut(sizes(nodes), PerTrial(**options)) == slots


def test_no_node_is_large_enough() -> None:
    with pytest.raises(PreflightError, match="needs 8 CPU and 0 GPU on one node"):
        cut(sizes([node(4), node(4)]), PerTrial(cpus=8.0))


def kind(cpu: int, gpu: int, most: int = 0, **more: int) -> dict[str, Any]:
    """A machine's entry in a cluster file."""
    return {"resources": {"CPU": cpu, "GPU": gpu} | more, "max_workers": most}


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def a_cluster(tmp_path: Path, **more: Any) -> ClusterFile:
    """On the head, which has no GPUs: up to 3 machines have 4, and up to 9 have one."""
    kinds = {"head": kind(4, 0), "four": kind(32, 4, 3), "one": kind(8, 1, 9)}
    content = {"cluster_name": "c", "provider": {"type": "aws"}, "max_workers": 10}
    content |= {"head_node_type": "head", "available_node_types": kinds} | more
    path = tmp_path / "ray_bootstrap_config.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    found = file_on_head()
    assert found
    return found


def test_a_machine_without_a_cluster_file_is_no_head(tmp_path: Path) -> None:
    assert file_on_head() is None
    for text in ("", "a: [", "cluster_name: c", "cluster_name: c\nprovider: 3"):
        (tmp_path / "ray_bootstrap_config.yaml").write_text(text, encoding="utf-8")
        assert file_on_head() is None


def test_what_an_autoscaler_may_start_counts(tmp_path: Path) -> None:
    file = a_cluster(tmp_path)
    four, one = node(32, 4), node(8, 1)
    assert file.coming == [four] * 3 + [one] * 7  # ten machines at most
    there = [node(4)]
    capacity = Capacity(PerTrial(), lambda: there, file)
    assert capacity.slots == Slots(3 * 4 + 7, 1.0, 1.0)
    there += [node(32, 4), node(8, 1)]
    assert Capacity(PerTrial(), lambda: there, file).slots == Slots(3 * 4 + 7, 1.0, 1.0), "joined"

    # a head that is like its workers is none of them
    kinds = {"head": kind(8, 1), "worker": kind(8, 1, 10)}
    file = a_cluster(tmp_path, available_node_types=kinds)
    head = {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0, "node:__internal_head__": 1.0}}
    for joined in (0, 10):
        there = [head, *[node(8, 1)] * joined]
        assert Capacity(PerTrial(), lambda there=there: there, file).slots.number == 11


def of_kind(name: str, cpu: float, gpu: float) -> dict[str, Any]:
    """As Ray describes a node whose GPUs it knows."""
    found = node(cpu, gpu)
    found["Resources"][f"accelerator_type:{name}"] = 1.0
    return found


def test_only_nodes_with_the_kind_of_gpu_count(tmp_path: Path) -> None:
    there = [node(4), of_kind("A10G", 16, 4), of_kind("T4", 8, 2)]
    slots = Capacity(PerTrial(accelerator_type="A10G"), lambda: there).slots
    assert (slots.number, slots.cpus, slots.gpus) == (4, 1.0, 1.0)
    assert slots.bundle() == {"CPU": 1.0, "GPU": 1.0, "accelerator_type:A10G": 0.001}
    every = Capacity(PerTrial(), lambda: there)
    assert (every.slots.number, every.accelerators) == (6, ["A10G", "T4"])
    assert every.slots.bundle() == {"CPU": 1.0, "GPU": 1.0}
    l4 = kind(8, 1, 3, **{"accelerator_type:L4": 1})
    kinds = {"head": kind(4, 0), "one": l4, "four": kind(8, 4, 3)}
    file = a_cluster(tmp_path, available_node_types=kinds)
    coming = Capacity(PerTrial(accelerator_type="L4"), lambda: [node(4)], file)
    assert coming.slots.number == 3

    # a kind that no node has
    there = [of_kind("A10G", 16, 4), of_kind("T4", 8, 2)]
    with pytest.raises(PreflightError, match=r"'A10'.* have A10G, T4\. Did you mean 'A10G'\?"):
        Capacity(PerTrial(accelerator_type="A10"), lambda: there)
    with pytest.raises(PreflightError, match="the nodes have no GPU"):
        Capacity(PerTrial(accelerator_type="A10G"), lambda: [node(8)])


def test_several_kinds_of_gpu_are_said() -> None:
    note = mixed_note(Slots(6, 1.0, 1.0), ["A10G", "T4"])
    assert re.search(
        r"kinds \(A10G, T4\).*resources_per_trial: {accelerator_type: A10G}", note or ""
    )
    assert mixed_note(Slots(6, 1.0, 1.0), ["A10G"]) is None
    assert mixed_note(Slots(6, 1.0, 1.0, "T4"), ["A10G", "T4"]) is None
    assert mixed_note(Slots(6, 1.0, 0.0), ["A10G", "T4"]) is None  # they compute on cores


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        pytest.param([2], "", id="all are there"),
        pytest.param([0, 1, 2], "for 2 machines of cluster c: 0 are here", id="they come"),
        pytest.param([1], "for 2 machines.*1 of 2 machines have not", id="one is late"),
    ],
)
def test_machines_of_ones_own_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int], told: str
) -> None:
    """`counts`: the workers that have joined, at each look; the clock moves on by ten seconds."""
    provider = {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2", "10.0.0.3"]}
    file = a_cluster(tmp_path, provider=provider, max_workers=2)
    assert file.promised == 2
    head = {"Alive": True, "Resources": {"node:__internal_head__": 1.0}}
    looks, seconds = chain(counts, repeat(counts[-1])), count(step=10)
    monkeypatch.setattr(cutting.time, "sleep", lambda _: None)
    monkeypatch.setattr(cutting.time, "monotonic", lambda: next(seconds))
    said: list[str] = []
    cutting.await_workers(file, lambda: [head, *[node(8, 1)] * next(looks)], said.append)
    assert re.fullmatch(f".*{told}.*" if told else "", " ".join(said))


def test_machines_join_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "_LOOK_SECONDS", -1.0)
    there = [node(4), node(8, 2)]
    capacity = Capacity(PerTrial(), lambda: there)
    assert capacity.now() == 2
    there.append(node(8, 4))
    assert capacity.now() == 6
    there[1:] = []
    assert capacity.now() == 1  # what is lost may come back; with no slot nothing would be asked


def test_two_runs_on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    other = Announcement("r", "demo", "here", "boot 1", 71, "5", "", "", 0, {}, slots=2)
    note = crowded_note(Slots(2, 1.0, 0.0), other)
    assert "(pid 71) has 2 slots, this one 2: together 4 on the same 3 cores" in (note or "")
    assert crowded_note(Slots(1, 1.0, 0.0), other) is None  # a core for each
    note = crowded_note(Slots(2, 1.0, 1.0), other._replace(slots=1))
    assert re.search("has 1 slot, .*together 3 on the same GPUs.*CUDA_VISIBLE_DEVICES", note or "")
    note = crowded_note(Slots(2, 1.0, 0.0), other._replace(slots=0))  # it has not opened yet
    assert "has its slots, this one 2 on the same 3 cores" in (note or "")
