"""serve --long-model: which model a conversation goes to, that it stays there, that both answer as they would alone."""
import json
import os
import subprocess

import pytest

from conftest import PROGRAM, ROOT, Server, sse_frames, wait_until

GOLDEN = os.path.join(ROOT, "tests", "data", "golden")
LAYA = os.path.join(GOLDEN, "laya.gguf")
FROM = 2048


def run(*args):
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def rotated(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rotated")
    run("quantize", model, folder / "f32.gguf", "F32", "--allow-requantize", "-q")
    run("rotate", folder / "f32.gguf", folder / "rotated.gguf", "-q")
    os.unlink(folder / "f32.gguf")
    return str(folder / "rotated.gguf")


@pytest.fixture(scope="session")
def both(serve, rotated):
    return serve("-c", "4096", "--parallel", "2", "--long-model", rotated, "--alias", "demo")


def prompt_of(server, n):
    """One message whose rendered prompt has n tokens."""
    words = n
    for _ in range(20):
        messages = [{"role": "user", "content": "Say it again: " + " hill" * words}]
        text = server.post("/apply-template", {"messages": messages})[1]["prompt"]
        have = len(server.post("/tokenize", {"content": text, "add_special": False})[1]["tokens"])
        if have == n:
            return messages
        words += n - have
    raise AssertionError(f"no prompt of {n} tokens")


def chat(server, messages, headers=None, **fields):
    """(route as a list of words, answer)"""
    status, h, data = server.request("/v1/chat/completions", {"messages": messages, "max_tokens": 4, "temperature": 0, **fields},
                                     headers=headers)
    assert status == 200, data
    return h["X-1bit-Route"].split(" "), json.loads(data) if not fields.get("stream") else data


def count(answer):
    return str(answer["usage"]["prompt_tokens"])


def test_length_decides_and_the_second_turn_stays(both):
    """Row D6: 1,900 and 2,100 tokens, then a second turn; the number is that of /tokenize and of usage."""
    for n, side in ((1900, "short"), (FROM - 1, "short"), (FROM, "long"), (2100, "long")):
        first = prompt_of(both, n)
        route, answer = chat(both, first)
        assert route == [side, str(n), "cpu"] and count(answer) == str(n)
        again = [*first, {"role": "assistant", "content": "hill"}, {"role": "user", "content": "And now?"}]
        route, answer = chat(both, again)
        assert route == [side, count(answer), "cpu"]
        # the prompt's beginning is in the cache of the side that had the first turn
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > n - 64


def test_a_short_conversation_that_grows_stays(both):
    first = [{"role": "user", "content": "How far is the harbour?"}]
    assert chat(both, first)[0][0] == "short"
    grown = [*first, {"role": "assistant", "content": "Far."}, *prompt_of(both, 2100)]
    route, answer = chat(both, grown)
    assert route[0] == "short" and int(count(answer)) >= FROM


def test_streams_and_completions(both):
    status, h, data = both.request("/v1/chat/completions", {"messages": prompt_of(both, 2101), "max_tokens": 4, "stream": True})
    frames, done = sse_frames(data)
    assert status == 200 and done and frames and h["X-1bit-Route"] == "long 2101 cpu"
    for n, side in ((FROM - 1, "short"), (FROM, "long")):
        status, h, data = both.request("/v1/completions", {"prompt": [7] * n, "max_tokens": 2})
        assert status == 200 and h["X-1bit-Route"] == f"{side} {n} cpu"


def test_both_answer_as_alone(both, serve, rotated):
    """Greedy texts of the two sides are those of a server with that file alone."""
    plain = serve("-c", "4096", "--parallel", "2")
    alone = Server([PROGRAM, "serve", "-m", rotated, "--port", "0", "-c", "4096", "--parallel", "2"])
    try:
        for n, other in ((60, plain), (300, plain), (2060, alone), (2200, alone)):
            messages = prompt_of(both, n)
            _, mixed = chat(both, messages, max_tokens=24, ignore_eos=True)
            status, single = other.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 24,
                                                                 "ignore_eos": True})
            assert status == 200
            assert mixed["choices"][0]["message"]["content"] == single["choices"][0]["message"]["content"]
            assert mixed["system_fingerprint"] == single["system_fingerprint"]
            assert mixed["model"] == "demo"
    finally:
        alone.stop()


def test_what_the_server_tells(both):
    _, models = both.get("/v1/models")
    short, long = models["data"][:2]
    assert [short["id"], long["id"]] == ["demo", "rotated"]
    # norms, the table of embeddings and the output matrix are equal in both files
    assert short["meta"]["shared_bytes"] == 0 and long["meta"]["shared_bytes"] > 50e6
    assert both.get("/v1/models/rotated")[1]["id"] == "rotated"
    assert both.get("/health")[1]["long_model"] == {"id": "rotated", "device": "cpu", "state": "ready", "from": FROM}
    before = both.metrics()
    chat(both, [*prompt_of(both, 2150)])
    after = both.metrics()
    grown = lambda name: after.get(name, 0) - before.get(name, 0)
    assert grown('onebit_routed_total{class="long",target="long"}') == 1
    assert grown("onebit_requests_total") == 1
    assert grown("onebit_prompt_tokens_total") + grown("onebit_cached_tokens_total") >= 2149
    status, e = both.post("/v1/routing/explain", {"messages": prompt_of(both, 2100)})
    assert status == 200 and (e["target"], e["n_prompt"]) == ("long", 2100)
    target = next(t for t in e["targets"] if t["target"] == "long")
    assert (target["device"], target["model"], target["from"], target["state"]) == ("cpu", "rotated", FROM, "ready")
    line = e["trace"][0]
    assert (line["class"], line["target"], line["n_prompt"]) == ("long", "long", 2150)
    e = both.get("/v1/routing/explain?text=hello")[1]
    assert (e["target"], e["n_prompt"]) == ("cpu", 1)


