"""`1bit serve` as a program: options, messages, exit codes."""
import json
import os
import subprocess
import time

import pytest

from conftest import PROGRAM, http_post


def run(*args, env=None):
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} has not been built")
    return subprocess.run([PROGRAM, "serve", *args], capture_output=True, text=True, timeout=30,
                          env={**os.environ, **(env or {})})


@pytest.mark.parametrize("args", [("--nonsense",), ("--port", "x"), ("--port", "70000"), ("--timeout", "-1"),
                                  ("--parallel", "0"), ("extra",), ("--ctk", "q9")])
def test_wrong_options_are_usage_errors(args):
    r = run(*args)
    assert r.returncode == 2 and "1bit serve" in r.stderr


def test_without_a_model_it_says_how_to_get_one(tmp_path):
    r = run(env={"XDG_DATA_HOME": str(tmp_path), "ONEBIT_MODEL": ""})
    assert r.returncode == 2
    assert "1bit pull smollm2-135m" in r.stderr and "usage" in r.stderr


def test_files_that_are_no_models(tmp_path):
    r = run("-m", str(tmp_path / "none.gguf"), "--port", "0")
    assert r.returncode == 1 and "none.gguf" in r.stderr
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\xff" * 100)
    r = run("-m", str(bad), "--port", "0")
    assert r.returncode == 1 and "bad.gguf" in r.stderr


def test_wrong_settings(model):
    """2: the command line is wrong whatever the machine; 1: this machine cannot do it."""
    for args, rc, words in ((("--cors", "evil"), 2, "origin"), (("--api-key", ""), 2, "key"),
                            (("--host", "no.such.host.invalid"), 1, "no.such.host.invalid"),
                            (("--device", "abacus", "--port", "0"), 1, "abacus")):
        r = run("-m", model, *args)
        assert r.returncode == rc and words in r.stderr, (args, r.stderr)


def test_port_in_use(server, model):
    r = run("-m", model, "--port", str(server.port))
    assert r.returncode == 1 and f"port {server.port} of 127.0.0.1 is in use" in r.stderr


def test_banner_and_name(serve, model):
    s = serve("-c", "512", "--parallel", "1")
    stem = os.path.basename(model).removesuffix(".gguf")
    assert s.get("/v1/models")[1]["data"][0]["id"] == stem
    banner = [x for x in s.log if x.strip()]
    assert len(banner) == 2
    assert f"http://127.0.0.1:{s.port}" in banner[0] and stem in banner[0]
    assert "Q4_1" in banner[1] and "context 512 x 1" in banner[1]
    assert s.chat("hi", model=stem, max_tokens=1)[0] == 200


def test_json_log_key_and_cors(serve):
    s = serve("--log-json", "--cors", "https://app.example", "--alias", "m", "-c", "512",
              env={"ONEBIT_API_KEY": "sesame"})
    assert s.chat("hi", max_tokens=1)[0] == 401
    status, headers, _ = s.request("/v1/models", headers={"Authorization": "Bearer sesame",
                                                          "Origin": "https://app.example"})
    assert status == 200 and headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert s.stop() == 0
    lines = [json.loads(x) for x in s.log]
    assert all(set(x) == {"time", "level", "message"} for x in lines)
    assert any("/v1/models 200" in x["message"] for x in lines)
    assert not any("sesame" in x["message"] for x in lines)


def test_stop_in_mid_stream(serve):
    """SIGTERM: a running stream may go on, is cancelled after the grace, and the program ends in 6 s."""
    s = serve("-c", "2048", "--alias", "m")
    with s.connect(20) as c:
        c.sendall(http_post("/v1/completions", {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True,
                                                "stream": True}))
        c.recv(200)
        start = time.monotonic()
        s.process.terminate()
        data = b""
        while part := c.recv(65536):
            data += part
    assert b"data: [DONE]" in data
    assert s.stop() == 0
    assert time.monotonic() - start < 6
