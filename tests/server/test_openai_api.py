"""The API as the real `openai` client and plain HTTP see it, with the demo model behind it."""
import concurrent.futures
import json
import os
import time

import openai
import pytest

from conftest import ROOT, http_post, sse_frames, wait_until

GOLDEN = json.load(open(os.path.join(ROOT, "tests/data/golden/smollm2.json"), encoding="utf8"))
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


# --- chat -------------------------------------------------------------------------------------------

def test_chat(client, server):
    golden = next(p for p in GOLDEN["prompts"] if p["id"] == "chat-long")  # margins above 0.2 throughout
    r = client.chat.completions.create(model="demo", messages=golden["messages"], temperature=0,
                                       max_tokens=len(golden["exact"]["ids"]))
    ids = [i for i in golden["exact"]["ids"] if i != 2]  # without the end of the turn
    assert r.choices[0].message.content == server.post("/detokenize", {"tokens": ids})[1]["content"]
    assert r.usage.prompt_tokens == len(golden["prompt_ids"])
    assert r.object == "chat.completion" and r.model == "demo" and r.id.startswith("chatcmpl-")
    assert r.choices[0].finish_reason in ("stop", "length")
    assert r.usage.prompt_tokens > 10
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert abs(r.created - time.time()) < 60
    t = r.timings
    assert t["prompt_n"] + t["cache_n"] == r.usage.prompt_tokens
    assert t["predicted_n"] == r.usage.completion_tokens
    assert t["predicted_per_second"] > 1 and t["predicted_ms"] > 0


def test_chat_stream(client):
    whole = client.chat.completions.create(model="demo", messages=FRANCE, temperature=0, max_tokens=40)
    chunks = list(client.chat.completions.create(
        model="demo", messages=FRANCE, temperature=0, max_tokens=40, stream=True,
        stream_options={"include_usage": True}))
    assert len(chunks) > 5
    assert {c.id for c in chunks} == {chunks[0].id}
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    plain = list(client.chat.completions.create(model="demo", messages=FRANCE, max_tokens=3, stream=True))
    assert all(c.usage is None and c.choices for c in plain)


def test_template_ids_equal_the_golden_ones(server):
    for p in GOLDEN["prompts"]:
        if p["kind"] == "chat":
            status, r = server.post("/apply-template", {"messages": p["messages"]})
            assert status == 200
            text = r["prompt"]
        else:
            text = p["text"]
        _, r = server.post("/tokenize", {"content": text, "add_special": True})
        assert r["tokens"] == p["prompt_ids"], p["id"]


def test_n_choices_and_seed(client):
    ask = dict(model="demo", messages=FRANCE, n=3, temperature=1.5, max_tokens=16, seed=7)
    a, b = (client.chat.completions.create(**ask) for _ in range(2))
    texts = [c.message.content for c in a.choices]
    assert [c.index for c in a.choices] == [0, 1, 2]
    assert len(set(texts)) > 1, "each choice has a seed of its own"
    assert texts == [c.message.content for c in b.choices]
    assert a.usage.completion_tokens <= 3 * 16


def test_logprobs(client):
    r = client.chat.completions.create(model="demo", messages=FRANCE, temperature=0, max_tokens=8,
                                       logprobs=True, top_logprobs=5)
    items = r.choices[0].logprobs.content
    assert len(items) == r.usage.completion_tokens
    for x in items:
        assert x.logprob <= 0 and len(x.top_logprobs) == 5
        assert x.top_logprobs[0].logprob == pytest.approx(x.logprob, abs=1e-5)  # greedy
        falling = [t.logprob for t in x.top_logprobs]
        assert falling == sorted(falling, reverse=True)
    shown = bytes(b for x in items for b in x.bytes).decode().replace("<|im_end|>", "")
    assert shown == r.choices[0].message.content
    none = client.chat.completions.create(model="demo", messages=FRANCE, max_tokens=2, logprobs=True)
    assert none.choices[0].logprobs.content[0].top_logprobs == []
    stream = client.chat.completions.create(model="demo", messages=FRANCE, temperature=0, max_tokens=8,
                                            logprobs=True, top_logprobs=5, stream=True)
    streamed = [x for c in stream if c.choices and c.choices[0].logprobs
                for x in c.choices[0].logprobs.content]
    assert [x.token for x in streamed] == [x.token for x in items]


