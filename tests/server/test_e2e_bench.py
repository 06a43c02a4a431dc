"""tools/e2e_bench.py against a server of known timing and the real one."""
import importlib.util
import json
import os
import socket
import subprocess
import threading
import time
import urllib.request
import xml.etree.ElementTree
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import ROOT, wait_until

spec = importlib.util.spec_from_file_location("e2e_bench", os.path.join(ROOT, "tools", "e2e_bench.py"))
e2e_bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(e2e_bench)


class Mock(BaseHTTPRequestHandler):
    """A token is a character; the first comes after 60 ms, then one each 10 ms."""
    cached = 0
    prompts = []

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            return self.reply({"tokens": [ord(c) for c in body["content"]]})
        if self.path == "/detokenize":
            return self.reply({"content": "".join(map(chr, body["tokens"]))})
        assert self.path == "/v1/completions" and body["stream"] and body["ignore_eos"]
        assert body["temperature"] == 0 and body["cache_prompt"] is False
        Mock.prompts.append(body["prompt"])
        self.send_response(200)
        self.end_headers()
        for i in range(body["max_tokens"]):
            time.sleep(0.06 if i == 0 else 0.01)
            self.event({"choices": [{"text": "x"}]})
        self.event({"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"],
                                             "prompt_tokens_details": {"cached_tokens": Mock.cached}},
                    "timings": {"prompt_per_second": 1234.5, "predicted_per_second": 99.0}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, data):
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()

    def reply(self, data):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())


@pytest.fixture
def mock():
    Mock.cached, Mock.prompts = 0, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mock)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_figures(mock, tmp_path, capsys):
    out, svg = tmp_path / "out.jsonl", tmp_path / "out.svg"
    assert e2e_bench.main(["--url", mock, "--prompt-tokens", "100,300", "--max-tokens", "11", "--runs", "2", "--label",
                           "a<b", "--jsonl", str(out), "--plot", str(svg)]) == 0
    lines = [json.loads(x) for x in out.read_text().splitlines()]
    assert [(x["label"], x["prompt_tokens"], len(x["runs"])) for x in lines] == [("a<b", 100, 2), ("a<b", 300, 2)]
    # The warm-up of 64, then two runs of each; no two begin alike.
    assert [len(p) for p in Mock.prompts] == [64, 100, 100, 300, 300]
    assert len({p[:12] for p in Mock.prompts}) == 5
    for run in [r for x in lines for r in x["runs"]]:
        first_to_last = run["e2e_s"] - run["ttft_s"]
        assert run["n"] == 11 and run["ttft_s"] >= 0.06 and first_to_last >= 0.05
        assert run["decode_tps"] == pytest.approx(10 / first_to_last)
        assert run["effective_tps"] == pytest.approx(11 / run["e2e_s"])
        assert run["server_prompt_tps"] == 1234.5 and run["server_decode_tps"] == 99.0
    text = capsys.readouterr().out.splitlines()
    assert text[0].split() == ("label prompt out TTFT s decode t/s E2E s effective t/s srv prefill t/s").split()
    assert len(text) == 3 and text[1].split()[:3] == ["a<b", "100", "11"]
    xml.etree.ElementTree.parse(svg)


def test_a_cached_prompt_is_no_measurement(mock, tmp_path, capsys):
    Mock.cached = 17
    out = tmp_path / "out.jsonl"
    assert e2e_bench.main(["--url", mock, "--prompt-tokens", "100", "--runs", "1", "--jsonl", str(out)]) == 1
    assert "17 of 64 prompt tokens came from the server's cache" in capsys.readouterr().err
    assert not out.exists()


def test_concurrency(mock, tmp_path):
    out = tmp_path / "out.jsonl"
    assert e2e_bench.main(["--url", mock, "--prompt-tokens", "50", "--runs", "1", "--max-tokens", "5", "--concurrency", "4",
                           "--jsonl", str(out)]) == 0
    x = json.loads(out.read_text())
    assert x["concurrency"] == 4 and len(x["runs"]) == 4
    assert x["median"]["total_tps"] > 2 * x["median"]["effective_tps"]


def test_no_server(capsys):
    assert e2e_bench.main(["--url", "http://127.0.0.1:1"]) == 1
    assert "e2e_bench:" in capsys.readouterr().err


class Caching(e2e_bench.Server):
    """Asks for what the tool never asks for: to keep and reuse the prompt."""

    def post(self, path, body):
        return super().post(path, {**body, "cache_prompt": True} if "completions" in path else body)


def check_real_server(url, tmp_path):
    """The table, the lines and the arithmetic of a run; and that a prompt out of the cache is refused."""
    out = tmp_path / "out.jsonl"
    assert e2e_bench.main(["--url", url, "--prompt-tokens", "64,96", "--runs", "2", "--max-tokens", "12", "--label", "real",
                           "--jsonl", str(out)]) == 0
    lines = [json.loads(x) for x in out.read_text().splitlines()]
    assert [(x["label"], x["prompt_tokens"], len(x["runs"])) for x in lines] == [("real", 64, 2), ("real", 96, 2)]
    for x in lines:
        assert {"ttft_s", "e2e_s", "decode_tps", "effective_tps", "server_prompt_tps", "server_decode_tps"} <= set(x["median"])
        for run in x["runs"]:
            assert run["n"] == 12 and run["n_prompt"] == x["prompt_tokens"] and run["cached"] == 0
            assert run["e2e_s"] == pytest.approx(run["ttft_s"] + (run["n"] - 1) / run["decode_tps"])
            assert run["effective_tps"] == pytest.approx(run["n"] / run["e2e_s"])
            assert run["server_prompt_tps"] > 0 and run["server_decode_tps"] > 0
    caching = Caching(url, 60)
    prompt = e2e_bench.make_prompt(caching, e2e_bench.CORPUS, 80)
    e2e_bench.measure(caching, None, prompt, 80, 4)
    with pytest.raises(e2e_bench.Refused, match="of 80 prompt tokens came from the server's cache"):
        e2e_bench.measure(caching, None, prompt, 80, 4)


def test_our_server(server, tmp_path):
    check_real_server(server.url, tmp_path)


def test_llama_server(model, tmp_path):
    """ONEBIT_TEST_LLAMA_SERVER names llama.cpp's server."""
    program = os.environ.get("ONEBIT_TEST_LLAMA_SERVER")
    if not program:
        pytest.skip("ONEBIT_TEST_LLAMA_SERVER does not name llama.cpp's server")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    p = subprocess.Popen([program, "-m", model, "--port", str(port), "-c", "1024", "-t", "1", "-np", "1"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(program)})
    try:
        url = f"http://127.0.0.1:{port}"

        def ready():
            try:
                return urllib.request.urlopen(url + "/health", timeout=5).status == 200
            except OSError:
                return False
        assert wait_until(ready, 60) is not None
        check_real_server(url, tmp_path)
    finally:
        p.kill()
        p.wait()
