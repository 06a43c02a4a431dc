#!/usr/bin/env python3
"""A baseline for the routing scorer: hashed character 1..4-grams and words into a linear model (needs NumPy).

    baseline.py TRAIN.jsonl ... --test SET ... [--n 40000]
"""
import argparse
import zlib

import numpy as np

from evaluate import read, report

BITS = 18
CLASSES = ["code", "prose", "short"]


def features(messages):
    text = "\n".join(m["content"] if isinstance(m["content"], str) else "".join(p.get("text", "") for p in m["content"]) for m in messages)
    text = "^" + text[-700:].lower() + "$"
    grams = {text[i:i + n] for n in (1, 2, 3, 4) for i in range(len(text) - n + 1)}
    words = text.split()
    grams |= {"w " + w for w in words} | {"b " + a + " " + b for a, b in zip(words, words[1:])}
    ids = np.fromiter((zlib.crc32(g.encode()) >> (32 - BITS) for g in grams), np.int64)
    return ids, 1 / np.sqrt(len(ids))


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("train", nargs="+")
    ap.add_argument("--test", nargs="+", required=True)
    ap.add_argument("--n", type=int, default=40000)
    a = ap.parse_args()
    rows = [r for f in a.train for r in read(f) if r[1] in CLASSES]
    rng = np.random.default_rng(0)
    rng.shuffle(rows)
    rows = rows[:a.n]
    x = [features(m) for m, _, _ in rows]
    y = [CLASSES.index(l) for _, l, _ in rows]
    w, h = np.zeros((1 << BITS, 3), np.float32), np.full((1 << BITS, 1), 1e-6, np.float32)
    for epoch in range(4):
        for i in rng.permutation(len(x)):
            ids, scale = x[i]
            z = w[ids].sum(0) * scale
            p = np.exp(z - z.max())
            p /= p.sum()
            p[y[i]] -= 1
            g = p * scale
            h[ids] += float(g @ g)                        # AdaGrad
            w[ids] -= 0.5 * g / np.sqrt(h[ids])
    for path in a.test:
        test = read(path)
        n_bytes = lambda m: len("\n".join(x["content"] if isinstance(x["content"], str) else "\n".join(p.get("text", "") for p in x["content"]) for x in m).encode())
        answers = []
        for m, _, _ in test:
            ids, scale = features(m)
            z = w[ids].sum(0) * scale
            answers.append({"class": "long_doc" if n_bytes(m) >= 1024 else CLASSES[int(z.argmax())], "confidence": 0})
        print(f"{path}:")
        report(test, answers)


if __name__ == "__main__":
    main()
