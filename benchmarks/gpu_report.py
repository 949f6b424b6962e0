"""Writes what gpu_day.py measured into benchmarks/gpu.md: tables and a roofline figure.

    python -m benchmarks.gpu_report DIR/results.jsonl

Takes the last line of each step that ended well, or what a step had found when it was stopped.
Lines of a rehearsal on a CPU are refused, since their figures mean nothing; `--print` shows the
tables of any file without writing them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOC = ROOT / "benchmarks" / "gpu.md"
FIGURE = ROOT / "benchmarks" / "results" / "gpu-roofline.svg"
BEGIN, END = "<!-- measured on a GPU -->\n", "<!-- end of what was measured on a GPU -->\n"
NAMES = {"sst2": "SST-2", "rte": "RTE", "mrpc": "MRPC", "qnli": "QNLI", "mnli": "MNLI"}
NAMES |= {"qqp": "QQP", "stsb": "STS-B"}

SIDES = {
    "trainer": "Trainer, padded",
    "dynamic": "Trainer, dynamic padding",
    "fast": "without graphs",
    "graphs": "lp-sweep",
}
WAYS = {"reference": "padded", "fast": "without graphs", "graphs": "with graphs"}
COLOURS = {"trainer": "tab:gray", "fast": "tab:blue", "graphs": "tab:red"}

Lines = dict[tuple[str, ...], dict[str, Any]]


def read(path: Path) -> tuple[Lines, list[dict[str, Any]]]:
    """The result of each step, by its name and arguments, and the lines of steps that failed and
    were not repeated; each with its GPU, that of the `machine` line before it. What such a step had
    found counts. A line that was cut off is skipped."""
    found: Lines = {}
    failed: Lines = {}
    gpu = ""
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        key = (line["step"], *map(str, line["arguments"]))
        if line["step"] == "machine" and line.get("found"):
            gpu = line["found"]["device"].removeprefix("NVIDIA ").split()[0]
            key = (*key, gpu, line["at"][:10])
        line["gpu"] = gpu
        if line["status"] == "done":
            found[key] = line
            failed.pop(key, None)
        elif key not in found:
            failed[key] = line
    partial = {key: line for key, line in failed.items() if line.get("found")}
    return found | partial, list(failed.values())


def of(lines: Lines, step: str) -> dict[str, Any]:
    """The merged findings of all lines of a step."""
    return {
        name: one
        for key, line in lines.items()
        if key[0] == step
        for name, one in line["found"].items()
    }


def machines(lines: Lines) -> list[dict[str, Any]]:
    return [line for key, line in lines.items() if key[0] == "machine"]


def gpus(lines: Lines, step: str) -> str:
    """Those that ran a step."""
    return " and ".join(sorted({line["gpu"] for key, line in lines.items() if key[0] == step}))


def table(head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in lines) + "\n"


def of_side(sides: dict[str, Any], side: str, what: str) -> float:
    return statistics.median(one[what] for one in sides[side])


def races(lines: Lines) -> list[tuple[str, str, str, dict[str, Any]]]:
    """GPU, network, task and result of each race of whole trials."""
    return [
        (line["gpu"], key[1], task, found)
        for key, line in lines.items()
        if key[0] == "whole"
        for task, found in line["found"].items()
    ]


def trials(lines: Lines) -> str:
    rows: list[tuple[object, ...]] = []
    ratios = []
    for gpu, shape, task, found in races(lines):
        sides = found["sides"]
        steps = (
            f"{of_side(sides, side, 'ms_a_step'):.1f}" if side in sides else "" for side in SIDES
        )
        wall = {side: of_side(sides, side, "wall_seconds") for side in ("trainer", "graphs")}
        ratio = wall["trainer"] / wall["graphs"]
        ratios += [ratio] if shape == "bert-base" else []
        captures = [seconds for one in sides["graphs"] for seconds in one["capture_seconds"]]
        whole = (f"{seconds:.1f}" for seconds in wall.values())
        count = len(captures) / len(sides["graphs"])
        captured = f"{count:.0f} of {statistics.mean(captures):.2f} s" if captures else "none"
        rows.append((NAMES[task], shape, gpu, *steps, *whole, f"{ratio:.1f}x", captured))
    if not ratios:
        return ""
    ms = (f"{name}, ms a step" for name in SIDES.values())
    whole_head = ("Trainer, s a trial", "lp-sweep")
    head = ("task", "network", "GPU", *ms, *whole_head, "Trainer : lp-sweep", "recordings")
    worst, middle = min(ratios), statistics.median(ratios)
    return (
        "Steps, and whole trials of three epochs with recordings of graphs. The Trainer pads to "
        "128 tokens, and does not evaluate. Without graphs: lp-sweep, step by step:\n\n"
        f"{table(head, rows)}\n"
        f"Whole trials of BERT-base on {len(ratios)} tasks: median {middle:.1f}x, least "
        f"{worst:.1f}x.\n\n"
    )


def compiled(lines: Lines) -> str:
    tasks: dict[str, dict[str, float]] = {}
    for part, found in of(lines, "compiled").items():
        task, side = part.split()
        tasks.setdefault(task, {})[side] = of_side(found["sides"], side, "ms_a_step")
    names = {"dynamic": "Trainer, dynamic padding", "compiled": "compiled as well"}
    names = {side: name for side, name in names.items() if any(side in ms for ms in tasks.values())}
    names |= {"graphs": "lp-sweep"}
    rows = [
        (NAMES[task], *(f"{ms[side]:.1f}" if side in ms else "" for side in names))
        for task, ms in tasks.items()
    ]
    head = ("task", *names.values())
    gpu = gpus(lines, "compiled")
    said = f"BERT-base on an {gpu}, milliseconds a step, against the Trainer with fused AdamW:\n\n"
    return said + table(head, rows) + "\n" if rows else ""


def checks(lines: Lines) -> str:
    rows: list[tuple[object, ...]] = []
    for compute, found in of(lines, "smoke").items():
        waits = f"{found['waits_a_step']:.2f}"
        rows.append((f"{WAYS[compute]}: waits of the host a step", waits))
    for compute, found in of(lines, "determinism").items():
        same = "yes" if found["equal"] else "**no**"
        rows.append((f"{WAYS[compute]}: the same weights twice", same))
    for compute, found in of(lines, "profile").items():
        calls = f"{found['busy_share']:.0%} of the time, {found['calls_a_step']:.0f} calls a step"
        rows.append((f"{WAYS[compute]}: the GPU works", calls))
    for name, found in of(lines, "family").items():
        worst = max(one["largest_difference"] for one in found.values())
        rows.append((f"{name}: largest difference of a loss, fp32", f"{worst:.1e}"))
    if tests := of(lines, "tests"):
        failed = ", ".join(tests["failed"]) or "none"
        rows.append(("tests for a GPU", f"{tests['passed']} passed; failed: {failed}"))
    if tried := of(lines, "out_of_memory").get("tried"):
        said = ", ".join(
            f"a batch of {batch} {'fits' if text == 'done' else 'does not fit'}"
            for batch, text in tried
        )
        rows.append(("a real shortage of memory", said))
    if precisions := of(lines, "precisions"):
        last = (f"{name} {found['losses'][-1]:.4f}" for name, found in precisions.items())
        rows.append(("last epoch's loss, the same steps", ", ".join(last)))
    return table(("check", "result"), rows) + "\n" if rows else ""


def side_by_side(lines: Lines) -> str:
    """A GPU's steps a second, and how many times those of one Trainer on the same task."""
    alone = next(
        (
            of_side(found["sides"], "trainer", "steps")
            / of_side(found["sides"], "trainer", "wall_seconds")
            for gpu, shape, task, found in races(lines)
            if (shape, task) == ("bert-base", "sst2")
        ),
        None,
    )
    rows = []
    for name, found in of(lines, "side_by_side").items():
        rate = found["steps_a_second"]
        rows.append((name, f"{rate:.0f}", f"{rate / alone:.1f}x" if alone else ""))
    head = ("processes", "steps a second in all", "of one padded Trainer's")
    gpu = gpus(lines, "side_by_side")
    said = f"BERT-base on one {gpu}: whole trials on SST-2, with recordings and evaluations:\n\n"
    return said + table(head, rows) + "\n" if rows else ""


