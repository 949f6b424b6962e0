"""Summarises a task's rows for a plan: their number, balance and length, and the smallest loss that
they can show.

Counts the labels of all rows and the tokens of a sample. Imports no torch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from lp_sweep.analysis.phrases import heading
from lp_sweep.analysis.statistics.estimates import smallest_loss
from lp_sweep.orchestrator.inputs import weights
from lp_sweep.orchestrator.inputs.folder import ModelFault, open_tokenizer, read_config
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.storage.errors import TrialError
from lp_sweep.storage.printable import guess_name, listed, metric_name, shown
from lp_sweep.trials.data.datasource import LoadedTask, Split
from lp_sweep.trials.kinds import Kind, kind_of
from lp_sweep.trials.spec.scoring import facts_of
from lp_sweep.trials.spec.specs import Recipe
from lp_sweep.trials.train.metrics import majority_score, positive_label

FEWEST_STEPS = 100  # optimiser steps, below which fine-tuning learns little
MOST_ROWS = 20_000  # dev rows to ask for
SAMPLE = 2_000  # rows whose tokens are counted
_WITHOUT_DEFAULTS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes without own tokens


class TaskData(NamedTuple):
    """A task's rows."""

    task: str
    train_rows: int
    looked_at: int | None  # only so many train rows were read, the first; None: all were
    dev_rows: int
    classes: dict[str, int]  # train rows by class, the largest first; {} for numbers
    metric: str
    majority: float | None  # the score of guessing, in points
    epochs: int
    batch_size: int
    steps: int  # of the optimiser
    max_length: int
    # share of the train and unlabelled texts longer than max_length, for the model with the most
    # tokens; None without a tokenizer
    cut: float | None
    # seeds -> the smallest loss in points that the dev rows are likely to show, None if they show
    # none; {} if unknown
    shows: dict[int, float | None]
    unlabelled: int  # texts for students that were read
    more_unlabelled: bool
    guessing: str  # `the majority class`
    words: int  # of the train rows, where each has a tag
    lost: float | None  # the share of words without a token
    called: str  # what the classes are
    fewest_steps: int  # with fewer a network learns little
    learns_from: str  # what a row of train is
    scored_by: str  # what a row of dev is
    tokens: float | None  # the mean length after truncation, as for `cut`
    unknown: float | None  # the share of tokens for what a tokenizer does not know, as a script

    def plain(self) -> dict[str, Any]:
        return self._asdict()

    def lines(self) -> Iterator[str]:
        learns = f"train {self.learns_from}"
        rows = f"{self.train_rows:,} {learns}, {self.dev_rows:,} dev {self.scored_by}"
        rows = f"more than {rows}" if self.train_rows == self.looked_at else rows
        rows += f" (looked at the first {self.looked_at:,} {learns})" if self.looked_at else ""
        shares = balance(self.called, self.classes, self.words or self.train_rows, 6)
        if self.words:
            yield f"{rows}; {self.words:,} words in train"
            yield shares
        else:
            yield rows + (f"; {shares}" if self.classes else "")
        if self.unlabelled:
            than = "more than " if self.more_unlabelled else ""
            yield f"{than}{self.unlabelled:,} unlabelled texts: students also learn from these"
        guess = f"; {self.guessing} scores {self.majority:.0f}" if self.majority else ""
        yield f"{heading('', self.metric).strip()}{guess}"
        if self.shows:
            what = f"smallest loss that the dev {self.scored_by} are likely to show"
            yield f"{what}: {self._losses()}"
        yield self._steps()
        if self.cut:
            share = f"{self.cut:.0%}" if self.cut >= 0.01 else "under 1%"
            yield f"{share} of the texts are cut at max_length {self.max_length}"
        if self.unknown and self.unknown >= 0.01:
            yield f"{self.unknown:.0%} of the tokens are unknown to a model's tokenizer ([UNK])"
        if self.lost:
            share = f"{self.lost:.2%}" if self.lost >= 1e-4 else "under 0.01%"
            yield f"{share} of the words have no token left: not learned, and counted as wrong"

    def _losses(self) -> str:
        """`3.7 points with 1 seed (for that network alone), 4.4 with 3`, `none with 1 seed ...`"""
        said, unit = [], " points"
        for seeds, loss in self.shows.items():
            alone = " seed (for that network alone)" if seeds == 1 else ""
            said.append(f"{'none' if loss is None else f'{loss:.1f}{unit}'} with {seeds}{alone}")
            unit = unit if loss is None else ""
        return ", ".join(said)

    def _steps(self) -> str:
        epochs = f"{self.epochs} epoch{'s' * (self.epochs != 1)}"
        told = f"{self.steps:,} optimiser steps ({epochs}, batch {self.batch_size})"
        if self.train_rows == self.looked_at:
            return f"more than {told}"
        if self.steps >= self.fewest_steps:
            return told
        more = epochs_for(self.train_rows, self.batch_size)
        steps = more * math.ceil(self.train_rows / self.batch_size)
        return f"{told}: probably too few; {more} epochs give {steps:,}"


