"""SmolLM2-135M against stored references (tests/data/golden/smollm2.json; its README says how they
were made): ids, templates, log-probabilities, greedy tokens, perplexity. The tolerances are those of
that README: 2e-4 for f32 activations, mean 0.06 and worst 0.6 for 8-bit activations."""
import hashlib
import json
import os
import subprocess

import numpy as np
import pytest

from conftest import PROGRAM, ROOT

GOLDEN = os.path.join(ROOT, "tests", "data", "golden")
with open(os.path.join(GOLDEN, "smollm2.json"), encoding="utf8") as f:
    REF = json.load(f)
PROMPTS = REF["prompts"]


def logprobs(model, ids, tmp_path, *options):
    """Natural log-probabilities [len(ids), n_vocab] of every position."""
    ids_file, out = tmp_path / "ids.txt", tmp_path / "out.npy"
    ids_file.write_text(" ".join(map(str, ids)))
    subprocess.run([PROGRAM, "logits", "-m", model, "--ids-file", ids_file, "-o", out, "-c", "512", *options],
                   check=True)
    x = np.load(out).astype(np.float64)
    assert x.shape[0] == len(ids)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def forced_error(model, prompt, tmp_path, *options):
    ids, n = prompt["prompt_ids"], len(prompt["prompt_ids"])
    forced = prompt["llamacpp"]["ids"]
    lp = logprobs(model, ids + forced, tmp_path, *options)
    got = np.array([lp[n - 1 + i, t] for i, t in enumerate(forced)])
    return np.abs(got - np.array(prompt["forced_logprobs"]))


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p["id"])
def test_exact_logprobs(prompt, model, tmp_path):
    assert forced_error(model, prompt, tmp_path, "--exact").max() <= 2e-4


def test_logprobs_with_8_bit_activations(model, tmp_path):
    errors = np.concatenate([forced_error(model, p, tmp_path) for p in PROMPTS])
    assert errors.mean() <= 0.06
    assert errors.max() <= 0.6


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p["id"])
def test_greedy_tokens(prompt, model, tmp_path):
    """Fed the reference's greedy tokens, the likeliest next one is the reference's at every step, while
    the margin between the two best stays above 0.02."""
    ids, n, ref = prompt["prompt_ids"], len(prompt["prompt_ids"]), prompt["exact"]
    best = logprobs(model, ids + ref["ids"], tmp_path, "--exact").argmax(axis=1)
    checked = 0
    for i, (token, margin) in enumerate(zip(ref["ids"], ref["margins"])):
        if margin <= 0.02:
            continue
        assert best[n - 1 + i] == token, f"step {i}"
        checked += 1
    assert checked > 0


@pytest.mark.parametrize("prompt", [p for p in PROMPTS if p["kind"] == "raw"], ids=lambda p: p["id"])
def test_raw_prompt_ids(prompt, model):
    out = subprocess.run([PROGRAM, "tokenize", "-m", model, "--json"], input=prompt["text"].encode(), check=True,
                         stdout=subprocess.PIPE).stdout
    assert json.loads(out) == prompt["prompt_ids"]


@pytest.mark.parametrize("prompt", [p for p in PROMPTS if p["kind"] == "chat"], ids=lambda p: p["id"])
def test_chat_prompt_ids(prompt, server):
    status, reply = server.post("/apply-template", {"messages": prompt["messages"]})
    assert status == 200
    text = reply["prompt"]
    if "rendered_sha256" in prompt:
        assert hashlib.sha256(text.encode()).hexdigest() == prompt["rendered_sha256"]
    else:
        assert text == prompt["rendered"]
    status, reply = server.post("/tokenize", {"content": text})
    assert (status, reply["tokens"]) == (200, prompt["prompt_ids"])


@pytest.mark.parametrize("options,key", [(("--exact",), "exact"), ((), "llamacpp")], ids=["exact", "8-bit"])
def test_perplexity(options, key, model):
    out = subprocess.run([PROGRAM, "perplexity", "-m", model, "-c", "512", "--json", *options,
                          "-f", os.path.join(GOLDEN, "ppl_text.txt")], check=True, stdout=subprocess.PIPE).stdout
    got, want = json.loads(out), REF["perplexity"]["own_text"][key]
    assert got["n_chunks"] == len(want["running"])
    assert abs(got["perplexity"] / want["ppl"] - 1) <= 0.005


def test_greedy_text_of_vulkan_is_the_cpus(model):
    """With f32 activations, but where the best two tokens are nearer than 0.02; few tokens, for the driver is software."""
    r = subprocess.run([PROGRAM, "check", model, "--device", "lavapipe", "--against", "cpu", "--exact", "-n", "4", "--json"],
                       capture_output=True, text=True)
    if r.returncode and "lavapipe" in r.stderr:
        pytest.skip("no software driver of Vulkan: " + r.stderr.strip())
    rows = json.loads(r.stdout)
    assert len(rows) == 4 and r.returncode == 0
    for row in rows:
        assert row["same"] + row["ties"] == 4, row
