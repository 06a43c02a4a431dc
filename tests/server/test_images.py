"""Pictures through the API, with the real `openai` client and tiny models that have vision towers.

What the vectors must be is the business of tests/unit/test_golden_vision.c; here: from a client's bytes to tokens, what
is refused and how, and that pictures and the cache go together.
"""
import base64
import functools
import http.server
import json
import os
import subprocess
import threading

import openai
import pytest

from conftest import PROGRAM, ROOT, Server

GOLDEN = os.path.join(ROOT, "tests", "data", "golden")
IMAGES = os.path.join(ROOT, "tests", "data", "images")
FAMILIES = ["smolvlm", "gemma3v", "qwen2vl"]


def model_args(name):
    return ["-m", f"{GOLDEN}/{name}.gguf", "--mmproj", f"{GOLDEN}/mmproj-{name}.gguf", "--device", "cpu"]


def start(name, *options):
    return Server([PROGRAM, "serve", *model_args(name), "--port", "0", *options])


@pytest.fixture(scope="module")
def servers():
    """One server per family, started when first asked for."""
    running = {}

    def get(name):
        if name not in running:
            running[name] = start(name)
        return running[name]

    yield get
    for s in running.values():
        s.stop()


@pytest.fixture
def smolvlm(servers):
    return servers("smolvlm")


def data_url(name, kind="png"):
    with open(os.path.join(IMAGES, name), "rb") as f:
        return f"data:image/{kind};base64," + base64.b64encode(f.read()).decode()


def picture(url, **more):
    return {"type": "image_url", "image_url": {"url": url, **more}}


def ask(*parts):
    return [{"role": "user", "content": list(parts)}]


TEXT = {"type": "text", "text": "What is it?"}


