"""How a comparison with the paper is said in a table's cell. Pure: a comparison in, a text out."""

from __future__ import annotations

from typing import Protocol

from lp_sweep.analysis.paper.equivalence import MARGIN, SD_STABLE, SD_UNSTABLE
from lp_sweep.analysis.phrases import NOT_ASKED

TITLES = {
    1: "scores with the top layers dropped, in points, and their change against all layers",
    2: "the most top layers that can be dropped within δ points",
    3: "mean loss over the seven tasks in points, size and speed",
    4: "networks of one size, in points",
    5: "dropped before fine-tuning and after it (FT), in points",
    6: "BERT and RoBERTa with the top layers dropped, in points",
}
SPEEDS = 3  # the table that has them
KEYS: dict[int, tuple[str, ...]] = {
    1: ("model", "drop"),
    2: ("model", "δ"),
    3: ("model", "drop"),
    4: ("model",),
    5: ("model",),
    6: ("model", "drop"),
}
HOW_TO_READ = (
    "Read 90.31 ±0.20 (paper 90.25, +0.06) n=3 as: ours, standard deviation over seeds, what the "
    "paper prints, ours minus the paper's, trials. 6–11: the depths that are missing leave it open."
)
HOW_TO_JUDGE = (
    f"agrees: within {MARGIN:g} point, by two one-sided tests at 5%; of Table 2 every loss is "
    f"within {MARGIN:g} point of the side that the paper's K says. differs: significant at 5%, by "
    "Holm's correction over the numbers of the table. cannot tell: neither; (n≥12) is how many "
    "seeds would tell if the difference stays as it is, and (any n) says that none would, since "
    "the paper is one run on few dev rows. --format csv has the interval of each difference."
)
ASSUMED = (
    "Assumed, not measured: the paper's scores spread over seeds as ours do, and ours by "
    f"{SD_STABLE:g} points ({SD_UNSTABLE:g} on RTE and MRPC) until our own seeds say otherwise. "
    "The dev rows of the paper and of us count as two independent samples."
)
_HEADINGS = {
    "STS-B": "STS-B Pearson",  # the paper doesn't say which correlation
    "Param.": "Param., million",
    "Fine-tuning speedup": "Fine-tuning ×",
    "Inference time": "Inference time saved, %",
}
# decimals of ours, and of the paper's
_DECIMALS = {
    "parameters_million": (1, 0),
    "inference_percent": (1, 0),
    "max_dropped": (0, 0),
}


class Cell(Protocol):
    """What is read of a `paper.Compared`."""

    @property
    def quantity(self) -> str: ...
    @property
    def ours(self) -> float | None: ...
    @property
    def paper(self) -> float: ...
    @property
    def corrected(self) -> float | None: ...
    @property
    def difference(self) -> float | None: ...
    @property
    def sd(self) -> float | None: ...
    @property
    def n(self) -> int: ...
    @property
    def seeds_to_tell(self) -> int | None: ...
    @property
    def verdict(self) -> str: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def heading(column: str) -> str:
    return _HEADINGS.get(column, column)


def cell(item: Cell | None) -> str:
    """`90.31 ±0.20 (paper 90.25, +0.06) n=3`, `missing (paper 90.25)`, `6–11 (paper 7)`."""
    if item is None:
        return NOT_ASKED
    ours, paper = _DECIMALS.get(item.quantity, (2, 2))
    said = [f"paper {_number(item, item.paper, paper)}"]
    if item.verdict == "misprint":
        known = "" if item.corrected is None else f" for {_number(item, item.corrected, paper)}"
        said.append(f"misprint{known}")
    if item.difference is not None:
        said.append(signed(item.difference, ours))
    if item.verdict == "cannot tell":
        said.append(f"cannot tell{_enough(item)}")
    elif item.verdict in ("agrees", "differs", "not comparable"):
        said.append(item.verdict)
    aside = f"({', '.join(said)})"
    if item.ours is None:
        return f"{_span(item)} {aside}"
    spread = "" if item.sd is None else f" ±{item.sd:.{ours}f}"
    return f"{_number(item, item.ours, ours)}{spread} {aside} n={item.n}"


def _enough(item: Cell) -> str:
    """How many seeds would tell; of Table 2 that is not known."""
    if item.quantity == "max_dropped":
        return ""
    return " (any n)" if item.seeds_to_tell is None else f" (n≥{item.seeds_to_tell})"


def _span(item: Cell) -> str:
    if item.low is None or item.high is None:
        return "missing"
    return f"{item.low:.0f}–{item.high:.0f}"


def _number(item: Cell, value: float, decimals: int) -> str:
    if item.quantity == "change":
        return signed(value, decimals)
    return signed(value, decimals).removeprefix("+")


def signed(value: float, decimals: int) -> str:
    """+0.06, −2.18, 0.00, with a real minus sign."""
    text = f"{value:+.{decimals}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")
