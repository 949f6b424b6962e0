"""Writes a sweep file: for a user's own rows, for GLUE, or with every key commented."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.inputs.data import balance, epochs_for
from lp_sweep.orchestrator.inputs.folder import read_config
from lp_sweep.orchestrator.options import InitOptions
from lp_sweep.orchestrator.service import initrows
from lp_sweep.orchestrator.service.initrows import RowFile
from lp_sweep.orchestrator.sweepfile.entries import is_folder
from lp_sweep.orchestrator.sweepfile.load import check
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.orchestrator.sweepfile.yamlfile import parse_yaml, yaml_text
from lp_sweep.storage.errors import MissingInputError, PreflightError, SpecError
from lp_sweep.storage.places import arriving, expanded
from lp_sweep.storage.printable import listed
from lp_sweep.trials.data.datasource import doubtful_rows, load_task
from lp_sweep.trials.data.formats import splits_of, suffix_of
from lp_sweep.trials.data.readers import column_names, read_file
from lp_sweep.trials.data.tasks import CORPUS, QRELS, QUERIES, TaskSource, canonical_name
from lp_sweep.trials.kinds import KINDS
from lp_sweep.trials.kinds.rankmetrics import query_count
from lp_sweep.trials.model.familytable import family_of
from lp_sweep.trials.model.modelfiles import longest_row
from lp_sweep.trials.spec.specs import TaskDefinition, TaskKind

SCHEMA = "lp-sweep.schema.json"
_SCHEMA_LINE = f"# yaml-language-server: $schema={SCHEMA}\n"
MOST_EPOCHS = 20
BATCH = 16
_SEARCHED = initrows.LENGTHS[:4]  # tokens of a document: every trial reads all of them
FEW = 500  # dev rows, or queries
# of embeddings: docs/results/README.md has what each is worth
_OF_VECTORS = "procedures: [untrained, direct]   # as it is, and after imitating all layers"
_INFLUENCE = "{name: block-influence, k: all, until: min_layers}"
_BRIDGES = "bridge: [none, linear]   # what takes the place of the layers that go"
_SIDES = ("train", "data", "rows")  # file names that say nothing; then the folder names the task
_LONGEST_NAME = 90
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class WrittenSweep(NamedTuple):
    files: list[Path]
    notes: list[str]


def write_sweep(options: InitOptions) -> WrittenSweep:
    """Writes the sweep file, its schema and, with `data`, its train and dev files.

    Raises SpecError, and PreflightError if the rows can't be used.
    """
    paths: dict[str, Any] = {
        name: expanded(path)
        for name in ("file", "data", "dev", CORPUS, QUERIES, QRELS)
        if (path := getattr(options, name)) is not None
    }
    options, model = replace(options, **paths), options.model
    if model and is_folder(model) and not Path(model).expanduser().is_dir():
        raise SpecError(f"--model {model}: no such folder. Check the path.")
    search = {part: paths.get(part) for part in (CORPUS, QUERIES, QRELS)}
    try:
        if options.data is not None:
            return _with_rows(_of_folder(options, search))
        return _with_search(options, search) if any(search.values()) else _of_glue(options)
    except MissingInputError as error:
        raise PreflightError(str(error)) from error


def _of_glue(options: InitOptions) -> WrittenSweep:
    """A file for GLUE, or one with every key."""
    for_data = ("text", "label", "group", "kind", "dev")
    if names := [f"--{name}" for name in for_data if getattr(options, name)]:
        raise SpecError(
            f"{', '.join(names)} needs --data FILE: a CSV, TSV, JSONL, Parquet or CoNLL file."
        )
    if options.full:
        template = files("lp_sweep.orchestrator") / "templates" / "sweep.yaml"
        text = _SCHEMA_LINE + template.read_text(encoding="utf-8")
    else:
        tasks = ["tasks: [rte]   # GLUE, or your own data"]
        config = read_config(Path(initrows.model_of(options)).expanduser() / "config.json") or {}
        length = min(128, longest_row(config) or 128)
        text = _file("my-sweep", options, tasks, epochs=3, length=length)
    return _written(options, {options.file: text.encode()}, [])


def write_quickstart(folder: Path) -> Path:
    """Copies the built-in sweep with its model and data, unless it is there already. Returns the
    sweep file. Raises SpecError."""
    sweep, own = folder / "sweep.yaml", ("model", "data/toy-sentiment", "sweep.yaml")
    try:
        if all((folder / name).exists() for name in own):
            return sweep
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SpecError(f"{folder} exists. Name another folder with --out.")
        with as_file(files("lp_sweep.quickstart")) as built_in:
            hidden = shutil.ignore_patterns("__*", sweep.name)
            shutil.copytree(built_in, folder, ignore=hidden, dirs_exist_ok=True)
            shutil.copyfile(built_in / sweep.name, sweep)  # last: a folder that has it is whole
    except OSError as error:
        raise SpecError(f"can't write {folder}: {error}. Name another with --out.") from None
    return sweep


def _of_folder(options: InitOptions, search: Mapping[str, Path | None]) -> InitOptions:
    """The train set of a folder with several sets of rows, and its dev set: `validation`, or a
    `test` that has labels."""
    assert options.data is not None
    if (options.kind and KINDS[options.kind].searches) or any(options.data.glob("corpus.*")):
        raise SpecError("search takes --corpus FILE --queries FILE --qrels FILE, not --data.")
    if named := [f"--{part}" for part, path in search.items() if path]:
        raise SpecError(f"--data and {named[0]} are two tasks. Leave one out.")
    splits = splits_of(options.data) if options.data.is_dir() else {}
    if not splits:
        return options
    if "train" not in splits:
        held = listed(str(place) for place in splits.values())
        raise SpecError(f"{options.data}: has no set of train rows. Name one with --data: {held}")
    dev, test = options.dev or splits.get("validation"), splits.get("test")
    if dev is None and test and _has_labels(str(test), options.label):
        dev = test
    return replace(options, data=splits["train"], dev=dev)


def _has_labels(path: str, label: Sequence[str]) -> bool:
    """Whether a set has these columns, and not one value, such as -1, in place of hidden labels."""
    if not {*label} <= {*column_names(path)}:
        return False
    columns = read_file(path, label).columns if label else []
    return not label or any(len({*map(str, column.to_pylist())}) > 1 for column in columns)


def _with_rows(options: InitOptions) -> WrittenSweep:
    data = options.data
    assert data is not None
    rows, made = initrows.look_at(options, data), dict[Path, bytes]()
    if options.dev is not None:  # nothing is split, so repeated texts need no note
        sides = {"train": (data, rows.n), "dev": (options.dev, rows.n_dev)}
        rows = rows._replace(repeated=0)
    else:
        made, sides = _split_files(options, data, rows)
    made[options.file] = _sweep(options, data, rows, sides).encode()
    notes = [*_notes(rows, sides["dev"][1])]
    if "test" in sides:
        what = f"{sides['test'][1]:,} {KINDS[rows.kind].scored_by} are set aside (`test:`)"
        notes.append(f"{what}: scored once, for what is shipped, and never to choose")
    return _written(options, made, notes)


_Sides = dict[str, tuple[Path, int]]  # train, dev, test: the file, and its rows or queries


def _split_files(
    options: InitOptions, data: Path, rows: RowFile
) -> tuple[dict[Path, bytes], _Sides]:
    """A train and a dev file, and a test file of rows enough: their contents by path, and their
    sizes."""
    parts = initrows.sides(rows.strata, rows.groups)
    if not all(map(len, parts.values())):
        groups = len(set(rows.groups))
        of = f" of {groups} group{'s' * (groups > 1)}" if options.group else ""
        raise SpecError(
            f"{data}: {rows.n:,} rows{of}, {rows.n - rows.repeated:,} different texts: no dev set "
            "can be split off, since equal texts and rows of a group stay on one side. Check "
            "--text, or give the dev set with --dev FILE."
        )
    suffix, ranks = initrows.suffix_of_parts(data), KINDS[rows.kind].ranks
    sides = {}
    for side, held in parts.items():
        queries = {rows.groups[row] for row in held.tolist()}  # a score averages over them
        units = len(queries) if ranks and side != "train" else len(held)
        sides[side] = (options.file.parent / f"{_stem(data)}-{side}{suffix}", units)
    paths = [path for path, _ in sides.values()]
    return dict(zip(paths, initrows.parts(data, *parts.values()), strict=True)), sides


def _stem(data: Path) -> str:
    """The name of a file without its suffix, of a folder, or of a pattern's folder."""
    if "*" in data.name:
        return data.absolute().parent.name
    return data.name if data.is_dir() else data.name.removesuffix(suffix_of(data))