def epochs_for(rows: int, batch_size: int) -> int:
    """The fewest epochs with at least FEWEST_STEPS steps."""
    return math.ceil(FEWEST_STEPS / math.ceil(rows / batch_size))


def balance(called: str, classes: Mapping[str, int], rows: int, most: int) -> str:
    """`2 classes: 'bad' 51%, 'good' 49%`, with the names of at most `most`. classes: each with its
    number of rows."""
    shares = [
        f"{shown(name)} {'under 1%' if 0 < count < rows / 200 else f'{count / rows:.0%}'}"
        for name, count in classes.items()
    ]
    return f"{len(shares)} {called}: {listed(shares, most)}"


def looked_at(
    name: str, loaded: LoadedTask, recipe: Recipe, models: Iterable[ModelInput]
) -> TaskData:
    """`loaded`: the rows within the limits of `recipe`."""
    train, dev, definition = loaded.train, loaded.dev[loaded.main_split], loaded.definition
    names, kind = loaded.label_names, kind_of(definition)
    learned, scored = ({}, np.array([]))
    if names:
        learned = dict(zip(names, kind.counts(train.labels, len(names)).tolist(), strict=True))
        scored = kind.counts(dev.labels, len(names))
    classes = sorted(learned.items(), key=lambda item: -item[1])
    guess = majority_score(definition, dev.labels, names)
    dev_rows, rows = len(kind.stored_labels(dev.labels)), len(train) * kind.rows_each
    positive = positive_label(definition, names) if names else 1
    worth = rows_scored(definition.metric, dev_rows, scored, names, positive)
    texts = sample(loaded.taught, kind)
    found = [_cut(model, texts, recipe.max_length, kind) for model in models]
    cuts = [cut for cut in found if cut is not None]

    def most(of: Callable[[_Cut], float]) -> float | None:
        return max(map(of, cuts), default=None)

    return TaskData(
        task=name,
        train_rows=rows,
        looked_at=loaded.looked_at and loaded.looked_at * kind.rows_each,
        dev_rows=dev_rows,
        classes={each: count for each, count in classes if count or not kind.words},
        metric=metric_name(definition.metric, definition.positive),
        majority=None if guess is None else 100 * guess,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        steps=math.ceil(rows / recipe.batch_size) * recipe.epochs,
        max_length=recipe.max_length,
        cut=most(lambda cut: cut.rows),
        shows={seeds: smallest_loss(worth, seeds) for seeds in (1, 3, 5)} if worth else {},
        unlabelled=len(loaded.unlabelled or ()),
        more_unlabelled=loaded.more_unlabelled,
        guessing=guess_name(definition.kind),
        words=sum(learned.values()) if kind.words else 0,
        lost=most(lambda cut: cut.words) if kind.words else None,
        called=kind.called,
        fewest_steps=0 if kind.embeds else FEWEST_STEPS,  # its vectors are good before training
        learns_from=kind.learns_from,
        scored_by=kind.scored_by,
        tokens=most(lambda cut: cut.tokens),
        unknown=most(lambda cut: cut.unknown),
    )


# how many rows of an accuracy a dev row, or a query, is worth, as measured in docs/statistics.md
_WORTH = {"ndcg@10": 2.5, "mrr@10": 1, "recall@100": 1}


def power_note(rows: int, units: str, worth: float, seeds: int, loss: float) -> Iterator[str]:
    """A sentence on what to ask for, if the dev rows are unlikely to show the allowed loss.
    `worth`: as many rows of an accuracy (`rows_scored`)."""
    if not worth or not rows:
        return
    able = smallest_loss(worth, seeds)
    if able is not None and able <= loss:
        return
    shows = "" if able is None else f", only one of {able:.1f} points or more"
    ask = "" if able is None else f"ask for {math.ceil(able)} (--within), or "
    more = next(_rows_for(loss, able, seeds), None)
    give = f"more dev {units} and seeds"
    if more:
        asked, needed = more
        why = f", enough for {asked:g}" if asked != loss else ""
        give = f"{_two_digits(needed * rows / worth):,} dev {units}{why}"
    yield f"{rows:,} dev {units} can't tell a loss of {loss:g} from chance{shows}: {ask}give {give}"


def _rows_for(loss: float, able: float | None, seeds: int) -> Iterator[tuple[float, int]]:
    """The loss, or the next larger ones in whole points, with the rows of an accuracy that are
    likely to show it. Of few seeds no number of rows shows a small loss."""
    counts = range(100, MOST_ROWS, 100)
    for asked in (loss, *range(math.floor(loss) + 1, math.ceil(able or loss))):
        place = bisect_left(
            counts,
            True,
            key=lambda n: (smallest_loss(n, seeds) or math.inf) <= asked,
        )
        if place < len(counts):
            yield asked, counts[place]


def _two_digits(number: float) -> int:
    """Upwards."""
    unit: int = 10 ** max(0, len(str(int(number))) - 2)
    return math.ceil(number / unit) * unit


