#!/usr/bin/env python3
"""Write the seed files of fuzz_safetensors: small files, right ones and wrong ones.

    make_safetensors_seeds.py FOLDER
"""
import json
import os
import struct
import sys


def file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def seeds():
    one = {"w": tensor("F32", [2, 3], 0, 24)}
    data = bytes(range(64))
    yield "one", file(one, data[:24])
    yield "types", file({"__metadata__": {"format": "pt"}, "a": tensor("F16", [4], 0, 8), "b": tensor("BF16", [2, 2], 8, 16),
                         "c": tensor("I64", [1, 2], 16, 32), "d": tensor("I8", [], 32, 33)}, data[:33])
    yield "bert", file({"embeddings.word_embeddings.weight": tensor("F32", [2, 4], 0, 32),
                        "pooler.dense.bias": tensor("F32", [4], 32, 48)}, data[:48])
    yield "short", file(one, data[:20])
    yield "overlap", file({"a": tensor("I8", [8], 0, 8), "b": tensor("I8", [8], 4, 12)}, data[:12])
    yield "wrong-size", file({"w": tensor("F32", [2, 3], 0, 20)}, data[:24])
    yield "backwards", file({"w": tensor("I8", [4], 8, 4)}, data[:8])
    yield "misaligned", file({"w": tensor("F32", [1], 2, 6)}, data[:8])
    yield "negative", file({"w": tensor("I8", [-4], 0, 4)}, data[:8])
    yield "zero", file({"w": tensor("I8", [0], 0, 0)}, data[:8])
    yield "huge", file({"w": tensor("F64", [1 << 40, 1 << 40], 0, 8)}, data[:8])
    yield "dims", file({"w": tensor("I8", [1, 1, 1, 1, 1], 0, 1)}, data[:8])
    yield "dtype", file({"w": tensor("F8_E4M3", [1], 0, 1)}, data[:8])
    yield "no-dtype", file({"w": {"shape": [1], "data_offsets": [0, 1]}}, data[:8])
    yield "float-offset", file({"w": tensor("I8", [1], 0.5, 1.5)}, data[:8])
    yield "twice", file(b'{"w":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"w":{}}', data[:8])
    yield "deep", file(b'{"w":' + b"[" * 300 + b"]" * 300 + b"}", data[:8])
    yield "wide", file(b'{"w":[' + b"[]," * 300 + b"[]]}", data[:8])
    yield "cut", file(b'{"w":{"dtype":"I8"', data[:8])
    yield "long-header", file(one, data[:24], length=1 << 20)
    yield "empty", file({})
    yield "nul-name", file(b'{"w\\u0000x":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}', data[:8])


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, content in seeds():
        with open(os.path.join(sys.argv[1], name), "wb") as f:
            f.write(content)


if __name__ == "__main__":
    main()
