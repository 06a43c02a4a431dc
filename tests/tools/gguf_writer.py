"""Write GGUF v3 files with the standard library alone, for tests.

    g = GGUF()
    g.add("general.architecture", "bert")
    g.add("tokenizer.ggml.tokens", ["a", "b"])          # array of strings
    g.add("tokenizer.ggml.scores", [0.0, 1.0])          # array of f32
    g.add("bert.block_count", 3)                         # u32
    g.add("x.y", 3, type="i64")                          # any other type by name
    g.tensor("token_embd.weight", "F32", [4, 2], bytes)  # dims fastest first, raw bytes
    g.write(path)                                        # or g.bytes()

Python values map to GGUF types: bool -> bool, int -> u32 (i32 if negative), float -> f32, str or bytes
-> string, list -> array of what its first element maps to (ints: i32). Keys and tensors keep the order
in which they were added, so equal calls give equal bytes.
"""
import struct

ALIGNMENT = 32
KV_TYPES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7,
            "string": 8, "array": 9, "u64": 10, "i64": 11, "f64": 12}
PACK = {"u8": "<B", "i8": "<b", "u16": "<H", "i16": "<h", "u32": "<I", "i32": "<i", "f32": "<f",
        "bool": "<?", "u64": "<Q", "i64": "<q", "f64": "<d"}
# name: (ggml id, elements per block, bytes per block)
TENSOR_TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
                "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
                "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
                "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "I32": (26, 1, 4),
                "BF16": (30, 1, 2)}


def _string(s):
    b = s.encode("utf-8") if isinstance(s, str) else bytes(s)
    return struct.pack("<Q", len(b)) + b


def _type_of(value, in_array=False):
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "i32" if in_array or value < 0 else "u32"
    if isinstance(value, float):
        return "f32"
    if isinstance(value, (str, bytes)):
        return "string"
    if isinstance(value, (list, tuple)):
        return "array"
    raise TypeError(f"no GGUF type for {type(value).__name__}")


def _scalar(kind, value):
    return _string(value) if kind == "string" else struct.pack(PACK[kind], value)


class GGUF:
    def __init__(self, version=3):
        self.version = version
        self.pairs = []    # (key, packed type and value)
        self.tensors = []  # (name, type id, dims, data)

    def add(self, key, value, type=None):
        """type: of a scalar, or of the elements when value is a list."""
        if isinstance(value, (list, tuple)):
            kind = type or _type_of(value[0], in_array=True)
            body = struct.pack("<IIQ", KV_TYPES["array"], KV_TYPES[kind], len(value))
            body += b"".join(_scalar(kind, v) for v in value)
        else:
            kind = type or _type_of(value)
            body = struct.pack("<I", KV_TYPES[kind]) + _scalar(kind, value)
        self.pairs.append((key, body))
        return self

    def tensor(self, name, type, dims, data):
        """dims: fastest first. data must have exactly the bytes of that type and shape."""
        type_id, block, size = TENSOR_TYPES[type]
        n = 1
        for d in dims:
            n *= d
        if dims[0] % block or n // block * size != len(data):
            raise ValueError(f"{name}: {len(data)} bytes do not fit {type} {list(dims)}")
        self.tensors.append((name, type_id, list(dims), bytes(data)))
        return self

    def bytes(self):
        out = bytearray(b"GGUF")
        out += struct.pack("<IQQ", self.version, len(self.tensors), len(self.pairs))
        for key, body in self.pairs:
            out += _string(key) + body
        offset = 0
        for name, type_id, dims, data in self.tensors:
            out += _string(name) + struct.pack("<I", len(dims))
            out += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", type_id, offset)
            offset += (len(data) + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        out += b"\0" * (-len(out) % ALIGNMENT)
        for _, _, _, data in self.tensors:
            out += data + b"\0" * (-len(data) % ALIGNMENT)
        return bytes(out)

    def write(self, path):
        with open(path, "wb") as f:
            f.write(self.bytes())


def wordpiece_vocab(lines, lowercase=True):
    """A vocabulary-only GGUF from the lines of a BERT vocab.txt, as converters write it."""
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    tokens, types = [], []
    for t in lines:
        if t in special or (t.startswith("[unused") and t.endswith("]")):
            tokens.append(t)
            types.append(2 if t == "[UNK]" else 3 if t in special else 5)
        else:
            tokens.append(t[2:] if t.startswith("##") else "\u2581" + t)
            types.append(1)
    g = GGUF()
    g.add("general.architecture", "bert")
    g.add("tokenizer.ggml.model", "bert")
    g.add("tokenizer.ggml.pre", "default")
    g.add("tokenizer.ggml.tokens", tokens)
    g.add("tokenizer.ggml.token_type", types)
    for key, text in (("padding", "[PAD]"), ("unknown", "[UNK]"), ("cls", "[CLS]"), ("bos", "[CLS]"),
                      ("seperator", "[SEP]"), ("eos", "[SEP]"), ("mask", "[MASK]")):
        if text in lines:
            g.add(f"tokenizer.ggml.{key}_token_id", lines.index(text))
    if not lowercase:
        g.add("tokenizer.ggml.normalizer.lowercase", False)
    return g
