"""One trial on a tiny real model: the loop, the record, determinism, and failures as outcomes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from lp_sweep.storage.schema import PREDICTIONS, TRIALS
from lp_sweep.storage.store import Store
from lp_sweep.trials.fast.forward import forward
from lp_sweep.trials.spec.specs import Recipe
from lp_sweep.trials.train import finetune as finetuning
from lp_sweep.trials.train import steps as passes
from lp_sweep.trials.train.steps import decay, make_optimizer, train_step
from lp_sweep.trials.worker import trial, tries
from tests.support.networks import load
from tests.support.plain_jobs import assert_fails, done, execute, run_trial
from tests.support.toyworld import jobs, save_model, save_world

QUICK = ("recipe.epochs=1", "recipe.limit_train=16")  # a step: what is learned is not looked at


@pytest.fixture(scope="module")
def outcome(world: Path) -> dict[str, Any]:
    return run_trial(jobs(world, "k=0")[0])


def test_the_record_has_every_column(world: Path, outcome: dict[str, Any]) -> None:
    record = outcome["record"]
    bridged = {"bridge", "bridge_left", "seconds_bridge"}
    assert set(record) | bridged == set(TRIALS.names)
    may_be_null = {"model_revision", "limit_train", "limit_dev", "command", "started_from"}
    may_be_null |= {"positive", "positive_label", "distill", "teacher", "seconds_teacher"}
    may_be_null |= {*bridged, "vector_width", "dev_blind"}
    assert {name for name, value in record.items() if value is None} <= may_be_null
    assert record["kept_layers"] == [1, 2, 3, 4]
    texts = (world.parent / "train.csv").read_text(encoding="utf-8").splitlines()[1:]
    words = sum(len(line.rpartition(",")[0].split()) for line in texts)
    assert record["train_tokens"] == words + 2 * len(texts)  # [CLS] and [SEP]
    assert record["dev_tokens"] > 0
    assert record["steps"] == 48  # 256 rows, batch 16, 3 epochs
    assert (record["train_examples"], record["dev_examples"]) == (256, 60)
    assert (record["device_type"], record["threads"]) == ("cpu", 1)
    assert record["seconds_total"] >= record["seconds_train"] + record["seconds_evaluate"]
    curve = [item["value"] for item in record["epoch_metrics"] if item["metric"] == "accuracy"]
    assert [item["epoch"] for item in record["epoch_metrics"]] == [1, 2, 3]
    assert record["last"] == curve[-1] > record["majority"] + 0.2
    assert record["best"] == max(curve) == curve[record["best_epoch"] - 1]
    assert record["train_losses"][1] < record["train_losses"][0] - 0.1


def test_predictions_recompute_the_score(outcome: dict[str, Any]) -> None:
    rows = outcome["predictions"]
    assert all({*row, "tally"} == set(PREDICTIONS.names) for row in rows)
    assert [row["example"] for row in rows] == list(range(60))
    right = np.mean([row["label"] == row["prediction"] for row in rows])
    assert right == outcome["record"]["last"]
    assert all(int(np.argmax(row["scores"])) == row["prediction"] for row in rows)


def test_a_seed_fixes_the_result(world: Path) -> None:
    quick = ("k=0", "recipe.epochs=1", "recipe.limit_train=64")
    first = run_trial(jobs(world, *quick)[0])
    torch.manual_seed(12345)  # what came before in a reused worker must not matter
    torch.rand(7)
    again = run_trial(jobs(world, *quick)[0])
    assert again["predictions"] == first["predictions"]
    assert again["record"]["train_losses"] == first["record"]["train_losses"]
    other = run_trial(jobs(world, *quick, "seed=2")[0])
    assert other["record"]["train_losses"] != first["record"]["train_losses"]


def test_fewer_layers_change_neither_data_order_nor_head(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of each step and the random state at its start, for two depths."""
    steps: list[tuple[Any, ...]] = []
    heads: list[torch.Tensor] = []

    def spy(model: Any, split: Any, rows: Any, *rest: Any, **how: Any) -> Any:
        steps.append((rows.tolist(), torch.random.get_rng_state().sum().item()))
        return forward(model, split, rows, *rest, **how)

    def look(model: Any, recipe: Any, **how: Any) -> Any:
        heads.append(model.classifier.weight.detach().clone())
        return make_optimizer(model, recipe, **how)

    monkeypatch.setattr(passes, "forward", spy)
    monkeypatch.setattr(finetuning, "make_optimizer", look)
    seen, records = [], []
    for k in (0, 2):
        steps.clear()
        job = jobs(world, f"k={k}", "recipe.epochs=1", "recipe.limit_train=64")[0]
        records.append(run_trial(job)["record"])
        seen.append(steps[:4])  # an epoch; the dev rows follow
    assert [len(rows) for rows, _ in seen[0]] == [16] * 4
    assert seen[0] == seen[1]
    assert torch.equal(*heads)
    full, pruned = records
    assert (pruned["kept_layers"], pruned["dropped_layers"]) == ([1, 2], [3, 4])
    gone = full["params_encoder"] - pruned["params_encoder"]
    assert gone == pruned["params_encoder"] == full["params_total"] - pruned["params_total"]


