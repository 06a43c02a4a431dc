"""Folders of Hugging Face (Llama, Qwen2, Qwen3): made here out of golden GGUF files, names and row order turned back; what
`1bit quantize` makes of a folder must be the golden model again."""
import json
import os
import re
import struct
import subprocess

import numpy as np
import pytest
from gguf import GGUFReader

from conftest import PROGRAM, ROOT

GOLDEN = os.path.join(ROOT, "tests", "data", "golden")
NAMES = {"attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
         "attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight",
         "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
         "attn_output.weight": "self_attn.o_proj.weight",
         **{f"attn_{x}.{w}": f"self_attn.{x}_proj.{w}" for x in "qkv" for w in ("weight", "bias")}}
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def golden(name):
    return os.path.join(GOLDEN, name + ".gguf")


def run(*args, check=True):
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done


def hf_name(name):
    if name.startswith("blk."):
        _, layer, rest = name.split(".", 2)
        return f"model.layers.{layer}.{NAMES[rest]}"
    return {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight", "output_norm.weight": "model.norm.weight"}[name]


def in_halves(x, heads):
    """GGUF's neighbours back to Hugging Face's halves."""
    return x.reshape(heads, -1, 2, x.shape[-1]).swapaxes(1, 2).reshape(x.shape)


def encode(x, dtype):
    if dtype == "F32":
        return x.astype(np.float32).tobytes()
    if dtype == "F16":
        return x.astype(np.float16).tobytes()
    bits = x.astype(np.float32).view(np.uint32)  # BF16: round to nearest, ties to even
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def write_safetensors(path, tensors, dtype):
    head, at, data = {}, 0, b""
    for name, x in tensors.items():
        raw = encode(x, dtype)
        head[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data += raw
    text = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_folder(folder, name, dtype="F32", shards=1, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    r = GGUFReader(golden(name))
    get = lambda key: r.fields[key].contents()
    arch = get("general.architecture")
    heads = {"q": get(f"{arch}.attention.head_count"), "k": get(f"{arch}.attention.head_count_kv")}
    tensors = {}
    for t in r.tensors:
        if t.name == "rope_freqs.weight":
            continue
        x = np.array(t.data)
        m = re.fullmatch(r"blk\.\d+\.attn_([qk])\.weight", t.name)
        tensors[hf_name(t.name)] = in_halves(x, heads[m[1]]) if m and arch == "llama" else x
    names = list(tensors)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
    else:
        where = {}
        for i in range(shards):
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            part = {n: tensors[n] for n in names[i::shards]}
            write_safetensors(folder / file, part, dtype)
            where |= dict.fromkeys(part, file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    d = get(f"{arch}.embedding_length")
    config = {"model_type": arch, "num_hidden_layers": get(f"{arch}.block_count"), "hidden_size": d,
              "intermediate_size": get(f"{arch}.feed_forward_length"), "num_attention_heads": heads["q"], "num_key_value_heads": heads["k"],
              "max_position_embeddings": get(f"{arch}.context_length"), "rms_norm_eps": float(get(f"{arch}.attention.layer_norm_rms_epsilon")),
              "rope_theta": float(get(f"{arch}.rope.freq_base")), "hidden_act": "silu",
              "tie_word_embeddings": "output.weight" not in [t.name for t in r.tensors]}
    if f"{arch}.attention.key_length" in r.fields:
        config["head_dim"] = get(f"{arch}.attention.key_length")
    config |= changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    tokens, types = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    added = [{"id": i, "content": t, "special": True} for i, (t, k) in enumerate(zip(tokens, types)) if k == 3]
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": added, "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": get("tokenizer.ggml.merges")},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": SPLIT}}, {"type": "ByteLevel"}]}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": tokens[get("tokenizer.ggml.bos_token_id")], "eos_token": {"content": tokens[get("tokenizer.ggml.eos_token_id")]},
        "pad_token": tokens[get("tokenizer.ggml.padding_token_id")], "add_bos_token": False, "chat_template": get("tokenizer.chat_template")}))
    return folder


