"""HTTP itself: what is read, refused and kept alive. Over fake_server, so that no model runs."""
import json
import os
import socket
import subprocess
import threading
import time

import openai
import pytest

from conftest import FAKE, Server, http_post, read_all, sse_frames, wait_until

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def status_of(reply):
    assert reply.startswith(b"HTTP/1.1 "), reply[:100]
    return int(reply[9:12])


def read_until(s, end):
    out = b""
    while not out.endswith(end):
        part = s.recv(65536)
        assert part, out[-200:]
        out += part
    return out


def error_of(reply):
    return json.loads(reply.split(b"\r\n\r\n", 1)[1])["error"]


@pytest.fixture(scope="module")
def f(model):
    s = Server([FAKE, model, "timeout=5"])
    yield s
    s.stop()


@pytest.mark.parametrize("request_bytes, code", [
    (b"hello\r\n\r\n", 400),
    (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
    (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),                                   # no Host
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX y: 1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\n folded: 1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: \x01\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\nHost: localhost\r\n\r\n", 400),                  # bare LF
    (b"GET /he alth HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 70000 + b"\r\n\r\n", 431),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1x\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
     b"Transfer-Encoding: chunked\r\n\r\n", 400),                             # request smuggling
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
     b"ffffffffffffffffff\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: a-miracle\r\nContent-Length: 2\r\n\r\n{}", 417),
    (b"PUT /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 405),
])
def test_refusals_close_with_openais_shape(f, request_bytes, code):
    reply = f.raw(request_bytes)
    assert status_of(reply) == code
    assert b"Connection: close" in reply
    error = error_of(reply)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


def test_methods(f):
    assert f.request("/health")[0] == 200
    status, headers, data = f.request("/health", method="HEAD")
    assert status == 200 and int(headers["Content-Length"]) > 0 and data == b""
    status, headers, _ = f.request("/v1/chat/completions")
    assert status == 405 and headers["Allow"] == "POST, OPTIONS"
    status, headers, _ = f.request("/health", b"{}")
    assert status == 405 and headers["Allow"] == "GET, HEAD, OPTIONS"
    status, headers, _ = f.request("/v1/chat/completions", method="OPTIONS")
    assert status == 204 and headers["Allow"] == "POST, OPTIONS"
    for path in ("/v1/responses", "/v1/messages", "/api/chat", "/v1/images", "/nothing"):
        status, error = f.post(path, {})
        assert status == 404 and path in error["error"]["message"]


def test_keep_alive_and_pipelining(f):
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with f.connect() as s:
        s.sendall(one * 50 + http_post("/v1/chat/completions", CHAT) + one.replace(
            b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        reply = read_all(s)
    assert reply.count(b"HTTP/1.1 200 OK") == 52
    assert reply.count(b'"chat.completion"') == 1
    assert reply.endswith(b'{"status":"ok"}')


def test_http_1_0(f):
    reply = f.raw(b"GET /health HTTP/1.0\r\n\r\n")
    assert status_of(reply) == 200 and b"Connection: close" in reply
    body = json.dumps({**CHAT, "stream": True}).encode()
    reply = f.raw(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert b"chunked" not in reply
    assert sse_frames(reply.split(b"\r\n\r\n", 1)[1])[1]


def test_chunked_body_in_single_bytes(f):
    body = json.dumps({"content": "hello"}).encode()
    data = (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n")
    for i in range(0, len(body), 7):
        part = body[i:i + 7]
        data += b"%x;ext=1\r\n" % len(part) + part + b"\r\n"
    data += b"0\r\nTrailer: x\r\n\r\n"
    with f.connect() as s:
        for i in range(len(data)):
            s.send(data[i:i + 1])
        reply = read_all(s)
    assert status_of(reply) == 200
    assert json.loads(reply.split(b"\r\n\r\n", 1)[1])["tokens"]


def test_expect_continue(f):
    body = json.dumps({"content": "x"}).encode()
    with f.connect() as s:
        s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                  b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body))
        assert s.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        s.sendall(body)
        assert status_of(read_all(s)) == 200
    with f.connect() as s:  # too large: said before the upload
        s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                  b"Content-Length: 100000000\r\n\r\n")
        assert status_of(read_all(s)) == 413


def test_body_over_the_limit_gets_its_answer(f):
    """The refusal arrives although the client is still sending."""
    reply = f.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 67108865\r\n\r\n"
                  + b"x" * (8 << 20))
    assert status_of(reply) == 413
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    with f.connect() as s:
        s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(66):
                s.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert status_of(read_all(s)) == 413
    assert f.get("/health")[0] == 200


def test_refusal_behind_a_full_buffer(f):
    """What was pipelined behind a refused request is thrown away, not left to block the sender."""
    reply = f.raw(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n"
                  + b"x" * (30 << 20))
    assert status_of(reply) == 404


def test_slow_head_is_timed_out(fake):
    f = fake("timeout=0.5")
    start = time.monotonic()
    with f.connect() as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert status_of(read_all(s)) == 408
    assert time.monotonic() - start < 5
    with f.connect() as s:  # an idle connection is closed without a word
        assert read_all(s) == b""
    with f.connect() as s:  # a body that stops
        s.sendall(http_post("/tokenize", {"content": "x"})[:-3])
        assert status_of(read_all(s)) == 408


def test_loading(fake):
    f = fake("alias=m", env={"FAKE_LOAD_MS": "700"}, ready=False)
    assert f.get("/health") == (503, {"status": "loading"})
    assert f.get("/v1/health") == (503, {"status": "loading"})
    status, error = f.post("/v1/chat/completions", CHAT)
    assert status == 503 and error["error"]["code"] == "model_loading"
    assert f.metrics()["onebit_ready"] == 0
    assert wait_until(lambda: f.get("/health") == (200, {"status": "ok"}), 10) is not None
    assert f.post("/v1/chat/completions", CHAT)[0] == 200


def test_load_failure_ends_the_program(model):
    r = subprocess.run([FAKE, model], env={**os.environ, "FAKE_LOAD_FAIL": "1"}, timeout=20,
                       capture_output=True, text=True)
    assert r.returncode == 1 and "the fake model cannot be loaded" in r.stderr


def test_port_in_use(f, model):
    r = subprocess.run([FAKE, model, f"port={f.port}"], timeout=20, capture_output=True, text=True)
    assert r.returncode == 1
    assert f"port {f.port} of 127.0.0.1 is in use" in r.stderr


def test_failure_in_mid_stream_is_a_data_frame(fake):
    f = fake(env={"FAKE_FAIL_AFTER": "3"})
    _, _, data = f.request("/v1/chat/completions", {**CHAT, "max_tokens": 10, "stream": True})
    frames, done = sse_frames(data)
    assert done
    assert frames[-1]["error"]["code"] == "device_error"
    assert frames[-1]["error"]["type"] == "server_error"
    assert all("choices" in x for x in frames[:-1]) and len(frames) > 2
    status, error = f.post("/v1/chat/completions", {**CHAT, "max_tokens": 10})
    assert status == 500 and error["error"]["code"] == "device_error"
    # and the real client raises it
    client = openai.OpenAI(base_url=f.url + "/v1", api_key="x", max_retries=0)
    with pytest.raises(openai.APIError):
        for _ in client.chat.completions.create(model="", stream=True, **CHAT | {"max_tokens": 10}):
            pass


def seconds_to_cancel(f, body):
    """From the client's leaving to the end of its request; best of three, since the machine is shared."""
    best = 60.0
    for _ in range(3):
        with f.connect() as s:
            s.sendall(http_post("/v1/chat/completions", body))
            assert wait_until(lambda: f.metrics()["onebit_requests_running"] == 1, 5) is not None
        took = wait_until(lambda: f.metrics()["onebit_requests_running"] == 0, 5)
        assert took is not None
        best = min(best, took)
    return best


def test_client_gone_in_mid_stream(fake):
    f = fake(env={"FAKE_STEP_MS": "5"})
    assert seconds_to_cancel(f, {**CHAT, "max_tokens": 4000, "stream": True}) < 0.2
    assert f.metrics()["onebit_clients_gone_total"] == 3


@pytest.mark.parametrize("stream", [True, False])
def test_client_gone_in_mid_prefill(fake, stream):
    f = fake(env={"FAKE_PREFILL_MS": "20000"})
    assert seconds_to_cancel(f, {**CHAT, "stream": stream}) < 0.2


def test_reader_that_stops_is_dropped(fake):
    """Its backlog is bounded; others are not disturbed."""
    f = fake("timeout=1", "ctx=200000", env={"FAKE_STEP_MS": "0.01"})
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect((f.host, f.port))
    s.sendall(http_post("/v1/chat/completions", {**CHAT, "max_tokens": 190000, "stream": True,
                                                 "logprobs": True, "top_logprobs": 20}))
    assert wait_until(lambda: f.metrics()["onebit_clients_slow_total"] == 1, 20) is not None
    assert wait_until(lambda: f.metrics()["onebit_requests_running"] == 0, 1) is not None
    assert f.post("/v1/chat/completions", CHAT)[0] == 200
    s.close()


def test_two_hundred_connections(f):
    idle = [f.connect() for _ in range(210)]
    body = http_post("/v1/chat/completions", CHAT, "Connection: close\r\n")
    for s in idle:
        s.sendall(body)
    for s in idle:
        assert status_of(read_all(s)) == 200
        s.close()


def test_connections_over_the_limit_are_told(fake):
    f = fake("connections=10")
    some = [f.connect() for _ in range(9)]
    assert f.metrics()["onebit_connections"] == 10
    last = [f.connect() for _ in range(4)]
    assert status_of(read_all(last[-1])) == 503
    for s in some + last:
        s.close()
    assert wait_until(lambda: f.get("/health")[0] == 200, 2) is not None


def test_key(fake):
    f = fake("key=sesame", "key=other")
    assert f.get("/health")[0] == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"},
                    {"Authorization": "Bearer sesamE"}, {"Authorization": "Bearer "}):
        status, reply_headers, data = f.request("/v1/chat/completions", CHAT, headers)
        assert status == 401 and json.loads(data)["error"]["code"] == "invalid_api_key"
        assert reply_headers["WWW-Authenticate"] == "Bearer"
        assert b"sesame" not in data
    assert f.get("/v1/models")[0] == 401
    assert f.get("/metrics")[0] == 401
    for headers in ({"Authorization": "Bearer sesame"}, {"Authorization": "bearer other"},
                    {"X-Api-Key": "sesame"}):
        assert f.request("/v1/chat/completions", CHAT, headers)[0] == 200


