#!/usr/bin/env python3
"""Write a Laya GGUF back as the folder that is published: make_laya_folder.py FILE.gguf DIR [--flat]

model.safetensors, rl_agent_config.json, encoder/config.json and tokenizer/ (with --flat the last two lie beside the
weights). For tests of the reader of such folders: both must give the same answers.
"""
import json
import os
import struct
import sys

import numpy as np
from gguf import GGUFReader

HEAD = {"attn_norm": "norm1", "ffn_norm": "norm2", "attn_output": "self_attn.out_proj", "ffn_up": "linear1", "ffn_down": "linear2"}
BODY = {"attn_norm": "attn_norm", "ffn_norm": "mlp_norm", "attn_qkv": "attn.Wqkv", "attn_output": "attn.Wo", "ffn_up": "mlp.Wi", "ffn_down": "mlp.Wo"}
FIXED = {"token_embd": "encoder.embeddings.tok_embeddings", "token_embd_norm": "encoder.embeddings.norm", "output_norm": "encoder.final_norm",
         "token_types": "type_emb", "cls.norm": "scorer.0", "cls": "scorer.1", "cls.output": "scorer.3"}
QWEN2 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"


def published_name(name, n_encoder):
    stem, part = name.rsplit(".", 1)
    if not stem.startswith("blk."):
        return f"{FIXED[stem]}.{part}"
    _, layer, what = stem.split(".")
    layer = int(layer)
    if layer < n_encoder:
        return f"encoder.layers.{layer}.{BODY[what]}.{part}"
    if what == "attn_qkv":
        return f"head.layers.{layer - n_encoder}.self_attn.in_proj_{part}"
    return f"head.layers.{layer - n_encoder}.{HEAD[what]}.{part}"


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, v in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(v.shape), "data_offsets": [at, at + v.nbytes]}
        at += v.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for v in tensors.values():
            f.write(np.ascontiguousarray(v, np.float32).tobytes())


def main():
    src, out, flat = sys.argv[1], sys.argv[2], "--flat" in sys.argv
    r = GGUFReader(src)
    key = lambda k: r.fields[k].contents()
    arch = lambda k: key("modern-bert." + k)
    n_encoder = arch("block_count") - arch("decision.block_count")
    tensors = {published_name(t.name, n_encoder): np.array(t.data, np.float32) for t in r.tensors}
    d = arch("embedding_length")
    tensors["act_head.0.weight"] = np.zeros((8, d + 4), np.float32)
    tensors["temperature"] = np.ones(3, np.float32)
    enc, tok = (out, out) if flat else (os.path.join(out, "encoder"), os.path.join(out, "tokenizer"))
    for p in (out, enc, tok):
        os.makedirs(p, exist_ok=True)
    write_safetensors(os.path.join(out, "model.safetensors"), tensors)
    dump = lambda p, v: json.dump(v, open(p, "w", encoding="utf8"))
    dump(os.path.join(out, "rl_agent_config.json"),
         {"max_len": arch("context_length"), "temperature": [arch("decision.temperature." + t) for t in ("choice", "score", "noul")],
          "temperature_by_options": {"choice:6-10": 2.5}})
    dump(os.path.join(enc, "config.json"),
         {"num_attention_heads": arch("attention.head_count"), "norm_eps": arch("attention.layer_norm_epsilon"), "local_attention": arch("attention.sliding_window"),
          "global_attn_every_n_layers": arch("attention.sliding_window_pattern"), "global_rope_theta": arch("rope.freq_base"), "local_rope_theta": arch("rope.freq_base_swa")})
    words, kinds = key("tokenizer.ggml.tokens"), key("tokenizer.ggml.token_type")
    names = {"cls_token": "cls", "sep_token": "seperator", "mask_token": "mask"}
    dump(os.path.join(tok, "tokenizer_config.json"), {n: words[key(f"tokenizer.ggml.{k}_token_id")] for n, k in names.items()})
    dump(os.path.join(tok, "tokenizer.json"),
         {"model": {"type": "BPE", "vocab": {w: i for i, w in enumerate(words) if kinds[i] == 1}, "merges": key("tokenizer.ggml.merges")},
          "added_tokens": [{"id": i, "content": w, "special": kinds[i] == 3} for i, w in enumerate(words) if kinds[i] != 1],
          "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": QWEN2}}, {"type": "ByteLevel", "use_regex": False}]}})


if __name__ == "__main__":
    main()
