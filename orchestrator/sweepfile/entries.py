"""The parts of a sweep file: a model, a task, a recipe, and their short forms.

Short forms are expanded before the check (a model's id becomes `{id: ...}`), so that each key has
one type and each message one meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    create_model,
    field_validator,
    model_validator,
)

from lp_sweep.storage.printable import choose, shown
from lp_sweep.storage.sense import DEEPEST
from lp_sweep.trials.data.tasks import CORPUS, QRELS, QUERIES, TASKS, canonical_name
from lp_sweep.trials.kinds import KINDS
from lp_sweep.trials.spec.autorecipe import AUTO, FoundRecipe
from lp_sweep.trials.spec.scoring import facts_of
from lp_sweep.trials.spec.specs import Recipe, TaskKind

_OF_VECTORS = ("pooling", "similarity", "prompts", "loss")
SEARCHED = (CORPUS, QUERIES, QRELS)
_RANGE = re.compile(r"^\s*(\d{1,18})\s*(?:-|\.\.)\s*(\d{1,18})\s*$")
_MOST_NUMBERS = 10_000
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*$")
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


class Entry(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, populate_by_name=True, allow_inf_nan=False
    )


def _as_text(value: Any) -> Any:
    """A class as the data names it, where YAML reads a number."""
    return str(value) if type(value) is int else value


def is_folder(name: str) -> bool:
    """Whether a model's name can only be a folder's."""
    return name.startswith((".", "/", "~"))


def listed(value: Any) -> Any:
    return value if isinstance(value, list) or value is None else [value]


def named(key: str) -> Callable[[Any], Any]:
    def widen(value: Any) -> Any:
        return {key: value} if isinstance(value, str) else value

    return widen


def duration(value: Any) -> Any:
    """Seconds of `90`, `90s`, `5m` or `1h`; None for `off`, which YAML reads as false."""
    if value is None or value is False or value == "off":
        return None
    match = _DURATION.match(str(value)) if type(value) in (int, float, str) else None
    if match is None or not float(match[1]):
        raise ValueError(f"a time is 30s, 5m, 1h or off, got {shown(value)}")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def seed_list(value: Any) -> Any:
    """`42`, `[42, 43]`, `42-46` (with 46), `{from: 42, to: 46}` or `{from: 42, count: 5}`."""
    return _numbers(value, "seeds")


def k_list(value: Any) -> Any:
    """The same forms for K. Any other text, such as `all`, stays as it is."""
    if value is None or (isinstance(value, str) and not _RANGE.match(value)):
        return value
    return _numbers(value, "K")


def _numbers(value: Any, what: str) -> Any:
    if isinstance(value, list):
        numbers: list[Any] = []
        for item in value:
            numbers += _numbers(item, what)
            if len(numbers) > _MOST_NUMBERS:
                raise ValueError(f"more than {_MOST_NUMBERS} {what}. Split the sweep.")
        return numbers
    if isinstance(value, Mapping):
        if set(value) not in ({"from", "to"}, {"from", "count"}) or not all(
            type(number) is int for number in value.values()
        ):
            raise ValueError(
                f"a range of {what} is {{from: 42, to: 46}} or {{from: 42, count: 5}}, got "
                f"{shown(dict(value))}"
            )
        first = value["from"]
        last = value["to"] if "to" in value else first + value["count"] - 1
        return _from_to(first, last, what)
    match = _RANGE.match(value) if isinstance(value, str) else None
    return _from_to(int(match[1]), int(match[2]), what) if match else [value]


def _from_to(first: int, last: int, what: str) -> list[int]:
    if not first <= last < first + _MOST_NUMBERS:
        raise ValueError(f"{what} from {first} to {last} are not 1 to {_MOST_NUMBERS} numbers")
    return list(range(first, last + 1))


Ints = Annotated[list[int], Field(min_length=1), BeforeValidator(listed)]
Floats = Annotated[list[float], Field(min_length=1), BeforeValidator(listed)]
Texts = Annotated[list[str], Field(min_length=1), BeforeValidator(listed)]
# chosen by the type, so that a mistake is reported once
AllOrInts = Annotated[
    Annotated[Literal["all"], Tag("word")] | Annotated[Ints, Tag("numbers")],
    Discriminator(lambda value: "word" if isinstance(value, str) else "numbers"),
]


class ModelEntry(Entry):
    """A pre-trained encoder: a hub id, or a folder in the layout of `save_pretrained`."""

    id: str = Field(min_length=1, description="hub id, or a folder (relative to the sweep file)")
    revision: str | None = Field(None, description="hub branch, tag or commit; a commit is exact")
    k: Annotated[Ints | None, BeforeValidator(k_list)] = Field(
        None, description="K for this model, instead of the strategies' own"
    )
    layers: int | None = Field(
        None, gt=0, le=DEEPEST, description="number of layers, if it can't be looked up"
    )


_Loss = Literal[
    "imitate", "imitate_mse", "imitate_similarities", "cosent", "in_batch_negatives", "bce",
    "listwise",
]  # fmt: skip


class PromptsEntry(Entry):
    """Texts that go before every query and every document, such as `query: `."""

    query: str = Field("", description="before a query, and before the first text of a pair")
    document: str = Field(
        "", description="before a document, the second text of a pair, and any other text"
    )


class TaskEntry(Entry):
    """A GLUE task by its name, or your own data: `train` and `dev` files, or a hub data set."""

    name: str = Field(
        min_length=1,
        description="sst2, mnli, qnli, qqp, stsb, rte, mrpc, cola, wnli, or one of your own",
    )
    train: str | None = Field(
        None,
        description="file of train rows: CSV, TSV, JSONL or Parquet; for kind tokens also CoNLL",
    )
    dev: str | None = Field(None, description="a file of the rows to score (dev set)")
    test: str | None = Field(
        None,
        min_length=1,
        description="rows that are set aside: a file, or a split of the hub data set; with "
        "`corpus`, judgements of other queries. Scored once, for what is shipped: no trial and no "
        "choice reads them",
    )
    corpus: str | None = Field(
        None,
        min_length=1,
        description="the documents to search, with columns _id, title and text (kind embedding; "
        "replaces `dev`). Without `train`, pruned networks learn from them",
    )
    queries: str | None = Field(
        None, min_length=1, description="with `corpus`: the queries, with columns _id and text"
    )
    qrels: str | None = Field(
        None,
        min_length=1,
        description="with `corpus`: the judgements, with columns query-id, corpus-id and score",
    )
    unjudged: Literal["refuse", "skip"] = Field(
        "refuse", description="with `corpus`: what to do with queries without a relevant document"
    )
    dataset: str | None = Field(None, description="hub data set, instead of files")
    unlabelled: str | None = Field(
        None,
        min_length=1,
        description="a file of texts without labels, for `distill`: students also learn the "
        "teacher's answers to these",
    )
    config: str | None = Field(None, description="configuration of the hub data set")
    revision: str | None = Field(None, description="branch, tag or commit of the hub data set")
    train_split: str = Field("train", description="name of the hub data set's split to train on")
    dev_split: str = Field("validation", description="name of the hub data set's split to score")
    text: Texts | None = Field(None, description="one or two text columns")
    label: Annotated[
        Annotated[str, Tag("column")] | Annotated[Texts, Tag("columns")],
        Discriminator(lambda value: "columns" if isinstance(value, list) else "column"),
    ] = Field(
        "label",
        description="the column of labels; for multi_label a column of lists, or the names of "
        "several columns of 0 and 1, one for each label",
    )
    labels: Texts | None = Field(None, description="class names, in the order of their numbers")
    label_separator: str | None = Field(
        None,
        min_length=1,
        description="for multi_label with a column of texts: what is between two labels of a row, "
        "such as `,` in `delivery,damage`; an empty cell has no label",
    )
    drop_missing: bool = Field(
        False,
        description="leave out rows without a text or a label; otherwise a missing one is refused, "
        "and an empty text is a row",
    )
    kind: TaskKind = Field(
        "classification",
        description="; ".join(f"{name}: {kind.help}" for name, kind in KINDS.items()),
    )
    metric: str | None = Field(
        None,
        description="; ".join(f"{name}: {', '.join(kind.metrics)}" for name, kind in KINDS.items())
        + ". The first is the default",
    )
    positive: Annotated[str | None, BeforeValidator(_as_text)] = Field(
        None,
        min_length=1,
        description="the class that f1, average_precision and recall@... score; needed with these, "
        "unless the classes are 0 and 1",
    )
    pooling: Literal["mean", "cls", "last"] | None = Field(
        None,
        description="for embedding: how a text's tokens become one vector; default: as the model's "
        "folder says (Sentence Transformers), else mean",
    )
    similarity: Literal["cosine", "dot"] | None = Field(
        None,
        description="for embedding: how two vectors are compared; default: as the model's folder "
        "says, else cosine",
    )
    prompts: PromptsEntry | None = Field(
        None, description="for embedding; default: as the model's folder says, else none"
    )
    loss: _Loss | None = Field(
        None,
        description="for embedding, how pruned networks learn: imitate the full model's vectors "
        "(the default; by the cosine, or imitate_mse by the squared difference; "
        "imitate_similarities: also how alike the texts of a batch are), from pairs with scores "
        "(cosent), or from pairs that belong together (in_batch_negatives). For ranking: "
        "bce (the default): is a passage relevant; listwise: the order of a query's passages in "
        "a batch",
    )
    group: str | None = Field(
        None,
        min_length=1,
        description="for ranking: the column that the rows of a query share; default: its text",
    )
    tune_thresholds: bool = Field(
        False,
        description="for multi_label: choose a threshold for each label on the train rows: for "
        "micro F1 if that is the metric, else for the label's F1; default: a probability of 0.5",
    )

    @model_validator(mode="before")
    @classmethod
    def _searched(cls, content: Any) -> Any:
        """Makes an embedding task with a corpus a retrieval task."""
        embeds = isinstance(content, Mapping) and content.get("kind") == "embedding"
        if embeds and any(content.get(part) is not None for part in SEARCHED):
            return {**content, "kind": "retrieval"}
        return content

    @model_validator(mode="after")
    def _complete(self) -> TaskEntry:
        if self.is_glue and not KINDS[self.kind].searches:
            choose("task", self.name, TASKS, given=canonical_name(self.name) or self.name)
        if self.metric is not None and not self.is_glue:
            kinds_of_own = ("classification", "regression", "multi_label")
            own = [self.metric] * (
                facts_of(self.metric).own is not None and self.kind in kinds_of_own
            )
            choose(f"{self.kind} metric", self.metric, [*KINDS[self.kind].metrics, *own])
        for mistake in self._mistakes():
            raise ValueError(f"task {shown(self.name)} {mistake}")
        return self

    def _mistakes(self) -> Iterator[str]:
        """Messages on keys that can't be combined; the first is reported."""
        if KINDS[self.kind].searches:
            yield from self._mistakes_of_search()
        elif any(getattr(self, part) for part in SEARCHED):
            yield "has a corpus to search: write `kind: embedding`"
        elif self.is_glue:
            if fixed := sorted(self.model_fields_set - {"name", "unlabelled"}):
                yield f"is GLUE's, its {', '.join(fixed)} can't be set: remove it, or rename"
        elif (self.train is None or self.dev is None) and self.dataset is None:
            yield "needs `train:` and `dev:`, or `dataset:`. `lp-sweep init --data` splits one file"
        elif len(self.text or ()) not in (1, 2):
            yield "needs `text:`, the name of one or two columns"
        yield from self._mistakes_of_kind()

    def _mistakes_of_kind(self) -> Iterator[str]:
        kind = KINDS[self.kind]
        if self.loss is not None and kind.losses and self.loss not in kind.losses:
            yield f"can't have `loss: {self.loss}`: kind {self.kind} has {', '.join(kind.losses)}"
        own = [key for key in _OF_VECTORS if getattr(self, key) is not None]
        if own and not kind.embeds and (own[0] != "loss" or not kind.losses):
            yield f"can't have `{own[0]}:`, which is for kind embedding: remove it"
        if self.label_separator and (self.kind != "multi_label" or isinstance(self.label, list)):
            yield "can't have `label_separator:`, which is for one label column of kind multi_label"
        pairs = kind.rows_together(self.loss or "") > 1
        if pairs and not (self.train or self.dataset):
            yield f"has `loss: {self.loss}`, which needs `train:`, a file of pairs"
        if pairs and len(self.text or ()) != 2:
            yield f"has `loss: {self.loss}`, which learns from pairs: `text:` names two columns"
        if self.unlabelled and kind.embeds:
            yield f"(kind {self.kind}) needs no labels: add the texts of `unlabelled:` to `train:`"

    def _mistakes_of_search(self) -> Iterator[str]:
        if missing := [part for part in SEARCHED if getattr(self, part) is None]:
            yield f"needs `corpus:`, `queries:` and `qrels:` files. Add `{missing[0]}:`."
        given = ["label"] if "label" in self.model_fields_set and not self.train else []
        if extra := [name for name in ("dev", "dataset", "labels") if getattr(self, name)] + given:
            yield f"is scored by its corpus, queries and qrels: remove `{extra[0]}:`"
        if self.text and not self.train:
            yield "has `text:`, columns of a `train:` file: remove it, or add the file"

    @property
    def is_glue(self) -> bool:
        described = (self.train, self.dev, self.dataset, self.corpus, self.text)
        return all(item is None for item in described)