def _with_search(options: InitOptions, search: dict[str, Path | None]) -> WrittenSweep:
    """Leaves out queries without a relevant document, with a note."""
    if missing := [f"--{part}" for part, path in search.items() if path is None]:
        raise SpecError(f"search needs --corpus, --queries and --qrels. Add {listed(missing)}.")
    if options.kind and not KINDS[options.kind].embeds:
        raise SpecError(f"--corpus is for embeddings, not for --kind {options.kind}. Remove one.")
    places = {part: str(path) for part, path in search.items()}
    kind: TaskKind = "retrieval"
    definition = TaskDefinition(text_columns=(), kind=kind, metric=KINDS[kind].metrics[0])
    source = TaskSource(files=places, skip_unjudged=True)
    loaded = load_task(definition, source)
    [documents], judged = loaded.train.texts, loaded.dev[loaded.main_split].labels
    queries, judgements = query_count(judged), int((judged[:, 2] > 0).sum())
    skipped = read_file(places[QUERIES], column_names(places[QUERIES])[:1]).num_rows - queries
    name = _task_name(Path(places[CORPUS]).parent.absolute().name, "search")
    why = {CORPUS: f"{len(documents):,} documents", QUERIES: f"{queries:,} of them scored"}
    task = {"name": name, "kind": "embedding"}
    task |= {part: os.path.relpath(path, options.file.parent) for part, path in places.items()}
    notes = [f"{len(documents):,} documents, {queries:,} queries, {judgements:,} judgements"]
    if skipped:
        task["unjudged"] = "skip"
        notes.append(f"{skipped:,} queries have no relevant document and are left out")
    notes += doubtful_rows(loaded, source)
    notes += _few(queries, "queries")
    options = replace(options, kind=kind)
    text = _file(
        name,
        options,
        _task_lines(task, why),
        epochs=min(MOST_EPOCHS, epochs_for(len(documents), BATCH)),
        length=initrows.fitting_length(
            loaded.train, initrows.model_of(options), _SEARCHED, 0.9, kind=KINDS[kind]
        ),
    )
    return _written(options, {options.file: text.encode()}, notes)


