"""`lp-sweep cluster check`: what a node says of itself, what is judged wrong, and a real Ray."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.cluster.clusterfile import HEAD, ClusterFile, Kind
from lp_sweep.orchestrator.engine.connection import found_by
from lp_sweep.orchestrator.inputs.gpumemory import GpuInfo
from lp_sweep.orchestrator.inputs.nodes import Input, Look, Node, node_findings
from lp_sweep.orchestrator.inputs.room import Probe, probed, unseen
from lp_sweep.orchestrator.service.clustercheck import clock_off, missing_machines
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.store import Store
from tests.support.hubworld import MODEL, World, served
from tests.support.program import command
from tests.support.program import sweep as lp_sweep
from tests.support.toyworld import save_world

GIB = 2**30
OWN = {"python": "3.11.9", "ray": "2.60.0", "lp_sweep": "0.1.0", "code": "0123abcd0123"}
OWN |= {"torch": "2.13.0+cpu"}
ONE_GPU = [GpuInfo("one", "A10G", 24 * GIB)]


def node(*, gpus: int = 1, versions: dict[str, str] | None = None, **changes: Any) -> Node:
    """A sound node with one GPU, and changes to it."""
    theirs = OWN | {"torch": "2.13.0+cu130", "cuda": "13.0"} | (versions or {})
    known = {name: changes.pop(name) for name in ("clock_off", "error") if name in changes}
    whole = {"gpus": ONE_GPU, "store": None, "inputs": [], "free_bytes": 50 * GIB, "free_in": "/"}
    look = None if changes.pop("silent", False) else Look(**(whole | changes))
    return Node(name="one (10.0.0.11)", gpus=gpus, versions=theirs, look=look, **known)


# -- what is judged wrong


def test_nothing_is_wrong_with_a_sound_node() -> None:
    """Nor with a build of torch for its own device, or a clock that is nearly right."""
    inputs = [Input("model 'a'", "cached"), Input("task 'b'", "to download", 10 * GIB)]
    assert node_findings(node(inputs=inputs, clock_off=-4.9), OWN) == []


NO_DATA = Input("task 'rte'", "missing", why="not cached")


@pytest.mark.parametrize(
    ("wrong", "what", "got", "blocks"),
    [
        ({"versions": {"python": "3.12.1"}}, "python", "3.12.1", True),
        ({"versions": {"lp_sweep": "0.0.9", "code": "ffff"}}, "lp_sweep", "0.0.9", True),
        ({"versions": {"code": "ffff"}}, "code", "ffff", True),
        ({"versions": {"torch": "2.12.0"}}, "torch", "2.12.0", False),
        ({"gpus": 2}, "GPUs", "torch 2.13.0+cu130 sees 1", True),
        ({"gpus": 0}, "GPUs", "torch sees 1", False),
        ({"store": "no store at /mnt/x."}, "store", "no store at", True),
        ({"inputs": [NO_DATA]}, "task 'rte'", "not cached", True),
        ({"free_bytes": GIB // 100}, "disk", "0.0 GiB free at /", False),
        ({"clock_off": 61.0}, "clock", "61 s ahead of", False),
        ({"clock_off": -61.0}, "clock", "61 s behind", False),
    ],
)
def test_what_is_wrong_is_one_line(
    wrong: dict[str, Any], what: str, got: str, blocks: bool
) -> None:
    (finding,) = node_findings(node(**wrong), OWN)
    assert (finding.node, finding.what, finding.blocks) == ("one (10.0.0.11)", what, blocks)
    assert got in finding.got
    kind = "problem" if blocks else "warning"
    assert finding.line().startswith(f"{kind}: one (10.0.0.11): {what}: ")
    assert finding.allowed in finding.line()
    assert f"Next: {finding.next}." in finding.line()


def test_a_torch_without_cuda_is_the_reason() -> None:
    sound = node(versions={"torch": "2.13.0+cpu", "cuda": ""})
    assert sound.look
    (finding,) = node_findings(sound._replace(look=sound.look._replace(gpus=[])), OWN)
    assert finding.got == "torch 2.13.0+cpu, which has no CUDA, sees 0"
    assert finding.next.startswith("install a torch with CUDA there")


def test_a_node_that_says_nothing() -> None:
    """Why, in Ray's words; one with another lp-sweep has been told as that."""
    error = "ModuleNotFoundError: No module named 'lp_sweep'"
    silent = node(silent=True, error=error)._replace(versions={})
    (finding,) = node_findings(silent, OWN)
    assert (finding.what, finding.got, finding.blocks) == ("answer", error, True)
    (finding,) = node_findings(node(silent=True, error="x", versions={"lp_sweep": "0.0.9"}), OWN)
    assert finding.what == "lp_sweep"
    warned, silence = node_findings(node(silent=True, error="x", versions={"torch": "2.1"}), OWN)
    assert (warned.what, silence.what, silence.blocks) == ("torch", "answer", True)


def nodes(*workers: str) -> list[dict[str, Any]]:
    head = {"Alive": True, "Resources": {HEAD: 1.0}, "NodeManagerAddress": "10.0.0.10"}
    return [head, *({**head, "Resources": {}, "NodeManagerAddress": ip} for ip in workers)]


