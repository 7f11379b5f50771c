"""A Chromium that tests drive: the DevTools protocol over two pipes, without a library for it."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 60.0  # of one answer; a busy machine starts a browser in ten seconds
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests may run as root, and open their own pages only
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
)


def chromium() -> str | None:
    """Where it is; None if it is not installed."""
    return next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)


class Browser:
    """One tab. A context manager: it ends with it."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        down_read, self._write = os.pipe()
        self._read, up_write = os.pipe()
        # The browser wants its ends as descriptors 3 and 4.
        redirect = f'exec "$0" "$@" 3<&{down_read} 4>&{up_write}'
        self._process = subprocess.Popen(
            [
                "/bin/bash",
                "-c",
                redirect,
                program,
                *FLAGS,
                f"--user-data-dir={self._folder.name}",
                "about:blank",
            ],
            pass_fds=(down_read, up_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(down_read)
        os.close(up_write)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session = ""
        self.problems: list[str] = []  # exceptions of scripts, and what they wrote as errors
        pages = self.ask("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in pages if one["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next(deadline)
            self._note(answer)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            if not (data := os.read(self._read, 1 << 20)):
                raise RuntimeError("the browser has ended")
            self._rest += data
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    def open(self, page: Path, width: int, height: int = 900) -> None:
        """Show ``page`` in a window of that many CSS pixels; back when it is drawn."""
        self.resize(width, height)
        self.ask("Page.navigate", url=page.as_uri())
        self.wait(f"location.href === {json.dumps(page.as_uri())} && document.readyState === 'complete'")
        self.settle()

    def resize(self, width: int, height: int = 900) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def settle(self) -> None:
        """Two frames: what watches sizes has drawn. A click may have left the page: then the next draws."""
        drawn = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.run(drawn)
                return
            except RuntimeError as error:
                if "navigated or closed" not in str(error) or time.monotonic() > deadline:
                    raise

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for. Raises ``RuntimeError`` when it throws."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:800])
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.run(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def mouse(self, kind: str, x: float, y: float) -> None:
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def click(self, css: str) -> None:
        """With the mouse, on the middle of the first element."""
        box = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(css)}); one.scrollIntoView({{block: 'center'}});"
            " const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, *box)
        self.settle()

    def type(self, css: str, text: str) -> None:
        self.click(css)
        self.run(f"document.querySelector({json.dumps(css)}).select()")
        self.ask("Input.insertText", text=text)
        self.settle()

    def picture(self, path: Path, *, whole: bool = True) -> None:
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()
