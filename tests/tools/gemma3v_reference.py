#!/usr/bin/env python3
"""Vectors of the picture of gemma3v.npz, computed in f64 from mmproj-gemma3v.gguf alone.

    gemma3v_reference.py tests/data/golden     writes gemma3v-tower.npz there

gemma3v.npz holds what torch made of the model before its projection was rounded to F16 for the file; an engine that
reads the file cannot give the same numbers. These are what the file means, by a program of its own. Needs numpy and
the gguf package.
"""
import sys

import gguf
import numpy as np


def main(folder):
    w = {t.name: t.data.astype(np.float64) for t in gguf.GGUFReader(f"{folder}/mmproj-gemma3v.gguf").tensors}
    golden = np.load(f"{folder}/gemma3v.npz")
    p, d, heads, merge, eps = 8, 48, 4, 2, 1e-6
    x = golden["image"].astype(np.float64) / 255
    x = (x - 0.5) / 0.5
    n = x.shape[0] // p
    patches = x.reshape(n, p, n, p, 3).transpose(0, 2, 4, 1, 3).reshape(n * n, 3 * p * p)

    def norm(v, name):
        v = v - v.mean(-1, keepdims=True)
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + eps) * w[name + ".weight"] + w[name + ".bias"]

    def linear(v, name):
        return v @ w[name + ".weight"].T + w[name + ".bias"]

    h = patches @ w["v.patch_embd.weight"].reshape(d, -1).T + w["v.patch_embd.bias"] + w["v.position_embd.weight"]
    for layer in range(2):
        at = f"v.blk.{layer}."
        q, k, v = (linear(norm(h, at + "ln1"), at + part).reshape(-1, heads, d // heads).transpose(1, 0, 2)
                   for part in ("attn_q", "attn_k", "attn_v"))
        s = q @ k.transpose(0, 2, 1) / np.sqrt(d // heads)
        s = np.exp(s - s.max(-1, keepdims=True))
        y = (s / s.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(-1, d)
        h = h + linear(y, at + "attn_out")
        u = linear(norm(h, at + "ln2"), at + "ffn_up")
        u = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u ** 3)))
        h = h + linear(u, at + "ffn_down")
    h = norm(h, "v.post_ln").reshape(n // merge, merge, n // merge, merge, d).mean((1, 3)).reshape(-1, d)
    h = h / np.sqrt((h * h).mean(-1, keepdims=True) + eps) * w["mm.soft_emb_norm.weight"]
    embd = h @ w["mm.input_projection.weight"]
    print("largest difference from torch's:", np.abs(embd - golden["image_embd"]).max())
    bound = np.abs(h) @ np.abs(w["mm.input_projection.weight"]) * 2.0 ** -11
    print("largest part of what rounding the projection to F16 may do:", (np.abs(embd - golden["image_embd"]) / bound).max())
    np.savez_compressed(f"{folder}/gemma3v-tower.npz", image_embd=embd.astype(np.float32),
                        source="numpy, f64, from mmproj-gemma3v.gguf alone")


if __name__ == "__main__":
    main(sys.argv[1])
