"""Rows of one split as an Arrow table: parquet, csv, tsv, jsonl and CoNLL files, or a hub data set.

Knows columns by name, not what they mean. Whatever can't be read is a MissingInputError that says
how to fix it. Rows of the hub are of the commit that was asked for, never of another: `datasets`
falls back to the latest one cached (or to a folder of this name) when the hub doesn't answer, and
that is refused. The hub is asked only for what the cache doesn't hold.
"""

from __future__ import annotations

import csv as plain_csv
import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from difflib import get_close_matches
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import csv
from pyarrow import parquet as pq

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import listed, short, shown
from lp_sweep.trials.data.tasks import TaskSource, file_format, is_commit

_TEXTS = ("csv", "tsv", "jsonl", "conll", "conllu")
_MAGIC = {
    b"\x1f\x8b": "is compressed by gzip: unpack it",
    b"BZh": "is compressed by bzip2: unpack it",
    b"\xfd7zXZ": "is compressed by xz: unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd: unpack it",
    b"PK\x03\x04": "is a zip archive or a spreadsheet: unpack it, or export its table as CSV",
    b"\xd0\xcf\x11\xe0": "is a spreadsheet: export its table as CSV",
    b"ARROW1": "is an Arrow file: write it as Parquet",
}
_WIDE = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def other_than(path: Path, kind: str) -> str | None:
    """`is compressed by gzip: unpack it`, or None where the bytes may be what `kind` says.

    kind: a value of `tasks.FORMATS`. Raises OSError.
    """
    with path.open("rb") as stream:
        first = stream.read(64)
    for magic, what in _MAGIC.items():
        if first.startswith(magic):
            return what
    if kind not in _TEXTS:
        return None
    if first.startswith(b"PAR1"):
        return "is a Parquet file: give it the suffix .parquet"
    encoding = next((name for bom, name in _WIDE.items() if first.startswith(bom)), None)
    if encoding is None and len(first) > 3 and not (any(first[::2]) and any(first[1::2])):
        encoding = "UTF-16"  # no mark, but each second byte of the first words is zero
    return encoding and f"is {encoding}, not UTF-8: save it as UTF-8"


def first_bad_line(path: Path) -> str:
    """`line 3 (b'caf\\xe9')`: the first that is not UTF-8; empty where there is none."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number} ({line[max(0, error.start - 20) : error.start + 10]!r})"
    return ""


_BLOCK_BYTES = 1 << 24  # one csv row must fit in a block


def require_columns(where: str, present: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises MissingInputError unless each wanted column is there, once."""
    for column in wanted:
        count = present.count(column)
        if count == 1:
            continue
        near = get_close_matches(column, present[:1000], n=1)
        hint = f" Did you mean {shown(near[0])}?" if near and not count else ""
        hint = field_hint(present) or hint
        raise MissingInputError(
            f"{where}: {'two columns' if count else 'no column'} {shown(column)}. Columns: "
            f"{listed(present)}. Name the task's columns as the file does, or rename them "
            f"there.{hint}"
        )


def field_hint(present: Sequence[str]) -> str:
    """Where one column looks like several."""
    if len(present) != 1 or not set(present[0]) & {",", ";", "\t"}:
        return ""
    return " Fields are kept apart by commas in a .csv file, by tabs in a .tsv file."


def column_names(path: str) -> list[str]:
    """From the file's header only (jsonl: its first row)."""
    with _readable(path) as kind:
        if kind == "parquet":
            return list(pq.read_schema(path).names)
        if kind == "jsonl":
            return list(next(_json_rows(path)).content)
        if kind in CONLL:
            return _conll_names(kind, next(_sentences(path, kind)))
        with closing(_csv_rows(path, kind)) as rows:
            return next(rows)


