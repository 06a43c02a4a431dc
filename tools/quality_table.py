#!/usr/bin/env python3
"""The tables of docs/quality.md: what quantising costs, as divergence from the source's own predictions.

    tools/quality_table.py --model M.gguf [--model N.gguf] --text A.txt --text pydoc:0 --importance pydoc:1
                           [--llama-quantize PATH] [--types Q4_0,Q4_K_M] [--chunks 4,6] [--work DIR] [--output FILE.md]

For each model two tables: the 4-bit routes (Q4_0, Q4_K_M, Hadamard-rotated, and ours, with f32 and with 4-bit
activations), and each type of `1bit quantize` beside llama.cpp's own quantiser.

The source is M as F32: a model that was quantised before is a fine source here, its weights are taken as exact.
Base logits and comparisons run with f32 activations and caches, so that only what a row names differs. Both
quantisers get the same source and are judged by the same program on the same texts. `pydoc:0` and `pydoc:1` are two
parts of Python's own documentation (pydoc_data.topics), a text that every machine has; the one is not in the other.
With --work what was measured is kept there, and a second run goes on where the first one stopped.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TYPES = "Q8_0,Q6_K,Q5_K_M,Q5_K_S,Q5_1,Q5_0,Q4_K_M,Q4_K_S,IQ4_NL,IQ4_XS,Q4_1,Q4_0,Q3_K_L,Q3_K_M,Q3_K_S,Q2_K"
COVARIANCE = "2048"  # columns of a block of products: whole rows of small models
#: name, command, options, importance; what the routes are made of
ROUTES = [
    ("Q4_0", "quantize", ["Q4_0"], False),
    ("Q4_K_M", "quantize", ["Q4_K_M"], False),
    ("Q4_K_M, importance", "quantize", ["Q4_K_M"], True),
    ("H32 (`1bit rotate`)", "rotate", [], False),
    ("**ours**: H32, compensated", "rotate", [], True),
    ("**ours**, `ffn_down` Q8_0", "rotate", ["--tensor-type", "ffn_down=Q8_0"], True),
    ("**ours**, Q5_0 compensated", "quantize", ["Q5_0"], True),
]


def run(*args):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"quality_table: {' '.join(map(str, args))}\n{done.stderr[-2000:]}")
    return done.stdout


def python_docs(half):
    import pydoc_data.topics
    topics = pydoc_data.topics.topics
    names = sorted(topics)
    return "\n".join(topics[n] for i, n in enumerate(names) if (i % 4 == 0) == (half == "0"))


class Bench:
    """One model: its source, base logits, importance, and the figures that were measured."""

    def __init__(self, args, model, folder):
        self.args, self.model = args, model
        self.name = os.path.splitext(os.path.basename(model))[0]
        self.folder = os.path.join(folder, self.name)
        os.makedirs(self.folder, exist_ok=True)
        self.program = args.program
        self.known = self.path("figures.json")
        self.figures = json.load(open(self.known, encoding="utf8")) if os.path.exists(self.known) else {}
        self.source = self.make("source.gguf", lambda to: run(self.program, "quantize", model, to, "F32", "--allow-requantize", "-q"))
        self.texts = [self.text(t) for t in args.text]
        self.bases = [self.make(f"{i}.base", lambda to, i=i, t=t: run(
            self.program, "perplexity", "-m", self.source, "-f", t, "--exact", "--base", to, "-q", "--chunks", args.chunks[i]))
            for i, t in enumerate(self.texts)]
        self.imatrix = self.make("imatrix.gguf", lambda to: run(
            self.program, "imatrix", "-m", self.source, "-f", self.text(args.importance), "-o", to, "-q", "--covariance", COVARIANCE,
            "--chunks", args.importance_chunks)) if args.importance else None

    def path(self, name):
        return os.path.join(self.folder, name)

    def make(self, name, how):
        path = self.path(name)
        if not os.path.exists(path):
            how(path + ".new")
            os.rename(path + ".new", path)
        return path

    def text(self, name):
        if not name.startswith("pydoc:"):
            return name
        path = self.path(name.replace(":", "") + ".txt")
        with open(path, "w", encoding="utf8") as f:
            f.write(python_docs(name[6:]))
        return path

    def bits(self, model):
        info = json.loads(run(self.program, "info", "--json", model))
        n = 0
        for t in info["tensors"]:
            k = 1
            for d in t["shape"]:
                k *= d
            n += k
        return 8 * sum(t["bytes"] for t in info["tensors"]) / n

    def judge(self, key, make, act4=False):
        """{"bits", "texts": [kld's JSON for each text]} of the file that `make(path)` writes; act4: also with 4-bit activations."""
        wanted = [key] + ([key + " act4"] if act4 else [])
        if not all(k in self.figures for k in wanted):
            path = self.path("trial.gguf")
            make(path)
            for k in wanted:
                options = ["--exact"] + (["--act4", "all"] if k != key else [])
                self.figures[k] = {"bits": self.bits(path), "texts": [
                    json.loads(run(self.program, "kld", "-m", path, "--base", b, *options, "--json", "-q")) for b in self.bases]}
                print(f"{self.name}: {k}: " + ", ".join(f"{t['kld']['value']:.4f}" for t in self.figures[k]["texts"]),
                      file=sys.stderr, flush=True)
            os.unlink(path)
            with open(self.known, "w", encoding="utf8") as f:
                json.dump(self.figures, f)
        return [self.figures[k] for k in wanted]

    def ours(self, command, options, importance):
        extra = ["--imatrix", self.imatrix] if importance else []
        return lambda to: run(self.program, command, self.source, to, *options, *extra, "-q")

    def peer(self, kind):
        return lambda to: run(self.args.llama_quantize, self.source, to, kind)


def figures(result, ppl):
    out = []
    for t in result["texts"]:
        out += [f"{t['kld']['value']:.4f} ± {t['kld']['error']:.4f}", f"{100 * t['top1']['value']:.1f}"]
        if ppl:
            out.append(f"{t['ppl']['value']:.3f}")
    return out


def line(cells):
    return "| " + " | ".join(cells) + " |"


def routes(bench):
    names = [os.path.basename(t) for t in bench.args.text]
    lines = [line(["file", "bits", "activations"] + [x for n in names for x in (f"KLD ({n})", "top-1 %", "PPL")])]
    lines.append("|---" * (6 if len(names) == 1 else 3 + 3 * len(names)) + "|")
    for name, command, options, importance in ROUTES:
        if importance and not bench.imatrix:
            continue
        key = " ".join([command, *options, "imatrix" if importance else ""])
        exact, *act4 = bench.judge(key, bench.ours(command, options, importance), command == "rotate")
        for activations, result in [("f32", exact)] + [("4 bits", r) for r in act4]:
            lines.append(line([name, f"{result['bits']:.2f}", activations] + figures(result, True)))
    return lines


def types(bench):
    names = [os.path.basename(t) for t in bench.args.text]
    head = ["type", "bits"] + [x for n in names for x in (f"KLD, ours ({n})", "top-1 %", "KLD, llama.cpp", "top-1 %", "ratio")]
    lines = [line(head), "|---" * len(head) + "|"]
    for kind in [k for k in bench.args.types.split(",") if k]:
        ours, = bench.judge(f"quantize {kind} ", bench.ours("quantize", [kind], False))
        peer = bench.judge(f"llama.cpp {kind}", bench.peer(kind))[0] if bench.args.llama_quantize else None
        cells = [kind, f"{ours['bits']:.2f}"]
        for i in range(len(names)):
            mine, other = ours["texts"][i], peer and peer["texts"][i]
            cells += figures({"texts": [mine]}, False) + (figures({"texts": [other]}, False) if peer else ["–", "–"])
            cells.append(f"{mine['kld']['value'] / other['kld']['value']:.2f}" if peer else "–")
        lines.append(line(cells))
    return lines


def report(bench):
    args = bench.args
    counts = ", ".join(f"{os.path.basename(t)} {r['n']}" for t, r in zip(args.text, next(iter(bench.figures.values()))["texts"]))
    ppl = ", ".join(f"{r['ppl_base']['value']:.3f}" for r in next(iter(bench.figures.values()))["texts"])
    out = [f"### {bench.name}", "", f"Positions: {counts}; perplexity of the source {ppl}" +
           (f"; importance and products from {args.importance_chunks} chunks of {os.path.basename(args.importance)}" if bench.imatrix else "") + ".", ""]
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--model", action="append", required=True, metavar="FILE.gguf")
    p.add_argument("--text", action="append", required=True, metavar="FILE")
    p.add_argument("--importance", metavar="FILE", help="text for importance and products of columns")
    p.add_argument("--importance-chunks", default="60", metavar="N")
    p.add_argument("--types", default=TYPES, help="of the second table; empty: none")
    p.add_argument("--no-routes", action="store_true", help="leave the first table out")
    p.add_argument("--chunks", default="4", metavar="N,...", help="of 512 tokens, of each text")
    p.add_argument("--program", default=os.path.join(ROOT, "build", "1bit"))
    p.add_argument("--llama-quantize", metavar="PATH")
    p.add_argument("--work", metavar="DIR", help="keep what was made and measured here")
    p.add_argument("--output", metavar="FILE.md")
    args = p.parse_args()
    args.chunks = (args.chunks.split(",") * len(args.text))[:len(args.text)]
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        benches = [Bench(args, m, args.work or scratch) for m in args.model]
        for wanted, title, table in ((not args.no_routes, "4-bit routes", routes), (bool(args.types), "Types", types)):
            if not wanted:
                continue
            lines += [f"## {title}", ""]
            for bench in benches:
                rows = table(bench)
                lines += report(bench) + rows + [""]
    text = "\n".join(lines)
    if args.output:
        with open(args.output, "w", encoding="utf8") as f:
            f.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