class FreezeEntry(Entry):
    """Parts that do not learn, in every network of the sweep."""

    embeddings: bool = Field(False, description="tokens, positions and everything added to them")
    layers: Annotated[list[Annotated[int, Field(gt=0, le=DEEPEST)]], BeforeValidator(listed)] = (
        Field(default=[], description="numbers of the pre-trained model's layers, from 1")
    )


# where the file differs from a `Recipe`
_IN_FILE: dict[str, dict[str, Any]] = {
    "learning_rate": {"validation_alias": AliasChoices("learning_rate", "lr")},
    "compute": {"default": "fast"},
}


def _recipe_keys() -> dict[str, Any]:
    """The fields of `Recipe` that are declared as keys. Some can be the word `auto` instead."""
    types = get_type_hints(Recipe)
    keys: dict[str, Any] = {}
    for key in (key for key in fields(Recipe) if key.metadata):
        kind, declared = types[key.name], dict(key.metadata)
        if key.name in FoundRecipe._fields:
            about = {"description": declared.pop("description") + "; auto: it is found"}
            number = Annotated[kind, Field(**declared), Tag("number")]  # type: ignore[valid-type]
            word = Annotated[Literal["auto"], Tag("auto")]
            kind, declared = Annotated[number | word, Discriminator(_auto_or_number)], about
        given = {"default": key.default, **declared, **_IN_FILE.get(key.name, {})}
        keys[key.name] = (kind, Field(**given))
    return keys


