#!/usr/bin/env python3
"""What routing adds to the first turn of a conversation, and to later ones: route_overhead.py -m MODEL [-n 60] [--device NAME]

Two servers of the same model, one with --laya, asked in turn with the same new conversations: each once to one and once
to the other, in changing order. Prints medians and quartiles of the time to the first token, and of the differences.
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.environ.get("ONEBIT_BIN", os.path.join(ROOT, "build", "1bit"))
WORDS = "write explain what which how many list short story script table river code letter name city of the for in with about please and a to".split()


class Server:
    def __init__(self, *options):
        self.p = subprocess.Popen([PROGRAM, "serve", "-p", "0", *options], stderr=subprocess.PIPE, text=True)
        for line in self.p.stderr:
            if m := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.url = f"http://127.0.0.1:{m.group(1)}"
            if "ready:" in line:
                return
        raise SystemExit("the server did not start")

    def first_token_ms(self, messages):
        body = json.dumps({"messages": messages, "max_tokens": 1, "temperature": 0, "stream": True}).encode()
        req = urllib.request.Request(self.url + "/v1/chat/completions", data=body, headers={"Content-Type": "application/json"})
        t0 = time.perf_counter()
        with urllib.request.urlopen(req) as r:
            r.readline()
            ms = (time.perf_counter() - t0) * 1e3
            r.read()
            return ms, r.headers.get("X-1bit-Route")


def show(name, v):
    q = statistics.quantiles(v, n=4)
    print(f"{name:34} median {statistics.median(v):8.2f} ms   quartiles {q[0]:8.2f} {q[2]:8.2f}")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("-m", "--model", required=True)
    ap.add_argument("-n", type=int, default=60)
    ap.add_argument("--words", type=int, default=40, help="length of a conversation's first message")
    ap.add_argument("--device", default="cpu")
    a = ap.parse_args()
    r = random.Random(1)
    servers = {"off": Server("-m", a.model, "--device", a.device), "on": Server("-m", a.model, "--device", a.device, "--laya")}
    try:
        first, later = {"on": [], "off": []}, {"on": [], "off": []}
        for i in range(-4, a.n):
            text = f"{i} " + " ".join(r.choice(WORDS) for _ in range(a.words))
            for which in r.sample(["on", "off"], 2):
                ms, route = servers[which].first_token_ms([{"role": "user", "content": text}])
                ms2, again = servers[which].first_token_ms([{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And then?"}])
                if route != again:
                    raise SystemExit(f"the route changed: {route} then {again}")
                if i >= 0:
                    first[which].append(ms)
                    later[which].append(ms2)
        for name, v in (("first turn", first), ("second turn", later)):
            show(name + ", routing off", v["off"])
            show(name + ", routing on", v["on"])
            show(name + ", difference", [x - y for x, y in zip(v["on"], v["off"])])
    finally:
        for s in servers.values():
            s.p.terminate()
            s.p.wait()


if __name__ == "__main__":
    main()
