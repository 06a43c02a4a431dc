"""Tool calls and formats of replies: through the real openai client and a real model (which a grammar keeps to the syntax)."""
import json
import os

import openai
import pytest

DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")
CHAT, COMPLETIONS, TEMPLATE = "/v1/chat/completions", "/v1/completions", "/apply-template"
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False}}}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120, "minimum": 0}},
          "required": ["name", "age"], "additionalProperties": False}


@pytest.fixture(scope="module")
def tools_server(serve):
    s = serve("--chat-template-file", os.path.join(DATA, "templates", "think_tools.jinja"))
    yield s
    s.stop()


@pytest.fixture(scope="module")
def tools_client(tools_server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{tools_server.port}/v1", api_key="-", max_retries=0)


def call(client, **kw):
    kw = {"messages": ASK, "tools": [WEATHER, NOW], "temperature": 0, "max_tokens": 100, **kw}
    return client.chat.completions.create(model="", **kw)


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_required(tools_client, temperature):
    choice = call(tools_client, tool_choice="required", temperature=temperature, seed=3, max_tokens=300).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    for c in choice.message.tool_calls:
        args = json.loads(c.function.arguments)
        assert c.type == "function" and c.id.startswith("call_")
        if c.function.name == "get_weather":
            assert set(args) == {"city", "unit"} and args["unit"] in ("C", "F")
        else:
            assert (c.function.name, args) == ("now", {})
    assert len({c.id for c in choice.message.tool_calls}) == len(choice.message.tool_calls)


def test_one_function(tools_client):
    message = call(tools_client, tool_choice={"type": "function", "function": {"name": "now"}}).choices[0].message
    assert [(c.function.name, c.function.arguments) for c in message.tool_calls] == [("now", "{}")]


def test_stream_is_the_whole(tools_client):
    whole = call(tools_client, tool_choice="required").choices[0].message.tool_calls
    got, finish = {}, None
    for chunk in call(tools_client, tool_choice="required", stream=True):
        for c in chunk.choices[0].delta.tool_calls or []:
            name, text = got.get(c.index, ("", ""))
            got[c.index] = (name + (c.function.name or ""), text + (c.function.arguments or ""))
        assert not chunk.choices[0].delta.content
        finish = chunk.choices[0].finish_reason or finish
    assert finish == "tool_calls"
    assert [got[i] for i in sorted(got)] == [(c.function.name, c.function.arguments) for c in whole]


def test_none_and_auto(tools_client):
    assert call(tools_client, tool_choice="none", max_tokens=20).choices[0].message.tool_calls is None
    auto = call(tools_client, tool_choice="auto").choices[0]
    assert (auto.finish_reason == "tool_calls") == bool(auto.message.tool_calls)


def test_a_whole_turn(tools_client, tools_server):
    """The call and its result go back; arguments that are no JSON are data, not an error."""
    calls = [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{"}}]
    turn = ASK + [{"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "tool_call_id": "call_1", "content": "21 C"}]
    reply = call(tools_client, messages=turn, max_tokens=10)
    assert reply.choices[0].message.role == "assistant"
    status, rendered = tools_server.post(TEMPLATE, {"messages": turn, "tools": [WEATHER]})
    assert status == 200 and "21 C" in rendered["prompt"] and '"get_weather"' in rendered["prompt"]


@pytest.mark.parametrize("fields, param", [
    ({"tools": 5}, "tools"), ({"tools": [5]}, "tools"), ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": [{"type": "retrieval"}]}, "tools"), ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}, "tools"),
    ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice"), ({"tools": [WEATHER], "tool_choice": 5}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"), ({"tools": [WEATHER], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "strange"}}}], "tool_choice": "required"}, "tools"),
])
def test_refused(tools_server, fields, param):
    status, reply = tools_server.post(CHAT, {"messages": ASK, "max_tokens": 5, **fields})
    assert status == 400 and reply["error"]["param"] == param


@pytest.mark.parametrize("temperature", [0, 1.2])
def test_json_schema(server, temperature):
    for path, body in ((CHAT, {"messages": ASK, "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}}),
                       (COMPLETIONS, {"prompt": "A person:", "json_schema": SCHEMA})):
        status, r = server.post(path, {**body, "temperature": temperature, "seed": 5, "max_tokens": 200, "n": 2})
        assert status == 200
        for choice in r["choices"]:
            value = json.loads(choice["message"]["content"] if path == CHAT else choice["text"])
            assert choice["finish_reason"] == "stop"
            assert set(value) == {"name", "age"} and len(value["name"]) <= 12 and 0 <= value["age"] <= 120


def test_json_object(server):
    status, r = server.post(CHAT, {"messages": [{"role": "user", "content": "JSON with one key"}], "temperature": 0, "max_tokens": 200,
                                   "response_format": {"type": "json_object", "schema": {"type": "object", "properties": {"k": {"enum": [1, 2]}},
                                                                                         "required": ["k"], "additionalProperties": False}}})
    assert status == 200 and json.loads(r["choices"][0]["message"]["content"])["k"] in (1, 2)
    status, r = server.post(CHAT, {"messages": ASK, "temperature": 0, "max_tokens": 8, "response_format": {"type": "json_object"}})
    assert status == 200 and r["choices"][0]["message"]["content"].startswith("{")


def test_a_model_without_tools_says_so(server):
    status, reply = server.post(CHAT, {"messages": ASK, "tools": [WEATHER]})
    assert status == 400 and reply["error"]["param"] == "tools" and "--chat-template-file" in reply["error"]["message"]
