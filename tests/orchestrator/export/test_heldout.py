"""`test:`: rows that no trial and no choice reads, scored once for what is shipped."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lp_sweep import Sweep, open_store
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.export import heldout
from lp_sweep.orchestrator.export.heldout import held_out_score
from lp_sweep.orchestrator.export.places import Where
from lp_sweep.orchestrator.export.trialfolder import ExportResult
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.options import ExportOptions, MeasureOptions
from lp_sweep.orchestrator.service import export as service
from lp_sweep.orchestrator.service.run import _measure_as_shipped
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.networks import delete_network
from lp_sweep.storage.store import Store
from lp_sweep.trials.deploy import artefacts
from tests.orchestrator.export.test_deployments import looked_up
from tests.support.graphs import in_this_process
from tests.support.kindworlds import embedding_world, search_world, token_world
from tests.support.program import sweep
from tests.support.toyworld import RECIPE, rows, save_world, sweep_content

TASK = sweep_content()["tasks"][0] | {"test": "test.csv"}
ROWS = 120
WEAK = RECIPE | {"epochs": 1}  # networks that make mistakes


class World(NamedTuple):
    """A sweep file whose task sets rows aside, and the store of its run."""

    file: Path
    store: Store

    def export(self, out: str = "out", **options: Any) -> ExportResult:
        place = {"store": self.store.location, "file": str(self.file), "force": True}
        chosen = {"best": True, "task": self.task} if "trial" not in options else {}
        folder = self.file.parent / out
        cache = self.file.parent / "cache"
        return service.export_trial(
            ExportOptions(out=folder, cache_dir=cache, **place, **chosen, **options)
        )

    def score(self, n_kept: int, *form: str) -> Any:
        """That of the network with so many layers, as torch, or in another form."""
        where = Where(ExportOptions(out=Path()), self.store, resolve(load_sweep(self.file)))
        (record,) = self.store.read("trials", self.trial(n_kept))
        return held_out_score(record, where, form or ("torch", "full"))  # type: ignore[arg-type]

    def copy(self, folder: Path) -> World:
        shutil.copytree(self.store.location, folder / "store")
        return self._replace(store=Store(folder / "store"))

    @property
    def task(self) -> str:
        return str(self.store.read_all("trials").rows["task"][0])

    def trial(self, n_kept: int) -> str:
        kept = self.store.read_all("trials").rows.to_pylist()
        return next(row["trial_id"] for row in kept if len(row["kept_layers"]) == n_kept)

    def scores(self) -> list[dict[str, Any]]:
        return list(self.store.read_all("test_scores").rows.to_pylist())


def save_rows(path: Path, made: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["text", "label"])
        writer.writeheader()
        writer.writerows(made)


def world(folder: Path, **changes: Any) -> World:
    file = save_world(folder, keep="all", recipe=WEAK, **{"tasks": [TASK], **changes})
    save_rows(folder / "test.csv", rows(ROWS, seed=3))
    return trained(file)


def trained(file: Path) -> World:
    place = file.parent / "store"
    Sweep.from_yaml(file, store=place).run(inline=True, cache_dir=file.parent / "cache")
    return World(file, Store(place))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world(tmp_path_factory.mktemp("heldout") / "world")


@pytest.fixture
def kept(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    in_this_process(monkeypatch)
    monkeypatch.setattr(artefacts, "write_graph", looked_up)
    monkeypatch.setattr("lp_sweep.trials.deploy.runner._OUTPUTS", ("logits_of_all", "logits"))
    return made.copy(tmp_path)


def right_rows(folder: Path) -> np.ndarray:
    """Whether plain transformers finds the label of each test row."""
    network = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer, found = AutoTokenizer.from_pretrained(folder), []
    for row in rows(ROWS, seed=3):
        with torch.no_grad():
            logits = network(**tokenizer(row["text"], return_tensors="pt")).logits[0]
        found.append(network.config.id2label[int(logits.argmax())] == row["label"])
    return np.array(found)


def test_an_export_scores_the_test_rows_and_the_full_model_beside_it(kept: World) -> None:
    done = kept.export(trial=kept.trial(2))
    told: Any = done.held_out
    own = right_rows(Path(done.folder))
    whole = right_rows(Path(kept.export("whole", trial=kept.trial(4)).folder))
    assert told.score == pytest.approx(100 * own.mean())
    assert told.full == pytest.approx(100 * whole.mean())
    difference = own.astype(float) - whole
    assert told.change == pytest.approx(100 * difference.mean())
    wide = 196 * difference.std() / np.sqrt(ROWS)
    assert wide > 0
    assert (told.high - told.low) / 2 == pytest.approx(wide, rel=0.1)
    assert told.sentence().startswith(f"on {ROWS} test rows, never used to choose: accuracy")
    card, about = (Path(done.folder, name).read_text() for name in ("README.md", "lp_sweep.json"))
    assert f"accuracy {told.score:.1f}" in card
    assert "test it on rows of your own" not in card
    assert json.loads(about)["held_out"]["examples"] == ROWS


def test_an_artefact_is_scored_once_and_a_second_one_is_a_second_look(
    kept: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kept.score(2)
    assert first.look == 1
    with monkeypatch.context() as patch:
        patch.setattr(heldout, "run_each", None)
        assert kept.score(2) == first
    second = kept.score(2, "onnx", "full")
    assert second.look == 2
    assert "look 2 at" in second.sentence()
    assert "never used" not in second.sentence()
    records = {(len(row["kept_layers"]), row["format"]): row for row in kept.scores()}
    assert set(records) == {(4, "torch"), (2, "torch"), (2, "onnx")}
    answers = kept.store.read("predictions", records[2, "onnx"]["test_id"])
    right = np.mean([row["label"] == row["prediction"] for row in answers])
    assert second.score == pytest.approx(100 * right)
    assert {row["split"] for row in answers} == {"test"}


def test_the_full_model_has_nothing_beside_it(kept: World) -> None:
    told = kept.score(4)
    assert (told.full, told.change, told.look) == (None, None, None)


def test_without_the_full_models_network_there_is_no_change(kept: World) -> None:
    delete_network(kept.store, kept.trial(4))
    told = kept.score(2)
    assert told.full is None
    assert told.score > 0


def test_what_fails_costs_no_export(
    kept: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        heldout, "run_each", lambda made, _: dict.fromkeys((m.id for m in made), "no")
    )
    done = kept.export(trial=kept.trial(2))
    assert done.held_out is None
    assert Path(done.folder, "README.md").is_file()
    assert re.search("warning: the test rows .*: no", capsys.readouterr().err)
    assert not kept.scores()


def test_labels_of_the_test_rows_change_no_trial_and_no_choice(kept: World, tmp_path: Path) -> None:
    """Trials, answers and the layers needed are those of a task whose test rows say the opposite,
    and of one that sets none aside."""
    found = []
    for name, task in (("other", TASK), ("none", sweep_content()["tasks"][0])):
        file = save_world(tmp_path / name, keep="all", recipe=WEAK, tasks=[task])
        other = {"pos": "neg", "neg": "pos"}
        turned = [row | {"label": other[row["label"]]} for row in rows(ROWS, seed=3)]
        save_rows(file.parent / "test.csv", turned)
        found.append(trained(file))
    assert kept.score(2).score + found[0].score(2).score == pytest.approx(100)
    assert found[1].score(2) is None
    ours, *theirs = ([*facts(each)] for each in (kept, *found))
    assert len(ours) == 3
    assert theirs == [ours, ours]


def facts(each: World) -> Iterator[Any]:
    """All trial records, and the networks that are chosen by them."""
    yield sorted(
        (row["trial_id"], row["last"]) for row in each.store.read_all("trials").rows.to_pylist()
    )
    answers = each.store.read_all("predictions").rows.to_pylist()
    yield sorted(
        (row["trial_id"], row["example"], row["prediction"])
        for row in answers
        if row["trial_id"][0] == "t"
    )
    yield repr(open_store(each.store.location).table("min-layers"))


KINDS = {
    "tokens": (token_world, "dev.jsonl"),
    "embedding": (embedding_world, "pairs.parquet"),
    "search": (search_world, "qrels.parquet"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_task(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dev rows as test rows, which only a copy can be, are scored as on the dev set."""
    in_this_process(monkeypatch)
    folder = tmp_path / "world"
    make, dev = KINDS[kind]
    file = make(folder, keep="all")
    test = f"test.{dev.partition('.')[2]}"
    content = yaml.safe_load(file.read_text())
    content["tasks"][0]["test"] = test
    file.write_text(yaml.safe_dump(content))
    shutil.copy(folder / dev, folder / test)
    monkeypatch.setattr("lp_sweep.orchestrator.inputs.resolve._are_alike", lambda *_: False)
    made = trained(file)
    (record,) = made.store.read("trials", made.trial(2))
    told = made.score(2)
    assert told.score == pytest.approx(100 * record["last"], abs=1e-3)
    assert told.low <= told.change <= told.high
    assert (told.unit == "queries") == (kind == "search")


