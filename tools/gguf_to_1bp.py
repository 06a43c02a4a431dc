#!/usr/bin/env python3
"""Make a 1BP package from a GGUF file: `1bit convert` for machines without the program.

    gguf_to_1bp.py [--force] SRC DST

SRC is a GGUF file (of a split one, any part), or hf://OWNER/REPO[@REVISION]/FILE.gguf, or an http(s)
address. A remote file is read by range requests and never stored; a conversion that was cut off
goes on where it stopped. HF_ENDPOINT or ONEBIT_HF_ENDPOINT names another host, HF_TOKEN is sent to
that host only. DST appears when it is complete; on its way it is DST.part.

Python 3.8 and its standard library are enough. The layout is in docs/onebp.md; this program and
`1bit convert` write the same bytes.
"""
import argparse
import concurrent.futures
import fcntl
import hashlib
import os
import re
import struct
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ALIGN = 64
GGML_BASE = 256
STRETCH = 8 << 20       # bytes of one range of tensors
MAX_GAP = 64 << 10      # between two tensors of one stretch
WINDOW = 1 << 20        # first bytes of a remote file; doubles until its directory is whole
WORKERS = 4
MAX_FRUITLESS = 5       # tries in a row that brought no byte
SPARE = 32 << 20        # left free on the disk

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q",
        I64: "q", F64: "d"}
INTS = (U8, I8, U16, I16, U32, I32, U64, I64)
# ggml type: elements and bytes of a block
TYPES = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
         9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
         15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
         21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4),
         27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66),
         39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18)}


class Failure(Exception):
    """What is told to the user in one line."""


class NeedMore(Exception):
    """The bytes at hand end before the directory does."""


# ---- GGUF ----------------------------------------------------------------------------------------

class Cursor:
    def __init__(self, data, size):
        self.data, self.size, self.pos = data, size, 0

    def take(self, n):
        end = self.pos + n
        if end > self.size:
            raise Failure(f"the file ends at byte {self.size}, inside its directory")
        if end > len(self.data):
            raise NeedMore
        out = self.data[self.pos:end]
        self.pos = end
        return out

    def number(self, code):
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self):
        return bytes(self.take(self.number("Q")))


class Value:
    """A metadata value as far as the header needs it: type, length, and its first element."""

    def __init__(self, c):
        self.type = self.elem = c.number("I")
        self.n = 1
        if self.type == ARR:
            self.elem = c.number("I")
            self.n = c.number("Q")
        self.first = None
        if self.elem == STR:
            for i in range(self.n):
                s = c.string()
                self.first = s if i == 0 else self.first
        elif self.elem in PACK:
            size = struct.calcsize("<" + PACK[self.elem])
            data = c.take(size * self.n)
            if self.n:
                self.first = struct.unpack("<" + PACK[self.elem], data[:size])[0]
        else:
            raise Failure(f"metadata value of the unknown type {self.elem}")


class Tensor:
    def __init__(self, name, dims, kind, offset):
        self.name, self.dims, self.kind, self.src = name, dims, kind, offset
        self.part = self.dst = self.size = 0


