"""The first half hour on a GPU, rehearsed: a step that fails is a line, a process that outlives its
step is ended, and the tables are those of the lines."""

from __future__ import annotations

import json
import sys
import time
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig

from benchmarks import gpu_bundle, gpu_day, gpu_report, gpu_steps
from tests.support.toyworld import save_model


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    for name in ("tokens", "configs", "wheels"):
        (folder / name).mkdir(parents=True)
    draw = np.random.default_rng(0)
    lengths = draw.integers(3, 30, 300)
    np.savez(
        folder / "tokens" / "sst2.npz",
        tokens=draw.integers(1, 40, lengths.sum()).astype(np.uint16),
        types=np.zeros(lengths.sum(), np.uint8),
        offsets=np.cumsum([0, *lengths]),
        labels=draw.integers(0, 2, 300).astype(np.int8),
    )
    text = json.dumps(BertConfig(vocab_size=40).to_diff_dict() | {"model_type": "bert"})
    (folder / "configs" / "bert-base.json").write_text(text)
    return folder


def line_of(bundle: Path, tmp_path: Path, step: gpu_day.Step) -> dict[str, Any]:
    environment = gpu_day.packages(bundle, tmp_path / "packages")
    options = Namespace(device="cpu", bundle=bundle, out=tmp_path)
    return gpu_day.run(step, options, environment, step.seconds)


