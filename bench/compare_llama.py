#!/usr/bin/env python3
"""Compare `1bit bench` with llama.cpp's `llama-bench` on the same files, interleaved in one run.

    compare_llama.py --onebit build/1bit --llama-bench PATH -m FILE... [-t 1,2] [--rounds 5]
                     [--tests pp512,tg128] [--json OUT]

Each round runs both programs one after the other for every file, thread count and test (the order
alternates), so that a drift of the machine's speed hits both. The figure of a program is the median
of its rounds; the ratio is the median of the rounds' ratios. The CPU time that other processes used
meanwhile is printed beside each row: a row with much of it should be measured again.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys


def busy_ticks():
    """Ticks of all processors spent working, and those of finished children of this process."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:]]
    return v[0] + v[1] + v[2] + v[5] + v[6] + v[7], sum(os.times()[2:4])


def run(argv, env=None):
    r = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if r.returncode != 0:
        sys.exit(f"{' '.join(argv)} failed:\n{r.stderr[-2000:]}")
    return r.stdout


def split(test):
    kind, n = re.fullmatch(r"(pp|tg)(\d+)", test).groups()
    return ("-p", n, "-n", "0") if kind == "pp" else ("-p", "0", "-n", n)


def onebit(program, model, threads, test, reps):
    out = json.loads(run([program, "bench", "-m", model, "-t", str(threads), *split(test), "-r", str(reps),
                          "--device", "cpu", "--json"]))
    return out["tests"][0]["tok_per_s"]


def llama(program, model, threads, test, reps):
    out = json.loads(run([program, "-m", model, "-t", str(threads), *split(test), "-r", str(reps), "-o", "json",
                          "-ngl", "0", "-fa", "1"]))
    return statistics.median(out[0]["samples_ts"])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--onebit", default="build/1bit")
    p.add_argument("--llama-bench", required=True)
    p.add_argument("-m", "--model", action="append", required=True)
    p.add_argument("-t", "--threads", default="1,2")
    p.add_argument("--tests", default="pp512,tg128")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--json")
    a = p.parse_args()
    rows = []
    print(f"{'model':34} {'test':8} {'thr':>3} {'1bit':>9} {'llama.cpp':>9} {'ratio':>6} {'(min-max)':>13} {'others':>7}")
    for model in a.model:
        for threads in map(int, a.threads.split(",")):
            for test in a.tests.split(","):
                ours, theirs = [], []
                t0, c0 = busy_ticks()
                w0 = os.times()[4]
                for i in range(a.rounds):
                    pair = [lambda: ours.append(onebit(a.onebit, model, threads, test, a.reps)),
                            lambda: theirs.append(llama(a.llama_bench, model, threads, test, a.reps))]
                    for f in pair if i % 2 == 0 else reversed(pair):
                        f()
                t1, c1 = busy_ticks()
                tick = os.sysconf("SC_CLK_TCK")
                others = max(0.0, ((t1 - t0) / tick - (c1 - c0)) / (os.times()[4] - w0))
                ratios = [x / y for x, y in zip(ours, theirs)]
                row = {"model": os.path.basename(model), "test": test, "threads": threads,
                       "onebit": statistics.median(ours), "llama": statistics.median(theirs),
                       "ratio": statistics.median(ratios), "ratios": ratios, "onebit_all": ours,
                       "llama_all": theirs, "other_cpus": others}
                rows.append(row)
                print(f"{row['model'][:34]:34} {test:8} {threads:3} {row['onebit']:9.1f} {row['llama']:9.1f} "
                      f"{row['ratio']:6.2f} {min(ratios):6.2f}-{max(ratios):<6.2f} {others:7.2f}", flush=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
