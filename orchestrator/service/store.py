"""Opens a store that must exist; `show` and `logs`: everything on one trial."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from lp_sweep.orchestrator.plan.known import attempted_work
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.files import is_bucket
from lp_sweep.storage.printable import page, printable, said_if_slow, say
from lp_sweep.storage.store import Store, is_store

_READING_PATIENCE = 60.0  # seconds


def existing(location: str) -> Store:
    """The store at the location. Raises StoreError if there is none: mostly a wrong --store."""
    patience = reading_patience(location)
    waiting = f"the store does not answer yet: trying for {patience:g} s (LP_SWEEP_STORE_PATIENCE)"
    with said_if_slow(say, waiting, after=5.0, in_logs=True):
        store = Store(location, patience=patience)
        if not is_store(location, patience):
            raise StoreError(
                f"no store at {store.location}: the folder has no records of lp-sweep."
            )
    return store


def reading_patience(location: str) -> float:
    """Seconds for which a command that only reads retries the store. A folder is there or not."""
    return store_patience(_READING_PATIENCE) if is_bucket(location) else 0.0


def store_patience(usual: float) -> float:
    text = os.environ.get("LP_SWEEP_STORE_PATIENCE", str(usual))
    try:
        return float(text)
    except ValueError:
        raise SpecError(
            f"LP_SWEEP_STORE_PATIENCE is {text!r}: give seconds, such as 600."
        ) from None


# -- show and logs


class History(NamedTuple):
    """A trial's or profile's record (None: not done), and its failed attempts, oldest first."""

    id: str
    record: Mapping[str, Any] | None
    attempts: list[Mapping[str, Any]]

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON; a number that is not finite is None."""
        from lp_sweep.analysis.render import finite

        found: dict[str, Any] = finite(self._asdict())
        return found


def history(store: Store, name: str) -> History:
    """Finds a trial or profile by its identifier or the beginning of one. Raises StoreError."""
    id_ = _find(store, name)
    table = "profiles" if id_.startswith("p") else "trials"
    rows = store.read(table, id_) if id_ in store.names(table) else None
    names = [item for item in store.names("attempts") if attempted_work(item) == id_]
    attempts = store.read_all("attempts", names).rows.to_pylist()
    attempts.sort(key=lambda attempt: str(attempt["ended_at"]))
    return History(id_, rows[0] if rows else None, attempts)


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


def logs_text(found: History) -> str:
    """Each failed attempt with its traceback and the end of its output; then the epochs."""
    lines: list[str] = []
    for attempt in found.attempts:
        lines += [attempt_line(attempt), *_printed(attempt["traceback"])]
        if attempt["log"]:
            lines += ["-- printed:", *_printed(attempt["log"])]
        lines.append("")
    if found.record is None:
        lines.append(f"no record, {tries(found)}")
    else:
        lines += _epochs(found.record)
        ended, host = found.record["ended_at"], found.record["host"]
        lines.append(f"recorded {moment(ended)} on {host}")
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


def tries(found: History) -> str:
    return f"{len(found.attempts)} failed attempt" + "s" * (len(found.attempts) != 1)


def attempt_line(attempt: Mapping[str, Any]) -> str:
    follow = "" if attempt["final"] is not False else "; tried again"
    message = (str(attempt["message"]).splitlines() or ["no message"])[0]
    return (
        f"{moment(attempt['ended_at'])}  {attempt['error_type']} on {attempt['host']}: "
        f"{message}{follow}"
    )


def moment(value: dt.datetime | None) -> str:
    return "-" if value is None else f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
