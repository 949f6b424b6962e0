"""Kept networks: plain transformers loads them, and of a group of seeds only the best one stays."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lp_sweep.storage import networks
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.spool import flush
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker import handover as keeping
from lp_sweep.trials.worker import run as running
from lp_sweep.trials.worker import trial
from tests.support.networks import load
from tests.support.plain_jobs import done, execute, run_trial
from tests.support.toyworld import jobs, save_world

QUICK = ("recipe.epochs=1", "recipe.limit_train=16")  # a step: what is learned is not looked at
Scored = Callable[..., str]


def kept(store: Store) -> set[str]:
    """The trials of which a whole network is there."""
    folder = Path(store.location) / "weights"
    return {path.parent.name for path in folder.glob("*/config.json")}


def test_a_kept_network_is_the_one_that_was_scored(
    world: Path, store: Store, tmp_path: Path
) -> None:
    job = {**jobs(world, "k=2")[0], "keep": "all"}
    last = done(store, job)["last"]
    assert kept(store) == {job["id"]}
    folder = tmp_path / "copied"
    folder.mkdir()
    for item in store.listing(f"weights/{job['id']}"):
        assert store.fetch_file(f"weights/{job['id']}", item.name, folder / item.name)
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl"))]

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.num_hidden_layers == 2
    assert model.config.lp_sweep_kept_layers == [1, 2]
    assert model.config.id2label == {0: "neg", 1: "pos"}
    with (world.parent / "dev.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    inputs = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs).logits
    said = [model.config.id2label[int(index)] for index in logits.argmax(1)]
    right = np.mean([one == row["label"] for one, row in zip(said, rows, strict=True)])
    assert right == last
    stored = [row["scores"] for row in store.read("predictions", job["id"])]
    np.testing.assert_allclose(logits.numpy(), np.array(stored), atol=1e-5)


def test_a_kept_network_is_a_model_of_its_own(world: Path, store: Store) -> None:
    """Another sweep may start from it: its layers are 1..L there, whatever they were before, and
    each seed draws a head, as this one knows another task or the other layers."""
    job = {**jobs(world, "k=2", "strategies=[{name: bottom, k: [2]}]", "recipe.epochs=1")[0]}
    assert done(store, {**job, "keep": "all"})["kept_layers"] == [3, 4]
    folder = Path(store.location) / "weights" / job["id"]

    def head(seed: int, **how: bool) -> torch.Tensor:
        return load(folder, num_labels=2, seed=seed, **how).classifier.weight

    assert torch.equal(head(1), head(2)), "the kept one"
    assert not torch.equal(head(1, from_here=True), head(2, from_here=True)), "drawn by the seed"
    assert not torch.equal(head(1, from_here=True), head(1))
    text = (world.parent / "sweep.yaml").read_text(encoding="utf-8")
    again = world.parent / "again.yaml"
    again.write_text(text.replace("./model", str(folder)), encoding="utf-8")
    one = "strategies=[{name: bottom, k: [1]}]"
    for job in jobs(again, one, "measure.similarity=pruned", "recipe.epochs=1"):
        record = done(store, {**job, "keep": "all"})
        assert (record["depth"], record["kept_layers"]) == (2, [2])
        config = json.loads(store.read_text(f"weights/{job['id']}", "config.json") or "")
        assert config["lp_sweep_kept_layers"] == [2]
        assert config["lp_sweep_original_depth"] == 2


def test_a_network_without_feed_forwards_is_no_model_of_a_sweep(tmp_path: Path) -> None:
    world = save_world(tmp_path)
    config = tmp_path / "model" / "config.json"
    plain = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps(plain | {"lp_sweep_removed_feed_forwards": [3]}), encoding="utf-8")
    with pytest.raises(SpecError, match=r"lost the feed-forwards of layers \[3\] in a sweep"):
        jobs(world)


@pytest.fixture(scope="module")
def trained(world: Path) -> trial.TrialResult:
    return trial.TrialResult(**run_trial(jobs(world, "k=2", *QUICK)[0]))


@pytest.fixture
def scored(
    world: Path, store: Store, trained: trial.TrialResult, monkeypatch: pytest.MonkeyPatch
) -> Scored:
    """Does a trial of `seed` that reaches `score`, without training; gives its identifier."""

    def do(
        seed: int, score: float, *, mode: str = "best", status: str = "done", **axes: Any
    ) -> str:
        overrides = [f"{name}={value}" for name, value in ({"k": 2} | axes).items()]
        job = jobs(world, f"seed={seed}", *QUICK, *overrides)[0]

        def reach(given: Any, *rest: Any) -> Any:
            own = trial.asked_columns(given.job)
            record = {**trained.record, **own, "last": score, "epoch_metrics": []}
            rows = [{**row, "trial_id": job["id"]} for row in trained.predictions]
            return trained._replace(record=record, predictions=rows)

        with monkeypatch.context() as patch:
            patch.setattr(running, "run_trial", reach)
            assert execute({**job, "keep": mode}, store.location)["status"] == status
        return str(job["id"])

    return do


def test_what_another_run_recorded_meanwhile_stays(
    store: Store, scored: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took this worker's claim for lost. Scores may differ between kinds of GPU: the record,
    the answers and the network are then of one worker."""
    keep, found = keeping.Handover.keep, dict[Path, int]()

    def files() -> dict[Path, int]:
        every = Path(store.location).rglob("*.*")
        return {file: file.stat().st_mtime_ns for file in every if file.is_file()}

    def another_is_faster(self: Any, *given: Any) -> None:
        keep(self, *given)
        monkeypatch.setattr(keeping.Handover, "keep", keep)
        scored(1, 0.9, mode="all")
        found.update(files())

    monkeypatch.setattr(keeping.Handover, "keep", another_is_faster)
    trial = scored(1, 0.4, mode="all")
    assert store.read("trials", trial)[0]["last"] == 0.9
    assert kept(store) == {trial}
    assert files() == found


