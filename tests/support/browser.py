"""A real headless Chromium for the tests of pages, driven over the W3C WebDriver protocol.

It takes Debian's `chromium` and `chromium-driver`, and no Python package: the protocol is JSON
over HTTP. Not a test.
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

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"
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
