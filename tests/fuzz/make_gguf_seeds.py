#!/usr/bin/env python3
"""Write the seed files of fuzz_gguf: small GGUF files, right ones and wrong ones.

    make_gguf_seeds.py FOLDER
"""
import os
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q",
        I64: "q", F64: "d"}


def string(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s


def value(kind, v):
    return string(v) if kind == STR else struct.pack("<" + PACK[kind], v)


def pair(key, kind, v):
    return string(key) + struct.pack("<I", kind) + value(kind, v)


def array(key, kind, vs):
    head = string(key) + struct.pack("<IIQ", ARR, kind, len(vs))
    return head + b"".join(value(kind, v) for v in vs)


def tensor(name, kind, ne, off):
    return string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, off)


def gguf(pairs=(), tensors=(), data=b"", version=3, align=32, n_kv=None, n_tensors=None):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                                len(pairs) if n_kv is None else n_kv)
    out += b"".join(pairs) + b"".join(tensors)
    return out + (b"\0" * (-len(out) % align) + data if tensors else b"")


def seeds():
    arch = pair("general.architecture", STR, "llama")
    one = tensor("w", 0, [8], 0)
    yield "empty-v3", gguf()
    yield "empty-v2", gguf(version=2)
    yield "scalars", gguf([pair(f"k{k}", k, 1) for k in PACK] + [arch])
    yield "arrays", gguf([array(f"k{k}", k, [1, 0, 1]) for k in PACK] +
                         [array("s", STR, ["", "a", b"\xff"]), array("none", STR, [])])
    yield "one-tensor", gguf([arch], [one], b"\1" * 32)
    yield "align-64", gguf([pair("general.alignment", U32, 64)], [one], b"\1" * 32, align=64)
    kinds = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 14: (256, 210),
             30: (1, 2), 39: (32, 17), 41: (128, 18)}
    tensors, data = [], b""
    for kind, (elems, size) in kinds.items():
        tensors.append(tensor(f"blk.{kind}.weight", kind, [elems, 2], len(data)))
        data += b"\7" * (2 * size)
        data += b"\0" * (-len(data) % 32)
    yield "types", gguf([arch], tensors, data)
    yield "four-dims", gguf([], [tensor("w", 24, [2, 3, 4, 5], 0)], b"\2" * 120)
    yield "unordered", gguf([], [tensor("b", 0, [8], 32), tensor("a", 0, [8], 0)], b"\3" * 64)
    yield "bad-overlap", gguf([], [tensor("b", 0, [9], 0), tensor("a", 0, [8], 32)], b"\3" * 96)
    yield "bad-split-part", gguf([pair("split.no", U16, 1), pair("split.count", U16, 2)])
    yield "bad-string-gib", gguf([string("k") + struct.pack("<IQ", STR, 1 << 30) + b"x" * 100])
    yield "bad-array-gib", gguf([string("k") + struct.pack("<IIQ", ARR, STR, 1 << 30) + b"x" * 100])
    yield "bad-n-tensors", gguf([arch], [one], b"\1" * 32, n_tensors=(1 << 64) // 104 - 1)
    yield "bad-n-kv", gguf([arch], n_kv=(1 << 64) - 1)
    yield "bad-nested", gguf([string("k") + struct.pack("<IIQ", ARR, ARR, 1) + b"\0" * 40])
    yield "bad-type", gguf([], [tensor("w", 31, [256], 0)], b"\0" * 256)
    yield "bad-big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    yield "bad-v1", b"GGUF" + struct.pack("<III", 1, 0, 0)
    yield "bad-safetensors", struct.pack("<Q", 2) + b"{}"
    yield "bad-html", b"<!DOCTYPE html><html></html>"


if __name__ == "__main__":
    for name, data in seeds():
        with open(os.path.join(sys.argv[1], name), "wb") as f:
            f.write(data)