def test_stop_strings(client):
    ask = dict(model="demo", messages=FRANCE, temperature=0, max_tokens=40)
    full = client.chat.completions.create(**ask).choices[0].message.content
    word = full.split()[3]
    for stop in (word, ["never comes", word], [word[:2] + word[2:]]):
        r = client.chat.completions.create(**ask, stop=stop)
        assert r.choices[0].message.content == full[:full.index(word)]
        assert r.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(**ask, stop=word, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in stream)
    assert text == full[:full.index(word)], "no part of a stop string is ever shown"


def test_logit_bias_and_ignore_eos(server):
    _, r = server.post("/tokenize", {"content": " Paris"})
    paris = r["tokens"][0]
    _, r = server.post("/v1/completions", {"prompt": "The capital of France is", "temperature": 0,
                                           "max_tokens": 1, "logit_bias": {str(paris): -100}})
    assert r["choices"][0]["text"] != " Paris"
    _, r = server.post("/v1/completions", {"prompt": "The moon is", "temperature": 0, "max_tokens": 3,
                                           "logit_bias": {str(paris): 100}})
    assert r["choices"][0]["text"] == " Paris" * 3
    _, r = server.chat("Say hi.", temperature=0, max_tokens=100, ignore_eos=True)
    assert r["choices"][0]["finish_reason"] == "length" and r["usage"]["completion_tokens"] == 100


def test_continue_final_message(server):
    status, r = server.post("/v1/chat/completions", {
        "messages": FRANCE + [{"role": "assistant", "content": "The capital of France is the city of"}],
        "continue_final_message": True, "temperature": 0, "max_tokens": 8})
    assert status == 200 and r["choices"][0]["message"]["content"].startswith(" Paris")
    status, r = server.post("/v1/chat/completions", {"messages": FRANCE, "continue_final_message": True})
    assert status == 400 and r["error"]["param"] == "continue_final_message"


# --- completions ------------------------------------------------------------------------------------

