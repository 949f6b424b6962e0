"""Options of the command line: those of several verbs, and how a dataclass has some as fields.

An option is declared once, as `Annotated[its type, Option("--its-name", ...)]`: an alias here
if several verbs have it, else a field of the verb's dataclass or a parameter of its command.
`takes_options` makes a command with an option for each such field. Python has the same options:
`from_environment` gives those that a shell's variables say.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from importlib.resources import as_file, files
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from typer import Argument, Option

from lp_sweep.analysis.rows import NO_BUDGET, ServingBudget
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import BUILT_IN, DEFAULT_STORE, expanded
from lp_sweep.trials.spec.specs import ArtefactFormat, TaskKind, Vocabulary

if TYPE_CHECKING:  # `--help` needs the options alone
    from lp_sweep.orchestrator.inputs.resolve import SweepInputs
    from lp_sweep.orchestrator.sweepfile.load import SweepFile
    from lp_sweep.storage.store import Store

_Options = TypeVar("_Options")
ADVANCED = "Advanced"  # rarely needed: the help lists it last


# -- TAB in a shell. Lists local stores only and ignores every error: it must neither wait for a
# network nor print a traceback into a prompt


def names_in_store(
    ctx: typer.Context, listing: Callable[[Store], Collection[str]]
) -> Collection[str]:
    """Names in the store on the command line, in LP_SWEEP_STORE or in this folder."""
    location = ctx.params.get("store") or DEFAULT_STORE
    if "://" in location:
        return []
    with suppress(Exception):  # the command itself will report it
        from lp_sweep.storage.store import Store

        return sorted(filter(str.isprintable, listing(Store(location))))
    return []


def sweeps(ctx: typer.Context) -> Collection[str]:
    return names_in_store(ctx, lambda store: store.names("sweeps"))


def tasks(ctx: typer.Context) -> Collection[str]:
    """The tasks of the store's sweeps."""

    def listed(store: Store) -> set[str]:
        return set(store.read_all("sweeps", columns=["task"]).rows["task"].to_pylist())

    return names_in_store(ctx, listed)


def strategies() -> list[tuple[str, str]]:
    """Each strategy with its line of help, which most shells show."""
    from lp_sweep.trials.spec.select import STRATEGIES

    return [(name, strategy.help) for name, strategy in STRATEGIES.items()]


# -- options of several verbs


def _not_empty(value: str | None) -> str | None:
    """Rejects "": an unset variable of a script must not mean the current folder."""
    if value is not None and not value.strip():
        raise typer.BadParameter("it is empty. Name a folder or s3://bucket/prefix.")
    return value


StoreOption = Annotated[
    str | None,
    Option(
        "--store",
        envvar="LP_SWEEP_STORE",
        callback=_not_empty,
        help="Records: a folder or s3://bucket/prefix. [lp-sweep-store]",
    ),
]
DataDirOption = Annotated[
    Path | None,
    Option(
        "--data-dir",
        envvar="LP_SWEEP_DATA_DIR",
        help="GLUE from files <task>/train.parquet, not from the hub.",
    ),
]
OfflineOption = Annotated[
    bool,
    Option(
        "--offline",
        envvar="LP_SWEEP_OFFLINE",
        help="Use cached models and data; never ask the hub.",
    ),
]
ManifestOption = Annotated[
    Path | None,
    Option(
        "--manifest",
        envvar="LP_SWEEP_MANIFEST",
        help="File of pinned revisions. [sweep.manifest.json next to sweep.yaml]",
        rich_help_panel=ADVANCED,
    ),
]
CacheDirOption = Annotated[
    Path | None,
    Option(
        "--cache-dir",
        envvar="LP_SWEEP_CACHE_DIR",
        help="Folder on each node for cached tokens and unsent records.",
        rich_help_panel=ADVANCED,
    ),
]
InlineOption = Annotated[
    bool,
    Option(
        "--inline",
        envvar="LP_SWEEP_INLINE",
        help="Train one after another in this process, not on Ray.",
    ),
]
ProcessesOption = Annotated[
    str | None,
    Option(
        "--processes",
        envvar="LP_SWEEP_PROCESSES",
        metavar="<N|gpus>",
        help="Train in N processes, or one a GPU, not on Ray.",
    ),
]
SweepOption = Annotated[
    str | None,
    Option(
        "--sweep",
        envvar="LP_SWEEP_SWEEP",
        autocompletion=sweeps,
        help="Only this sweep of the store (its `name`).",
    ),
]
SetupOption = Annotated[
    int | None,
    Option(
        "--setup",
        envvar="LP_SWEEP_SETUP",
        min=1,
        help="Show an earlier recipe, data or model: its number in `table setups`.",
        rich_help_panel=ADVANCED,
    ),
]
UnitOption = Annotated[
    Literal["points", "percent"],
    Option(
        "--unit",
        envvar="LP_SWEEP_UNIT",
        help="The unit of a loss: points, or percent of the full model's score.",
    ),
]
MaxMsOption = Annotated[
    float | None,
    Option(
        "--max-ms", envvar="LP_SWEEP_MAX_MS", min=0, help="Milliseconds of one text, as measured."
    ),
]
MaxMbOption = Annotated[
    float | None,
    Option("--max-mb", envvar="LP_SWEEP_MAX_MB", min=0, help="Megabytes on disk, as measured."),
]
SmallestOption = Annotated[
    bool,
    Option("--smallest", envvar="LP_SWEEP_SMALLEST", help="Choose the smallest, not the fastest."),
]
FileOption = Annotated[
    str | None,
    Option(
        "--file", envvar="LP_SWEEP_FILE", help="Sweep file that names model and data. [sweep.yaml]"
    ),
]
OutOption = Annotated[Path, Option("--out", help="Folder to create.")]
ForceOption = Annotated[bool, Option("--force", help="Overwrite an earlier export there.")]
JsonOption = Annotated[bool, Option("--json", envvar="LP_SWEEP_JSON", help="Print JSON.")]


