"""A server for the tests: `1bit serve` with the demo model, or fake_server (see fake_engine.c).

ONEBIT_BUILD names the build folder (default: build), or ONEBIT_BIN the program in it.
ONEBIT_TEST_MODEL names a model file, instead of pulling the demo model.
"""
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("ONEBIT_BUILD") or (
    os.path.dirname(os.path.abspath(os.environ["ONEBIT_BIN"])) if "ONEBIT_BIN" in os.environ
    else os.path.join(ROOT, "build"))
PROGRAM = os.path.join(BUILD, "1bit")
FAKE = os.path.join(BUILD, "tests", "fake_server")


class Server:
    """A running server; lines of its stderr are in .log."""

    def __init__(self, argv, env=None, ready=True):
        self.log = []
        self._listening = threading.Event()
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listening.wait(30) or self.process.poll() is not None:
            self.stop()
            raise RuntimeError("the server did not start: " + "".join(self.log))
        line = next(x for x in self.log if "listening on" in x)
        self.port = int(re.search(r":(\d+)(?:[ /(]|$)", line.split("http://")[1]).group(1))
        self.host = "127.0.0.1"
        self.url = f"http://127.0.0.1:{self.port}"
        if ready:
            deadline = time.monotonic() + 60
            while self.get("/health")[0] != 200:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.stop()
                    raise RuntimeError("the model did not load: " + "".join(self.log))
                time.sleep(0.02)

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            if "listening on" in line:
                self._listening.set()
        self._listening.set()

    def request(self, path, body=None, headers=None, method=None, timeout=60):
        """(status, headers, bytes); body: bytes, or anything that becomes JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        req = urllib.request.Request(self.url + path, data=body, method=method,
                                     headers={"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(req, timeout=timeout) as r:
                return r.status, r.headers, r.read()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read()

    def get(self, path, **kw):
        status, headers, data = self.request(path, **kw)
        is_json = headers.get_content_type() == "application/json"
        return status, json.loads(data) if is_json else data.decode()

    def post(self, path, body, **kw):
        status, _, data = self.request(path, body, **kw)
        return status, json.loads(data)

    def chat(self, text, **fields):
        return self.post("/v1/chat/completions",
                         {"messages": [{"role": "user", "content": text}], **fields})

    def connect(self, timeout=10):
        s = socket.create_connection((self.host, self.port), timeout=timeout)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def raw(self, data, timeout=10):
        """Send bytes, return all that comes until the server closes or is quiet for the timeout."""
        with self.connect(timeout) as s:
            try:
                s.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass
            return read_all(s)

    def metrics(self):
        text = self.get("/metrics")[1]
        out = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                out[name] = float(value)
        return out

    def stop(self, sig=signal.SIGTERM, timeout=15):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._reader.join(5)


def read_all(s):
    out = b""
    try:
        while chunk := s.recv(65536):
            out += chunk
    except (TimeoutError, ConnectionResetError):
        pass
    return out


def http_post(path, body, extra=""):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
            .encode() + body)


def sse_frames(data):
    """JSON frames of a whole event stream (without [DONE]), and whether [DONE] came."""
    lines = [x[6:] for x in data.decode().split("\n") if x.startswith("data: ")]
    return [json.loads(x) for x in lines if x != "[DONE]"], bool(lines) and lines[-1] == "[DONE]"


def wait_until(condition, timeout):
    """Seconds until the condition held, or None."""
    start = time.monotonic()
    while time.monotonic() - start < timeout:
        if condition():
            return time.monotonic() - start
        time.sleep(0.005)
    return None


@pytest.fixture(scope="session")
def model():
    if path := os.environ.get("ONEBIT_TEST_MODEL"):
        return path
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} has not been built")
    r = subprocess.run([PROGRAM, "pull", "smollm2-135m"], capture_output=True, text=True)
    if r.returncode != 0:
        pytest.skip("the demo model could not be had: " + r.stderr.strip())
    return r.stdout.strip()


@pytest.fixture(scope="session")
def serve(model):
    """Start `1bit serve` with options; all are stopped at the end."""
    running = []

    def start(*options, env=None, ready=True):
        argv = [PROGRAM, "serve", "-m", model, "--port", "0", *options]
        running.append(Server(argv, env, ready))
        return running[-1]

    yield start
    for s in running:
        s.stop()


@pytest.fixture(scope="session")
def server(serve):
    """The one most tests share: four sequences of 2,048 tokens."""
    return serve("-c", "2048", "--parallel", "4", "--alias", "demo")


@pytest.fixture
def fake(model):
    """Start fake_server with NAME=VALUE options; stopped at the end of the test."""
    if not os.path.exists(FAKE):
        pytest.skip(f"{FAKE} has not been built")
    running = []

    def start(*options, env=None, ready=True):
        running.append(Server([FAKE, model, *options], env, ready))
        return running[-1]

    yield start
    for s in running:
        s.stop()
