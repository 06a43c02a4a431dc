"""The NPU device on its software model, behind programs and the server: the text, the cache of packed weights, and that
everything says what it is."""
import json
import os
import shutil
import subprocess

import pytest
from openai import OpenAI

from conftest import PROGRAM, ROOT, Server

LLAMA = os.path.join(ROOT, "tests", "data", "golden", "llama.gguf")
MINICPM = os.path.join(ROOT, "tests", "data", "golden", "minicpm-longrope.gguf")


@pytest.fixture(scope="module", autouse=True)
def program():
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} has not been built")


@pytest.fixture
def cache(tmp_path):
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(*args, env=None):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=240, env={**os.environ, **(env or {})})


def text_of(model, *args, env=None):
    return run("run", "-m", model, "--raw", "-p", "The capital is", "-n", "6", "--temp", "0", "--ignore-eos", "-c", "128", *args, env=env)


def test_paris(model, cache):
    """The demo model under the name that people give it, through OpenAI's client; then a second start that packs nothing."""
    name = "smollm2" if "smollm2-135m" in run("list").stdout else model
    for start in range(2):
        s = Server([PROGRAM, "serve", "-m", name, "--device", "npu-soft", "--port", "0", "-c", "256", "--parallel", "1"], env=cache)
        try:
            client = OpenAI(base_url=s.url + "/v1", api_key="none")
            asked = name if name == "smollm2" else client.models.list().data[0].id
            r = client.completions.create(model=asked, prompt="The capital of France is", max_tokens=1, temperature=0)
            assert r.choices[0].text == " Paris"
            assert not any("per_second" in key for key in r.model_extra["timings"])  # times of an emulation are no speed
            health = s.get("/health")[1]
            assert health["device"] == "npu-soft" and health["soft"] is True and health["hardware"] is False
            log = "".join(s.log)
            assert "[an emulation]" in log and "software model" in log
            assert ("nothing to repack" in log) == (start == 1) and ("weights packed" in log) == (start == 0), log
        finally:
            s.stop()


def test_text_is_that_of_the_arithmetic(cache):
    want, got = text_of(LLAMA, "--device", "npu-ref", env=cache), text_of(LLAMA, "--device", "npu-soft", env=cache)
    assert got.returncode == 0, got.stderr
    assert got.stdout == want.stdout
    for name in ("npu4", "driver-0.6", "driver-0.16", "iova"):
        assert text_of(LLAMA, "--device", "npu-soft:" + name, env=cache).stdout == want.stdout
    for more in (["--npu-verify"], ["--npu-verify=all"], ["--npu-verify=off"], ["--npu-pin"]):
        assert text_of(LLAMA, "--device", "npu-soft", *more, env=cache).stdout == want.stdout


def test_a_touched_file_is_packed_again(tmp_path, cache):
    path = str(tmp_path / "model.gguf")
    shutil.copy(LLAMA, path)
    first = text_of(path, "--device", "npu-soft", env=cache)
    assert "weights packed" in first.stderr and "kept in" in first.stderr
    second = text_of(path, "--device", "npu-soft", env=cache)
    assert "nothing to repack" in second.stderr and "weights packed" not in second.stderr
    os.utime(path)
    third = text_of(path, "--device", "npu-soft", env=cache)
    assert "another state of the model file" in third.stderr and "weights packed" in third.stderr
    assert first.stdout == second.stdout == third.stdout and first.returncode == 0
    folder = os.path.join(cache["XDG_CACHE_HOME"], "1bit", "npk")
    (name,) = os.listdir(folder)  # one file a model, nothing half made
    assert name.startswith("model-") and name.endswith(".npk")
    # a bit that turned over in the cache changes no text
    with open(os.path.join(folder, name), "r+b") as f:
        f.seek(20000)
        b = f.read(1)
        f.seek(20000)
        f.write(bytes([b[0] ^ 1]))
    fourth = text_of(path, "--device", "npu-soft", env=cache)
    assert fourth.stdout == first.stdout and "1 weights packed" in fourth.stderr