def test_hosts_and_origins_on_loopback(f):
    def status(path="/tokenize", body={"content": "x"}, **headers):
        return f.request(path, body, {k.replace("_", "-"): v for k, v in headers.items()})[0]

    for host in ("localhost", "127.0.0.1:99", "[::1]:8000", "LOCALHOST:1"):
        assert status(Host=host) == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.2"):
        assert status(Host=host) == 403
        assert status("/health", None, Host=host) == 403
    assert status(Origin=f"http://127.0.0.1:{f.port}") == 200
    assert status(Origin="http://localhost:3000") == 200
    for origin in ("http://evil.example", "null", "https://127.0.0.1.evil.example", "file://"):
        assert status(Origin=origin) == 403
    status_, headers, _ = f.request("/health", headers={"Origin": "http://evil.example"})
    assert status_ == 200 and "Access-Control-Allow-Origin" not in headers


def test_cors(fake):
    f = fake("cors=https://app.example")
    ok, other = {"Origin": "https://app.example"}, {"Origin": "https://other.example"}
    status, headers, _ = f.request("/tokenize", {"content": "x"}, ok)
    assert status == 200 and headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert headers["Vary"] == "Origin"
    assert f.request("/tokenize", {"content": "x"}, other)[0] == 403
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    status, headers, _ = f.request("/v1/chat/completions", None, {**ok, **preflight}, "OPTIONS")
    assert status == 204 and "POST" in headers["Access-Control-Allow-Methods"]
    assert f.request("/v1/chat/completions", None, {**other, **preflight}, "OPTIONS")[0] == 403