def read_file(path: str, columns: Sequence[str], most: int | None = None) -> pa.Table:
    """The `columns` of a file, of its first rows if there are more than `most`. csv and tsv give
    text in every column.

    A row of a CoNLL file is a sentence, and each of its columns a list (see `_sentences`). A tsv
    has no quoting (GLUE's own files hold lone quotation marks); a csv has, and a field may hold
    line breaks.
    """
    require_columns(path, column_names(path), columns)
    with _readable(path) as kind:
        if kind == "parquet":
            file = pq.ParquetFile(path)
            groups = range(file.num_row_groups)
            if most is not None:
                before = accumulate(
                    (file.metadata.row_group(i).num_rows for i in groups), initial=0
                )
                groups = range(sum(rows < most for rows in [*before][:-1]))
            table = file.read_row_groups(groups, columns=list(columns)).slice(0, most)
            table.validate(full=True)  # that texts are UTF-8, of which a file is not asked
            return table
        if kind == "jsonl":
            rows = list(islice(_json_rows(path), most))
            return pa.table({name: _json_column(rows, name) for name in columns})
        if kind in CONLL:
            return _conll_table(list(islice(_sentences(path, kind), most)), kind, columns)
        if most is not None:
            return _first_rows(path, kind, columns, most)
        try:
            return csv.read_csv(path, **_csv_options(kind, columns))
        except pa.ArrowInvalid:  # only in one thread does Arrow say which row it is
            return csv.read_csv(path, **_csv_options(kind, columns, threads=False))


@contextmanager
def _readable(path: str) -> Iterator[str]:
    """The file's format; what its reader raises becomes a MissingInputError."""
    kind = file_format(path)
    try:
        _require_file(Path(path), kind)
        yield kind
    except (pa.ArrowException, OSError, ValueError, plain_csv.Error) as error:
        reason = short(str(error))
        fix = f"Check that it is a whole {kind} file."
        if isinstance(error, UnicodeError) or "UTF8" in reason.upper().replace("-", ""):
            line = first_bad_line(Path(path)) if kind != "parquet" else ""
            reason, fix = f"not UTF-8: {line or reason}", "Save it as UTF-8."
        elif str(error).count('"') % 2 or isinstance(error, plain_csv.Error):
            fix = "Close every quotation mark: an open one includes the lines below it."
        raise MissingInputError(f"{path}: can't be read as {kind}: {reason}. {fix}") from error


def _require_file(path: Path, kind: str) -> None:
    if path.is_dir():
        raise MissingInputError(f"{path}: is a folder. Name a {kind} file.")
    if not path.is_file():
        raise MissingInputError(f"{path}: no such file. Check the task's paths and folders.")
    if path.stat().st_size == 0:
        raise MissingInputError(f"{path}: is an empty file. Give a {kind} file with examples.")
    if other := other_than(path, kind):
        raise MissingInputError(f"{path}: can't be read as {kind}: it {other}.")


def _first_rows(path: str, kind: str, columns: Sequence[str], most: int) -> pa.Table:
    with closing(_csv_rows(path, kind)) as rows:
        names, *first = islice(rows, most + 1)
    by_name = dict(zip(names, zip(*first, strict=True), strict=True))
    return pa.table({name: pa.array(by_name[name], pa.string()) for name in columns})


def _csv_rows(path: str, kind: str) -> Generator[list[str]]:
    """At least the header. Not by Arrow's streaming reader: it reads ahead in a thread of its own,
    which a program that ends at once can abort on."""
    empty = True
    with Path(path).open(encoding="utf-8-sig", newline="") as lines:
        if kind == "tsv":
            reader = plain_csv.reader(lines, delimiter="\t", quoting=plain_csv.QUOTE_NONE)
        else:
            reader = plain_csv.reader(lines)
        for row in reader:
            if row:
                yield row
                empty = False
    if empty:
        raise ValueError("it holds empty lines only")


def _csv_options(kind: str, columns: Sequence[str], *, threads: bool = True) -> dict[str, Any]:
    parse = (
        csv.ParseOptions(delimiter="\t", quote_char=False)
        if kind == "tsv"
        else csv.ParseOptions(newlines_in_values=True)
    )
    return {
        "parse_options": parse,
        "read_options": csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=threads),
        "convert_options": csv.ConvertOptions(
            include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string())
        ),
    }


class _JsonRow(NamedTuple):
    line: int  # from 1
    content: dict[str, Any]


