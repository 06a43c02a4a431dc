#!/usr/bin/env python3
"""How fast `1bit convert` is beside cp, which also only copies: on the same file, with the same state of the page cache.

    bench/convert_speed.py --onebit build/1bit -m model.gguf [--folder DIR] [--rounds 7] [--cold]

A package is synced before it gets its name, so the fair peer is cp and then `sync FILE`; cp alone returns while the data
is still in memory, and is printed, too. Rounds are interleaved, in turning order, and the target is removed and the
disk is quiet (sync) before each run. --cold drops the page cache before each run (as root).
"""
import argparse
import os
import statistics
import subprocess
import time


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--onebit", default="build/1bit")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--folder", help="where to write (default: beside the model)")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--cold", action="store_true")
    args = p.parse_args()
    to = os.path.join(args.folder or os.path.dirname(os.path.abspath(args.model)), "convert-speed.out")
    ways = {
        "cp": [["cp", args.model, to]],
        "cp + sync": [["cp", args.model, to], ["sync", to]],
        "1bit convert": [[args.onebit, "convert", args.model, to, "-q"]],
    }
    size = os.path.getsize(args.model)
    times = {name: [] for name in ways}
    ratios = {"cp": [], "cp + sync": []}
    names = list(ways)
    for k in range(args.rounds):
        for name in names[k % 3:] + names[:k % 3]:
            if os.path.exists(to):
                os.remove(to)
            if args.cold:
                subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=True)
            else:
                subprocess.run(["cat", args.model], stdout=subprocess.DEVNULL, check=True)
                os.sync()
            t = time.perf_counter()
            for command in ways[name]:
                subprocess.run(command, check=True)
            times[name].append(time.perf_counter() - t)
        for name in ratios:
            ratios[name].append(times[name][-1] / times["1bit convert"][-1])
    os.remove(to)
    print(f"{size / 1e6:.0f} MB, {'cold' if args.cold else 'warm'} page cache, medians of {args.rounds} rounds")
    for name in ways:
        print(f"{name:14} {size / 1e6 / statistics.median(times[name]):8.0f} MB/s  (slowest {size / 1e6 / max(times[name]):.0f})")
    for name, r in ratios.items():
        print(f"1bit convert / {name}: {statistics.median(r):.2f} of its speed ({min(r):.2f} to {max(r):.2f})")


if __name__ == "__main__":
    main()
