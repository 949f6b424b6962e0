"""`lp-sweep dashboard` as a process: what it serves, to whom, and how it ends."""

from __future__ import annotations

import errno
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from lp_sweep.analysis.figures.theme import COLOURS
from lp_sweep.orchestrator.watch import web
from lp_sweep.orchestrator.watch.web import Looks
from tests.support.fake_records import FakeSweep, store_with_scores
from tests.support.liveprocess import piped, wait_until
from tests.support.program import command, sweep

pytest.importorskip("uvicorn", reason="pip install 'lp-sweep[dashboard]'")
pytest.importorskip("starlette", reason="pip install 'lp-sweep[dashboard]'")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.text))


class Page:
    """A dashboard that serves."""

    def __init__(self, fake: FakeSweep, process: subprocess.Popen[str], url: str) -> None:
        self.fake, self.process, self.url = fake, process, url
        self.port = int(url.rstrip("/").rpartition(":")[2])

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """The path goes out as it is: no client tidies it up."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers=headers)
            got = connection.getresponse()
            text = got.read().decode()
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, text)
        finally:
            connection.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    fake = store_with_scores(tmp_path_factory.mktemp("dashboard"))
    words = command("dashboard", "--store", fake.store.location, "--port", "0")
    with piped(*words) as process:
        yield Page(fake, process, process.stdout.readline().strip())


def test_the_page_and_its_files(page: Page) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", page.url)
    for path, kind in {
        "/": "text/html",
        "/dashboard.css": "text/css",
        "/dashboard.js": "text/javascript",
        "/report.css": "text/css",
    }.items():
        answer = page.ask(path)
        assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, kind)
        assert answer.text
        assert page.ask(path, "HEAD").text == ""
    palette = page.ask("/report.css").text.lower()
    for place, colour in enumerate(COLOURS[:-1]):  # the last is black: the page's ink
        assert f"--c{place}: {colour.lower()}" in palette, "the colours of the figures"


def test_the_state_is_the_picture_and_an_unknown_sweep_is_said_so(page: Page) -> None:
    told = page.ask("/state.json").json
    assert (told["schema"], told["store"]) == (1, page.fake.store.location)
    picture = told["picture"]
    assert (picture["sweep"], picture["done"], picture["failed"]) == ("demo", 2, 1)
    assert picture["curves"][0]["points"][1]["mean"] == 88.0

    answer = page.ask("/state.json?sweep=%3Cb%3E")
    assert answer.status == 404
    assert "no sweep named '<b>' in" in answer.json["error"]
    assert answer.headers["content-type"] == "application/json"


def test_the_answer_is_the_reports(page: Page) -> None:
    told = page.ask("/answer.json").json
    assert "<b>4–6</b> of 12 layers" in told["part"]["html"], "K=8 may do: it failed"
    assert 'id="fig-score"' in told["part"]["html"]
    assert "var(--c0)" in told["part"]["style"]
    again = page.ask(f"/answer.json?{urlencode({'shown': told['id']})}").json
    assert again == {"id": told["id"], "part": None}


def test_an_answer_names_what_it_left_out(tmp_path: Path) -> None:
    store = store_with_scores(tmp_path).store
    torn = next((Path(store.location) / "trials").glob("*.parquet"))
    torn.write_bytes(b"torn")
    answer = Looks(store, None).answer("demo", "")
    assert torn.name in answer.content["part"]["html"]


def test_an_answer_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no trial has ended since: a speed was measured, a cell is not needed any more."""
    monkeypatch.setattr(web, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(web, "_SHARE", 0)
    fake = store_with_scores(tmp_path)
    looks, made = Looks(fake.store, None), []
    monkeypatch.setattr(looks, "_part", lambda sweep, id_: made.append(id_) or {"id": id_})
    changes: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: fake.speed(1.5, 1.6),
        lambda: fake.cell(k=9, search="not_needed") and fake.publish(),
    )
    for number, change in enumerate(changes, start=1):
        change()
        for _ in range(2):
            looks.answer(None, "")
        assert len(made) == number, "once for each change"


def test_nothing_but_reading_of_a_few_paths_and_no_other_site_gets_in(page: Page) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert page.ask("/state.json", method).status == 405
    for path in (
        *("/../cli.py", "/..%2f..%2fpyproject.toml", "/dashboard.html", "/templates/"),
        *("//etc/passwd", "/state.json/..", "/%2e%2e/sweep.yaml", "/dashboard.js/"),
    ):
        assert page.ask(path).status == 404, path

    asked = [page.ask("/"), page.ask("/state.json", Origin="https://evil.example")]
    asked += [page.ask("/nope"), page.ask("/", "POST"), page.ask("/", Host="evil.example")]
    for answer in asked:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_it_answers_this_machine_alone_and_by_its_own_name(page: Page) -> None:
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.2", page.port)) == errno.ECONNREFUSED

    for host in ("evil.example", "localhost.evil.example", "0.0.0.0", ""):
        answer = page.ask("/state.json", Host=host)
        assert (answer.status, "demo" in answer.text) == (400, False), host
    assert page.ask("/state.json", Host="localhost:9999").status == 200, "a forwarded port"


def test_it_follows_the_store(tmp_path: Path) -> None:
    fake = store_with_scores(tmp_path)
    place = Path(fake.store.location)
    with piped(*command("dashboard", "--store", place, "--port", "0")) as process:
        page = Page(fake, process, process.stdout.readline().strip())
        assert page.ask("/state.json").json["picture"]["done"] == 2
        fake.cell(k=4, score=89.0)
        fake.publish()
        wait_until(lambda: page.ask("/state.json").json["picture"]["done"] == 3)
        place.rename(place.with_name("away"))
        wait_until(lambda: page.ask("/state.json").status == 503)
        assert "gone" in page.ask("/state.json").json["error"]
        place.with_name("away").rename(place)
        wait_until(lambda: page.ask("/state.json").status == 200)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Traceback" not in stderr


def test_a_taken_port_is_said_so(page: Page, tmp_path: Path) -> None:
    store = page.fake.store.location
    done = sweep("dashboard", "--store", store, "--port", str(page.port), cwd=tmp_path)
    assert done.returncode == 4
    assert f"can't listen at port {page.port} of 127.0.0.1: it is taken." in done.stderr
    assert "--port 0" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--store", "nowhere"], 4, "no store at"),
        (["--sweep", "nope"], 2, "no sweep named 'nope' in"),
        (["--port", "70000"], 2, "less than or equal to 65535"),
    ],
)
def test_mistakes(page: Page, tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    place = [] if "--store" in arguments else ["--store", page.fake.store.location]
    done = sweep("dashboard", *arguments, *place, cwd=tmp_path)
    assert done.returncode == code
    assert told in done.stderr


def test_without_the_extra_it_says_what_to_install(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = sweep("dashboard", "--store", page.fake.store.location, cwd=tmp_path)
    assert done.returncode == 4
    assert "needs uvicorn: pip install 'lp-sweep[dashboard]'" in done.stderr
