"""The Vulkan device behind programs and the server, on the software driver (skipped without one): a device that is
lost, memory that runs out, drivers with narrow limits, several devices, equal texts."""
import json
import os
import re
import subprocess
import urllib.request

import pytest

from conftest import PROGRAM, ROOT, Server

LLAMA = os.path.join(ROOT, "tests", "data", "golden", "llama.gguf")


@pytest.fixture(scope="session", autouse=True)
def driver(tmp_path_factory):
    """One folder for the driver's cache of kernels, and a look whether there is a driver."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} has not been built")
    r = run("bench", "-m", LLAMA, "--device", "lavapipe", "-p", "1", "-n", "0", "-r", "1", "-q")
    if r.returncode:
        pytest.skip("no software driver of Vulkan: " + r.stderr.strip())


def run(*args, env=None):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=240, env={**os.environ, **(env or {})})


def text_of(model, *args, env=None, n=8):
    r = run("run", "-m", model, "--raw", "-p", "The capital is", "-n", str(n), "--temp", "0", "--ignore-eos", "-c", "128", "-q",
            *args, env=env)
    assert r.returncode == 0, r.stderr
    return r.stdout


@pytest.fixture
def tiny():
    """Start a server with a model of three small layers on the software driver."""
    running = []

    def start(env, *args):
        running.append(Server([PROGRAM, "serve", "-m", LLAMA, "--port", "0", "--device", "lavapipe", "-c", "128", *args], env))
        return running[-1]

    yield start
    for s in running:
        s.stop()


def complete(server, first, **fields):
    return server.post("/v1/completions", {"prompt": list(range(first, first + 20)), "max_tokens": 8, "temperature": 0,
                                           "ignore_eos": True, **fields})


@pytest.mark.parametrize("variable", ["OB_VK_LOSE_AFTER", "OB_VK_NO_MEMORY_AFTER"])
def test_server_survives_a_device_that_fails(tiny, variable):
    """Lost in the first request, which goes on; twice in the second, which fails alone; the third is served."""
    s = tiny({variable: "4,8,3"}, "--parallel", "2")
    code, health = s.get("/health")
    assert code == 200 and health["status"] == "ok" and "device_faults" not in health
    status, first = complete(s, 5)
    assert status == 200 and first["usage"]["completion_tokens"] == 8
    assert s.get("/health")[1]["device_faults"] == 1
    status, second = complete(s, 50)
    assert status in (500, 503), second
    assert "failed twice while this request ran" in second["error"]["message"]
    code, health = s.get("/health")
    assert code == 200 and health["device_faults"] == 3 and health["retried"] == 2
    status, third = complete(s, 5)
    assert status == 200 and third["usage"]["completion_tokens"] == 8


def test_stream_goes_on_after_a_loss(tiny):
    s = tiny({"OB_VK_LOSE_AFTER": "6"}, "--parallel", "1")
    body = json.dumps({"prompt": list(range(9, 29)), "max_tokens": 8, "temperature": 0, "ignore_eos": True,
                       "stream": True}).encode()
    req = urllib.request.Request(s.url + "/v1/completions", data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(req, timeout=120) as r:
        frames = [x for x in r.read().decode().split("\n\n") if x.startswith("data: ")]
    assert frames[-1] == "data: [DONE]"
    assert not any('"error"' in x for x in frames)
    assert s.get("/health")[1]["device_faults"] == 1


def test_eight_greedy_runs_are_identical(tiny):
    s = tiny({}, "--parallel", "4")
    texts = {complete(s, 30, max_tokens=40, cache_prompt=i % 2 == 1)[1]["choices"][0]["text"] for i in range(8)}
    assert len(texts) == 1


def test_a_wrong_kernel_is_named(tiny):
    s = tiny({"OB_VK_TEST_FAIL": "norm_rows,rope"}, "--parallel", "1")
    assert complete(s, 5)[0] == 200
    note = s.get("/health")[1]["note"]
    assert "norm_rows" in note or "rope" in note
    assert any("kernel norm_rows is wrong on this driver" in x for x in s.log)
    listed = json.loads(run("devices", "--json").stdout)
    assert any("rope" in d["reason"] for d in listed if d["kind"] == "vulkan")


def test_full_memory_is_said_before_anything_is_loaded():
    r = run("run", "-m", LLAMA, "--raw", "-p", "x", "-c", "4096", "--device", "lavapipe", env={"OB_VK_BUDGET_MB": "1"})
    assert r.returncode == 1 and "1 MiB are free" in r.stderr and "--ctx-size" in r.stderr, r.stderr


def test_narrow_limits(model):
    """A tensor over the driver's limit runs elsewhere. Exact, for 8-bit activations may round otherwise on another device."""
    want = text_of(model, "--device", "cpu", "--exact", n=4)
    r = run("run", "-m", model, "--raw", "-p", "The capital is", "-n", "4", "--temp", "0", "--ignore-eos", "-c", "128", "--exact",
            "--device", "lavapipe", env={"OB_VK_MAX_ALLOC_MB": "12"})
    assert r.returncode == 0 and r.stdout == want, r.stderr
    assert "run on the CPU" in r.stderr and "12 MiB" in r.stderr


def test_several_devices_give_the_same_text(model):
    want = text_of(model, "--device", "cpu")
    assert text_of(model, "--device", "cpu,cpu", "--split", "3,1") == want
    r = run("run", "-m", model, "-p", "x", "--device", "cpu,cpu", "--split", "1,2,3")
    assert r.returncode == 1 and "--split has 3 shares for 2 devices" in r.stderr


@pytest.mark.parametrize("device", ["cpu", "lavapipe"])
def test_quantised_cache(model, device):
    """Keys and values of 8 bits: nearly the perplexity of 16, and not the same numbers; widths that do not fit are said."""
    text = os.path.join(os.path.dirname(LLAMA), "ppl_text.txt")
    args = ("perplexity", "-m", model, "-f", text, "--chunks", "1", "-c", "48", "--device", device)
    plain, packed = run(*args), run(*args, "--ctk", "q8_0", "--ctv", "q8_0")
    assert plain.returncode == packed.returncode == 0, packed.stderr
    a, b = (float(re.search(r"perplexity ([0-9.]+) \+/-", r.stdout)[1]) for r in (plain, packed))
    assert abs(a - b) < 0.02 * a and a != b, (plain.stdout, packed.stdout)
    r = run("perplexity", "-m", LLAMA, "-f", text, "--ctk", "q8_0", "--device", device)
    assert r.returncode == 1 and "multiples of 32" in r.stderr


def test_what_passed_is_remembered(tmp_path):
    """The second process tests no kernels; one with other shaders, or a damaged file, tests them all again."""
    caches = {"MESA_SHADER_CACHE_DIR": os.environ["XDG_CACHE_HOME"], "XDG_CACHE_HOME": str(tmp_path)}

    def n_tests():
        r = run("bench", "-m", LLAMA, "--device", "lavapipe", "-p", "1", "-n", "0", "-r", "1", "-v", env=caches)
        assert r.returncode == 0, r.stderr
        return int(re.findall(r"(\d+) tests of kernels", r.stderr)[-1])

    first = n_tests()
    assert first > 0
    assert n_tests() == 0
    (kept,) = tmp_path.glob("1bit/*.ok")
    text = kept.read_text()
    kept.write_text(text.replace("shaders ", "shaders 1", 1))
    assert n_tests() == first
    assert kept.read_text() == text
    kept.write_text("shaders")
    assert n_tests() == first
