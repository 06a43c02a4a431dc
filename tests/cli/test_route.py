"""1bit classify: the byte gate, typed questions, published folders, and the shipped scorer on labelled cases."""
import json
import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("ONEBIT_BIN", os.path.join(ROOT, "build", "1bit"))
DATA = os.path.join(ROOT, "tests", "data")
LAYA = os.path.join(DATA, "golden", "laya.gguf")
CLASSES = ["code", "prose", "short", "long_doc"]


def classify(*args, text=None):
    return subprocess.run([PROGRAM, "classify", *args], capture_output=True, text=True, timeout=120, input=text)


def test_byte_gate():
    """Row C3: 1,023 bytes are for the model, 1,024 are a long_doc without it; bytes, not characters."""
    for letter in ("a", "é", "日", "😀"):
        n = 1024 // len(letter.encode())
        assert classify("--laya-model", LAYA, text=letter * n + "b" * (1024 - n * len(letter.encode()))).stdout == "long_doc 1.00\n"
        assert not classify("--laya-model", LAYA, text=letter * (n - 1)).stdout.startswith("long_doc")


def test_json_lists():
    lists = ["hello", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], [{"role": "user", "content": "x" * 1024}]]
    r = classify("--json", "--laya-model", LAYA, text=json.dumps(lists))
    assert (r.returncode, r.stderr) == (0, "")
    out = json.loads(r.stdout)
    assert [sorted(o) for o in out] == [["class", "confidence", "probabilities"]] * 3
    for o in out[:2]:
        assert abs(sum(o["probabilities"].values()) - 1) < 1e-4
        assert o["class"] == max(o["probabilities"], key=o["probabilities"].get)
        assert 0 <= o["confidence"] <= 1
    assert out[2] == {"class": "long_doc", "confidence": 1, "probabilities": {"long_doc": 1}}
    assert classify("--json", "--laya-model", LAYA, text="{}").returncode == 1
    assert "conversation 1" in classify("--json", "--laya-model", LAYA, text='["a", [{"content": 5}]]').stderr


@pytest.mark.parametrize("flat", [False, True])
def test_published_folder(tmp_path, flat):
    """The same weights as a GGUF and as the folder that is published give the same answers."""
    folder = tmp_path / "typed-decisions"
    subprocess.run([sys.executable, os.path.join(ROOT, "tests", "tools", "make_laya_folder.py"), LAYA, str(folder), *(["--flat"] if flat else [])], check=True)
    text = json.dumps(["hello there", "write me a poem, please, about the sea", [{"role": "user", "content": "été à la plage"}]])
    a, b = (classify("--json", "--exact", "--laya-model", m, text=text) for m in (LAYA, str(folder)))
    assert (b.returncode, b.stdout) == (0, a.stdout)
    for kind, options in (("choice", ["a", "b"]), ("score", ["bad", "fair", "good"]), ("noul", None)):
        q = tmp_path / "q.json"
        q.write_text(json.dumps({"type": kind, "instructions": "Which of these is it?", **({"options": options} if options else {})}))
        a, b = (classify("--json", "--exact", "--question", str(q), "--laya-model", m, "some text") for m in (LAYA, str(folder)))
        assert (b.returncode, b.stdout) == (0, a.stdout)
        assert len(json.loads(b.stdout)["probabilities"]) == (2 if kind != "score" else 3)


def test_errors(tmp_path):
    assert "decision head" in classify("--laya-model", os.path.join(DATA, "golden", "bert.gguf"), "hi").stderr
    q = tmp_path / "q.json"
    q.write_text('{"type": "choice", "instructions": "?", "options": ["one"]}')
    r = classify("--laya-model", LAYA, "--question", str(q), "hi")
    assert r.returncode == 1 and "two entries" in r.stderr
    assert classify("--laya-model", LAYA, "--question", str(tmp_path / "none"), "hi").returncode == 1
