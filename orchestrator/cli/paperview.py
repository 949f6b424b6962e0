"""`lp-sweep paper`: a store next to Poor Man's BERT, table by table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lp_sweep.analysis.paper.compare import JUDGED, counted, paper_tables
from lp_sweep.analysis.paper.models import DEPTHS, paper_models, store_models
from lp_sweep.analysis.render import RAW, render, render_rows
from lp_sweep.analysis.tabledef import Table
from lp_sweep.orchestrator.cli.output import say
from lp_sweep.storage.errors import SpecError

if TYPE_CHECKING:
    from lp_sweep.storage.catalog import Catalog


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


def compared(
    catalog: Catalog, numbers: Sequence[int], names: Mapping[str, str], form: str
) -> list[Table]:
    """The tables of these numbers, or all. For people, a store without any of the paper's models
    has only tables asked for by number, since every number would be `missing`."""
    tables = paper_tables(catalog, numbers, names=names)
    models = store_models(catalog)
    if paper_models(models, names).of:
        return list(tables.values())
    have = ", ".join(f"{model} ({depth} layers)" for model, depth in models.items()) or "none"
    fitting = (
        f"{ours}={paper}"
        for ours, own in models.items()
        for paper, depth in DEPTHS.items()
        if own == depth
    )
    pair = next(fitting, "./my-bert=bert-base-cased")
    say(
        f"the store has none of the paper's models ({', '.join(DEPTHS)}). It has: {have}. "
        "`lp-sweep run examples/poor-mans-bert.yaml` trains the paper's. A model of as many layers "
        f"may stand for one: --model {pair}. --table prints a table all the same."
    )
    return list(tables.values()) if numbers or form in RAW else []


def tables_text(tables: Sequence[Table], form: str) -> str:
    """The tables one after another, or all in one CSV or JSON."""
    import pyarrow as pa

    if form in RAW:
        return render_rows(pa.concat_tables(table.long for table in tables), form)
    return "\n".join(render(table, form) for table in tables)


def checked(tables: Sequence[Table]) -> bool:
    """Whether some numbers agree with the paper's and none differs. Prints the differences."""
    rows = [row for table in tables for row in table.long.to_pylist()]
    judged = [row for row in rows if row["verdict"] in JUDGED]
    differ = [row for row in judged if row["verdict"] == "differs"]
    for row in differ:
        ours = "?" if row["ours"] is None else f"{row['ours']:.2f}"
        say(f"differs: {row['source']}: ours {ours}, paper {row['paper']:g}, n={row['n']}")
    if not judged:
        say("nothing was compared: the store has no score of the paper's models on its tasks")
        return False
    say(counted(judged))
    agrees = any(row["verdict"] == "agrees" for row in judged)
    if not agrees and not differ:
        say("no number agrees: nothing is confirmed. More seeds narrow the intervals.")
    return agrees and not differ