def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A program in place of each step."""
    script = tmp_path / "step.sh"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("after", "status"),
    [("wait", "timeout"), ("exit 0", "done"), ("exit 1", "failed")],
    ids=["a hanging step", "a step that leaves it behind", "a failing step"],
)
def test_no_process_outlives_its_step(
    after: str, status: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "pid"
    part = """echo '{"part": 1}'"""
    shell(tmp_path, monkeypatch, f"sleep 60 &\necho $! > {started}\n{part}\n{after}")
    begun = time.monotonic()
    line = line_of(bundle, tmp_path, gpu_day.Step(1, 2, "machine"))
    assert time.monotonic() - begun < 30, "a pipe that the child holds is not waited for"
    assert (line["status"], line["found"]) == (status, {"part": 1})
    deadline = time.monotonic() + 10
    while alive(int(started.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(started.read_text()))


class Day:
    """gpu_day.py with three steps that take 50 seconds of a clock without waiting."""

    def __init__(self, bundle: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bundle, self.out, self.patch = bundle, out, monkeypatch
        self.now, self.status, self.ran = 0.0, {"b": "failed"}, [""]
        steps = tuple(gpu_day.Step(1, limit, name) for limit, name in ((60, "a"), (90, "b")))
        monkeypatch.setattr(gpu_day, "STEPS", (*steps, gpu_day.Step(2, 20, "c", ("d",))))
        monkeypatch.setattr(gpu_day, "run", self.run)
        monkeypatch.setattr(gpu_day.time, "monotonic", lambda: self.now)

    def run(self, step: gpu_day.Step, *_: Any) -> dict[str, Any]:
        self.ran.append(step.name)
        self.now += 50
        status = self.status.get(step.name, "done")
        found = {"step": step.name, "arguments": step.arguments, "stage": step.stage}
        return found | {"status": status, "seconds": 50}

    def __call__(self, *options: str) -> list[str]:
        self.ran = []
        places = ["--out", str(self.out), "--bundle", str(self.bundle)]
        self.patch.setattr(sys, "argv", ["gpu_day.py", *places, *options])
        gpu_day.main()
        return self.ran


def test_a_step_starts_only_within_the_budget(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = Day(bundle, tmp_path / "out", monkeypatch)
    assert day("--budget", "70") == ["a", "c"], "b is over the budget, and c is not"
    assert day("--budget", "139") == ["b"], "the rest"
    assert Day(bundle, tmp_path / "other", monkeypatch)("--budget", "59") == ["c"]


def test_the_same_command_again_skips_what_is_done(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = Day(bundle, tmp_path / "out", monkeypatch)
    assert day() == ["a", "b", "c"]
    assert day() == ["b"], "it failed"
    day.status = {}
    assert (day("--stage", "2"), day("--stage", "1"), day()) == ([], ["b"], [])
    assert day("--only", "a", "c") == ["a", "c"], "those that are named are repeated"
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 7
    assert day("--device", "cpu") == ["a", "b", "c"], "a rehearsal is no measurement"


def test_the_store_of_a_sweep_travels_as_one_file(tmp_path: Path) -> None:
    for text in ("a", "b"):
        with gpu_day.unpacked(tmp_path):
            store = tmp_path / gpu_day.SWEEP / "store"
            store.mkdir(parents=True, exist_ok=True)
            assert [file.name for file in store.iterdir()] == (["a"] if text == "b" else [])
            (store / text).write_text(text)
        assert [file.name for file in tmp_path.iterdir()] == ["sweep.tar.gz"]


def test_waits_are_counted_within_the_window_alone(tmp_path: Path) -> None:
    setup = gpu_steps.Setup(device=torch.device("cpu"), bundle=tmp_path, out=tmp_path)
    window = gpu_steps.Window(setup, gpu_steps._waits(setup))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(6):  # the warning of a transfer, then of each step
            warnings.warn(f"called a synchronizing CUDA operation: {step}", stacklevel=1)
            window.end_of_step()
    assert [str(said.message)[-1] for said in window.found] == ["1", "2", "3"]
    assert window.steps == 3
    assert window.seconds > 0


def test_a_cut_vocabulary_splits_its_texts_as_before(tmp_path: Path) -> None:
    model, out = Path(save_model(tmp_path)), tmp_path / "cut"
    out.mkdir()
    before = AutoTokenizer.from_pretrained(model)
    texts = ["good w1", "bad w2 w1"]
    used = {token for text in texts for token in before(text)["input_ids"]} | {*range(5)}
    gpu_bundle.cut(model, np.array(sorted(used)), out)
    after = AutoTokenizer.from_pretrained(out)
    assert len(after) == len(used) < len(before)
    words, rows = AutoModel.from_pretrained(model), AutoModel.from_pretrained(out)
    for text in texts:
        old, new = (one(text, return_tensors="pt")["input_ids"] for one in (before, after))
        assert before.convert_ids_to_tokens(old[0]) == after.convert_ids_to_tokens(new[0])
        known = words.get_input_embeddings()(old)
        found = rows.get_input_embeddings()(new).float()
        torch.testing.assert_close(found, known, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_step_that_fails_is_a_line(bundle: Path, tmp_path: Path) -> None:
    step = gpu_day.Step(1, 60, "precisions")
    (bundle / "configs" / "bert-base.json").unlink()
    line = line_of(bundle, tmp_path, step)
    assert (line["status"], line["found"]) == ("failed", {})
    assert "bert-base.json" in line["error"]


@pytest.mark.slow
def test_a_rehearsed_step(bundle: Path, tmp_path: Path) -> None:
    line = line_of(bundle, tmp_path, gpu_day.Step(1, 120, "smoke"))
    assert line["status"] == "done", line["error"]
    assert [*line["found"]] == ["reference", "fast", "graphs"]
    assert all(found["waits_a_step"] == 0 for found in line["found"].values())


@pytest.mark.slow
def test_a_rehearsed_race(bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate: pip install accelerate")
    line = line_of(bundle, tmp_path, gpu_day.Step(1, 120, "whole", ("bert-base", "sst2")))
    assert line["status"] == "done", line["error"]
    assert [*line["found"]["sst2"]["sides"]] == ["trainer", "fast", "graphs"]


def race(trainer: float, graphs: float) -> dict[str, Any]:
    took = {"trainer": (20.0, trainer, []), "fast": (15.0, 4.5, [])}
    took |= {"graphs": (4.0, graphs, [0.5, 0.3])}
    sides = {
        name: [{"ms_a_step": ms, "wall_seconds": s, "steps": 300, "capture_seconds": seconds}]
        for name, (ms, s, seconds) in took.items()
    }
    return {"sides": sides, "tokens_a_row": 13.0}


def lines() -> list[dict[str, Any]]:
    versions = {"torch": "2.11.0"}
    machine = {"device": "H100", "tflops": 800.0, "copy_gb_per_second": 3e3, "versions": versions}
    timed = {"ms_a_step": 8.0, "wall_seconds": 2.0, "steps": 100, "capture_seconds": []}
    trials = [
        {"task": "rte", "k": k, "seed": seed, "last": score, "compute_used": "graphs"}
        for k, seed, score in ((0, 1, 0.6), (0, 2, 0.7), (3, 1, None), (3, 2, 0.5))
    ]
    found: list[tuple[str, list[str], dict[str, Any]]] = [
        ("machine", [], machine),
        ("whole", ["bert-base", "sst2", "rte"], {"sst2": race(6.0, 1.0), "rte": race(8.0, 2.0)}),
        ("whole", ["minilm", "sst2"], {"sst2": race(3.0, 3.0)}),
        ("compiled", ["sst2"], {f"sst2 {side}": {"sides": {side: [timed]}} for side in SIDES}),
        ("side_by_side", [], {"4 MPS": {"steps_a_second": 400.0}}),
        ("sweep", ["k=0"], {"seconds": 9.0, "trials": []}),
        ("sweep", [], {"seconds": 99.0, "trials": trials}),
        ("smoke", [], {"graphs": {"waits_a_step": 0.05}}),
        ("determinism", [], {"graphs": {"equal": False}}),
        ("profile", [], {"graphs": {"busy_share": 0.91, "calls_a_step": 700.0}}),
        ("precisions", [], {"fp32": {"losses": [0.5, 0.25]}, "bf16": {"losses": [0.5, 0.26]}}),
        ("depth_speed", [], {"speedups": {"inference": 1.98}}),
        ("out_of_memory", [], {"tried": [[32, "CUDA out of memory"], [16, "done"]]}),
    ]
    common = {"stage": 1, "status": "done", "at": "2026-11-24T10:00:00Z", "device": "cuda"}
    return [
        common | {"step": step, "arguments": arguments, "found": one}
        for step, arguments, one in found
    ]


SIDES = ("graphs", "dynamic", "compiled")


def written(folder: Path, rows: list[dict[str, Any]], end: str = "") -> Path:
    path = folder / "results.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)
    return path


@pytest.mark.parametrize(
    "row",
    [
        "| SST-2 | bert-base | 20.0 | 15.0 | 4.0 | 6.0 | 4.5 | 1.0 | 6.0x | 2 of 0.40 s |",
        "Whole trials of BERT-base on 2 tasks: median 5.0x, least 4.0x.",
        "| SST-2 | 8.0 | 8.0 | 8.0 | 1.0x |",
        "| 4 MPS | 400 | 8.0x |",  # one Trainer: 300 steps in 6 s
        "4 trials in 99 s (`graphs`)",
        "| RTE | 65.0 (2) | 50.0 (1) |",
        "| inference | 1.98x |",
        "| `graphs`: waits of the host a step | 0.05 |",
        "| `graphs`: the same weights twice | **no** |",
        "| `graphs`: the GPU works | 91% of the time, 700 calls a step |",
        "fp32 0.2500, bf16 0.2600",
        "a batch of 32 does not fit, a batch of 16 fits",
        "H100: 800 TFLOP/s",
    ],
)
def test_the_tables_have_all_that_was_measured(row: str, tmp_path: Path) -> None:
    found, broken = gpu_report.read(written(tmp_path, lines()))
    assert row in gpu_report.text_of(found, broken)
    assert not broken


def test_a_step_that_was_stopped_shows_its_part_and_that_it_was(tmp_path: Path) -> None:
    rows = lines()
    part = rows[1] | {"status": "timeout", "found": {"sst2": race(6.0, 1.0)}}
    again = rows[2] | {"status": "failed", "found": {}, "error": "broken"}
    path = written(tmp_path, [rows[0], part, rows[2], again], end='{"step": "cut o')
    found, broken = gpu_report.read(path)
    text = gpu_report.text_of(found, broken)
    assert "BERT-base on 1 tasks: median 6.0x" in text
    assert "| SST-2 | minilm |" in text, "an earlier good result stays"
    assert "did not end well: whole bert-base sst2 rte (timeout)." in text
    gpu_report.roofline(found, tmp_path / "roofline.svg")
    assert "<svg" in (tmp_path / "roofline.svg").read_text()


def test_a_rehearsal_reaches_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{gpu_report.BEGIN}old\n{gpu_report.END}after\n")
    monkeypatch.setattr(gpu_report, "DOC", page)
    monkeypatch.setattr(gpu_report, "FIGURE", tmp_path / "figure.svg")
    on_cpu = [{**line, "device": "cpu"} for line in lines()]
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", str(written(tmp_path, on_cpu))])
    with pytest.raises(SystemExit, match="no whole run on a GPU"):
        gpu_report.main()
    assert "old" in page.read_text()
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", str(written(tmp_path, lines()))])
    gpu_report.main()
    text = page.read_text()
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "6.0x" in text
    assert "old" not in text
