#!/usr/bin/env python3
"""Build the NPU's kernel set: PDIs, one control text a design to compare ours with, and the manifest.

    python -m venv npu && . npu/bin/activate
    pip install mlir_aie llvm-aie --find-links PAGE --find-links PAGE   # the release pages of both, see README.md
    build_kernels.py [--device npu5] [--out ~/.local/share/1bit/npu/npu5] [--jobs 2]

UNBUILT: nobody has run this to its end yet. It stops at the first tool that fails and says which; a set is only put in
place when all of it was built. 1bit takes it after checking manifest, hashes and control text, and `1bit npu selftest`
says whether it works. Takes a few minutes a design.

--check-sources looks at what needs no toolchain: that the numbers here, in design.py and in the program are the same.
"""
import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LAYOUT = "i8c-1"
# Design -> shape of the text that is built for comparison, options of its script, tile of a core (m, k, n) if it has cores.
DESIGNS = {
    "through": ("1mib", [], None),
    "gemm_i8": ("m128_k128_n2048", ["-m", "128", "-k", "128", "-n", "2048"], [32, 64, 128]),
    "gemv_q4": ("m1_k256_n1024", ["-k", "256", "-n", "1024"], [1, 256, 32]),
}
RTP = {"address": 0xF000, "lock": 15, "controller": 15, "words": ["steps", "tiles"]}
DEVICES = {"npu4": "npu2", "npu5": "npu2", "npu6": "npu2"}  # ours -> the compiler's
PEANO_FLAGS = ["-O2", "-std=c++20", "--target=aie2p-none-unknown-elf", "-Wno-parentheses", "-Wno-attributes", "-Wno-macro-redefined",
               "-DNDEBUG"]


def sh(cmd, **kw):
    print("+ " + " ".join(cmd), file=sys.stderr)
    return subprocess.run(cmd, check=True, **kw)


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def toolchain():
    found = {p: version(p) for p in ("mlir_aie", "llvm-aie")}
    missing = [p for p, v in found.items() if not v]
    if missing or not shutil.which("aiecc.py"):
        sys.exit(f"build_kernels: not installed in this Python environment: {', '.join(missing or ['aiecc.py'])} (README.md says how)")
    root = importlib.metadata.distribution("llvm-aie").locate_file("llvm-aie")
    aie = importlib.metadata.distribution("mlir_aie").locate_file("mlir_aie")
    return found, str(root), str(aie)


def build(design, work, peano, aie):
    """Core object, MLIR, then a full ELF of PDI and control text."""
    shape, options, _ = DESIGNS[design]
    if os.path.exists(os.path.join(HERE, design + ".cc")):
        sh([os.path.join(peano, "bin/clang++"), *PEANO_FLAGS, "-I", os.path.join(aie, "include"), "-c", os.path.join(HERE, design + ".cc"),
            "-o", os.path.join(work, design + ".o")])
    mlir = os.path.join(work, design + ".mlir")
    with open(mlir, "w", encoding="utf8") as f:
        sh([sys.executable, os.path.join(HERE, design + ".py"), *options], stdout=f)
    sh(["aiecc.py", "--no-xchesscc", "--no-xbridge", "--peano", peano, "--alloc-scheme=basic-sequential", "--aie-generate-npu-insts",
        "--npu-insts-name=insts.bin", "--aie-generate-pdi", "--pdi-name=design.pdi", mlir], cwd=work)
    return shape


