"""A headless Chromium, driven by its own protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_START_S = 60.0


class Browser:
    """One page of a browser."""

    def __init__(self, address: str) -> None:
        # tornado comes with ipykernel.
        from tornado.websocket import websocket_connect  # noqa: PLC0415  # only a found browser needs it

        self._loop = asyncio.new_event_loop()
        self._socket = self._done(lambda: websocket_connect(address, max_message_size=2**28))
        self._number = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and note what happens until it answers."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        self._done(lambda: self._socket.write_message(json.dumps(asked)))
        while True:
            message = json.loads(self._done(self._socket.read_message))
            if message.get("id") == self._number:
                assert "error" not in message, message
                found: dict[str, Any] = message["result"]
                return found
            self._note(message)

    def _done(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Call inside of the loop, and wait for what it returns."""

        async def awaited() -> Any:
            return await asyncio.wait_for(call(), _START_S)

        return self._loop.run_until_complete(awaited())

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited if it is a promise."""
        said = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression holds."""
        until = time.monotonic() + _START_S
        while not self.evaluate(expression):
            assert time.monotonic() < until, expression
            time.sleep(0.05)

    def open(self, address: str, width: int, height: int = 900) -> None:
        """Load a page in a window of that width."""
        mobile = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"Enter": 13, "Tab": 9}.get(key, 0)
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what the window shows, or the whole page, as PNG."""
        said = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(said["data"]))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        self._loop.close()


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with its files in a folder; the test is skipped where there is none."""
    command = next((found for name in NAMES if (found := shutil.which(name))), None)
    if command is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    # Containers give root no sandbox and little shared memory.
    flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"]
    flags += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen([command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        page = Browser(_address(folder / "DevToolsActivePort"))
        try:
            yield page
        finally:
            page.close()
    finally:
        process.terminate()
        process.wait()


def _address(file: Path) -> str:
    """Return the address of the first page, once the browser has written its port."""
    import urllib.request  # noqa: PLC0415  # only a found browser needs it

    until = time.monotonic() + _START_S
    while not (file.exists() and "\n" in file.read_text()):
        assert time.monotonic() < until, "the browser does not start"
        time.sleep(0.1)
    port = file.read_text().split("\n")[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
        targets = json.load(answer)
    found: str = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
    return found