def _notes(rows: RowFile, n_dev: int) -> Iterator[str]:
    rules, seen = KINDS[rows.kind], f"{rows.n:,} rows"
    if rows.counts:
        words = sum(rows.counts.values()) if rules.words else 0
        seen += f", {balance(rules.called, rows.counts, words or rows.n, 10)}"
    elif rows.kind == "regression":
        seen += "; the labels are numbers: regression"
    elif rows.of_vectors:
        seen += (
            ", pairs with scores; the model makes a vector of each text (modules.json): kind "
            "embedding. For one number from both texts together, as a cross-encoder gives it, add "
            f"--kind {rows.of_vectors}"
        )
    yield seen
    if rows.metric == "macro_f1":
        yield "one class is much larger than the others: macro_f1 judges, not accuracy"
    if rules.words and rows.metric == "accuracy":
        yield "no tag begins with B- or I-: accuracy judges, not entity F1"
    if rows.labels and (bare := rows.strata.count(-1)):
        have = "row has" if bare == 1 else "rows have"
        yield f"{bare:,} {have} no label: none of the labels fits them"
    yield from rows.empty
    if rows.repeated:
        again = "row repeats" if rows.repeated == 1 else "rows repeat"
        yield f"{rows.repeated:,} {again} the text of another: equal texts stay on one side"
    yield from _few(n_dev, f"dev {rules.scored_by}")


def _few(number: int, units: str) -> Iterator[str]:
    if number < FEW:
        yield f"{number} {units} show only large losses: more make the answer surer"


def _sweep(options: InitOptions, data: Path, rows: RowFile, sides: _Sides) -> str:
    """About 15 lines that run as they are."""
    kind, stem, train = KINDS[rows.kind], _stem(data), sides["train"][1]
    name = _task_name(data.absolute().parent.name if stem in _SIDES else stem, "my-sweep")
    task = {
        "name": name,
        **{side: os.path.relpath(path, options.file.parent) for side, (path, _) in sides.items()},
        "text": [*options.text],
        "label": initrows.label_of(options),
        "labels": [*rows.labels],
        "group": options.group if kind.ranks else None,
        "kind": rows.kind if rows.kind != "classification" else None,
        "metric": rows.metric,
    }
    epochs = epochs_for(train * (kind.rows_each if kind.embeds else 1), BATCH)
    return _file(
        name,
        replace(options, kind=rows.kind),
        _task_lines(
            {key: value for key, value in task.items() if value},
            {
                side: f"{n:,} {'rows' if side == 'train' else kind.scored_by}"
                for side, (_, n) in sides.items()
            },
        ),
        epochs=min(MOST_EPOCHS, max(1 if kind.embeds else 3, epochs)),
        length=rows.max_length,
    )


