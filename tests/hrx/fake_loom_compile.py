#!/usr/bin/env python3
"""A compiler for tests: writes its calls to $FAKE_LOOM_LOG, and gives the object that is committed for $FAKE_LOOM_GIVES
(a processor). $FAKE_LOOM_DOES: fail, nothing (no file), text (no code object), half (a code object that is cut off)."""
import os
import re
import sys
import tarfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
args = sys.argv[1:]
with open(os.environ["FAKE_LOOM_LOG"], "a", encoding="utf-8") as f:
    f.write("\t".join(args) + "\n")
if args == ["--version"]:
    print(os.environ.get("FAKE_LOOM_VERSION", "fake 1"))
    sys.exit(0)
does = os.environ.get("FAKE_LOOM_DOES", "")
if does == "fail":
    print("in.loom:1:1: error: rejected by the fake")
    sys.exit(1)
out = next(a for a in args if a.startswith("--output="))[len("--output="):]
name = re.sub(r"-[^-]*\.loom$", "", os.path.basename(args[0]))
with tarfile.open(os.path.join(ROOT, "src", "dev", "hrx", "loom", "code.tar.xz"), "r:xz") as tar:
    code = tar.extractfile("%s/%s.hsaco" % (os.environ.get("FAKE_LOOM_GIVES", "gfx1151"), name)).read()
if does != "nothing":
    with open(out, "wb") as f:
        f.write(b"no code object, though it is long enough to be one" * 4 if does == "text" else code[:len(code) // 2] if does == "half" else code)
