#!/usr/bin/env python3
"""End-to-end speed of a server that speaks OpenAI's API: time to the first token, decode and effective rates.

    tools/e2e_bench.py --url http://127.0.0.1:8080 --prompt-tokens 512,2048 --max-tokens 256 --runs 3

Works with `1bit serve`, llama-server and others that have /tokenize and /detokenize. Each run streams
/v1/completions (raw prompt, temperature 0, ignore_eos, cache_prompt false); the prompt is a line with a fresh
random number and then a corpus, cut to exactly P tokens. With n tokens generated:

    ttft_s = first text - start          e2e_s = last text - start
    decode_tps = (n - 1) / (last - first)    effective_tps = n / e2e_s

A run whose prompt was found in the server's cache is not a measurement: the tool says so and exits with 1.
Medians are printed; --jsonl appends {"label", "prompt_tokens", "concurrency", "runs": [...], "median": {...}}
for each prompt length. Standard library only.
"""
import argparse
import concurrent.futures
import http.client
import json
import random
import statistics
import sys
import time
import urllib.parse

CORPUS = (
    "The harbour wakes before the town does. Boats come in with the tide, and the first carts are on the quay "
    "while the lamps still burn. A clerk counts barrels, a child counts gulls, and both of them lose count. "
    "By noon the square is full: bread, rope, oranges, news from the south. Somebody sings; somebody argues "
    "about the price of salt. In the evening the wind turns, the nets are hung to dry, and the talk is of "
    "weather, debts and the bridge that was promised three winters ago. "
)
FIGURES = ("ttft_s", "e2e_s", "decode_tps", "effective_tps", "server_prompt_tps", "server_decode_tps")


class Refused(Exception):
    """What was measured is not what was asked for."""


class Server:
    def __init__(self, url, timeout, api_key=None):
        parts = urllib.parse.urlsplit(url if "//" in url else "http://" + url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused(f"{url} is no http address")
        self.kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.where = (parts.hostname, parts.port)
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.timeout = timeout
        self.headers = {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = "Bearer " + api_key

    def post(self, path, body):
        """(connection, response); the caller closes the connection."""
        connection = self.kind(*self.where, timeout=self.timeout)
        try:
            connection.request("POST", self.prefix + path, json.dumps(body), self.headers)
            response = connection.getresponse()
            if response.status != 200:
                text = response.read(500).decode("utf8", "replace")
                raise Refused(f"{path} answers {response.status}: {text}")
            return connection, response
        except BaseException:
            connection.close()
            raise

    def ask(self, path, body):
        connection, response = self.post(path, body)
        with_close = response.read()
        connection.close()
        return json.loads(with_close)

    def tokenize(self, text):
        tokens = self.ask("/tokenize", {"content": text})["tokens"]
        return [t["id"] if isinstance(t, dict) else t for t in tokens]

    def detokenize(self, ids):
        return self.ask("/detokenize", {"tokens": ids})["content"]


def make_prompt(server, corpus, n):
    """A text of exactly n tokens that no cache has seen: it differs in its first line."""
    head = f"{random.randrange(10**12):012d}\n"
    text = head + corpus
    ids = server.tokenize(text)
    while len(ids) < n + 8:
        text += "\n" + corpus
        ids = server.tokenize(text)
    # Cutting a text at a token can change how its end is cut; try neighbouring places.
    for cut in [n] + [n + d for k in range(1, 9) for d in (k, -k)]:
        if cut < 1:
            continue
        prompt = server.detokenize(ids[:cut])
        if len(server.tokenize(prompt)) == n:
            return prompt
    raise Refused(f"no cut of the corpus has exactly {n} tokens")


def events(response):
    """Objects of a stream of server-sent events."""
    for line in response:
        line = line.strip()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)


def cached_tokens(event):
    """Prompt tokens that came from a cache, by whichever field the server has; None if it says nothing."""
    timings, usage = event.get("timings") or {}, event.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    said = [timings.get("cache_n"), details.get("cached_tokens"), event.get("tokens_cached_in_prompt")]
    said = [x for x in said if x is not None]
    return max(said) if said else None


def measure(server, model, prompt, n_prompt, max_tokens):
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True, "ignore_eos": True,
            "cache_prompt": False, "stream_options": {"include_usage": True}}
    if model:
        body["model"] = model
    run = dict.fromkeys(FIGURES)
    first = last = None
    n_chunks, usage, timings, cached = 0, {}, {}, None
    start = time.perf_counter()
    connection, response = server.post("/v1/completions", body)
    try:
        for event in events(response):
            if "error" in event:
                raise Refused(f"the stream ends with an error: {event['error']}")
            usage, timings = event.get("usage") or usage, event.get("timings") or timings
            now_cached = cached_tokens(event)
            cached = now_cached if cached is None else max(cached, now_cached or 0)
            if any(c.get("text") for c in event.get("choices") or []):
                last = time.perf_counter()
                first = first or last
                n_chunks += 1
    finally:
        connection.close()
    if first is None:
        raise Refused("the server sent no text")
    n = usage.get("completion_tokens") or timings.get("predicted_n") or n_chunks
    if cached:
        raise Refused(f"{cached} of {n_prompt} prompt tokens came from the server's cache: "
                      "this is no measurement of the prompt")
    run.update(n=n, n_prompt=usage.get("prompt_tokens", n_prompt), ttft_s=first - start, e2e_s=last - start,
               decode_tps=(n - 1) / (last - first) if last > first else None, effective_tps=n / (last - start),
               server_prompt_tps=timings.get("prompt_per_second"),
               server_decode_tps=timings.get("predicted_per_second"), cached=cached)
    return run


