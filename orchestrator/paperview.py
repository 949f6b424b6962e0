"""`lp-sweep paper`: a store beside Poor Man's BERT, table by table, figure by figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lp_sweep.analysis.paper.compare import PAPER_TABLES, check, compare, paper_table
from lp_sweep.analysis.raw import RAW
from lp_sweep.analysis.render import render, render_rows
from lp_sweep.orchestrator.output import say
from lp_sweep.storage.errors import SpecError, StoreError

if TYPE_CHECKING:
    from lp_sweep.storage.catalog import Catalog


class Asked(NamedTuple):
    """Which tables (none named: all), in what form; `names` maps our models to the paper's."""

    tables: Sequence[int]
    form: str
    names: Mapping[str, str]


def model_names(pairs: Sequence[str]) -> dict[str, str]:
    """`./my-bert=bert-base-cased` each. Raises SpecError."""
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
    """The tables one after another; CSV and JSON in one piece."""
    import pyarrow as pa

    made = [paper_table(catalog, number, names=asked.names) for number in _numbers(asked)]
    if asked.form in RAW:
        return render_rows(pa.concat_tables(table.long for table in made), asked.form)
    return "\n\n".join(render(table, asked.form).rstrip("\n") for table in made) + "\n"


def checked(catalog: Catalog, asked: Asked) -> bool:
    """Whether something was compared, and no number is further from the paper's than its tolerance.
    Says what is."""
    compared = [
        item for number in _numbers(asked) for item in compare(catalog, number, names=asked.names)
    ]
    found = check(compared)
    for item in found:
        ours = "?" if item.ours is None else f"{item.ours:.2f}"
        say(
            f"outside: {item.source}: ours {ours}, paper {item.paper:g}, "
            f"tolerance {item.tolerance:.2f}, n={item.n}"
        )
    if not any(item.verdict in ("within", "outside") for item in compared):
        say(
            "nothing was compared: the store has no network of the paper's models on its tasks. A "
            "model of yours may stand for one: --model ./my-bert=bert-base-cased"
        )
        return False
    return not found


def draw(catalog: Catalog, folder: Path) -> list[Path]:
    """Figures 2 to 5 and those beside them, as SVG and PNG. Raises StoreError."""
    from lp_sweep.analysis.figures.drawings import FIGURES, nothing

    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in FIGURES.items():
            drawing = make(catalog)
            if drawing is None:
                say(nothing(name))
            else:
                written += drawing.save(folder)
    except OSError as error:
        raise StoreError(f"can't write figures to {folder}: {error}. Choose another.") from None
    return written


def _numbers(asked: Asked) -> Sequence[int]:
    unknown = [number for number in asked.tables if number not in PAPER_TABLES]
    if unknown:
        allowed = ", ".join(map(str, PAPER_TABLES))
        raise SpecError(f"the paper has no Table {unknown[0]}. Choose one of: {allowed}.")
    return asked.tables or PAPER_TABLES
