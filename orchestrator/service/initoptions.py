"""The options of `lp-sweep init`. Imports nothing heavy: `--help` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_args

from typer import Argument, Option

from lp_sweep.trials.spec.specs import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """`text` and `label` name columns of `data`; without a `kind` the labels tell it."""

    file: Annotated[Path, Argument(help="File to write.")] = Path("sweep.yaml")
    data: Annotated[
        Path | None,
        Option("--data", help="File of your rows: CSV, JSONL, Parquet, CoNLL; split if no --dev."),
    ] = None
    text: Annotated[list[str], Option("--text", help="Its column of texts; twice for pairs.")] = (
        field(default_factory=list)
    )
    label: Annotated[
        list[str],
        Option("--label", help="Its column of labels; several of 0 and 1 for multi_label."),
    ] = field(default_factory=list)
    group: Annotated[
        str | None, Option("--group", help="Keep rows with the same value of this column together.")
    ] = None
    dev: Annotated[Path | None, Option("--dev", help="A dev set of your own.")] = None
    kind: Annotated[
        TaskKind | None, Option("--kind", metavar="KIND", help=f"{', '.join(get_args(TaskKind))}.")
    ] = None
    corpus: Annotated[
        Path | None, Option("--corpus", help="For search, instead of --data: the documents (BEIR).")
    ] = None
    queries: Annotated[Path | None, Option("--queries", help="With --corpus: the queries.")] = None
    qrels: Annotated[Path | None, Option("--qrels", help="With --corpus: the judgements.")] = None
    model: Annotated[
        str | None,
        Option("--model", help="An encoder: hub id or folder (default bert-base-cased)."),
    ] = None
    full: Annotated[bool, Option("--full", help="Write every key, commented.")] = False
    force: Annotated[bool, Option("--force", help="Overwrite files.")] = False
