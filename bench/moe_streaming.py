#!/usr/bin/env python3
"""Speed and memory of a mixture whose experts are streamed, by the share of them that is kept in memory.

    bench/moe_streaming.py --onebit build/1bit -m moe.gguf [--shares 100,50,25,10] [-p 512 -n 64 -r 3] [--rounds 3]

Every share is a process of its own (1bit bench --json --moe-slots N), all shares one after the other in each round,
so that what the machine does meanwhile falls on all of them; tables have medians of the rounds. 100 is everything
loaded, without streaming. Experts are read past the page cache, so what is in it does not matter, but for the load.
A model to try it on: tools/make_random_gguf.py --preset qwen3moe-30b-a3b --layers 12 --type Q4_K_M --quick. Random
weights choose experts evenly, which is the worst case for any cache; real models do not.
"""
import argparse
import json
import statistics
import subprocess
import sys


def run(args, slots, extra=()):
    words = [args.onebit, "bench", "-m", args.model, "--device", args.device, "-p", str(args.prompt), "-n", str(args.gen), "-r",
             str(args.repetitions), "-t", str(args.threads), "--json", "-q", *extra]
    if slots:
        words += ["--moe-slots", str(slots)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stderr}")
    return json.loads(done.stdout)


def row(share, runs):
    def speed(name):
        found = [t["tok_per_s"] for r in runs for t in r["tests"] if t["name"].startswith(name)]
        return f"{statistics.median(found):8.1f}" if found else "       -"

    last = runs[-1].get("moe")
    rss = statistics.median(r["max_rss_bytes"] for r in runs) / 2**20
    text = f"{share:5} {speed('pp')} {speed('tg')} {rss:9.0f}"
    if last:
        wanted = last["hits"] + last["misses"]
        text += (f" {last['slots']:7} {last['slot_bytes'] / 2**20:9.0f} {100 * last['hits'] / max(wanted, 1):7.1f}"
                 f" {100 * last['guesses_right'] / max(last['guesses'], 1):7.1f} {last['read_bytes'] / 2**30:8.1f}")
    return text


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--onebit", default="build/1bit")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--device", default="cpu")
    p.add_argument("--shares", default="100,50,25,10", help="percent of the experts that are kept")
    p.add_argument("-p", "--prompt", type=int, default=512)
    p.add_argument("-n", "--gen", type=int, default=64)
    p.add_argument("-r", "--repetitions", type=int, default=2)
    p.add_argument("-t", "--threads", type=int, default=0)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--no-prefetch", action="store_true", help="also measure without reading ahead")
    args = p.parse_args()

    info = json.loads(subprocess.run([args.onebit, "info", args.model, "--json"], capture_output=True, text=True, check=True).stdout)
    experts = sum(t["shape"][2] for t in info["tensors"] if t["name"].endswith("ffn_down_exps.weight"))
    if not experts:
        sys.exit("the model has no experts")
    todo = []
    for share in map(int, args.shares.split(",")):
        slots = 0 if share >= 100 else max(1, experts * share // 100)
        todo.append((f"{share}", slots, []))
        if slots and args.no_prefetch:
            todo.append((f"{share}-", slots, ["--no-moe-prefetch"]))
    results = {name: [] for name, _, _ in todo}
    for k in range(args.rounds):
        for name, slots, extra in todo:
            results[name].append(run(args, slots, extra))
            print(f"round {k + 1}, {name} %: {row(name, results[name][-1:])}", file=sys.stderr, flush=True)
    print(f"{info['bytes'] / 2**20:.0f} MiB, {experts} experts; - is without reading ahead")
    print(" kept       pp       tg   RSS MiB   slots slots MiB   hit %  guess %  GiB read")
    for name, _, _ in todo:
        print(row(name, results[name]))


if __name__ == "__main__":
    main()
