"""Writes the tables of the documentation from the figures in benchmarks/results.

    python -m benchmarks.report

Each table is between `<!-- NAME -->` and `<!-- end -->` in a page. For a benchmark that has not
been run, the page shows "Not measured yet."
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.parity import TASKS

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DOCS = [HERE / "README.md"]
DOCS += [HERE.parent / "docs" / f"{name}.md" for name in ("performance", "statistics")]
Found = dict[str, Any]


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


_STEPS = {
    "ratio_vs_plain_loop": "plain loop, grouped",
    "ratio_vs_grouped_trainer": "Trainer, grouped",
    "ratio_vs_padded_trainer": "Trainer, padded to 128",
    "ratio_vs_grouped_trainer_in_bf16": "both in bf16: Trainer, grouped",
    "ratio_of_bf16": "bf16 against fp32",
}


def trial_cpu(found: Found, older: Found | None) -> str:
    """Medians, and their range over rounds. `older`: of an older processor."""
    tasks = found["cpu_seconds_a_step"]
    rows = [[task, *(_times(found[name][task]) for name in _STEPS)] for task in tasks]
    head, cpu = ["task", *_STEPS.values()], found["settings"]["cpu"]
    if older:
        head.append("the same on a Zen 4")
        for row in rows:
            row.append(_times(older["ratio_of_bf16"][row[0]]))
    steps = " or ".join(map(str, sorted(set(found["steps"].values()))))
    note = f"{min(map(len, tasks.values()))} rounds of {steps} steps each, {cpu}."
    return f"{markdown(head, rows)}\n\n{note}"


def distill_step(found: Found) -> str:
    rows = []
    for name, sides in found["ratios"].items():
        task, compute = name.split()
        rows.append([task, f"`{compute}`", *(_times(one) for one in sides.values())])
    head = ["task", "compute", *(f"`{side}`" for side in next(iter(found["ratios"].values())))]
    rounds, cpu = min(map(len, found["cpu_seconds_a_step"].values())), found["settings"]["cpu"]
    return f"{markdown(head, rows)}\n\nMedian and range of {rounds} rounds, {cpu}."


_KINDS = {
    "tokens": "tags of words (WNUT 2017)",
    "ranking": "reranking (Cranfield)",
    "embedding": "3 of 6 layers imitate embeddings (STS-B)",
    "encoding": "embeddings without training (STS-B)",
}


def kind_steps(found: Found) -> str:
    rows = [[_KINDS[kind], _times(one["ratio"])] for kind, one in found["kinds"].items()]
    rounds = min(len(one["rounds"]) for one in found["kinds"].values())
    note = f"{rounds} rounds of {found['steps']} steps each, {found['cpu']}."
    return f"{markdown(['a step of', 'plain loop, grouped'], rows)}\n\n{note}"


def _times(one: Found) -> str:
    return f"{one['median']:.2f} ({one['min']:.2f} to {one['max']:.2f})"


def parity(found: Found) -> str:
    rows = [
        [
            f"{one['model']}, {one['task']}",
            f"{len(one['lp_sweep']['points'])} + {len(one['trainer']['points'])}",
            *(
                f"{one[side]['mean']:.2f} ±{one[side]['sd']:.2f}"
                for side in ("lp_sweep", "trainer")
            ),
            f"{one['difference']:+.2f}",
            f"{one['interval_90'][0]:+.2f} to {one['interval_90'][1]:+.2f}",
            f"{one['tost_p']:.1g}" if one["tost_p"] > 1e-4 else "< 0.0001",
            _verdict(one),
        ]
        for one in found["rows"]
    ]
    head = ["model and task", "seeds", "lp-sweep", "Trainer", "difference", "90% interval"]
    missing = found["not_measured"]
    note = f"\n\nNot measured yet: {', '.join(missing)}." if missing else ""
    return markdown([*head, "TOST p", "within 1 point"], rows) + note


def _verdict(one: Found) -> str:
    """In bold once each side has all the seeds that the benchmark asks for."""
    seeds = min(len(one[side]["points"]) for side in ("lp_sweep", "trainer"))
    asked = TASKS[one["task"]].seeds
    if seeds < asked:
        return f"{one['verdict']} (interim, {seeds} of {asked} seeds)"
    return f"**{one['verdict']}**"


def sweep(found: Found, quick: Found | None) -> str:
    rows, scores = [], []
    for name, one in (("MiniLM on GLUE", found), ("quickstart", quick)):
        if one is None:
            continue
        seconds, score = one["seconds"], one["mean_score"]
        rows.append(
            [
                name,
                one["cells"],
                one["networks"],
                f"{seconds['loop']:.0f} s",
                f"{seconds['lp-sweep']:.0f} s",
                f"**{one['ratio']:.1f}x**",
                _range(one),
                *_percents(score),
            ]
        )
        scores += [[name, task, *_percents(of)] for task, of in one.get("scores", {}).items()]
    head = ["sweep", "cells", "networks", "loop", "lp-sweep", "times faster", "range"]
    head += ["mean score, loop", "mean score, lp-sweep"]
    by_task = f"{markdown(['sweep', 'task', 'score, loop', 'score, lp-sweep'], scores)}\n\n"
    recipe = found["recipe"]
    rows_of = f"GLUE: {recipe['limit_train']} train rows and {recipe['limit_dev']} dev rows"
    note = f"{found['cores']} cores. {rows_of}, {recipe['epochs']} epoch."
    return f"{markdown(head, rows)}\n\n{by_task if scores else ''}{note}"


def _range(one: Found) -> str:
    """Older files of figures have one turn, and no scores by task."""
    if "turns" not in one:
        return "one turn"
    return f"{one['ratio_min']:.1f} to {one['ratio_max']:.1f} in {len(one['turns'])} turns"


def _percents(score: Found) -> list[str]:
    return [f"{100 * score[side]:.1f}" for side in ("loop", "lp-sweep")]


def driver(found: Found) -> str:
    rows = [
        [f"{one['trials']:,}", f"{one['cpu_ms_a_trial']:.1f} ms", f"{one['memory_mb']:.0f} MB"]
        for one in found["driver"]
    ]
    return markdown(["trials", "CPU time of the driver per trial", "its peak memory"], rows)


def between(found: Found) -> str:
    rows = [
        [f"after {name}" if "task" in name else name, one["trials"]]
        + [f"{one[of]:.2f} s" for of in ("median", "p90", "max")]
        for name, one in found["between_trials"].items()
    ]
    return markdown(["trial", "n", "median wait", "90% wait less than", "longest wait"], rows)


def busy(found: Found) -> str:
    one, trials = found["busy"], sum(row["trials"] for row in found["between_trials"].values()) + 1
    row = [trials, f"{one['shortest']:.0f} to {one['longest']:.0f} s", f"**{one['share']:.1%}**"]
    return markdown(["trials", "each took", "time spent training or evaluating"], [row])


def memory(found: Found) -> str:
    seen = found["seen"]
    told = [one for one in seen if one["trials"] in (10, 50, 100, 150, 200)]
    rows = [[f"{one['trials']}", f"{one['resident_mib']:.0f} MiB"] for one in told]
    return markdown(["trials", "memory of the worker (resident set)"], rows)


def scale(found: Found) -> str:
    rows = [
        [f"`lp-sweep {one['command']}`"]
        + [f"{one[of]:.1f} s" for of in ("wall", "start", "cpu", "start_cpu")]
        for one in found["commands"]
    ]
    what = f"{found['cells']:,} cells, {found['records']:,} records, {found['cores']} cores."
    head = ["command", "wall time", "of it, start", "CPU time", "of it, start"]
    return f"{markdown(head, rows)}\n\n{what}"


def speed(found: Found) -> str:
    rows = [
        [
            one["k"],
            one["kept"],
            one["quantity"],
            f"{one['layers_ratio']:.2f}",
            f"**{one['speedup']:.2f}**",
            f"{one['speedup_q25']:.2f} to {one['speedup_q75']:.2f}",
            f"{one['difference_percent']:+.1f}%",
        ]
        for one in sorted(found["rows"], key=lambda one: one["k"])
    ]
    head = ["K", "layers", "what", "L/(L-K)", "measured speed-up", "quartiles", "difference"]
    settings = found["settings"]
    return f"{markdown(head, rows)}\n\n{settings['device']}, {settings['threads']} thread."


_ADAPTIVE = {"all five": "no hidden dip", "all dips": "hidden dip"}  # these rows are means


def adaptive(found: Found) -> str:
    rows = [
        [_ADAPTIVE[row["curve"]], row["deviation"], f"{row['shared']:.0%}", row["depth"]]
        + [f"**{row['trials']:.0%}**"]
        + [f"{row[of]:.1%}" for of in ("off", "grid", "covered")]
        + [f"{row['set']:.1f}"]
        for curves in _ADAPTIVE
        for row in found["rows"]
        if row["curve"] == curves
    ]
    head = ["curves", "sd over seeds, points", "share of its variance common to all K of a seed"]
    head += ["layers", "trials, of the full grid with 5 seeds", "answer off by > 0.5 point"]
    head += ["the same with the full grid", "truth in the 90% set", "K in the set"]
    return f"{markdown(head, rows)}\n\n{found['repetitions']} repetitions of each curve."


def coverage(found: Found) -> str:
    """A table by method and seeds, over curves, rows and spreads; then the stress test."""
    rows = [
        _covered(found, method, [seeds], stress=False)
        for method in ("interval", "paired interval", "set")
        for seeds in (1, 2, 3, 5, 10)
    ]
    rows.append(_covered(found, "set", (1, 2, 3, 5, 10), stress=True))
    head = ["what", "seeds", "promised", "lowest", "highest"]
    head += ["mean size", "on steep curves", "oracle"]
    sizes = "Size: the width of an interval in points, or the number of K in a set."
    return f"{markdown(head, rows)}\n\n{found['studies']:,} studies of each kind. {sizes}"


def widths(found: Found) -> str:
    """A table by seeds and dev rows: half the paired interval's mean width, per spread of seeds."""
    mine = [
        row
        for row in found["rows"]
        if row["method"] == "paired interval" and row["curve"] != "noisier"
    ]
    sizes = sorted({row["rows"] for row in mine})
    spreads = sorted({row["seed_sd"] for row in mine})

    def cell(seeds: int, rows: int) -> str:
        low, middle, high = (
            mean(
                row["mean_size"] / 2
                for row in mine
                if (row["seeds"], row["rows"], row["seed_sd"]) == (seeds, rows, spread)
            )
            for spread in spreads
        )
        return f"**±{middle:.1f}** ({low:.1f} to {high:.1f})"

    rows = [[seeds, *(cell(seeds, size) for size in sizes)] for seeds in (2, 3, 5, 10)]
    low, middle, high = (f"{spread:g}" for spread in spreads)
    note = f"Standard deviation over seeds: {middle} point (in brackets: {low} and {high} points)."
    return f"{markdown(['seeds', *(f'{size:,} dev rows' for size in sizes)], rows)}\n\n{note}"


