"""1BP packages: conversion (local, split, and through a server that misbehaves), checks, sums, and that
a package gives the same answers as its GGUF. The C program and tools/gguf_to_1bp.py are held to the
same bytes."""
import hashlib
import http.server
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import PROGRAM, ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "tools"))
from gguf_writer import GGUF  # noqa: E402

SCRIPT = [sys.executable, os.path.join(ROOT, "tools", "gguf_to_1bp.py")]
WRITERS = {"c": [PROGRAM, "convert"], "python": SCRIPT}
GOLDEN = sorted(Path(ROOT, "tests", "data", "golden").glob("*.gguf"))
SOURCE = "hf://owner/repo@abc/sub/Model.gguf"
ROUTE = "/owner/repo/resolve/abc/sub/Model.gguf"


def run(argv, rc=0, **env):
    done = subprocess.run([str(x) for x in argv], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **env})
    assert done.returncode == rc, done.stdout + done.stderr
    return done


def convert(src, dst, *options, rc=0, writer="c", **env):
    return run([*WRITERS[writer], src, dst, *options], rc, **env)


def make_gguf(n_bytes=0, seed=1):
    """A model file of all kinds of tensors; the last one makes it n_bytes larger."""
    rng = random.Random(seed)
    g = GGUF().add("general.architecture", "llama").add("general.name", "Tiny")
    g.add("llama.embedding_length", 64).add("llama.block_count", 2)
    g.add("llama.attention.head_count", [4, 2]).add("llama.attention.head_count_kv", 2)
    g.add("llama.rope.freq_base", 10000.0).add("llama.context_length", 128)
    g.add("tokenizer.ggml.tokens", ["a", "b", "c"]).add("llama.expert_weights_scale", 2.5)
    g.tensor("a", "F32", [3], rng.randbytes(12)).tensor("b", "Q4_0", [64, 3], rng.randbytes(108))
    g.tensor("c", "Q4_K", [256, 1, 2], rng.randbytes(288))
    rows = max(n_bytes // 128, 1)
    return g.tensor("large", "F16", [64, rows], rng.randbytes(128 * rows))


def split(g, n_parts, folder, stem):
    """The tensors of g dealt out to n_parts files; the first has the metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for no in range(n_parts):
        part = GGUF()
        if no == 0:
            part.pairs = list(g.pairs)
        part.add("split.no", no, type="u16").add("split.count", n_parts, type="u16")
        part.add("split.tensors.count", len(g.tensors), type="i32")
        part.tensors = g.tensors[no * len(g.tensors) // n_parts:(no + 1) * len(g.tensors) // n_parts]
        paths.append(folder / f"{stem}-{no + 1:05}-of-{n_parts:05}.gguf")
        paths[-1].write_bytes(part.bytes())
    return paths


def package(tensors=((b"w", (8,), 0, 32, 256),), version=5, data=bytes(64)):
    """A package written by hand, without metadata. Tensors: name, dims outermost first, offset, size,
    quant."""
    head = bytearray(256)
    struct.pack_into("<II", head, 0, 0x00504231, version)
    struct.pack_into("<I", head, 88, len(tensors))
    for name, dims, off, size, quant in tensors:
        head += struct.pack("<I", len(name)) + name + b"\0"
        head += struct.pack(f"<{len(dims) + 1}I", len(dims), *dims) + struct.pack("<QQI", off, size, quant)
    head += struct.pack("<Q", 0)
    return bytes(head) + bytes(-len(head) % 64) + data


# ---- conversion on this machine ------------------------------------------------------------------

def test_header_and_report(model, tmp_path):
    """Row B1 of the acceptance table, on the demo model."""
    dst = tmp_path / "m.1bp"
    done = convert(model, dst)
    data = dst.read_bytes()
    assert data[:8] == bytes([0x31, 0x42, 0x50, 0, 5, 0, 0, 0])
    assert struct.unpack_from("<I", data, 88) == (272,)
    info = json.loads(run([PROGRAM, "info", "--json", dst]).stdout)
    assert info["format"] == "1BP v5" and len(info["metadata"]) == 33
    assert done.stdout.splitlines()[-1] == (
        f"wrote {dst}: 1BP v5, 272 tensors, 33 metadata keys, 0.09 GiB of weights")
    source = json.loads(run([PROGRAM, "info", "--json", model]).stdout)
    assert info["metadata"] == source["metadata"]
    for a, b in zip(info["tensors"], source["tensors"], strict=True):
        assert [a[k] for k in ("name", "type", "shape", "bytes")] == \
               [b[k] for k in ("name", "type", "shape", "bytes")]
        assert a["offset"] % 64 == 0


def test_layout(tmp_path):
    """Every byte of a small package, put together here from the description of the format."""
    src, dst = tmp_path / "m.gguf", tmp_path / "m.1bp"
    g = make_gguf()
    src.write_bytes(g.bytes())
    convert(src, dst)
    f32 = struct.pack("<f", 10000.0)
    want = struct.pack("<4s4I8i6I", b"1BP\0", 5, 0, 256 + 12, 0, 64, 2, 4, 2, 1, 1, 3, 128, 32, 256, 32, 0, 0, 0)
    want += f32 + struct.pack("<3I", 0, 0, 4) + struct.pack("<14I", *[0] * 9, 2500, 0, 0, 0, 0) + bytes(44)
    want += b"Tiny".ljust(64, b"\0")
    off, places = 0, []
    for name, kind, dims, data in g.tensors:
        off = (off + 63) // 64 * 64
        want += struct.pack("<I", len(name)) + name.encode() + b"\0"
        want += struct.pack(f"<{len(dims) + 1}I", len(dims), *reversed(dims))
        want += struct.pack("<QQI", off, len(data), 256 + kind)
        places.append(off)
        off += len(data)
    pairs = b"".join(struct.pack("<Q", len(k)) + k.encode() + body for k, body in g.pairs)
    want += struct.pack("<Q", len(g.pairs)) + pairs
    start = (len(want) + 63) // 64 * 64
    for place, (_, _, _, data) in zip(places, g.tensors):
        want = want.ljust(start + place, b"\0") + data
    assert dst.read_bytes() == want


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_two_writers_one_output(path, tmp_path):
    a, b = tmp_path / "a.1bp", tmp_path / "b.1bp"
    first, second = convert(path, a), convert(path, b, writer="python")
    assert a.read_bytes() == b.read_bytes()
    assert first.stdout.replace(str(a), "X") == second.stdout.replace(str(b), "X")
    assert run([PROGRAM, "check-1bp", path, a]).stdout.startswith("OK: ")


def test_two_writers_on_the_demo_model(model, tmp_path):
    a, b = tmp_path / "a.1bp", tmp_path / "b.1bp"
    convert(model, a)
    convert(model, b, writer="python")
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize("writer", WRITERS)
def test_split_source_by_any_part(writer, tmp_path):
    parts = split(make_gguf(100_000), 3, tmp_path / "s", "Model")
    results = {}
    for i, part in enumerate(parts):
        dst = tmp_path / f"{i}.1bp"
        assert ", 4 tensors, 13 metadata keys," in convert(part, dst, writer=writer).stdout
        results[i] = dst.read_bytes()
        assert run([PROGRAM, "check-1bp", part, dst]).stdout == "OK: 4 tensors, 13 metadata keys\n"
    assert len(set(results.values())) == 1
    assert results[0] == (convert(parts[0], tmp_path / "x", writer="c"), (tmp_path / "x").read_bytes())[1]
    parts[1].unlink()
    assert "00002-of-00003" in convert(parts[0], tmp_path / "y", rc=1, writer=writer).stderr
    assert not (tmp_path / "y").exists() and not (tmp_path / "y.part").exists()


def test_odd_metadata(tmp_path):
    """Values that do not fit the header's fields: both writers do the same with them."""
    g = GGUF().add("general.architecture", "deepseek4x").add("general.name", "ä" * 40)
    g.add("deepseek4x.embedding_length", [7, 8]).add("deepseek4x.block_count", 1 << 33, type="u64")
    g.add("deepseek4x.attention.head_count", -3).add("deepseek4x.context_length", 4.5)
    g.add("deepseek4x.rope.freq_base", 1e300, type="f64").add("deepseek4x.rope.freq_base_swa", 10000)
    g.add("deepseek4x.expert_weights_scale", 0.0005, type="f64")
    g.add("deepseek4x.expert_feed_forward_length", 99).add("deepseek4x.expert_count", (1 << 64) - 1, type="u64")
    g.add("tokenizer.ggml.bos_token_id", -1).add("tokenizer.ggml.tokens", [1, 2])
    g.tensor("a", "F32", [2], bytes(8)).tensor("b", "F16", [4], bytes(8))
    src, a, b = tmp_path / "m.gguf", tmp_path / "a", tmp_path / "b"
    src.write_bytes(g.bytes())
    convert(src, a)
    convert(src, b, writer="python")
    assert a.read_bytes() == b.read_bytes()
    ints = struct.unpack_from("<23I", a.read_bytes(), 0)
    assert ints[2] == 22 and ints[3] == 256 and ints[5] == 7 and ints[6] == 1
    assert ints[7] == (1 << 32) - 3 and ints[9] == 1 and ints[10] == 99 and ints[12] == 0
    assert ints[19] == 0x7F800000 and ints[20] == (1 << 32) - 1
    assert a.read_bytes()[192:256] == "ä".encode() * 31 + b"\xc3\0"


@pytest.mark.parametrize("writer", WRITERS)
def test_refused_sources(writer, tmp_path):
    src, dst = tmp_path / "m.gguf", tmp_path / "m.1bp"
    big = GGUF().add("general.architecture", "x").tensor("w", "F32", [8], bytes(32)).bytes()
    dims = big.replace(struct.pack("<IQ", 1, 8), struct.pack("<IQ", 1, 1 << 32))
    cases = [(b"GGML" + bytes(100), "not a GGUF file"), (GGUF(version=2).bytes(), "v2"),
             (GGUF().bytes(), "no tensors"), (big[:-1], "tensor 'w' ends at byte"), (dims, "'w'"),
             (package(), "G" if writer == "python" else "1BP v5")]
    for data, text in cases:
        src.write_bytes(data)
        assert text in convert(src, dst, rc=1, writer=writer).stderr
        assert sorted(os.listdir(tmp_path)) == ["m.gguf"]
    src.unlink()
    assert "m.gguf" in convert(src, dst, rc=1, writer=writer).stderr


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_overwritten(writer, tmp_path):
    src, dst = tmp_path / "m.gguf", tmp_path / "m.1bp"
    src.write_bytes(make_gguf().bytes())
    dst.write_bytes(b"precious")
    assert "--force" in convert(src, dst, rc=1, writer=writer).stderr
    assert dst.read_bytes() == b"precious"
    convert(src, dst, "--force", writer=writer)
    assert dst.read_bytes()[:4] == b"1BP\0"
    assert "directory" in convert(src, tmp_path, rc=1, writer=writer).stderr
    assert sorted(os.listdir(tmp_path)) == ["m.1bp", "m.gguf"]


# ---- check-1bp and sums --------------------------------------------------------------------------

@pytest.fixture
def pair(tmp_path):
    src, dst = tmp_path / "m.gguf", tmp_path / "m.1bp"
    src.write_bytes(make_gguf(5000).bytes())
    convert(src, dst)
    return src, dst


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_check_finds_any_flipped_byte(pair):
    src, dst = pair
    good = dst.read_bytes()
    tensors = json.loads(run([PROGRAM, "info", "--json", dst]).stdout)["tensors"]
    for t in tensors:
        for at in (t["offset"], t["offset"] + t["bytes"] - 1):
            flip(dst, at)
            out = run([PROGRAM, "check-1bp", src, dst], rc=1).stdout
            assert f"tensor '{t['name']}': the bytes differ" in out and f"byte {at} of" in out
            assert out.splitlines()[-1] == "FAIL: 4 tensors, 10 metadata keys"
            dst.write_bytes(good)
    # header, index, metadata, padding: a sample of all other bytes
    inside = {i for t in tensors for i in range(t["offset"], t["offset"] + t["bytes"])}
    for at in [x for x in range(len(good)) if x not in inside][::11]:
        flip(dst, at)
        out = run([PROGRAM, "check-1bp", src, dst], rc=1).stdout
        assert len(out.splitlines()) >= 2 and out.splitlines()[-1].startswith("FAIL: ")
        dst.write_bytes(good)
    assert run([PROGRAM, "check-1bp", src, dst]).stdout == "OK: 4 tensors, 10 metadata keys\n"


def test_check_of_other_files(pair, tmp_path):
    src, dst = pair
    other = tmp_path / "other.gguf"
    other.write_bytes(make_gguf(5000, seed=2).bytes())
    assert run([PROGRAM, "check-1bp", other, dst], rc=1).stdout.count("the bytes differ") == 4
    dst.write_bytes(dst.read_bytes()[:-1])
    assert "tensor 'large'" in run([PROGRAM, "check-1bp", src, dst], rc=1).stdout
    assert "not a 1BP package" in run([PROGRAM, "check-1bp", src, src], rc=1).stdout
    assert "No such file" in run([PROGRAM, "check-1bp", src, tmp_path / "none"], rc=1).stderr
    assert "No such file" in run([PROGRAM, "check-1bp", tmp_path / "none", dst], rc=1).stderr


def test_sums(pair, tmp_path):
    src, dst = pair
    sums = Path(str(dst) + ".sums")
    convert(src, dst, "--force", "--sums")
    data, lines = dst.read_bytes(), sums.read_text().splitlines()
    tensors = json.loads(run([PROGRAM, "info", "--json", dst]).stdout)["tensors"]
    want = ["1bp-sums 1 sha256", hashlib.sha256(data[:tensors[0]["offset"]]).hexdigest() + " head"]
    for t in tensors:
        body = data[t["offset"]:t["offset"] + t["bytes"]]
        want.append(f"{hashlib.sha256(body).hexdigest()} tensor {t['name']}")
    assert lines == want
    run([PROGRAM, "check-1bp", src, dst])
    sums.write_text("\n".join(lines[:3] + [lines[3].replace(lines[3][:4], "0000")] + lines[4:]) + "\n")
    assert "tensor 'b': SHA-256 is not" in run([PROGRAM, "check-1bp", src, dst], rc=1).stdout
    sums.write_text("\n".join(lines[:-1]) + "\n")
    assert "does not belong" in run([PROGRAM, "check-1bp", src, dst], rc=1).stdout
    convert(src, dst, "--force")  # without --sums: old ones must not stay
    assert not sums.exists()


def test_serve_verify(model, tmp_path):
    dst = tmp_path / "m.1bp"
    serve = [PROGRAM, "serve", "--verify", "--port", "0", "-m", dst]
    convert(model, dst)
    assert ".sums" in run(serve, rc=1).stderr
    convert(model, dst, "--force", "--sums")
    with open(dst, "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last[0] ^ 1]))
    assert "tensor 'output_norm.weight': SHA-256" in run(serve, rc=1).stderr
    with open(dst, "r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(last)
    p = subprocess.Popen(list(map(str, serve)), stderr=subprocess.PIPE, text=True)
    try:
        assert any("listening on" in line for line in p.stderr)
    finally:
        p.send_signal(signal.SIGTERM)
        p.wait(30)


# ---- refusals (row B5) ---------------------------------------------------------------------------

@pytest.mark.parametrize("name,data,texts", [
    ("version 4", package(version=4), ["version 4"]),
    ("version 1", package(version=1), ["version 1"]),
    ("misaligned", package([(b"w.x", (8,), 32, 32, 256)]), ["'w.x'", "offset 32", "64"]),
    ("tile", package([(b"w.x", (8,), 0, 32, 0)]), ["'w.x'", "quant 0", "Q4NX"]),
    ("forward alias", package([(b"v", (8,), 1, 0, 256), (b"w", (8,), 0, 32, 256)]),
     ["'v'", "alias of tensor 1"]),
    ("truncated", package(data=bytes(31)), ["'w'", "missing"]),
    ("truncated index", package()[:270], ["missing"]),
    ("size", package([(b"w.x", (8,), 0, 36, 256)]), ["'w.x'", "size 36", "32"]),
    ("count", package()[:88] + b"\xff\xff\xff\xff" + package()[92:], ["4294967295 tensors"]),
], ids=lambda x: x if isinstance(x, str) else "")
def test_refusals(name, data, texts, tmp_path):
    path = tmp_path / "m.bin"
    path.write_bytes(data)
    for command in ([PROGRAM, "info", path], [PROGRAM, "run", "-m", path, "hi"]):
        err = run(command, rc=1).stderr
        assert all(t in err for t in texts), err


# ---- same answers (row B4) -----------------------------------------------------------------------

@pytest.fixture(scope="module")
def twin(model, tmp_path_factory):
    """The demo model as a package, under a name that says nothing."""
    path = tmp_path_factory.mktemp("twin") / "model.bin"
    convert(model, path)
    return path


PROMPTS = ["What is the capital of France?", "Write a short poem about the sea.", "Explain how a bicycle stays upright."]


def reply(path, prompt, *options, n=256):
    """Everything of a reply but its times."""
    done = run([PROGRAM, "run", "-m", path, "--device", "cpu", "--json", "-q", "--temp", "0", "-n", n, *options, prompt])
    r = json.loads(done.stdout)
    return {k: r[k] for k in ("text", "finish_reason", "usage")}


@pytest.mark.parametrize("prompt", PROMPTS)
def test_same_text(model, twin, prompt):
    a, b = reply(model, prompt), reply(twin, prompt)
    assert a == b and a["usage"]["completion_tokens"] > 10


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    path = os.environ.get("ONEBIT_TEST_GEMMA3")
    if not path:
        pytest.skip("no gemma-3-270m GGUF (ONEBIT_TEST_GEMMA3)")
    twin = tmp_path_factory.mktemp("gemma") / "model.bin"
    convert(path, twin)
    return path, twin


@pytest.mark.parametrize("prompt", PROMPTS)
def test_same_text_of_gemma(gemma, prompt):
    a, b = (reply(path, prompt, "--raw", "--ignore-eos") for path in gemma)
    assert a == b and a["usage"]["completion_tokens"] == 256


def test_serve_gives_the_same_text(twin, model, serve):
    from conftest import Server
    server = Server([PROGRAM, "serve", "-m", str(twin), "--port", "0", "-c", "512"])
    try:
        status, a = server.chat("Name three colours.", max_tokens=24, temperature=0)
    finally:
        server.stop()
    ask = [PROGRAM, "run", "-m", model, "--json", "--temp", "0", "-n", "24", "Name three colours."]
    b = json.loads(run(ask).stdout)
    assert status == 200 and a["choices"][0]["message"]["content"] == b["text"]
    assert a["usage"]["completion_tokens"] == b["usage"]["completion_tokens"]


# Encoders and vision towers have no logits.
DECODERS = [p for p in GOLDEN if "bert" not in p.stem and p.stem != "laya" and not p.stem.startswith("mmproj")]


@pytest.mark.parametrize("path", DECODERS, ids=lambda p: p.stem)
def test_same_logits(path, tmp_path):
    ids, dst = tmp_path / "ids.txt", tmp_path / "m.1bp"
    ids.write_text("1 5 9 200 31 7 7 100")
    convert(path, dst)
    arrays = []
    for m in (path, dst):
        out = tmp_path / "out.npy"
        done = subprocess.run([PROGRAM, "logits", "-m", m, "--ids-file", ids, "-o", out],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        arrays.append(np.load(out))
    assert arrays[0].shape == arrays[1].shape and arrays[0].tobytes() == arrays[1].tobytes()


@pytest.mark.parametrize("path", DECODERS, ids=lambda p: p.stem)
def test_same_text_of_golden_models(path, tmp_path):
    """Three prompts, 256 tokens each; mixtures also with half of their experts in memory, from the package."""
    info = json.loads(run([PROGRAM, "info", path, "--json"]).stdout)
    n_experts = sum(t["shape"][2] for t in info["tensors"] if t["name"].endswith("ffn_down_exps.weight"))
    dst = tmp_path / "m.bin"
    convert(path, dst)
    for prompt in PROMPTS:
        a = reply(path, prompt, "--raw", "--ignore-eos")
        assert a == reply(dst, prompt, "--raw", "--ignore-eos") and a["usage"]["completion_tokens"] == 256
        if n_experts >= 12:
            assert a == reply(dst, prompt, "--raw", "--ignore-eos", "--moe-slots", n_experts // 2)


# ---- DeepSeek V4 Flash at reduced width (row B6) --------------------------------------------------

@pytest.mark.parametrize("types", [("IQ2_XXS", "Q2_K"), ("Q4_K", "Q4_K"), ("MXFP4", "MXFP4")], ids=lambda t: "+".join(t))
def test_deepseek_v4(types, tmp_path):
    """All 43 layers and 1,328 tensors of V4 Flash by their names, with the expert types that its files have: the same
    text from GGUF and package, and with a quarter of the experts in memory."""
    pytest.importorskip("gguf", reason="needs gguf to make a model")
    src, dst = tmp_path / "v4.gguf", tmp_path / "v4.bin"
    run([sys.executable, os.path.join(ROOT, "tools", "make_random_gguf.py"), "--preset", "deepseek4-tiny", "--type", "Q8_0",
         "--expert-type", types[0], "--expert-down-type", types[1], "--quick", "-o", src])
    convert(src, dst)
    assert struct.unpack_from("<I", dst.read_bytes()[:256], 8)[0] == 22  # the header's architecture
    last = run([PROGRAM, "check-1bp", src, dst]).stdout.strip().splitlines()[-1]
    assert last.startswith("OK: 1328 tensors,")
    for prompt in PROMPTS:
        a = reply(src, prompt, "--raw", "--ignore-eos", n=24)
        assert a["usage"]["completion_tokens"] == 24
        assert a == reply(dst, prompt, "--raw", "--ignore-eos", "--moe-slots", 43 * 8 // 4, n=24)
    assert a == reply(dst, prompt, "--raw", "--ignore-eos", n=24)


# ---- conversion from a server (row B3) -----------------------------------------------------------

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, *_):
        pass

    def empty(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self):
        self.server.hub.note(self, "HEAD")
        self.empty(405)

    def do_GET(self):
        hub = self.server.hub
        number = hub.note(self, "GET")
        if self.path in hub.redirects:
            return self.empty(302, Location=hub.redirects[self.path])
        if self.path not in hub.files:
            return self.empty(404)
        fault = hub.fault(number) or {}
        time.sleep(fault.get("wait", 0))
        if "status" in fault:
            return self.empty(fault["status"], **({"Retry_After": "1"} if fault["status"] == 429 else {}))
        data = fault.get("data", hub.files[self.path])
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not m or fault.get("whole"):
            self.send_response(200)
            body = data
        else:
            a, b = int(m.group(1)), min(int(m.group(2)), len(data) - 1)
            told = a + fault.get("shift", 0)
            body = data[told:b + 1 + fault.get("shift", 0)]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {told}-{told + len(body) - 1}/{len(data)}")
        etag = fault.get("etag", hub.etag)
        if etag:
            self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.send(body, fault, hub)

    def send(self, body, fault, hub):
        cut = fault.get("reset", fault.get("short"))
        if cut is not None:
            body = body[:cut]
        try:
            for i in range(0, len(body), 65536):
                self.wfile.write(body[i:i + 65536])
                hub.sent += len(body[i:i + 65536])
                if hub.delay:
                    time.sleep(hub.delay)
            self.wfile.flush()
            if "reset" in fault:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            if cut is not None:
                self.close_connection = True
        except OSError:
            self.close_connection = True


class Hub:
    """A host that speaks like Hugging Face. `fault(n)` says what goes wrong with request n (from 0)."""

    def __init__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.hub = self
        self.files, self.redirects, self.requests = {}, {}, []
        self.etag, self.delay, self.sent = '"v1"', 0, 0
        self.fault = lambda n: None
        self.lock = threading.Lock()
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()
                 and not k.startswith(("HF_", "ONEBIT_"))}
        self.env = dict(clean, ONEBIT_HF_ENDPOINT=self.url)

    def note(self, handler, method):
        with self.lock:
            self.requests.append((method, handler.path, handler.headers.get("Range"),
                                  handler.headers.get("Authorization")))
            return len(self.requests) - 1

    def convert(self, dst, writer, rc=0, src=SOURCE, **env):
        done = subprocess.run([*map(str, WRITERS[writer]), src, str(dst)], env={**self.env, **env},
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == rc, done.stdout + done.stderr
        assert all(r[0] == "GET" and r[2] for r in self.requests)  # only range requests, ever
        return done

    def start(self, dst, writer):
        return subprocess.Popen([*map(str, WRITERS[writer]), SOURCE, str(dst)], env=self.env,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def hub():
    hub = Hub()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """(GGUF, package) of 25 MB."""
    folder = tmp_path_factory.mktemp("remote")
    src, dst = folder / "Model.gguf", folder / "m.1bp"
    src.write_bytes(make_gguf(25_000_000).bytes())
    convert(src, dst)
    return src.read_bytes(), dst.read_bytes()


def nth(*numbers, **what):
    return lambda n: what if n in numbers else None


@pytest.mark.parametrize("writer", WRITERS)
def test_remote(writer, hub, remote, tmp_path):
    hub.files[ROUTE] = remote[0]
    dst = tmp_path / "m.1bp"
    done = hub.convert(dst, writer, HF_TOKEN="secret")
    assert dst.read_bytes() == remote[1]
    assert done.stdout.startswith(f"wrote {dst}: 1BP v5, 4 tensors, 10 metadata keys, 0.02 GiB")
    assert os.listdir(tmp_path) == ["m.1bp"]  # no GGUF, nothing left over
    assert all(r[3] == "Bearer secret" for r in hub.requests)
    first, rest = hub.requests[0][2], hub.requests[1:]
    assert first == "bytes=0-1048575" and len(rest) == 4  # the head's window, then ranges of 8 MiB
    # tensors are fetched once: little more than the file came over the wire
    assert hub.sent < len(remote[0]) + (1 << 20) + 200_000


FAULTS = {
    "resets": nth(0, 2, 4, 5, reset=300_000),
    "reset at once": nth(0, 1, 3, reset=0),
    "short reads": nth(0, 2, 3, 5, short=1_000_000),
    "slow start": nth(0, 2, wait=1.5),
    "wrong range": nth(0, 1, 3, shift=64),
    "wrong range before": nth(2, 3, shift=-64),
    "whole file once": nth(0, 2, whole=True),
    "busy": nth(0, 2, status=503),
    "too many requests": nth(1, status=429),
    "other etag once": nth(2, etag='"v0"'),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_remote_with_faults(writer, fault, hub, remote, tmp_path):
    hub.files[ROUTE] = remote[0]
    hub.fault = FAULTS[fault]
    dst = tmp_path / "m.1bp"
    done = hub.convert(dst, writer)
    assert dst.read_bytes() == remote[1]
    assert fault == "slow start" or "trying again" in done.stderr
    assert os.listdir(tmp_path) == ["m.1bp"]


@pytest.mark.parametrize("writer", WRITERS)
def test_server_without_ranges(writer, hub, remote, tmp_path):
    hub.files[ROUTE] = remote[0]
    hub.fault = lambda n: {"whole": True}
    assert "200" in hub.convert(tmp_path / "m.1bp", writer, rc=1).stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("writer", WRITERS)
def test_remote_errors(writer, hub, remote, tmp_path):
    dst = tmp_path / "m.1bp"
    assert "404" in hub.convert(dst, writer, rc=1).stderr
    hub.files[ROUTE] = remote[0]
    hub.fault = lambda n: {"status": 401}
    assert "401" in hub.convert(dst, writer, rc=1).stderr
    hub.fault = lambda n: None
    hub.files[ROUTE] = b"<html>" + bytes(100)
    assert "not a GGUF file" in hub.convert(dst, writer, rc=1).stderr
    hub.files[ROUTE] = remote[0][:-1]
    assert "'large'" in hub.convert(dst, writer, rc=1).stderr
    assert os.listdir(tmp_path) == []
    assert "hf://" in hub.convert(dst, writer, rc=1, src="hf://owner/x").stderr


@pytest.mark.parametrize("writer", WRITERS)
def test_file_changes_while_it_is_read(writer, hub, remote, tmp_path):
    hub.files[ROUTE] = remote[0]
    hub.fault = lambda n: {"data": remote[0] + b"x"} if n >= 3 else None
    assert "changed" in hub.convert(tmp_path / "m.1bp", writer, rc=1).stderr
    assert not (tmp_path / "m.1bp").exists()
    hub.fault = lambda n: None  # and the next run makes it right
    hub.convert(tmp_path / "m.1bp", writer)
    assert (tmp_path / "m.1bp").read_bytes() == remote[1]


@pytest.mark.parametrize("writer", WRITERS)
def test_redirect_keeps_the_token_home(writer, hub, remote, tmp_path):
    other = Hub()
    try:
        hub.redirects[ROUTE] = other.url.replace("127.0.0.1", "localhost") + "/cdn?signed=1"
        other.files["/cdn?signed=1"] = remote[0]
        hub.convert(tmp_path / "m.1bp", writer, HF_TOKEN="secret")
        assert (tmp_path / "m.1bp").read_bytes() == remote[1]
        assert {r[3] for r in hub.requests} == {"Bearer secret"}
        assert {r[3] for r in other.requests} == {None} and all(r[2] for r in other.requests)
    finally:
        other.server.shutdown()
        other.server.server_close()


@pytest.mark.parametrize("writer", WRITERS)
def test_remote_split(writer, hub, tmp_path):
    parts = split(make_gguf(9_000_000), 3, tmp_path / "s", "Model")
    for p in parts:
        hub.files[f"/owner/repo/resolve/main/q/{p.name}"] = p.read_bytes()
    local, dst = tmp_path / "local.1bp", tmp_path / "m.1bp"
    convert(parts[0], local)
    hub.convert(dst, writer, src=f"hf://owner/repo/q/{parts[1].name}")
    assert dst.read_bytes() == local.read_bytes()
    hub.files.pop(f"/owner/repo/resolve/main/q/{parts[2].name}")
    assert "00003-of-00003" in hub.convert(tmp_path / "n", writer, rc=1,
                                           src=f"hf://owner/repo/q/{parts[0].name}").stderr


@pytest.mark.parametrize("etag", ['"v1"', None], ids=["etag", "no etag"])
@pytest.mark.parametrize("writer", WRITERS)
def test_kill_and_resume(writer, etag, hub, remote, tmp_path):
    hub.files[ROUTE] = remote[0]
    hub.etag = etag
    dst = tmp_path / "m.1bp"
    log = tmp_path / ("m.1bp.part.log" if writer == "c" else "m.1bp.part.pylog")
    hub.fault = nth(3, 4, wait=60)  # the last two ranges; the one of the small tensors and another come
    p = hub.start(dst, writer)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and log.read_bytes().count(b"\n") >= 3):
        time.sleep(0.01)
    hub.fault = lambda n: None
    p.kill()
    p.communicate()
    assert p.returncode == -signal.SIGKILL and not dst.exists()
    before, hub.sent = len(hub.requests), 0
    hub.convert(dst, writer)
    assert dst.read_bytes() == remote[1]
    assert os.listdir(tmp_path) == ["m.1bp"]
    # a stretch of 8 MiB, at least, was not fetched again; without an ETag one was, to compare
    again = (1 << 20) + (0 if etag else 8 << 20)
    assert hub.sent <= len(remote[0]) - (8 << 20) + again + 200_000
    assert len(hub.requests) > before


@pytest.mark.parametrize("etag", ['"v2"', None], ids=["etag", "no etag"])
@pytest.mark.parametrize("writer", WRITERS)
def test_resume_after_the_file_changed(writer, etag, hub, remote, tmp_path):
    """The new file has the same size, names and metadata, but other weights."""
    n = 25_000_000 // 128 * 128  # all of the large tensor
    new = remote[0][:-n] + bytes(n)
    (tmp_path / "new.gguf").write_bytes(new)
    convert(tmp_path / "new.gguf", tmp_path / "new.1bp")
    hub.files[ROUTE] = remote[0]
    hub.etag = '"v1"' if etag else None
    hub.fault = lambda n: {"status": 404} if n >= 4 else None  # three stretches come, one does not
    dst = tmp_path / "m.1bp"
    hub.convert(dst, writer, rc=1)
    assert (tmp_path / "m.1bp.part").exists()
    hub.files[ROUTE], hub.fault, hub.etag = new, lambda n: None, etag
    hub.convert(dst, writer)
    assert dst.read_bytes() == (tmp_path / "new.1bp").read_bytes()


@pytest.mark.parametrize("writer", WRITERS)
def test_damaged_part_file(writer, hub, remote, tmp_path):
    """What the log promises but the disk lost is fetched again."""
    hub.files[ROUTE] = remote[0]
    hub.fault = lambda n: {"status": 404} if n >= 4 else None
    dst, part = tmp_path / "m.1bp", tmp_path / "m.1bp.part"
    hub.convert(dst, writer, rc=1)
    with open(part, "r+b") as f:
        f.seek(5_000_000)
        f.write(bytes(100))
    hub.fault = lambda n: None
    hub.convert(dst, writer)
    assert dst.read_bytes() == remote[1]


@pytest.mark.parametrize("writer", WRITERS)
def test_two_at_once(writer, hub, remote, tmp_path):
    hub.files[ROUTE] = remote[0]
    hub.delay = 0.01
    dst = tmp_path / "m.1bp"
    first = hub.start(dst, writer)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not hub.requests:
        time.sleep(0.01)
    assert "another process" in hub.convert(dst, writer, rc=1).stderr
    hub.delay = 0
    assert first.communicate()[0].startswith("wrote ") and dst.read_bytes() == remote[1]
