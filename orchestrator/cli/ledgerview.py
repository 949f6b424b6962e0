"""`show` and `logs`: everything a store has on one trial, for a person or as JSON."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from lp_sweep.analysis.raw import finite
from lp_sweep.orchestrator.cli.layertext import layers_text
from lp_sweep.orchestrator.plan.known import attempted_work
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.printable import page, printable, ranges
from lp_sweep.storage.store import Store

# what `show` puts together; the rest follows by name
_GROUPS = {
    "what": """trial_id profile_id identity_version model model_fingerprint model_revision depth
        kept_layers dropped_layers k procedure measure task data_fingerprint seed""",
    "result": """metric positive last best best_epoch majority train_losses steps train_examples
        dev_examples dev_in_train dev_relabelled params_total params_encoder params_embedding
        micro_batch out_of_memory_retries resumed_from_step""",
    "where": """host device_type device_name threads started_at ended_at command versions""",
}
# in the JSON; epochs and speeds have views of their own, a profile's numbers a table of their own
_NOT_SHOWN = ("spec", "epoch_metrics", "layers", "values", "timings")
_TIMINGS = ("batch", "full ms", "ms", "speed-up", "quartiles", "pairs")


class History(NamedTuple):
    """A record (None: not done), and the failed attempts, oldest first."""

    id: str
    record: Mapping[str, Any] | None
    attempts: list[Mapping[str, Any]]
    has_checksum: bool = True  # False: the earliest versions wrote none


def history(store: Store, name: str) -> History:
    """Of a trial or profile, by its identifier or the beginning of one. Raises StoreError."""
    id_ = _find(store, name)
    table = "profiles" if id_.startswith("p") else "trials"
    rows = store.find(table, id_)
    names = [item for item in store.names("attempts") if attempted_work(item) == id_]
    attempts = store.read_all("attempts", names).rows.to_pylist()
    has_checksum = not rows or store.has_checksum(table, id_)
    return History(id_, rows[0] if rows else None, sorted(attempts, key=_when), has_checksum)


def _when(attempt: Mapping[str, Any]) -> str:
    return str(attempt["ended_at"])


def _find(store: Store, name: str) -> str:
    if not name:
        raise StoreError("the name of the trial is empty. Give an identifier, or its beginning.")
    attempted = {attempted_work(item) for item in store.names("attempts")}
    known = store.names("trials") | store.names("profiles") | attempted
    if name in known:
        return name
    matches = sorted(id_ for id_ in known if id_.startswith(name))
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise StoreError(
            f"{printable(name)} is the beginning of {len(matches)} identifiers, such as "
            f"{printable(matches[0])}. Give more of it."
        )
    raise StoreError(
        f"{store.location} has nothing on {printable(name)}: no record and no failed attempt. "
        'Identifiers: lp-sweep query "SELECT trial_id, model, task, k, seed FROM cells"'
    )


def show_text(found: History) -> str:
    lines: list[str] = []
    if found.record is None:
        lines += [f"{found.id}: no record, {_tries(found)}"]
    else:
        shown = dict(found.record)
        for group, names in _GROUPS.items():
            known = [name for name in names.split() if name in shown]
            lines += [group, *(_line(name, shown.pop(name)) for name in known)]
        rest = {name: value for name, value in shown.items() if name not in _NOT_SHOWN}
        lines += ["recipe and times", *(_line(name, value) for name, value in rest.items())]
        lines += ["", *_numbers(found.record)] if "measure" in found.record else []
    if not found.has_checksum:
        lines += ["", "note: the record has no checksum, so damage to it can't be found"]
    lines += [""] * bool(found.attempts) + [_attempt_line(attempt) for attempt in found.attempts]
    if found.attempts:
        lines.append(f"tracebacks: lp-sweep logs {found.id}")
    return page(lines)


def _numbers(profile: Mapping[str, Any]) -> list[str]:
    return timings_text(profile) if profile["timings"] else layers_text(profile)


def timings_text(speed: Mapping[str, Any]) -> list[str]:
    """The network, the device, and a line for each quantity and batch."""
    kept = ranges(speed["kept_layers"])
    removed = speed["removed_feed_forwards"]
    without = f" without feed-forwards {ranges(removed)}" if removed else ""
    first = (
        f"speed of {speed['model']}, layers {kept}{without}, beside all {speed['depth']}: batches "
        f"of rows of {speed['max_length']} tokens, on {speed['device_name']}"
    )
    head = f"{'':<9}  " + "  ".join(f"{name:>9}" for name in _TIMINGS)
    return [printable(first), "", head, *map(_timing, speed["timings"] or ())]


def _timing(timing: Mapping[str, Any]) -> str:
    cells = (
        f"{timing['batch']}",
        f"{timing['full_ms']:.2f}",
        f"{timing['pruned_ms']:.2f}",
        f"{timing['speedup']:.3f}",
        f"{timing['speedup_q25']:.2f}-{timing['speedup_q75']:.2f}",
        f"{timing['pairs']}",
    )
    return f"{printable(timing['quantity']):<9}  " + "  ".join(f"{cell:>9}" for cell in cells)


def logs_text(found: History) -> str:
    """Each failed attempt with its traceback and the end of what it printed; then the end."""
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
    """What a program printed, in its own lines; a tab is as wide as four spaces."""
    return (text or "").rstrip().expandtabs(4).split("\n")


def history_json(found: History) -> str:
    plain = found._asdict()
    return json.dumps(finite(plain), default=_plain, indent=2)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


def _tries(found: History) -> str:
    return f"{len(found.attempts)} failed attempt" + "s" * (len(found.attempts) != 1)


def _attempt_line(attempt: Mapping[str, Any]) -> str:
    follow = "" if attempt["final"] is not False else "; tried again"
    message = (str(attempt["message"]).splitlines() or ["no message"])[0]
    return (
        f"{_moment(attempt['ended_at'])}  {attempt['error_type']} on {attempt['host']}: "
        f"{message}{follow}"
    )


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


def _line(name: str, value: Any) -> str:
    return f"  {name:<26} {_value(value)}"


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


def _moment(value: dt.datetime | None) -> str:
    return "-" if value is None else f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
