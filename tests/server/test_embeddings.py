"""/v1/embeddings and /v1/rerank over all-MiniLM-L6-v2 read from safetensors, and `1bit embed`.

The reference is BERT written out in float64 (minilm.py) over ids of Hugging Face's tokenizer.
"""
import base64
import json
import os
import subprocess
import threading

import numpy as np
import openai
import pytest

import minilm
from conftest import BUILD, PROGRAM, Server

TEXTS = [
    "A cat sits on the mat.",
    "A kitten is sitting on a rug.",
    "int main(void) { return 0; }",
    "Wie spät ist es? Ça va, señor — naïve café №5",
    "x",
    " ".join(f"word{i} and {i * i}" for i in range(60)),
]
GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "golden")


@pytest.fixture(scope="module")
def folder():
    return minilm.folder()


@pytest.fixture(scope="module")
def reference(folder):
    tokenizers = pytest.importorskip("tokenizers", reason="needs Hugging Face's tokenizers for reference ids")
    tok = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tok.no_truncation()
    tok.no_padding()
    ref = minilm.Reference(folder)
    return tok, ref, np.array([ref.vector(tok.encode(t).ids) for t in TEXTS])


@pytest.fixture(scope="module")
def server(folder):
    s = Server([PROGRAM, "serve", "-m", folder, "--port", "0", "--alias", "minilm"])
    yield s
    s.stop()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def cosines(a, b):
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def embed(*args, stdin=None):
    r = subprocess.run([PROGRAM, "embed", *args], input=stdin, capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return r.stdout


def test_openai_client(client, reference):
    """The client asks for base64 by itself, and so sees every bit."""
    tok, _, want = reference
    r = client.embeddings.create(model="minilm", input=TEXTS)
    got = np.array([d.embedding for d in r.data])
    assert [d.index for d in r.data] == list(range(len(TEXTS)))
    assert cosines(got, want).min() >= 0.99999
    assert abs(got - want).max() < 2e-6
    assert abs(np.linalg.norm(got, axis=1) - 1).max() < 1e-6
    assert r.usage.prompt_tokens == r.usage.total_tokens == sum(len(tok.encode(t).ids) for t in TEXTS)


def test_meaning(client):
    r = client.embeddings.create(model="minilm", input=TEXTS[:3])
    cat, kitten, code = (np.array(d.embedding) for d in r.data)
    assert cat @ kitten > 0.6 > 0.2 > abs(cat @ code)


def test_float_equals_base64(client):
    a = client.embeddings.create(model="minilm", input=TEXTS[0], encoding_format="float").data[0].embedding
    b = client.embeddings.create(model="minilm", input=TEXTS[0], encoding_format="base64").data[0].embedding
    assert np.array_equal(np.array(a, np.float32), np.frombuffer(base64.b64decode(b), "<f4"))


def test_dimensions(client):
    whole = np.array(client.embeddings.create(model="minilm", input="cat").data[0].embedding)
    for n in (1, 3, 100, 384):
        cut = np.array(client.embeddings.create(model="minilm", input="cat", dimensions=n).data[0].embedding)
        assert len(cut) == n
        assert abs(cut - whole[:n] / np.linalg.norm(whole[:n])).max() < 1e-6


def test_kinds_of_input(client, reference):
    """A text, its ids, a list of one of them: the same vector, bit by bit."""
    ids = reference[0].encode("cat").ids
    vectors = [client.embeddings.create(model="minilm", input=x).data[0].embedding
               for x in ("cat", ["cat"], ids, [ids])]
    assert all(v == vectors[0] for v in vectors)


def test_company_changes_nothing(client):
    alone = [client.embeddings.create(model="minilm", input=t).data[0].embedding for t in TEXTS]
    together = client.embeddings.create(model="minilm", input=TEXTS * 9).data
    for i, d in enumerate(together):
        assert d.embedding == alone[i % len(TEXTS)]


def test_many_clients(client):
    want = [client.embeddings.create(model="minilm", input=t).data[0].embedding for t in TEXTS]
    wrong = []

    def ask(k):
        for i in range(10):
            t = (i + k) % len(TEXTS)
            if client.embeddings.create(model="minilm", input=TEXTS[t]).data[0].embedding != want[t]:
                wrong.append((k, i))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("body, status, code, param", [
    ({"input": ""}, 400, None, "input"),
    ({"input": []}, 400, None, "input"),
    ({}, 400, None, "input"),
    ({"input": 7}, 400, None, "input"),
    ({"input": ["a", 7]}, 400, None, "input"),
    ({"input": [7, "a"]}, 400, None, "input"),
    ({"input": [[1, 2], "a"]}, 400, None, "input"),
    ({"input": [30522]}, 400, None, "input"),
    ({"input": [-1]}, 400, None, "input"),
    ({"input": [[]]}, 400, None, "input"),
    ({"input": ["a"] * 2049}, 400, "limit_exceeded", "input"),
    ({"input": "word " * 600}, 400, "context_length_exceeded", "input"),
    ({"input": "a", "dimensions": 385}, 400, None, "dimensions"),
    ({"input": "a", "dimensions": 0}, 400, None, "dimensions"),
    ({"input": "a", "encoding_format": "hex"}, 400, None, "encoding_format"),
    ({"input": "a", "model": "other"}, 404, "model_not_found", "model"),
    ({"input": "a", "dimension": 3}, 400, None, "dimension"),
])
def test_refusals(server, body, status, code, param):
    got, reply = server.post("/v1/embeddings", body)
    assert (got, reply["error"]["code"], reply["error"]["param"]) == (status, code, param), reply
    if code == "context_length_exceeded":
        assert reply["error"]["n_ctx"] == 512 and reply["error"]["n_prompt_tokens"] == 602


def test_longest_text(server):
    status, reply = server.post("/embeddings", {"input": [[101] + [3231] * 510 + [102]]})
    assert status == 200 and reply["usage"]["prompt_tokens"] == 512


def test_client_that_leaves(server):
    """A connection that goes away in the middle of a long request does not hold the others up."""
    body = json.dumps({"input": ["word " * 500] * 400}).encode()
    with server.connect() as s:
        s.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        s.settimeout(1)
        try:
            s.recv(1)
        except TimeoutError:
            pass
    assert server.post("/v1/embeddings", {"input": "a"}, timeout=20)[0] == 200


# --- rerank ------------------------------------------------------------------------------------

DOCS = ["Paris is the capital of France.", "Cats are small carnivorous mammals.", "The kitten slept.", "A dog barks."]


def test_rerank(server):
    for path in ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking"):
        status, r = server.post(path, {"query": "What is a cat?", "documents": DOCS})
        assert status == 200
    results = r["results"]
    assert [x["index"] for x in results][0] == 1
    scores = [x["relevance_score"] for x in results]
    assert scores == sorted(scores, reverse=True)
    e = server.post("/v1/embeddings", {"input": ["What is a cat?"] + DOCS})[1]["data"]
    v = np.array([d["embedding"] for d in e])
    for x in results:
        assert abs(x["relevance_score"] - v[0] @ v[1 + x["index"]]) < 1e-6
    assert "document" not in results[0]


def test_rerank_top_n_and_documents(server):
    _, r = server.post("/v1/rerank", {"query": "cat", "documents": [{"text": d} for d in DOCS], "top_n": 2,
                                      "return_documents": True})
    assert len(r["results"]) == 2
    for x in r["results"]:
        assert x["document"]["text"] == DOCS[x["index"]]


@pytest.mark.parametrize("body, param", [
    ({"documents": DOCS}, "query"),
    ({"query": "q", "documents": []}, "documents"),
    ({"query": "q", "documents": "d"}, "documents"),
    ({"query": "q", "documents": [1]}, "documents"),
    ({"query": "q", "documents": DOCS, "top_n": 0}, "top_n"),
])
def test_rerank_refusals(server, body, param):
    status, r = server.post("/v1/rerank", body)
    assert status == 400 and r["error"]["param"] == param


# --- roles -------------------------------------------------------------------------------------

def test_an_encoder_does_not_chat(server, client):
    assert [(m["id"], m["role"]) for m in server.get("/v1/models")[1]["data"]] == [("minilm", "embed")]
    assert server.get("/slots") == (200, [])
    assert server.get("/props")[0] == 200
    assert server.post("/tokenize", {"content": "cat", "add_special": True})[1] == {"tokens": [101, 4937, 102]}
    status, r = server.chat("hello")
    assert status == 400 and "encoder" in r["error"]["message"]


def test_beside_a_chat_model(folder):
    s = Server([PROGRAM, "serve", "-m", os.path.join(GOLDEN, "llama.gguf"), "--embed", folder, "--port", "0"])
    try:
        models = {m["id"]: m["role"] for m in s.get("/v1/models")[1]["data"]}
        name = os.path.basename(os.path.normpath(folder))
        assert models == {"llama": "generate", name: "embed"}
        assert s.get("/v1/models/" + name)[1]["meta"]["arch"] == "bert"
        assert s.post("/v1/embeddings", {"input": "cat", "model": name})[0] == 200
        assert s.post("/v1/embeddings", {"input": "cat", "model": "llama"})[0] == 404
        assert s.post("/v1/rerank", {"query": "cat", "documents": DOCS})[1]["results"][0]["index"] in (1, 2)
        assert s.chat("hello", max_tokens=2)[0] == 200
    finally:
        s.stop()


def test_without_an_encoder():
    s = Server([PROGRAM, "serve", "-m", os.path.join(GOLDEN, "llama.gguf"), "--port", "0"])
    try:
        status, r = s.post("/v1/embeddings", {"input": "cat"})
        assert status == 400 and "--embed" in r["error"]["message"]
        status, r = s.post("/v1/rerank", {"query": "cat", "documents": DOCS})
        assert status == 400 and "--rerank" in r["error"]["message"]
    finally:
        s.stop()


# --- the command -------------------------------------------------------------------------------

def test_command(folder, reference):
    rows = np.array([[float(x) for x in line.split()] for line in embed("-m", folder, *TEXTS).splitlines()])
    assert cosines(rows, reference[2]).min() >= 0.99999


def test_command_json_and_lines(folder):
    out = json.loads(embed("-m", folder, "--json", stdin="cat\nkitten\n"))
    assert out["n_dims"] == 384 and [d["n_tokens"] for d in out["data"]] == [3, 3]
    assert out["data"][0]["embedding"] == json.loads(embed("-m", folder, "--json", "cat"))["data"][0]["embedding"]


def test_command_tokens(folder, reference):
    tok, ref, _ = reference
    want = ref.tokens(tok.encode(TEXTS[0]).ids)
    out = json.loads(embed("-m", folder, "--json", "--pooling", "none", "--no-normalize", TEXTS[0]))
    assert abs(np.array(out["data"][0]["embedding"]) - want).max() < 2e-5


def test_command_pooling(folder, reference):
    tok, ref, _ = reference
    want = ref.tokens(tok.encode(TEXTS[0]).ids)
    for mode, row in (("cls", want[0]), ("last", want[-1]), ("mean", want.mean(0))):
        got = np.array([float(x) for x in embed("-m", folder, "--pooling", mode, "--no-normalize", TEXTS[0]).split()])
        assert abs(got - row).max() < 2e-5


def test_command_decoder():
    """A model that generates gives its last token's final state."""
    out = json.loads(embed("-m", os.path.join(GOLDEN, "llama.gguf"), "--json", "hello", "hello world"))
    assert out["n_dims"] == 64 and len(out["data"]) == 2
    assert abs(np.linalg.norm(out["data"][1]["embedding"]) - 1) < 1e-6
