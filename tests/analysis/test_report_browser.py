"""The page of `lp-sweep report` in a real browser: it fits, it sorts, and nobody complains.

It takes Debian's `chromium` and `chromium-driver`, and no Python package: they are driven over the
W3C WebDriver protocol, which is JSON over HTTP.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.report.writing import write_report
from tests.support.fake_records import FakeSweep
from tests.support.measured import (
    HOSTILE,
    measured_speeds,
    pruned_networks,
    whole_networks,
    without_feed_forwards,
)

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ENTER, TAB = "\ue007", "\ue004"
_STARTED = re.compile(r"started successfully on port (\d+)")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy


def missing() -> str:
    """The packages that are not installed; "" if all are."""
    lacking = [] if any(map(shutil.which, BROWSERS)) else ["chromium"]
    lacking += [] if shutil.which("chromedriver") else ["chromium-driver"]
    return " and ".join(lacking)


class Browser:
    """One window. Values of scripts are JSON."""

    def __init__(self, driver: str) -> None:
        binary = next(filter(None, map(shutil.which, BROWSERS)))
        # root has no sandbox of Chromium's; a container's /dev/shm is small
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage"]
        arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
        wanted = {
            "goog:chromeOptions": {"binary": binary, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self._at = f"{driver}/session"
        made = self._ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._at += f"/{made['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._at + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with _DIRECT.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def open(self, page: Path | str, width: int = 1280, *, dark: bool = False) -> None:
        """The file or address, in a window of so many pixels and 800 high; forgets what was
        logged."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.protocol("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.protocol("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.log()
        target = page if isinstance(page, str) else page.absolute().as_uri()
        for url in ("about:blank", target):  # the same page again is loaded anew
            self._ask("POST", "/url", {"url": url})
        while self.run("return document.readyState") != "complete":
            time.sleep(0.05)

    def protocol(self, command: str, parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs a script and returns its result."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, key: str) -> None:
        """On whatever has the focus."""
        steps = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keys", "actions": steps}]
        self._ask("POST", "/actions", {"actions": actions})

    def log(self) -> list[str]:
        """Messages on the browser's console since the last call."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def print(self, target: Path) -> None:
        """The whole page, as PDF."""
        printed = self.protocol("Page.printToPDF", {"printBackground": True})
        target.write_bytes(base64.b64decode(printed["data"]))

    def close(self) -> None:
        self._ask("DELETE", "")


@contextlib.contextmanager
def running() -> Iterator[Browser]:
    """A browser, and nothing of it left afterwards."""
    command = ["chromedriver", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            found = next(filter(None, map(_STARTED.search, driver.stdout)))
            browser = Browser(f"http://127.0.0.1:{found[1]}")
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()


# -- the tests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {missing()} (Debian's packages)"),
]

OPEN_ALL = "for (const item of document.querySelectorAll('details')) item.open = true;"
COLUMN = """
const [table, column] = arguments;
return [...document.querySelectorAll(`#table-${table} tbody tr`)].map(
    (row) => row.cells[column].textContent);
"""
STACKED = """
const two_plots = (at) => at.querySelectorAll(".plot").length > 1;
const [one, two] = [...document.querySelectorAll(".plots")].find(two_plots).children;
return two.getBoundingClientRect().top >= one.getBoundingClientRect().bottom;
"""
BUTTON = "document.querySelectorAll('#table-tasks th button')[arguments[0]]"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with running() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With every figure, hostile names, and cells that are missing."""
    folder = tmp_path_factory.mktemp("page")
    fake = FakeSweep(folder / "store")
    for add in (whole_networks, pruned_networks, without_feed_forwards, measured_speeds):
        add(fake)
    for name in HOSTILE:
        fake.cell(k=0, score=90.0, model=name, task="SST-2")
        fake.cell(k=2, state="failed", model=name, task="SST-2")
    fake.store.put_text("sweeps", "demo.yaml", f"name: {HOSTILE[0]}\n" + "x" * 2000)
    return write_report(fake.publish(), folder / "report.html").page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits_without_complaints(window: Browser, page: Path, width: int, dark: bool) -> None:
    window.open(page, width, dark=dark)
    assert window.run(f"{OPEN_ALL} return document.documentElement.scrollWidth") <= width
    outside = window.run(
        "const wide = (at) => at.getBoundingClientRect().right > innerWidth + 1"
        "  && !at.closest('.scroll, pre');"
        "return [...document.body.querySelectorAll('*')].filter(wide).map((at) => at.outerHTML);"
    )
    assert outside == []
    assert window.run(STACKED) is (width == 360), "on a phone one plot below the other"
    drawn = (
        "return [...document.querySelectorAll('.picture')].every((at) =>"
        " at.firstChild.naturalWidth > 0 && at.querySelectorAll('circle title').length > 0)"
    )
    assert window.run(drawn) is True
    assert window.run("return performance.getEntriesByType('resource').length") == 0
    assert window.log() == []
    paper, ink = window.run(
        "const style = getComputedStyle(document.body);"
        "return [style.backgroundColor, style.color].map((c) => +c.match(/\\d+/)[0]);"
    )
    assert (paper < ink) is dark


def test_a_heading_sorts_its_column_and_says_so(window: Browser, page: Path) -> None:
    window.open(page)
    window.run(OPEN_ALL)
    heading = window.run("return document.querySelector('#table-tasks thead').textContent")
    assert "SST-2 accuracy" in heading
    column = window.run(
        "return [...document.querySelectorAll('#table-tasks th')].findIndex("
        "(th) => th.textContent.startsWith('SST-2'))"
    )
    as_it_was = window.run(COLUMN, "tasks", column)
    seen = []
    for wanted in ("ascending", "descending", None):
        window.run(f"{BUTTON}.click()", column)
        assert window.run(f"return {BUTTON}.parentElement.ariaSort", column) == wanted
        seen.append(window.run(COLUMN, "tasks", column))
    up, down, back = seen
    numbers = [float(text.split()[0]) for text in up if text[0].isdigit()]
    assert len(numbers) > 3
    assert numbers == sorted(numbers)
    assert [float(t.split()[0]) for t in down if t[0].isdigit()] == sorted(numbers, reverse=True)
    assert back == as_it_was != up
    words = [text for text in up if not text[0].isdigit()]
    assert up[-len(words) :] == words == down[-len(words) :], "no number: below, either way"
    assert window.log() == []


def test_the_keyboard_sorts(window: Browser, page: Path) -> None:
    window.open(page, 360)
    window.run(OPEN_ALL)
    window.run(f"{BUTTON}.focus()", 2)
    assert "layers" in window.run(f"return {BUTTON}.title", 2)
    window.press(ENTER)
    assert window.run(f"return {BUTTON}.parentElement.ariaSort", 2) == "ascending"


def test_the_keyboard_reaches_everything(window: Browser, page: Path) -> None:
    """Links, buttons, what unfolds and what scrolls, each once and with a name."""
    window.open(page)
    wanted = "[...document.querySelectorAll('a, button, summary, [tabindex]')]"
    seen = f"{wanted}.filter((at) => at.checkVisibility())"
    n = window.run(f"window.met = new Set(); return {seen}.length")
    for _ in range(n):
        window.press(TAB)
        window.run("met.add(document.activeElement)")
    assert window.run(f"return {seen}.filter((at) => !met.has(at)).map((at) => at.outerHTML)") == []
    unnamed = "(at) => !(at.textContent.trim() || at.ariaLabel)"
    assert window.run(f"return {seen}.filter({unnamed}).map((at) => at.outerHTML)") == []


def test_a_link_opens_what_is_folded(window: Browser, page: Path) -> None:
    window.open(page)
    is_open = "return document.getElementById('significance').open"
    assert window.run(is_open) is False
    window.run("location.hash = '#table-significance'")
    time.sleep(0.5)
    assert window.run(is_open) is True


def test_print_has_all_that_is_folded(window: Browser, page: Path, tmp_path: Path) -> None:
    window.open(page)
    height = "return document.body.scrollHeight"
    on_screen = window.run(height)
    window.protocol("Emulation.setEmulatedMedia", {"media": "print"})
    in_print = window.run(height)
    window.protocol("Emulation.setEmulatedMedia", {"media": ""})
    assert in_print > 2 * on_screen
    window.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
