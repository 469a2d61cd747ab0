"""Chromium without a window, for tests of pages: it is spoken to through a pair of pipes."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
EXECUTABLE = next((path for name in NAMES if (path := shutil.which(name))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--no-proxy-server --disable-background-networking --disable-component-update --disable-sync "
    "--remote-debugging-pipe"
)
PATIENCE = 30  # seconds, on a machine that is busy


class Tab:
    """A page in a browser."""

    def __init__(self, pipe: "_Pipe", kind: str = "page") -> None:
        self.pipe = pipe
        end = time.monotonic() + PATIENCE
        while not (found := [each for each in self._targets() if each["type"] == kind]):
            assert time.monotonic() < end, f"there is no {kind}"
            time.sleep(0.02)
        target = found[0]["targetId"]
        answer = pipe.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = answer["sessionId"]

    def _targets(self) -> list[dict[str, Any]]:
        return self.pipe.send("Target.getTargets")["targetInfos"]

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command of Chrome's protocol for developers, and returns the answer."""
        return self.pipe.send(method, self.session, **parameters)

    def load(self, address: str) -> None:
        """Opens a page, and waits until it is there and its scripts have run."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=address)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def open(self, address: str) -> None:
        """Opens a page, and waits until it is drawn or has failed."""
        self.load(address)
        self.wait_until_drawn()

    def wait_until_drawn(self) -> None:
        """Waits until the page is drawn or has failed."""
        self.wait(
            "['drawn', 'error'].some((name) => name in (document.documentElement?.dataset ?? {}))"
        )

    def frame(self) -> "Tab":
        """The page in the frame that this page holds."""
        return Tab(self.pipe, "iframe")

    def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, of a promise when it is kept."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Waits until a JavaScript expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            if time.monotonic() > end:
                page = self.value("`${location.href}: ${document.body?.innerText}`")
                raise AssertionError(f"{expression} never became true at {page}")
            time.sleep(0.02)

    def texts(self, selector: str) -> list[str]:
        """The texts of the elements that are shown."""
        return self.value(
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            ".filter((each) => each.checkVisibility()).map((each) => each.textContent)"
        )

    def styles(self, selector: str, name: str) -> list[float]:
        """The numbers that a property of the style has at elements."""
        each = f"Number(each.style.getPropertyValue({json.dumps(name)}))"
        return self.value(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => {each})"
        )

    def pixels(self, selector: str, x: int, y: int, width: int = 1) -> list[int]:
        """Red, green, blue and opacity of pixels of a canvas."""
        return self.value(
            f"[...document.querySelector({json.dumps(selector)}).getContext('2d')"
            f".getImageData({x}, {y}, {width}, 1).data]"
        )

    def press(self, key: str) -> None:
        """Presses a key, on what has the focus."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def point(self, selector: str, number: int = 0, *, click: bool = False) -> None:
        """Moves the mouse to the middle of an element, and clicks it if asked to."""
        self.wait(f"document.querySelectorAll({json.dumps(selector)})[{number}] !== undefined")
        there = self.value(
            f"(() => {{ const each = document.querySelectorAll({json.dumps(selector)})[{number}];"
            "each.scrollIntoView({block: 'center'});"
            "const box = each.getBoundingClientRect();"
            "return {x: box.left + box.width / 2, y: box.top + box.height / 2}; })()"
        )
        kinds = ["mouseMoved", *(["mousePressed", "mouseReleased"] if click else [])]
        for kind in kinds:
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, **there, **button)

    def saved(self, selector: str, folder: Path, number: int = 0) -> Path:
        """Clicks a button that saves a file, and returns the file."""
        behaviour = {"behavior": "allow", "downloadPath": str(folder)}
        self.pipe.send("Browser.setDownloadBehavior", **behaviour)
        before = set(folder.iterdir())
        self.value(f"document.querySelectorAll({json.dumps(selector)})[{number}].click()")
        end = time.monotonic() + PATIENCE
        while True:
            new = set(folder.iterdir()) - before
            if new and all(path.suffix in (".csv", ".png") for path in new):
                (path,) = new
                return path
            assert time.monotonic() < end, f"{selector} saves nothing"
            time.sleep(0.02)

    def colours(self, scheme: str) -> None:
        """Asks pages for light or dark colours."""
        wanted = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[wanted])

    def size(self, width: int, height: int) -> None:
        """Sets the size of the window."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )


@contextmanager
def browser() -> Iterator[Tab]:
    """While this context is open, a browser runs."""
    assert EXECUTABLE is not None
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()

    def plumb() -> None:
        # The browser reads its third file and writes its fourth. Both numbers may be taken by the
        # other's end, so that each gets out of the way first.
        ends = os.dup(to_browser), os.dup(from_browser)
        while ends[0] in (3, 4) or ends[1] in (3, 4):
            ends = os.dup(ends[0]), os.dup(ends[1])
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [EXECUTABLE, *FLAGS.split(), f"--user-data-dir={folder}", "about:blank"],
            preexec_fn=plumb,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            with os.fdopen(answers, "rb") as reading, os.fdopen(commands, "wb") as writing:
                yield Tab(_Pipe(reading, writing))
        finally:
            process.kill()
            process.wait()


class _Pipe:
    """Commands and their answers, each ended by a zero byte."""

    def __init__(self, reading: Any, writing: Any) -> None:
        self.reading, self.writing = reading, writing
        self.number = 0
        self.rest = b""

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if session is not None:
            command["sessionId"] = session
        self.writing.write(json.dumps(command).encode() + b"\0")
        self.writing.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self.number:  # what else comes are events
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            read = self.reading.read1(1 << 16)
            assert read, "the browser has ended"
            self.rest += read
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)
