"""A headless Chromium through chromedriver's own HTTP interface (W3C WebDriver): no library between.

Named by $CHROMIUM and $CHROMEDRIVER, or found on the path.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = os.environ.get("CHROMEDRIVER") or shutil.which("chromedriver")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
STARTS = 5  # tries
WAIT_SECONDS = 600  # for anything that must come; a busy machine takes long
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the driver is on this machine


def missing() -> str | None:
    """Why there is no browser here, or None."""
    if not BROWSER:
        return f"no Chromium: none of {', '.join(NAMES)} is on the path, and $CHROMIUM is not set"
    return None if DRIVER else "no chromedriver on the path, and $CHROMEDRIVER is not set"


class Browser:
    """One session."""

    def __init__(self, base: str, profile: str) -> None:
        self._base = base
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": BROWSER, "args": [*FLAGS, f"--user-data-dir={profile}"]},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self._session = ""
        self._session = f"/session/{self._post('/session', {'capabilities': {'alwaysMatch': wanted}})['sessionId']}"

    def _post(self, path: str, body: dict[str, Any], method: str = "POST") -> Any:
        request = urllib.request.Request(
            f"{self._base}{self._session}{path}",
            json.dumps(body).encode() if method == "POST" else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with OPENER.open(request, timeout=WAIT_SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()[:600]}") from None

    def open(self, path: Path, *, width: int, height: int = 900, scheme: str = "light", media: str = "") -> None:
        """Load a file in a window of this width in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", {"media": media, "features": features})
        self.log("browser")
        self.log("performance")
        self._post("/url", {"url": path.resolve().as_uri()})

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        """A command of the DevTools protocol."""
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str) -> Any:
        """The value of a JavaScript function body."""
        return self._post("/execute/sync", {"script": script, "args": []})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Entries since the last call."""
        return self._post("/se/log", {"type": kind})

    def requests(self) -> set[str]:
        """Addresses that the page asked for since it was opened, its own included; a busy driver may load it twice."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}

    def settles(self, condition: Callable[[], bool]) -> bool:
        """Whether the condition comes true at last."""
        end = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def close(self) -> None:
        self._post("", {}, method="DELETE")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a fresh profile; its processes are gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver, port = _start(Path(profile) / "chromedriver.log")
        session = None
        try:
            session = Browser(f"http://127.0.0.1:{port}", profile)
            yield session
        finally:
            if session is not None:
                session.close()
            driver.terminate()
            driver.wait(timeout=WAIT_SECONDS)


def _start(output: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A chromedriver and its port. It binds a port of its choice twice (IPv6, then IPv4), which now and then fails."""
    for _ in range(STARTS):
        with output.open("wb") as file:
            driver = subprocess.Popen([str(DRIVER), "--port=0"], stdout=file, stderr=subprocess.STDOUT)
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end and driver.poll() is None:
            found = re.search(r"started successfully on port (\d+)", output.read_text())
            if found:
                return driver, int(found.group(1))
            time.sleep(0.1)
        driver.kill()
        driver.wait(timeout=WAIT_SECONDS)
    raise RuntimeError(f"chromedriver did not start: {output.read_text()[:600]}")