def assemble(design, shape, work, out):
    """Two ELFs: the PDI with a text that loads it, and the text of the shape."""
    header = lambda n_ops, words: b"".join(x.to_bytes(4, "little") for x in (0x06040100, 0x108, n_ops, 16 + 4 * len(words), *words))
    pdi = os.path.join(work, "design.pdi")
    with open(os.path.join(work, "init.txn"), "wb") as f:
        f.write(header(1, [8 | 1 << 16, os.path.getsize(pdi), 0, 0]))
    config = lambda text, pdis: {"xrt-kernels": [{
        "name": design, "arguments": [{"name": f"arg_{i}", "type": "char *", "offset": hex(8 * i)} for i in range(3)],
        "instance": [{"id": "run", "TXN_ctrl_code_file": text}], "PDIs": pdis}]}
    files = {f"{design}.init.elf": config("init.txn", [{"id": 1, "PDI_file": "design.pdi"}]),
             f"{design}_{shape}.elf": config("insts.bin", [])}
    for name, cfg in files.items():
        with open(os.path.join(work, "config.json"), "w", encoding="utf8") as f:
            json.dump(cfg, f)
        sh(["aiebu-asm", "-t", "aie2_config", "-j", "config.json", "-o", os.path.join(out, name)], cwd=work)
    return list(files)


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def manifest(device, tools, names, folder):
    return {"format": 1, "layout": LAYOUT, "tile": DESIGNS["gemm_i8"][2], "mma": [8, 8, 8], "rtp": RTP, "devices": [device],
            "toolchain": tools, "files": {n: sha256(os.path.join(folder, n)) for n in sorted(names)}, "validated_on": []}


def check_sources():
    """The numbers that stand in several places."""
    layout = open(os.path.join(HERE, "../../src/dev/npu/npu_layout.h"), encoding="utf8").read()
    design = open(os.path.join(HERE, "design.py"), encoding="utf8").read()
    value = lambda name: int(re.search(rf"\b{name} = (0x[0-9A-Fa-f]+|\d+)", layout).group(1), 0)
    wrong = []
    want = f"RTP_ADDR, LOCK_ID, CONTROLLER = 0x{value('OB_NPU_RTP_ADDR'):X}, {(value('OB_NPU_RTP_LOCK_ADDR') - 0x1F000) // 16}, {value('OB_NPU_TOKEN_CONTROLLER')}"
    if want not in design:
        wrong.append(f"design.py does not say: {want}")
    if (RTP["address"], 0x1F000 + 16 * RTP["lock"], RTP["controller"]) != tuple(
            value(n) for n in ("OB_NPU_RTP_ADDR", "OB_NPU_RTP_LOCK_ADDR", "OB_NPU_TOKEN_CONTROLLER")):
        wrong.append("RTP here is not npu_layout.h's")
    if DESIGNS["gemm_i8"][2] != [value("OB_NPU_TILE_M"), value("OB_NPU_TILE_K"), value("OB_NPU_TILE_N")]:
        wrong.append("the tile here is not npu_layout.h's")
    if f'OB_NPU_LAYOUT_I8C "{LAYOUT}"' not in layout:
        wrong.append("the layout here is not npu_layout.h's")
    for name in ("design.py", "through.py", "gemm_i8.py", "gemv_q4.py"):
        compile(open(os.path.join(HERE, name), encoding="utf8").read(), name, "exec")
    for w in wrong:
        print("build_kernels: " + w)
    if not wrong:
        print("build_kernels: sources agree")
    return 1 if wrong else 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", choices=sorted(DEVICES), default="npu5")
    ap.add_argument("--out")
    ap.add_argument("--check-sources", action="store_true")
    args = ap.parse_args()
    if args.check_sources:
        return check_sources()
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    out = args.out or os.path.join(data, "1bit/npu", args.device)
    tools, peano, aie = toolchain()
    if not shutil.which("aiebu-asm"):
        sys.exit("build_kernels: aiebu-asm is not installed (Debian: libxrt-utils-npu; XRT has it too)")
    with tempfile.TemporaryDirectory() as tmp:
        done, names = os.path.join(tmp, "set"), []
        os.mkdir(done)
        for design in DESIGNS:
            work = os.path.join(tmp, design)
            os.mkdir(work)
            names += assemble(design, build(design, work, peano, aie), work, done)
        with open(os.path.join(done, "manifest.json"), "w", encoding="utf8") as f:
            json.dump(manifest(args.device, tools, names, done), f, indent=1)
        os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(done, out)
    print(f"build_kernels: {len(names)} files in {out}; now: 1bit npu selftest")
    return 0


if __name__ == "__main__":
    sys.exit(main())