def _task_name(place: str, otherwise: str) -> str:
    """A name of a file or folder as that of a sweep and its task, which no GLUE task has."""
    name = _NO_NAME.sub("-", place).strip("-._")[:_LONGEST_NAME] or otherwise
    return f"my-{name}" if canonical_name(name) else name


def _task_lines(task: dict[str, Any], why: dict[str, str]) -> list[str]:
    """`tasks:` with one task; `why` has the comments, by key."""
    lines = [
        f"    {key}: {_scalar(value)}{f'   # {why[key]}' if key in why else ''}"
        for key, value in task.items()
    ]
    return ["tasks:", f"  - {lines[0].lstrip()}", *lines[1:]]


def _model(options: InitOptions) -> str:
    """A hub id, or a folder: relative to the sweep file unless its path is absolute."""
    model = initrows.model_of(options)
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return model
    if folder.is_absolute():
        return str(folder)
    path = os.path.relpath(folder, options.file.parent)
    return path if path.startswith(".") else f"./{path}"


def _file(
    name: str, options: InitOptions, tasks: Sequence[str], *, epochs: int, length: int
) -> str:
    """For embeddings, which layers go and what replaces them decides, and the seed hardly: networks
    are scored untrained, or differ by a tenth of a point after imitation."""
    embeds = bool(options.kind and KINDS[options.kind].embeds)
    rate, seeds = ("1e-4", "[42]") if embeds else ("3e-5", "[42, 43, 44]")
    which = "K layers" if embeds else "the K highest layers"
    recipe = f"learning_rate: {rate}, batch_size: {BATCH}, epochs: {epochs}, max_length: {length}"
    return _SCHEMA_LINE + "\n".join(
        [
            "schema_version: 1",
            f"name: {_scalar(name)}",
            f"models: [{_scalar(_model(options))}]   # a hub id or a folder",
            *tasks,
            *[_OF_VECTORS] * embeds,
            *[_BRIDGES] * (embeds and _can_be_bridged(options)),
            f"seeds: {seeds}",
            f"strategies:   # drop {which}; train only what the answer needs",
            f"  - {{name: top, k: all, until: min_layers}}{'   # the highest' * embeds}",
            *[f"  - {_INFLUENCE}   # those that change their input least"] * embeds,
            f"recipe: {{{recipe}}}",
            "",
        ]
    )


def _can_be_bridged(options: InitOptions) -> bool:
    """True for what only the hub knows: a plan tells of it."""
    config = read_config(Path(options.model or "").expanduser() / "config.json")
    return not config or family_of(config.get("model_type")).feed_forward is not None


def _scalar(value: Any) -> str:
    """A value as YAML on one line, also between others in a list."""
    return yaml_text([value], in_line=True)[1:-2]


def _written(options: InitOptions, made: dict[Path, bytes], notes: list[str]) -> WrittenSweep:
    """Each file whole or not at all; the sweep file last, and only if `plan` can read it."""
    check(parse_yaml(made[options.file].decode(), str(options.file)))
    there = [path for path, content in made.items() if _differs(path, content)]
    schema = json.dumps(SweepSpec.model_json_schema(), indent=1).encode()
    content = {options.file.parent / SCHEMA: schema, **made}
    try:
        if odd := [path for path in content if path.exists() and not path.is_file()]:
            raise SpecError(f"{listed(odd)}: not a file to overwrite. Name another.")
        if there and not options.force:
            exist = "exists" if len(there) == 1 else "exist"
            raise SpecError(f"{listed(there)} {exist}. Name another, or overwrite with --force.")
        for path, text in content.items():
            with arriving(path) as new:
                new.write_bytes(text)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        step = "Make its folder, or name another file."
        raise SpecError(f"can't write {options.file}: {why}. {step}") from None
    return WrittenSweep([*made], notes)


def _differs(path: Path, content: bytes) -> bool:
    """Whether the path has other content, or content that can't be read."""
    try:
        return path.read_bytes() != content
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return os.path.lexists(path)
