"""`lp-sweep paper`: a store next to Poor Man's BERT, table by table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lp_sweep.analysis.paper.compare import JUDGED, MANY, PAPER_TABLES, check, compare, paper_table
from lp_sweep.analysis.paper.numbers import DEPTHS
from lp_sweep.analysis.paper.ours import models, stands
from lp_sweep.analysis.raw import RAW
from lp_sweep.analysis.render import render, render_rows
from lp_sweep.orchestrator.cli.output import say
from lp_sweep.storage.errors import SpecError

if TYPE_CHECKING:
    from lp_sweep.storage.catalog import Catalog


class Asked(NamedTuple):
    """The tables (empty: all) and their form; `names` maps our models to the paper's."""

    tables: Sequence[int]
    form: str
    names: Mapping[str, str]


def model_names(pairs: Sequence[str]) -> dict[str, str]:
    """Parses pairs such as `./my-bert=bert-base-cased`. Raises SpecError."""
    names = {}
    for pair in pairs:
        ours, equals, papers = pair.rpartition("=")
        if not equals or not ours or not papers:
            raise SpecError(
                f"--model {pair!r}: OUR-MODEL=PAPER'S-MODEL, such as ./bert=bert-base-cased"
            )
        names[ours] = papers
    return names


def tables_text(catalog: Catalog, asked: Asked) -> str:
    """The tables one after another, or all in one CSV or JSON. For a store without any of the
    paper's models only tables asked for by number, since every number would be `missing`.
    """
    import pyarrow as pa

    numbers = _numbers(asked)
    stranger = _stranger(catalog, asked.names)
    if stranger:
        say(stranger)
        if not asked.tables and asked.form not in RAW:
            return ""
    made = [paper_table(catalog, number, names=asked.names) for number in numbers]
    if asked.form in RAW:
        return render_rows(pa.concat_tables(table.long for table in made), asked.form)
    return "\n\n".join(render(table, asked.form).rstrip("\n") for table in made) + "\n"


def _stranger(catalog: Catalog, names: Mapping[str, str]) -> str:
    """A note with the next step if the store has none of the paper's models, else ""."""
    found = models(catalog)
    stand = stands(found.items(), names)
    if stand.of:
        return ""
    have = ", ".join(f"{model} ({depth} layers)" for model, depth in found.items()) or "none"
    fitting = (
        f"{ours}={paper}"
        for ours, own in found.items()
        for paper, depth in DEPTHS.items()
        if own == depth
    )
    pair = next(fitting, "./my-bert=bert-base-cased")
    return (
        f"the store has none of the paper's models ({', '.join(DEPTHS)}). It has: {have}. "
        "`lp-sweep run examples/poor-mans-bert.yaml` trains the paper's. A model of as many layers "
        f"may stand for one: --model {pair}. --table prints a table all the same."
    )


def checked(catalog: Catalog, asked: Asked) -> bool:
    """Whether some numbers agree with the paper's and none differs. Prints the differences."""
    compared = [
        item for number in _numbers(asked) for item in compare(catalog, number, names=asked.names)
    ]
    found = check(compared)
    for item in found:
        ours = "?" if item.ours is None else f"{item.ours:.2f}"
        say(
            f"differs: {item.source}: ours {ours}, paper {item.paper:g}, "
            f"margin {item.margin:.2g}, n={item.n}"
        )
    counts = Counter(item.verdict for item in compared)
    if not any(counts[verdict] for verdict in JUDGED):
        say("nothing was compared: the store has no score of the paper's models on its tasks")
        return False
    say(", ".join(f"{counts[verdict]} {MANY.get(verdict, verdict)}" for verdict in JUDGED))
    if not counts["agrees"] and not found:
        say("no number agrees: nothing is confirmed. `lp-sweep paper` shows how many seeds decide.")
    return bool(counts["agrees"]) and not found


def _numbers(asked: Asked) -> Sequence[int]:
    unknown = [number for number in asked.tables if number not in PAPER_TABLES]
    if unknown:
        allowed = ", ".join(map(str, PAPER_TABLES))
        raise SpecError(f"the paper has no Table {unknown[0]}. Choose one of: {allowed}.")
    return asked.tables or PAPER_TABLES