@pytest.mark.slow  # five seconds of turns for each
def test_a_run_ends_with_the_test_rows_of_what_to_ship(tmp_path: Path) -> None:
    file = save_world(tmp_path / "world", keep="best", deploy=["torch"], tasks=[TASK])
    save_rows(file.parent / "test.csv", rows(ROWS, seed=3))
    assert re.search("test rows.*mood", sweep("plan", str(file), cwd=tmp_path).stdout)
    said = [
        sweep("run", str(file), "--inline", "--store", "st", cwd=tmp_path).stderr.splitlines()[-1]
        for _ in range(2)
    ]
    assert re.match(f"mood: on {ROWS} test rows, never used to choose: accuracy .* 95% ", said[0])
    assert said[0] == said[1]
    (looks,) = [
        row
        for row in Store(tmp_path / "st").read_all("test_scores").rows.to_pylist()
        if row["look"]
    ]
    assert looks["look"] == 1


def test_the_end_of_a_run_looks_where_the_run_did(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    spec = SimpleNamespace(deploy=["torch"], vocabulary=["full"], strategies=[])
    made: Any = SimpleNamespace(name="s", spec=spec, models=[SimpleNamespace(name="m")])
    made.tasks = {"mood": SimpleNamespace(test=True)}
    measured = SimpleNamespace(failed=0)
    monkeypatch.setattr(service, "measure_task", lambda options: asked.append(options) or measured)
    monkeypatch.setattr(service, "test_chosen", asked.append)
    options = RunOptions(manifest=Path("pins.json"), cache_dir=Path("cache"))
    store: Any = SimpleNamespace(location="st")
    assert not [*_measure_as_shipped(SimpleNamespace(sweep=made), store, options)]  # type: ignore[arg-type]
    places = [(one.manifest, one.cache_dir) for one in asked]
    assert places == [(options.manifest, options.cache_dir)] * 2


def test_measuring_alone_looks_at_no_test_row(kept: World) -> None:
    usual = {"file": str(kept.file), "device": "cpu", "seconds": 0.01}
    asked = MeasureOptions(task="mood", store=kept.store.location, formats=["torch"], **usual)
    assert service.measure_task(asked).measured == 2
    assert not kept.scores()
    place = {"store": kept.store.location, "file": str(kept.file)}
    chosen = {"best": True, "task": "mood", "within": 50.0, "fastest": True}
    told: Any = service.test_chosen(ExportOptions(out=Path(), **place, **chosen))
    assert told.examples == ROWS
    assert kept.scores()