def test_completions(client):
    r = client.completions.create(model="demo", prompt="The capital of France is", temperature=0,
                                  max_tokens=4)
    assert r.object == "text_completion" and r.choices[0].text.startswith(" Paris")
    chunks = list(client.completions.create(model="demo", prompt="The capital of France is",
                                            temperature=0, max_tokens=4, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == r.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_completions_take_texts_and_ids(server, client):
    ids = server.post("/tokenize", {"content": "The capital of France is"})[1]["tokens"]
    ask = dict(model="demo", temperature=0, max_tokens=3)
    want = client.completions.create(prompt="The capital of France is", **ask).choices[0].text
    assert client.completions.create(prompt=ids, **ask).choices[0].text == want
    two = client.completions.create(prompt=[ids, ids[:3]], **ask)
    assert len(two.choices) == 2 and two.choices[0].text == want
    assert two.usage.prompt_tokens == len(ids) + 3
    echo = client.completions.create(prompt=["The capital of France is", "One two"], echo=True, **ask)
    assert echo.choices[0].text == "The capital of France is" + want
    assert echo.choices[1].text.startswith("One two")
    assert client.completions.create(prompt=ids, echo=True, **ask).choices[0].text == \
        "The capital of France is" + want


def test_completions_logprobs(client):
    r = client.completions.create(model="demo", prompt="The capital of France is", temperature=0,
                                  max_tokens=5, logprobs=3)
    lp = r.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 5
    assert lp.text_offset[0] == 0 and lp.text_offset == sorted(lp.text_offset)
    assert all(len(x) == 3 and max(x.values()) == pytest.approx(v, abs=1e-5)
               for x, v in zip(lp.top_logprobs, lp.token_logprobs))


def test_greedy_is_the_golden_continuation_where_it_is_clear(server):
    """Two raw prompts whose margins leave no doubt for 8-bit activations in the first tokens."""
    for p in GOLDEN["prompts"]:
        if p["kind"] != "raw":
            continue
        n = 0
        while n < len(p["exact"]["margins"]) and p["exact"]["margins"][n] > 0.7:
            n += 1
        if n < 1:
            continue
        _, r = server.post("/v1/completions", {"prompt": p["prompt_ids"], "temperature": 0, "max_tokens": n,
                                               "ignore_eos": True})
        _, want = server.post("/detokenize", {"tokens": p["exact"]["ids"][:n]})
        assert r["choices"][0]["text"] == want["content"], p["id"]


# --- many at once -----------------------------------------------------------------------------------

def test_ten_streams_give_what_each_gives_alone(server):
    prompts = ["The capital of France is", "def fib(n):", "Once upon a time", "The sea is",
               "1 2 3 4", "Dear Sir or Madam,", "In 1969,", "A list of colours:", "Water boils at",
               "The quick brown fox"]

    def run(prompt):
        _, _, data = server.request("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 24,
                                                        "ignore_eos": True, "stream": True})
        frames, done = sse_frames(data)
        assert done and all("error" not in x for x in frames)
        return "".join(x["choices"][0]["text"] for x in frames)

    alone = [run(p) for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        together = list(pool.map(run, prompts))
    assert together == alone


def test_a_retry_finds_its_prompt_in_the_cache(server):
    """users.md: the second request's cached tokens are the prompt but for the last token (or page)."""
    text = "Remember this list. " + " ".join(f"item {i}" for i in range(150))
    with server.connect() as s:  # aborted in mid-stream
        s.sendall(http_post("/v1/completions", {"prompt": text, "max_tokens": 500, "temperature": 0,
                                                "ignore_eos": True, "stream": True}))
        s.recv(2000)
    _, r = server.post("/v1/completions", {"prompt": text, "max_tokens": 4, "temperature": 0})
    n, cached = r["usage"]["prompt_tokens"], r["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert n > 300 and cached >= n - 1 - 64, "all whole pages but the last"
    assert r["timings"]["cache_n"] == cached and r["timings"]["prompt_n"] == n - cached
    _, cold = server.post("/v1/completions", {"prompt": text, "max_tokens": 4, "temperature": 0,
                                              "cache_prompt": False})
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert cold["choices"][0]["text"] == r["choices"][0]["text"]


def test_one_prefix_is_warm_for_all(server):
    """Two requests at once with the prefix of a third that has ended: both find it."""
    prefix = "You are an assistant.\n" + "Background: " + "lorem ipsum " * 150
    server.post("/v1/completions", {"prompt": prefix, "max_tokens": 1})
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda q: server.post(
            "/v1/completions", {"prompt": prefix + q, "max_tokens": 8})[1], ["\nQ: one?", "\nQ: two?"]))
    assert all(r["usage"]["prompt_tokens_details"]["cached_tokens"] > 200 for r in replies)


@pytest.mark.parametrize("stream", [True, False])
def test_abort_frees_the_slot(server, stream):
    """In mid-prefill or early decode of a long request, the slot is free in under 200 ms."""
    text = " ".join(f"word{i}" for i in range(450))

    def busy():
        return any(x["is_processing"] for x in server.get("/slots")[1])

    times = []
    assert wait_until(lambda: not busy(), 5) is not None
    for _ in range(3):  # best of three, since the machine is shared
        with server.connect() as s:
            s.sendall(http_post("/v1/completions", {"prompt": text, "max_tokens": 2000, "ignore_eos": True,
                                                    "cache_prompt": False, "stream": stream}))
            assert wait_until(busy, 5) is not None
        freed = wait_until(lambda: not busy(), 5)
        assert freed is not None
        times.append(freed)
    assert min(times) < 0.2, times


# --- other routes -----------------------------------------------------------------------------------

def test_models(server, client):
    models = client.models.list().data
    assert [m.id for m in models] == ["demo"] and models[0].owned_by == "1bit"
    assert models[0].device == "cpu"
    assert client.models.retrieve("demo").meta["n_ctx"] == 2048
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_tokens_there_and_back(server):
    for text in ("hello world", "  two  spaces \n\n", "d\u00e9j\u00e0 vu \U0001F9E0 \u4f60\u597d", "<|im_start|>user", "", "12345"):
        _, r = server.post("/tokenize", {"content": text})
        assert server.post("/detokenize", {"tokens": r["tokens"]})[1] == {"content": text}
    _, r = server.post("/tokenize", {"content": "\U0001F9E0", "with_pieces": True})
    raw = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"])
                   for p in r["tokens"])
    assert raw.decode() == "\U0001F9E0"
    _, plain = server.post("/tokenize", {"content": "<|im_end|>", "parse_special": False})
    _, special = server.post("/tokenize", {"content": "<|im_end|>"})
    assert len(special["tokens"]) == 1 < len(plain["tokens"])


def test_props_and_slots(server):
    _, p = server.get("/props")
    assert p["total_slots"] == 4 and p["model_alias"] == "demo"
    assert p["default_generation_settings"]["n_ctx"] == 2048
    assert "im_start" in p["chat_template"] and p["eos_token"] == "<|im_end|>"
    _, slots = server.get("/slots")
    assert len(slots) == 4 and all(s["n_ctx"] == 2048 for s in slots)


