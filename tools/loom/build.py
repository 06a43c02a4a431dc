#!/usr/bin/env python3
"""Compiles the kernels of src/dev/hrx/loom for each processor, into code/PROCESSOR.tar.xz and manifest.json.

    python3 tools/loom/build.py                      # everything; needs the pinned wheel (loom_compile.py fetches it)
    python3 tools/loom/build.py --check              # compiles again and compares with what is committed: exit 1 if stale
    python3 tools/loom/build.py --check-prebuilt     # without the compiler: hashes of sources and of committed code
    python3 tools/loom/build.py --report             # docs/rooms/hrx.md's table of registers and sizes, as text
    python3 tools/loom/build.py --target gfx1151     # only this processor; repeat for several

The output is deterministic: same sources, configuration, target and compiler, same bytes.
"""
import argparse
import hashlib
import io
import json
import lzma
import os
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor

import loom_compile
from hsaco import CodeObject

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = os.path.join(ROOT, "src", "dev", "hrx", "loom")
MANIFEST = os.path.join(SOURCES, "manifest.json")
TARGETS = ["gfx1151", "gfx11-generic"]
TYPES = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"]
CACHE_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}


def objects():
    """name -> (source files, config): one code object each."""
    out = {"rows": (["base", "act", "rows"], {}), "moe": (["base", "act", "moe"], {}), "state": (["base", "act", "state"], {}),
           "sample": (["base", "sample"], {}), "int4": (["int4_act", "int4_mm"], {})}
    for t in TYPES:
        out[t] = (["base", "w_" + t, "linear", "mm"] + (["any"] if t in ("f32", "f16", "bf16") else []), {})
    for k, k_id in CACHE_TYPES.items():
        out["kv_" + k] = (["base", "cache", "kv"], {"kv.type": k_id})
        for v, v_id in CACHE_TYPES.items():
            out["attn_%s_%s" % (k, v)] = (["base", "act", "cache", "attn", "merge"], {"attn.k_type": k_id, "attn.v_type": v_id})
    return out


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def read(path):
    with open(path, "rb") as f:
        return f.read()


def source_hashes():
    return {n: sha256(read(os.path.join(SOURCES, n))) for n in sorted(os.listdir(SOURCES)) if n.endswith(".loom")}


def compile_target(target):
    """{object: HSACO bytes} of one processor. Stops at the first that is rejected."""
    def one(item):
        name, (files, config) = item
        ok, diags, data = loom_compile.compile_loom([os.path.join(SOURCES, f + ".loom") for f in files], target, config=config)
        return name, data if ok else None, diags

    out = {}
    with ThreadPoolExecutor(2) as pool:
        for name, data, diags in pool.map(one, objects().items()):
            if data is None:
                raise SystemExit("\n".join(diags) or "%s for %s was rejected" % (name, target))
            out[name] = data
    return out


def archive_path(target):
    return os.path.join(SOURCES, "code", target + ".tar.xz")


def write_archive(target, code):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(code):
            info = tarfile.TarInfo(name + ".hsaco")
            info.size, info.mode = len(code[name]), 0o644
            tar.addfile(info, io.BytesIO(code[name]))
    os.makedirs(os.path.dirname(archive_path(target)), exist_ok=True)
    with open(archive_path(target), "wb") as f:
        f.write(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def read_archive(target):
    with tarfile.open(archive_path(target), "r:xz") as tar:
        return {m.name[:-len(".hsaco")]: tar.extractfile(m).read() for m in tar.getmembers()}


def entry(data):
    kernels = {}
    for k in CodeObject(data).kernels.values():
        r = k.report()
        kernels[r["kernel"]] = {"code_bytes": r["code_bytes"], "vgprs": r["vgprs"], "sgprs": r["sgprs"],
                                "vgpr_spills": r["vgpr_spills"], "sgpr_spills": r["sgpr_spills"], "lds_bytes": r["lds_bytes"]}
    return {"sha256": sha256(data), "kernels": kernels}


def manifest_of(codes):
    return {"compiler": "%s %s" % (loom_compile.PACKAGE, loom_compile.VERSION), "compiler_sha256": loom_compile.MEMBER_SHA256,
            "sources": source_hashes(), "targets": {t: {n: entry(c[n]) for n in sorted(c)} for t, c in sorted(codes.items())}}


def load_manifest():
    with open(MANIFEST, encoding="utf-8") as f:
        return json.load(f)


def differences(want, codes, whole):
    """What is stale: of the committed manifest against sources and code."""
    bad = []
    if want["sources"] != source_hashes():
        bad.append("sources changed since the manifest was written")
    for target, code in codes.items():
        have = want["targets"].get(target, {})
        for name in sorted(set(have) | set(code)):
            if name not in code or name not in have or sha256(code[name]) != have[name]["sha256"]:
                bad.append("%s/%s differs from the manifest" % (target, name))
    if whole and set(codes) != set(want["targets"]):
        bad.append("targets differ from the manifest")
    return bad


def report(manifest):
    """Kernels of the first target: code bytes, registers, LDS, spills; types side by side as ranges."""
    rows = {}
    for name, obj in manifest["targets"][TARGETS[0]].items():
        family = "weights" if name in TYPES else name.split("_")[0]
        for kernel, k in obj["kernels"].items():
            rows.setdefault((family, kernel), []).append(k)

    def span(ks, key):
        v = [k[key] for k in ks]
        return str(min(v)) if min(v) == max(v) else "%d–%d" % (min(v), max(v))

    print("| objects | kernel | of them | code, bytes | VGPRs | SGPRs | LDS, bytes | spills |\n|---|---|---|---|---|---|---|---|")
    for (family, kernel), ks in sorted(rows.items()):
        spills = sum(k["vgpr_spills"] + k["sgpr_spills"] for k in ks)
        print("| %s | %s | %d | %s | %s | %s | %s | %d |" % (family, kernel, len(ks), span(ks, "code_bytes"), span(ks, "vgprs"),
                                                        span(ks, "sgprs"), span(ks, "lds_bytes"), spills))


def main():
    ap = argparse.ArgumentParser(description="compile the HRX device's kernels")
    ap.add_argument("--target", action="append")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--check-prebuilt", action="store_true")
    ap.add_argument("--report", action="store_true")
    a = ap.parse_args()
    if a.report:
        report(load_manifest())
        return 0
    targets = a.target or TARGETS
    if a.check or a.check_prebuilt:
        codes = {t: read_archive(t) for t in targets}
        bad = differences(load_manifest(), codes, not a.target)
        if a.check:
            bad += ["fresh: " + b for b in differences(load_manifest(), {t: compile_target(t) for t in targets}, not a.target)]
        for line in bad:
            print(line)
        print("loom: %d objects for %d processors, %d stale" % (sum(map(len, codes.values())), len(codes), len(bad)))
        return 1 if bad else 0
    codes = {t: compile_target(t) for t in targets}
    for t in TARGETS:
        if t not in codes and os.path.exists(archive_path(t)):
            codes[t] = read_archive(t)
    for t in targets:
        write_archive(t, codes[t])
    with open(MANIFEST, "w", encoding="utf-8") as f:
        json.dump(manifest_of(codes), f, indent=None, separators=(",", ":"), sort_keys=True)
        f.write("\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except loom_compile.SetupError as e:
        print("build: %s" % e, file=sys.stderr)
        sys.exit(2)
