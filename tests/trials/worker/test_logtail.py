"""The output of a trial is passed on, and its end is kept for the attempt."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging as transformers_logging

from lp_sweep.storage.redact import REMOVED
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker import run as running
from lp_sweep.trials.worker.tries import LOG_BYTES, Tail, recorded
from tests.support.plain_jobs import assert_fails
from tests.support.toyworld import jobs


def test_the_streams_are_given_back() -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(KeyError), recorded():
        raise KeyError
    assert (sys.stdout, sys.stderr) == before


def test_a_library_that_took_hold_of_stderr_before(capsys: pytest.CaptureFixture[str]) -> None:
    """transformers makes its handler once, with the stream of that moment."""
    logger = transformers_logging.get_logger("transformers.test")
    handler = logging.getLogger("transformers").handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    stream = handler.stream
    handler.setStream(sys.stderr)
    try:
        with recorded() as tail:
            logger.warning("weights are new")
        assert handler.stream is sys.stderr
    finally:
        handler.setStream(stream)
    assert "weights are new" in tail.text()
    assert "weights are new" in capsys.readouterr().err


@pytest.mark.parametrize("piece", ["x" * 100 + "\n", "é" * 50_000], ids=["lines", "one"])
def test_the_tail_is_bounded_and_is_the_end(piece: str) -> None:
    tail = Tail()
    for _ in range(200_000 // len(piece)):
        tail.add(piece)
    tail.add("the end")
    text = tail.text()
    assert len(text.encode()) <= LOG_BYTES
    assert len(text.encode()) > LOG_BYTES - 200
    assert text.endswith("the end")
    assert len(tail._end) < 4 * LOG_BYTES + len(piece)


def test_half_a_secret_at_the_cut_does_not_stay() -> None:
    """The name that gives it away was cut off, and what follows shrinks, so that the cut shows."""
    line = f"password={'y' * 990}\n"
    filler = line * (2 * LOG_BYTES // len(line))
    for length in range(730, 790, 3):
        tail = Tail()
        tail.add("--token Zq12345678 and more\n" + filler + "z" * length)
        text = tail.text()
        assert "2345678" not in text
        assert text.count(f"password={REMOVED}") > 30
    assert tail._cut


def test_a_failed_trial_keeps_what_it_printed(
    world: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*args: Any) -> Any:
        print("reading the rows")
        warnings.warn("something is odd", stacklevel=1)
        raise RuntimeError("no more")

    monkeypatch.setattr(running, "run_trial", fails)
    job = {**jobs(world, "k=0")[0], "command": "lp-sweep run sweep.yaml"}
    with pytest.warns(UserWarning, match="something is odd"):
        assert_fails(store, job, "bug", "no more")
    assert "reading the rows" in capsys.readouterr().out, "is passed on"
    assert not store.names("trials")
    (row,) = store.read_all("attempts").rows.to_pylist()
    assert (row["trial_id"], row["error_type"]) == (job["id"], "bug")
    assert row["host"]
    assert "reading the rows" in row["log"]
    assert "in fails" in row["traceback"]
    expected = {"message": "no more", "command": job["command"], "final": True, "micro_batch": 16}
    assert {name: row[name] for name in expected} == expected
