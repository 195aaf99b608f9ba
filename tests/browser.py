"""A headless Chromium that opens a page and tells what went wrong in it, driven through a pipe by its own protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 60  # to wait for anything

# The lowest contrast of any text with what lies behind it, and which text that is (WCAG 2.1: at least 4.5)
CONTRAST = """
(() => {
  const rgb = color => {  // "rgb(1 2 3 / .5)" or "color(srgb .1 .2 .3 / .5)"
    const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
    return color.startsWith("color") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
  };
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgb(getComputedStyle(e).backgroundColor));
    const over = (under, [r, g, b, a]) => [r, g, b].map((v, i) => a * v + (1 - a) * under[i]);
    return layers.reduceRight(over, [255, 255, 255]);
  };
  const light = color => color.slice(0, 3).map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  let worst = [99, ""];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim());
    if (!own || e.closest("svg") || !e.checkVisibility() || rgb(getComputedStyle(e).color)[3] == 0) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 200)];
  }
  return worst;
})()
"""

# Text that reaches out of the page or is too small to read
UNREADABLE = """
[...document.querySelectorAll("body *")].filter(e => {
  const text = [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim());
  if (!text || e.closest("svg, .scroll, nav, pre, .skip") || !e.checkVisibility()) return false;
  const box = e.getBoundingClientRect(), width = document.documentElement.clientWidth;
  return parseFloat(getComputedStyle(e).fontSize) < 12 || box.left < 0 || box.right > width;
}).map(e => e.outerHTML.slice(0, 200))
"""


class Browser:
    """One page, opened again and again. Use it in `with`, so that the process ends."""

    def __init__(self, profile: Path):
        if BINARY is None:
            pytest.skip("no chromium here to open pages in: apt-get install chromium")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", BINARY, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._number, self._session, self._events = b"", 0, None, []
        (target,) = [t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self._session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        try:
            self.send("Browser.close")
            self._process.wait(timeout=SECONDS)
        finally:
            self._process.kill()
            os.close(self._in)
            os.close(self._out)

    def open(self, file: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page from disk at a width, in a theme, and wait for it."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[theme])
        self._events = []
        self.send("Page.navigate", url=file.resolve().as_uri())
        self._read_until(lambda message: message.get("method") == "Page.loadEventFired")

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, such as Tab."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9}[key])

    def complaints(self) -> list[str]:
        """What the page has written to the console, and its errors, since it was opened."""
        self.send("Runtime.evaluate", expression="0")  # so that all before it has arrived
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self._events if event["method"] in kinds]

    def requests(self) -> list[str]:
        """Addresses that the page has asked for since it was opened, those that it holds itself left out."""
        sent = (event["params"] for event in self._events if event["method"] == "Network.requestWillBeSent")
        return [url for url in (params["request"]["url"] for params in sent) if not url.startswith("data:")]

    def screenshot(self, file: Path) -> None:
        """The whole page, as PNG."""
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        number, message = self._number, {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._read_until(lambda message: message.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _read_until(self, wanted: Callable[[dict], bool]) -> dict[str, Any]:
        """Take in messages up to a wanted one; events are kept."""
        deadline = time.monotonic() + SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if b"\0" not in self._buffer:
                if select.select([self._in], [], [], left)[0]:
                    part = os.read(self._in, 1 << 20)
                    assert part, "the browser has ended"
                    self._buffer += part
                continue
            line, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(line)
            if "method" in message:
                self._events.append(message)
            if wanted(message):
                return message
        raise TimeoutError("the browser does not answer")