def test_machines_that_have_not_joined() -> None:
    """One's own are named by their addresses; nobody knows those of rented ones before."""
    provider = {"type": "local", "worker_ips": ["10.0.0.11", "10.0.0.12"]}
    own = ClusterFile(Path("c.yaml"), {"cluster_name": "c", "provider": provider}, ())
    (finding,) = missing_machines(own, nodes("10.0.0.12"))
    assert (finding.node, finding.blocks) == ("10.0.0.11", True)
    assert not [*missing_machines(own, nodes("10.0.0.11", "10.0.0.12"))]
    kind = Kind("gpu", False, 3, 8, 4.0, 1.0, None, None)
    rented = own._replace(content={"provider": {"type": "aws"}}, kinds=(kind,))
    (finding,) = missing_machines(rented, nodes("10.0.0.77"))
    assert finding.node == "2 of 3 machines"
    assert not [*missing_machines(rented._replace(kinds=(kind._replace(least=0),)), nodes())]


def test_a_clock_is_only_as_wrong_as_the_question_took_no_longer() -> None:
    assert clock_off(100.0, 103.0, 105.0) == 0
    assert clock_off(100.0, 98.0, 105.0) == -2
    assert clock_off(100.0, 108.0, 105.0) == 3


# -- what a node says


def test_a_probe_of_the_store_leaves_nothing_behind(tmp_path: Path) -> None:
    """Seen where the store is the driver's; a store that is new goes again."""
    with probed(str(tmp_path / "a" / "store")) as probe:
        assert unseen(probe) is None
        elsewhere = Store(tmp_path / "other", create=True).location
        assert "is another store than the driver's" in str(unseen(Probe(elsewhere, probe.name)))
        absent = Probe(str(tmp_path / "absent"), probe.name)
        assert unseen(absent) == f"there is no store at {absent.location}"
        (file,) = (tmp_path / "a" / "store" / "runs").iterdir()  # the node's own is away again
        assert file.name == probe.name
    assert not (tmp_path / "a").exists()

    # a store that is there keeps what it has
    store = Store(tmp_path / "store", create=True)
    store.put_text("sweeps", "toy.yaml", "x")
    with pytest.raises(ZeroDivisionError), probed(store.location):
        raise ZeroDivisionError
    assert [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()] == ["toy.yaml"]
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="it is a file"), probed(str(tmp_path / "file")):
        pass


_LOOK = """
import json, sys
from pathlib import Path
from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.orchestrator.inputs.nodes import look
offline = "--offline" in sys.argv
request = Request("sweep.yaml", [], None, None, offline)
looked = look(request.resolved(request.sweep_file()), None, Path("tokens"), offline)
print(json.dumps([item._asdict() for item in looked.inputs]))
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with served(tmp_path) as world:
        yield world


def seen(world: World, *words: str) -> dict[str, Any]:
    told = world.python("-c", _LOOK, *words).stdout.splitlines()[-1]
    return {item["name"]: item for item in json.loads(told)}


@pytest.mark.slow
def test_models_and_data_of_a_hub(world: World) -> None:
    """To be downloaded, and nothing is; then in the cache; then torn there."""
    model, data = f"model {MODEL!r}", "task 'mood'"
    before = seen(world)
    assert {name: item["state"] for name, item in before.items()} == {
        model: "to download",
        data: "to download",
    }
    assert before[model]["bytes"] > 10_000
    assert "model.safetensors" not in world.hub.downloads()
    assert "train-0.parquet" not in world.hub.downloads()
    world.run("prefetch")
    assert {item["state"] for item in seen(world).values()} == {"cached"}
    assert {item["state"] for item in seen(world, "--offline").values()} == {"cached"}
    arrow = world.arrow("train")
    arrow.write_bytes(arrow.read_bytes()[: arrow.stat().st_size // 2])
    torn = seen(world, "--offline")
    assert (torn[model]["state"], torn[data]["state"]) == ("cached", "missing")
    assert torn[data]["why"]


# -- the command


@pytest.mark.parametrize(
    ("address", "told"),
    [("127.0.0.1:1", "no Ray at 127.0.0.1:1"), ("http://127.0.0.1:8265", "job server")],
)
def test_without_a_cluster_it_says_where_to_go(tmp_path: Path, address: str, told: str) -> None:
    done = lp_sweep("cluster", "check", "--address", address, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert told in done.stderr


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


@pytest.mark.slow
@pytest.mark.ray
def test_a_real_cluster_of_two_nodes(tmp_path: Path) -> None:
    """One of them with a GPU that is made up, which torch does not see."""
    from ray.cluster_utils import Cluster

    save_world(tmp_path)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    address = cluster.address
    try:
        sound = check(address, tmp_path, "--json")
        cluster.add_node(num_cpus=1, num_gpus=1)
        told, text = (check(address, tmp_path, *more) for more in (["--json"], []))
    finally:
        cluster.shutdown()
    assert (sound.returncode, told.returncode, text.returncode) == (0, 4, 4)
    assert json.loads(sound.stdout)["can_run"]
    found = json.loads(told.stdout)
    assert sorted(node["gpus"] for node in found["nodes"]) == [0, 1]
    assert {node["look"]["store"] for node in found["nodes"]} == {None}
    assert all(abs(node["clock_off"]) < 1 for node in found["nodes"])
    (finding,) = found["findings"]
    assert (finding["what"], finding["blocks"]) == ("GPUs", True)
    assert f"joined the Ray at {address}: --address names it" in text.stderr
    assert "Ray was started with 1" in text.stdout
    assert "2 through the store" in text.stdout
    assert not (tmp_path / "lp-sweep-store").exists()


def check(address: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    given = command("cluster", "check", "sweep.yaml", "--address", address, *words)
    return subprocess.run(given, cwd=folder, capture_output=True, text=True, check=False)
