"""Small task files for tests."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet as pq

from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.spec.specs import TaskDefinition

ONE = TaskDefinition(text_columns=("text",))
NAMED = replace(ONE, labels=("neg", "pos"))
NUMBERS = replace(ONE, kind="regression", metric="pearson")

HEADER = "text,label\n"
GOOD = HEADER + "a,neg\nb,pos\nc,neg\n"


def files(folder: Path, train: str | bytes, dev: str | bytes = GOOD, kind: str = "csv"):
    paths = {}
    for split, content in (("train", train), ("validation", dev)):
        paths[split] = folder / f"{split}.{kind}"
        paths[split].write_bytes(content if isinstance(content, bytes) else content.encode())
    return TaskSource(files={split: str(path) for split, path in paths.items()})


def parquet(folder: Path, names: list[str] | None = None, **columns: pa.Array) -> TaskSource:
    """One table for train and dev, with a ClassLabel of `names` for the label column."""
    table = pa.table(columns)
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
    pq.write_table(table, folder / "rows.parquet")
    path = str(folder / "rows.parquet")
    return TaskSource(files={"train": path, "validation": path})