def depth_speed(lines: Lines) -> str:
    rows = [
        (quantity, f"{speedup:.2f}x")
        for quantity, speedup in of(lines, "depth_speed").get("speedups", {}).items()
    ]
    said = "BERT-base with half of its layers, in batches of 32 by 128 tokens:\n\n"
    return said + table(("quantity", "as fast as all layers"), rows) + "\n" if rows else ""


def sweep(lines: Lines) -> str:
    """Mean scores of the sweep; of its whole, not of the first part."""
    line = lines.get(("sweep",))
    if line is None:
        return ""
    trials = line["found"]["trials"]
    layers = sorted({row["k"] for row in trials})
    rows = []
    for task in dict.fromkeys(row["task"] for row in trials):
        scores: list[str] = []
        for k in layers:
            some = [row["last"] for row in trials if (row["task"], row["k"]) == (task, k)]
            some = [score for score in some if score is not None]
            scores.append(f"{100 * statistics.mean(some):.1f} ({len(some)})" if some else "")
        rows.append((NAMES[task], *scores))
    computes = ", ".join(sorted({f"`{row['compute_used']}`" for row in trials}))
    return (
        f"A sweep of all-MiniLM-L6-v2 by three `run --inline`, {len(trials)} trials in "
        f"{line['found']['seconds']:.0f} s ({computes}); mean scores (seeds) without the top K "
        f"layers:\n\n{table(('task', *(f'K={k}' for k in layers)), rows)}\n"
    )