def _auto_or_number(value: Any) -> str:
    return AUTO if value == AUTO else "number"


def recipe_of_auto(content: Any) -> Any:
    """`recipe: auto` as a mapping."""
    return dict.fromkeys(FoundRecipe._fields, AUTO) if content == AUTO else content


if TYPE_CHECKING:

    class _RecipeKeys(Entry):
        def __getattr__(self, name: str) -> Any: ...
else:
    _RecipeKeys = create_model("_RecipeKeys", __base__=Entry, __module__=__name__, **_recipe_keys())


class RecipeEntry(_RecipeKeys):
    """How each network is fine-tuned. The defaults are the paper's."""

    freeze: FreezeEntry = Field(FreezeEntry(), description="parts that do not learn")

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and {"lr", "learning_rate"} <= set(content):
            raise ValueError("`lr` and `learning_rate` are one key. Keep one of them.")
        return content

    @model_validator(mode="after")
    def _both(self) -> RecipeEntry:
        if self.automatic == ("epochs",):
            raise ValueError("epochs: auto comes with learning_rate: auto. Write both, or a number")
        return self

    @property
    def automatic(self) -> tuple[str, ...]:
        """The keys that a measurement finds."""
        return tuple(key for key in FoundRecipe._fields if getattr(self, key) == AUTO)

    def to_recipe(self) -> Recipe:
        """With the defaults of keys that are still to be found."""
        return Recipe(
            **self.model_dump(exclude={"freeze", *self.automatic}),
            freeze_embeddings=self.freeze.embeddings,
            freeze_layers=tuple(self.freeze.layers),
        )