def test_metrics_count(server):
    before = server.metrics()
    _, r = server.chat("Hello", max_tokens=5)
    after = server.metrics()

    def grew(name):
        return after["onebit_" + name] - before["onebit_" + name]

    assert grew("requests_total") == 1 and grew("requests_done_total") == 1
    assert grew("generated_tokens_total") == r["usage"]["completion_tokens"]
    cached = r["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert grew("prompt_tokens_total") == r["usage"]["prompt_tokens"] - cached
    assert grew("cached_tokens_total") == cached
    assert grew("first_token_seconds_count") == 1 and grew("generation_seconds_count") == 1
    assert grew('http_replies_total{class="2xx"}') >= 2
    text = server.request("/metrics")[2].decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert all(n.startswith("onebit_") for n in names)


# --- bad input --------------------------------------------------------------------------------------

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def refused(server, path, body, code=400):
    status, _, data = server.request(path, body)
    assert status == code, data
    error = json.loads(data)["error"]
    assert set(error) >= {"message", "type", "param", "code"} and error["message"]
    return error


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/apply-template"])
@pytest.mark.parametrize("body", [
    b"", b"hello", b"{", b"[]", b"null", b'"x"', b'{"a":1} x', b'{"model":"demo","model":"demo"}',
    b'{"content":"\xff\xfe"}', b'{"content":"\\ud83d"}', b'{"content":"\\u0000"}', b"[" * 100000,
    b'{"a":' * 1000 + b"1" + b"}" * 1000, b'{"temperature":1e400}', b'{"seed":123456789012345678901}',
], ids=range(15))
def test_bodies_that_are_not_requests(server, path, body):
    assert refused(server, path, body)["type"] == "invalid_request_error"


@pytest.mark.parametrize("field, value", [
    ("temperature", "hot"), ("temperature", -1), ("temperature", True), ("top_p", 1.5), ("top_p", -0.1),
    ("top_k", 1.5), ("top_k", -2), ("min_p", 2), ("presence_penalty", 3), ("frequency_penalty", -2.5),
    ("repeat_penalty", 0), ("max_tokens", 0), ("max_tokens", -2), ("max_tokens", "5"), ("max_tokens", 2.5),
    ("n", 0), ("n", 129), ("n", 1.5), ("stream", "yes"), ("stream", 1), ("stop", 5), ("stop", [1]),
    ("stop", ["x" * 2000]), ("stop", ["s%d" % i for i in range(10000)]), ("seed", 1.5),
    ("logit_bias", {"999999999": 1}), ("logit_bias", {"x": 1}), ("logit_bias", {"1": "a"}),
    ("logit_bias", {"1": 101}), ("logit_bias", 5), ("logprobs", "yes"), ("stream_options", 5),
    ("stream_options", {"include_usage": True}), ("response_format", {"type": "grammar"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": "strange"}}}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": 5}}),
    ("response_format", "json"), ("json_schema", "{}"), ("temprature", 1), ("n_probs", 5), ("grammar", "root ::= x"),
    ("mirostat", 2), ("typical_p", 0.5),
])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_fields_that_are_wrong_are_named(server, path, field, value):
    body = {"messages": FRANCE} if path == CHAT else {"prompt": "x"}
    error = refused(server, path, {**body, field: value})
    assert error["param"] == field and field in error["message"]


@pytest.mark.parametrize("field, value", [
    ("tools", [{"type": "function", "function": {"name": "f"}}]), ("tool_choice", "required"),
    ("audio", {"voice": "x"}), ("modalities", ["audio"]), ("top_logprobs", 3), ("top_logprobs", 21),
    ("chat_template_kwargs", 5), ("reasoning_format", "odd"), ("functions", [{"name": "f"}]),
])
def test_fields_of_chat_that_are_refused(server, field, value):
    error = refused(server, CHAT, {"messages": FRANCE, field: value})
    assert error["param"] == field


@pytest.mark.parametrize("messages", [
    None, [], "hi", [5], [{"content": "no role"}], [{"role": 5, "content": "x"}],
    [{"role": "user", "content": 5}], [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}],
    [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
])
def test_messages_that_are_wrong(server, messages):
    assert refused(server, CHAT, {"messages": messages})["param"] == "messages"


@pytest.mark.parametrize("prompt", [None, 5, {}, [], [1, "a"], ["a", 1], [[1], "a", 5], [999999999],
                                    [-1], [[]], [1.5], [True], ""])
