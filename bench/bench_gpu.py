#!/usr/bin/env python3
"""Speed of models with random weights on a GPU, as one JSON file.

    bench_gpu.py --program build/1bit --out results.json [--device auto] [--models small,main,large]
                 [--folder FOLDER] [--repetitions 5] [--profile]

Makes the models with tools/make_random_gguf.py (so numpy and gguf are needed; PYTHONPATH may point at
them), one after the other, and for each runs `1bit bench`: prompts of 512 and 8192 tokens, 128 tokens
generated, 64 at a depth of 8192, and 8 and 32 sequences together. A model that a device cannot run is
named with the reason. The file holds what `1bit bench --json` printed, the device and the driver.

    small   llama-1.1b Q4_0 (0.6 GiB)      main    qwen3-8b Q4_K_M (4.7 GiB), qwen3-8b Q8_0 (8.1 GiB)
    large   qwen3moe-30b-a3b Q4_K_M (17.3 GiB)
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = {
    "small": [("llama-1.1b", "Q4_0")],
    "main": [("qwen3-8b", "Q4_K_M"), ("qwen3-8b", "Q8_0")],
    "large": [("qwen3moe-30b-a3b", "Q4_K_M")],
}
# name, options of 1bit bench
TESTS = [
    ("pp512", ["-p", "512", "-n", "0"]),
    ("tg128", ["-p", "0", "-n", "128"]),
    ("8 sequences", ["-p", "0", "-n", "64", "--parallel", "8"]),
    ("32 sequences", ["-p", "0", "-n", "64", "--parallel", "32"]),
    ("pp8192", ["-p", "8192", "-n", "0"]),
    ("tg64 at 8192", ["-p", "0", "-n", "64", "--depth", "8192"]),
]


def run(command, limit):
    """(seconds, exit code, stdout, stderr)"""
    t = time.monotonic()
    try:
        r = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        return time.monotonic() - t, r.returncode, r.stdout, r.stderr
    except subprocess.TimeoutExpired as e:
        return time.monotonic() - t, 124, str(e.stdout or ""), f"longer than {limit} s"


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def bench_model(a, path):
    rows = []
    for name, options in TESTS:
        command = [a.program, "bench", "-m", path, "--device", a.device, "-r", str(a.repetitions)] + options
        seconds, code, out, err = run(command + ["--json"], a.limit)
        row = {"test": name, "seconds": round(seconds, 2)}
        if code == 0:
            row["result"] = parsed(out)
        else:
            row["failed"] = err.strip().splitlines()[-1] if err.strip() else f"exit code {code}"
        if code == 0 and a.profile:
            row["profile"] = run(command + ["--profile"], a.limit)[2].splitlines()
        print(f"  {name}: {row.get('failed') or json.dumps(row['result'])[:300]}", flush=True)
        rows.append(row)
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=os.path.join(ROOT, "build", "1bit"))
    p.add_argument("--out", required=True)
    p.add_argument("--device", default="auto")
    p.add_argument("--models", default="small,main")
    p.add_argument("--folder", help="where the models are made, and kept; default: a temporary folder")
    p.add_argument("--repetitions", type=int, default=5)
    p.add_argument("--limit", type=int, default=300, help="most seconds of one test")
    p.add_argument("--profile", action="store_true", help="also the time of each kernel")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or temporary
        os.makedirs(folder, exist_ok=True)
        report = {"devices": parsed(run([a.program, "devices", "--json"], 60)[2]),
                  "version": run([a.program, "version"], 60)[2].strip(), "models": []}
        for preset, kind in [m for group in a.models.split(",") for m in MODELS[group]]:
            path = os.path.join(folder, f"{preset}-{kind}.gguf")
            if not os.path.exists(path):
                print(f"making {preset} {kind}", flush=True)
                maker = [sys.executable, os.path.join(ROOT, "tools", "make_random_gguf.py"), "--preset", preset,
                         "--type", kind, "--seed", "1", "-o", path]
                _, code, _, err = run(maker, 1800)
                if code != 0:
                    sys.exit(f"the model was not made: {err.strip()[-500:]}")
            print(f"{preset} {kind}", flush=True)
            report["models"].append({"model": preset, "type": kind, "bytes": os.path.getsize(path),
                                     "tests": bench_model(a, path)})
            with open(a.out, "w", encoding="utf8") as f:
                json.dump(report, f, indent=1)
            if not a.folder:
                os.remove(path)


if __name__ == "__main__":
    main()
