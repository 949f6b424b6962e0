"""`dashboard`: a page of this machine that follows a store, until Ctrl-C."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from typing import Any

from lp_sweep.orchestrator.cli.output import emit, say
from lp_sweep.orchestrator.cli.startup import without_pandas
from lp_sweep.orchestrator.cli.verbs import existing
from lp_sweep.storage.errors import PreflightError

_HOST = "127.0.0.1"  # who is on another machine comes through ssh: docs/watching.md


def serve(location: str, sweep: str | None, port: int) -> None:
    """Raises PreflightError without the server's library, or for a port that can't be had;
    StoreError for what is no store, SpecError for an unknown sweep."""
    uvicorn = _library()
    without_pandas()
    from lp_sweep.orchestrator.watch.follower import Follower
    from lp_sweep.orchestrator.watch.web import Looks, page_app

    store = existing(location)
    looks = Looks(Follower(store), store.location, sweep)
    looks.first()
    app = page_app(looks)
    with _listening(port) as listening:
        emit(f"http://{_HOST}:{listening.getsockname()[1]}/")
        say(f"shows {store.location} to this machine alone, and changes nothing; Ctrl-C ends it.")
        config = uvicorn.Config(
            app,
            access_log=False,
            lifespan="off",
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ws="none",
        )
        with suppress(KeyboardInterrupt):  # uvicorn ends, and then says once more what ended it
            uvicorn.Server(config).run(sockets=[listening])


def _library() -> Any:
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise PreflightError(
            f"`lp-sweep dashboard` needs {error.name}: pip install 'lp-sweep[dashboard]'. Without "
            "it `lp-sweep status --watch` shows the same in a terminal."
        ) from None
    del starlette
    return uvicorn


def _listening(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a page that has just ended
    try:
        made.bind((_HOST, port))
        made.listen()
    except OSError as error:
        made.close()
        taken = "it is taken" if error.errno == errno.EADDRINUSE else str(error.strerror)
        raise PreflightError(
            f"can't listen at port {port} of {_HOST}: {taken}. Name another, such as --port "
            f"{port + 1 if port < 65535 else 8080}, or --port 0 for any that is free."
        ) from None
    return made
