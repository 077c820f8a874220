"""A real headless Chromium for tests, spoken to by the DevTools protocol over a pipe: no port, no
library. Owns its process and its profile, and leaves neither behind.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

TIMEOUT = 60  # seconds for Chromium to answer, and to end
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-breakpad", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--remote-debugging-pipe", "--window-size=1280,900"),
)
# The protocol wants its pipe at the descriptors 3 and 4.
_START = """
import os, sys
read, write, *command = sys.argv[1:]
os.dup2(int(read), 3)
os.dup2(int(write), 4)
os.execv(command[0], command)
"""


def program() -> str:
    """Chromium's path; skips the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium on the PATH (Debian: apt-get install chromium)")


class Chromium:
    """One browser process. A context manager."""

    def __init__(self) -> None:
        path = program()
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        home = self._folder.name
        self._said = Path(home, "said.txt")
        # All that it writes goes into its own folder, also what is not part of the profile.
        names = ("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
        self._process, self._to, self._from = _start(
            [path, *_FLAGS, f"--user-data-dir={home}/profile"],
            os.environ | dict.fromkeys(names, home),
            self._said,
        )
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and everything that it started; its folder too."""
        with suppress(OSError, EOFError):
            self.call("Browser.close")
        for descriptor in (self._to, self._from):
            os.close(descriptor)
        try:
            self._process.wait(TIMEOUT)
        finally:
            with suppress(ProcessLookupError):  # its helpers are in its process group
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._folder.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for the reply; other messages are added to `events`."""
        self._number += 1
        ask: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            ask["sessionId"] = session
        _write(self._to, json.dumps(ask).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for(self, method: str, session: str) -> None:
        """Wait until this event arrives."""
        while not any(
            e.get("method") == method and e.get("sessionId") == session for e in self.events
        ):
            self.events.append(self._read())

    def open(self, path: Path, *, dark: bool = False) -> Tab:
        """A new tab with this file."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        return Tab(self, target, attached["sessionId"], path, dark=dark)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], TIMEOUT)
            more = os.read(self._from, 1 << 16) if ready else b""
            if not more:
                how = "has gone" if ready else f"has not answered for {TIMEOUT} s"
                raise EOFError(f"Chromium {how}: {self._said.read_text(errors='replace')[-2_000:]}")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        reply: dict[str, Any] = json.loads(message)
        return reply


class Tab:
    """One page in it, with a mouse and a keyboard."""

    def __init__(
        self, browser: Chromium, target: str, session: str, path: Path, *, dark: bool
    ) -> None:
        self._browser, self._target, self._session = browser, target, session
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        browser.wait_for("Page.loadEventFired", session)
        self.settle()

    def close(self) -> None:
        """Close the page and drop its events."""
        self._browser.call("Target.closeTarget", targetId=self._target)
        events = self._browser.events
        events[:] = [event for event in events if event.get("sessionId") != self._session]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol to this page."""
        return self._browser.call(method, self._session, **parameters)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        reply = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in reply:
            raise AssertionError(f"{script}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def settle(self) -> None:
        """Wait until the changes are drawn: two frames."""
        self.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """`kind`: mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def click(self, x: float, y: float) -> None:
        """Click with the left button."""
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """One key, by its DOM name ("ArrowRight", "z")."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def size(self, width: int, height: int) -> None:
        """The window's."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.settle()

    def screenshot(self) -> bytes:
        """A PNG of what the window shows."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    @property
    def complaints(self) -> list[str]:
        """Return errors and warnings of the console, and uncaught exceptions."""
        ours = [e for e in self._browser.events if e.get("sessionId") == self._session]
        return [json.dumps(e["params"]) for e in ours if _is_complaint(e)]


def _is_complaint(event: dict[str, Any]) -> bool:
    if event["method"] == "Runtime.consoleAPICalled":
        return event["params"]["type"] in ("error", "warning", "assert")
    return event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")


def _start(
    command: list[str], environment: dict[str, str], said: Path
) -> tuple[subprocess.Popen[bytes], int, int]:
    read_there, write_here = os.pipe()
    read_here, write_there = os.pipe()
    try:
        with said.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", _START, str(read_there), str(write_there), *command],
                env=environment,
                pass_fds=(read_there, write_there),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
    finally:
        os.close(read_there)
        os.close(write_there)
    return process, write_here, read_here


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]