def median_of(runs):
    out = {}
    for name in FIGURES:
        values = [r[name] for r in runs if r[name] is not None]
        out[name] = statistics.median(values) if values else None
    return out


def together(server, args, corpus, n_prompt):
    """One round: `concurrency` requests at once, each with a prompt of its own."""
    prompts = [make_prompt(server, corpus, n_prompt) for _ in range(args.concurrency)]
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
        runs = list(pool.map(lambda p: measure(server, args.model, p, n_prompt, args.max_tokens), prompts))
    wall = time.perf_counter() - start
    for run in runs:
        run["total_tps"] = sum(r["n"] for r in runs) / wall
    return runs


def bench(server, args, corpus):
    measure(server, args.model, make_prompt(server, corpus, 64), 64, 8)  # warm-up
    head = f"{'label':<16} {'prompt':>7} {'out':>5} {'TTFT s':>8} {'decode t/s':>11} {'E2E s':>8} " \
           f"{'effective t/s':>14} {'srv prefill t/s':>16}"
    if args.concurrency > 1:
        head += f" {'total t/s':>10}"
    print(head, flush=True)
    results = []
    for n_prompt in args.prompt_tokens:
        runs = [r for _ in range(args.runs) for r in together(server, args, corpus, n_prompt)]
        med = median_of(runs)
        if args.concurrency > 1:
            med["total_tps"] = statistics.median(r["total_tps"] for r in runs)
        result = {"label": args.label, "prompt_tokens": n_prompt, "max_tokens": args.max_tokens,
                  "concurrency": args.concurrency, "runs": runs, "median": med}
        results.append(result)

        def show(name, width, digits):
            return f"{'-':>{width}}" if med[name] is None else f"{med[name]:>{width}.{digits}f}"
        line = f"{args.label:<16} {n_prompt:>7} {args.max_tokens:>5} {show('ttft_s', 8, 3)} {show('decode_tps', 11, 1)} " \
               f"{show('e2e_s', 8, 3)} {show('effective_tps', 14, 1)} {show('server_prompt_tps', 16, 1)}"
        if args.concurrency > 1:
            line += f" {show('total_tps', 10, 1)}"
        print(line, flush=True)
        if args.jsonl:
            with open(args.jsonl, "a", encoding="utf8") as f:
                f.write(json.dumps(result) + "\n")
    return results


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def plot(results, label):
    """SVG: time to the first token and effective rate over the prompt's length."""
    width, height, left, top, gap = 360, 220, 60, 40, 60
    parts = []
    panels = (("ttft_s", "time to first token, s"), ("effective_tps", "effective tokens/s"))
    for i, (name, title) in enumerate(panels):
        points = [(r["prompt_tokens"], r["median"][name]) for r in results if r["median"][name] is not None]
        x0, y0 = left + i * (width + gap), top
        parts.append(f'<text x="{x0}" y="{top - 14}" font-weight="bold">{title}</text>')
        parts.append(f'<path d="M{x0} {y0}v{height}h{width}" fill="none" stroke="#888"/>')
        if not points:
            continue
        x_max, y_max = max(p[0] for p in points), max(p[1] for p in points) * 1.1 or 1
        at = [(x0 + width * x / x_max, y0 + height * (1 - y / y_max)) for x, y in points]
        if len(at) > 1:
            parts.append('<polyline fill="none" stroke="#1868c0" stroke-width="2" points="%s"/>'
                         % " ".join(f"{x:.1f},{y:.1f}" for x, y in at))
        for (x, y), (n, value) in zip(at, points):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#1868c0"/>')
            parts.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">{value:.3g}</text>')
            parts.append(f'<text x="{x:.1f}" y="{y0 + height + 16}" text-anchor="middle">{n}</text>')
        parts.append(f'<text x="{x0 + width / 2}" y="{y0 + height + 34}" text-anchor="middle">prompt tokens</text>')
    total_w, total_h = left + 2 * width + gap + 30, top + height + 60
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_w}" height="{total_h}" '
            f'font-family="sans-serif" font-size="12"><title>{escape(label)}</title>'
            f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n')


def lengths(text):
    values = [int(x) for x in text.split(",")]
    if not values or min(values) < 16:
        raise argparse.ArgumentTypeError("prompt lengths are at least 16")
    return values


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--url", default="http://127.0.0.1:8080")
    p.add_argument("--model", help="name sent with each request")
    p.add_argument("--prompt-tokens", type=lengths, default=[512, 2048, 8192, 16384], metavar="P,...")
    p.add_argument("--max-tokens", type=positive, default=256, metavar="N")
    p.add_argument("--runs", type=positive, default=3, metavar="N")
    p.add_argument("--text", metavar="FILE", help="corpus of the prompts (default: a few built-in sentences)")
    p.add_argument("--label", default="server")
    p.add_argument("--jsonl", metavar="OUT", help="append results, a line per prompt length")
    p.add_argument("--concurrency", type=positive, default=1, metavar="N", help="requests at the same time")
    p.add_argument("--plot", metavar="FILE.svg")
    p.add_argument("--api-key", metavar="KEY")
    p.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    args = p.parse_args(argv)
    try:
        corpus = open(args.text, encoding="utf8").read() if args.text else CORPUS
        if not corpus.strip():
            raise Refused(f"{args.text} is empty")
        results = bench(Server(args.url, args.timeout, args.api_key), args, corpus)
        if args.plot:
            with open(args.plot, "w", encoding="utf8") as f:
                f.write(plot(results, args.label))
    except (Refused, OSError, http.client.HTTPException, ValueError, KeyError) as e:
        print(f"e2e_bench: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
