"""Reads the files of a retrieval task, in BEIR's layout (Thakur et al. 2021, arXiv 2104.08663).

corpus   `_id` or `id`, `text`, and optionally `title`: a document is title, blank, text
queries  `_id` or `id`, `text`
qrels    `query-id`, `corpus-id`, `score`, or `query_id`, `doc_id`, `relevance`. Above 0 is
         relevant, a higher number more so. The last of two judgements of a pair counts, and
         judgements of queries that are not in the file of queries are skipped.

A document with the identifier of a query is the query itself (ArguAna, Quora) and is left out of
its results, as BEIR's `ignore_identical_ids` does; a judgement of it stays, and counts as missed.
Where most such documents are judged relevant, both files are numbered alike, and none is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import listed, shown
from lp_sweep.trials.data.columns import Rows, finite_numbers, plain_column, text_column
from lp_sweep.trials.data.readers import column_names, field_hint, read_file
from lp_sweep.trials.data.tasks import CORPUS, QRELS, QUERIES

# the names that a column may have; the first one in the file counts
_ID = ("_id", "id")
_COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    CORPUS: {"id": _ID, "text": ("text",)},
    QUERIES: {"id": _ID, "text": ("text",)},
    QRELS: {
        "query": ("query-id", "query_id"),
        "document": ("corpus-id", "corpus_id", "doc_id"),
        "relevance": ("score", "relevance"),
    },
}
_TITLE = "title"


class Collection(NamedTuple):
    """`judged` (J, 3) float64: the query's position, the document's, the relevance above 0;
    ascending by query, and at least one for each. Relevance 0: the document is the query itself.
    `strangers`: the number of judgements of queries that are not in the file of queries."""

    queries: list[str]
    documents: list[str]
    judged: npt.NDArray[np.float64]
    strangers: int = 0

    def only(self, rows: npt.NDArray[np.int64]) -> Collection:
        """The same with only these queries; `rows` ascending."""
        judged = self.judged[np.isin(self.judged[:, 0], rows)]
        judged[:, 0] = np.searchsorted(rows, judged[:, 0])
        return self._replace(queries=[self.queries[row] for row in rows], judged=judged)


def columns_of(part: str, path: str) -> dict[str, str]:
    """Maps each column's role to its name in the file. Raises MissingInputError."""
    present = column_names(path)
    found = {}
    for what, names in _COLUMNS[part].items():
        name = next((name for name in names if name in present), None)
        if name is None:
            hint = field_hint(path, present) or " Rename them as BEIR has them."
            raise MissingInputError(
                f"{path}: {part} needs a column {' or '.join(map(shown, names))}. Columns: "
                f"{listed(present)}.{hint}"
            )
        found[what] = name
    if part == CORPUS and _TITLE in present:
        found[_TITLE] = _TITLE
    return found


def read_collection(
    files: Mapping[str, str], *, skip_unjudged: bool, most: int | None = None
) -> Collection:
    """Raises MissingInputError for a query without a relevant document (`skip_unjudged` skips it),
    for an identifier used twice, and for a judgement of a document that is not in the corpus.

    `most` reads only so many documents of a larger corpus and ignores judgements of the others.
    """
    corpus = _rows(CORPUS, files[CORPUS], None if most is None else most + 1)
    whole = most is None or corpus.rows.table.num_rows <= most
    queries = _rows(QUERIES, files[QUERIES])
    documents = _documents(corpus)
    texts = _texts(queries)
    query_of, document_of = _numbered(queries), _numbered(corpus)
    judged, strangers = _judged(_rows(QRELS, files[QRELS]), query_of, document_of, whole=whole)
    if whole:
        kept = _answered(queries, len(texts), judged, files[QRELS], skip=skip_unjudged)
    else:
        kept = np.unique(judged[:, 0]).astype(np.int64)
    judged = np.vstack([judged, _themselves(judged, query_of, document_of)])
    judged = judged[np.isin(judged[:, 0], kept)]
    judged = judged[np.lexsort((judged[:, 1], judged[:, 0]))]
    judged[:, 0] = np.searchsorted(kept, judged[:, 0])
    return Collection([texts[row] for row in kept], documents, judged, strangers)


class _Part(NamedTuple):
    rows: Rows
    columns: dict[str, str]


def _rows(part: str, path: str, most: int | None = None) -> _Part:
    columns = columns_of(part, path)
    table = read_file(path, list(columns.values()), most)
    if not table.num_rows:
        raise MissingInputError(f"{path}: has no rows. Give a file with {part}.")
    return _Part(Rows(where=path, table=table), columns)