def test_bf16_is_another_precision(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False})
    auto, bf16 = (
        run_trial(jobs(world, "k=0", *QUICK, f"recipe.precision={name}")[0])["record"]
        for name in ("auto", "bf16")
    )
    assert (auto["precision_used"], bf16["precision_used"]) == ("fp32", "bf16")
    assert auto["train_losses"] != bf16["train_losses"]


def test_f1_of_a_named_class(tmp_path: Path) -> None:
    task = {"name": "claims", "text": ["text"], "metric": "f1", "positive": "neg"}
    world = save_world(tmp_path, tasks=[{**task, "train": "train.csv", "dev": "dev.csv"}])
    with (tmp_path / "dev.csv").open("a") as dev, (tmp_path / "train.csv").open() as train:
        dev.write(list(train)[1])
    result = run_trial(jobs(world, "k=0", "recipe.epochs=1", "recipe.lr=1e-3")[0])
    record, rows = result["record"], result["predictions"]
    labels, answers = ([int(row[name]) for row in rows] for name in ("label", "prediction"))
    assert record["last"] == f1_score(labels, answers, pos_label=0)
    assert record["last"] != f1_score(labels, answers, pos_label=1)
    assert record["majority"] == f1_score(labels, [0] * len(labels), pos_label=0)
    assert (record["positive"], record["positive_label"]) == ("neg", 0)
    assert (record["dev_in_train"], record["dev_relabelled"]) == (1, 0)


def test_a_stored_trial_is_not_done_again_unless_it_is_torn(
    world: Path, store: Store, tmp_path: Path
) -> None:
    job = jobs(world, "k=2", *QUICK)[0]
    first = execute(job, store.location)
    assert (first["status"], first["id"]) == ("done", job["id"])
    assert store.names("trials") == store.names("predictions") == {job["id"]}
    assert store.read("trials", job["id"])[0]["last"] == first["last"]
    assert not store.names("attempts")
    assert not (Path(store.location) / "weights").exists()  # no network is kept by default

    path = Path(store.location) / "trials" / f"{job['id']}.parquet"
    written = path.stat().st_mtime_ns
    (tmp_path / "left").write_bytes(b"x")  # by a worker that was lost right after its record
    store.put_file("checkpoints", f"{job['id']}.safetensors", tmp_path / "left")
    assert execute(job, store.location) == first
    assert path.stat().st_mtime_ns == written
    assert store.listing("checkpoints") == []

    path.write_bytes(path.read_bytes()[:-30])
    assert execute(job, store.location)["last"] == first["last"]
    assert store.read("trials", job["id"])[0]["last"] == first["last"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"depth": 5}, "has 4 layers, the plan expected 5"), ({"path": "/nowhere/gone"}, "gone")],
    ids=["depth", "missing"],
)
def test_a_model_that_is_not_the_plans_is_a_missing_input(
    world: Path, store: Store, changes: dict[str, Any], message: str
) -> None:
    job = jobs(world, "k=0")[0]
    job |= {"model": {**job["model"], **changes}, "offline": True}
    assert_fails(store, job, "missing_input", message)


def test_texts_longer_than_the_models_positions_are_refused(tmp_path: Path, store: Store) -> None:
    """Where the plan could not know: it had no config of a hub's model."""
    world = save_world(tmp_path)
    line = "good " * 100
    (tmp_path / "train.csv").write_text(f"text,label\n{line},pos\nbad,neg\n", encoding="utf-8")
    job = jobs(world, "k=0")[0]
    job["spec"]["recipe"]["max_length"] = 100
    said = "a text has 100 tokens and model './model' takes 64"
    assert_fails(store, job, "missing_input", said)