def test_prompts_that_are_wrong(server, prompt):
    assert refused(server, COMPLETIONS, {"prompt": prompt})["param"] == "prompt"


def test_combinations_that_are_refused(server):
    assert refused(server, COMPLETIONS, {"prompt": "x", "echo": True, "logprobs": 1})["param"] == "echo"
    assert refused(server, COMPLETIONS, {"prompt": "x", "best_of": 3})["param"] == "best_of"
    assert refused(server, COMPLETIONS, {"prompt": ["x"] * 100, "n": 2})["param"] == "n"
    assert refused(server, COMPLETIONS, {"prompt": ["x"] * 1000})["param"] == "prompt"


def test_fields_that_ask_for_nothing_are_accepted(server):
    status, _ = server.post(CHAT, {
        "messages": FRANCE, "max_tokens": 1, "tools": [], "tool_choice": "auto", "user": "u", "metadata": {"a": "b"},
        "store": False, "response_format": {"type": "text"}, "stop": None, "temperature": None,
        "stream_options": None, "logit_bias": {}, "parallel_tool_calls": True, "service_tier": "auto",
        "mirostat": 0, "typical_p": 1.0, "n_probs": 0, "modalities": ["text"], "verbosity": "medium",
        "seed": -1, "max_completion_tokens": 2, "reasoning_effort": "low", "top_k": 40.0,
        "chat_template_kwargs": {"enable_thinking": False}, "id_slot": -1, "grammar": ""})
    assert status == 200


def test_unknown_model(server, client):
    error = refused(server, CHAT, {"model": "gpt-4", "messages": FRANCE}, 404)
    assert error["code"] == "model_not_found" and error["param"] == "model"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4", prompt="x")
    assert server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1})[0] == 200  # no model: the one here


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_over_the_context(server, stream):
    text = "word " * 3000
    for path, body in ((CHAT, {"messages": [{"role": "user", "content": text}]}), (COMPLETIONS, {"prompt": text})):
        error = refused(server, path, {**body, "stream": stream})
        assert error["code"] == "context_length_exceeded"
        assert error["n_ctx"] == 2048 and error["n_prompt_tokens"] >= 3000
        assert "2048" in error["message"]


def test_generation_into_the_end_of_the_context(server):
    ids = server.post("/tokenize", {"content": "word " * 2040})[1]["tokens"][:2040]
    status, r = server.post(COMPLETIONS, {"prompt": ids, "ignore_eos": True, "temperature": 0})
    assert status == 200 and r["choices"][0]["finish_reason"] == "length"
    assert r["usage"]["prompt_tokens"] == 2040
    assert 1 <= r["usage"]["completion_tokens"] <= 9
    assert server.post(COMPLETIONS, {"prompt": (ids * 2)[:2047], "ignore_eos": True})[0] == 200
    assert refused(server, COMPLETIONS, {"prompt": (ids * 2)[:2048]})["code"] == "context_length_exceeded"


def test_bad_arguments_in_an_old_tool_call(server):
    """A past call with broken JSON is data: never a 5xx."""
    status, _ = server.post(CHAT, {"max_tokens": 4, "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": "{"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "x"}, {"role": "user", "content": "go on"}]})
    assert status in (200, 400)


def test_a_long_prompt_does_not_hold_up_a_stream(server):
    """The largest gap of a running stream stays bounded while a 1,900-token prompt arrives."""
    gaps, last = [], None
    ids = server.post("/tokenize", {"content": "stone " * 1950})[1]["tokens"][:1900]
    with server.connect(30) as s, concurrent.futures.ThreadPoolExecutor(1) as pool:
        s.sendall(http_post(COMPLETIONS, {"prompt": "Tell a story.", "max_tokens": 150, "stream": True,
                                          "ignore_eos": True}))
        data, job = b"", None
        while b"[DONE]" not in data:
            part = s.recv(65536)
            assert part
            now = time.monotonic()
            if last:
                gaps.append(now - last)
            last = now
            data += part
            if job is None and data.count(b"data: ") > 20:
                job = pool.submit(server.post, COMPLETIONS, {"prompt": ids, "max_tokens": 1, "cache_prompt": False})
        status, r = job.result()
    assert status == 200 and r["usage"]["prompt_tokens"] == 1900
    # The engine's stated bound is 150 ms; the rest is for a shared, busy test machine. In one piece the
    # prompt takes some seconds.
    assert max(gaps) < max(1.0, 12 * sorted(gaps)[len(gaps) // 2]), sorted(gaps)[-5:]