def test_declared_scales_that_would_be_lost(tmp_path, cache):
    """A llama that declares what llamas do not have is refused, with packed weights of its own lying there or not; a
    MiniCPM, which has them, runs."""
    path = str(tmp_path / "model.gguf")
    shutil.copy(LLAMA, path)
    assert text_of(path, "--device", "npu-soft", env=cache).returncode == 0
    for key, scale in ((b"llama.rope.freq_base", b"llama.residual_scale"),
                       (b"llama.attention.head_count_kv", b"llama.final_logit_softcapping")):
        with open(LLAMA, "rb") as f:
            data = f.read()
        assert data.count(key) == 1 and len(key) == len(scale)
        with open(path, "wb") as f:
            f.write(data.replace(key, scale))
        for device in ("npu-soft", "npu-ref", "cpu"):
            r = text_of(path, "--device", device, env=cache)
            assert r.returncode != 0 and scale.decode() in r.stderr, r.stderr
    assert text_of(MINICPM, "--device", "npu-soft", env=cache).returncode == 0


def test_a_fault_changes_no_text(cache):
    want = text_of(LLAMA, "--device", "npu-ref", env=cache).stdout
    r = text_of(LLAMA, "--device", "npu-soft", env={**cache, "OB_NPU_SOFT_FAULTS": "unplug:80"})
    assert r.returncode == 0 and r.stdout == want
    assert r.stderr.count("computed on the CPU from now on") == 1


def test_bench_gives_no_speed(cache):
    r = run("bench", "-m", LLAMA, "--device", "npu-soft", "-p", "4", "-n", "2", "-r", "1", "--json", "-q", env=cache)
    assert r.returncode == 0, r.stderr
    out = json.loads(r.stdout)
    assert out["device"]["kind"] == "npu-soft" and out["device"]["hardware"] is False
    assert all(set(row) == {"name", "n_prompt", "n_gen", "depth", "batch"} for row in out["tests"])
    table = run("bench", "-m", LLAMA, "--device", "npu-soft", "-p", "4", "-n", "2", "-r", "1", env=cache).stdout
    assert "emulated" in table and "done" in table
    both = run("bench", "-m", LLAMA, "--device", "cpu", "--prefill-device", "npu-soft", "-p", "4", "-n", "2", "-r", "1", "--json", "-q",
               env=cache)
    assert json.loads(both.stdout)["device"]["hardware"] is False


def test_policies_are_not_made_of_it(tmp_path, cache):
    out = tmp_path / "policy.json"
    r = run("policy", "measure", "-m", LLAMA, "-o", str(out), "--targets", "npu-soft", "--lengths", "16", "-r", "1", env=cache)
    assert "emulation" in r.stderr
    assert not out.exists() or "npu-soft" not in out.read_text()


def test_prompts_on_the_npu(cache):
    s = Server([PROGRAM, "serve", "-m", LLAMA, "--device", "cpu", "--prefill-device", "npu-soft", "--prefill-min-tokens", "64", "--port", "0",
                "-c", "512", "--parallel", "1"], env=cache)
    try:
        story = " ".join(f"record {i} of the lamp stands on shelf {i * 7 % 13}." for i in range(12))
        status, headers, data = s.request("/v1/completions", {"prompt": story, "max_tokens": 4, "temperature": 0})
        reply = json.loads(data)
        assert status == 200 and headers["X-1bit-Prefill"].split()[0] == "npu-soft"
        assert reply["timings"]["handed_n"] >= 64
        health = s.get("/health")[1]
        assert health["prefill_device"] == "npu-soft" and health["hardware"] is False
    finally:
        s.stop()


def test_no_npu_here_says_why():
    r = text_of(LLAMA, "--device", "npu")
    devices = json.loads(run("devices", "--json").stdout)
    mine = [d for d in devices if d["kind"] == "npu"]
    if any(d["available"] for d in mine):
        pytest.skip("this machine has an NPU")
    assert r.returncode != 0 and r.stdout == ""
    assert "NPU" in r.stderr
    assert not mine or mine[0]["reason"] in r.stderr
    assert "npu" in run("doctor").stdout
