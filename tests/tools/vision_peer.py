#!/usr/bin/env python3
"""What llama-server says of pictures that have to be scaled: writes NAME-peer.json into a folder of golden files.

    vision_peer.py LLAMA_SERVER tests/data

For pictures of tests/data/images and tests/data/golden: tokens of the prompt and the likeliest first tokens (by their
bytes) with log-probabilities, f32 cache, no flash attention. smolvlm is missing: its tiny vocabulary lacks the marks
that llama.cpp looks up.
"""
import base64
import json
import os
import subprocess
import sys
import time
import urllib.request

PICTURES = [("rgb.png", "png"), ("grey.png", "png"), ("tall.png", "png"), ("wide.png", "png")]  # JPEG decoders differ by a bit


def request(port, path, body=None):
    r = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode() if body else None,
                               {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(r, timeout=60).read())


TEXTS = ["What is it?", "Describe it.", "And now?", "Who is there?", "Count them.", "1 2 3"]


def message(url, text):
    return [{"role": "user", "content": [{"type": "text", "text": "Look at "}, {"type": "image_url", "image_url": {"url": url}},
                                         {"type": "text", "text": text}]}]


def main(server, data):
    for name in ("gemma3v", "qwen2vl"):
        child = subprocess.Popen([server, "-m", f"{data}/golden/{name}.gguf", "--mmproj", f"{data}/golden/mmproj-{name}.gguf",
                                  "--port", "8191", "-t", "1", "-c", "1024", "-np", "1", "--no-warmup", "-ctk", "f32", "-ctv",
                                  "f32", "-fa", "off"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(100):
            try:
                request(8191, "/health")
                break
            except OSError:
                time.sleep(0.1)
        out = []
        for file, kind in PICTURES:
            with open(f"{data}/images/{file}", "rb") as f:
                url = f"data:image/{kind};base64," + base64.b64encode(f.read()).decode()
            for text in TEXTS:  # llama-server gives no log-probabilities of a token that is part of a character
                reply = request(8191, "/v1/chat/completions", {"messages": message(url, text), "max_tokens": 1, "temperature": 0,
                                                              "logprobs": True, "top_logprobs": 10, "cache_prompt": False})
                choice = reply["choices"][0]
                if "logprobs" in choice:
                    out.append({"picture": file, "messages": message(None, text), "prompt_tokens": reply["usage"]["prompt_tokens"],
                                "top": [[t["bytes"], t["logprob"]] for t in choice["logprobs"]["content"][0]["top_logprobs"]]})
                    break
        child.terminate()
        child.wait()
        with open(os.path.join(data, "golden", f"{name}-peer.json"), "w", encoding="utf8") as f:
            json.dump(out, f)
        print(name, [(k["picture"], k["prompt_tokens"]) for k in out])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
