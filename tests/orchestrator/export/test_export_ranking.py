"""`lp-sweep export` of a cross-encoder: a folder of Sentence Transformers and of transformers."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

from lp_sweep.storage.errors import ExportError
from lp_sweep.trials.plainload import load, logits_of
from tests.support.exportworld import World, in_this_process, runs, two_networks
from tests.trials.test_multi_label import full_first
from tests.trials.test_ranking import ranking_world

LIBRARIES = ["sentence_transformers", "transformers"]


@pytest.fixture(scope="module", params=["bce", "listwise"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Networks of four layers and of two. The candidates of a query do not follow each other."""
    folder = tmp_path_factory.mktemp("cross-encoders")
    file = ranking_world(folder / "world", {"loss": request.param})
    dev = file.parent / "dev.parquet"
    table = pq.read_table(dev)
    pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), dev)
    return two_networks(file, full_first(file))


def test_the_folder_ranks_as_in_the_sweep(made: World, tmp_path: Path) -> None:
    """The export itself checks the folder in a process of its own."""
    out = tmp_path / "out"
    done = made.export(made.kept, out)
    assert done.verified.score == pytest.approx(done.verified.recorded_score)
    assert done.interval is not None
    model, missing = load(out, "AutoModelForSequenceClassification")
    assert not missing
    table = pq.read_table(made.file.parent / "dev.parquet").to_pydict()
    texts = [table["query"], table["passage"]]
    logits = logits_of(model, AutoTokenizer.from_pretrained(out), texts, 32)[:, 0]
    of_query: dict[int, list[float]] = {}
    for name, logit in zip(table["id"], logits.tolist(), strict=True):
        of_query.setdefault(name, []).append(logit)
    stored = sorted(made.store.read("predictions", made.kept), key=lambda row: row["example"])
    for found, row in zip(of_query.values(), stored, strict=True):
        assert found == pytest.approx(row["scores"], abs=1e-5)
    config = json.loads((out / "config.json").read_text())
    assert len(config["id2label"]) == 1
    listwise = '"loss":"listwise"' in made.store.read("trials", made.kept)[0]["spec"]
    after = config["sentence_transformers"]["activation_fn"].rpartition(".")[2]
    assert after == ("Identity" if listwise else "Sigmoid")
    assert json.loads((out / "tokenizer_config.json").read_text())["model_max_length"] == 32


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_code_of_the_card_runs(
    made: World, tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(library) is None:
        pytest.skip("sentence-transformers is not installed: pip install sentence-transformers")
    in_this_process(monkeypatch)
    out = tmp_path / "out"
    made.export(made.kept, out)
    card = ModelCard.load(out / "README.md")
    assert card.data.library_name == "sentence-transformers"
    assert card.data.pipeline_tag == "text-ranking"
    (result,) = card.data.eval_results
    assert (result.task_type, result.metric_type) == ("text-ranking", "ndcg@10")
    code = dict(
        zip(LIBRARIES, re.findall(r"```python\n(.*?)```", card.text, re.DOTALL), strict=True)
    )
    runs(code[library], out)


def test_another_network_is_refused(
    made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    made.refuses_swapped_layers(tmp_path)


def test_predictions_of_other_rows_are_refused(
    made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    mine = made.copy(tmp_path)
    rows = mine.store.read("predictions", mine.kept)
    mine.store.remove(f"predictions/{mine.kept}.parquet")
    mine.store.put("predictions", mine.kept, rows[:-1])
    with pytest.raises(ExportError, match="are not of the dev rows"):
        mine.export(mine.kept, tmp_path / "out")
