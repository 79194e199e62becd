# SPDX-License-Identifier: Apache-2.0
"""The page at / in headless Chromium, driven through its DevTools port: a chat streams, the server's figures and the map of
experts show, nothing is asked of any other host, nothing is written to the console. TEST_SHOTS=DIR keeps screenshots."""
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

import websocket

from serving import Server, Skip, check, run_cases

FLAGS = ["--context", "1024", "--kv-tokens", "4096", "--experts", "stream", "--expert-ram", "100mb"]


class Browser:
    """One tab of a headless Chromium. Everything its DevTools report is kept in `events`."""

    def __init__(self):
        program = shutil.which("chromium")
        if not program:
            raise Skip("no chromium here")
        self.profile = tempfile.TemporaryDirectory(prefix="moed-chromium-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
             f"--user-data-dir={self.profile.name}", "--window-size=1280,800", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = wait(lambda: (pathlib.Path(self.profile.name) / "DevToolsActivePort").read_text().split("\n")[0], "Chromium's port")
        tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
        tab = next(t for t in tabs if t["type"] == "page")
        self.socket = websocket.create_connection(tab["webSocketDebuggerUrl"], suppress_origin=True, timeout=60)
        self.id, self.events = 0, []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.process.terminate()
        self.process.wait()
        self.profile.cleanup()

    def call(self, method, **params):
        self.id += 1
        self.socket.send(json.dumps({"id": self.id, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.id:
                check("error" not in message, f"{method}: {message.get('error')}")
                return message["result"]
            self.events.append(message)

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        check("exceptionDetails" not in r, f"{expression}: {r.get('exceptionDetails')}")
        return r["result"].get("value")

    def shot(self, name):
        if "TEST_SHOTS" in os.environ:
            png = self.call("Page.captureScreenshot", format="png")["data"]
            pathlib.Path(os.environ["TEST_SHOTS"], f"{name}.png").write_bytes(base64.b64decode(png))


def wait(get, what, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        try:
            value = get()
        except (OSError, IndexError):
            value = None
        if value:
            return value
        check(time.monotonic() < deadline, f"{what}: not within {seconds} s")
        time.sleep(0.1)


def ask(tab, text):
    tab.js(f"document.getElementById('text').value = {json.dumps(text)}; document.getElementById('form').requestSubmit()")


def page_chats_and_shows_the_server():
    with Server.demo(*FLAGS) as s, Browser() as tab:
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        tab.call("Page.navigate", url=f"http://127.0.0.1:{s.port}/")
        wait(lambda: tab.js("document.getElementById('model')?.textContent.includes('demo-moe')"), "the model's name")
        tab.js("document.getElementById('temperature').value = 0; document.getElementById('max_tokens').value = 48; 0")
        ask(tab, "What is the capital of France?")
        wait(lambda: tab.js("document.querySelector('.assistant .said').textContent.length > 0"), "the first words")
        wait(lambda: tab.js("/tokens\\/s/.test(document.querySelector('.assistant .note').textContent)"), "the end of the answer")
        answer = tab.js("document.querySelector('.assistant .said').textContent")
        check("Paris" in answer, answer)
        check(tab.js("/^[0-9.]+ tokens\\/s$/.test(document.getElementById('speed').textContent)"), "the speed")
        wait(lambda: tab.js("!document.getElementById('experts').hidden && document.getElementById('map').width == 32"), "the map")
        colours = tab.js("""(() => { const c = document.getElementById('map'); return new Set(new Uint32Array(
            c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size })()""")
        check(colours == 2, f"{colours} colours in the map")
        check(tab.js("document.getElementById('facts').textContent.includes('Written tokens')"), "the server's figures")
        ask(tab, "And of Italy?")
        wait(lambda: tab.js("document.querySelectorAll('.assistant').length == 2 && !running"), "the second answer")
        check(tab.js("turns.length") == 4, "the turns the model sees")
        tab.shot("page-dark")
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        wait(lambda: tab.js("document.hidden || 1"), "a repaint")
        tab.shot("page-light")
        tab.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=2, mobile=True)
        check(tab.js("document.documentElement.scrollWidth <= 400"), "wider than a small screen")
        tab.shot("page-small")
        nothing_strange(tab, s)


def nothing_strange(tab, s):
    for e in tab.events:
        p = e["params"]
        if e["method"] == "Network.requestWillBeSent":
            url = p["request"]["url"]
            check(url.startswith((f"http://127.0.0.1:{s.port}/", "data:")), f"asked for {url}")
        check(e["method"] not in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"), f"{e['method']}: {str(p)[:400]}")
        check(e["method"] != "Log.entryAdded" or p["entry"]["level"] != "error", f"log: {str(p)[:400]}")


def errors_show_and_stop_stops():
    with Server.demo(*FLAGS) as s, Browser() as tab:
        tab.call("Page.navigate", url=f"http://127.0.0.1:{s.port}/")
        wait(lambda: tab.js("document.getElementById('model')?.textContent.includes('demo-moe')"), "the model's name")
        tab.js("document.getElementById('temperature').value = 9; 0")
        ask(tab, "Hello")
        wait(lambda: tab.js("document.querySelector('.turn.error .note')?.textContent.includes('temperature')"), "the error")
        check(tab.js("turns.length") == 0, "a question without an answer stays among the turns")
        tab.js("document.getElementById('temperature').value = 0; document.getElementById('max_tokens').value = 600; 0")
        ask(tab, "Write a long story about a ship.")
        wait(lambda: tab.js("document.querySelectorAll('.turn.assistant')[1]?.querySelector('.said').textContent.length > 20"), "some words")
        tab.js("document.getElementById('form').requestSubmit()")
        wait(lambda: tab.js("!running && document.querySelectorAll('.assistant .note')[1].textContent == 'stopped'"), "the stop")
        wait(lambda: s.metrics()["moed_requests_running"] == 0, "the end of the request", 10)


if __name__ == "__main__":
    sys.exit(run_cases(page_chats_and_shows_the_server, errors_show_and_stop_stops))