def _covered(found: Found, method: str, seeds: Sequence[int], *, stress: bool) -> list[Any]:
    mine = [row for row in found["rows"] if row["seeds"] in seeds]
    mine = [row for row in mine if (row["curve"] == "noisier") == stress]

    def size(name: str, curve: str | None = None) -> str:
        sizes = [
            row["mean_size"]
            for row in mine
            if row["method"] == name and curve in (None, row["curve"])
        ]
        return f"{sum(sizes) / len(sizes):.1f}" if sizes else ""

    own = [row for row in mine if row["method"] == method]
    held = [row["coverage"] for row in own]
    is_set = method == "set"
    return [
        f"{method}{', one seed: rows only' if seeds == [1] and not is_set else ''}"
        f"{', noise grows with the loss' if stress else ''}",
        seeds[0] if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
        f"{own[0]['nominal']:.0%}",
        f"**{min(held):.1%}**",
        f"{max(held):.1%}",
        size(method),
        size(method, "steep") if is_set else "",
        size("oracle set", "steep") if is_set else "",
    ]


def slots(found: Found) -> str:
    rows = [
        [
            *(f"{one['slots']:,}", f"{one['seconds']:g} s", f"{one['request_ms']:g} ms"),
            *(f"{one['hours']:.1f} h", f"**{one['utilisation']:.0%}**"),
            *(f"{one['driver_busy']:.0%}", f"{one['cpu_ms_a_trial']:.1f} ms"),
            f"{one['requests_a_trial']:.1f}",
        ]
        for one in found["runs"]
    ]
    head = ["slots", "time of a trial", "time of a request", "time of the run", "slots busy"]
    head += ["driver busy", "driver CPU per trial, without Tune", "driver requests per trial"]
    first = found["runs"][0]
    what = f"{first['trials']:,} trials. In the first row"
    return f"{markdown(head, rows)}\n\n{what} {first['preempted']:,} starts were preempted."


