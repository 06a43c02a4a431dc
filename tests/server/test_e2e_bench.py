"""tools/e2e_bench.py against a server of known timing and the real one."""
import importlib.util
import json
import os
import threading
import time
import xml.etree.ElementTree
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import ROOT

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


def test_real_server(server, tmp_path):
    out = tmp_path / "out.jsonl"
    assert e2e_bench.main(["--url", server.url, "--prompt-tokens", "96", "--runs", "2", "--max-tokens", "8",
                           "--jsonl", str(out)]) == 0
    for run in json.loads(out.read_text())["runs"]:
        assert run["n"] == 8 and run["n_prompt"] == 96 and run["cached"] == 0
