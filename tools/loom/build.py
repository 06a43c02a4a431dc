#!/usr/bin/env python3
"""Compiles the kernels of src/dev/hrx/loom for each processor, into code.tar.xz and manifest.json.

    python3 tools/loom/build.py                      # everything; needs the pinned wheel (loom_compile.py fetches it)
    python3 tools/loom/build.py --check              # compiles again and compares with what is committed: exit 1 if stale
    python3 tools/loom/build.py --check-prebuilt     # without the compiler: hashes of sources and of committed code
    python3 tools/loom/build.py --report             # the tables of registers and sizes, which it also writes to docs/rooms/hrx.md
    python3 tools/loom/build.py --target gfx1151     # only this processor; repeat for several

The output is deterministic: same sources, configuration, target and compiler, same bytes.
"""
import argparse
import hashlib
import io
import json
import lzma
import os
import re
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor

import loom_compile
from hsaco import CodeObject

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = os.path.join(ROOT, "src", "dev", "hrx", "loom")
MANIFEST = os.path.join(SOURCES, "manifest.json")
PAGE = os.path.join(ROOT, "docs", "rooms", "hrx.md")
ARCHIVE = os.path.join(SOURCES, "code.tar.xz")
TARGETS = ["gfx1151", "gfx11-generic", "gfx1200", "gfx1201"]
TYPES = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"]
OBJECT = re.compile(r'^OBJECT\("([^"]*)", "([^"]*)", "([^"]*)", "([^"]*)", "([^"]*)"\)', re.M)


def objects(target):
    """name -> (source files, config, kernels) of objects.def: what is made for this processor."""
    out = {}
    for name, files, config, roots, processors in OBJECT.findall(read(os.path.join(SOURCES, "objects.def")).decode()):
        if target.startswith(processors):
            out[name] = (files.split(), dict(c.split("=") for c in config.split()), roots.split())
    return out


def words(target):
    """What stands for the words of the sources that depend on the processor."""
    return {"FRAGMENT": "8" if target.startswith("gfx12") else "16"}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def read(path):
    with open(path, "rb") as f:
        return f.read()


def source_hashes():
    return {n: sha256(read(os.path.join(SOURCES, n))) for n in sorted(os.listdir(SOURCES)) if n.endswith((".loom", ".def"))}


def compile_target(target):
    """{object: HSACO bytes} of one processor. Stops at the first that is rejected."""
    def one(item):
        name, (files, config, roots) = item
        ok, diags, data = loom_compile.compile_loom([os.path.join(SOURCES, f + ".loom") for f in files], target, roots=roots,
                                                    config=config, words=words(target))
        return name, data if ok else None, diags

    out = {}
    with ThreadPoolExecutor(2) as pool:
        for name, data, diags in pool.map(one, objects(target).items()):
            if data is None:
                raise SystemExit("\n".join(diags) or "%s for %s was rejected" % (name, target))
            out[name] = data
    return out


