"""Shared by the fuzzers: how many examples, and texts that break parsers. Not a test.

Every day the examples are few and the same; the long run (marked slow) draws new ones.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lp_sweep.storage.errors import LpSweepError

SECONDS = 2.0  # the most that reading one file may take
EVERYDAY = 20  # examples
_MANY = 1_000

# what editors, other systems, attackers and bad copies leave in a text
AWKWARD = [
    *("", " ", "\t", "\n", "\r\n", "\x00", "\x1b[31mred\x1b[0m", "\x07", "\x9b2J", "\u202eltr"),
    *("\ufeff", "\u2028", "é", "日本語", "🙂", "a\u0301", "'", '"', "\\", "%s", "%", "${HOME}"),
    *("{x}", "../../etc/passwd", "/etc/passwd", "~", "~no-such-user", "-rf", "--store", "a;b"),
    "$(id)",
    *("nan", "NaN", "inf", "-0", "1e400", "9" * 30, "9" * 5000, "0x" + "f" * 40, "x" * 300),
    *("null", "true", "*", "?", "[", "]", "{", "}", "&a", "*a", "!!python/object:os.system", "<<"),
    *("|", ">", "#", ":", "- ", "---", "...", "@", "`", "con", ".", "..", "a/b", "a\\b"),
]
awkward = st.sampled_from(AWKWARD) | st.text(max_size=20)


def run(examples: int, law: Callable[..., None], **drawn: st.SearchStrategy[Any]) -> None:
    """Few examples are always the same, many are new each time."""
    usual = settings.get_profile("everyday")
    chosen = settings(usual, max_examples=examples, derandomize=examples < _MANY)
    chosen(given(**drawn)(law))()


def fuzz(law: Callable[..., None], long: int, **drawn: st.SearchStrategy[Any]) -> Any:
    """A test of `law(folder, **drawn)`, run in that folder; its long run is marked slow."""

    @pytest.mark.parametrize(
        "examples",
        [
            pytest.param(EVERYDAY, id="everyday"),
            pytest.param(long, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
        ],
    )
    def test(tmp_path: Path, examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        run(examples, lambda **values: law(tmp_path, **values), **drawn)

    return test


def outcome(do: Callable[[], Any]) -> Any:
    """The result, or the user's error; any other exception is raised. Fails if it takes too long
    twice: once may be garbage collection, after ten thousand examples."""
    for _ in range(2):
        begun = time.process_time()
        result: Any
        try:
            result = do()
        except LpSweepError as error:
            result = error
        taken = time.process_time() - begun
        if taken < SECONDS:
            return result
    raise AssertionError(f"{taken:.1f} s")


def assert_good_message(error: LpSweepError, starts: str, said: str = "") -> None:
    """Each line begins with its place, has an end, could be printed anywhere, and says nothing of
    our own, but for words that the user has `said`: Hypothesis draws words of our source too."""
    lines = str(error).split("\n")
    assert len(lines) <= 21
    for line in lines:
        assert re.match(starts, line), line
        assert line.isprintable(), line
        assert len(line) < 1500, line
        ours = re.findall(r"pydantic|(?<!')Entry|Traceback|object at 0x", line)
        assert all(word in said for word in ours), line
