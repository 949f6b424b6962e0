"""`lp-sweep export` of a bi-encoder: a folder of Sentence Transformers and of transformers."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from lp_sweep.orchestrator.engine.course import Recorder
from lp_sweep.orchestrator.export.card import template_of
from lp_sweep.orchestrator.export.trialfolder import ExportResult
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.service import export as service
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.errors import ExportError
from lp_sweep.storage.networks import changed_files
from lp_sweep.storage.store import Store
from lp_sweep.trials.fast.forward import pooled
from lp_sweep.trials.model.plainload import embeddings_of, load
from lp_sweep.trials.spec.specs import Recipe, TaskDefinition, TrialSpec
from tests.support.exportworld import World, in_this_process
from tests.support.families import FAMILIES, save_pretrained
from tests.support.kindworlds import embedding_world, modules, search_world, sentence_folder
from tests.support.plain_jobs import execute
from tests.support.program import python
from tests.support.tiny import tiny_tokenizer
from tests.support.toyworld import WORDS, jobs

MODULES = ["Transformer", "Pooling", "Normalize"]


class Made(dict[str, str]):
    """Trials by what they are: full, untrained, direct."""

    world: World

    def export(self, which: str, out: Path, **options: Any) -> ExportResult:
        return self.world.export(self[which], out, **options)


def run(file: Path, store: Store) -> Made:
    made = Made()
    for job in sorted(jobs(file), key=lambda job: job["kind"]):  # the teacher's profile first
        kept = {"keep": "all"} if job["kind"] == "trial" else {}
        assert execute({**job, **kept}, store.location)["status"] == "done"
        if job["kind"] == "trial":
            full = len(job["spec"]["kept_layers"]) == 4
            made["full" if full else job["spec"]["procedure"]] = job["id"]
    made.world = World(file, store, made["direct"], made["full"])
    return made


def full_of(file: Path, folder: Path) -> World:
    """The kept network of all layers alone."""
    (job,) = (job for job in jobs(file) if len(job["spec"].get("kept_layers", ())) == 4)
    store = Store(folder / "store", create=True)
    assert execute({**job, "keep": "all"}, store.location)["status"] == "done"
    return World(file, store, job["id"], job["id"])


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


def with_modules(folder: Path) -> None:
    """As a folder of Sentence Transformers is, of two versions of it."""
    listed = modules("Transformer", "Pooling", "Normalize")
    listed[1]["type"] = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
    (folder / "modules.json").write_text(json.dumps(listed))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("bi-encoders")
    file = embedding_world(folder / "world")
    with_modules(file.parent / "model")
    return run(file, Store(folder / "store", create=True))


@pytest.fixture(scope="module")
def searching(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("search")
    return run(search_world(folder / "world"), Store(folder / "store", create=True))


def cosines(folder: Path, file: Path) -> np.ndarray:
    """Those of the dev pairs; their vectors are computed one text at a time."""
    model, missing = load(folder, "AutoModel")
    assert not missing
    tokenizer = AutoTokenizer.from_pretrained(folder)
    table = pq.read_table(file.parent / "pairs.parquet")
    one, other = (
        np.concatenate([embeddings_of(model, tokenizer, [[t]], 32, "mean") for t in texts])
        for texts in (table["a"].to_pylist(), table["b"].to_pylist())
    )
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((one * other).sum(1) / lengths)


UNTRAINED = "untrained, with the weights"
WORDS_OF = {
    "full": ["All 4 layers", UNTRAINED, "| procedure | untrained |"],
    "untrained": ["Layers 1-2 of the 4", UNTRAINED, "| all 4 layers, untrained"],
    "direct": [
        "Layers 1-2 of the 4",
        "without labels to imitate",
        "| teacher | model, all layers, untrained (K=0) |",
        "| loss | 1 − cosine",
        "| learning rate |",
    ],
}


@pytest.mark.parametrize("which", WORDS_OF)
def test_the_folder_is_a_bare_encoder_with_its_modules(
    made: Made, tmp_path: Path, which: str
) -> None:
    out, world = tmp_path / "out", made.world
    done = made.export(which, out)
    stored = sorted(world.store.read("predictions", made[which]), key=lambda row: row["example"])
    expected = [row["prediction"] for row in stored]
    assert cosines(out, Path(world.file)) == pytest.approx(expected, abs=1e-5)
    assert done.verified.examples == len(expected)
    assert done.verified.score == pytest.approx(done.verified.recorded_score)
    assert not [name for name in load_file(out / "model.safetensors") if "classifier" in name]
    assert not changed_files(out)

    def told(name: str) -> Any:
        return json.loads((out / name).read_text())

    assert "problem_type" not in told("config.json")
    assert [module["type"].rpartition(".")[2] for module in told("modules.json")] == MODULES
    assert all((out / module["path"]).is_dir() for module in told("modules.json"))
    pooling = told("1_Pooling/config.json")
    assert pooling["word_embedding_dimension"] == 32
    assert [key for key, value in pooling.items() if value is True] == ["pooling_mode_mean_tokens"]
    assert told("sentence_bert_config.json")["max_seq_length"] == 32
    assert told("config_sentence_transformers.json")["similarity_fn_name"] == "cosine"

    card = ModelCard.load(out / "README.md")
    assert card.data.library_name == "sentence-transformers"
    assert card.data.pipeline_tag == "sentence-similarity"
    (result,) = card.data.eval_results
    assert (result.task_type, result.metric_type) == ("sentence-similarity", "spearmanr")
    for words in WORDS_OF[which]:
        assert words in card.text, words
    if which != "direct":
        assert "| learning rate |" not in card.text
    (record,) = world.store.read("trials", made[which])
    assert record["params_total"] == sum(
        tensor.size for tensor in load_file(out / "model.safetensors").values()
    )


def blocks(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["sentence_transformers", "transformers"])
def test_the_code_of_the_card_runs(made: Made, tmp_path: Path, library: str) -> None:
    """With both libraries it gives the same vectors, of length 1 as the model's own."""
    if find_spec(library) is None:
        pytest.skip("sentence-transformers is not installed: pip install sentence-transformers")
    out = tmp_path / "out"
    made.export("direct", out)
    code = dict(zip(["sentence_transformers", "transformers"], blocks(_card(out)), strict=True))
    program = f"{code[library]}\nimport json; print(json.dumps(vectors.tolist()))"
    found = np.array(json.loads(python(program, cwd=out).stdout.splitlines()[-1]))
    expected = _vectors(out, ["A cat sleeps.", "A cat is asleep."], "mean")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def _card(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def _vectors(folder: Path, texts: list[str], pooling: str) -> np.ndarray:
    model, _ = load(folder, "AutoModel")
    return embeddings_of(model, AutoTokenizer.from_pretrained(folder), [texts], 16, pooling)


@pytest.mark.parametrize("family", ["bert", "xlnet"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_card_and_check_pool_as_a_trial_does(
    family: str, pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLNet's padding is on the left."""
    save_pretrained(FAMILIES[family], 2, tmp_path)
    words = [*WORDS, "A", "cat", "sleeps.", "is", "asleep."]
    tokenizer = tiny_tokenizer(words[:40], types=family == "bert", xlnet=family == "xlnet")
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    task = TaskDefinition(text_columns=("a", "b"), kind="embedding", pooling=pooling)
    spec = TrialSpec(
        model_fingerprint="m", kept_layers=(1,), task=task, data_fingerprint="d", seed=1,
        recipe=Recipe(),
    )  # fmt: skip
    template, names = template_of(task), dict[str, Any]()
    context = {"spec": spec, "task": task, "modules": ["Pooling"], "max_length": 16}
    usage = "".join(template.blocks["usage"](template.new_context(context)))
    exec(blocks(usage)[1], names)
    expected = pooled(names["states"], names["mask"], pooling)
    torch.testing.assert_close(names["vectors"], expected)
    found = _vectors(tmp_path, names["texts"], pooling)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_dense_modules_are_exported(tmp_path: Path) -> None:
    file = embedding_world(tmp_path / "world")
    model, out = file.parent / "model", tmp_path / "out"
    sentence_folder(model, "Dense", "Normalize", pooling_mode=["mean"])
    world = full_of(file, tmp_path)
    done = world.export(world.kept, out)
    assert done.verified.score == pytest.approx(done.verified.recorded_score)
    names = [module["path"] for module in json.loads((out / "modules.json").read_text())]
    assert names == ["", "1_Pooling", "2_Dense", "3_Normalize"]
    weights = "2_Dense/model.safetensors"
    assert (out / weights).read_bytes() == (model / weights).read_bytes()
    assert "With the model's own Dense." in _card(out)
    sentence_folder(model, "Dense", width=6)
    with pytest.raises(ExportError, match="Dense"):
        world.export(world.kept, tmp_path / "other")


def test_another_network_is_refused(made: Made, searching: Made, tmp_path: Path) -> None:
    made.world.refuses_swapped_layers(tmp_path / "pairs", "cosine")
    searching.world.refuses_swapped_layers(tmp_path / "search", "cosine")


def test_the_best_of_a_sweep(made: Made, tmp_path: Path) -> None:
    world = made.world.copy(tmp_path)
    Recorder(world.store, part=False, command="").cells(
        make_plan(resolve(load_sweep(Path(world.file))), WorkHistory.nothing())
    )
    done = service.export_trial(
        service.ExportOptions(
            best=True, task="sim", within=200.0, out=tmp_path / "out", store=world.store.location,
            file=str(world.file), cache_dir=world.cache, offline=True,
        )
    )  # fmt: skip
    assert done.kept_layers == [1, 2]
    assert "2 of 4 layers are enough" in _card(tmp_path / "out")


def test_a_folder_that_searches_as_the_trial_did(searching: Made, tmp_path: Path) -> None:
    done = searching.export("direct", tmp_path / "out")
    assert done.verified.examples == 2 * 9  # relevant documents
    assert done.verified.score == pytest.approx(done.verified.recorded_score)
    assert done.interval is not None
    assert done.interval[0] < done.score < done.interval[1]
    card = _card(tmp_path / "out")
    for words in ("| ndcg@10 on queries |", "queries and documents", "similarity"):
        assert words in card, words
    assert "majority" not in card
    assert not (tmp_path / "out" / "2_Normalize").exists(), "the model has none"


def test_prompts_and_the_dot_product_are_in_the_folder(tmp_path: Path) -> None:
    """Of an encoder whose classifier has no pooler."""
    file = search_world(tmp_path / "world")
    shutil.rmtree(file.parent / "model")
    save_pretrained(FAMILIES["roberta"], 4, file.parent / "model")
    tiny_tokenizer(WORDS, types=False).save_pretrained(file.parent / "model")
    with_modules(file.parent / "model")
    own = "kind: embedding\n  similarity: dot\n  prompts: {query: 'w1 ', document: 'w2 '}"
    file.write_text(file.read_text().replace("kind: embedding", own))
    out, world = tmp_path / "out", full_of(file, tmp_path)
    done = world.export(world.kept, out)
    assert done.verified.score == pytest.approx(done.verified.recorded_score)
    told = json.loads((out / "config_sentence_transformers.json").read_text())
    assert told["prompts"] == {"query": "w1 ", "document": "w2 "}
    assert told["similarity_fn_name"] == "dot"
    assert not (out / "2_Normalize").exists(), "the lengths count"
    assert not [name for name in load_file(out / "model.safetensors") if "pooler" in name]
    card = _card(out)
    assert "normalize" not in card
    for words in ("dot products", '"w2 " + text', 'prompt_name="document"', "vectors[0] @ "):
        assert words in card, words
