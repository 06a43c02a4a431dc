#!/usr/bin/env python3
"""Write tests/data/images: small pictures in each format, and expected.npz with what Pillow reads and resizes.

    make_images.py tests/data/images        needs numpy and pillow

bomb.* are small files whose headers claim 30000 x 30000 pixels.
"""
import io
import os
import struct
import sys
import zlib

import numpy as np
from PIL import Image


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def main(folder):
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:30, 0:40]
    base = np.stack([6 * x, 8 * y, 3 * (x + y)], -1) + rng.integers(-9, 9, (30, 40, 3))
    rgb = Image.fromarray(np.clip(base, 0, 255).astype(np.uint8))
    grey = rgb.convert("L")
    alpha = rgb.copy()
    alpha.putalpha(Image.fromarray((255 * ((x + y) % 7) // 6).astype(np.uint8)))
    want = {}

    def white(picture):
        on = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        return np.asarray(Image.alpha_composite(on, picture.convert("RGBA")).convert("RGB"))

    def put(name, picture, expect=None, **options):
        picture.save(f"{folder}/{name}", **options)
        got = Image.open(f"{folder}/{name}")
        want[name] = np.asarray(got.convert("RGB")) if expect is None else expect
        return got

    put("rgb.png", rgb)
    put("grey.png", grey)
    rgb.crop((3, 2, 29, 28)).resize((50, 170), Image.BICUBIC).save(f"{folder}/tall.png")
    rgb.resize((210, 75), Image.BICUBIC).save(f"{folder}/wide.png")
    put("palette.png", rgb.quantize(16))
    put("alpha.png", alpha, white(alpha))
    sixteen = (np.asarray(grey).astype(np.uint16) * 257)
    put("sixteen.png", Image.fromarray(sixteen), np.repeat(np.asarray(grey)[..., None], 3, -1))
    # Pillow cannot write Adam7: a one-pass picture by hand, each pass its own rows.
    px, raw = np.asarray(rgb), b""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):
        for row in px[y0::dy, x0::dx]:
            raw += b"\0" + row.tobytes()
    with open(f"{folder}/interlaced.png", "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 30, 8, 2, 0, 0, 1)) +
                chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))
    want["interlaced.png"] = px
    put("rgb.jpg", rgb, quality=90)
    put("grey.jpg", grey, quality=90)
    put("progressive.jpg", rgb, quality=90, progressive=True)
    put("cmyk.jpg", rgb.convert("CMYK"), quality=95)
    put("lossy.webp", rgb, quality=80)
    put("lossless.webp", rgb, lossless=True)
    put("alpha.webp", alpha, white(alpha), lossless=True, exact=True)
    rgb.save(f"{folder}/moving.webp", save_all=True, append_images=[rgb.rotate(180)], duration=100)

    side = struct.pack(">II", 30000, 30000)
    with open(f"{folder}/bomb.png", "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", side + bytes([8, 2, 0, 0, 0])) +
                chunk(b"IDAT", zlib.compress(b"\0" * 90001)) + chunk(b"IEND", b""))
    jpg = io.BytesIO()
    rgb.save(jpg, "JPEG")
    jpg = bytearray(jpg.getvalue())
    at = jpg.index(b"\xff\xc0")
    jpg[at + 5:at + 9] = struct.pack(">HH", 30000, 30000)
    with open(f"{folder}/bomb.jpg", "wb") as f:
        f.write(jpg)

    filters = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}
    for name in ("bilinear-17x9", "bicubic-17x9", "lanczos-17x9", "bilinear-100x80", "bicubic-100x80", "lanczos-100x80",
                 "lanczos-40x90", "bicubic-1x1"):
        how, size = name.split("-")
        want[name] = np.asarray(rgb.resize(tuple(int(n) for n in size.split("x")), filters[how]))
    np.savez_compressed(f"{folder}/expected.npz", **want)


if __name__ == "__main__":
    main(sys.argv[1])
