"""The notice that a spot machine will be taken: from fake metadata services on loopback to Ray."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.service import spot
from lp_sweep.orchestrator.service.spot import CLOUDS, Notice, drain, wait_for_notice
from lp_sweep.trials.worker.job import announced
from tests.support.metadata import Answer, Metadata, action, serving
from tests.support.program import sweep

EVERY = 0.2  # seconds between two looks
Serve = Callable[..., Metadata]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as servers:
        yield lambda *answers: servers.enter_context(serving(*answers))


def watched(cloud: str, url: str) -> tuple[Notice, list[str]]:
    said: list[str] = []
    notice = wait_for_notice(lambda: CLOUDS[cloud].look(url, EVERY), EVERY, said.append)
    return notice, said


def test_aws_gives_the_time_of_the_end_and_gcp_half_a_minute(serve: Serve) -> None:
    server = serve((404, ""), (200, action(120)))
    notice, said = watched("aws", server.url)
    assert (server.asked, said) == (2, [])
    assert 100 < notice.seconds <= 120
    assert "terminate" in notice.text

    server = serve((200, "FALSE\n"), (200, "TRUE"))
    notice, said = watched("gcp", server.url)
    assert (server.asked, notice.seconds, said) == (2, 30.0, [])


@pytest.mark.parametrize(
    ("cloud", "trouble"),
    [
        ("aws", None),
        ("aws", (403, "")),
        ("gcp", (500, "oops")),
        ("gcp", (0, "what?\r\n\r\n")),
        ("gcp", (200, "<html>")),
    ],
    ids=["silent", "403", "500", "no HTTP", "captive proxy"],
)
def test_a_service_in_trouble_is_asked_again(serve: Serve, cloud: str, trouble: Answer) -> None:
    """The trouble is said once, as is its end."""
    none, told = {
        "aws": ((404, ""), (200, action(86_400))),
        "gcp": ((200, "FALSE"), (200, "TRUE")),
    }[cloud]
    server = serve(trouble, trouble, none, told)
    notice, said = watched(cloud, server.url)
    assert server.asked == 4
    assert notice.seconds > 0
    assert [line.split(",")[0] for line in said] == [
        "no answer from the metadata service",
        "the metadata service answers again",
    ]


def test_a_service_that_is_not_there_yet_is_waited_for(serve: Serve) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nothing = f"http://127.0.0.1:{free.getsockname()[1]}"
    server = serve((200, "TRUE"))
    urls = iter([nothing, nothing, server.url])
    notice = wait_for_notice(lambda: CLOUDS["gcp"].look(next(urls), EVERY), 0.01, print)
    assert notice.seconds == 30.0


@pytest.mark.parametrize("text", ["", '{"action": "stop"}', "[]", '{"time": 5}'])
def test_a_notice_in_other_words_counts(serve: Serve, text: str) -> None:
    assert watched("aws", serve((200, text)).url)[0].seconds == 120.0


# -- what Ray is asked


def test_ray_is_asked_again_until_the_machine_is_gone() -> None:
    asked: list[float] = []

    def ask(text: str, left: float) -> None:
        asked.append(left)
        if len(asked) < 3:
            raise ConnectionError("the head is away")

    said: list[str] = []
    assert drain(Notice("spot", 30.0), ask, 0.01, said.append)
    assert len(asked) == 3
    assert 29 < asked[2] < asked[0] <= 30
    assert said == ["Ray does not take the notice: the head is away"] * 2


# -- the command


def test_a_notice_drains_the_node_once_and_tells_the_trials(
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All but Ray itself."""
    asked: list[Any] = []
    monkeypatch.setattr(spot, "_ask_ray", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(spot, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a machine's metadata are its own
    monkeypatch.delenv("no_proxy", raising=False)
    server = serve((404, ""), (200, action(90)))
    cache = tmp_path / "cache"
    assert not announced(cache)
    arguments = ["--address", "head:6379", "--cache-dir", str(cache), "--node-ip", "10.0.0.7"]
    where = ["--metadata-url", server.url + "/", "--every", str(EVERY)]
    done = sweep("cluster", "watch-spot", "aws", *arguments, *where, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    [(address, node_ip, _, text, left)] = asked
    assert (address, node_ip) == ("head:6379", "10.0.0.7")
    assert "EC2 takes this spot machine" in text
    assert 60 < left <= 90
    assert announced(cache)


def test_one_watcher_a_machine(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ray up` runs the start commands again when a cluster file has changed."""
    monkeypatch.setattr(spot, "gettempdir", lambda: str(tmp_path))
    server, again = serve((200, "TRUE")), []

    def ask(*arguments: Any) -> None:
        again.append(sweep(*command, cwd=tmp_path))

    monkeypatch.setattr(spot, "_ask_ray", ask)
    where = ["--address", "head:6379", "--cache-dir", "cache", "--metadata-url", server.url]
    command = ["cluster", "watch-spot", "gcp", *where, "--every", "0.2"]
    assert sweep(*command, cwd=tmp_path).returncode == 0
    assert "another watcher is at work on this machine" in again[0].stderr
    assert server.asked == 1
