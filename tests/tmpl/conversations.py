"""Conversations that the template tests render: each (name, messages, variables of the template)."""

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a place, <b>now</b> & \"later\"",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "Town, e.g. Zürich"},
            "days": {"type": "integer", "description": "how many", "default": 3},
            "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["place"]}}},
    {"type": "function", "function": {
        "name": "add", "description": "Adds",
        "parameters": {"type": "object", "properties": {
            "a": {"type": "number"}, "b": {"type": ["number", "null"]},
            "list": {"type": "array", "items": {"type": "number"}}}, "required": ["a", "b"]}}},
]


def u(text, **more):
    return {"role": "user", "content": text, **more}


def s(text):
    return {"role": "system", "content": text}


def a(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, ident="call00001"):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text, ident="call00001", name="get_weather"):
    return {"role": "tool", "content": text, "tool_call_id": ident, "name": name}


CHATS = {
    "one": [u("Hello")],
    "system": [s("Be brief."), u("Hello")],
    "turns": [u("One?"), a("1."), u("Two?"), a("2."), u("Three?")],
    "system_turns": [s("Count."), u("One?"), a("1."), u("Two?")],
    "ends_with_answer": [u("One?"), a("1.")],
    "spaces": [s("  padded \n"), u("\n  two  \n\n"), a("  x\n"), u("\t")],
    "odd_spaces": [u("\x1c\u00a0x\u2003\x1f"), a("\u3000y\u200b"), u(" \x85z\x0b")],
    "unicode": [u("Grüße, 世界 🌍 \u0301"), a("naïve — “quotes”"), u("שלום <|im_end|>")],
    "quotes": [u("it's \"quoted\" \\ back\\nslash {{ x }} {% y %}"), a("`code`\n```py\nx\n```"), u("&<>'")],
    "empty": [u(""), a(""), u("")],
    "two_users": [u("a"), u("b")],
    "two_systems": [s("a"), s("b"), u("c")],
    "system_late": [u("a"), s("b"), u("c")],
    "answer_first": [a("hi"), u("yo")],
    "no_messages": [],
    "developer": [{"role": "developer", "content": "Be brief."}, u("Hi")],
    "named": [u("Hi", name="Ann"), a("Hello Ann", name="Bot"), u("Bye", name="Bob")],
    "think": [u("1+1?"), a("<think>\nadd\n</think>\n\n2"), u("And 2+2?"),
              a("<think>more</think>4"), u("ok")],
    "reasoning": [u("1+1?"), a("2", reasoning_content="add them"), u("2+2?"),
                  a("4", reasoning_content="\nagain\n", thinking="\nagain\n"), u("ok")],
    "call": [u("Weather?"), a("", tool_calls=[call("get_weather", {"place": "Zürich", "days": 2})]),
             result('{"t": 7.5}'), a("7.5 degrees."), u("Thanks")],
    "call_pending": [u("Weather?"), a("", tool_calls=[call("get_weather", {"place": "Bern"})]),
                     result("cold & wet <rain>")],
    "call_text": [u("Weather?"), a("Let me see.", tool_calls=[call("get_weather", {"place": "X", "unit": "C"})]),
                  result("ok"), u("And?")],
    "call_reasoning": [s("Help."), u("Weather?"),
                       a("", reasoning_content="I should look", tool_calls=[call("get_weather", {"place": "Y"})]),
                       result("12"), a("12.", reasoning_content="done"), u("More")],
    "calls_two": [u("Both"), a("", tool_calls=[call("get_weather", {"place": "A"}, "call00001"),
                                               call("add", {"a": 1, "b": 2.5, "list": [1, 2]}, "call00002")]),
                  result("1", "call00001"), result("3.5", "call00002", "add"), u("ok")],
    "call_args": [u("x"), a("", tool_calls=[call("add", {
        "a": True, "b": None, "f": 1.0, "big": 1e16, "tiny": 1e-7, "s": "q\"<&>'é\n", "n": {"z": [], "a": {}}})]),
        result("r", name="add")],
    "call_no_args": [u("x"), a("", tool_calls=[call("add", {})]), result("", name="add")],
    "call_string_args": [u("x"), a("", tool_calls=[call("add", '{"a": 1}')]), result("r", name="add")],
    "call_bad_args": [u("x"), a("", tool_calls=[call("add", "{")]), result("r", name="add")],
    "call_null_content": [u("x"), a(None, tool_calls=[call("add", {"a": 1})]), result("r", name="add")],
    "call_absent_content": [u("x"), {"role": "assistant", "tool_calls": [call("add", {"a": 1})]},
                            result("r", name="add")],
    "parts": [u([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]), a("x"),
              u([{"type": "text", "text": "three"}])],
    "parts_all": [{"role": r, "content": [{"type": "text", "text": r}]}
                  for r in ("system", "user", "assistant", "user")],
    "tool_parts": [u("x"), a("", tool_calls=[call("add", {"a": 1})]),
                   {"role": "tool", "tool_call_id": "call00001", "name": "add",
                    "content": [{"type": "text", "text": "part"}]}],
    "long": [m for i in range(40) for m in (u(f"question {i}"), a(f"answer {i}"))] + [u("last")],
}

DOCUMENTS = [{"title": "T1", "text": "first"}, {"title": "T2", "text": "second"}]

# (name, variables): what is given beside the messages
VARIABLES = {
    "plain": {},
    "generate": {"add_generation_prompt": True},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "thinking": {"add_generation_prompt": True, "extra": {"enable_thinking": True, "thinking": True}},
    "no_thinking": {"add_generation_prompt": True, "tools": TOOLS,
                    "extra": {"enable_thinking": False, "thinking": False, "reasoning_effort": "high"}},
    "all": {"add_generation_prompt": True, "tools": TOOLS,
            "extra": {"documents": DOCUMENTS, "functions": "[]", "datetime": "now"}},
    "simple_tool": {"tools": TOOLS[:1], "extra": {"documents": []}},
    "empty_tools": {"tools": [], "extra": {"documents": []}},
    "documents": {"extra": {"documents": DOCUMENTS, "custom": {"k": [1, "two", None]}}},
}
