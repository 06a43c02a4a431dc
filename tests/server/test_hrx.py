"""The HRX device on libhrx-soft behind programs and the server: the text is the CPU's, everything says that it is an
emulation, kernels that are wrong cost the op, NaN ends a request with a message, a device that is lost comes back."""
import json
import os
import subprocess
import sys

import pytest

from conftest import PROGRAM, ROOT, Server

LLAMA = os.path.join(ROOT, "tests", "data", "golden", "llama.gguf")
WITH_HRX = ("--device", "hrx-soft", "-c", "128")


@pytest.fixture(scope="module", autouse=True)
def program():
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} has not been built")


def run(*args, env=None):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=240,
                          env={**os.environ, "OB_HRX_SELFTEST": "0", **(env or {})})


def text_of(*args, env=None):
    return run("run", "-m", LLAMA, "--raw", "-p", "The capital is", "-n", "6", "--temp", "0", "--ignore-eos", *args, env=env)


def test_text_is_the_cpus():
    r = text_of(*WITH_HRX)
    assert r.returncode == 0, r.stderr
    assert r.stdout == text_of("--device", "cpu", "-c", "128").stdout


def test_a_wrong_kernel_costs_the_op():
    r = text_of(*WITH_HRX, env={"OB_HRX_SELFTEST": "1", "OB_HRX_TEST_FAIL": "glu"})
    assert r.returncode == 0, r.stderr
    assert "kernels of glu are wrong on this device" in r.stderr
    assert r.stdout == text_of("--device", "cpu", "-c", "128").stdout


def test_nan_logits_end_with_a_message():
    r = text_of(*WITH_HRX, env={"HRX_SOFT_DROP": "embed:global_store_b128"})
    assert r.returncode == 1 and "NaN" in r.stderr, r.stderr + r.stdout


def test_a_race_is_an_error_of_the_device():
    r = text_of(*WITH_HRX, env={"HRX_SOFT_DROP": "attn:s_barrier"})
    assert r.returncode == 1 and ("race: " in r.stderr or "nobody wrote" in r.stderr), r.stderr


def test_bench_gives_no_speed():
    r = run("bench", "-m", LLAMA, "--device", "hrx-soft", "-p", "4", "-n", "2", "-r", "1", "--json", "-q")
    assert r.returncode == 0, r.stderr
    out = json.loads(r.stdout)
    assert out["device"]["hardware"] is False
    assert all(set(row) == {"name", "n_prompt", "n_gen", "depth", "batch"} for row in out["tests"])


def test_server_says_what_it_is():
    s = Server([PROGRAM, "serve", "-m", LLAMA, "--port", "0", *WITH_HRX], {"OB_HRX_SELFTEST": "0", "HRX_SOFT_FAIL": "hrx_stream_synchronize:6:14"})
    try:
        ask = {"prompt": list(range(5, 15)), "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        first = s.post("/v1/completions", ask)   # its device is lost once, and opened again
        again = s.post("/v1/completions", ask)
        assert first[0] == again[0] == 200, (first, again)
        assert first[1]["choices"][0]["text"] == again[1]["choices"][0]["text"]
        health = s.get("/health")[1]
        assert health["device"] == "hrx-soft" and health["soft"] is True and health["retried"] == 1
    finally:
        s.stop()


@pytest.mark.parametrize("act4", ["off", "all"])
@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_rotated_files(name, act4, tmp_path):
    """The CPU's answer; with 4-bit activations a rounding before them may turn a code into its neighbour, as between the
    CPU's own kernels."""
    data, out, ppl = os.path.join(ROOT, "tests", "data", "golden"), str(tmp_path / "rotated.gguf"), {}
    r = run("rotate", os.path.join(data, name + ".gguf"), out)
    assert r.returncode == 0, r.stderr
    for device in "cpu", "hrx-soft":
        r = run("perplexity", "-m", out, "-f", os.path.join(data, "ppl_text.txt"), "-c", "128", "--chunks", "2", "--act4", act4,
                "--exact", "--json", "--device", device)
        assert r.returncode == 0, r.stderr
        ppl[device] = json.loads(r.stdout)["perplexity"]
    assert ppl["hrx-soft"] == pytest.approx(ppl["cpu"], rel=1e-5 if act4 == "off" else 0.02)


def test_kernels_are_what_their_sources_give():
    """Needs the pinned compiler, which pip fetches."""
    r = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "loom", "build.py"), "--check"], capture_output=True,
                       text=True, timeout=600)
    if r.returncode == 2:
        pytest.skip("the compiler cannot be had: " + r.stderr.strip()[-200:])
    assert r.returncode == 0, r.stdout + r.stderr
