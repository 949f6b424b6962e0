"""Writes what gpu_day.py measured into docs/performance.md: tables and a roofline figure.

    python -m benchmarks.gpu_report DIR/results.jsonl

It uses the last successful line of each step. Lines of a rehearsal on a CPU are refused, since
their figures mean nothing. `--print` shows the tables of any file without writing them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOC = ROOT / "docs" / "performance.md"
FIGURE = ROOT / "docs" / "gpu-roofline.svg"
BEGIN, END = "<!-- measured on a GPU -->\n", "<!-- end of what was measured on a GPU -->\n"
NAMES = {"sst2": "SST-2", "rte": "RTE", "mrpc": "MRPC", "qnli": "QNLI", "mnli": "MNLI"}
NAMES |= {"qqp": "QQP", "stsb": "STS-B"}

Lines = dict[tuple[str, ...], dict[str, Any]]


def read(path: Path) -> tuple[Lines, list[dict[str, Any]]]:
    """The result of each step, by its name and arguments, and the lines of steps that failed and
    were not repeated. A truncated line is skipped."""
    found: Lines = {}
    failed: Lines = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        key = (line["step"], *map(str, line["arguments"]))
        if line["status"] == "done":
            found[key] = line
            failed.pop(key, None)
        else:
            failed[key] = line
    return found, list(failed.values())


def table(head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in lines) + "\n"


def of_side(line: dict[str, Any], side: str, what: str) -> float:
    return statistics.median(one[what] for one in line["found"]["sides"][side])


def speeds(lines: Lines) -> str:
    rows: list[tuple[object, ...]] = []
    ratios = []
    for key, line in lines.items():
        if key[0] != "speed":
            continue
        shape = key[2] if len(key) > 2 else "bert-base"
        steps = {side: of_side(line, side, "ms_a_step") for side in line["found"]["sides"]}
        trials = {side: of_side(line, side, "wall_seconds") for side in line["found"]["sides"]}
        ratio = trials["trainer"] / trials["graphs"]
        ratios += [ratio] if shape == "bert-base" else []
        times = (f"{value:.1f}" for value in steps.values())
        rows.append((NAMES[key[1]], shape, *times, f"{ratio:.1f}x"))
    head = ("task", "network", "Trainer, padded", "`fast`", "`graphs`", "whole training, `graphs`")
    if not ratios:
        return ""
    worst, middle = min(ratios), statistics.median(ratios)
    said = f"Whole trainings of BERT-base: median {middle:.1f}x, least {worst:.1f}x.\n\n"
    return "Milliseconds a step, and how much faster the whole training is:\n\n" + (
        table(head, rows) + "\n" + said
    )


def compiled(lines: Lines) -> str:
    rows = [
        (
            NAMES[key[1]],
            *(f"{of_side(line, side, 'ms_a_step'):.1f}" for side in line["found"]["sides"]),
        )
        for key, line in lines.items()
        if key[0] == "compiled"
    ]
    head = ("task", "Trainer, dynamic", "the same, compiled", "`graphs`")
    return "Milliseconds a step:\n\n" + table(head, rows) + "\n" if rows else ""


def checks(lines: Lines) -> str:
    rows: list[tuple[object, ...]] = []
    for key, line in lines.items():
        found = line["found"]
        if key[0] == "smoke":
            rows.append((f"`{key[1]}`: waits of the host a step", f"{found['waits_a_step']:.2f}"))
        elif key[0] == "determinism":
            rows.append(
                (f"`{key[1]}`: the same weights twice", "yes" if found["equal"] else "**no**")
            )
        elif key[0] == "tests":
            failed = ", ".join(found["failed"]) or "none"
            rows.append(("tests for a GPU", f"{found['passed']} passed; failed: {failed}"))
        elif key[0] == "family":
            worst = max(one["largest_difference"] for one in found.values())
            rows.append((f"{key[1]}: largest difference of a loss, fp32", f"{worst:.1e}"))
        elif key[0] == "profile":
            rows.append((f"`{key[1]}`: share of time the GPU works", f"{found['busy_share']:.0%}"))
        elif key[0] == "out_of_memory":
            rows.append(
                ("out of memory", "; ".join(f"{b}: {said[:40]}" for b, said in found["tried"]))
            )
    return table(("check", "result"), rows) + "\n" if rows else ""


def side_by_side(lines: Lines) -> str:
    rows = [
        (found["processes"], "yes" if found["mps"] else "no", f"{found['steps_a_second']:.0f}")
        for key, line in lines.items()
        if key[0] == "side_by_side" and (found := line["found"])
    ]
    return table(("processes", "MPS", "steps a second in all"), rows) + "\n" if rows else ""


def text_of(lines: Lines, failed: list[dict[str, Any]]) -> str:
    machine = lines.get(("machine",))
    said = ""
    if machine:
        found = machine["found"]
        versions = ", ".join(f"{name} {value}" for name, value in found["versions"].items())
        said = (
            f"Measured {machine['at'][:10]} on {found['device']}: {found['tflops']:.0f} TFLOP/s of "
            f"matrix product, {found['copy_gb_per_second']:.0f} GB/s of copy; {versions}.\n\n"
        )
    parts = [speeds(lines), compiled(lines), side_by_side(lines), checks(lines)]
    broken = ", ".join(f"{line['step']} {line['arguments']}: {line['status']}" for line in failed)
    return said + "".join(parts) + (f"Steps that did not end well: {broken}.\n" if broken else "")


def roofline(lines: Lines, path: Path) -> None:
    """Draw BERT-base steps against the machine's two limits: FLOP/s over FLOP per weight byte."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    machine = lines[("machine",)]["found"]
    peak, copied = machine["tflops"], machine["copy_gb_per_second"] / 1e3  # TFLOP/s, TB/s
    figure, axes = pyplot.subplots(figsize=(6, 4))
    intensity = [2**n for n in range(0, 13)]
    axes.plot(intensity, [min(peak, copied * one) for one in intensity], color="black")
    parameters = 12 * 12 * 768**2  # parameters of the layers; each token is multiplied by them
    for key, line in lines.items():
        if key[0] != "speed" or len(key) > 2:
            continue
        tokens = 32 * line["found"]["tokens_a_row"]
        flop = 6 * parameters * tokens  # forward, and twice that backward
        bytes_ = parameters * (3 * 2 + 7 * 4)  # bf16 weights read and written; AdamW in fp32
        for side, mark in (("trainer", "o"), ("fast", "s"), ("graphs", "^")):
            seconds = of_side(line, side, "ms_a_step") / 1e3
            axes.plot(flop / bytes_, flop / seconds / 1e12, mark, color=COLOURS[side])
    for side, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, label=side)
    axes.set(xscale="log", yscale="log", xlabel="FLOP a byte", ylabel="TFLOP/s of real tokens")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


COLOURS = {"trainer": "tab:gray", "fast": "tab:blue", "graphs": "tab:red"}


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
    if rehearsed or ("machine",) not in lines:
        raise SystemExit(
            f"{options.results}: no whole run on a GPU. --print shows it all the same."
        )
    before = DOC.read_text(encoding="utf-8")
    head, found, rest = before.partition(BEGIN)
    if not found:
        raise SystemExit(f"{DOC}: the line {BEGIN.strip()!r} is missing.")
    roofline(lines, FIGURE)
    figure = f"![steps against the machine's limits]({FIGURE.name})\n"
    DOC.write_text(head + BEGIN + text + figure + END + rest.partition(END)[2], encoding="utf-8")
    print(f"{DOC}\n{FIGURE}")


if __name__ == "__main__":
    main()
