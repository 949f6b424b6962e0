"""The page of `lp-sweep dashboard` in a real Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_records import FakeSweep, store_with_scores
from tests.support.liveprocess import piped, wait_until
from tests.support.program import command

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    pytest.skip("no Chromium: apt-get install chromium chromium-driver", allow_module_level=True)
pytestmark = pytest.mark.slow

NO_OVERFLOW = "return document.documentElement.scrollWidth <= window.innerWidth"
HOSTILE = "<img src=x onerror=alert(1)>" + "x" * 90


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


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
def shown(fake: FakeSweep, chromium: Any) -> Iterator[Any]:
    """The browser, at a page that has its first picture."""
    with piped(*command("dashboard", "--store", fake.store.location, "--port", "0")) as process:
        assert process.stdout
        chromium.set_window_size(1200, 800)
        chromium.get(process.stdout.readline().strip())
        wait_until(lambda: text(chromium, "sweep") == "demo")
        wait_until(lambda: chromium.find_elements("css selector", "#report svg"), 120)
        yield chromium
        chromium.get("about:blank")


def text(browser: Any, id_: str) -> str:
    return str(browser.find_element("id", id_).text)


def complaints(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]


def test_it_shows_the_sweep_without_a_complaint(shown: Any) -> None:
    assert "done\n26 of 27" in text(shown, "numbers")
    assert text(shown, "failures") == "Failures: out_of_memory 1"
    assert len(shown.find_elements("css selector", "#report figure svg path")) >= 10
    assert len(shown.find_elements("css selector", "#report .answer")) == 5
    assert HOSTILE in text(shown, "report"), "as text"
    assert complaints(shown) == []


def test_it_follows_a_new_record_and_stays_where_it_was_scrolled(
    fake: FakeSweep, shown: Any
) -> None:
    shown.set_window_size(500, 500)
    shown.find_element("css selector", "#report .answer:nth-of-type(3) summary").click()
    shown.execute_script("window.scrollTo(0, 700)")
    before = shown.execute_script("return window.scrollY")
    assert before > 300
    fake.cell(task="rte", strategy="top", k=4, score=75.0, seed=1)
    fake.publish()
    wait_until(lambda: "27 of 28" in text(shown, "numbers"))
    assert abs(shown.execute_script("return window.scrollY") - before) < 3
    wait_until(
        lambda: "75.00" in shown.find_element("id", "scores").get_attribute("innerHTML"), 120
    )
    opened = shown.find_elements("css selector", "#report .answer[open]")
    assert len(opened) == 1, "what was opened stays so"
    assert abs(shown.execute_script("return window.scrollY") - before) < 3
    assert complaints(shown) == []


@pytest.mark.parametrize("width", [360, 500, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_reads_at_any_width_by_day_and_night(
    shown: Any, width: int, scheme: str
) -> None:
    metrics = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": width < 500}
    shown.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    shown.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        for summary in shown.find_elements("css selector", "summary"):
            shown.execute_script("arguments[0].parentElement.open = true", summary)
        assert shown.execute_script(NO_OVERFLOW)
        paper = shown.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)")
    finally:
        shown.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_it_says_when_the_store_is_away(fake: FakeSweep, shown: Any) -> None:
    place = Path(fake.store.location)
    place.rename(place.with_name("away"))
    wait_until(lambda: "is looked at again" in text(shown, "trouble"))
    assert "demo" in text(shown, "sweep"), "the last picture stays"
    place.with_name("away").rename(place)
    wait_until(lambda: text(shown, "trouble") == "")


def test_another_sweep_can_be_chosen(fake: FakeSweep, shown: Any) -> None:
    from selenium.webdriver.support.ui import Select

    other = FakeSweep(fake.store.location, "another")
    other.cell(k=0)
    other.publish()
    wait_until(lambda: text(shown, "sweep") == "another")  # the newest
    Select(shown.find_element("id", "sweeps")).select_by_value("demo")
    wait_until(lambda: text(shown, "sweep") == "demo")
    assert "sweep=demo" in shown.current_url
