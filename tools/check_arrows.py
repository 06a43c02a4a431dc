#!/usr/bin/env python3
"""Check that every #include between rooms follows the arrows of docs/design.md.

    check_arrows.py ROOT

Exit 0 and one line when all is well, 1 and a line per wrong include otherwise. It also checks that
every header compiles alone-able in form: it has an include guard.
"""
import os
import re
import sys

# room -> rooms it may include (itself always)
ARROWS = {
    "base": [],
    "fmt": ["base"],
    "quant": ["base"],
    "tok": ["base", "fmt"],   # the vocabulary is read from the file's metadata
    "tmpl": ["base"],
    "ops": ["base", "quant"],
    "graph": ["base", "ops", "fmt", "quant"],
    "dev": ["base", "ops", "quant"],
    "kv": ["base", "dev", "ops"],
    "sample": ["base", "tok"],
    "gram": ["base", "tok"],
    "engine": ["base", "graph", "dev", "kv", "sample", "gram", "tok", "ops", "fmt", "quant", "img"],
    "route": ["base", "engine", "tok"],
    "convert": ["base", "fmt", "quant"],
    "gates": ["base", "dev"],
    "hub": ["base", "fmt"],
    "img": ["base"],
    "serve": ["base", "engine", "route", "tmpl", "hub", "tok", "sample", "gram", "fmt", "dev", "img"],
    "cli": None,              # may include anything
}


def room_of(path):
    return path.split("/")[0]


def device_of(path):
    parts = path.split("/")
    return parts[1] if parts[0] == "dev" and len(parts) > 2 else None


def main():
    src = os.path.join(sys.argv[1], "src")
    bad, n = [], 0
    for folder, _, files in os.walk(src):
        for name in sorted(files):
            if not name.endswith((".c", ".h")):
                continue
            path = os.path.relpath(os.path.join(folder, name), src)
            text = open(os.path.join(folder, name), encoding="utf8").read()
            if name.endswith(".h") and "#ifndef" not in text[:3000] and "#pragma once" not in text:
                bad.append(f"src/{path}: header without an include guard")
            for inc in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
                if "/" not in inc:
                    continue
                n += 1
                frm, to = room_of(path), room_of(inc)
                if to not in ARROWS or ARROWS.get(frm, []) is None or frm == to:
                    if device_of(path) and device_of(inc) and device_of(path) != device_of(inc):
                        bad.append(f"src/{path}: one device includes another: {inc}")
                    continue
                if to not in ARROWS.get(frm, []):
                    bad.append(f"src/{path}: room '{frm}' may not include '{inc}'")
    for line in bad:
        print(line)
    if not bad:
        print(f"arrows: {n} includes follow docs/design.md")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
