#!/usr/bin/env python3
"""Write the seed files of fuzz_onebp: small 1BP packages, right ones and wrong ones.

    make_onebp_seeds.py FOLDER
"""
import os
import struct
import sys

from make_gguf_seeds import PACK, STR, U32, array, pair


def entry(name, dims, off, size, quant, nul=b"\0"):
    name = name.encode()
    return (struct.pack("<I", len(name)) + name + nul + struct.pack(f"<I{len(dims)}I", len(dims), *dims)
            + struct.pack("<QQI", off, size, quant))


def onebp(pairs=(), entries=(), data=b"", version=5, n_kv=None, n_tensors=None):
    head = bytearray(256)
    struct.pack_into("<II", head, 0, 0x00504231, version)
    struct.pack_into("<I", head, 88, len(entries) if n_tensors is None else n_tensors)
    out = bytes(head) + b"".join(entries)
    out += struct.pack("<Q", len(pairs) if n_kv is None else n_kv) + b"".join(pairs)
    return out + b"\0" * (-len(out) % 64) + data


def seeds():
    arch = pair("general.architecture", STR, "llama")
    one = entry("w", [8], 0, 32, 256)
    yield "empty", onebp()
    yield "scalars", onebp([pair(f"k{k}", k, 1) for k in PACK] + [arch])
    yield "arrays", onebp([array(f"k{k}", k, [1, 0, 1]) for k in PACK] +
                          [array("s", STR, ["", "a", b"\xff"])])
    yield "one-tensor", onebp([arch], [one], b"\1" * 32)
    yield "alignment-key", onebp([pair("general.alignment", U32, 32)], [one], b"\1" * 32)
    yield "types", onebp([arch], [entry("a", [2, 64], 0, 72, 258), entry("b", [1, 2, 3, 4], 128, 96, 256),
                                  entry("c", [256], 256, 144, 268)], b"\7" * 400)
    yield "alias", onebp([], [one, entry("v", [2, 4], 0, 0, 256), entry("u", [8, 1], 1, 0, 0)],
                         b"\1" * 32)
    yield "alias-forward", onebp([], [entry("v", [8], 1, 0, 256), one], b"\1" * 32)
    yield "alias-self", onebp([], [entry("v", [8], 0, 0, 256)], b"\1" * 32)
    yield "tile", onebp([], [entry("w", [8], 0, 32, 0)], b"\1" * 32)
    yield "misaligned", onebp([], [entry("w", [8], 32, 32, 256)], b"\1" * 64)
    yield "wrong-size", onebp([], [entry("w", [8], 0, 36, 256)], b"\1" * 64)
    yield "no-nul", onebp([], [entry("w", [8], 0, 32, 256, b"x")], b"\1" * 32)
    yield "short-data", onebp([], [one], b"\1" * 31)
    yield "count-max", onebp([], [one], b"\1" * 32, n_tensors=0xFFFFFFFF)
    yield "kv-max", onebp([], [one], b"\1" * 32, n_kv=0xFFFFFFFFFFFFFFFF)
    for version in (0, 1, 2, 3, 4, 6):
        yield f"version-{version}", onebp([], [one], b"\1" * 32, version=version)


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, data in seeds():
        with open(os.path.join(sys.argv[1], name), "wb") as f:
            f.write(data)


if __name__ == "__main__":
    main()