def text_of(lines: Lines, failed: list[dict[str, Any]]) -> str:
    said = ""
    for machine in machines(lines):
        found = machine["found"]
        versions = ", ".join(f"{name} {value}" for name, value in found["versions"].items())
        said += (
            f"{machine['at'][:10]}, {found['device']}: {found['tflops']:.0f} TFLOP/s of matrix "
            f"product, {found['copy_gb_per_second']:.0f} GB/s of copy; {versions}.\n\n"
        )
    parts = (trials, compiled, side_by_side, sweep, depth_speed, checks)
    broken = ", ".join(
        " ".join([line["step"], *map(str, line["arguments"]), f"({line['status']})"])
        for line in failed
    )
    said += "".join(part(lines) for part in parts)
    return said + (f"Steps that did not end well: {broken}.\n" if broken else "")


def roofline(lines: Lines, path: Path) -> None:
    """Steps of BERT-base against the machine's two limits: FLOP/s over FLOP a byte of weights."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    machine = machines(lines)[0]["found"]
    peak, copied = machine["tflops"], machine["copy_gb_per_second"] / 1e3  # TFLOP/s, TB/s
    figure, axes = pyplot.subplots(figsize=(6, 4))
    intensity = [2**n for n in range(0, 13)]
    axes.plot(intensity, [min(peak, copied * one) for one in intensity], color="black")
    parameters = 12 * 12 * 768**2  # of the layers: what each token is multiplied with
    for _, shape, _, found in races(lines):
        if shape != "bert-base":
            continue
        tokens = 32 * found["tokens_a_row"]
        flop = 6 * parameters * tokens  # forward, and twice that backward
        bytes_ = parameters * (3 * 2 + 7 * 4)  # bf16 weights read and written; AdamW in fp32
        for side, mark in (("trainer", "o"), ("fast", "s"), ("graphs", "^")):
            if side not in found["sides"]:
                continue
            seconds = of_side(found["sides"], side, "ms_a_step") / 1e3
            axes.plot(flop / bytes_, flop / seconds / 1e12, mark, color=COLOURS[side])
    for side, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, label=SIDES[side])
    axes.set(xscale="log", yscale="log", xlabel="FLOP a byte", ylabel="TFLOP/s of real tokens")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--print", action="store_true", help="print the tables, write nothing")
    options = parser.parse_args()
    lines, failed = read(options.results)
    text = text_of(lines, failed)
    if options.print:
        print(text)
        return
    rehearsed = any(line["device"] != "cuda" for line in [*lines.values(), *failed])
    if rehearsed or not machines(lines):
        raise SystemExit(
            f"{options.results}: no whole run on a GPU. --print shows it all the same."
        )
    before = DOC.read_text(encoding="utf-8")
    head, found, rest = before.partition(BEGIN)
    if not found:
        raise SystemExit(f"{DOC}: the line {BEGIN.strip()!r} is missing.")
    roofline(lines, FIGURE)
    figure = f"![steps against the machine's limits](results/{FIGURE.name})\n"
    DOC.write_text(head + BEGIN + text + figure + END + rest.partition(END)[2], encoding="utf-8")
    print(f"{DOC}\n{FIGURE}")


if __name__ == "__main__":
    main()
