"""Hand-over of prompts (--prefill-device): the same text as from one device, and it says what it did."""
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import PROGRAM, ROOT, sse_frames

GOLDEN = os.path.join(ROOT, "tests", "data", "golden")
STORY = " ".join(f"Record {i}: the {w} stands on shelf {i * 7 % 13}." for i, w in
                 enumerate(["lamp", "clock", "vase", "globe", "kettle", "radio", "camera", "violin"] * 3))


def ask(s, text, **fields):
    status, headers, data = s.request("/v1/completions", {"prompt": text, "max_tokens": 16, "temperature": 0, **fields})
    assert status == 200, data
    return headers, json.loads(data)


@pytest.fixture(scope="module")
def pair(serve):
    return (serve("-c", "1024", "--parallel", "3"),
            serve("-c", "1024", "--parallel", "3", "--prefill-device", "cpu", "--prefill-min-tokens", "100"))


def text_of(reply):
    return reply["choices"][0]["text"]


def test_text_header_timings_and_metrics(pair):
    one, two = pair
    assert two.get("/health")[1]["prefill_device"] == "cpu" and "prefill_device" not in one.get("/health")[1]
    assert any("prompts with 100 new tokens or more are computed on cpu" in x for x in two.log)
    plain_headers, want = ask(one, STORY)
    headers, got = ask(two, STORY)
    assert text_of(got) == text_of(want) and "X-1bit-Prefill" not in plain_headers and "handed_n" not in want["timings"]
    n = got["timings"]["handed_n"]
    assert n == (got["usage"]["prompt_tokens"] - 1) // 64 * 64 and got["timings"]["handover_ms"] > 0
    device, tokens, ms = headers["X-1bit-Prefill"].split()
    assert (device, int(tokens)) == ("cpu", n) and float(ms) == pytest.approx(got["timings"]["handover_ms"], abs=0.1)
    m = two.metrics()
    assert m["onebit_handover_prompts_total"] == 1 and m["onebit_handover_tokens_total"] == n
    assert m["onebit_handover_failed_total"] == 0 and m["onebit_handover_seconds_total"] > 0
    # again: it is in the cache now, so little is left to compute
    headers, again = ask(two, STORY)
    assert text_of(again) == text_of(want) and again["timings"]["handed_n"] == 0
    assert headers["X-1bit-Prefill"].split()[:2] == ["cpu", "0"] and again["usage"]["prompt_tokens_details"]["cached_tokens"] > n


def test_short_prompts_stay(pair):
    headers, got = ask(pair[1], "A short one, of less than a hundred tokens.")
    assert got["timings"]["handed_n"] == 0 and headers["X-1bit-Prefill"] == "cpu 0 0.0"


def test_stream(pair):
    one, two = pair
    body = {"prompt": "Once. " + STORY, "max_tokens": 12, "temperature": 0, "stream": True}
    want, got = one.request("/v1/completions", body), two.request("/v1/completions", body)
    join = lambda r: "".join(f["choices"][0]["text"] for f in sse_frames(r[2])[0] if f["choices"])
    assert join(got) == join(want)
    assert int(got[1]["X-1bit-Prefill"].split()[1]) > 0
    assert any(f.get("timings", {}).get("handed_n", 0) > 0 for f in sse_frames(got[2])[0])


def test_several_at_once(pair):
    one, two = pair
    prompts = [f"{i}. " + STORY[i * 40:] if i % 3 else f"{i} and {i + 1} are" for i in range(9)]
    want = [text_of(ask(one, p)[1]) for p in prompts]
    with ThreadPoolExecutor(9) as pool:
        got = [text_of(r[1]) for r in pool.map(lambda p: ask(two, p), prompts)]
    assert got == want


def test_run_and_pictures():
    """A prompt with a picture, whose rows are computed on the other device like tokens."""
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} has not been built")

    def run(*args):
        r = subprocess.run([PROGRAM, "run", "-m", f"{GOLDEN}/{model}.gguf", "--mmproj", f"{GOLDEN}/mmproj-{model}.gguf",
                            "--image", os.path.join(ROOT, "tests", "data", "images", image), "-p", "what is it",
                            "--temp", "0", "-n", "12", "--ignore-eos", "-c", "2048", "--json", "-q", *args],
                           capture_output=True, text=True, timeout=120)
        assert r.returncode == 0, r.stderr
        return json.loads(r.stdout)

    handed = 0
    for model in ("smolvlm", "gemma3v", "qwen2vl"):
        image = "rgb.png"
        want, got = run(), run("--prefill-device", "cpu", "--prefill-min-tokens", "1")
        assert got["text"] == want["text"] and got["usage"] == want["usage"]
        handed += got["timings"]["handed_n"]
        assert got["timings"]["prefill_device"] == "cpu" and "prefill_device" not in want["timings"]
    assert handed > 0


def test_wrong_device(model):
    r = subprocess.run([PROGRAM, "run", "-m", model, "-p", "x", "--prefill-device", "abacus"], capture_output=True, text=True,
                       timeout=60)
    assert r.returncode == 1 and "--prefill-device" in r.stderr and "abacus" in r.stderr
