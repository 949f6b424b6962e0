"""Adds ONNX graphs to an exported folder, with a program that answers with them: each graph answers
the whole dev set in a process without torch, by that program, before anything is published."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.export.card import templates
from lp_sweep.orchestrator.export.forms import form_of
from lp_sweep.orchestrator.export.places import DevRows
from lp_sweep.orchestrator.export.verify import (
    FolderAnswers,
    RecordedAnswers,
    ShippedGraph,
    Verification,
    in_new_process,
    measured,
    verify,
)
from lp_sweep.orchestrator.options import ShippedFormat
from lp_sweep.storage.errors import ExportError
from lp_sweep.storage.printable import say
from lp_sweep.trials.spec.specs import TaskDefinition, TrialSpec

PROGRAM = "predict.py"
_VECTORS = ("embedding", "retrieval")  # the kinds of task whose answers are vectors


def add_graphs(
    folder: Path,
    spec: TrialSpec,
    rows: DevRows,
    expected: RecordedAnswers,
    formats: Collection[ShippedFormat],
) -> tuple[Verification, list[ShippedGraph]]:
    """Writes the graphs of these formats, and `PROGRAM`, which answers with the smallest one.
    Returns how the answers in fp32 compare with the stored ones, and what was written.

    Raises UnsupportedModelError if torch can't write the network as ONNX, ExportError if it
    answers otherwise in fp32. In 8 bits it may: its own score says how much.
    """
    from lp_sweep.trials.deploy.graph import GRAPH, write_graph
    from lp_sweep.trials.deploy.quantise import INT8, int8

    say(f"writing {GRAPH}, and answering the dev set with it in a new process, without torch")
    texts = rows.texts
    if spec.task.kind in _VECTORS:  # each text of a row has its own
        texts = ([text for row in zip(*texts, strict=True) for text in row],)
    graph = write_graph(folder, texts, spec.recipe.max_length)
    found = _answers(folder, GRAPH, spec, texts, rows.label_names)
    pair = form_of(spec.task).answers(spec, rows, found.values)
    same, shipped = verify(found, pair, expected), list[ShippedGraph]()
    if ShippedFormat.onnx in formats:
        shipped.append(_shipped(folder, GRAPH, same))
    if ShippedFormat.onnx_int8 in formats:
        say(f"writing {INT8}, and answering the dev set with it")
        int8(graph, folder / INT8)
        found = _answers(folder, INT8, spec, texts, rows.label_names)
        pair = form_of(spec.task).answers(spec, rows, found.values)
        shipped.append(_shipped(folder, INT8, measured(pair, expected)))
    if ShippedFormat.onnx not in formats:
        graph.unlink()
    return same, shipped


def _shipped(folder: Path, file: Path, found: Verification) -> ShippedGraph:
    return ShippedGraph(
        file.as_posix(),
        (folder / file).stat().st_size,
        found.score,
        found.largest_difference,
        found.other_labels,
    )


def _answers(
    folder: Path, file: Path, spec: TrialSpec, texts: Sequence[Sequence[Any]], labels: Sequence[str]
) -> FolderAnswers:
    """The graph's own answers, by the program that is published with it."""
    (folder / PROGRAM).write_text(_program(folder, file, spec, labels), encoding="utf-8")
    answer = in_new_process(
        "lp_sweep.trials.deploy",
        "plainrun.py",
        folder,
        {"texts": texts},
        f"{PROGRAM} can't answer in a new process",
    )
    return FolderAnswers(answer["values"], {}, list(labels))


def _program(folder: Path, file: Path, spec: TrialSpec, labels: Sequence[str]) -> str:
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").is_file():
        raise ExportError(
            f"{PROGRAM} reads tokenizer.json, and this tokenizer has none: load it with "
            "AutoTokenizer, and save_pretrained into the model's folder, or export --as torch."
        )
    tokenizer, task = AutoTokenizer.from_pretrained(folder), spec.task
    padding: dict[str, Any] = {
        "direction": tokenizer.padding_side,
        "pad_id": tokenizer.pad_token_id,
        "pad_type_id": tokenizer.pad_token_type_id,
        "pad_token": tokenizer.pad_token,
    }
    pairs = len(task.text_columns) > 1 and task.kind not in _VECTORS
    return (
        templates()
        .get_template(f"{PROGRAM}.j2")
        .render(
            kind=task.kind,
            pairs=pairs,
            labels=list(labels),
            file=file.as_posix(),
            max_length=spec.recipe.max_length,
            truncation=tokenizer.truncation_side,
            padding=", ".join(f"{name}={json.dumps(value)}" for name, value in padding.items()),
            prompts=[text for text in (task.query_prompt, task.document_prompt) if text],
            shape=_shape(task),
        )
    )


def _shape(task: TaskDefinition) -> str:
    if task.kind == "tokens":
        return "(words, tags) logits of each row, a list of words."
    if task.kind in _VECTORS:
        return "(texts, numbers) vectors."
    return "(rows, classes) logits."
