"""A headless Chromium over its own debugging pipe: opens a file, measures it, draws it, prints it.

Two descriptors and JSON, so no driver and no package is needed. The browser may reach nothing.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["BROWSERS", "Browser", "Page", "find_browser"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# A cold start on a busy machine takes ten.
TIMEOUT_S = 120.0


def find_browser() -> str | None:
    """Path of a Chromium on this machine, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


# Gives the browser its two ends of the pipe under the numbers that it looks at.
_AS_3_AND_4 = """
import os, sys
read, write, *command = sys.argv[1:]
os.dup2(int(read), 3)
os.dup2(int(write), 4)
os.closerange(5, 200)
os.execv(command[0], command)
"""


@dataclass
class Page:
    """A page that was loaded, and what the browser said meanwhile."""

    browser: "Browser"
    session: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def pdf(self) -> bytes:
        """The page as it is printed."""
        answer = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        return base64.b64decode(answer["data"])

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        return self.browser.call(method, session=self.session, **parameters)


class Browser:
    """One browser process."""

    def __init__(self, process: "subprocess.Popen[bytes]", *, read: int, write: int) -> None:
        self._process, self._read, self._write = process, read, write
        self._number = 0
        self._rest = b""
        self._pages: dict[str, Page] = {}
        self._loaded: set[str] = set()

    @classmethod
    @contextmanager
    def start(cls, path: str, *, profile: Path) -> Iterator["Browser"]:
        """Run the browser at `path` with a fresh profile while the block lasts."""
        there, write = os.pipe()
        read, back = os.pipe()
        # The child takes its two ends as 3 and 4; kept well above, they cannot be in the way.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (there, back)]
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _AS_3_AND_4,
                *map(str, ends),
                path,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--hide-scrollbars",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--user-data-dir={profile}",
                "--remote-debugging-pipe",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=ends,
        )
        for end in (there, back, *ends):
            os.close(end)
        browser = cls(process, read=read, write=write)
        try:
            yield browser
        finally:
            with suppress(OSError, AssertionError):
                browser.call("Browser.close")
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            process.kill()
            process.wait()
            os.close(read)
            os.close(write)

    def open(self, file: Path, *, width: int, height: int = 900, scheme: str = "light") -> Page:
        """Load a file in a window of `width` pixels; `scheme`: light or dark."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        page.call("Page.navigate", url=file.resolve().as_uri())
        while session not in self._loaded:
            self._take()
        return page

    def call(self, method: str, *, session: str = "", **parameters: object) -> dict[str, Any]:
        """Ask the browser and wait for its answer."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._take()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _take(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._next())
        page = self._pages.get(message.get("sessionId", ""))
        if page is not None:
            self._note(page, message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, page: Page, method: str, said: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.add(page.session)
            case "Network.requestWillBeSent":
                page.requests.append(said["request"]["url"])
            case "Log.entryAdded":
                page.complaints.append(said["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                page.complaints.append(json.dumps(said))

    def _next(self) -> bytes:
        end = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser said nothing for {TIMEOUT_S:.0f} s"
            data = os.read(self._read, 2**20)
            assert data, f"the browser ended with {self._process.poll()}"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return message
