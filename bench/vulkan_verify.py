#!/usr/bin/env python3
"""Check the Vulkan device of this machine from end to end, as one JSON file: anyone with a GPU can run it.

    vulkan_verify.py --program build/1bit --golden tests/data/golden --out verify.json
                     [--devcts build/tests/devcts] [--device vulkan] [--model FILE] [--minilm FILE]
                     [--modernbert FILE] [--only golden,devcts,…] [--seconds N]

Steps (a step whose file is not given is left out, and the JSON says so):

    golden    every model of the folder against its reference logits
    devcts    the conformance suite of devices, buffers over 4 GiB where they fit
    faults    greedy text of --model with a lost device, memory that runs out, small allocations
    greedy    8 runs one after the other and 8 at once through the server: all the same text
    against   greedy text on the device and on the CPU, --exact: the same, but where the best two tokens are nearly equal
    cliff     decoding at depths 2,000 and 2,100: within 3 %
    depth     32 tokens behind 131,072, f16 cache and q8_0 cache
    load      time to load --model: with no cache of kernels, and once more
    encoders  milliseconds a text of 64 and 128 tokens: MiniLM's shape <= 1, ModernBERT-large's <= 3

Models with random weights come from tools/make_random_gguf.py. Exit status 1: a step failed.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

PROMPT = "Once upon a time there was a"


class Verify:
    def __init__(self, a):
        self.a = a
        self.t0 = time.monotonic()
        self.steps = {}

    def left(self):
        return self.a.seconds - (time.monotonic() - self.t0)

    def run(self, command, limit, env=None):
        """(exit code, stdout, stderr, seconds); 124 where it took too long."""
        t = time.monotonic()
        limit = max(1.0, min(limit, self.left()))
        try:
            r = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=limit,
                               env={**os.environ, **(env or {})})
            return r.returncode, r.stdout, r.stderr, time.monotonic() - t
        except subprocess.TimeoutExpired as e:
            text = [x.decode(errors="replace") if isinstance(x, bytes) else x or "" for x in (e.stdout, e.stderr)]
            return 124, text[0], text[1], time.monotonic() - t

    def onebit(self, command, options, limit, env=None):
        return self.run([self.a.program, command, "--device", self.a.device, *options], limit, env)

    def note(self, name, ok, **what):
        self.steps[name] = {"ok": ok, "seconds": round(time.monotonic() - self.t0, 1), **what}
        shown = {k: x for k, x in what.items() if k != "rows"}
        print(f"{self.steps[name]['seconds']:6.1f} s  {'ok    ' if ok else 'FAILED'} {name}: {json.dumps(shown)[:1500]}", flush=True)


def last_line(text):
    lines = [x for x in text.strip().splitlines() if x.strip()]
    return lines[-1][:300] if lines else ""


# --- steps ------------------------------------------------------------------------------------------------------


def golden(v):
    code, out, err, s = v.onebit("check", ["--all-golden", v.a.golden, "--json"], 60)
    try:
        rows = json.loads(out)
    except ValueError:
        return v.note("golden", False, code=code, error=last_line(err))
    bad = [r for r in rows if r["state"] != "ok"]
    v.note("golden", code == 0 and not bad, models=len(rows), not_ok=[[r["model"], r["state"], r["text"]] for r in bad],
           took=round(s, 1), rows=rows)


def devcts(v):
    """It compares everything itself, so the device need not test its kernels before."""
    code, out, err, s = v.run([v.a.devcts, v.a.device, *([v.a.devcts_filter] if v.a.devcts_filter else [])], 600,
                              {"OB_VK_SELFTEST": "0"})
    text = out + err
    v.note("devcts " + (v.a.devcts_filter or "all"), code == 0, passed=len(re.findall(r"^\[ *OK *\]|  OK", text, re.M)), code=code, took=round(s, 1),
           failed=re.findall(r"FAILED *\] *(test\S+)", text)[:20], why=re.findall(r"(?:ERROR|LINE) *\] (.*)", text)[:20],
           skipped=re.findall(r"SKIPPED *\] *(\S+)", text)[:20], last=last_line(text))


def faults(v):
    """The text must not change by what happens on the way; --exact, for a token that was decoded is computed anew as a part
    of a prompt, by other kernels."""
    options = ["--exact", "-m", v.a.model, "--raw", "-n", "48", "--temp", "0", "--ignore-eos", "-c", "512", "-q", "-p",
               PROMPT]
    code, want, err, _ = v.onebit("run", options, 20)
    if code != 0:
        return v.note("faults", False, error=last_line(err))
    cases = {"lost": {"OB_VK_LOSE_AFTER": "20"}, "no memory": {"OB_VK_NO_MEMORY_AFTER": "20"},
             "allocations of 64 MiB": {"OB_VK_MAX_ALLOC_MB": "64"}}
    result = {}
    for name, env in cases.items():
        code, out, err, s = v.onebit("run", options, 20, env)
        result[name] = "same" if code == 0 and out == want else last_line(err) or "another text"
    code, out, err, _ = v.onebit("run", options, 20, {"OB_VK_LOSE_AFTER": "20,5"})
    result["lost twice"] = "refused" if code != 0 and "twice" in err else f"exit {code}: {last_line(err)}"
    v.note("faults", all(x in ("same", "refused") for x in result.values()), **result)


class Server:
    """1bit serve on a free port."""
    def __init__(self, v, options):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.proc = subprocess.Popen([v.a.program, "serve", "-m", v.a.model, "--device", v.a.device, "--port", str(v.a.port),
                                      *options], stdout=self.log, stderr=self.log)
        self.url = f"http://127.0.0.1:{v.a.port}"
        for _ in range(400):
            try:
                urllib.request.urlopen(self.url + "/health", timeout=2).read()
                return
            except (urllib.error.URLError, OSError):
                if self.proc.poll() is not None:
                    break
                time.sleep(0.1)
        self.log.seek(0)
        raise RuntimeError("the server did not start: " + last_line(self.log.read()))

    def text(self, n=1):
        body = json.dumps({"prompt": PROMPT, "max_tokens": 64, "temperature": 0, "ignore_eos": True, "n": n})
        r = urllib.request.Request(self.url + "/v1/completions", body.encode(), {"Content-Type": "application/json"})
        return [c["text"] for c in json.loads(urllib.request.urlopen(r, timeout=60).read())["choices"]]

    def stop(self):
        self.proc.send_signal(signal.SIGTERM)
        try:
            self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()


def greedy(v):
    try:
        server = Server(v, ["--parallel", "8", "-c", "4096"])
    except RuntimeError as e:
        return v.note("greedy", False, error=str(e))
    try:
        single = [server.text()[0] for _ in range(8)]
        batch = server.text(8)
        several = [""] * 8

        def one(i):
            several[i] = server.text()[0]
        threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    except OSError as e:
        return v.note("greedy", False, error=str(e))
    finally:
        server.stop()

    def same(x, y):
        return sum(t == y for t in x)
    counts = {"single": same(single, single[0]), "one request of 8": same(batch, batch[0]),
              "8 requests": same(several, several[0]), "8 requests like single": same(several, single[0])}
    v.note("greedy", counts["single"] == 8 and counts["one request of 8"] == 8 and bool(single[0]), **counts,
           text=single[0][:80])


def against(v):
    for path in v.a.against:
        name = "against " + os.path.basename(path)
        code, out, err, s = v.run([v.a.program, "check", path, "--device", v.a.device, "--against", "cpu", "-n", "32", "--exact",
                                   "--json"], 40)
        try:
            rows = json.loads(out)
        except ValueError:
            v.note(name, False, error=last_line(err))
            continue
        v.note(name, code == 0, took=round(s, 1), rows=[[r["same"], r["ties"], r["widest_gap"]] for r in rows])


def bench(v, model, options, limit):
    """([test], whole JSON) of 1bit bench, or an error."""
    code, out, err, s = v.onebit("bench", ["-m", model, "--json", *options], limit)
    try:
        doc = json.loads(out)
        return doc["tests"], doc, None
    except (ValueError, KeyError):
        return None, None, f"exit {code} after {s:.0f} s: {last_line(err)}"


def cliff(v):
    tests, _, error = bench(v, v.a.model, ["-p", "0", "-n", "128", "-d", "2000,2048,2049,2100", "-r", "5"], 30)
    if error:
        return v.note("cliff", False, error=error)
    speed = {t["depth"]: t.get("tok_per_s", 0) for t in tests}
    ratio = speed[2100] / speed[2000] if speed[2000] else 0
    v.note("cliff", ratio >= 0.97 or not speed[2000], ratio=round(ratio, 4), tok_per_s=speed)


def depth(v):
    for cache, d in [("f16", 131072), ("q8_0", v.a.q8_depth)]:
        tests, _, error = bench(v, v.a.model, ["-p", "0", "-n", "32", "-d", str(d), "-r", "1", "--ctk", cache, "--ctv", cache], 60)
        if error:
            v.note(f"depth {cache}", False, depth=d, error=error)
        else:
            v.note(f"depth {cache}", True, depth=d, tok_per_s=[t.get("tok_per_s") for t in tests])


def load(v):
    with tempfile.TemporaryDirectory() as cache:
        result = {}
        for name in ["cold", "warm", "warm again"]:
            env = {"XDG_CACHE_HOME": cache, "__GL_SHADER_DISK_CACHE_PATH": cache, "MESA_SHADER_CACHE_DIR": cache}
            code, out, err, s = v.onebit("bench", ["-m", v.a.load or v.a.model, "-p", "1", "-n", "0", "-r", "1", "--json", "-v"], 40, env)
            try:
                result[name] = {"load_s": round(json.loads(out)["load_ms"] / 1e3, 2), "process_s": round(s, 2)}
            except (ValueError, KeyError):
                return v.note("load", False, error=last_line(err), **result)
            result[name]["said"] = [x[-170:] for x in err.splitlines() if "a plan for" in x]
        v.note("load", True, **result)


def encoders(v):
    """The last of three rounds: small steps raise a GPU's clocks slowly."""
    for name, path, most in [("minilm", v.a.minilm, 1.0), ("modernbert-large", v.a.modernbert, 3.0)]:
        if not path:
            continue
        tests, _, error = bench(v, path, ["-p", "128,64,128,64,128,64", "-n", "0", "-r", "50"], 30)
        if error:
            v.note(name, False, error=error)
            continue
        ms = {t["n_prompt"]: round(1e3 * t["n_prompt"] / t["tok_per_s"], 3) for t in tests if t.get("tok_per_s")}
        best = {t["n_prompt"]: round(1e3 * t["n_prompt"] / max(t["samples"]), 3) for t in tests if t.get("samples")}
        rounds = [round(1e3 * t["n_prompt"] / t["tok_per_s"], 3) for t in tests if t.get("tok_per_s")]
        v.note(name, all(x <= most for x in ms.values()), most_ms=most, ms=ms, best_ms=best, rounds_128_64=rounds)


