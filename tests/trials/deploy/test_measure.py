"""Artefacts of one task, measured side by side: their answers, times, sizes, and what fails."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from lp_sweep.storage.errors import ExportError
from lp_sweep.trials.deploy import measure, runner
from lp_sweep.trials.deploy.measure import Artefact, ArtefactMeasurement, Workload
from lp_sweep.trials.model.plainload import embeddings_of, logits_of, word_logits_of
from tests.support.graphs import in_this_process, run_here, save_graph
from tests.support.kindworlds import tagged
from tests.support.toyworld import WORDS, rows, save_model

TEXTS = [[row["text"] for row in rows(40, 2)]]
SENTENCES = [[row["tokens"] for row in tagged(40, 2)]]
TABLE = np.random.default_rng(0).normal(size=(len(WORDS), 3))
ASKED = Workload(
    texts=TEXTS,
    singles=len(TEXTS[0]),
    loads="AutoModelForSequenceClassification",
    max_length=9,
    seconds=0.02,
)
TAGGING = replace(
    ASKED, texts=SENTENCES, loads="AutoModelForTokenClassification", words=True, singles=40
)
EMBEDDING = replace(ASKED, loads="AutoModel", pooling=["mean"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with its tokenizer, and graphs."""
    made = save_model(tmp_path_factory.mktemp("network"), depth=1)
    AutoModelForSequenceClassification.from_pretrained(made).save_pretrained(made)
    save_graph(made / "vectors.onnx", TABLE, "sentence_embedding")
    save_graph(made / "tags.onnx", TABLE, "logits")
    save_graph(made / "fixed.onnx", TABLE, "sentence_embedding", rows=runner.BATCH)
    return made


def found(artefacts: list[Artefact], asked: Workload) -> ArtefactMeasurement:
    """That of the last."""
    measured = measure.measure(artefacts, asked)[artefacts[-1].id]
    assert isinstance(measured, ArtefactMeasurement), measured
    return measured


def by_hand(text: str) -> Any:
    """The sum of the rows of a text's tokens, of which there are at most nine."""
    ids = [WORDS.index(word) for word in text.split()[:7]]
    return TABLE[[2, *ids, 3]].sum(axis=0)


