"""A sweep's own files on a node that does not have them."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lp_sweep.orchestrator.engine.opening import look_at_store, ship_inputs
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage import shipped
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.fetch import placed
from lp_sweep.trials.worker.job import Job, Place
from lp_sweep.trials.worker.resident import resident
from tests.support.plain_jobs import assert_fails, done
from tests.support.toyworld import jobs, save_world, sweep_content

SMALL = ("k=1", "recipe.epochs=1", "recipe.limit_train=8", "recipe.limit_dev=4")


class Machines:
    """A driver's disk, a store, and another machine's cache folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sweep = save_world(folder / "driver")
        self.store = Store(folder / "store", create=True)

    def plan(self) -> Plan:
        return make_plan(resolve(load_sweep(self.sweep, SMALL)), WorkHistory.nothing())

    def job(self) -> dict[str, Any]:
        return jobs(self.sweep, *SMALL, cache=self.folder / "node")[0]

    def lose_the_files(self) -> None:
        """Moves the driver's files away: the node does not have them."""
        (self.folder / "driver").rename(self.folder / "elsewhere")
        resident().forget()


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_a_node_without_the_files_makes_the_same_record(machines: Machines) -> None:
    job, alone = machines.job(), Store(machines.folder / "alone", create=True)
    theirs = done(alone, job)
    shutil.rmtree(machines.folder / "node")
    assert ship_inputs(machines.plan(), machines.store) == 2  # a model and a data set
    assert ship_inputs(machines.plan(), machines.store) == 0
    machines.lose_the_files()
    ours = done(machines.store, job)
    assert ours["train_losses"] == theirs["train_losses"]
    assert ours["epoch_metrics"] == theirs["epoch_metrics"]


def test_texts_without_labels_reach_the_nodes_that_need_them(machines: Machines) -> None:
    content = sweep_content(distill=["logits"])
    content["tasks"][0]["unlabelled"] = "more.jsonl"
    machines.sweep.write_text(yaml.safe_dump(content), encoding="utf-8")
    (machines.folder / "driver/more.jsonl").write_text('{"text": "good w1"}\n')
    plan = machines.plan()
    assert ship_inputs(plan, machines.store) == 3
    place = Place(cache_dir=machines.folder / "node")
    found = [replace(plan.job(work, network=False), place=place) for work in plan.trials.values()]
    machines.lose_the_files()
    for job in found:
        there = placed(job, machines.store)
        [texts] = there.unlabelled.values()
        assert Path(texts).read_text() == '{"text": "good w1"}\n'
        assert Path(texts).suffix == ".jsonl"
        assert Path(there.task.source.files["train"]).is_file()


def test_what_was_not_sent_is_named(machines: Machines) -> None:
    job = machines.job()
    machines.lose_the_files()
    assert_fails(machines.store, job, "missing_input", job["model"]["path"])


def test_a_half_sent_model_is_not_there(machines: Machines) -> None:
    plan = machines.plan()
    ship_inputs(plan, machines.store)
    job = Job.from_plain(machines.job())
    machines.lose_the_files()
    fingerprint = job.spec.model_fingerprint
    (text,) = [
        path
        for path in (machines.folder / "store/inputs").glob("*/complete.txt")
        if fingerprint in path.read_text(encoding="utf-8")
    ]
    (text.parent / "model.safetensors").unlink()
    assert shipped.fetch(machines.store, fingerprint, machines.folder / "node") is None
    assert not list((machines.folder / "node").glob("inputs/*/"))
    for write in (lambda: text.write_text("{}"), text.unlink):
        write()
        assert shipped.fetch(machines.store, fingerprint, machines.folder / "node") is None
    assert placed(job, machines.store).model == job.model


def test_slots_of_a_node_fetch_at_once(machines: Machines) -> None:
    ship_inputs(machines.plan(), machines.store)
    fingerprint = machines.job()["spec"]["data_fingerprint"]

    def fetch(_: int) -> Path | None:
        return shipped.fetch(machines.store, fingerprint, machines.folder / "node")

    with ThreadPoolExecutor(8) as pool:
        (folder,) = set(pool.map(fetch, range(16)))
    assert folder
    assert {path.name for path in folder.iterdir()} == {"train.csv", "validation.csv"}
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


@pytest.mark.parametrize("seen", [True, False])
def test_a_node_that_sees_another_store_by_this_name_is_refused(
    machines: Machines, seen: bool
) -> None:
    """A run that writes its version of the sweep at the same time hides no store."""
    store = machines.store
    location = store.location if seen else Store(machines.folder / "other", create=True).location

    def ask(function: Any, _: str, *arguments: str) -> dict[str, Any]:
        store.put_text("sweeps", "toy.yaml", "of another run")
        return {"node": function(location, *arguments)}

    store.put_text("sweeps", "toy.yaml", "of this run")
    refused = pytest.raises(PreflightError, match="1 of 1 nodes don't see the store")
    with nullcontext() if seen else refused:
        assert list(look_at_store(machines.plan(), store, machines.folder / "node", ask)) == []
    assert store.listing("runs") == []
