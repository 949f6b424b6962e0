"""From a stored record back to its model and its rows: what is found has the record's content."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lp_sweep.orchestrator.export.places import (
    Where,
    find_inputs,
    model_place,
    spec_of,
    task_source,
)
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.options import ExportOptions
from lp_sweep.orchestrator.service.export import _sweep
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.errors import PreflightError, StoreError
from lp_sweep.storage.places import run_with
from lp_sweep.storage.shipped import ship
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.datasource import data_fingerprint
from lp_sweep.trials.data.tasks import TASKS, glue_source
from lp_sweep.trials.spec.identity import canonical_json, trial_id
from lp_sweep.trials.spec.specs import Distillation, TrialSpec, spec_from_plain
from lp_sweep.trials.worker.fetch import data_files, model_files
from lp_sweep.trials.worker.job import Job
from tests.support.stores import cell
from tests.support.sweepfiles import make_data
from tests.support.toyworld import jobs, save_world

Row = dict[str, object]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save_world(tmp_path)


@pytest.fixture
def where(tmp_path: Path) -> Where:
    options = ExportOptions(out=str(tmp_path / "out"), cache_dir=tmp_path / "cache")
    return Where(options, Store(tmp_path / "store", create=True))


def record_of(spec: TrialSpec, **columns: object) -> Row:
    return {
        "trial_id": trial_id(spec),
        "spec": canonical_json(spec),
        "model": "./model",
        "model_fingerprint": spec.model_fingerprint,
        "depth": 4,
        "task": "mood",
        **columns,
    }


def planned(file: Path) -> TrialSpec:
    return spec_from_plain(TrialSpec, jobs(file, "k=2")[0]["spec"])


def job_of(spec: TrialSpec, where: Where) -> Job:
    record = record_of(spec)
    return find_inputs(spec, record, where).job(spec, record, where)


def with_sweep(where: Where, file: Path) -> Where:
    return where._replace(sweep=resolve(load_sweep(file)))


def test_a_sweep_file_names_the_places(file: Path, where: Where) -> None:
    spec, job = planned(file), jobs(file, "k=2")[0]
    found = job_of(spec, with_sweep(where, file)).to_plain()
    for name in ("id", "kind", "spec", "model"):
        assert found[name] == job[name], name
    assert found["task"]["source"] == job["task"]["source"]
    (file.parent / "dev.csv").write_text("text,label\na,pos\nb,neg\n")
    with pytest.raises(PreflightError, match=r"the data of task 'mood' of t1-.* by its content"):
        job_of(spec, with_sweep(where, file))


def test_without_a_file_it_is_the_one_that_the_trials_run_used(
    file: Path,
    where: Where,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Overrides included, and whatever sweep.yaml lies in the working directory."""
    spec = spec_from_plain(TrialSpec, jobs(file, "k=2", "seed=9")[0]["spec"])
    record = record_of(spec, data_fingerprint=spec.data_fingerprint)
    asked = {"trial_id": record["trial_id"], "overrides": "k=2 seed=9"}
    where.store.put("sweeps", "demo", [cell(kept_layers=[1, 2], **asked)])
    where.store.put_text("sweeps", "demo.yaml", run_with(str(file), None))
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    for text in (None, "name: [", "tasks: [sst2]"):
        if text:
            Path("sweep.yaml").write_text(text)
        sweep = _sweep(where.options, where.store, record)
        assert sweep
        assert spec.data_fingerprint in {task.fingerprint for task in sweep.tasks.values()}
        assert all("sweep.yaml" in line for line in capsys.readouterr().err.splitlines())


def test_a_student_needs_its_texts_without_labels(file: Path, where: Where) -> None:
    """They are needed to train it again; the fingerprint of the data does not cover them."""
    spec = replace(planned(file), distill=Distillation(unlabelled="sha256:00"))
    sweep = with_sweep(where, file)
    with pytest.raises(PreflightError, match=r"unlabelled texts of task 'mood'.*--file"):
        job_of(spec, sweep)
    networks = Path(where.store.location) / "weights" / trial_id(spec)
    networks.mkdir(parents=True)
    (networks / "config.json").write_text("{}")
    job_of(spec, sweep)


def test_the_hub_is_in_the_record(file: Path, where: Where) -> None:
    source = glue_source("mnli", None)
    spec = replace(
        planned(file),
        model_fingerprint="hub:org/a@b@" + "0" * 40,
        task=TASKS["mnli"].definition,
        data_fingerprint=data_fingerprint(source, TASKS["mnli"].definition),
    )
    record = record_of(spec, model="org/a@b", task="mnli")
    assert task_source(spec, record, where) == source
    place = model_place(record, where)
    assert place is not None
    assert (place.path, place.revision) == ("org/a@b", "0" * 40)


def test_glue_in_a_folder(file: Path, where: Where, tmp_path: Path) -> None:
    folder = make_data(tmp_path / "glue")
    source, definition = glue_source("rte", folder), TASKS["rte"].definition
    print_ = data_fingerprint(source, definition)
    spec = replace(planned(file), task=definition, data_fingerprint=print_)
    record = record_of(spec, task="rte")
    assert task_source(spec, record, where) is None
    named = where._replace(options=replace(where.options, data_dir=folder))
    assert task_source(spec, record, named) == source
    other = replace(spec, data_fingerprint="sha256:0")
    assert task_source(other, record, named) is None


def test_what_a_cluster_left_in_the_store(file: Path, where: Where) -> None:
    spec = planned(file)
    job = jobs(file, "k=2")[0]
    ship(where.store, spec.model_fingerprint, model_files(Path(job["model"]["path"])))
    ship(where.store, spec.data_fingerprint, data_files(job["task"]["source"]["files"]))
    shutil.rmtree(file.parent / "model")
    (file.parent / "dev.csv").unlink()
    found = job_of(spec, where)
    assert (Path(found.model.path) / "model.safetensors").is_file()
    assert list(found.task.source.files) == ["train", "validation"]


def test_a_record_that_does_not_say_what_it_is_of(file: Path) -> None:
    spec = planned(file)
    assert spec_of(record_of(spec)) == spec
    other = record_of(spec, trial_id="t0-0")
    for record in (other, *({"trial_id": "t1-0", "spec": text} for text in (None, "{", "{}"))):
        with pytest.raises(StoreError, match=r"does not say .* another version"):
            spec_of(record)