class MirrorKind(StrEnum):
    """The tools that can show trials. Each is a module, and an extra of the package."""

    mlflow = "mlflow"
    wandb = "wandb"
    trackio = "trackio"


MEASURED: tuple[ArtefactFormat, ...] = ("torch", "onnx", "onnx-int8")  # if none is named
TextsOption = Annotated[
    list[str],
    Option(
        "--texts",
        help="--vocabulary task: more texts that it is cut on, a file with the task's columns.",
        rich_help_panel=ADVANCED,
    ),
]

Format = Literal["table", "csv", "json", "markdown", "latex"]
FormatOption = Annotated[
    Format, Option("--format", "-f", envvar="LP_SWEEP_FORMAT", help="Output format.")
]


# -- dataclasses with options


def options_of(kind: Any) -> dict[str, inspect.Parameter]:
    """The fields of a dataclass that are options, as parameters of a command."""
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for item in fields(kind):
        if get_origin(hints[item.name]) is Annotated:
            default = item.default
            if item.default_factory is not MISSING:
                default = item.default_factory()
            found[item.name] = inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is MISSING else default,
                annotation=_for_typer(hints[item.name]),
            )
    return found


def _for_typer(hint: Any) -> Any:
    """typer takes a Literal, but no list of one: then a list of an enumeration with its names."""
    kind, option = get_args(hint)[0], hint.__metadata__
    if get_origin(kind) is list and get_origin(get_args(kind)[0]) is Literal:
        names = get_args(get_args(kind)[0])
        return Annotated[list[StrEnum("Choice", [(name, name) for name in names])], *option]  # type: ignore[misc]
    return hint


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer: with an option for each field of the dataclasses that `command` takes,
    instead of these."""
    hints = get_type_hints(command, include_extras=True)
    kinds: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, own in inspect.signature(command).parameters.items():
        if name in kinds:
            parameters += options_of(kinds[name]).values()
        else:
            parameters.append(own.replace(kind=own.KEYWORD_ONLY, annotation=hints[name]))

    @wraps(command)
    def called(**given: Any) -> None:
        for name, kind in kinds.items():
            given[name] = kind(**{option: given.pop(option) for option in options_of(kind)})
        command(**given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


def from_environment(kind: type[_Options]) -> _Options:
    """The options that the command line would have without any word: those of the variables, else
    the defaults. Raises SpecError for a wrong value."""

    def read(**given: Any) -> _Options:
        return kind(**given)

    read.__signature__ = inspect.Signature([*options_of(kind).values()])  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(read)
    try:
        found: _Options = typer.main.get_command(app).main([], standalone_mode=False)
    except typer.BadParameter as error:
        raise SpecError(error.format_message()) from None
    return found


def words_of(options: Any) -> list[str]:
    """The options as typed: `--store`, `records`, `--offline`."""
    words: list[str] = []
    for name, option in options_of(options.__class__).items():
        flag, value = option.annotation.__metadata__[0].default, getattr(options, name)
        if isinstance(value, bool):
            words += [flag] * value
        elif value is not None:
            for one in value if isinstance(value, list | tuple) else [value]:
                words += [flag, str(one)]
    return words


@dataclass(frozen=True)
class Request:
    """A sweep file as named on the command line, and the options for places."""

    file: str = "sweep.yaml"
    overrides: Sequence[str] = ()
    store: StoreOption = None
    data_dir: DataDirOption = None
    offline: OfflineOption = False
    manifest: ManifestOption = None
    own: bool = True  # the user has named the file: its plugins are run

    @property
    def is_built_in(self) -> bool:
        """Whether it is `quickstart`, and no file has that name."""
        return self.file == BUILT_IN and not Path(self.file).is_file()

    def sweep_file(self) -> SweepFile:
        from lp_sweep.orchestrator.sweepfile.load import load_sweep

        if self.is_built_in:
            with as_file(files("lp_sweep.quickstart")) as folder:
                return load_sweep(folder / "sweep.yaml", self.overrides)
        return load_sweep(Path(self.file), self.overrides, own=self.own)

    def resolved(self, file: SweepFile) -> SweepInputs:
        """The file with its inputs found. Raises SpecError or PreflightError."""
        from lp_sweep.orchestrator.inputs.resolve import resolve

        if self.manifest is not None and not self.manifest.is_file():
            raise SpecError(
                f"no manifest {self.manifest}. `lp-sweep prefetch {self.file} --manifest "
                f"{self.manifest}` writes one."
            )
        return resolve(file, data_dir=self.data_dir, offline=self.offline, manifest=self.manifest)

    def location(self, file: SweepFile) -> str:
        """--store (or LP_SWEEP_STORE), else the file's, else lp-sweep-store in this folder."""
        if self.store is not None:
            return self.store
        own = file.spec.store
        if own is None:
            return str(DEFAULT_STORE)
        return own if "://" in own else str(file.folder / expanded(own))


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Each field is an option. Either `trial`, or `best` with a `task`, a loss and what narrows
    the choice down."""

    retrain: ClassVar[bool] = False

    trial: Annotated[
        str | None, Argument(help="A trial's identifier, or the beginning of one.")
    ] = None
    best: Annotated[
        bool, Option("--best", help="Choose the smallest network that loses at most --within.")
    ] = False
    task: Annotated[
        str,
        Option("--task", autocompletion=tasks, show_default=False, help="--best: on this task."),
    ] = ""
    within: Annotated[float, Option("--within", help="--best: the allowed loss.")] = 1.0
    unit: UnitOption = "points"
    fastest: Annotated[
        bool, Option("--fastest", help="--best: of what `measure` measured, not of layers.")
    ] = False
    smallest: Annotated[bool, Option("--smallest", help="--best: likewise, by megabytes.")] = False
    max_ms: Annotated[
        float | None, Option("--max-ms", min=0, help="--best: milliseconds of one text.")
    ] = None
    max_mb: Annotated[float | None, Option("--max-mb", min=0, help="--best: megabytes.")] = None
    model: Annotated[str | None, Option("--model", help="--best: only this model.")] = None
    strategy: Annotated[
        str | None,
        Option("--strategy", autocompletion=strategies, help="--best: only this strategy. [all]"),
    ] = None
    seed: Annotated[
        int | None, Option("--seed", help="--best: this seed. [the one with the median score]")
    ] = None
    store: StoreOption = None
    data_dir: DataDirOption = None
    offline: OfflineOption = False
    manifest: ManifestOption = None
    out: OutOption
    sweep: SweepOption = None
    setup: SetupOption = None
    file: FileOption = None
    cache_dir: CacheDirOption = None
    force: ForceOption = False
    accept_retrained: Annotated[
        bool,
        Option(
            "--accept-retrained",
            help="Accept a score that changed after training again.",
            rich_help_panel=ADVANCED,
        ),
    ] = False
    formats: Annotated[
        list[ArtefactFormat],
        Option(
            "--as", envvar="LP_SWEEP_AS", help="Also as a graph in 32 or 8 bits; may be repeated."
        ),
    ] = field(default_factory=list)
    vocabulary: Annotated[
        Vocabulary,
        Option(
            "--vocabulary",
            envvar="LP_SWEEP_VOCABULARY",
            help="task: only the pieces that the task's train rows use.",
        ),
    ] = "full"
    texts: TextsOption = field(default_factory=list)

    @property
    def budget(self) -> ServingBudget:
        return ServingBudget(self.max_ms, self.max_mb, self.smallest)

    @property
    def as_shipped(self) -> bool:
        """Whether an artefact is chosen, by what was measured, and not a number of layers."""
        return self.fastest or self.budget != NO_BUDGET

    @property
    def graphs(self) -> set[ArtefactFormat]:
        """The torch folder is always there."""
        return {*self.formats} - {"torch"}


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """Each field is an option. The networks are the best of each number of layers on `task`."""

    accept_retrained: ClassVar[bool] = False

    task: Annotated[
        str,
        Option("--task", autocompletion=tasks, show_default=False, help="Networks of this task."),
    ]
    store: StoreOption = None
    formats: Annotated[
        list[ArtefactFormat],
        Option(
            "--as",
            envvar="LP_SWEEP_AS",
            help="May be repeated.",
            show_default=", ".join(MEASURED),
        ),
    ] = field(default_factory=list)
    vocabularies: Annotated[
        list[Vocabulary],
        Option(
            "--vocabulary",
            envvar="LP_SWEEP_VOCABULARY",
            help="May be repeated; task: only the pieces that the task's train rows use.",
            show_default="full",
        ),
    ] = field(default_factory=list)
    texts: TextsOption = field(default_factory=list)
    seconds: Annotated[
        float,
        Option(
            "--seconds", envvar="LP_SWEEP_SECONDS", min=0.1, help="For the turns of each artefact."
        ),
    ] = 3.0  # from one session to the next, times differ by more than longer turns would settle
    threads: Annotated[
        int,
        Option(
            "--threads",
            envvar="LP_SWEEP_THREADS",
            min=1,
            help="CPU threads of one network. A server answers a request on each core.",
        ),
    ] = 1
    device: Annotated[
        str,
        Option("--device", envvar="LP_SWEEP_DEVICE", help="auto: a GPU if it runs all forms."),
    ] = "auto"
    within: Annotated[
        float | None,
        Option(
            "--within",
            envvar="LP_SWEEP_WITHIN",
            min=0,
            help="Only networks that lose at most so much, in points.",
        ),
    ] = None
    model: Annotated[str | None, Option("--model", help="Only this model.")] = None
    again: Annotated[bool, Option("--again", help="Also measure what is measured already.")] = False
    retrain: Annotated[
        bool, Option("--retrain", help="Train networks again that were not kept, and keep them.")
    ] = False
    data_dir: DataDirOption = None
    offline: OfflineOption = False
    manifest: ManifestOption = None
    sweep: SweepOption = None
    setup: SetupOption = None
    file: FileOption = None
    cache_dir: CacheDirOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOptions:
    """A user's rows and the encoder for them. `text` and `label` name columns of `data`; without a
    `kind` the labels tell it."""

    data: Annotated[
        Path | None,
        Option("--data", help="Your rows: CSV, JSONL, Parquet or CoNLL."),
    ] = None
    text: Annotated[list[str], Option("--text", help="Its column of texts; twice for pairs.")] = (
        field(default_factory=list)
    )
    label: Annotated[
        list[str],
        Option("--label", help="Its column of labels, or several of 0 and 1."),
    ] = field(default_factory=list)
    label_separator: Annotated[
        str | None, Option("--label-separator", help="What is between labels in one cell.")
    ] = None
    drop_missing: Annotated[
        bool, Option("--drop-missing", help="Leave out rows without a text or a label.")
    ] = False
    group: Annotated[
        str | None, Option("--group", help="Its column whose equal values stay together.")
    ] = None
    dev: Annotated[
        Path | None, Option("--dev", help="A dev set; without it the rows are split.")
    ] = None
    kind: Annotated[
        TaskKind | None, Option("--kind", metavar="KIND", help=f"{', '.join(get_args(TaskKind))}.")
    ] = None
    corpus: Annotated[
        Path | None, Option("--corpus", help="For search: the documents, in place of --data.")
    ] = None
    queries: Annotated[Path | None, Option("--queries", help="With --corpus: the queries.")] = None
    qrels: Annotated[Path | None, Option("--qrels", help="With --corpus: the judgements.")] = None
    model: Annotated[
        str | None,
        Option("--model", help="Encoder: hub id or folder. [bert-base-cased]"),
    ] = None
    within: Annotated[
        float | None, Option("--within", min=0, help="The loss to allow, in points.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions(RowsOptions):
    """Each field with a help is an option. `quick`: few rows, one seed. `made_by`: a comment of the
    sweep file."""

    file: Annotated[Path, Argument(help="File to write.")] = Path("sweep.yaml")
    force: Annotated[bool, Option("--force", help="Overwrite files.")] = False
    quick: bool = False
    made_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerOptions(RowsOptions):
    """From rows to a smaller model: each field is an option of `run`."""

    out: Annotated[Path | None, Option("--out", help="--data: folder for the smaller model.")] = (
        None
    )
    quick: Annotated[
        bool, Option("--quick", help="--data: a first look in minutes; ships nothing.")
    ] = False
    force: Annotated[bool, Option("--force", help="--data: new file and export, same store.")] = (
        False
    )

    @property
    def from_rows(self) -> bool:
        """Whether there are rows to start from. Raises SpecError for options that need them."""
        if self.data is not None or self.corpus is not None:
            return True
        if words := words_of(self):
            named = ", ".join(word for word in words if word.startswith("--"))
            change = f" To change a sweep: model={self.model}." if self.model else ""
            raise SpecError(
                f"{named}: there are no rows. Add --data FILE, or --corpus FILE.{change}"
            )
        return False
