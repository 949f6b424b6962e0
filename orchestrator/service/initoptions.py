"""The options of `lp-sweep init`. Imports nothing heavy: `--help` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

from lp_sweep.orchestrator.flags import Flag
from lp_sweep.storage.specs import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """`text` and `label` name columns of `data`; without a `kind` the labels tell it."""

    file: Annotated[Path, Flag("File to write.", argument=True)] = Path("sweep.yaml")
    data: Annotated[
        Path | None, Flag("File of your rows: CSV, JSONL, Parquet, CoNLL; split if no --dev.")
    ] = None
    text: Annotated[
        Sequence[str], Flag("Its column of texts; twice for pairs.", typed=list[str], read=tuple)
    ] = ()
    label: Annotated[
        Sequence[str],
        Flag(
            "Its column of labels; several of 0 and 1 for multi_label.", typed=list[str], read=tuple
        ),
    ] = ()
    group: Annotated[str | None, Flag("Keep rows with the same value of this column together.")] = (
        None
    )
    dev: Annotated[Path | None, Flag("A dev set of your own.")] = None
    kind: Annotated[TaskKind | None, Flag(f"{', '.join(get_args(TaskKind))}.", metavar="KIND")] = (
        None
    )
    corpus: Annotated[Path | None, Flag("For search, instead of --data: the documents (BEIR).")] = (
        None
    )
    queries: Annotated[Path | None, Flag("With --corpus: the queries.")] = None
    qrels: Annotated[Path | None, Flag("With --corpus: the judgements.")] = None
    model: Annotated[
        str | None, Flag("An encoder: hub id or folder (default bert-base-cased).")
    ] = None
    full: Annotated[bool, Flag("Write every key, commented.")] = False
    force: Annotated[bool, Flag("Overwrite files.")] = False
