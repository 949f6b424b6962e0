"""Adds artefacts to an exported folder: ONNX graphs, with a program that answers with them, and a
network for torch with fewer pieces. Each answers the whole dev set in a process of its own, a graph
by that program and without torch, before anything is published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from lp_sweep.orchestrator.export.card import templates
from lp_sweep.orchestrator.export.forms import form_of
from lp_sweep.orchestrator.export.places import (
    DevRows,
    RetrievedNetwork,
    Where,
    spec_of,
    vocabulary_texts,
)
from lp_sweep.orchestrator.export.verify import (
    AnswerPair,
    FolderAnswers,
    Nearness,
    RecordedAnswers,
    ShippedGraph,
    Verification,
    answered_by,
    ask,
    measured,
    verify,
)
from lp_sweep.orchestrator.options import ExportOptions
from lp_sweep.storage.networks import GRAPH
from lp_sweep.storage.printable import say
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.deploy.artefacts import GRAPHS, ShippedNetwork
from lp_sweep.trials.deploy.runner import Torch, answers
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.model.plainload import apart
from lp_sweep.trials.spec.specs import TrialSpec

PROGRAM = "predict.py"


def shipped_network(
    folder: Path,
    cut: Path,
    found: RetrievedNetwork,
    rows: DevRows,
    source: TaskSource,
    where: Where,
) -> ShippedNetwork:
    """The finished network in `folder`, to be shipped. `cut`: a folder for it with fewer pieces."""
    spec = spec_of(found.record)
    # each text of a row has a vector of its own
    texts = (apart(rows.texts),) if kind_of(spec.task).embeds else rows.texts
    return ShippedNetwork(
        folder,
        cut,
        texts=texts,
        max_length=spec.recipe.max_length,
        learned=lambda: vocabulary_texts(spec, source, where),
        kept=None if found.retrained else (where.store, found.record["trial_id"]),
    )


def add_graphs(
    network: ShippedNetwork,
    spec: TrialSpec,
    rows: DevRows,
    expected: RecordedAnswers,
    options: ExportOptions,
) -> tuple[Verification, list[ShippedGraph]]:
    """Writes the graphs of these formats, and `PROGRAM`, which answers with the smallest one.
    Returns how the answers in fp32 compare with the stored ones, and what was written.

    Raises UnsupportedModelError if torch can't write the network as ONNX, ExportError if it
    answers otherwise in fp32. In 8 bits or with fewer pieces it may: its own score says how much.
    """
    say(f"writing {GRAPH}, and answering the dev set with it in a new process, without torch")
    shipped = list[ShippedGraph]()

    def answered(graph: Path, folder: Path) -> tuple[FolderAnswers, AnswerPair]:
        found = _answers(folder, graph, spec, network.texts, rows.label_names)
        return found, form_of(spec.task).answers(spec, rows, found.values)

    whole = network.make("onnx")
    assert whole is not None
    same = verify(*answered(whole, network.folder), expected)
    folder = network.home(options.vocabulary)
    for format in sorted(options.graphs, key=[*GRAPHS].index):
        graph = network.make(format, options.vocabulary)
        assert graph is not None
        found = same
        if graph != whole:
            say(f"writing {graph.relative_to(folder)}, and answering the dev set with it")
            found = measured(answered(graph, folder)[1], expected)
        file, size = graph.relative_to(folder).as_posix(), graph.stat().st_size
        answers = (found.score, found.largest_difference, found.other_labels)
        shipped.append(ShippedGraph(file, size, *answers))
    if "onnx" not in options.graphs:
        (folder / GRAPH).unlink()
    return same, shipped


def check_cut(
    network: ShippedNetwork,
    spec: TrialSpec,
    rows: DevRows,
    expected: RecordedAnswers,
    asked: Mapping[str, Any],
) -> Verification:
    """Writes the network for torch with fewer pieces. The answers of its folder in a new process,
    asked as `ask` says, must be those that the whole network gives here for the same pieces: the
    stored ones are of other pieces. Raises ExportError."""
    form, kind = form_of(spec.task), kind_of(spec.task)
    told = {"loads": form.loads, "words": kind.words, "threads": torch.get_num_threads()}
    told["pooling"] = [spec.task.pooling] if kind.embeds else []
    network.make("torch", "task")
    here = answers(_Whole(network, {**asked, **told}), network.texts, words=kind.words)
    there = ask(network.cut, asked)
    own, pair = (form.answers(spec, rows, values) for values in (here.values, there.values))
    if own.scores and pair.scores:
        pair = pair._replace(scores=pair.scores._replace(stored=own.scores.found))
    same = expected._replace(score=measured(own, expected).score, nearness=Nearness(1e-4, False))
    return verify(there, pair._replace(stored=own.found), same)


class _Whole(Torch):
    """A network with all its pieces, asked for those of a cut tokenizer."""

    def __init__(self, network: ShippedNetwork, asked: dict[str, Any]) -> None:
        super().__init__(str(network.folder), asked)
        self._tokenizer = AutoTokenizer.from_pretrained(network.cut)
        self._old = torch.tensor(network.pieces.old)

    def tokens(self, columns: Any) -> Any:
        found = super().tokens(columns)
        found["input_ids"] = self._old[found["input_ids"]]
        return found


def _answers(
    folder: Path,
    graph: Path,
    spec: TrialSpec,
    texts: Sequence[Sequence[Any]],
    labels: Sequence[str],
) -> FolderAnswers:
    """The graph's own answers, by the program that is published with it."""
    (folder / PROGRAM).write_text(_program(folder, graph, spec, labels), encoding="utf-8")
    answer = answered_by(
        "lp_sweep.trials.deploy",
        "plainrun.py",
        folder,
        {"texts": texts},
        f"{PROGRAM} can't answer in a new process",
    )
    return FolderAnswers(answer["values"], {}, list(labels))


def _program(folder: Path, graph: Path, spec: TrialSpec, labels: Sequence[str]) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    padding: dict[str, Any] = {
        "direction": tokenizer.padding_side,
        "pad_id": tokenizer.pad_token_id,
        "pad_type_id": tokenizer.pad_token_type_id,
        "pad_token": tokenizer.pad_token,
    }
    return (
        templates()
        .get_template(f"{PROGRAM}.j2")
        .render(
            task=spec.task,
            labels=list(labels),
            file=graph.relative_to(folder).as_posix(),
            max_length=spec.recipe.max_length,
            truncation=tokenizer.truncation_side,
            padding=", ".join(f"{name}={json.dumps(value)}" for name, value in padding.items()),
        )
    )
