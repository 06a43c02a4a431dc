"""Commands that need logits refuse an encoder by what it is; none of them reads what was not computed."""
import os
import subprocess

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