def logits(model, tmp_path):
    ids, out = tmp_path / "ids.txt", tmp_path / "logits.npy"
    ids.write_text(" ".join(str(3 + 7 * i % 400) for i in range(40)))
    run("logits", "-m", model, "--ids-file", ids, "-o", out, "--exact", "--device", "cpu")
    return np.load(out)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_becomes_the_model(name, shards, tmp_path):
    """F32 in, F32 out: the logits are those of the golden file, bit for bit; vocabulary and template are there."""
    folder, out = make_folder(tmp_path / "model", name, shards=shards), tmp_path / "out.gguf"
    run("quantize", folder, out, "F32")
    np.testing.assert_array_equal(logits(out, tmp_path), logits(golden(name), tmp_path))
    ours, theirs = (GGUFReader(p) for p in (out, golden(name)))
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
                "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.chat_template", "general.architecture"):
        assert ours.fields[key].contents() == theirs.fields[key].contents(), key
    assert {t.name: (t.tensor_type, t.data.tobytes()) for t in ours.tensors} == {t.name: (t.tensor_type, t.data.tobytes()) for t in theirs.tensors}


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_types_of_sources(name, dtype, tmp_path):
    """F16 and BF16: quantised matrices are those of the golden file with the same rounding first; vectors become F32."""
    folder, half, a, b = make_folder(tmp_path / "model", name, dtype), tmp_path / "half.gguf", tmp_path / "a.gguf", tmp_path / "b.gguf"
    run("quantize", golden(name), half, dtype)
    for kind in ("Q4_K_M", dtype):
        run("quantize", folder, a, kind)
        run("quantize", half, b, kind)
        want = {t.name: t for t in GGUFReader(b).tensors}
        got = {t.name: t for t in GGUFReader(a).tensors}
        assert sorted(want) == sorted(got)
        for n, t in got.items():
            assert t.tensor_type == want[n].tensor_type, n
            if len(t.shape) > 1:
                assert t.data.tobytes() == want[n].data.tobytes(), n
            else:
                np.testing.assert_allclose(t.data, want[n].data, rtol=2 ** -8)
    run("rotate", folder, a)
    run("rotate", half, b)
    assert [t.data.tobytes() for t in GGUFReader(a).tensors if len(t.shape) > 1] == \
           [t.data.tobytes() for t in sorted(GGUFReader(b).tensors, key=lambda t: [x.name for x in GGUFReader(a).tensors].index(t.name)) if len(t.shape) > 1]


def test_llama_3_scaling(tmp_path):
    """The divisors of Llama 3's scaled frequencies, from its published formula."""
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    folder, out = make_folder(tmp_path / "model", "llama", rope_scaling=rope), tmp_path / "out.gguf"
    run("quantize", folder, out, "F32")
    got = next(t.data for t in GGUFReader(out).tensors if t.name == "rope_freqs.weight")
    want = []
    for f in 1 / 10000.0 ** (np.arange(0, 16, 2) / 16):
        wave = 2 * np.pi / f
        smooth = (64 / wave - 1) / 3
        want.append(1 if wave < 16 else 8 if wave > 64 else 1 / ((1 - smooth) / 8 + smooth))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_qwen_runs_from_its_folder(tmp_path):
    """Where rows lie as they should, no conversion is needed; Llama's do not, and that is said."""
    np.testing.assert_array_equal(logits(make_folder(tmp_path / "qwen", "qwen3"), tmp_path), logits(golden("qwen3"), tmp_path))
    done = run("run", "-m", make_folder(tmp_path / "llama", "llama"), "--raw", "-n", "1", "x", check=False)
    assert done.returncode == 1 and "1bit quantize" in done.stderr


@pytest.mark.parametrize("changes,words", [({"model_type": "gpt_neox"}, "gpt_neox"), ({"hidden_act": "gelu"}, "hidden_act"),
                                           ({"num_hidden_layers": ...}, "num_hidden_layers"), ({"attention_bias": True}, "attention_bias"),
                                           ({"rope_scaling": {"type": "spiral"}}, "spiral")])
def test_what_is_not_known_is_refused(changes, words, tmp_path):
    done = run("quantize", make_folder(tmp_path / "model", "llama", **changes), tmp_path / "out.gguf", "Q8_0", check=False)
    assert done.returncode == 1 and words in done.stderr and not (tmp_path / "out.gguf").exists()


def test_missing_pieces_are_named(tmp_path):
    folder = make_folder(tmp_path / "model", "llama", shards=2)
    os.unlink(folder / "model-00002-of-00002.safetensors")
    done = run("quantize", folder, tmp_path / "out.gguf", "Q8_0", check=False)
    assert done.returncode == 1 and "model-00002-of-00002.safetensors" in done.stderr
    folder = make_folder(tmp_path / "other", "llama")
    os.unlink(folder / "tokenizer.json")
    assert "tokenizer.json" in run("quantize", folder, tmp_path / "out.gguf", "Q8_0", check=False).stderr
    done = run("convert", make_folder(tmp_path / "third", "llama"), tmp_path / "out.1bp", check=False)
    assert done.returncode == 1 and "only GGUF" in done.stderr
