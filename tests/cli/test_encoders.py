"""Commands that need logits refuse an encoder by what it is; none of them reads what was not computed."""
import json
import math
import os
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("ONEBIT_BIN", os.path.join(ROOT, "build", "1bit"))
GOLDEN = os.path.join(ROOT, "tests", "data", "golden")


def run(*args):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("model", ["bert", "modern-bert", "modern-bert-cls", "laya"])
@pytest.mark.parametrize("command", ["logits", "perplexity", "imatrix", "run", "bench"])
def test_refused(command, model, tmp_path):
    ids, text = tmp_path / "ids.txt", tmp_path / "text.txt"
    ids.write_text("5 6 7")
    text.write_text("some words " * 400)
    options = {"logits": ["--ids-file", str(ids), "-o", str(tmp_path / "out.npy")],
               "perplexity": ["-f", str(text)], "imatrix": ["-f", str(text), "-o", str(tmp_path / "im")],
               "run": ["-p", "hi"], "bench": ["-p", "0", "-n", "4", "-r", "1"]}[command]
    r = run(command, "-m", os.path.join(GOLDEN, model + ".gguf"), *options)
    assert r.returncode == 1
    assert "encoder" in r.stderr
    assert not (tmp_path / "out.npy").exists()


def test_prompt_speed_of_an_encoder():
    r = run("bench", "-m", os.path.join(GOLDEN, "bert.gguf"), "-p", "16", "-n", "0", "-r", "1")
    assert (r.returncode, r.stderr) == (0, "")
    assert "pp16" in r.stdout


# --- quantised weights ---------------------------------------------------------------------------

TEXTS = ["the first text", "another one, a little longer than that", "x", "def f(a, b):\n    return a + b"]


def vectors(path, *args):
    r = run("embed", "-m", path, "--device", "cpu", *args, *TEXTS)
    assert r.returncode == 0, r.stderr
    return [[float(x) for x in line.split()] for line in r.stdout.splitlines()]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@pytest.fixture(scope="module", params=["bert", "modern-bert"])
def plain(request, tmp_path_factory):
    """A small encoder with random weights, wide enough for blocks of 256, as F32."""
    pytest.importorskip("gguf", reason="needs gguf to make a model")
    path = str(tmp_path_factory.mktemp(request.param) / "f32.gguf")
    subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make_random_gguf.py"), "--arch", request.param, "--layers", "3",
                    "--embd", "256", "--ff", "512", "--heads", "4", "--vocab", "600", "--ctx", "256", "--type", "F32", "-o",
                    path], check=True, capture_output=True)
    return path


# Least cosine of the worst text; random weights, whose errors nothing evens out. Measured (bert, the worse of the
# two): 1 - 1e-7, 0.99981, 0.99898, 0.99721, 0.9914, 0.9830.
@pytest.mark.parametrize("kind, least", [("F16", 0.99999), ("Q8_0", 0.9997), ("Q6_K", 0.9985), ("Q5_K", 0.996),
                                         ("Q4_K_M", 0.985), ("Q4_0", 0.975)])
def test_quantised(plain, kind, least, tmp_path):
    out = str(tmp_path / "q.gguf")
    r = run("quantize", plain, out, kind)
    assert r.returncode == 0, r.stderr
    assert os.path.getsize(out) < os.path.getsize(plain)
    want, got, exact = vectors(plain), vectors(out), vectors(out, "--exact")
    worst = min(cosine(a, b) for a, b in zip(want, got))
    print(kind, worst, min(cosine(a, b) for a, b in zip(got, exact)))
    assert worst >= least
    assert worst < 1 - 1e-9  # it is another file
    # rounding activations to 8 bits costs less than rounding weights to 4
    assert min(cosine(a, b) for a, b in zip(got, exact)) >= 0.9995


# --- check ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("model", ["bert", "modern-bert", "modern-bert-cls", "laya"])
def test_check(model, tmp_path):
    r = run("check", os.path.join(GOLDEN, model + ".gguf"), "--device", "cpu", "--json")
    assert r.returncode == 0, r.stderr
    (row,) = json.loads(r.stdout)
    assert row["state"] == "ok" and row["max_diff"] <= row["atol"]
    # another model's numbers: must fail
    other = {"bert": "modern-bert", "modern-bert": "bert"}.get(model)
    if other:
        shutil.copy(os.path.join(GOLDEN, model + ".gguf"), tmp_path / "m.gguf")
        shutil.copy(os.path.join(GOLDEN, other + ".npz"), tmp_path / "m.npz")
        r = run("check", str(tmp_path / "m.gguf"), "--device", "cpu")
        assert r.returncode == 1 and "WRONG" in r.stdout


def test_check_without_reference(tmp_path):
    """A random encoder knows no meanings; the questions are asked all the same."""
    shutil.copy(os.path.join(GOLDEN, "modern-bert.gguf"), tmp_path / "m.gguf")
    r = run("check", str(tmp_path / "m.gguf"), "--device", "cpu")
    assert r.returncode in (0, 1) and "of 4 as expected" in r.stdout
