"""Opens a store that must exist; `show` and `logs`: everything on one trial."""

from __future__ import annotations

import datetime as dt
import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.analysis.render import finite, render_rows
from lp_sweep.orchestrator.plan.known import attempted_work
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.places import is_bucket
from lp_sweep.storage.printable import page, printable, ranges, said_if_slow, say
from lp_sweep.storage.store import Store, is_store
from lp_sweep.trials.measures.registry import MEASURES

_READING_PATIENCE = 60.0  # seconds
# only in the JSON; epochs and speeds have views, and a profile's numbers a table
_NOT_SHOWN = ("spec", "epoch_metrics", "layers", "values", "timings")
_SPEED_COLUMNS = (
    *("quantity", "batch", "full_ms", "pruned_ms", "speedup", "speedup_q25", "speedup_q75"),
    "pairs",
)


def existing(location: str) -> Store:
    """The store at the location. Raises StoreError if there is none: mostly a wrong --store."""
    patience = reading_patience(location)
    waiting = f"the store does not answer yet: trying for {patience:g} s (LP_SWEEP_STORE_PATIENCE)"
    with said_if_slow(say, waiting, after=5.0, in_logs=True):
        store = Store(location, patience=patience)
        if not is_store(location, patience):
            raise StoreError(f"no store at {store.location}: it has no records of lp-sweep.")
    return store


def reading_patience(location: str) -> float:
    """Seconds for which a command that only reads retries the store. A folder is there or not."""
    return store_patience(_READING_PATIENCE) if is_bucket(location) else 0.0


def store_patience(usual: float) -> float:
    text = os.environ.get("LP_SWEEP_STORE_PATIENCE", str(usual))
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"LP_SWEEP_STORE_PATIENCE is {text!r}: give seconds.") from None


# -- show and logs