def test_processes_measure_torch_and_a_graph_side_by_side(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one test that starts them: a server with a graph loads no torch, and takes less memory.
    The output of a graph need not be that of torch."""
    asked = replace(ASKED, seconds=0.3)
    network = Artefact(id="t", name="a network", folder=folder)
    graph = Artefact(id="g", folder=folder, graph=folder / "vectors.onnx", scored=False)
    gone = Artefact(id="x", folder=folder, graph=folder / "gone.onnx")
    made = measure.measure([network, graph, gone], asked)
    assert "a network: answering 40 texts" in capsys.readouterr().err
    torch, onnx = made["t"], made["g"]
    assert isinstance(made["x"], str)
    assert "gone.onnx" in made["x"]
    assert isinstance(torch, ArtefactMeasurement)
    assert isinstance(onnx, ArtefactMeasurement)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    expected = logits_of(model, AutoTokenizer.from_pretrained(folder), TEXTS, 9)
    assert torch.answers is not None
    np.testing.assert_allclose(torch.answers.values, expected, atol=1e-5)
    assert onnx.answers is None
    for each in (torch, onnx):
        assert 0 < each.tokenizer_ms < each.ms <= each.ms_p95 < 1e4
        assert each.texts_per_second > 0
        assert (each.rounds, each.pieces) == (torch.rounds, len(WORDS))
    assert torch.rounds >= 5
    assert 2e7 < onnx.peak_memory_bytes < torch.peak_memory_bytes / 2
    weights = (folder / "model.safetensors").read_bytes()
    assert torch.sha256 == hashlib.sha256(weights).hexdigest()
    tokenizer = sum((folder / name).stat().st_size for name in measure._TOKENIZER)
    assert onnx.bytes == tokenizer + (folder / "vectors.onnx").stat().st_size
    assert torch.bytes == tokenizer + len(weights) + (folder / "config.json").stat().st_size


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


@pytest.mark.usefixtures("here")
def test_a_graph_answers_each_text_in_its_row(folder: Path) -> None:
    graph = Artefact(id="g", folder=folder, graph=folder / "vectors.onnx")
    answers = found([graph], ASKED).answers
    assert answers is not None
    expected = np.array([by_hand(text) for text in TEXTS[0]])
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(answers.values, expected, rtol=1e-5)


def test_a_graph_answers_row_by_row(folder: Path, tmp_path: Path) -> None:
    """As predict.py is checked: in 8 bits an answer depends on its batch. This one takes one."""
    graph = save_graph(tmp_path / "one.onnx", TABLE, "sentence_embedding", rows=1)
    one = runner.Onnx(str(folder), str(graph), asdict(ASKED))
    answers = runner.answers(one, TEXTS, words=False).values
    np.testing.assert_allclose(answers, [by_hand(text) for text in TEXTS[0]], rtol=1e-5)


@pytest.mark.usefixtures("here")
def test_torch_gives_the_vectors_that_a_plain_program_gives(folder: Path) -> None:
    answers = found([Artefact(id="t", folder=folder)], EMBEDDING).answers
    assert answers is not None
    plain = AutoModel.from_pretrained(folder).eval()
    expected = embeddings_of(plain, AutoTokenizer.from_pretrained(folder), TEXTS, 9, "mean")
    np.testing.assert_allclose(answers.values, expected, atol=1e-5)


@pytest.mark.usefixtures("here")
def test_tags_are_those_of_first_tokens_with_their_words(folder: Path) -> None:
    """Nine tokens do not hold each sentence whole: the words that are cut off have no answer."""
    network = Artefact(id="t", folder=folder)
    graph = Artefact(id="g", folder=folder, graph=folder / "tags.onnx")
    made = measure.measure([network, graph], TAGGING)
    torch, onnx = made["t"], made["g"]
    assert isinstance(torch, ArtefactMeasurement)
    assert isinstance(onnx, ArtefactMeasurement)
    assert torch.answers is not None
    assert onnx.answers is not None
    places = [(row, word) for row, words in enumerate(SENTENCES[0]) for word in range(len(words))]
    expected = np.array([place for place in places if place[1] < 7])
    assert len(expected) < len(places)
    for answers in (torch.answers, onnx.answers):
        np.testing.assert_array_equal(answers.places, expected)
    ids = [WORDS.index(SENTENCES[0][row][word]) for row, word in expected]
    np.testing.assert_allclose(onnx.answers.values, TABLE[ids], rtol=1e-5)
    plain = AutoModelForTokenClassification.from_pretrained(folder).eval()
    assert torch.answers.values.shape == (
        len(word_logits_of(plain, AutoTokenizer.from_pretrained(folder), SENTENCES[0], 9)),
        2,
    )


@pytest.mark.usefixtures("here")
def test_what_can_not_answer_has_a_reason_and_harms_no_other(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    graphs = {"fixed": folder / "fixed.onnx", "broken": tmp_path / "broken.onnx"}
    artefacts = [Artefact(id=id_, folder=folder, graph=path) for id_, path in graphs.items()]
    good = Artefact(id="g", folder=folder, graph=folder / "vectors.onnx")
    made = measure.measure([artefacts[0], good, artefacts[1]], ASKED)
    assert isinstance(made["g"], ArtefactMeasurement)
    assert "dimension" in str(made["fixed"])  # it takes 32 rows, and no single one
    assert "broken.onnx" in str(made["broken"])


def test_a_file_that_changes_meanwhile_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = save_graph(tmp_path / "own.onnx", TABLE, "sentence_embedding")

    def changing(program: Any, request: Any, *_: Any, **__: Any) -> Any:
        if not request["alone"]:
            save_graph(graph, TABLE, "sentence_embedding", scale=2.0)
        return run_here(program, request)

    monkeypatch.setattr(measure, "in_new_process", changing)
    [why] = measure.measure([Artefact(id="g", folder=folder, graph=graph)], ASKED).values()
    assert "own.onnx was changed" in str(why)


def test_all_take_turns_with_the_same_rows_and_each_is_first_in_turn() -> None:
    """The first group of a turn is not counted."""
    taken: list[tuple[str, Any]] = []

    class Fake(runner.Onnx):
        def __init__(self, name: str) -> None:
            self.name = name

        def tokens(self, columns: Any) -> Any:
            taken.append((self.name, columns))

        def answer(self, tokens: Any) -> np.ndarray:
            return np.zeros(1)

    fakes: dict[int, Any] = {number: Fake("abc"[number]) for number in range(3)}
    rounds, times = runner._turns(fakes, [["one", "two", "three"]], 2, [1, 1, 4], 0.0)
    assert rounds == 5
    assert [len(found) for found in times.values()] == [2 * rounds] * 3
    turns = [taken[at : at + 3] for at in range(0, len(taken), 3)]
    assert [turn[0][0] for turn in turns[::3]] == ["a", "b", "c", "a", "b"]
    for at in range(0, len(turns), 3):
        assert sorted(turn[0][0] for turn in turns[at : at + 3]) == ["a", "b", "c"]
        first, *others = ([rows for _, rows in turn] for turn in turns[at : at + 3])
        assert others == [first, first]
        assert [len(rows[0]) for rows in first] == [1, 1, 4]
    assert {text for _, [column] in taken for text in column} == {"one", "two"}


def test_a_program_that_answers_gets_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_CACHE", "AWS_SECRET_ACCESS_KEY")
    for name in names:
        monkeypatch.setenv(name, "a-secret")
    program = ["-c", "import os; print(*os.environ.values()); raise SystemExit('done')"]
    said: list[str] = []
    with pytest.raises(ExportError, match="done"):
        measure.in_new_process(program, {}, said.append)
    assert said
    assert "a-secret" not in " ".join(said)
