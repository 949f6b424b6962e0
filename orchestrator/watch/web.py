"""The live view as a page: three files, and `state.json` with the newest picture. It only reads.

Bound to 127.0.0.1 by its caller. A page of another site that the same browser shows gets nothing:
no CORS, and no name but that of this machine in `Host` (DNS rebinding). No script or style but its
own two files.
"""

from __future__ import annotations

import threading
import time
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
from lp_sweep.storage.errors import SpecError, StoreError

_HOSTS = ["127.0.0.1", "localhost"]
_FRESH_SECONDS, _SHARE = 2.0, 10  # a look that takes long is taken more rarely
_FILES = {
    "/": ("dashboard.html", "text/html"),
    "/dashboard.css": ("dashboard.css", "text/css"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
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
    """What `state.json` says, and with which HTTP status."""

    status: int
    content: dict[str, Any]


class _Look(NamedTuple):
    answer: Answer
    until: float  # it is fresh enough


class Looks:
    """The newest look at a store, for all that ask: one at a time, and none too soon after the
    last. `sweep`: what is shown where nobody names another."""

    def __init__(self, follower: Follower, location: str, sweep: str | None) -> None:
        self._follower, self._location, self._sweep = follower, location, sweep
        self._lock = threading.Lock()
        self._looks: dict[str | None, _Look] = {}

    def first(self) -> None:
        """Raises what a look raises: before there is a page, the command says it."""
        self._follower.look(self._sweep)

    def answer(self, sweep: str | None) -> Answer:
        """200 with a picture, or null where there is no sweep yet; 404, 503 with what is wrong."""
        sweep = sweep or self._sweep
        with self._lock:
            known = self._looks.get(sweep)
            if known is None or time.monotonic() >= known.until:
                began = time.monotonic()
                found = self._look(sweep)
                took = time.monotonic() - began
                rest = 0.0 if _behind(found) else max(_FRESH_SECONDS, _SHARE * took)
                known = _Look(found, time.monotonic() + rest)
                # a name that is none is not kept: there may be any number of them
                if found.status == 200:
                    self._looks[sweep] = known
            return known.answer

    def _look(self, sweep: str | None) -> Answer:
        told = {"schema": SCHEMA, "store": self._location}
        try:
            picture = self._follower.look(sweep)
        except SpecError as error:
            return Answer(404, {**told, "error": str(error)})
        except StoreError as error:
            return Answer(503, {**told, "error": str(error)})
        return Answer(200, {**told, "picture": picture_json(picture) if picture else None})


def _behind(answer: Answer) -> bool:
    return bool((answer.content.get("picture") or {}).get("unread"))


def page_app(looks: Looks) -> Starlette:
    """GET and HEAD of four paths; all else is 404 or 405."""
    folder = files("lp_sweep.orchestrator") / "templates"
    content = {path: (folder / name).read_bytes() for path, (name, _) in _FILES.items()}

    def page(request: Request) -> Response:
        path = request.url.path
        return Response(content[path], media_type=_FILES[path][1])

    def state(request: Request) -> Response:
        """Not a coroutine: it runs in a thread, since a look waits for the store."""
        status, told = looks.answer(request.query_params.get("sweep"))
        return JSONResponse(told, status)

    routes = [*(Route(path, page) for path in _FILES), Route("/state.json", state)]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(_SafeHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS, www_redirect=False),
        ],
    )
    app.router.redirect_slashes = False  # a path that is none leads nowhere
    return app


class _SafeHeaders:
    """Of every answer, refusals too."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)