class History(NamedTuple):
    """A trial's or profile's record (None: not done), and its failed attempts, oldest first."""

    id: str
    record: Mapping[str, Any] | None
    attempts: list[Mapping[str, Any]]

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON; a number that is not finite is None."""
        found: dict[str, Any] = finite(self._asdict())
        return found


def history(store: Store, name: str) -> History:
    """Finds a trial, profile or deployment by its identifier or the beginning of one. Raises
    StoreError."""
    id_ = _find(store, name)
    table = {"p": "profiles", "d": "deployments"}.get(id_[0], "trials")
    rows = store.read(table, id_) if id_ in store.names(table) else None
    names = [item for item in store.names("attempts") if attempted_work(item) == id_]
    attempts = store.read_all("attempts", names).rows.to_pylist()
    attempts.sort(key=lambda attempt: str(attempt["ended_at"]))
    return History(id_, rows[0] if rows else None, attempts)


def _find(store: Store, name: str) -> str:
    if not name:
        raise StoreError("the name of the trial is empty. Give an identifier, or its beginning.")
    attempted = {attempted_work(item) for item in store.names("attempts")}
    known = attempted.union(*map(store.names, ("trials", "profiles", "deployments")))
    if name in known:
        return name
    matches = sorted(id_ for id_ in known if id_.startswith(name))
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise StoreError(
            f"{printable(name)} is the beginning of {len(matches)} identifiers, such as "
            f"{printable(matches[0])}. Give more characters."
        )
    if any(id_.startswith(name) for id_ in store.names("predictions")):
        raise StoreError(
            f"{printable(name)} had a record, and it is gone: {store.location} has its predictions "
            "only. Copy the record back from a backup, or run the sweep file again."
        )
    raise StoreError(
        f"{store.location} has nothing on {printable(name)}: no record and no failed attempt. "
        'Identifiers: lp-sweep query "SELECT trial_id, model, task, k, seed FROM cells"'
    )


def show_text(found: History) -> str:
    record = found.record
    if record is None:
        lines = [f"{found.id}: no record, {_tries(found)}"]
    else:
        shown = {name: value for name, value in record.items() if name not in _NOT_SHOWN}
        lines = [f"{name:<26} {_value(value)}" for name, value in shown.items()]
        if "measure" in record:
            lines += ["", *(_speed(record) if record["timings"] else _measurement(record))]
    lines += [""] * bool(found.attempts) + [_attempt_line(attempt) for attempt in found.attempts]
    if found.attempts:
        lines.append(f"tracebacks: lp-sweep logs {found.id}")
    return page(lines)


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dt.datetime):
        return _moment(value)
    if isinstance(value, list) and value and isinstance(value[0], tuple):  # an Arrow map
        return ", ".join(f"{key} {text}" for key, text in value)
    if isinstance(value, list):
        return " ".join(_value(item) for item in value)
    if isinstance(value, Mapping):
        return "=".join(_value(item) for item in value.values())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _measurement(profile: Mapping[str, Any]) -> list[str]:
    """Its network, its rows, and a table with a line for each layer. Numbers that compare a layer
    with several others are a matrix, with the others as columns."""
    measure = str(profile["measure"]).replace("_", "-")
    known = MEASURES.get(profile["measure"])
    by_layer: dict[Any, dict[str, float]] = defaultdict(dict)
    for item in profile["layers"] or ():
        by_layer[item["layer"]][(known and known.column) or measure] = item["value"]
    grids: dict[str, dict[Any, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for item in profile["values"] or ():
        grids[str(item["name"])][item["layer"]][str(item["other"])] = item["value"]
    lines = [_measured_on(measure, profile)]
    for name, grid in grids.items():
        if any(len(others) > 1 for others in grid.values()):
            lines += ["", f"{name}:", *_table(grid)]
        else:
            for layer, others in grid.items():
                [by_layer[layer][name]] = others.values()
    return lines + ["", *_table(by_layer)] * bool(by_layer)


def _measured_on(measure: str, profile: Mapping[str, Any]) -> str:
    trial, other = profile["trial_id"], profile["against"]
    network = f"the network of {trial}" if trial else f"{profile['model']}, pre-trained"
    beside = f"that of {other}" if other else "the pre-trained one"
    task = profile["task"]
    rows = f"{profile['dev_examples']} dev rows of {task}"
    known = MEASURES.get(profile["measure"])
    shown = known.shown if known else "{measure} of {network}, on {rows}"
    return shown.format(measure=measure, network=network, beside=beside, rows=rows, task=task)


def _table(grid: Mapping[Any, Mapping[str, float]]) -> list[str]:
    names = dict.fromkeys(name for numbers in grid.values() for name in numbers)
    columns = {name: [numbers.get(name) for numbers in grid.values()] for name in names}
    return _lines(pa.table({"layer": [*grid], **columns}))


def _speed(profile: Mapping[str, Any]) -> list[str]:
    """Its network and device, and a line for each quantity and batch."""
    kept = ranges(profile["kept_layers"])
    gone = profile["removed_feed_forwards"]
    without = f" without feed-forwards {ranges(gone)}" if gone else ""
    first = (
        f"speed of {profile['model']}, layers {kept}{without}, beside all {profile['depth']}: "
        f"batches of rows of {profile['max_length']} tokens, on {profile['device_name']}"
    )
    return [first, "", *_lines(pa.Table.from_pylist(profile["timings"]).select(_SPEED_COLUMNS))]


def _lines(rows: pa.Table) -> list[str]:
    return render_rows(rows, terminal=False).splitlines()


def logs_text(found: History) -> str:
    """Each failed attempt with its traceback and the end of its output; then the epochs."""
    lines: list[str] = []
    for attempt in found.attempts:
        lines += [_attempt_line(attempt), *_printed(attempt["traceback"])]
        if attempt["log"]:
            lines += ["-- printed:", *_printed(attempt["log"])]
        lines.append("")
    if found.record is None:
        lines.append(f"no record, {_tries(found)}")
    else:
        lines += _epochs(found.record)
        ended, host = found.record["ended_at"], found.record["host"]
        lines.append(f"recorded {_moment(ended)} on {host}")
    return page(lines)


def _printed(text: str | None) -> list[str]:
    """Lines of a program's output, with a tab as four spaces."""
    return (text or "").rstrip().expandtabs(4).split("\n")


def _epochs(record: Mapping[str, Any]) -> list[str]:
    losses = record.get("train_losses") or []
    scores: dict[int, list[str]] = {}
    for item in record.get("epoch_metrics") or []:
        scores.setdefault(item["epoch"], []).append(
            f"{item['split']} {item['metric']} {100 * item['value']:.2f}"
        )
    return [
        f"epoch {epoch}: train loss {loss:.4f}, {', '.join(scores.get(epoch, []))}"
        for epoch, loss in enumerate(losses, start=1)
    ]


def _tries(found: History) -> str:
    return f"{len(found.attempts)} failed attempt" + "s" * (len(found.attempts) != 1)


def _attempt_line(attempt: Mapping[str, Any]) -> str:
    follow = "" if attempt["final"] is not False else "; tried again"
    message = (str(attempt["message"]).splitlines() or ["no message"])[0]
    return (
        f"{_moment(attempt['ended_at'])}  {attempt['error_type']} on {attempt['host']}: "
        f"{message}{follow}"
    )


def _moment(value: dt.datetime | None) -> str:
    return "-" if value is None else f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