def test_stop_finishes_what_runs(fake):
    f = fake(env={"FAKE_STEP_MS": "20"})
    with f.connect() as s:
        s.sendall(http_post("/v1/chat/completions", {**CHAT, "max_tokens": 40, "stream": True}))
        s.recv(100)
        f.process.terminate()
        data = read_all(s)
    assert data.count(b'"delta"') > 10 and b"[DONE]" in data and b"error" not in data
    assert f.stop() == 0
    with pytest.raises(OSError):
        f.connect()


def test_stop_cancels_what_does_not_end(fake):
    f = fake("grace=0.5", env={"FAKE_STEP_MS": "20"})
    with f.connect() as s:
        s.sendall(http_post("/v1/chat/completions", {**CHAT, "max_tokens": 4000, "stream": True}))
        s.recv(100)
        start = time.monotonic()
        f.process.terminate()
        data = read_all(s)
    assert b'"code":"cancelled"' in data and b"[DONE]" in data
    assert f.stop() == 0 and time.monotonic() - start < 3


def test_stop_while_loading(fake):
    f = fake(env={"FAKE_LOAD_MS": "30000"}, ready=False)
    start = time.monotonic()
    assert f.stop() == 0
    assert time.monotonic() - start < 5


def test_choices_and_prompts(fake):
    f = fake()
    status, r = f.post("/v1/completions", {"prompt": ["a b", "c d"], "echo": True, "n": 2, "max_tokens": 5})
    assert status == 200
    assert [c["index"] for c in r["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in r["choices"]] == ["a ba ba ba", "a ba ba ba", "c dc dc dc", "c dc dc dc"]
    assert r["usage"]["prompt_tokens"] == 4 and r["usage"]["completion_tokens"] == 20
    _, _, data = f.request("/v1/completions", {"prompt": ["a b", "c d"], "echo": True, "n": 2,
                                               "max_tokens": 5, "stream": True})
    frames, done = sse_frames(data)
    assert done
    text = {}
    for x in frames:
        for c in x["choices"]:
            text[c["index"]] = text.get(c["index"], "") + c["text"]
    assert text == {0: "a ba ba ba", 1: "a ba ba ba", 2: "c dc dc dc", 3: "c dc dc dc"}


def test_stream_of_split_characters_is_whole(fake):
    """An emoji of several tokens never arrives in parts."""
    f = fake()
    _, _, data = f.request("/v1/completions", {"prompt": "\U0001F9E0\u00e9\u4f60\U0001F468\u200d\U0001F469",
                                               "max_tokens": 60, "stream": True})
    frames, _ = sse_frames(data)
    texts = [c["text"] for x in frames for c in x["choices"]]
    assert "\ufffd" not in "".join(texts[:-2])
    assert "\U0001F9E0" in "".join(texts)


def test_a_large_request_does_not_hold_up_a_stream(fake):
    """Reading, rendering and tokenising 8 MB go on beside a stream, which keeps its pace."""
    f = fake("ctx=4000000", env={"FAKE_STEP_MS": "5"})
    big = http_post("/v1/chat/completions", {**CHAT, "messages": [
        {"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 180000}]})
    arrivals, took = [], []

    def ask_big(s):
        start = time.monotonic()
        s.sendall(big)
        assert status_of(read_until(s, b"}}")) == 200
        took.append(time.monotonic() - start)

    with f.connect(60) as s, f.connect(60) as other:
        s.sendall(http_post("/v1/chat/completions", {**CHAT, "max_tokens": 100000, "stream": True}))
        s.recv(65536)
        thread = threading.Thread(target=ask_big, args=(other,))
        thread.start()
        while thread.is_alive():
            assert s.recv(65536)
            arrivals.append(time.monotonic())
    gaps = [b - a for a, b in zip(arrivals, arrivals[1:])]
    # On the io thread, the whole of the work would be one gap.
    assert took and max(gaps) < 0.6 * took[0], (took, sorted(gaps)[-5:])


def test_json_that_would_fill_the_memory(f):
    bombs = [b'{"messages":[' + b"[]," * 2_000_000 + b"1]}", b'{"messages":' + b'{"a":[1' * 60 + b"}",
             b'{"metadata":{' + b",".join(b'"%d":{}' % i for i in range(200_000)) + b"}}"]
    for bomb in bombs:
        start = time.monotonic()
        status, error = f.post("/v1/chat/completions", bomb)
        assert status == 400 and error["error"]["message"]
        assert time.monotonic() - start < 5
    with open(f"/proc/{f.process.pid}/status") as status:
        peak = next(int(x.split()[1]) for x in status if x.startswith("VmHWM"))
    assert peak < 600_000, "kB"