STEPS = {"golden": (golden, "golden"), "devcts": (devcts, "devcts"), "load": (load, "model"), "greedy": (greedy, "model"),
         "faults": (faults, "model"), "against": (against, "against"), "cliff": (cliff, "model"), "encoders": (encoders, None),
         "depth": (depth, "model")}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default="build/1bit")
    p.add_argument("--devcts")
    p.add_argument("--devcts-filter", help="tests of devcts by pattern, such as 'test_large*'")
    p.add_argument("--device", default="vulkan")
    p.add_argument("--golden")
    p.add_argument("--model", help="of many tokens' context, for faults, greedy, cliff, depth and load")
    p.add_argument("--load", help="another model for load")
    p.add_argument("--against", action="append", default=[], help="models that the CPU runs too; may be repeated")
    p.add_argument("--minilm")
    p.add_argument("--modernbert")
    p.add_argument("--q8-depth", type=int, default=131072)
    p.add_argument("--port", type=int, default=18431)
    p.add_argument("--only", default=",".join(STEPS))
    p.add_argument("--seconds", type=float, default=3600)
    p.add_argument("--out", default="vulkan_verify.json")
    a = p.parse_args()
    v = Verify(a)
    code, out, _, _ = v.run([a.program, "devices", "--json"], 20)
    devices = json.loads(out) if code == 0 else []
    left_out = []
    for name in a.only.split(","):
        step, needs = STEPS[name]
        if needs and not getattr(a, needs):
            left_out.append(f"{name}: no --{needs}")
        elif v.left() < 2:
            left_out.append(f"{name}: no time left")
        else:
            try:
                step(v)
            except (OSError, KeyError, ValueError) as e:
                v.note(name, False, error=f"{type(e).__name__}: {e}")
    bad = [n for n, s in v.steps.items() if not s["ok"]]
    with open(a.out, "w") as f:
        json.dump({"devices": devices, "device": a.device, "steps": v.steps, "left_out": left_out, "failed": bad}, f, indent=1)
    print(f"{len(v.steps) - len(bad)} ok, {len(bad)} failed {bad}, left out {left_out}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
