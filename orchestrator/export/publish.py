"""Publishes the current results of a store as two tables.

Only the columns listed here leave the store: no path, host, command, text of an error or of an
example, nor a column that a later version adds.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.export.card import TAGS, escaped, shown_name
from lp_sweep.orchestrator.export.folder import ABOUT, check_free, check_may_push, push, staged
from lp_sweep.orchestrator.export.trialfolder import PUBLISHED
from lp_sweep.storage.errors import PreflightError, SpecError, StoreError
from lp_sweep.storage.places import expanded
from lp_sweep.storage.store import Store

_HUB = "hf://datasets/"
_DELTA = "delta:"
_CELLS = (
    "sweep", "model", "depth", "procedure", "feed_forward", "strategy", "k", "threshold", "task",
    "seed", "kept_layers", "dropped_layers", "n_kept", "trial_id", "state", "metric", "score",
    "score_full", "change", "error_type",
)  # fmt: skip
_CARD = """\
---
{front}
---

# Results of lp-sweep: {sweeps}

How well fine-tuned encoders score with some of their layers dropped.

| table | rows | a row is |
|---|---|---|
| `cells` | {cells} | one point of what a sweep asked for: model, strategy, K, task, seed; its \
state, its score and its change against all layers, in points |
| `trials` | {trials} | one network trained once: layers, recipe, data by fingerprint, scores by \
epoch, sizes, times, device |

```python
from datasets import load_dataset

cells = load_dataset({name}, "cells", split="train")
trials = load_dataset({name}, "trials", split="train")
```

Cells share trials (`trial_id`). Scores are of dev sets, after the last epoch. A cell without a \
score says why in `state`. Written by `lp-sweep publish`.
"""


class Published(NamedTuple):
    """The result, as `--json` prints it."""

    to: str
    cells: int
    trials: int


class _Tables(NamedTuple):
    cells: pa.Table
    trials: pa.Table


def publish(
    store: Store,
    to: str,
    *,
    sweep: str | None = None,
    private: bool = False,
    force: bool = False,
    offline: bool = False,
) -> Published:
    """Publishes to a data set of the hub, a folder, or `delta:FOLDER`. `force` overwrites an
    earlier folder; the hub and Delta keep earlier versions. Raises LpSweepError."""
    repo_id = _repository(to, private=private, offline=offline)
    if to.startswith(_DELTA):
        return _as_delta(store, to, sweep)
    if repo_id is None:
        out = expanded(to)
        check_free(out, force=force, option="--to")
        tables = _tables(store, sweep)
        with staged(out, force=force) as folder:
            _write(folder, tables, out.name)
        return Published(str(out), *map(len, tables))
    tables = _tables(store, sweep)
    with tempfile.TemporaryDirectory() as made:
        _write(Path(made), tables, repo_id)
        again = "Publish again with the same command"
        address = push(Path(made), repo_id, private=private, kind="dataset", again=again)
    return Published(address, *map(len, tables))


def _repository(to: str, *, private: bool, offline: bool) -> str | None:
    """The data set of the hub; None for a folder. Raises SpecError for any other place."""
    if to.startswith(_HUB):
        repo_id = to.removeprefix(_HUB)
        if repo_id.count("/") != 1:
            raise SpecError(f"--to {to}: name a data set as {_HUB}USER/NAME.")
        check_may_push(repo_id, offline=offline, option="--to")
        return repo_id
    if re.match(r"\w+://", to.removeprefix(_DELTA)):
        raise SpecError(f"--to {to}: give {_HUB}USER/NAME, a folder, or {_DELTA}FOLDER.")
    if private:
        raise SpecError("--private is for a data set of the hub.")
    return None


def _tables(store: Store, sweep: str | None) -> _Tables:
    with open_views(store, sweep=sweep, only=("cells",)) as catalog:
        cells = catalog.query(f"SELECT {', '.join(_CELLS)} FROM cells ORDER BY sweep, cell")
    ids = cells.filter(pc.equal(cells["state"], "done"))["trial_id"].unique().to_pylist()
    if not ids:
        raise StoreError(f"nothing to publish in {store.location}: no trial is done yet.")
    found = store.read_all("trials", sorted(ids)).rows
    models = found["model"].to_pylist()
    prints = found["model_fingerprint"].to_pylist()
    names = [shown_name(*each) for each in zip(prints, models, strict=True)]
    of_model = dict(zip(models, names, strict=True))
    listed = {n: of_model.get(n) or shown_name("", n) for n in cells["model"].unique().to_pylist()}
    taught = {p: _of_teacher(p, listed) for p in cells["procedure"].unique().to_pylist()}
    cells = _renamed(cells, [taught[p] for p in cells["procedure"].to_pylist()], "procedure")
    return _Tables(
        _renamed(cells, [listed[n] for n in cells["model"].to_pylist()]),
        _renamed(found.select(["model", *PUBLISHED]), names),
    )


def _of_teacher(procedure: str, names: Mapping[str, str]) -> str:
    """The procedure, with the published name of its teacher if that is another model."""
    head, distill, taught = procedure.partition(" distill ")
    how, of, teacher = taught.partition(" of ")
    return head + distill + how + of + (teacher and (names.get(teacher) or shown_name("", teacher)))


def _renamed(table: pa.Table, names: Any, column: str = "model") -> pa.Table:
    place = table.schema.get_field_index(column)
    return table.set_column(place, column, pa.array(names, pa.string()))


def _write(folder: Path, tables: _Tables, name: str) -> None:
    """Writes a folder that `datasets` reads, with each table as a configuration."""
    from huggingface_hub import DatasetCardData

    (folder / "data").mkdir()
    files = {}
    for table, rows in tables._asdict().items():
        files[table] = f"data/{table}.parquet"
        pq.write_table(rows, folder / files[table])
    configs: list[dict[str, Any]] = [
        {"config_name": table, "data_files": file} for table, file in files.items()
    ]
    configs[0]["default"] = True
    sweeps = sorted(set(tables.cells["sweep"].to_pylist()))
    counts = {table: len(rows) for table, rows in tables._asdict().items()}
    card = _CARD.format(
        front=DatasetCardData(tags=TAGS, configs=configs).to_yaml(),
        sweeps=escaped(", ".join(sweeps)),
        name=json.dumps(name),
        **counts,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    (folder / ABOUT).write_text(json.dumps({"sweeps": sweeps, **counts}) + "\n", encoding="utf-8")


def _as_delta(store: Store, to: str, sweep: str | None) -> Published:
    """Writes each table as a Delta table, or as the next version of an existing one."""
    if find_spec("deltalake") is None:
        raise PreflightError(
            f"--to {to} needs the package deltalake, which is not installed here. "
            "Install it: pip install 'lp-sweep[delta]'"
        )
    from deltalake import write_deltalake
    from deltalake.exceptions import DeltaError

    tables = _tables(store, sweep)
    out = expanded(to.removeprefix(_DELTA))
    try:
        for name, rows in tables._asdict().items():
            write_deltalake(out / name, rows, mode="overwrite", schema_mode="overwrite")
    except (DeltaError, OSError) as error:
        raise SpecError(f"can't write {out}: {error}. Name another folder with --to.") from None
    return Published(f"{_DELTA}{out}", *map(len, tables))
