#!/usr/bin/env python3
"""Time an encoder's shape in PyTorch (transformers, random weights) and in `1bit bench`, interleaved.

    encoder_torch.py --onebit build/1bit --shape modernbert-large -m modernbert-large-Q8_0.gguf…
                     [--tokens 64,128] [-t 1,2] [--rounds 5] [--dtypes f32,bf16] [--json OUT]

Makes one text of so many tokens, whole, in one step: median milliseconds of each program over the rounds, and
the ratio of the medians. Needs torch and transformers. The GGUF files come from tools/make_random_gguf.py with
the preset of the same name.
"""
import argparse
import json
import statistics
import subprocess
import time


def build(shape, dtype):
    import torch
    from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel
    modern = {"modernbert-base": (768, 1152, 12, 22), "modernbert-large": (1024, 2624, 16, 28)}
    if shape == "minilm":
        m = BertModel(BertConfig(hidden_size=384, intermediate_size=1536, num_attention_heads=12, num_hidden_layers=6))
    else:
        d, ff, heads, layers = modern[shape]
        m = ModernBertModel(ModernBertConfig(hidden_size=d, intermediate_size=ff, num_attention_heads=heads,
                                             num_hidden_layers=layers))
    return m.eval().to({"f32": torch.float32, "bf16": torch.bfloat16}[dtype])


def torch_ms(model, n, reps):
    import torch
    ids = torch.randint(5, 30000, (1, n))
    times = []
    with torch.inference_mode():
        for _ in range(reps + 2):
            t0 = time.perf_counter()
            model(input_ids=ids)
            times.append(time.perf_counter() - t0)
    return statistics.median(times[2:]) * 1e3


def onebit_ms(program, path, threads, n, reps):
    out = subprocess.run([program, "bench", "-m", path, "-t", str(threads), "-p", str(n), "-n", "0", "-r", str(reps),
                          "--device", "cpu", "--json"], capture_output=True, text=True, check=True).stdout
    return n * 1e3 / json.loads(out)["tests"][0]["tok_per_s"]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--onebit", default="build/1bit")
    p.add_argument("--shape", required=True, choices=["minilm", "modernbert-base", "modernbert-large"])
    p.add_argument("-m", "--model", action="append", required=True)
    p.add_argument("--tokens", default="64,128")
    p.add_argument("-t", "--threads", default="1")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--reps", type=int, default=7, help="texts of a round; its figure is their median")
    p.add_argument("--dtypes", default="f32,bf16")
    p.add_argument("--json")
    a = p.parse_args()
    import torch
    models = {d: build(a.shape, d) for d in a.dtypes.split(",")}
    rows = []
    for threads in map(int, a.threads.split(",")):
        torch.set_num_threads(threads)
        for n in map(int, a.tokens.split(",")):
            ms = {k: [] for k in [*models, *a.model]}
            for i in range(a.rounds):
                jobs = [(k, lambda k=k: torch_ms(models[k], n, a.reps)) for k in models]
                jobs += [(k, lambda k=k: onebit_ms(a.onebit, k, threads, n, a.reps)) for k in a.model]
                for k, f in jobs if i % 2 == 0 else reversed(jobs):
                    ms[k].append(f())
            ms = {k: statistics.median(v) for k, v in ms.items()}
            for path in a.model:
                row = {"shape": a.shape, "file": path.rsplit("/", 1)[-1], "tokens": n, "threads": threads, "ms": ms[path],
                       **{f"torch_{d}_ms": ms[d] for d in models}, **{f"x_{d}": ms[path] / ms[d] for d in models}}
                rows.append(row)
                print(f"{row['file']:34} {n:4} tokens {threads} threads {ms[path]:8.2f} ms; " +
                      ", ".join(f"PyTorch {d} {ms[d]:8.2f} ms = {ms[path] / ms[d]:.2f} of it" for d in models), flush=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
