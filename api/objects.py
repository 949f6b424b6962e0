"""A sweep file made from Python objects, for `Sweep(models=..., tasks=..., strategies=...)`.

It lies in the cache folder, and rows lie beside it in files named by their content. They are JSON
lines, since their bytes, by which a trial is identified, depend on no library's version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from lp_sweep.orchestrator.sweepfile.entries import SEARCHED
from lp_sweep.orchestrator.sweepfile.yamlfile import yaml_text
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import arriving, node_folder

_ROWS = ("train", "dev", "test", "unlabelled", *SEARCHED)  # keys of a task that name files


def write_sweep(models: Any, tasks: Any, keys: Mapping[str, Any]) -> Path:
    """The path of the sweep file. Raises SpecError for objects that a file can't hold."""
    folder = node_folder(None) / "inputs"
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(tasks, Mapping):
        tasks = [_task(name, entry, folder) for name, entry in tasks.items()]
    content = {
        "schema_version": 1,
        **keys,
        "plugins": [_here(plugin, "") for plugin in _listed(keys.get("plugins", []))],
        "models": [_here(model, "id") for model in _listed(models)],
        "tasks": _listed(tasks),
    }
    try:
        text = yaml_text(_plain(content))
    except yaml.YAMLError as error:
        raise SpecError(f"Sweep: texts, numbers, lists and mappings are needed. {error}") from None
    return _written(folder, text, ".yaml")


def _task(name: str, entry: Any, folder: Path) -> dict[str, Any]:
    """An entry of `tasks:` from (train, dev), or from the entry with rows or paths in it."""
    if isinstance(entry, tuple) and len(entry) == 2:
        entry = {"train": entry[0], "dev": entry[1]}
    if not isinstance(entry, Mapping):
        raise SpecError(
            f"task {name!r}: give (train, dev), or a mapping such as "
            f"{{'train': ..., 'dev': ..., 'text': ['text'], 'label': 'label'}}, got "
            f"{type(entry).__name__}."
        )
    made, first = {"name": name, **entry}, None
    for key in [key for key in _ROWS if made.get(key) is not None]:
        if key == "test" and made.get("dataset") is not None:  # a split of the hub
            continue
        if isinstance(made[key], str | Path):
            made[key] = str(Path(made[key]).expanduser().absolute())
        else:
            table = _table(made[key], f"task {name!r}: {key}")
            first = table if first is None else first
            rows = (json.dumps(row, ensure_ascii=False) for row in table.to_pylist())
            made[key] = _rows_file(rows, folder, f"task {name!r}: {key}")
    label = made.get("label", "label")
    if first is not None and "text" not in made and made.get("corpus") is None:
        made["text"] = [column for column in first.column_names if column not in _listed(label)]
    features = getattr(entry.get("train"), "features", {})
    names = getattr(features.get(str(label)), "names", None)  # of a ClassLabel
    return {"labels": names, **made} if names else made


def _table(data: Any, what: str) -> Any:
    """The rows of a DataFrame of pandas or polars, a `datasets.Dataset`, an Arrow table or a list
    of mappings. Raises SpecError."""
    try:
        if isinstance(data, list):
            return pa.Table.from_pylist(data)
        if hasattr(data, "with_format"):
            return data.with_format("arrow")[:]
        if hasattr(data, "to_arrow"):
            return data.to_arrow()
        return (
            data if isinstance(data, pa.Table) else pa.Table.from_pandas(data, preserve_index=False)
        )
    except (AttributeError, TypeError, pa.ArrowException) as error:
        raise SpecError(
            f"{what}: give a DataFrame, a datasets.Dataset, an Arrow table, a list of mappings or "
            f"a path, got {type(data).__name__}. ({error})"
        ) from None


def _rows_file(rows: Iterable[str], folder: Path, what: str) -> str:
    try:
        text = "".join(f"{row}\n" for row in rows)
    except TypeError as error:
        raise SpecError(f"{what}: a column holds no texts, numbers or lists. ({error})") from None
    return str(_written(folder, text, ".jsonl").absolute())


def _written(folder: Path, text: str, suffix: str) -> Path:
    """Writes it once: its name says its content."""
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}{suffix}"
    if not path.exists():
        with arriving(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return path


def _here(entry: Any, key: str) -> Any:
    """An entry whose folder or file is relative to the working directory, not to the sweep file."""
    if isinstance(entry, Mapping):
        return {**entry, key: _here(entry.get(key), key)}
    if isinstance(entry, str | Path) and Path(entry).expanduser().exists():
        return str(Path(entry).expanduser().absolute())
    return entry


def _listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, list | tuple) else [value]


def _plain(value: Any) -> Any:
    """With lists for ranges and tuples, and texts for paths."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range | set | frozenset):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str):  # a number of numpy
        return value.item()
    return str(value) if isinstance(value, Path) else value
