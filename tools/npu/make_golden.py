#!/usr/bin/env python3
"""Make tests/data/npu with AMD's own assembler and disassembler (Debian's libxrt-utils-npu, 2.25 or later).

    make_golden.py NPU_TEXTS [--aiebu FOLDER] [--out tests/data/npu]

NPU_TEXTS is the program build/tests/npu_texts, which writes control text of this project's builder and a kernel file
of its writer. What comes out, and is kept as test data:

    X.txn        the builder's words (so a change of the builder is seen)
    X.elf        of aiebu-asm -t aie2txn: the oracle of the relocations
    X.dump.txt   of aiebu-dump -d: the oracle of the printer, and that each operation is what we think it is
    full.elf     of aiebu-asm -t aie2_config, from a soft PDI and two of the texts
    ours.elf     of our writer, from the same; aiebu-dump must read it and print the same text

Where the tools are not installed, they are unpacked, not installed, with a C library of their own: the packages are
asked of the machine's own apt configuration, with suite `sid` in place of its own. --aiebu names such a folder, which
is reused. Needs apt, dpkg-deb and the network for that once; nothing of it runs in the tests.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

PACKAGES = ["libxrt-utils-npu", "libxrt-utils", "libxrt2", "libxrt-npu2", "libc6", "libgcc-s1", "libstdc++6", "libuuid1", "libssl3t64",
            "libzstd1", "zlib1g"]
TXN_ELFS = ["gemm_m128_k128_n2048", "gemm_m512_k64_n1024", "gemm_m128_k4160_n3072", "step"]
DUMPS = ["nop", "copy", "gemm_m128_k128_n2048", "gemm_m512_k64_n1024", "gemm_m128_k4160_n3072", "gemv_k256_n1024", "step"]


def sh(cmd, **kw):
    return subprocess.run(cmd, check=True, stdout=subprocess.PIPE, text=True, **kw).stdout


def unpack(folder):
    """aiebu of suite sid and what it needs, under folder/root."""
    for sub in ("lists/partial", "cache/archives/partial", "debs", "root"):
        os.makedirs(os.path.join(folder, sub), exist_ok=True)
    open(os.path.join(folder, "status"), "w").close()
    # The machine's own mirror: the first of Debian's that is not for security updates alone.
    sites = sh(["apt-get", "indextargets", "--format", "$(SITE)|$(ORIGIN)", "Created-By: Packages"]).split("\n")
    site = next((s.split("|")[0] for s in sites if s.endswith("|Debian") and "security" not in s), None)
    if not site:
        sys.exit("make_golden: no mirror of Debian in this machine's apt configuration (run apt-get update first)")
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    with open(os.path.join(folder, "sid.list"), "w", encoding="utf8") as f:
        f.write(f"deb [signed-by={keyring}] {site} sid main\n")
    opts = [f"Dir::Etc::sourcelist={folder}/sid.list", "Dir::Etc::sourceparts=-", f"Dir::State::lists={folder}/lists",
            f"Dir::Cache={folder}/cache", f"Dir::State::status={folder}/status"]
    apt = [x for o in opts for x in ("-o", o)]
    sh(["apt-get", *apt, "update"])
    depends = sh(["apt-cache", *apt, "depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks",
                  "--no-replaces", "--no-enhances", "libxrt-utils-npu"])
    boost = [w for w in depends.split() if w.startswith("libboost-") and w[-1].isdigit()]
    sh(["apt-get", *apt, "download", *PACKAGES, *sorted(set(boost))], cwd=os.path.join(folder, "debs"))
    for deb in os.listdir(os.path.join(folder, "debs")):
        sh(["dpkg-deb", "-x", os.path.join(folder, "debs", deb), os.path.join(folder, "root")])


def tool(folder, name):
    """A command line that runs aiebu's tool."""
    installed = shutil.which(name)
    if installed and not folder:
        return [installed]
    root = os.path.join(folder, "root")
    libs = os.path.join(root, "usr/lib/x86_64-linux-gnu")
    return [os.path.join(libs, "ld-linux-x86-64.so.2"), "--library-path", libs, os.path.join(root, "usr/bin", name)]


def disassembly(dump, elf):
    """The lines of operations of each .ctrltext section."""
    sections, current = [], None
    for line in sh([*dump, "-d", elf]).split("\n"):
        if line.startswith("Section["):
            current = [] if ".ctrltext" in line else None
            if current is not None:
                sections.append(current)
        elif current is not None and line.startswith("XAIE_"):
            # It pads the name of an operation without operands; we do too.
            current.append(line)
    return ["\n".join(s) + "\n" for s in sections]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("npu_texts")
    ap.add_argument("--aiebu", help="folder to unpack the tools into, or one where they are")
    ap.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/data/npu"))
    args = ap.parse_args()
    if not args.aiebu and not shutil.which("aiebu-asm"):
        sys.exit("make_golden: aiebu-asm is not installed; give --aiebu FOLDER to unpack it there")
    if args.aiebu and not os.path.exists(os.path.join(args.aiebu, "root/usr/bin/aiebu-asm")):
        unpack(os.path.abspath(args.aiebu))
    asm, dump = tool(args.aiebu, "aiebu-asm"), tool(args.aiebu, "aiebu-dump")
    with tempfile.TemporaryDirectory() as tmp:
        sh([args.npu_texts, tmp])
        path = lambda name: os.path.join(tmp, name)
        for name in DUMPS:
            sh([*asm, "-t", "aie2txn", "-c", path(name + ".txn"), "-o", path(name + ".elf")])
            [text] = disassembly(dump, path(name + ".elf"))
            with open(path(name + ".dump.txt"), "w", encoding="utf8") as f:
                f.write(text)
        config = {"xrt-kernels": [{
            "name": "gemm_i8",
            "arguments": [{"name": f"arg_{i}", "type": "char *", "offset": hex(8 * i)} for i in range(3)],
            "instance": [{"id": "init", "TXN_ctrl_code_file": "init.txn"},
                         {"id": "m128_k128_n2048", "TXN_ctrl_code_file": "gemm_m128_k128_n2048.txn"}],
            "PDIs": [{"id": 1, "PDI_file": "soft.pdi"}]}]}
        with open(path("config.json"), "w", encoding="utf8") as f:
            json.dump(config, f)
        sh([*asm, "-t", "aie2_config", "-j", "config.json", "-o", "full.elf"], cwd=tmp)
        want = sh([*dump, "-r", path("full.elf")]), sh([*dump, "-r", path("ours.elf")])
        if want[0].split("\n")[2:] != want[1].split("\n")[2:]:
            sys.stderr.write("make_golden: note: aiebu-dump -r prints the two kernel files differently:\n" + want[0] + want[1])
        os.makedirs(args.out, exist_ok=True)
        keep = [n + ".txn" for n in DUMPS] + [n + ".dump.txt" for n in DUMPS] + [n + ".elf" for n in TXN_ELFS] + ["full.elf", "ours.elf"]
        for name in keep:
            shutil.copy(path(name), os.path.join(args.out, name))
    print(f"make_golden: {len(keep)} files in {os.path.normpath(args.out)}")


if __name__ == "__main__":
    main()
