"""Why a figure is not drawn, and which sweep file or setting brings it: a line for each figure."""

from __future__ import annotations

from typing import NamedTuple

from lp_sweep.storage.catalog import Catalog

_STATUS = "`lp-sweep status` says how far the sweep is"
_OTHERS = "(layers dropped by another procedure than direct, or feed-forwards removed)"
_PAPER = "the sweep file, as in examples/poor-mans-bert.yaml"
_REDUCED = "the sweep file, as in examples/undivided-attention.yaml"


class _Absent(NamedTuple):
    """`asked` is SQL: the rows that there are of it. None: nobody asked; else it is in the way."""

    asked: str
    not_asked: str
    in_the_way: str


def _strategies(depths: str, models: str) -> _Absent:
    return _Absent(
        f"FROM cells WHERE {depths} AND procedure = 'direct' AND feed_forward = 'none' "
        "AND k IS DISTINCT FROM 0",
        f"no sweep of this store drops layers of {models} by the procedure direct, with all "
        "feed-forwards: examples/poor-mans-bert.yaml does",
        f"no strategy has a score on every task and seed at one K, of {models} and the procedure "
        f"direct: {_STATUS}",
    )


def _measure(name: str, networks: str, others: str = _OTHERS) -> _Absent:
    setting = f"`measure: {{{name}: full}}` to {_PAPER if name != 'cka' else 'the sweep file'}"
    return _Absent(
        f"FROM layers WHERE measure = '{name}'",
        f"no {name} in this store: add {setting}, and run it again",
        f"no {name} of {networks} in this store, only of others {others}, or no numbers: add "
        f"{setting}, and run it again",
    )


_ABSENT = {
    "2": _strategies("depth <> 6", "a model of other than 6 layers"),
    "3": _strategies("depth = 6", "a model of 6 layers"),
    "4": _measure("probes", "networks that it shows"),
    "5": _measure("similarity", "full networks", "(of pruned ones)"),
    "score": _Absent(
        "FROM cells WHERE procedure = 'direct' AND feed_forward = 'none' AND k IS DISTINCT FROM 0",
        "no sweep of this store drops layers by the procedure direct, with all feed-forwards: "
        "examples/poor-mans-bert.yaml does",
        f"no network with fewer layers has a score yet, of the procedure direct: {_STATUS}",
    ),
    "pareto": _Absent(
        "FROM speed_table WHERE inference_speedup IS NOT NULL",
        "no speed in this store: add `measure: {speed: cuda}` (or cpu) to the sweep file, and run "
        "it again",
        "no network with fewer layers and a measured speed has a score on every task and seed, of "
        f"the procedure direct: {_STATUS}",
    ),
    "contribution": _Absent(
        "FROM cells WHERE strategy = 'contribution'",
        "no strategy contribution in this store: add `{name: contribution, threshold: [0.95, "
        f"0.925, 0.9]}}` to the strategies of {_PAPER}",
        f"no contribution is measured yet: {_STATUS}",
    ),
    "cka": _measure("cka", "networks that it shows"),
    "feed-forward": _Absent(
        "FROM cells WHERE feed_forward <> 'none' AND procedure = 'direct'",
        "no network of the procedure direct without feed-forwards in this store: add "
        f"`feed_forward: [none, top 3]` to {_REDUCED}",
        "no two settings of `feed_forward:` stand at one strategy and K, or none has a score on "
        f"every task and seed, of the procedure direct: {_STATUS}",
    ),
    "feed-forward-layers": _Absent(
        "FROM layers JOIN cells USING (trial_id) "
        "WHERE feed_forward <> 'none' AND measure IN ('probes', 'cka')",
        "no probes or CKA of a network without feed-forwards in this store: add `feed_forward: "
        "[none, top 3]` and `measure: {probes: [full, pruned], cka: pruned}` to "
        f"{_REDUCED}, and run it again",
        "no probes, and no CKA with the full network, of a network of the procedure direct without "
        f"feed-forwards, or no numbers: add the procedure direct to {_REDUCED}",
    ),
}


def why_absent(catalog: Catalog, name: str) -> str:
    """Why a figure is None, and what would fill it: one line."""
    absent = _ABSENT[name]
    asked = catalog.query(f"SELECT count(*) AS n {absent.asked}")["n"][0].as_py()
    return f"figure {name}: {absent.in_the_way if asked else absent.not_asked}"
