"""The options of `lp-sweep init`. Imports nothing heavy: `--help` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_args

import typer

from lp_sweep.storage.specs import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """`text` and `label` name columns of `data`; without a `kind` the labels tell it."""

    file: Annotated[Path, typer.Argument(help="File to write.")] = Path("sweep.yaml")
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="File of your rows: CSV, JSONL, Parquet, CoNLL; split if no --dev."
        ),
    ] = None
    text: Annotated[
        list[str], typer.Option("--text", help="Its column of texts; twice for pairs.")
    ] = field(default_factory=list)
    label: Annotated[
        list[str],
        typer.Option("--label", help="Its column of labels; several of 0 and 1 for multi_label."),
    ] = field(default_factory=list)
    group: Annotated[
        str | None,
        typer.Option("--group", help="Keep rows with the same value of this column together."),
    ] = None
    dev: Annotated[Path | None, typer.Option("--dev", help="A dev set of your own.")] = None
    kind: Annotated[
        TaskKind | None,
        typer.Option("--kind", metavar="KIND", help=f"{', '.join(get_args(TaskKind))}."),
    ] = None
    corpus: Annotated[
        Path | None,
        typer.Option("--corpus", help="For search, instead of --data: the documents (BEIR)."),
    ] = None
    queries: Annotated[
        Path | None, typer.Option("--queries", help="With --corpus: the queries.")
    ] = None
    qrels: Annotated[
        Path | None, typer.Option("--qrels", help="With --corpus: the judgements.")
    ] = None
    model: Annotated[
        str | None,
        typer.Option("--model", help="An encoder: hub id or folder (default bert-base-cased)."),
    ] = None
    full: Annotated[bool, typer.Option("--full", help="Write every key, commented.")] = False
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False