def test_a_request_may_choose(both):
    messages = [{"role": "user", "content": "Which of you is it?"}]
    route, answer = chat(both, messages, model="rotated")
    assert route[0] == "long" and answer["model"] == "rotated"
    assert chat(both, messages, headers={"X-1bit-Target": "long"})[0][0] == "long"
    assert chat(both, messages)[0][0] == "short"  # a wish is for one request
    assert chat(both, prompt_of(both, 2300), headers={"X-1bit-Target": "default"})[0][0] == "short"
    assert both.chat("x", model="neither")[0] == 404


def test_own_context_of_the_long_model(fake, model, rotated):
    """What the long model cannot hold stays with the served one."""
    s = fake("long=" + rotated, "long_from=20", "ctx=100")
    assert chat(s, prompt_of(s, 60))[0][:2] == ["long", "60"]
    status, e = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": " hill" * 200}]})
    assert status == 400 and e["error"]["code"] == "context_length_exceeded"


def test_lost_long_model(fake, rotated, tmp_path):
    """Its conversations go on with the served model, and that is said once."""
    lost = tmp_path / "lost"
    s = fake("long=" + rotated, "long_from=40", "long_device=gpu", env={"FAKE_LOST_FILE": str(lost)})
    first = prompt_of(s, 60)
    assert chat(s, first)[0] == ["long", "60", "gpu"]
    lost.write_text("gpu")
    route, _ = chat(s, [*first, {"role": "assistant", "content": "hill"}, {"role": "user", "content": "More."}])
    assert route[0] == "short" and route[2] == "fake"
    assert chat(s, prompt_of(s, 61))[0] == ["short", "61", "fake"]
    assert s.get("/health")[1]["long_model"]["state"] == "dead"
    assert sum("long failed" in x for x in s.log) == 1


def test_with_laya(fake, rotated, tmp_path):
    """Length comes first; the rest goes by class."""
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"min_confidence": 0, "default": "fake",
                                  "classes": {c: {"device": "other"} for c in ("code", "prose", "short", "long_doc")}}))
    s = fake("long=" + rotated, "long_from=80", "long_device=gpu", "policy=" + str(policy), "scorer=" + LAYA)
    chat(s, [{"role": "user", "content": "wake up"}])
    state = lambda: {t["target"]: t["state"] for t in s.get("/v1/routing/explain")[1]["targets"]}
    assert wait_until(lambda: state().get("other") == "ready", 10) is not None
    assert chat(s, prompt_of(s, 80))[0] == ["long", "80", "gpu"]
    route, _ = chat(s, prompt_of(s, 79))
    assert route[0] in ("code", "prose", "short", "long_doc") and route[2] == "other"
    first = [{"role": "user", "content": "Another matter."}]
    assert chat(s, first)[0][2] == "other"
    grown = [*first, {"role": "assistant", "content": "Yes?"}, *prompt_of(s, 120)]
    assert chat(s, grown)[0][2] == "other"
    e = s.post("/v1/routing/explain", {"messages": prompt_of(s, 90)})[1]
    assert e["target"] == "long" and e["class"] and e["n_prompt"] == 90


def refused(*args):
    done = subprocess.run([PROGRAM, "serve", "--port", "0", *map(str, args)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_refusals(model, rotated, tmp_path):
    golden = lambda name: os.path.join(GOLDEN, name)
    template = tmp_path / "template.gguf"
    raw = open(rotated, "rb").read()
    template.write_bytes(raw.replace(b"<|im_start|>system\\nYou are", b"<|im_start|>system\\nI am a", 1)
                         if b"<|im_start|>system\\nYou are" in raw else raw.replace(b"add_generation_prompt", b"add_generation_promPt", 1))
    for args, rc, words in (
            (("-m", model, "--long-model", golden("llama.gguf")), 1, ["llama.gguf", os.path.basename(model), "vocabularies"]),
            (("-m", model, "--long-model", template), 1, ["template.gguf", os.path.basename(model), "chat templates differ"]),
            (("-m", model, "--long-model", tmp_path / "none.gguf"), 1, ["none.gguf"]),
            (("-m", rotated, "--long-model", model), 1, ["Hadamard-rotated", "rotated.gguf", os.path.basename(model)]),
            (("-m", model, "--long-model", rotated, "--long-from", "0"), 2, ["--long-from"]),
            (("-m", model, "--long-model", rotated, "--long-from", "-5"), 2, ["--long-from"]),
            (("-m", model, "--long-from", "100"), 2, ["--long-model"]),
            (("-m", model, "--long-device", "cpu"), 2, ["--long-model"]),
            (("-m", model, "--long-model", rotated, "-c", "2048"), 1, ["--long-from 2048", "rotated.gguf", "--ctx-size"]),
            (("-m", model, "--long-model", rotated, "--long-device", "null"), 1, ["Hadamard-rotated", "rotated.gguf"]),
            (("-m", model, "--long-model", rotated, "--long-device", "abacus"), 1, ["abacus", "rotated.gguf"]),
            (("-m", golden("bert.gguf"), "--long-model", rotated), 1, ["encoder"])):
        code, said = refused(*args)
        assert code == rc, (args, said)
        for word in words:
            assert word in said, (args, said)


def test_4_bit_activations_are_the_long_models(serve, rotated):
    """--act4 is about rotated files, so it does not reach the served one."""
    s = serve("-c", "4096", "--parallel", "1", "--long-model", rotated, "--long-from", "50", "--act4", "all")
    assert chat(s, prompt_of(s, 60))[0][0] == "long"
    assert chat(s, prompt_of(s, 49))[0][0] == "short"