def rows_scored(
    metric: str, rows: int, counts: np.ndarray, names: Sequence[str], positive: int
) -> float:
    """The rows of an accuracy with the same precision; 0 for average precision. A metric in which
    all classes weigh the same has the variance of the mean of the classes' own. `rows`: of the dev
    set, or its queries; `counts`: dev rows, or words, of each class."""
    if metric in _WORTH:
        return rows * _WORTH[metric]
    if metric in ("pearson", "spearman"):  # 4 each; fewer of few, whose interval is less sure
        return 4 * rows**2 / (rows + 100)
    if metric in ("accuracy", "weighted_f1", "micro_f1"):
        return float(counts.sum())
    if metric == "entity_f1":  # each has one tag that begins it
        begins = [name.startswith(("B-", "S-")) for name in names]
        return float(counts[begins].sum())
    if facts_of(metric).of_a_class:
        return float(counts[positive])
    if metric in ("macro_f1", "balanced_accuracy", "roc_auc", "mcc"):
        there = counts[counts > 0]
        even = float(len(there) ** 2 / (1 / there).sum())
        return (
            even / 4 if metric == "mcc" else even
        )  # mcc is from -1 to 1: a row moves it twice as far
    return 0.0


class _Cut(NamedTuple):
    """From a sample: the mean tokens of a row after truncation, the share of rows longer than
    `max_length`, the share of tokens that are unknown, and of words whose tokens are all cut."""

    tokens: float
    rows: float
    unknown: float
    words: float = 0.0


def beyond_tables(folder: Path, task: LoadedTask, max_length: int) -> str | None:
    """Why rows of the task can't be looked up in the tables of a model's weights. Loads the whole
    tokenizer (and torch) only where its files tell of tokens or types that have no row."""
    try:
        words, types = weights.tables(folder)
        if not _may_be_beyond(folder, words, types, pairs=len(task.train.texts) > 1):
            return None
        from lp_sweep.trials.data.encode import load_tokenizer, rows_beyond_tables

        tokenizer = load_tokenizer(folder, local_files_only=True)
        return rows_beyond_tables(tokenizer, task, max_length, words, types)
    except ModelFault:  # other checks say what is wrong
        return None
    except TrialError as error:
        return str(error)


def _may_be_beyond(folder: Path, words: int, types: int, *, pairs: bool) -> bool:
    listed = folder / "vocab.txt"
    if not (folder / "tokenizer.json").is_file():
        lines = listed.read_bytes().count(b"\n") if listed.is_file() else 0
        return 0 < words < lines or (lines > 0 and pairs and types == 1)
    tokenizer = open_tokenizer(folder)
    vocabulary = tokenizer.get_vocab()
    told = read_config(folder / "special_tokens_map.json")
    told |= read_config(folder / "tokenizer_config.json")
    more = [each for name, each in told.items() if name.endswith("_token")]
    decoder = told.get("added_tokens_decoder")
    more += decoder.values() if isinstance(decoder, dict) else ()
    names = {each.get("content") if isinstance(each, dict) else each for each in more}
    added = [name for name in names if isinstance(name, str) and name not in vocabulary]
    unpadded = told.get("tokenizer_class") in _WITHOUT_DEFAULTS and not told.get("pad_token")
    most = max(vocabulary.values(), default=0) + len(added)
    second = max(tokenizer.encode("a", "a").type_ids, default=0) if pairs else 0
    return unpadded or 0 < words <= most or 0 < types <= second


def sample(rows: Split, kind: Kind) -> list[tuple[Any, ...]]:
    """The inputs of a model for at most SAMPLE rows, drawn at random: a text, a pair, or for
    embeddings each text alone."""
    chosen = np.random.default_rng(0).permutation(len(rows))[:SAMPLE]
    drawn = [tuple(column[row] for column in rows.texts) for row in chosen]
    return [(text,) for row in drawn for text in row] if kind.embeds else drawn


def encoded(
    tokenizer: Tokenizer, texts: Sequence[tuple[Any, ...]], *, words: bool
) -> list[Encoding]:
    """Each text or pair as tokens. `words`: a text is a list of them."""
    encode = tokenizer.encode_batch if words else tokenizer.encode_batch_fast  # without word_ids
    return encode([each if len(each) > 1 else each[0] for each in texts], is_pretokenized=words)


def _cut(
    model: ModelInput, texts: Sequence[tuple[Any, ...]], max_length: int, kind: Kind
) -> _Cut | None:
    """None where other checks say what is wrong with the tokenizer."""
    try:
        tokenizer = open_tokenizer(model.folder)
    except ModelFault:
        return None
    found = encoded(tokenizer, texts, words=kind.words)
    lengths = np.array([len(row) for row in found])
    known = tokenizer.get_vocab()
    unknown = {known[name] for name in ("[UNK]", "<unk>") if name in known}
    own = sum(row.special_tokens_mask.count(0) for row in found)
    cut = _Cut(
        float(lengths.clip(max=max_length).mean()),
        float((lengths > max_length).mean()),
        sum(row.ids.count(id_) for id_ in unknown for row in found) / max(1, own),
    )
    if not kind.words:
        return cut
    room = max_length - tokenizer.num_special_tokens_to_add(False)
    there = [{*[word for word in row.word_ids if word is not None][:room]} for row in found]
    return cut._replace(words=1 - sum(map(len, there)) / sum(len(each[0]) for each in texts))
