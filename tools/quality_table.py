#!/usr/bin/env python3
"""What each type costs: KLD, agreement and size of our quantiser's files and of llama.cpp's, as a table.

    tools/quality_table.py --model M.gguf --text A.txt [--text B.txt] [--imatrix-text C.txt]
                           [--llama-quantize PATH] [--types Q4_0,Q4_K_M] [--output docs/quality.md]

The source is M as F32 (a model that was quantised before is a fine source here: its weights are taken as exact).
Base logits and comparisons run with f32 activations and caches, so that only weights differ. Both quantisers get
the same source, types and importance file, and are judged by the same program on the same text.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TYPES = "Q8_0,Q6_K,Q5_K_M,Q5_K_S,Q5_1,Q5_0,Q4_K_M,Q4_K_S,IQ4_NL,IQ4_XS,Q4_1,Q4_0,Q3_K_L,Q3_K_M,Q3_K_S,Q2_K"
PURE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL")  # also measured with one type for all: no mix to hide in


def run(*args):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"quality_table: {' '.join(map(str, args))}\n{done.stderr[-2000:]}")
    return done.stdout


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.source = self.path("source.gguf")
        run(args.program, "quantize", args.model, self.source, "F32", "--allow-requantize", "-q")
        self.bases = []
        for i, text in enumerate(args.text):
            base = self.path(f"{i}.base")
            run(args.program, "perplexity", "-m", self.source, "-f", text, "--exact", "--base", base, "-q",
                "--chunks", args.chunks)
            self.bases.append(base)
        self.imatrix = None
        if args.imatrix_text:
            self.imatrix = self.path("imatrix.gguf")
            run(args.program, "imatrix", "-m", self.source, "-f", args.imatrix_text, "-o", self.imatrix, "-q")

    def path(self, name):
        return os.path.join(self.folder, name)

    def judge(self, model):
        """[{kld, top1, ppl_ratio}] for each text, and bits per weight."""
        out = [json.loads(run(self.args.program, "kld", "-m", model, "--base", b, "--exact", "--json", "-q"))
               for b in self.bases]
        info = json.loads(run(self.args.program, "info", "--json", model))
        n_bytes = sum(t["bytes"] for t in info["tensors"])
        n = 0
        for t in info["tensors"]:
            k = 1
            for d in t["shape"]:
                k *= d
            n += k
        os.unlink(model)
        return out, 8 * n_bytes / n

    def ours(self, kind, pure=False, imatrix=False):
        out = self.path("ours.gguf")
        run(self.args.program, "quantize", self.source, out, kind, "-q", *(["--pure"] if pure else []),
            *(["--imatrix", self.imatrix] if imatrix else []))
        return self.judge(out)

    def rotated(self):
        out = self.path("rotated.gguf")
        run(self.args.program, "rotate", self.source, out, "-q")
        return self.judge(out)

    def peer(self, kind, pure=False, imatrix=False):
        out = self.path("peer.gguf")
        run(self.args.llama_quantize, *(["--pure"] if pure else []), *(["--imatrix", self.imatrix] if imatrix else []),
            self.source, out, kind)
        return self.judge(out)


def cell(result):
    return f"{result['kld']['value']:.5f} ± {result['kld']['error']:.5f} | {100 * result['top1']['value']:.1f}"


def row(name, bench, ours, peer):
    (mine, bits), other = ours, peer and peer[0]
    cells = []
    for i in range(len(bench.bases)):
        cells.append(cell(mine[i]))
        cells.append(cell(other[i]) if other else "– | –")
        cells.append(f"{mine[i]['kld']['value'] / other[i]['kld']['value']:.2f}" if other else "–")
    return f"| {name} | {bits:.2f} | " + " | ".join(cells) + " |"


def table(bench, log):
    args = bench.args
    names = [os.path.basename(t) for t in args.text]
    head = "| type | bits | " + " | ".join(f"KLD, ours ({n}) | top-1 % | KLD, llama.cpp | top-1 % | ratio" for n in names) + " |"
    lines = [head, "|---" * (head.count("|") - 1) + "|"]

    def add(name, ours, peer):
        lines.append(row(name, bench, ours, peer))
        log(lines[-1])

    for kind in args.types.split(","):
        variants = [("", {})]
        if kind in PURE:
            variants.append((", pure", {"pure": True}))
        if bench.imatrix and kind not in ("Q8_0", "Q6_K"):
            variants.append((", importance", {"imatrix": True}))
        for note, options in variants:
            add(kind + note, bench.ours(kind, **options), bench.peer(kind, **options) if args.llama_quantize else None)
    if not args.no_rotate:
        add("H32 Q4_0 (`1bit rotate`)", bench.rotated(), None)
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--model", required=True)
    p.add_argument("--text", action="append", required=True, metavar="FILE")
    p.add_argument("--imatrix-text", metavar="FILE")
    p.add_argument("--types", default=TYPES)
    p.add_argument("--chunks", default="8", help="of 512 tokens, of each text")
    p.add_argument("--program", default=os.path.join(ROOT, "build", "1bit"))
    p.add_argument("--llama-quantize", metavar="PATH")
    p.add_argument("--no-rotate", action="store_true")
    p.add_argument("--output", metavar="FILE.md")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, folder)
        lines = table(bench, lambda line: print(line, file=sys.stderr, flush=True))
        counts = [json.loads(run(args.program, "kld", "-m", bench.source, "--base", b, "--exact", "--json", "-q"))["n"]
                  for b in bench.bases]
    text = ["# Quality of quantised files", "",
            "Made by `tools/quality_table.py` (its head says how); KLD in nats, mean ± standard error, against the source's "
            "logits; top-1: share of positions with the same likeliest token; ratio: our KLD over llama.cpp's. "
            "f32 activations on both sides.", "",
            f"Model {os.path.basename(args.model)}, weights taken as exact; " +
            ", ".join(f"{os.path.basename(t)}: {n} positions" for t, n in zip(args.text, counts)) +
            (f"; importance from {os.path.basename(args.imatrix_text)}" if args.imatrix_text else "") + ".", ""] + lines
    out = "\n".join(text) + "\n"
    if args.output:
        with open(args.output, "w", encoding="utf8") as f:
            f.write(out)
    else:
        sys.stdout.write(out)


if __name__ == "__main__":
    main()