# name of a table in the pages -> the files of figures that it needs, and a function that prints it
TABLES: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "trial-cpu": (("trial-cpu", "trial-cpu-zen4"), trial_cpu),
    "kind-steps": (("kind-steps",), kind_steps),
    "distill-step": (("distill-step",), distill_step),
    "parity": (("parity",), parity),
    "sweep": (("sweep-cpu", "sweep-quickstart"), sweep),
    "driver": (("driver-overhead",), driver),
    "between": (("between-trials",), between),
    "busy": (("slot-busy",), busy),
    "memory": (("resident-memory",), memory),
    "scale": (("at-scale",), scale),
    "speed": (("speed-by-depth",), speed),
    "adaptive": (("adaptive",), adaptive),
    "coverage": (("coverage",), coverage),
    "widths": (("coverage",), widths),
    "slots": (("scale",), slots),
}


def filled(text: str, results: Path = RESULTS) -> str:
    """The page with its tables filled in from the figures."""

    def table(match: re.Match[str]) -> str:
        names, told = TABLES[match[1]]
        paths = [results / f"{name}.json" for name in names]
        if not paths[0].exists():
            return f"<!-- {match[1]} -->\nNot measured yet.\n<!-- end -->"
        found = [
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
            for path in paths
        ]
        return f"<!-- {match[1]} -->\n{told(*found)}\n<!-- end -->"

    return re.sub(r"<!-- ([a-z-]+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


if __name__ == "__main__":
    for doc in DOCS:
        doc.write_text(filled(doc.read_text(encoding="utf-8")), encoding="utf-8")