def _texts(part: _Part) -> list[str]:
    try:
        return list(text_column(part.rows, part.columns["text"]).to_pylist())
    except UnicodeDecodeError as error:
        raise MissingInputError(f"{part.rows.where}: {error}. Save it as UTF-8.") from error


def _documents(part: _Part) -> list[str]:
    texts = _texts(part)
    if _TITLE not in part.columns:
        return texts
    titles = part.rows.table.column(_TITLE).to_pylist()
    if odd := next((title for title in titles if isinstance(title, list | dict)), None):
        raise MissingInputError(
            f"{part.rows.where}: column {_TITLE!r} holds {shown(odd)}, not text. Write each "
            "title as one text, or remove the column."
        )
    return [f"{title or ''} {text}".strip() for title, text in zip(titles, texts, strict=True)]


def _identifiers(part: _Part, what: str) -> list[str]:
    """Identifiers as texts: a file may hold numbers. Raises MissingInputError for a null."""
    column = plain_column(part.rows, part.columns[what])
    try:
        return list(column.cast(pa.string()).to_pylist())
    except pa.ArrowException as error:
        raise MissingInputError(
            f"{part.rows.where}: column {part.columns[what]!r} holds {column.type}, not "
            "identifiers. Write texts or whole numbers."
        ) from error


def _numbered(part: _Part) -> dict[str, int]:
    """Identifier -> row, from 0."""
    found: dict[str, int] = {}
    for row, name in enumerate(_identifiers(part, "id")):
        if found.setdefault(name, row) != row:
            raise MissingInputError(
                f"{part.rows.where}: rows {found[name] + 1} and {row + 1} have the same "
                f"{part.columns['id']} {shown(name)}. Give each row its own, or remove one."
            )
    return found


def _judged(
    part: _Part, query_of: Mapping[str, int], document_of: Mapping[str, int], *, whole: bool
) -> tuple[npt.NDArray[np.float64], int]:
    """(J, 3) judgements above 0, and the number of judgements of unknown queries."""
    relevance = finite_numbers(part.rows, part.columns["relevance"])
    pairs: dict[tuple[int, int], float] = {}
    names = zip(*(_identifiers(part, what) for what in ("query", "document")), strict=True)
    strangers = 0
    for row, (query, document) in enumerate(names):
        if query not in query_of:
            strangers += 1
            continue
        if document in document_of:
            pairs[query_of[query], document_of[document]] = float(relevance[row])
        elif whole:
            raise MissingInputError(
                f"{part.rows.where}: row {row + 1} judges document {shown(document)}, which the "
                "corpus does not have. Add it to the corpus, or remove the row."
            )
    found = [(query, document, value) for (query, document), value in pairs.items() if value > 0]
    return np.array(sorted(found), np.float64).reshape(-1, 3), strangers


def _themselves(
    judged: npt.NDArray[np.float64], query_of: Mapping[str, int], document_of: Mapping[str, int]
) -> npt.NDArray[np.float64]:
    """(S, 3) the queries that are documents, with relevance 0; none if most are judged relevant."""
    pairs = {(row, document_of[name]) for name, row in query_of.items() if name in document_of}
    relevant = pairs & {(int(query), int(document)) for query, document, _ in judged}
    found = [] if 2 * len(relevant) > len(pairs) else [(*pair, 0.0) for pair in sorted(pairs)]
    return np.array(found, np.float64).reshape(-1, 3)


def _answered(
    part: _Part, count: int, judged: npt.NDArray[np.float64], qrels: str, *, skip: bool
) -> npt.NDArray[np.int64]:
    """Positions of the queries with a relevant document. Raises MissingInputError for others,
    unless `skip`."""
    kept = np.unique(judged[:, 0]).astype(np.int64)
    if not len(kept):
        raise MissingInputError(
            f"{qrels}: judges no document as relevant (above 0) for any query of "
            f"{part.rows.where}. Check that both files name queries alike."
        )
    lacking = np.setdiff1d(np.arange(count), kept)
    if len(lacking) and not skip:
        row = int(lacking[0])
        name = _identifiers(part, "id")[row]
        raise MissingInputError(
            f"{part.rows.where}: {len(lacking)} of {count} queries have no relevant document in "
            f"{qrels}, first {shown(name)} in row {row + 1}. Add judgements, remove the queries, "
            "or write `unjudged: skip` in the task to score the others alone."
        )
    return kept
