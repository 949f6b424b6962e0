"""The dashboard: `state.json` has the newest picture, `answer.json` the report's answer.

It only reads, and its caller binds it to 127.0.0.1. Other sites in the same browser get nothing: no
CORS, and `Host` must name this machine (against DNS rebinding). Scripts and styles come only from
its own files. The answer's HTML is the report's, whose templates escape a store's text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lp_sweep.orchestrator.watch.follower import Follower
from lp_sweep.orchestrator.watch.picture import SCHEMA, picture_json
from lp_sweep.storage.errors import LpSweepError, SpecError
from lp_sweep.storage.store import Store

_HOSTS = ["127.0.0.1", "localhost"]
_FRESH_SECONDS, _SHARE = 2.0, 10  # an answer is kept for 2 s, or 10 times what it took
_FILES = {
    "/": ("lp_sweep.orchestrator", "dashboard.html", "text/html"),
    "/dashboard.css": ("lp_sweep.orchestrator", "dashboard.css", "text/css"),
    "/dashboard.js": ("lp_sweep.orchestrator", "dashboard.js", "text/javascript"),
    "/report.css": ("lp_sweep.analysis.report", "report.css", "text/css"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Answer(NamedTuple):
    """The content of a JSON answer, and its HTTP status."""

    status: int
    content: dict[str, Any]


class _Kept(NamedTuple):
    answer: Answer
    until: float  # by time.monotonic()


class Looks:
    """The newest answers for all pages: made one at a time, and not too often. `sweep`: the default
    for pages that name none."""

    def __init__(self, store: Store, sweep: str | None) -> None:
        self._store, self._sweep = store, sweep
        self._follower = Follower(store)
        self._told = {"schema": SCHEMA, "store": store.location}
        self._locks = {"state": threading.Lock(), "answer": threading.Lock()}
        self._kept: dict[tuple[str, str | None], _Kept] = {}

    def first(self) -> None:
        """Raises what a look raises, so that the command can report it before there is a page."""
        self._follower.look(self._sweep)

    def state(self, sweep: str | None) -> Answer:
        """200 with a picture, or null if there is no sweep yet; 404 or 503 with an error."""
        sweep = sweep or self._sweep
        with self._locks["state"]:
            kept = self._kept.get(("state", sweep))
            if kept and time.monotonic() < kept.until:
                return kept.answer
            return self._made("state", sweep, lambda: self._look(sweep))

    def answer(self, sweep: str | None, shown: str) -> Answer:
        """The report's answer so far as HTML, made again when there are new records; null if the
        page shows it already. It takes longer than a look, and blocks none."""
        picture = self.state(sweep).content.get("picture")
        if not picture:
            return Answer(200, {"id": shown, "part": None})
        name, counts = picture["sweep"], picture["counts"]
        measured = len(self._store.names("profiles"))  # speeds as well
        id_ = f"{name} {picture['done']} {picture['failed']} {measured} {sorted(counts.items())}"
        with self._locks["answer"]:
            kept = self._kept.get(("answer", name))
            changed = kept is None or kept.answer.content.get("id") != id_
            if kept is None or (changed and time.monotonic() >= kept.until):
                made = self._made("answer", name, lambda: self._part(name, id_), time.thread_time)
            else:
                made = kept.answer
        if made.content.get("id") == shown:
            return Answer(200, {"id": shown, "part": None})
        return made

    def _made(
        self,
        kind: str,
        sweep: str | None,
        make: Callable[[], dict[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> Answer:
        """Makes an answer and keeps it while it is fresh; errors are not kept. What takes long by
        `clock` is made less often: a look waits for the store, an answer computes."""
        began = clock()
        try:
            made = Answer(200, make())
        except SpecError as error:
            return Answer(404, {**self._told, "error": str(error)})
        except LpSweepError as error:
            return Answer(503, {**self._told, "error": str(error)})
        took = clock() - began
        behind = (made.content.get("picture") or {}).get("unread")
        rest = 0.0 if behind else max(_FRESH_SECONDS, _SHARE * took)
        self._kept[kind, sweep] = _Kept(made, time.monotonic() + rest)
        return made

    def _look(self, sweep: str | None) -> dict[str, Any]:
        picture = self._follower.look(sweep)
        return {**self._told, "picture": picture_json(picture) if picture else None}

    def _part(self, sweep: str, id_: str) -> dict[str, Any]:
        """Imports what draws, which takes a second, only when a page asks for it."""
        from lp_sweep.analysis.report.gather import gather_live
        from lp_sweep.analysis.report.writing import render_live

        part = render_live(gather_live(self._store, sweep))
        return {"id": id_, "part": part._asdict()}


def page_app(looks: Looks) -> Starlette:
    """Answers GET and HEAD of a few paths; anything else is 404 or 405."""
    content = {
        path: (files(package) / "templates" / name).read_bytes()
        for path, (package, name, _) in _FILES.items()
    }

    def page(request: Request) -> Response:
        path = request.url.path
        return Response(content[path], media_type=_FILES[path][2])

    def state(request: Request) -> Response:
        """Is no coroutine, so that it runs in a thread: a look waits for the store."""
        status, told = looks.state(request.query_params.get("sweep"))
        return JSONResponse(told, status)

    def answer(request: Request) -> Response:
        asked = request.query_params
        status, told = looks.answer(asked.get("sweep"), asked.get("shown", ""))
        return JSONResponse(told, status)

    routes = [Route(path, page) for path in _FILES]
    routes += [Route("/state.json", state), Route("/answer.json", answer)]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(_SafeHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS, www_redirect=False),
        ],
    )
    app.router.redirect_slashes = False  # unknown paths are 404
    return app


class _SafeHeaders:
    """Adds the headers to every answer, including refusals."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)
