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


SHIPPED = os.path.join(ROOT, "models", "laya", "router.gguf")


def test_accuracy_of_the_shipped_scorer():
    """The labelled cases as models/laya/README.md reports them (row C1 asks for 191), and the boundary cases of the byte
    gate all right."""
    data = json.load(open(os.path.join(DATA, "route_cases.json"), encoding="utf8"))
    for cases, least in ((data["cases"], 191), (data["boundary"], len(data["boundary"]))):
        wanted = [c.get("class") or ("long_doc" if c["long_doc"] else "other") for c in cases]
        r = classify("--json", "--laya-model", SHIPPED, text=json.dumps([c["messages"] for c in cases]))
        assert r.returncode == 0, r.stderr
        got = [o["class"] for o in json.loads(r.stdout)]
        table = {(w, g): sum(a == w and b == g for a, b in zip(wanted, got)) for w in [*CLASSES, "other"] for g in CLASSES}
        print("\ntruth \\ answer " + " ".join(f"{g:>9}" for g in CLASSES))
        for w in CLASSES:
            print(f"{w:>14} " + " ".join(f"{table[w, g]:9}" for g in CLASSES))
        if cases is data["cases"]:
            right = sum(a == b for a, b in zip(wanted, got))
        else:  # the gate is what is at stake: a long_doc or not
            right = sum((a == "long_doc") == (b == "long_doc") for a, b in zip(wanted, got))
        assert right >= least, f"{right} of {len(cases)}"


def test_classifier_refuses_other_questions(tmp_path):
    q = tmp_path / "q.json"
    q.write_text('{"type": "noul", "instructions": "Is it?"}')
    r = classify("--laya-model", SHIPPED, "--question", str(q), "hi")
    assert r.returncode == 1 and "need a Laya model" in r.stderr


def test_unigram_against_its_definition():
    """Ids of the shipped vocabulary, against the trainer's own segmentation (plain Python)."""
    from gguf import GGUFReader
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    import train_laya
    r = GGUFReader(SHIPPED)
    pieces, scores = r.fields["tokenizer.ggml.tokens"].contents(), r.fields["tokenizer.ggml.scores"].contents()
    newline = len(pieces) - 1
    assert pieces[newline] == "\n"
    tok = train_laya.Unigram([p if 4 <= i < newline else f"\0{i}" for i, p in enumerate(pieces)], scores, 3)
    texts = ["Hello, world!", "  two  spaces\tand a tab ", "", "\n\n", "def f(x):\n    return x ** 2", "Größe, naïve, Ærø, İstanbul", "光合成について詳しく説明してください。", "用Python写一个函数",
             "안녕하세요 세계", "كيف حالك؟", "नमस्ते दुनिया", "ﬁne ² ① ＦＵＬＬ … ½", "e\u0301 combining", "\u200bzero\u200bwidth", "😀😀 emoji 🙏", "a\u0007bell", "x" * 300, "ᚠᛇᚻ runes", "мир труд май", "<s> </s> <unk>", "¿Qué?\u00a0¡Sí!"]
    for t in texts:
        got = subprocess.run([PROGRAM, "tokenize", "-m", SHIPPED, "--json", "--no-special"], input=t, capture_output=True, text=True, check=True)
        assert json.loads(got.stdout) == [0] + tok.encode(t, newline) + [2], repr(t)