def client_of(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def complete(server, messages, **fields):
    fields = {"max_tokens": 6, "temperature": 0, **fields}
    return client_of(server).chat.completions.create(model=fields.pop("model", server_model(server)), messages=messages, **fields)


def server_model(server):
    return server.get("/v1/models")[1]["data"][0]["id"]


def refused(server, messages, status=400):
    with pytest.raises(openai.APIStatusError) as e:
        complete(server, messages)
    assert e.value.status_code == status
    assert e.value.body["param"] == "messages"
    return e.value.body["message"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_picture_is_read_and_cached(servers, name):
    server = servers(name)
    first = complete(server, ask(picture(data_url("rgb.png")), TEXT))
    again = complete(server, ask(picture(data_url("rgb.png")), TEXT))
    assert again.choices[0].message.content == first.choices[0].message.content
    assert first.usage.prompt_tokens > 16
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
    # The same pixels in another file are the same picture; one other pixel is another picture.
    other = complete(server, ask(picture(data_url("lossless.webp", "webp")), TEXT))
    assert other.usage.prompt_tokens_details.cached_tokens == other.usage.prompt_tokens - 1
    other = complete(server, ask(picture(data_url("grey.png")), TEXT))
    assert other.usage.prompt_tokens == first.usage.prompt_tokens
    assert other.usage.prompt_tokens_details.cached_tokens < 40


@pytest.mark.parametrize("name", ["gemma3v", "qwen2vl"])
def test_scaled_pictures_as_llama_cpp(name):
    """Pictures that have to be scaled: tokens and the likeliest first tokens as llama-server has them
    (tests/tools/vision_peer.py). Its GELU is a table in f16, hence the tolerance (tests/data/golden/README.md)."""
    server = start(name, "--ctk", "f32", "--ctv", "f32")
    try:
        with open(f"{GOLDEN}/{name}-peer.json", encoding="utf8") as f:
            cases = json.load(f)
        assert len(cases) == 4
        for case in cases:
            case["messages"][0]["content"][1]["image_url"]["url"] = data_url(case["picture"])
            got = complete(server, case["messages"], max_tokens=1, logprobs=True, top_logprobs=12)
            assert got.usage.prompt_tokens == case["prompt_tokens"]
            ours = {tuple(t.bytes): t.logprob for t in got.choices[0].logprobs.content[0].top_logprobs}
            theirs = {tuple(b): lp for b, lp in case["top"]}
            common = ours.keys() & theirs.keys()
            assert len(common) >= 9
            assert max(abs(ours[k] - theirs[k]) for k in common) < 3e-3
    finally:
        server.stop()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chat_goes_on_behind_a_picture(servers, name):
    server = servers(name)
    messages = ask(picture(data_url("rgb.jpg", "jpeg")), TEXT)
    first = complete(server, messages)
    messages += [{"role": "assistant", "content": first.choices[0].message.content},
                 {"role": "user", "content": "And?"}]
    second = complete(server, messages)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 1


@pytest.mark.parametrize("name", FAMILIES)
def test_the_command_line_says_the_same(servers, name):
    server = servers(name)
    text = complete(server, ask(picture(data_url("rgb.png")), picture(data_url("grey.jpg", "jpeg")), TEXT),
                    top_p=1).choices[0].message.content
    done = subprocess.run([PROGRAM, "run", *model_args(name), "--image", f"{IMAGES}/rgb.png", "--image",
                           f"{IMAGES}/grey.jpg", "-n", "6", "--temp", "0", "-q", TEXT["text"]], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().rstrip("\n") == text


def test_where_a_picture_stands_matters(smolvlm):
    sizes = {}
    for key, parts in {"before": [picture(data_url("rgb.png")), TEXT], "behind": [TEXT, picture(data_url("rgb.png"))],
                       "none": [TEXT]}.items():
        sizes[key] = complete(smolvlm, ask(*parts), logprobs=True)
    assert sizes["before"].usage.prompt_tokens > sizes["none"].usage.prompt_tokens
    assert (sizes["before"].choices[0].logprobs.content[0].logprob !=
            sizes["behind"].choices[0].logprobs.content[0].logprob)


def test_streams_and_choices(smolvlm):
    messages = ask(picture(data_url("rgb.png")), TEXT)
    whole = complete(smolvlm, messages, n=2).choices
    assert len(whole) == 2 and whole[0].message.content == whole[1].message.content
    pieces = complete(smolvlm, messages, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in pieces if c.choices)
    assert text == whole[0].message.content


def test_company(smolvlm):
    """Many clients with different pictures at once get what each gets alone."""
    files = [("rgb.png", "png"), ("grey.png", "png"), ("cmyk.jpg", "jpeg"), ("alpha.webp", "webp")]
    alone = [complete(smolvlm, ask(picture(data_url(*f)), TEXT)).choices[0].message.content for f in files]
    got = [None] * 8

    def one(i):
        got[i] = complete(smolvlm, ask(picture(data_url(*files[i % 4])), TEXT),
                          extra_body={"cache_prompt": False}).choices[0].message.content

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert got == alone * 2


def test_other_spellings(smolvlm):
    url = data_url("rgb.png")
    want = complete(smolvlm, ask(picture(url), TEXT)).choices[0].message.content
    for part in ({"type": "image_url", "image_url": url}, {"type": "input_image", "image_url": url},
                 picture(url, detail="high")):
        assert complete(smolvlm, ask(part, TEXT)).choices[0].message.content == want


def test_bad_pictures(smolvlm):
    def of(url, **more):
        return refused(smolvlm, ask(picture(url, **more), TEXT))

    assert "base64" in of("data:image/png;base64,%%%%")
    assert "base64" in of("data:image/png,abc")
    assert "PNG" in of("data:image/gif;base64," + base64.b64encode(b"GIF89a......").decode())
    assert "empty" in of("data:image/png;base64,")
    cut = base64.b64encode(open(f"{IMAGES}/rgb.png", "rb").read()[:500]).decode()
    assert "PNG" in of("data:image/png;base64," + cut)
    assert "30000" in of(data_url("bomb.png"))
    assert "moves" in of(data_url("moving.webp", "webp"))
    assert "begin with" in of("ftp://example.org/x.png")
    assert "detail" in of(data_url("rgb.png"), detail="huge")
    assert "url" in refused(smolvlm, ask({"type": "image_url"}, TEXT))
    assert "64" in refused(smolvlm, ask(*[picture(data_url("rgb.png"))] * 65, TEXT))
    assert smolvlm.get("/health")[0] == 200


def test_narrow_picture(servers):
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    narrow = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4000, 2, 8, 0, 0, 0, 0)) +
              chunk(b"IDAT", zlib.compress((b"\0" + b"\x80" * 4000) * 2)) + chunk(b"IEND", b""))
    url = "data:image/png;base64," + base64.b64encode(narrow).decode()
    assert "narrow" in refused(servers("qwen2vl"), ask(picture(url), TEXT))
    complete(servers("gemma3v"), ask(picture(url), TEXT))


def test_the_rest_of_the_world_is_closed(smolvlm):
    assert "--image-urls" in refused(smolvlm, ask(picture("https://example.org/x.png"), TEXT))
    assert "--image-dir" in refused(smolvlm, ask(picture(f"file://{IMAGES}/rgb.png"), TEXT))