class CellMatch(Entry):
    """Cells by their values. Each key takes a value or a list; in texts, `*` and `?` match any."""

    model: Texts | None = Field(None, description="as in `models`")
    procedure: Texts | None = Field(
        None, description="such as `iterative 3`, `direct bridge linear` or `direct*`"
    )
    feed_forward: Texts | None = Field(None, description="such as `top 3`")
    strategy: Texts | None = Field(None, description="such as `top` or `random*`")
    k: Ints | None = Field(None, description="number of layers dropped")
    threshold: Floats | None = Field(None, description="for contribution")
    task: Texts | None = Field(None, description="name of the task")
    seed: Ints | None = Field(None, description="seed of the training")

    @field_validator("task")
    @classmethod
    def _as_in_cells(cls, names: list[str] | None) -> list[str] | None:
        return names and [canonical_name(name) or name for name in names]


class ContributionEntry(Entry):
    """How the contribution of layers is measured, unless a strategy sets it itself."""

    measured_on: str = Field(
        "own", description="own: on each trial's task; or the name of one task for all"
    )


class Resources(Entry):
    """The resources of one trial. Default: one GPU, or a group of cores on a CPU machine."""

    cpu: float | None = Field(None, gt=0, description="CPU cores")
    gpu: float | None = Field(None, ge=0, description="GPUs, or a share of one")
    accelerator_type: str | None = Field(
        None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="kind of GPU, by Ray's name"
    )

    @model_validator(mode="after")
    def _with_gpu(self) -> Resources:
        if self.accelerator_type is not None and self.gpu == 0:
            raise ValueError("accelerator_type is a kind of GPU, and gpu is 0. Keep one of them.")
        return self


Cells = Annotated[list[CellMatch], BeforeValidator(listed)]
