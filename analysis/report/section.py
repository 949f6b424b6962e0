"""The part of the page about one task: its candidates, plots, and the dev rows that only the
smaller network gets wrong.

A task with measured deployments has the candidates of `lp-sweep table candidates`; any other has
its best network for each number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lp_sweep.analysis import phrases, shipping
from lp_sweep.analysis.figures import numbers, plots
from lp_sweep.analysis.report.answer import TaskAnswer
from lp_sweep.analysis.rows import TASK, Row, grouped, picked
from lp_sweep.analysis.tabledef import Table, Text, plain, text
from lp_sweep.analysis.tables import TABLES
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import layers, ranges, short_models

_MOST_WRONG = 50  # dev rows in a list
# an answer is right or wrong
_OF_CLASSES = frozenset({"accuracy", "balanced_accuracy", "f1", "macro_f1", "weighted_f1", "mcc"})

# of a trial: its dev rows, one or two texts each, and its classes; None if its data is not found
Texts = Callable[[str], "tuple[Sequence[Sequence[str]], Sequence[str]] | None"]


def sections(
    catalog: Catalog, answers: Sequence[TaskAnswer], candidates: Table, texts: Texts | None
) -> Iterator[dict[str, Any]]:
    """The parts of a section for each answer, for the template. `texts` None: without the dev rows
    that it gets wrong."""
    networks, epochs = (
        grouped(catalog.query(sql).to_pylist(), lambda row: picked(row, TASK))
        for sql in (numbers.NETWORKS, numbers.EPOCHS)
    )
    measured = grouped(candidates.long.to_pylist(), lambda row: (row["model"], row["task"]))
    short = short_models(answer.model for answer in answers)
    for place, answer in enumerate(answers, 1):
        key = (answer.sweep, answer.model, answer.task)
        trained = networks.get(key, [])
        devices = grouped(measured.get(key[1:], ()), shipping.served_by)
        shipped = max(devices.values(), key=len, default=[])
        columns, rows = (_candidates if shipped else _by_layers)(shipped or trained)
        chosen = "chosen_within" if shipped else "within"
        wrong_of, wrong = _only_smaller(catalog, trained, texts) if texts else ("", [])
        yield dict(
            id=f"task-{place}",
            answer=answer,
            model=short[answer.model],
            to_ship=[*shipping.choices(shipped)],  # sentence, command
            is_measured=bool(shipped),  # as shipped: the rows are candidates
            device=_device(shipped, trained),
            columns=[*columns],
            rows=[[plain(show(row)) for show in columns.values()] for row in rows],
            picked=[bool(row[chosen]) for row in rows],
            n_beaten=len(shipped) - len(rows) if shipped else 0,
            plots=[
                *(plots.of_candidates(shipped) or plots.by_speed(trained)),
                *plots.by_layers(trained),
            ],
            curves=plots.by_epoch(epochs.get(key, [])),
            wrong=wrong,  # row, text, label, answer
            wrong_of=wrong_of,  # the smaller network that gets them wrong
        )


def _device(shipped: Sequence[Row], networks: Sequence[Row]) -> str:
    if shipped:
        busy = any(map(shipping.is_disturbed, shipped))
        return shipping.served_by(shipped[0]) + f" ({phrases.DISTURBED[:-1]})" * busy
    timed = next((row for row in networks if row["speedup"]), None)
    return f"{phrases.device(timed)}, batch {phrases.batch(timed)}" if timed else ""


def _candidates(rows: Sequence[Row]) -> tuple[dict[str, Text], Sequence[Row]]:
    """The candidates that no other beats, and the full model: the fastest first."""
    columns = {
        name: show
        for name, show in TABLES["candidates"].columns.items()
        if name not in ("task", "device")
    }
    first = max(rows, key=lambda row: row["ms"] or 0)
    return columns, [r for r in reversed(rows) if r["front"] or r is first or r["error"]]


def _by_layers(rows: Sequence[Row]) -> tuple[dict[str, Text], Sequence[Row]]:
    """The best network for each number of layers, and the answers: the fewest layers first."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["n_kept"], -row["mean"])):
        if row["within"] or not best or best[-1]["n_kept"] != row["n_kept"]:
            best.append(row)
    columns: dict[str, Text] = {
        "kept": phrases.kept_of,
        "layers": text("kept_layers", ranges),
        "strategy": plots.line_of,
        "score": text("mean", "{:.2f}"),
        "change": lambda row: phrases.signed(row["change"]) if row["k"] else "",
        "seeds": lambda row: phrases.share(row["n_seeds"], row["n_asked"]),
        "parameters": text("params_total", phrases.parameters),
        "of full": text("params_percent", "{:.1f}%"),
    }
    if any(row["speedup"] for row in best):
        columns["times as fast"] = text("speedup", "{:.2f}")
    columns["answer within"] = lambda row: ", ".join(f"{loss:g}" for loss in row["within"])
    return columns, best


# -- the dev rows that only the smaller network gets wrong

_WRONG = f"""
SELECT small.trial_id, trials.seed, small.example, small.label, small.prediction,
    count(*) FILTER (small.prediction <> small.label) OVER () AS lost,
    count(*) FILTER (small.prediction = small.label) OVER () AS gained
FROM predictions AS small
JOIN predictions AS whole ON whole.split = small.split AND whole.example = small.example
JOIN trials ON trials.trial_id = whole.trial_id
WHERE small.tally IS NULL AND (small.trial_id, whole.trial_id) = (
        SELECT (trial_id, full_trial_id) FROM cells
        WHERE sweep = $sweep AND model = $model AND task = $task AND procedure = $procedure
            AND strategy = $strategy AND k = $k AND feed_forward = 'none' AND state = 'done'
        ORDER BY seed LIMIT 1
    )
    AND small.split = coalesce(trials.epoch_metrics[1].split, 'validation')
    AND (whole.prediction = whole.label) <> (small.prediction = small.label)
QUALIFY small.prediction <> small.label
ORDER BY small.example
LIMIT {_MOST_WRONG}
"""


def _only_smaller(
    catalog: Catalog, networks: Sequence[Row], texts: Texts
) -> tuple[str, list[list[str]]]:
    """Rows that the full model gets right, and the answer within the smallest loss wrong, and how
    many there are either way. Only of tasks whose answers are classes."""
    answers = [row for row in networks if row["within"] and row["k"]]
    if not answers or answers[0]["metric"].partition(" of ")[0] not in _OF_CLASSES:
        return "", []
    best = min(answers, key=lambda row: row["within"][0])
    wanted = {name: best[name] for name in (*TASK, "procedure", "strategy", "k")}
    rows = catalog.query(_WRONG, wanted).to_pylist()
    if not rows:
        return "", []
    of_rows, names = texts(rows[0]["trial_id"]) or ((), ())

    def named(value: float) -> str:
        return names[int(value)] if names else f"{value:g}"

    told = "{lost} rows; {gained} others only the full model gets wrong (seed {seed})"
    return f"{layers(best['kept_layers'])}: {told.format(**rows[0])}", [
        [
            str(row["example"]),
            " | ".join(of_rows[row["example"]] if of_rows else ()) or "its text is not here",
            named(row["label"]),
            named(row["prediction"]),
        ]
        for row in rows
    ]
