#!/usr/bin/env python3
"""Accuracy of a routing scorer, as the program runs it: evaluate.py --model FILE SET ... [--errors N]

SET is a file of generate.py (.jsonl) or of labelled cases (.json, {"cases": [{"messages", "class"}]}). Prints accuracy,
the confusion matrix (rows: truth) and accuracy by language. ONEBIT_BIN names the program (default: build/1bit).
"""
import argparse
import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("ONEBIT_BIN", os.path.join(ROOT, "build", "1bit"))


def read(path):
    if path.endswith(".json"):
        return [(c["messages"], c["class"], "") for c in json.load(open(path, encoding="utf8"))["cases"]]
    return [(d["messages"], d["label"], d.get("lang", "")) for d in map(json.loads, open(path, encoding="utf8"))]


def classify(conversations, model=None, options=()):
    args = [PROGRAM, "classify", "--json", *(["--laya-model", model] if model else []), *options]
    r = subprocess.run(args, input=json.dumps(conversations), capture_output=True, text=True, check=True)
    return json.loads(r.stdout)


def report(rows, answers, errors=0):
    classes = sorted({c for _, c, _ in rows} | {a["class"] for a in answers})
    table = {(t, p): 0 for t in classes for p in classes}
    lang = {}
    for (messages, label, l), a in zip(rows, answers):
        ok = a["class"] == label
        table[label, a["class"]] += 1
        n = lang.setdefault(l, [0, 0])
        n[0] += ok
        n[1] += 1
        if not ok and errors > 0:
            errors -= 1
            print(f"  {label} taken for {a['class']} ({a['confidence']:.2f}): {messages[-1]['content'][:150]!r}")
    right = sum(table[c, c] for c in classes)
    print(f"{right} of {len(rows)} right ({100 * right / len(rows):.2f} %)")
    print("truth \\ answer " + " ".join(f"{c:>9}" for c in classes))
    for t in classes:
        print(f"{t:>14} " + " ".join(f"{table[t, p]:9}" for p in classes))
    if len(lang) > 1:
        print(", ".join(f"{l} {100 * n[0] / n[1]:.1f} %" for l, n in sorted(lang.items())))
    return right / len(rows)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("sets", nargs="+")
    ap.add_argument("--model")
    ap.add_argument("--device", default="cpu")
    ap.add_argument("--errors", type=int, default=0, help="also print so many wrong answers")
    a = ap.parse_args()
    for path in a.sets:
        rows = read(path)
        print(f"{path}:")
        report(rows, classify([m for m, _, _ in rows], a.model, ["--device", a.device]), a.errors)


if __name__ == "__main__":
    main()