def write_archive(codes):
    """One archive: the objects of several processors are nearly the same."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, target in sorted((name, target) for target in codes for name in codes[target]):
            info = tarfile.TarInfo("%s/%s.hsaco" % (target, name))
            info.size, info.mode = len(codes[target][name]), 0o644
            tar.addfile(info, io.BytesIO(codes[target][name]))
    with open(ARCHIVE, "wb") as f:
        f.write(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def read_archive():
    """{processor: {object: HSACO bytes}}"""
    out = {}
    with tarfile.open(ARCHIVE, "r:xz") as tar:
        for m in tar.getmembers():
            target, name = m.name[:-len(".hsaco")].split("/")
            out.setdefault(target, {})[name] = tar.extractfile(m).read()
    return out


FIELDS = ["code_bytes", "vgprs", "sgprs", "vgpr_spills", "sgpr_spills", "lds_bytes"]


def entry(data):
    """Of an object: its hash, and FIELDS of each kernel."""
    reports = [k.report() for k in CodeObject(data).kernels.values()]
    return {"sha256": sha256(data), "kernels": {r["kernel"]: [r[f] for f in FIELDS] for r in reports}}


def manifest_of(codes):
    return {"fields": FIELDS, "compiler": "%s %s" % (loom_compile.PACKAGE, loom_compile.VERSION), "compiler_sha256": loom_compile.MEMBER_SHA256,
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
    """Kernels of the first target: code bytes, registers, LDS, spills; types side by side as ranges. Then the others."""
    rows = {}
    for name, obj in manifest["targets"][TARGETS[0]].items():
        family = re.sub("_(%s)$" % "|".join(TYPES), "", re.sub("_(%s)$" % "|".join(TYPES), "", name))
        family = "weights" if family in TYPES else family
        for kernel, k in obj["kernels"].items():
            rows.setdefault((family, kernel), []).append(dict(zip(FIELDS, k)))

    def span(ks, key):
        v = [k[key] for k in ks]
        return str(min(v)) if min(v) == max(v) else "%d–%d" % (min(v), max(v))

    def spills(ks):
        return sum(k["vgpr_spills"] + k["sgpr_spills"] for k in ks)

    out = ["%s:" % TARGETS[0], "",
           "| objects | kernel | of them | code, bytes | VGPRs | SGPRs | LDS, bytes | spills |", "|---|---|---|---|---|---|---|---|"]
    for (family, kernel), ks in sorted(rows.items()):
        out.append("| %s | %s | %d | %s | %s | %s | %s | %d |" % (family, kernel, len(ks), span(ks, "code_bytes"), span(ks, "vgprs"),
                                                                 span(ks, "sgprs"), span(ks, "lds_bytes"), spills(ks)))
    out += ["", "| processor | objects | kernels | code, bytes | most VGPRs | spills |", "|---|---|---|---|---|---|"]
    for target in TARGETS:
        ks = [dict(zip(FIELDS, k)) for obj in manifest["targets"][target].values() for k in obj["kernels"].values()]
        out.append("| %s | %d | %d | %d | %d | %d |" % (target, len(manifest["targets"][target]), len(ks), sum(k["code_bytes"] for k in ks),
                                                      max(k["vgprs"] for k in ks), spills(ks)))
    return "\n".join(out) + "\n"


BEGIN, END = "<!-- made by tools/loom/build.py -->\n", "<!-- end -->\n"


def page_with(manifest):
    """docs/rooms/hrx.md with the report in its place; what it is now."""
    now = read(PAGE).decode()
    head, rest = now.split(BEGIN)
    return head + BEGIN + report(manifest) + END + rest.split(END)[1], now


def main():
    ap = argparse.ArgumentParser(description="compile the HRX device's kernels")
    ap.add_argument("--target", action="append")
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--check-prebuilt", action="store_true")
    ap.add_argument("--report", action="store_true")
    a = ap.parse_args()
    if a.report:
        print(report(load_manifest()), end="")
        return 0
    targets = a.target or TARGETS
    if a.check or a.check_prebuilt:
        codes = {t: c for t, c in read_archive().items() if t in targets}
        bad = differences(load_manifest(), codes, not a.target)
        page, now = page_with(load_manifest())
        bad += ["the report in docs/rooms/hrx.md is of other code"] if page != now else []
        if a.check:
            bad += ["fresh: " + b for b in differences(load_manifest(), {t: compile_target(t) for t in targets}, not a.target)]
        for line in bad:
            print(line)
        print("loom: %d objects for %d processors, %d stale" % (sum(map(len, codes.values())), len(codes), len(bad)))
        return 1 if bad else 0
    codes = read_archive() if a.target else {}
    codes.update((t, compile_target(t)) for t in targets)
    write_archive(codes)
    with open(MANIFEST, "w", encoding="utf-8") as f:
        json.dump(manifest_of(codes), f, indent=None, separators=(",", ":"), sort_keys=True)
        f.write("\n")
    page = page_with(manifest_of(codes))[0]
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(page)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except loom_compile.SetupError as e:
        print("build: %s" % e, file=sys.stderr)
        sys.exit(2)
