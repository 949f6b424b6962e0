"""The page of `lp-sweep dashboard` in a real Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lp_sweep.storage.runs import Presence, Progress
from lp_sweep.storage.underway import FOLDER, Underway
from tests.support import browser
from tests.support.browser import Browser
from tests.support.fake_records import FakeSweep, store_with_scores
from tests.support.liveprocess import piped, wait_until
from tests.support.program import command

pytest.importorskip("uvicorn", reason="pip install 'lp-sweep[dashboard]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(browser.missing()), reason=f"not installed: {browser.missing()} (Debian's packages)"
    ),
]

HOSTILE = "<img src=x onerror=alert(1)>" + "x" * 90
OPENED = "return document.querySelectorAll('#report .answers details[open]').length"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser.running() as opened:
        yield opened


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    fake = store_with_scores(tmp_path)
    for task in ("rte", "mrpc", "stsb", HOSTILE):
        for strategy in ("top", "bottom"):
            for seed in (1, 2):
                fake.curve({0: 80.0 + seed, 6: 70.0}, task=task, strategy=strategy, seed=seed)
    fake.publish()
    return fake


@pytest.fixture
def address(fake: FakeSweep) -> Iterator[str]:
    with piped(*command("dashboard", "--store", fake.store.location, "--port", "0")) as process:
        yield process.stdout.readline().strip()


@pytest.fixture
def shown(window: Browser, address: str) -> Iterator[Browser]:
    """The browser, at a page that has its first picture and its first answer."""
    show(window, address)
    yield window
    window.open("about:blank")


def show(window: Browser, address: str, width: int = 1200, *, dark: bool = False) -> None:
    window.open(address, width, dark=dark)
    wait_until(lambda: text(window, "sweep") == "demo")
    wait_until(lambda: window.run("return document.querySelector('#report svg') !== null"), 120)


def text(window: Browser, id_: str) -> str:
    return str(window.run("return document.getElementById(arguments[0]).innerText", id_))


def test_it_shows_the_sweep_and_its_answer_without_a_complaint(shown: Browser) -> None:
    assert "26 of 27" in text(shown, "numbers")
    assert text(shown, "failures") == "Failures: out_of_memory 1"
    assert text(shown, "status") == "Ended: 1 failed"
    assert "has no room for a batch" in text(shown, "failed")
    assert "lp-sweep retry" in text(shown, "next")
    assert shown.run("return document.querySelectorAll('#report figure svg path').length") >= 10
    assert shown.run("return document.querySelectorAll('#report .answers tbody tr').length") == 5
    assert HOSTILE in text(shown, "report"), "as text"
    assert shown.log() == []


def test_it_follows_a_new_record_and_stays_where_it_was_scrolled(
    fake: FakeSweep, window: Browser, address: str
) -> None:
    show(window, address, 500)
    window.run(
        "document.querySelectorAll('#report .answers details')[2].open = true; scrollTo(0, 700)"
    )
    before = window.run("return scrollY")
    assert before > 300
    fake.cell(task="rte", strategy="top", k=4, score=75.0, seed=1)
    fake.publish()
    wait_until(lambda: "27 of 28" in text(window, "numbers"))
    scores = "return document.getElementById('scores').textContent.includes('75.00')"
    wait_until(lambda: window.run(scores), 120)
    assert abs(window.run("return scrollY") - before) < 3
    assert window.run(OPENED) == 1, "what was opened stays so"
    assert window.log() == []


def test_it_says_how_far_a_long_trial_is(fake: FakeSweep, shown: Browser) -> None:
    how_far = Underway(310, 1200, 0.4312, 545.0)
    presence = Presence(fake.store, "demo", lambda: Progress(0, 0, 1, 1))
    with presence.announced():
        presence.claim("t1-long")
        fake.store.put_text(FOLDER, "t1-long.json", json.dumps(how_far._asdict()))
        told = "step 310 of 1,200, loss 0.431, 9:05 left"
        wait_until(lambda: told in text(shown, "slots"), 120)
    assert shown.log() == []


@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1600, True)])
def test_it_fits_and_reads_at_any_width_by_day_and_night(
    window: Browser, address: str, width: int, dark: bool
) -> None:
    show(window, address, width, dark=dark)
    window.run("for (const item of document.querySelectorAll('details')) item.open = true;")
    assert window.run("return document.documentElement.scrollWidth <= innerWidth")
    paper = window.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")


def test_it_says_when_the_store_is_away(fake: FakeSweep, shown: Browser) -> None:
    place = Path(fake.store.location)
    place.rename(place.with_name("away"))
    wait_until(lambda: "is looked at again" in text(shown, "trouble"))
    assert "demo" in text(shown, "sweep"), "the last picture stays"
    place.with_name("away").rename(place)
    wait_until(lambda: text(shown, "trouble") == "")


def test_another_sweep_can_be_chosen(fake: FakeSweep, shown: Browser) -> None:
    other = FakeSweep(fake.store.location, "another")
    other.cell(k=0)
    other.publish()
    wait_until(lambda: text(shown, "sweep") == "another")  # the newest
    shown.run(
        "const chosen = document.getElementById('sweeps'); chosen.value = 'demo';"
        "chosen.dispatchEvent(new Event('change'));"
    )
    wait_until(lambda: text(shown, "sweep") == "demo")
    assert "sweep=demo" in shown.run("return location.href")