@pytest.mark.parametrize(
    ("graphs", "sizes"), [(False, [16, 8, 4, 2]), (True, [16, 16, 8, 4, 2])], ids=["", "graphs"]
)
def test_out_of_memory_is_tried_without_graphs_and_at_every_smaller_batch(
    graphs: bool, sizes: list[int], world: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **how: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(passes, "forward", full)
    monkeypatch.setattr(tries, "records_graphs", lambda _: graphs)
    job = jobs(world, "k=0", "recipe.compute=fast", *QUICK)[0]
    assert_fails(store, job, "out_of_memory", "a batch of 2 does not fit")
    tried = sorted(store.read_all("attempts").rows.to_pylist(), key=lambda row: row["started_at"])
    assert [row["micro_batch"] for row in tried] == sizes


def test_an_epochs_loss_is_the_mean_over_its_rows(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 rows in batches of 48: the last one has 16 rows and counts a third of the others."""
    batches: list[tuple[int, float]] = []  # rows and mean loss of each

    def noted(*args: Any) -> torch.Tensor:
        loss = train_step(*args)
        batches.append((len(args[3]), float(loss)))
        return loss

    monkeypatch.setattr(finetuning, "train_step", noted)
    job = jobs(world, "k=2", "recipe.epochs=1", "recipe.batch_size=48")[0]
    (found,) = run_trial(job)["record"]["train_losses"]
    counts, losses = zip(*batches, strict=True)
    assert counts == (48, 48, 48, 48, 48, 16)
    assert found == pytest.approx(np.average(losses, weights=counts), abs=1e-7)
    assert abs(found - np.mean(losses)) > 1e-5, "these batches can't tell the two means apart"


def test_a_trial_leaves_no_settings_behind(world: Path) -> None:
    def settings() -> tuple[Any, ...]:
        return (
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
            torch.backends.cuda.cudnn_sdp_enabled(),
        )

    before = settings()
    run_trial(jobs(world, "k=2", *QUICK)[0])
    assert settings() == before


def test_an_operation_without_a_deterministic_kernel_is_named_and_recorded(
    world: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where a trial is strict."""

    def refused(*args: Any, **how: Any) -> torch.Tensor:
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))  # one that refuses on a CPU
        return forward(*args, **how)

    monkeypatch.setattr(passes, "forward", refused)
    monkeypatch.setattr(trial, "_strict", lambda job, attempt: attempt.deterministic)
    with pytest.warns(UserWarning, match=r"put_.*deterministic"):
        record = done(store, jobs(world, "k=2", *QUICK)[0])
    assert record["deterministic"] is False
    (attempt,) = store.read_all("attempts").rows.to_pylist()
    assert (attempt["error_type"], attempt["final"]) == ("not_deterministic", False)
    assert "put_" in attempt["message"]


def test_new_memory_is_not_filled_and_never_read(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where PyTorch fills every new tensor with NaN, a trial's result is the same to the last bit:
    so no number that was not written before is in it, and the time for the filling can be saved."""
    job = jobs(world, "k=2", "recipe.epochs=1", "recipe.limit_train=64")[0]
    filled = []

    def seen(model: Any, *others: Any) -> Any:
        filled.append(torch.utils.deterministic.fill_uninitialized_memory)
        torch.utils.deterministic.fill_uninitialized_memory = wanted or filled[-1]
        return finetuning.finetune(model, *others)

    monkeypatch.setattr(trial, "finetune", seen)
    wanted = False
    plain = run_trial(job)
    wanted = True
    with_nan = run_trial(job)
    assert filled == [False, False]
    assert with_nan["predictions"] == plain["predictions"]
    assert with_nan["record"]["train_losses"] == plain["record"]["train_losses"]


def test_linear_decay_and_warm_up() -> None:
    plain = Recipe()
    assert [decay(plain, step, 4) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
    warm = dataclasses.replace(plain, warmup_ratio=0.5)
    assert [decay(warm, step, 4) for step in range(4)] == [0.0, 0.5, 1.0, 0.5]
    constant = dataclasses.replace(plain, schedule="constant", warmup_ratio=0.25)
    assert [decay(constant, step, 4) for step in range(4)] == [0.0, 1.0, 1.0, 1.0]


def test_weight_decay_spares_biases_and_norms(tmp_path: Path) -> None:
    model = load(save_model(tmp_path))
    groups = make_optimizer(model, Recipe(weight_decay=0.1)).param_groups
    assert [(group["weight_decay"], group["lr"]) for group in groups] == [(0.1, 2e-5), (0.0, 2e-5)]
    assert all(parameter.dim() > 1 for parameter in groups[0]["params"])
    assert all(parameter.dim() == 1 for parameter in groups[1]["params"])
    total = sum(parameter.numel() for group in groups for parameter in group["params"])
    assert total == model.num_parameters()
