"""Chromium without a window, driven over a pipe by its own DevTools protocol: no driver, no further package."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOW_TO_GET_IT = "no Chromium is here; apt-get install chromium, or another that is found as chromium or google-chrome"


class Browser:
    """One page. ``requests`` and ``complaints`` hold all it asked for and all that the console showed since opened."""

    def __init__(self) -> None:
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        self._profile = tempfile.mkdtemp(prefix="trueup-browser-")
        flags = [
            "--headless", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
            "--disable-dev-shm-usage", "--disable-background-networking", "--no-sandbox", "--force-color-profile=srgb",
            f"--user-data-dir={self._profile}", "about:blank",
        ]  # fmt: skip
        # the protocol speaks through the descriptors 3 and 4
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, str(CHROMIUM), *flags], pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._count, self._session = b"", 0, None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.call("Network.emulateNetworkConditions", **offline)

    def close(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._to, content) :]
        while True:
            answer = self._message()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], 60)[0]:
                raise TimeoutError("the browser does not answer")
            self._buffer += os.read(self._from, 1 << 20) or _gone()
        first, _, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(first)
        self._keep(found.get("method"), found.get("params", {}))
        return found

    def _keep(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:2000])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"])[:2000])
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["entry"])[:2000])

    # ------------------------------------------------------------------ what a test says

    def size(self, width: int, height: int = 900, *, phone: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def media(self, *, dark: bool = False, kind: str = "") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=kind, features=[scheme])

    def open(self, path: Path, until: str = "document.documentElement?.dataset.ready === 'yes'") -> None:
        """The page from disk, and until its first charts are drawn."""
        self.requests.clear()
        self.complaints.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait(until)

    def scripts(self, allowed: bool) -> None:
        """Whether pages opened from now on run theirs; ``run`` does all the same."""
        self.call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def run(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not self.run(condition):
            if time.monotonic() > until:
                raise TimeoutError(f"{condition}; console: {self.complaints}")
            time.sleep(0.05)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def print(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))


def _gone() -> bytes:
    raise ConnectionError("the browser has ended")