def _json_rows(path: str) -> Iterator[_JsonRow]:
    """At least one. Raises ValueError with the line."""
    empty = True
    with Path(path).open(encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # too many brackets
                raise ValueError(f"line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(
                    f"line {number} is no JSON object. Write one object a line, not an array"
                )
            yield _JsonRow(number, row)
            empty = False
    if empty:
        raise ValueError("it holds empty lines only")


def _json_column(rows: Sequence[_JsonRow], name: str) -> pa.Array:
    """Raises ValueError with the first line whose value is not like those before it."""
    values = [row.content.get(name) for row in rows]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        bad = first_failing(len(values), lambda count: pa.array(values[:count]))
        why = "a value of another kind than those before it. Write all as texts, or all as numbers"
        if isinstance(error, UnicodeEncodeError):
            why = "which ends in half a character. Write the whole one"
        elif isinstance(error, OverflowError):
            why = "a number of more than 64 bits. Write it as a text"
        raise ValueError(
            f"line {rows[bad].line}: {shown(name)} is {shown(values[bad])}, {why}"
        ) from None


CONLL = ("conll", "conllu")
# https://universaldependencies.org/format.html
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_NO_WORD = re.compile(
    r"\d+[-.]\d+"
)  # of CoNLL-U: a range of words, or a node that is not in the text
_DOCUMENT = "-DOCSTART-"

Sentence = list[list[str]]  # words, each with its columns


def _conll_names(kind: str, first: Sentence) -> list[str]:
    """Column names. A .conll file has `tokens` first, `tags` last, and numbers between."""
    if kind == "conllu":
        return [*_CONLLU]
    width = len(first[0])
    between = [str(number) for number in range(2, width)]
    return ["tokens", *between, "tags"] if width > 1 else ["tokens"]


def _conll_table(sentences: list[Sentence], kind: str, columns: Sequence[str]) -> pa.Table:
    place = {name: index for index, name in enumerate(_conll_names(kind, sentences[0]))}
    return pa.table(
        {
            name: pa.array(
                [[word[place[name]] for word in words] for words in sentences],
                pa.list_(pa.string()),
            )
            for name in columns
        }
    )


def conll_text(table: pa.Table) -> bytes:
    """A file of these rows, of lists of one length each."""
    columns = table.to_pydict().values()
    sentences = zip(*columns, strict=True)
    text = (
        "".join("\t".join(word) + "\n" for word in zip(*sentence, strict=True))
        for sentence in sentences
    )
    return "".join(f"{sentence}\n" for sentence in text).encode()


def _sentences(path: str, kind: str) -> Iterator[Sentence]:
    """At least one: a word a line, its columns apart by tabs or spaces, an empty line after each
    sentence. Raises ValueError with the line."""
    words: Sentence = []
    empty, width = True, len(_CONLLU) if kind == "conllu" else 0
    for number, word in _conll_lines(path, kind):
        if not word:
            if words:
                yield words
            words = []
            continue
        width = width or len(word)
        if len(word) != width:
            raise ValueError(f"line {number} has {len(word)} columns, not {width}")
        words.append(word)
        empty = False
    if words:
        yield words
    if empty:
        raise ValueError("it holds no word")


def _conll_lines(path: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    """The number of each line, from 1, and its columns; none where a sentence ends. Left out: the
    begin of a document, and in CoNLL-U comments and what is no word."""
    with Path(path).open(encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            bare = line.rstrip("\r\n")
            if not bare.strip():
                yield number, []
                continue
            word = bare.split("\t") if "\t" in bare else re.split(" +", bare.strip(" "))
            conllu = kind == "conllu" and (bare[0] == "#" or _NO_WORD.fullmatch(word[0]))
            if not conllu and word[0] != _DOCUMENT:
                yield number, word


def first_failing(count: int, try_first: Callable[[int], object]) -> int:
    """The position of the first of `count` values that makes `try_first(n)`, a conversion of the
    first n, fail. By halving: a conversion is quick, and its error rarely says where."""
    good, bad = 0, count  # the first `good` convert, the first `bad` don't
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            try_first(middle)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            bad = middle
        else:
            good = middle
    return bad - 1


def read_hub(
    source: TaskSource,
    split: str,
    columns: Sequence[str],
    *,
    offline: bool,
    most: int | None = None,
) -> pa.Table:
    """The `columns` of a split of a hub data set; from the cache, without asking, if it is there.
    Of its first rows if there are more than `most`.

    Raises MissingInputError: not there, another commit, or fewer rows than were once written.
    """
    where = f"{source.dataset}@{source.revision}"
    if not is_commit(source.revision):
        raise MissingInputError(
            f"{where}: a branch can change, the rows must not. Write `revision:` and a commit of "
            f"40 hex digits from https://huggingface.co/datasets/{source.dataset}/commits/main, or "
            f"let `lp-sweep prefetch` find it."
        )
    try:
        builder = _cached_builder(source)
        if builder is None:
            with _cache_only() if offline else nullcontext():
                builder = hub_builder(source)
            _refuse_guess(source, builder)
            builder.download_and_prepare()
        rows = builder.as_dataset(split=source.splits[split]).with_format("arrow")
        wanted = int(builder.info.splits[source.splits[split]].num_examples)
        table = rows[:most]
    except MissingInputError:
        raise
    except Exception as error:  # the hub's clients raise dozens of types, from three libraries
        raise MissingInputError(
            f"{where}: can't load {source.config or 'the default configuration'}, split "
            f"{source.splits[split]!r}, {'offline ' if offline else ''}from the Hugging Face hub: "
            f"{type(error).__name__}: {error}. Check the names and the network, load it with "
            f"`lp-sweep prefetch` where there is one, or use local files."
        ) from error
    if rows.num_rows != wanted:
        raise MissingInputError(
            f"{where}: the cache in {builder.cache_dir} has {rows.num_rows} of {wanted} rows of "
            f"split {source.splits[split]!r}. Delete that folder and load it again "
            f"(`lp-sweep prefetch`)."
        )
    require_columns(where, table.column_names, columns)
    return table.select(list(columns))


def is_cached(source: TaskSource) -> bool:
    """Whether the cache has the data set at its commit; whether it is whole `read_hub` says."""
    return _cached_builder(source) is not None


def hub_builder(source: TaskSource) -> Any:
    """The hub's view of a data set: its configuration, its files. Downloads only the card."""
    import datasets

    return datasets.load_dataset_builder(source.dataset, source.config, revision=source.revision)


def _cached_builder(source: TaskSource) -> Any:
    """A builder over `<cache>/<namespace>___<name>/<config>/<version>/<commit>`, None without.

    `datasets` itself would take the latest of all commits there.
    """
    from datasets import config
    from datasets.naming import camelcase_to_snakecase
    from datasets.packaged_modules.cache.cache import Cache

    *namespace, name = str(source.dataset).split("/")
    root = Path(config.HF_DATASETS_CACHE).expanduser()
    folder = root / "___".join([*namespace, camelcase_to_snakecase(name)]) / _config(source)
    versions = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for version in versions:
        if (folder / version / str(source.revision) / "dataset_info.json").is_file():
            with _quiet():
                return Cache(
                    repo_id=source.dataset,
                    dataset_name=name,
                    config_name=folder.name,
                    version=version,
                    hash=source.revision,
                )
    return None


def _config(source: TaskSource) -> str:
    """The configuration's name; the default one's is in the data set's card, if it has several."""
    if source.config is not None:
        return source.config
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCard, try_to_load_from_cache

    card = try_to_load_from_cache(
        str(source.dataset), "README.md", revision=source.revision, repo_type="dataset"
    )
    if not isinstance(card, str):
        return "default"
    named = MetadataConfigs.from_dataset_card_data(DatasetCard.load(card).data)
    default = named.get_default_config_name() or (next(iter(named)) if len(named) == 1 else None)
    return str(default or "default")


def _refuse_guess(source: TaskSource, builder: Any) -> None:
    """A builder over the cache is `datasets`' own guess at what was meant."""
    if builder.hash != source.revision:
        raise MissingInputError(
            f"{source.dataset}@{source.revision}: the hub wasn't asked or didn't answer, and the "
            f"cache or a folder of this name has revision {builder.hash}. Load the right one "
            f"while online (`lp-sweep prefetch`)."
        )
    if builder.name == "cache":
        raise MissingInputError(
            f"{source.dataset}@{source.revision}: the cache holds configuration "
            f"{builder.config.name!r}, which may not be the default one. "
            f"Name it in the task: config: {builder.config.name}."
        )


@contextmanager
def _cache_only() -> Iterator[None]:
    """Keeps `datasets` off the network, and from warning that it is. It then says what it holds
    instead: another commit, or which configurations."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    try:
        with _quiet():
            yield
    finally:
        config.HF_HUB_OFFLINE = before


@contextmanager
def _quiet() -> Iterator[None]:
    from datasets.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