def test_the_best_seed_of_each_group_stays(store: Store, scored: Scored) -> None:
    first = scored(4, 0.7)
    assert kept(store) == {first}
    scored(2, 0.6)
    assert kept(store) == {first}
    lower = scored(3, 0.7)  # of equals the lowest seed
    assert kept(store) == {lower}
    others = {scored(1, 0.1, k=0), scored(1, 0.1, **{"recipe.lr": 1e-4})}
    best = scored(5, 0.8)
    assert kept(store) == {best, *others}
    assert store.listing(f"weights/{first}") == []  # nothing of it is left


def test_two_that_end_at_once_leave_one(
    store: Store, scored: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither sees the other before it has saved; the last to be recorded sees both."""
    monkeypatch.setattr(keeping.Handover, "_beaten", lambda self, record: False)
    first = scored(1, 0.7)
    scored(2, 0.6)
    assert kept(store) == {first}


def test_a_better_seed_without_a_network_is_in_nobodys_way(store: Store, scored: Scored) -> None:
    """Else nothing of the group could be measured or exported without being trained again."""
    scored(9, 0.7, mode="none")
    worse = scored(1, 0.6)
    assert kept(store) == {worse}
    better = scored(2, 0.65)
    assert kept(store) == {better}


def test_a_better_network_on_its_way_to_the_store_is_not_deleted(
    store: Store, scored: Scored
) -> None:
    better = scored(9, 0.7, mode="none")
    store.put_text(f"weights/{better}", "kept-by.txt", "best\n")  # its config comes last
    scored(1, 0.6)
    assert networks.kept_by(store, better) == "best"


def test_best_deletes_only_what_a_best_kept(store: Store, scored: Scored) -> None:
    first = scored(1, 0.6, mode="all")
    unmarked = scored(6, 0.6, mode="all")
    store.delete(f"weights/{unmarked}", "kept-by.txt")
    met = scored(4, 0.65)
    scored(4, 0.65, mode="all")  # the record is there
    for again in (first, unmarked):  # takes over no network
        (Path(store.location) / "trials" / f"{again}.parquet").unlink()
        scored(1 if again == first else 6, 0.6)
    second = scored(2, 0.7)
    third = scored(3, 0.8)
    assert kept(store) == {first, unmarked, met, third}
    assert [networks.kept_by(store, trial) for trial in (first, third)] == ["all", "best"]
    assert store.listing(f"weights/{second}") == []


def test_what_waited_on_a_node_is_compared_when_it_is_sent(
    world: Path, store: Store, scored: Scored
) -> None:
    scored(1, 0.7)
    place, away = Path(store.location), Path(store.location).with_name("away")
    place.rename(away)
    second = scored(2, 0.8, status="spooled")
    away.rename(place)
    assert flush(store, jobs(world, "k=2")[0]["cache_dir"]) == (3, 0)
    assert kept(store) == {second}


def test_a_record_that_cannot_be_compared_is_in_nobodys_way(store: Store, scored: Scored) -> None:
    first = scored(1, 0.5)
    own = store.read("trials", first)[0]
    foreign = [{"seed": None}, {"last": None}, {"last": float("nan")}]
    foreign += [{"spec": None}, {"spec": "[]"}, {"spec": "{"}]
    for number, changes in enumerate(foreign):
        name = f"t1-foreign{number}"
        store.put("trials", name, [{**own, "trial_id": name, "last": 1.0, **changes}])
    assert networks.is_best(store, own)
    second = scored(2, 0.6)
    assert kept(store) == {second}
    assert not store.names("attempts")


def test_whatever_keeps_networks_from_being_compared_costs_no_trial(
    store: Store, scored: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise TypeError("a bug of ours")

    monkeypatch.setattr(networks, "_look", fail)
    with pytest.warns(UserWarning, match="networks beside t1-.*: a bug of ours"):
        first = scored(1, 0.5)
    assert kept(store) == {first}


def test_a_network_that_cannot_be_saved_costs_no_record(
    world: Path, store: Store, tmp_path: Path
) -> None:
    job = {**jobs(world, "k=2", *QUICK, cache=tmp_path / "c")[0], "keep": "all"}
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "spool").write_text("in the way", encoding="utf-8")
    with pytest.warns(UserWarning, match="can't write to this node's spool"):
        answer = execute(job, store.location)
    assert (answer["status"], "spool" in answer["unkept"]) == ("done", True)
    assert kept(store) == set()


def test_the_config_comes_last_and_goes_first(
    world: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    put, delete = Store.put_file, Store.delete

    def spy_put(self: Store, folder: str, name: str, source: Path) -> str:
        order.append(f"+{name}")
        return put(self, folder, name, source)

    def spy_delete(self: Store, folder: str, name: str) -> None:
        order.append(f"-{name}")
        delete(self, folder, name)

    monkeypatch.setattr(Store, "put_file", spy_put)
    monkeypatch.setattr(Store, "delete", spy_delete)
    job = {**jobs(world, "k=2", *QUICK)[0], "keep": "all"}
    done(store, job)
    assert [name for name in order if name[0] == "+"][-1] == "+config.json"
    order.clear()
    networks.delete_network(store, job["id"])
    assert order[0] == "-config.json"
    assert store.listing(f"weights/{job['id']}") == []
