"""Rows of JSON files: an object on each line, or one document that holds the rows.

Raises ValueError with the line, or the row, of a mistake.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.storage.printable import listed, shown
from lp_sweep.trials.data.columns import SPANS, first_failing
from lp_sweep.trials.data.formats import open_text

_FILLED = re.compile(r"\S")


class JsonRow(NamedTuple):
    """`place`: `line 3`, or `row 3` where the file is one document."""

    place: str
    content: dict[str, Any]


def json_rows(path: str) -> Iterator[JsonRow]:
    """Yields one row or more, from an object on each line or from one document. Raises ValueError
    with the line."""
    with open_text(path, "\n") as lines:
        filled = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
        first = list(islice(filled, 2))
        if not first:
            raise ValueError("it holds empty lines only")
        own = False  # whether the first line is an object by itself
        with suppress(ValueError, RecursionError):
            own = isinstance(json.loads(first[0][1]), dict)
        if not own or len(first) < 2:
            rows = _of_document(path)
            if len(rows) > own:
                yield from rows
                return
        for number, line in chain(first, filled):
            row = _object_of(number, line)
            yield JsonRow(f"line {number}", row)


def _object_of(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_object)
    except _RepeatedKeyError as error:
        raise ValueError(f"line {number}: {error}") from None
    except (ValueError, RecursionError) as error:  # too many brackets
        why = f": {error}"
        if line.rstrip().endswith(","):
            why = ": it ends in a comma. Write one object per line, without commas between"
        elif re.match(r"\s*\{\s*'", line):
            why = ": it has single quotes, as Python prints. Write rows with json.dumps"
        raise ValueError(f"line {number} is not JSON{why}") from error
    if isinstance(row, dict):
        return row
    raise ValueError(f"line {number} is no JSON object. Write one object per line")


def json_lines(path: str) -> Iterator[bytes]:
    """The rows as lines of JSON: those of the file, if it has them."""
    with open_text(path, "\n") as lines:
        own = [line.strip() for line in lines if line.strip()]
    rows = list(json_rows(path))
    alone = len(own) == len(rows) and rows[0].place.startswith("line")
    yield from map(str.encode, own if alone else (json.dumps(row.content) for row in rows))


class _RepeatedKeyError(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise _RepeatedKeyError(f"{shown(twice)} has two values in one object. Keep one")
    return found


def _of_document(path: str) -> list[JsonRow]:
    """The rows of a file that is not one object per line: an array, an object around it, or objects
    of several lines. [] if it is none of these. Raises ValueError with the line of a mistake."""
    with open_text(path) as file:
        text = file.read()
    documents: list[Any] = []
    decoder, at = json.JSONDecoder(object_pairs_hook=_object), 0
    try:
        while found := _FILLED.search(text, at):
            document, at = decoder.raw_decode(text, found.start())
            documents.append(document)
    except _RepeatedKeyError:
        raise
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and re.match(r"\s*(\[|\{\s*\n)", text):
            raise ValueError(f"line {error.lineno} is not JSON: {error.msg}") from error
        return []
    rows = documents if len(documents) > 1 else _unwrapped(documents[0])
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ValueError(f"row {number} is {shown(row)}, not an object with columns")
    return [JsonRow(f"row {number}", row) for number, row in enumerate(rows, start=1)]


def _unwrapped(document: Any) -> list[Any]:
    """The rows of one document: an array, or the only array of objects in an object. Another object
    is a row. Raises ValueError for several sets of rows, and for what pandas writes by columns or
    by an index."""
    if not isinstance(document, dict):
        return document if isinstance(document, list) else [document]
    named = sorted({"train", "test", "dev", "validation"} & {*document})
    if len(named) > 1 and all(isinstance(document[name], list) for name in named):
        names = listed(map(shown, named))
        raise ValueError(f"it has several sets of rows ({names}). Write each into a file")
    tables = [value for value in document.values() if isinstance(value, list) and len(value) > 1]
    if len(tables) == 1 and all(isinstance(item, dict) for item in tables[0]):
        return tables[0]
    if _are_columns(document):
        raise ValueError(
            "its rows are spread over one object. Write an object for each row: in pandas "
            "`to_json(path, orient='records', lines=True)`"
        )
    return [document]


def _are_columns(document: dict[str, Any]) -> bool:
    """Whether these are columns, or rows by an index, as pandas writes them, and not the words and
    the tags of one sentence: words have no blanks."""
    values = [*document.values()]
    if all(isinstance(value, list) for value in values):
        texts = (item for value in values for item in value if isinstance(item, str))
        return {"columns", "data"} <= {*document} or any(" " in text for text in texts)
    return len(values) > 1 and all(isinstance(value, dict) for value in values)


@lru_cache(maxsize=64)
def _names_of_json(path: str, _size: int, _changed: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in json_rows(path) for name in row.content))


def json_names(path: str) -> tuple[str, ...]:
    place = Path(path).stat()
    return _names_of_json(path, place.st_size, place.st_mtime_ns)


def json_column(rows: Sequence[JsonRow], name: str) -> pa.Array:
    """Missing values and NaN are null. Raises ValueError with the first row whose value has another
    type than most."""
    values = [row.content.get(name) for row in rows]
    values = [None if value != value else value for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        kinds = [_kind_of(value) for value in values]
        common = Counter(kind for kind in kinds if kind).most_common(1)[0][0]
        odd = (i for i, kind in enumerate(kinds) if kind and kind != common)
        bad = next(odd, None)
        if bad is None:
            bad = first_failing(len(values), lambda count: pa.array(values[:count]))
        why = f"a value of another kind than most. Write all as {common}s"
        if isinstance(error, UnicodeEncodeError):
            why = "which ends in half a character. Write the whole one"
        elif isinstance(error, OverflowError):
            why = "a number of more than 64 bits. Write it as a text"
        elif kinds[bad] == common == "list":
            inner = {_kind_of(item) for item in values[bad] or ()}
            fix = SPANS if inner & {"object", "list"} else "Write all of them as texts"
            why = f"a list of values of several kinds. {fix}"
        raise ValueError(
            f"{rows[bad].place}: {shown(name)} is {shown(values[bad])}, {why}"
        ) from None


def _kind_of(value: Any) -> str:
    kinds = {bool: "truth value", int: "number", float: "number", str: "text", list: "list"}
    return "" if value is None else kinds.get(type(value), "object")
