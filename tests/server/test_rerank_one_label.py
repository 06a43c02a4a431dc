"""/v1/rerank over a classifier with one label: the score of (query, document) pairs through a sigmoid.

The model is the golden classifier with one row of its last matrix kept. What is expected is made from the
mean vector that `1bit embed` gives of the joined pair, and the head written out here.
"""
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from conftest import PROGRAM, Server

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(os.path.dirname(HERE), "data", "golden")
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "tools"))

gguf = pytest.importorskip("gguf", reason="needs gguf to change a model file")

QUERY = "what is a list"
DOCS = ["a list holds values", "def main(): return 0", "the import of os", "x"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("rerank") / "one-label.gguf")
    r = gguf.GGUFReader(os.path.join(GOLDEN, "modern-bert-cls.gguf"))
    w = gguf.GGUFWriter(path, "modern-bert")
    for key, field in r.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "modern-bert.classifier.output_labels"):
            continue
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            w.add_key_value(key, field.contents(), kind, sub_type=field.types[-1])
        else:
            w.add_key_value(key, field.contents(), kind)
    head = {}
    for t in r.tensors:
        x = np.array(t.data)
        if t.name.startswith("cls.output"):
            x = x[2:3]
        if t.name.startswith("cls"):
            head[t.name] = x.astype(np.float64)
        w.add_tensor(t.name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path, head


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def expected(path, head, text):
    r = subprocess.run([PROGRAM, "embed", "-m", path, "--pooling", "mean", "--no-normalize", "--device", "cpu", text],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr
    x = np.array([float(v) for v in r.stdout.split()])
    x = gelu(head["cls.weight"] @ x + head.get("cls.bias", 0))
    x = (x - x.mean()) / math.sqrt(x.var() + 1e-5) * head["cls.norm.weight"] + head.get("cls.norm.bias", 0)
    return 1 / (1 + math.exp(-float(head["cls.output.weight"][0] @ x + head["cls.output.bias"][0])))


def test_scores_are_sigmoids_of_pairs(model):
    path, head = model
    s = Server([PROGRAM, "serve", "-m", path, "--port", "0", "--device", "cpu"])
    try:
        assert [m["role"] for m in s.get("/v1/models")[1]["data"]] == ["rerank"]
        sep = s.post("/tokenize", {"content": "", "add_special": True})[1]["tokens"]
        names = [s.post("/detokenize", {"tokens": [t]})[1]["content"] for t in sep]
        status, r = s.post("/v1/rerank", {"query": QUERY, "documents": DOCS})
        assert status == 200
        results = r["results"]
        scores = [x["relevance_score"] for x in results]
        assert scores == sorted(scores, reverse=True) and all(0 < x < 1 for x in scores)
        assert max(scores) - min(scores) > 1e-3
        for x in results:
            # "<start> query <end> document <end>": embed adds what stands around
            want = expected(path, head, QUERY + names[-1] + DOCS[x["index"]])
            assert abs(x["relevance_score"] - want) < 1e-5, (DOCS[x["index"]], x["relevance_score"], want)
    finally:
        s.stop()