def test_image_dir(tmp_path):
    folder = tmp_path / "shown"
    folder.mkdir()
    (folder / "a b.png").write_bytes(open(f"{IMAGES}/rgb.png", "rb").read())
    (folder / "sub").mkdir()
    (tmp_path / "secret.png").write_bytes(open(f"{IMAGES}/rgb.png", "rb").read())
    (tmp_path / "shown-not.png").write_bytes(b"x")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    server = start("smolvlm", "--image-dir", str(folder))
    try:
        want = complete(server, ask(picture(data_url("rgb.png")), TEXT)).choices[0].message.content
        for url in ("file://a%20b.png", f"file://{folder}/a%20b.png", f"file://{folder}/sub/../a%20b.png"):
            assert complete(server, ask(picture(url), TEXT)).choices[0].message.content == want
        for url in ("file://../secret.png", f"file://{tmp_path}/secret.png", "file://link.png", f"file://{tmp_path}/shown-not.png",
                    "file://nothing.png", "file:///etc/passwd"):
            assert "no such picture" in refused(server, ask(picture(url), TEXT)), url
        assert "cannot be read" in refused(server, ask(picture("file://sub"), TEXT))
    finally:
        server.stop()


@pytest.fixture
def web():
    """A web server of this machine that hands out the test pictures."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=IMAGES)
    handler.log_message = lambda *a: None
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()


def test_image_urls(web):
    server = start("smolvlm", "--image-urls", "any")
    try:
        want = complete(server, ask(picture(data_url("rgb.png")), TEXT)).choices[0].message.content
        assert complete(server, ask(picture(web + "/rgb.png"), TEXT)).choices[0].message.content == want
        assert "404" in refused(server, ask(picture(web + "/nothing.png"), TEXT))
        assert "PNG" in refused(server, ask(picture(web + "/"), TEXT))
        assert "fetched" in refused(server, ask(picture("http://127.0.0.1:1/x.png"), TEXT))
    finally:
        server.stop()


def test_public_urls_only(web):
    server = start("smolvlm", "--image-urls", "public")
    try:
        port = web.rsplit(":", 1)[1]
        for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]", "10.1.2.3", "169.254.169.254"):
            assert "public" in refused(server, ask(picture(f"http://{host}:{port}/rgb.png"), TEXT)), host
    finally:
        server.stop()


def test_says_what_it_reads(smolvlm):
    model = smolvlm.get("/v1/models")[1]["data"][0]
    assert model["input_modalities"] == ["text", "image"]
    assert smolvlm.get("/health")[1]["input_modalities"] == ["text", "image"]
    assert smolvlm.get("/props")[1]["modalities"] == {"vision": True, "audio": False}
    status, reply = smolvlm.post("/apply-template", {"messages": ask(picture(data_url("rgb.png")), TEXT)})
    assert status == 200 and "<picture 0>What is it?" in reply["prompt"]


def test_without_a_tower():
    server = Server([PROGRAM, "serve", "-m", f"{GOLDEN}/smolvlm.gguf", "--device", "cpu", "--port", "0"])
    try:
        assert "--mmproj" in refused(server, ask(picture(data_url("rgb.png")), TEXT))
        assert server.get("/v1/models")[1]["data"][0]["input_modalities"] == ["text"]
        assert server.get("/props")[1]["modalities"]["vision"] is False
    finally:
        server.stop()


@pytest.mark.parametrize("model, mmproj, says", [
    ("gemma3v", "mmproj-qwen2vl", "qwen2vl"), ("smolvlm", "smolvlm", "no vision tower"),
    ("mmproj-smolvlm", "mmproj-smolvlm", "--mmproj"), ("qwen35", "mmproj-smolvlm", "takes no pictures"),
    ("bert", "mmproj-smolvlm", "encoder")])
def test_wrong_pairs(model, mmproj, says):
    done = subprocess.run([PROGRAM, "serve", "-m", f"{GOLDEN}/{model}.gguf", "--mmproj", f"{GOLDEN}/{mmproj}.gguf", "--device",
                           "cpu", "--port", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert says in done.stderr


def test_a_mark_in_a_text_is_text(smolvlm):
    """What stands in for pictures inside cannot be written by a client."""
    a = complete(smolvlm, ask({"type": "text", "text": "<picture 0>"}))
    assert a.usage.prompt_tokens < 60
    complete(smolvlm, ask(picture(data_url("rgb.png")), {"type": "text", "text": "<picture 0> <picture 00>"}))