class Head:
    """Metadata and tensor directory of one GGUF file, from its first bytes."""

    def __init__(self, data, size):
        c = Cursor(memoryview(data), size)
        if bytes(c.take(4)) != b"GGUF":
            raise Failure("not a GGUF file")
        version = c.number("I")
        if version != 3:
            raise Failure(f"it is GGUF v{version}, and only GGUF v3 becomes a 1BP package")
        n_tensors, self.n_kv = c.number("Q"), c.number("Q")
        start = c.pos
        self.kv = {}
        for _ in range(self.n_kv):
            key = c.string()
            self.kv[key] = Value(c)
        self.pairs = bytes(c.data[start:c.pos])
        self.tensors = []
        for _ in range(n_tensors):
            name = c.string()
            dims = [c.number("Q") for _ in range(c.number("I"))]
            self.tensors.append(Tensor(name, dims, c.number("I"), c.number("Q")))
        align = self.integer("general.alignment") or 32
        self.place(-(-c.pos // align) * align, size)

    def place(self, start, size):
        for t in self.tensors:
            shown = t.name.decode("utf-8", "replace")
            if t.kind not in TYPES:
                raise Failure(f"tensor '{shown}': unknown type {t.kind}")
            block, block_bytes = TYPES[t.kind]
            n = 1
            for d in t.dims:
                n *= d
                if d >= 1 << 32:
                    raise Failure(f"tensor '{shown}': a dimension is {d}, but a 1BP package has 32 "
                                  "bits for it")
            if not t.dims or n == 0 or t.dims[0] % block:
                raise Failure(f"tensor '{shown}': its elements are not a whole number of blocks")
            t.size = n // block * block_bytes
            t.src += start
            if t.src + t.size > size:
                raise Failure(f"tensor '{shown}' ends at byte {t.src + t.size}, but the file has {size}")

    def integer(self, key):
        """An integer, of an array the first; 0 when there is none."""
        v = self.kv.get(key.encode() if isinstance(key, str) else key)
        if v is None or v.elem not in INTS or v.first is None or v.first > 0x7FFFFFFFFFFFFFFF:
            return 0
        return v.first & 0xFFFFFFFF

    def real(self, key):
        v = self.kv.get(key)
        if v is None or v.type in (ARR, STR, BOOL):
            return 0.0
        return float(v.first)

    def text(self, key):
        v = self.kv.get(key.encode())
        return v.first if v is not None and v.type == STR else None


# ---- sources -------------------------------------------------------------------------------------

SPLIT = re.compile(r"(.*-)(\d{5})-of-(\d{5})\.gguf$", re.S)


def split_names(name):
    """All parts of the split file that `name` is a part of, or just the name."""
    m = SPLIT.match(name)
    if not m or int(m.group(3)) < 1:
        return [name]
    return [f"{m.group(1)}{i:05}-of-{m.group(3)}.gguf" for i in range(1, int(m.group(3)) + 1)]


class LocalPart:
    id = None

    def __init__(self, path):
        self.file = open(path, "rb")
        self.size = os.fstat(self.file.fileno()).st_size

    def head(self):
        n = WINDOW
        while True:
            try:
                return Head(os.pread(self.file.fileno(), min(n, self.size), 0), self.size)
            except NeedMore:
                n *= 2


class RemotePart:
    def __init__(self, url, token):
        self.url, self.token, self.size, self.id = url, token, None, None

    def head(self):
        data = bytearray()
        n = WINDOW
        while True:
            end = n if self.size is None else min(n, self.size)
            self.read(data, len(data), end - len(data))
            try:
                return Head(data, self.size)
            except NeedMore:
                n *= 2

    def read(self, out, off, n):
        """Append the n bytes at off (fewer, if the file is shorter and this is the first read)."""
        want, fruitless = len(out) + n, 0
        while len(out) < want:
            before = len(out)
            try:
                self.request(out, off + n - (want - before), want)
                if self.size is not None and off + n > self.size:
                    want = len(out) if len(out) >= self.size else self.size
                if len(out) < want:
                    raise OSError(f"the connection ended after {len(out)} of {want} bytes")
            except (OSError, ValueError) as e:
                fruitless = fruitless + 1 if len(out) == before else 0
                if fruitless >= MAX_FRUITLESS:
                    raise Failure(str(e)) from e
                pause = max(getattr(e, "retry_after", 0), min(0.5 * 2 ** max(fruitless - 1, 0), 15))
                print(f"{e}; trying again in {pause:.1f} s", file=sys.stderr)
                time.sleep(pause)

    def request(self, out, start, want):
        end = start + want - len(out) - 1
        req = urllib.request.Request(self.url, headers={"Range": f"bytes={start}-{end}",
                                                        "User-Agent": "gguf_to_1bp"})
        if self.token:
            req.add_unredirected_header("Authorization", "Bearer " + self.token)
        try:
            answer = urllib.request.urlopen(req, timeout=20)
        except urllib.error.HTTPError as e:
            if e.code in (401, 403, 404, 410, 416):
                raise Failure(f"{self.url}: HTTP {e.code}") from e
            error = OSError(f"{self.url}: HTTP {e.code}")
            after = e.headers.get("Retry-After", "")
            error.retry_after = min(int(after), 60) if after.isdigit() else 0
            raise error from e
        with answer:
            self.check(answer, start)
            while len(out) < want:
                chunk = answer.read(min(1 << 18, want - len(out)))
                if not chunk:
                    return
                out += chunk

    def check(self, answer, start):
        if answer.status != 206:
            raise OSError(f"the server ignores ranges: HTTP {answer.status} instead of 206")
        m = re.match(r"bytes (\d+)-\d+/(\d+)$", answer.headers.get("Content-Range", ""))
        if not m or int(m.group(1)) != start:
            raise OSError("the server sent another range than asked for")
        size, tag = int(m.group(2)), answer.headers.get("ETag", "")
        if self.size is None:
            self.size, self.id = size, tag
        elif size != self.size:
            raise Failure("the file on the server changed")
        elif tag != self.id:
            raise OSError("the file on the server changed (its ETag did)")


def open_parts(src):
    if src.startswith("hf://"):
        m = re.match(r"hf://([\w.-]+)/([\w.-]+?)(?:@([\w.%-]+))?/(.+\.gguf)$", src)
        if not m or any(x in (".", "..") for x in src[5:].split("/")):
            raise Failure("expected hf://OWNER/REPO[@REVISION]/FILE.gguf")
        host = (os.environ.get("ONEBIT_HF_ENDPOINT") or os.environ.get("HF_ENDPOINT")
                or "https://huggingface.co").rstrip("/")
        base = f"{host}/{m.group(1)}/{m.group(2)}/resolve/{m.group(3) or 'main'}/"
        return [RemotePart(base + urllib.parse.quote(p, safe="/~"), os.environ.get("HF_TOKEN"))
                for p in split_names(m.group(4))]
    if src.startswith(("http://", "https://")):
        return [RemotePart(p, None) for p in split_names(src)]
    return [LocalPart(p) for p in split_names(src)]


# ---- the package ---------------------------------------------------------------------------------

def f32_bits(x):
    try:
        return struct.pack("<f", x)
    except OverflowError:
        return struct.pack("<f", float("inf") if x > 0 else float("-inf"))


def header(head, tensors):
    arch = head.text("general.architecture") or b""
    key = lambda name: arch + b"." + name.encode()  # noqa: E731
    num = lambda name: head.integer(key(name))      # noqa: E731
    by_type = {}
    for t in tensors:
        by_type[t.kind] = by_type.get(t.kind, 0) + t.size
    heads = num("attention.head_count")
    tokens = head.kv.get(b"tokenizer.ggml.tokens")
    n_vocab = tokens.n & 0xFFFFFFFF if tokens is not None and tokens.type == ARR else 0
    scale = head.real(key("expert_weights_scale")) * 1000
    scale = round(scale) if 0 <= scale < float("inf") else 0
    out = struct.pack(
        "<4s18I", b"1BP\0", 5, 22 if arch.startswith(b"deepseek4") else 0,
        GGML_BASE + max(by_type, key=by_type.get), 0, num("embedding_length") or 1,
        num("block_count") or 1, heads, num("attention.head_count_kv"),
        num("attention.key_length") or (1 if heads else 0),
        num("feed_forward_length") or num("expert_feed_forward_length") or 1, n_vocab or 1,
        num("context_length"), 32, 256, 32, 0, 0, 0)
    out += f32_bits(head.real(key("rope.freq_base")))
    out += struct.pack("<3I", head.integer("tokenizer.ggml.bos_token_id"),
                       head.integer("tokenizer.ggml.eos_token_id"), len(tensors))
    out += struct.pack(
        "<11I", num("expert_count"), num("expert_used_count"), num("expert_feed_forward_length"),
        num("expert_shared_feed_forward_length"), num("leading_dense_block_count"),
        num("attention.sliding_window"), 0, 0, 0, scale if scale <= 0xFFFFFFFF else 0, 0)
    out += f32_bits(head.real(key("rope.freq_base_swa")))
    out += bytes(2 * 4 + 8 * 4 + 12)
    name = head.text("general.name")
    return out + (arch if name is None else name)[:63].ljust(64, b"\0")


class Package:
    """Where everything goes: `head` is all bytes before the first tensor."""

    def __init__(self, heads):
        self.tensors = []
        for part, h in enumerate(heads):
            no, count = h.integer("split.no"), h.integer("split.count")
            if len(heads) > 1 and (no, count) != (part, len(heads)):
                raise Failure(f"should be part {part + 1} of {len(heads)}, but its keys say part "
                              f"{no + 1} of {count}")
            for t in h.tensors:
                t.part = part
                self.tensors.append(t)
        if not self.tensors:
            raise Failure("it has no tensors")
        if len(heads) == 1 and heads[0].integer("split.count") > 1:
            raise Failure("a part of a split file must be named NAME-00001-of-0000N.gguf")
        told = heads[0].kv.get(b"split.tensors.count")
        if len(heads) > 1 and told is not None and told.first != len(self.tensors):
            raise Failure(f"split.tensors.count is {told.first}, but the parts hold {len(self.tensors)}")
        index, off = bytearray(), 0
        for t in self.tensors:
            off = -(-off // ALIGN) * ALIGN
            t.dst = off
            index += struct.pack("<I", len(t.name)) + t.name + b"\0" + struct.pack("<I", len(t.dims))
            index += struct.pack(f"<{len(t.dims)}I", *reversed(t.dims))
            index += struct.pack("<QQI", off, t.size, GGML_BASE + t.kind)
            off += t.size
        self.n_kv = heads[0].n_kv
        head = header(heads[0], self.tensors) + bytes(index)
        head += struct.pack("<Q", self.n_kv) + heads[0].pairs
        self.head = head + bytes(-len(head) % ALIGN)
        for t in self.tensors:
            t.dst += len(self.head)
        self.size = len(self.head) + off
        self.weights = sum(t.size for t in self.tensors)

    def stretches(self):
        """Ranges of the source of at most STRETCH bytes: (part, start, end, [(from, to, n)])."""
        out = []
        for t in sorted(self.tensors, key=lambda t: (t.part, t.src)):
            for at in range(0, t.size, STRETCH):
                n = min(STRETCH, t.size - at)
                start = t.src + at
                last = out[-1] if out else None
                if (last and last[0] == t.part and start - last[2] <= MAX_GAP
                        and start + n - last[1] <= STRETCH):
                    last[2] = start + n
                else:
                    last = [t.part, start, start + n, []]
                    out.append(last)
                last[3].append((start - last[1], t.dst + at, n))
        return out


# ---- output --------------------------------------------------------------------------------------

class Progress:
    """On a terminal one line that is drawn again; elsewhere a line for each twentieth."""

    def __init__(self, total, done):
        self.total, self.done, self.first = total, done, done
        self.start = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self.step = done * 20 // total
        self.drawn = 0.0
        self.lock = threading.Lock()

    def add(self, n, name):
        with self.lock:
            self.done += n
            now, step = time.monotonic(), self.done * 20 // self.total
            last = self.done >= self.total
            if self.terminal and not last and now - self.drawn < 0.1:
                return
            if not self.terminal and step == self.step:
                return
            self.step, self.drawn = step, now
            rate = (self.done - self.first) / max(now - self.start, 1e-6)
            left = (self.total - self.done) / rate if rate else 0
            line = (f"{self.done / 1e9:7.2f} / {self.total / 1e9:.2f} GB  {rate / 1e6:6.0f} MB/s  "
                    f"{left:5.0f} s left  {name}")
            end = "\n" if last or not self.terminal else ""
            print(("\r\033[K" if self.terminal else "") + line, end=end, file=sys.stderr, flush=True)


class Output:
    def __init__(self, dst, force):
        if os.path.isdir(dst):
            raise Failure(f"{dst} is a directory")
        if os.path.exists(dst) and not force:
            raise Failure(f"{dst} exists already; --force replaces it")
        self.dst, self.part, self.log_path = dst, dst + ".part", dst + ".part.pylog"
        self.fd = os.open(self.part, os.O_RDWR | os.O_CREAT, 0o666)
        self.log = None
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failure(f"another process is writing {self.part}") from None

    def begin(self, package, keep):
        if not keep:
            os.ftruncate(self.fd, 0)
        disk = os.fstatvfs(self.fd)
        need = max(package.size - os.fstat(self.fd).st_blocks * 512, 0) + SPARE
        if need > disk.f_bavail * disk.f_frsize:
            raise Failure(f"{self.dst} needs {need / 1e6:.1f} MB on the disk, and only "
                          f"{disk.f_bavail * disk.f_frsize / 1e6:.1f} MB are free")
        os.ftruncate(self.fd, package.size)
        self.write(0, package.head)

    def write(self, off, data):
        data = memoryview(data)
        while data:
            n = os.pwrite(self.fd, data, off)
            data, off = data[n:], off + n

    def finish(self):
        os.fsync(self.fd)
        os.rename(self.part, self.dst)
        os.close(self.fd)
        folder = os.open(os.path.dirname(self.dst) or ".", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        if os.path.exists(self.log_path):
            os.unlink(self.log_path)

    def forget(self):
        os.unlink(self.part)
        if os.path.exists(self.log_path):
            os.unlink(self.log_path)


def copy_local(part, out, runs, start):
    """Copy runs of one stretch; in the kernel where it can."""
    for at, to, n in runs:
        src = start + at
        while n:
            try:
                k = os.copy_file_range(part.file.fileno(), out.fd, n, src, to)
            except (AttributeError, OSError):
                k = 0
            if k == 0:
                data = os.pread(part.file.fileno(), n, src)
                if not data:
                    raise Failure("the file became shorter while it was read")
                out.write(to, data)
                k = len(data)
            src, to, n = src + k, to + k, n - k


def digest(chunks):
    h = hashlib.blake2b(digest_size=16)
    for c in chunks:
        h.update(c)
    return h.hexdigest()


def resume(out, package, parts, stretches, src):
    """Numbers of the stretches that an earlier run wrote and that read back right."""
    facts = repr([src, STRETCH, [(p.size, p.id) for p in parts]]).encode()
    line = "gguf_to_1bp 1 " + digest([facts, package.head]) + "\n"
    done = {}  # number: digest
    try:
        with open(out.log_path, encoding="ascii", errors="replace") as f:
            lines = f.readlines() if f.readline() == line else []
    except FileNotFoundError:
        lines = []
    for entry in lines:
        m = re.match(r"(\d+) ([0-9a-f]{32})\n$", entry)
        if not m or int(m.group(1)) >= len(stretches):
            continue
        i = int(m.group(1))
        part, start, end, runs = stretches[i]
        if digest(os.pread(out.fd, n, to) for _, to, n in runs) != m.group(2):
            continue
        done[i] = m.group(2)
    if done and not all(p.id for p in parts):
        # No ETag says that it is still the same file: the largest stretch is fetched again.
        i = max(done, key=lambda i: stretches[i][2] - stretches[i][1])
        part, start, end, runs = stretches[i]
        data = bytearray()
        parts[part].read(data, start, end - start)
        if digest(data[at:at + n] for at, _, n in runs) != done[i]:
            done = {}
    out.begin(package, bool(done))
    out.log = open(out.log_path, "a" if done else "w", encoding="ascii")
    out.log.write("\n" if done else line)
    out.log.flush()
    return done


def copy_remote(parts, out, stretches, done, progress, names):
    lock, stop = threading.Lock(), threading.Event()

    def fetch(i):
        part, start, end, runs = stretches[i]
        if stop.is_set():
            return
        data = bytearray()
        parts[part].read(data, start, end - start)
        for at, to, n in runs:
            out.write(to, data[at:at + n])
        with lock:
            out.log.write(f"{i} {digest(data[at:at + n] for at, _, n in runs)}\n")
            out.log.flush()
        progress.add(sum(n for _, _, n in runs), names[i])

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        jobs = [pool.submit(fetch, i) for i in range(len(stretches)) if i not in done]
        try:
            for job in concurrent.futures.as_completed(jobs):
                job.result()
        except BaseException:
            stop.set()
            raise


def convert(src, dst, force):
    out = Output(dst, force)
    ours = os.fstat(out.fd).st_size == 0  # nothing of an earlier run is lost with it
    remote = False
    try:
        parts = open_parts(src)
        remote = isinstance(parts[0], RemotePart)
        package = Package([p.head() for p in parts])
        stretches = package.stretches()
        names = [next(t.name for t in package.tensors if t.dst <= s[3][-1][1] < t.dst + t.size)
                 .decode("utf-8", "replace") for s in stretches]
        sizes = [sum(n for _, _, n in s[3]) for s in stretches]
        if remote:
            done = resume(out, package, parts, stretches, src)
            ours = False
            progress = Progress(package.weights, sum(sizes[i] for i in done))
            copy_remote(parts, out, stretches, done, progress, names)
        else:
            out.begin(package, False)
            progress = Progress(package.weights, 0)
            for (part, start, _, runs), size, name in zip(stretches, sizes, names):
                copy_local(parts[part], out, runs, start)
                progress.add(size, name)
        out.finish()
    except BaseException:
        if ours or not remote:
            out.forget()
        raise
    print(f"wrote {dst}: 1BP v5, {len(package.tensors)} tensors, {package.n_kv} metadata keys, "
          f"{package.weights / 2**30:.2f} GiB of weights")


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("src", help="a .gguf path, hf://OWNER/REPO[@REVISION]/FILE.gguf or an address")
    ap.add_argument("dst", help="the .1bp to write")
    ap.add_argument("--force", "-f", action="store_true", help="replace what is there already")
    a = ap.parse_args()
    try:
        convert(a.src, a.dst, a.force)
    except (Failure, OSError) as e:
        print(f"gguf_to_1bp.py: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
