"""Chat templates: each template with each conversation, byte for byte as Python's jinja2 renders it.

    pytest tests/tmpl

Needs the built program render_template (ONEBIT_BUILD, default build/) and the Python package jinja2.
ONEBIT_TEMPLATES_DIR names a folder with more *.jinja files to run over.
ONEBIT_TEST_MODEL names SmolLM2-135M-Instruct.Q4_1.gguf (needs the package gguf); its own template is
then checked against the digests of tests/data/golden/smollm2.json.
"""
import hashlib
import json
import os
import pathlib
import subprocess

import jinja2
import pytest

from conversations import CHATS, VARIABLES
from oracle import Oracle

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ONEBIT_BUILD", ROOT / "build"))
NOW = 1_750_000_000
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

# Templates of others that differ from Python, and why.
KNOWN = {
    "meetkai-functionary-medium-v3.1.jinja":
        "'text'|safe + x escapes x for HTML in Python (markupsafe); textkit has no such strings",
}


def template_files():
    files = sorted((ROOT / "tests/data/templates").glob("*.jinja"))
    if os.environ.get("ONEBIT_TEMPLATES_DIR"):
        files += sorted(pathlib.Path(os.environ["ONEBIT_TEMPLATES_DIR"]).glob("*.jinja"))
    return [pytest.param(f, id=f.stem, marks=[pytest.mark.xfail(reason=KNOWN[f.name], strict=True)]
                         if f.name in KNOWN else []) for f in files]


class Renderer:
    def __init__(self):
        program = BUILD / "tests/render_template"
        if not program.exists():
            pytest.skip(f"{program} is not built")
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, encoding="utf8")

    def __call__(self, **job):
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def render():
    renderer = Renderer()
    yield renderer
    renderer.close()


def problems(render, source):
    """Differences between textkit and Python over all conversations, and how many were equal."""
    oracle = Oracle(source, NOW)
    assert oracle.error is None, f"Python cannot compile it: {oracle.error}"
    assert "error" not in render(template=source, caps=True)
    found, equal = [], 0
    for chat, messages in CHATS.items():
        for name, variables in VARIABLES.items():
            want, error = oracle.render(messages, **TOKENS, **variables)
            got = render(messages=messages, now_unix=NOW, **TOKENS, **variables)
            if want is not None:
                ok = got.get("ok") == want
            elif type(error) is jinja2.exceptions.TemplateError:  # raise_exception: the same text
                ok = got == {"error": "invalid", "text": str(error)}
            else:  # Python's TypeError and its like: textkit may be more patient, never crash
                ok = "ok" in got or got["error"] == ("limit" if isinstance(error, RecursionError)
                                                     else "invalid")
            equal += ok and want is not None
            if not ok:
                found.append((chat, name, want if want is not None else error, got))
    return found, equal


@pytest.mark.parametrize("path", template_files())
def test_as_python(render, path):
    found, equal = problems(render, path.read_text(encoding="utf8"))
    assert not found, f"{len(found)} differ, the first: {found[0]}"
    assert equal > 0


def test_raised_text_reaches_the_caller(render):
    got = render(template="{{ raise_exception('roles must alternate') }}", messages=[])
    assert got == {"error": "invalid", "text": "roles must alternate"}


def test_errors_have_a_line(render):
    got = render(template="a\nb\n{% if %}", messages=[])
    assert got["error"] == "format" and "line 3" in got["text"]
    got = render(template="a\n{{ messages[0].x.y }}", messages=[{"role": "user"}])
    assert got["error"] == "invalid" and "line 2" in got["text"]


# What may stand in an assistant's tool call of the past, and what templates of each kind show.
@pytest.mark.parametrize("arguments", ["{", "", "[1]", "null", '{"a": 1} x', '{"a": NaN}'])
@pytest.mark.parametrize("name", ["headers", "think_tools", "xml_args", "loops", "inst", "generation"])
def test_bad_arguments_never_end_a_conversation(render, name, arguments):
    source = (ROOT / f"tests/data/templates/{name}.jinja").read_text(encoding="utf8")
    call = {"id": "call00001", "type": "function",
            "function": {"name": "echo", "arguments": arguments}}
    messages = [{"role": "user", "content": "x"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call00001", "content": "bad call"},
                {"role": "assistant", "content": "I see."},
                {"role": "user", "content": "go on"}]
    got = render(template=source, messages=messages, normalise=True, **TOKENS)
    assert "ok" in got, got
    assert "echo" in got["ok"] and "go on" in got["ok"]


def smollm2_template():
    path = os.environ.get("ONEBIT_TEST_MODEL")
    if not path:
        pytest.skip("ONEBIT_TEST_MODEL is not set")
    gguf = pytest.importorskip("gguf")
    field = gguf.GGUFReader(path).fields["tokenizer.chat_template"]
    return str(bytes(field.parts[field.data[0]]), encoding="utf8")


def test_smollm2(render):
    source = smollm2_template()
    golden = json.loads((ROOT / "tests/data/golden/smollm2.json").read_text(encoding="utf8"))
    chats = [p for p in golden["prompts"] if p["kind"] == "chat"]
    assert len(chats) == 6
    for chat in chats:
        for normalise in (False, True):
            got = render(template=source, messages=chat["messages"], add_generation_prompt=True,
                         normalise=normalise, bos_token="<|im_start|>", eos_token="<|im_end|>")
            digest = hashlib.sha256(got["ok"].encode()).hexdigest()
            assert digest == chat["rendered_sha256"], (chat["id"], got["ok"])
