"""q4 GEMV on 4 x 8 cores: prints MLIR for one shape. UNBUILT, see README.md.

    gemv_q4.py -k 256 -n 1024 > gemv_q4.mlir
"""
import argparse

import numpy as np
from aie.dialects.aie import AIEDevice, device, external_func
from aie.dialects.aiex import runtime_sequence
from aie.extras.context import mlir_mod_ctx
from ml_dtypes import bfloat16

from design import ROWS, Array, sequence

TILE_K, TILE_N, TILE_BYTES = 256, 32, 5120


def main():
    ap = argparse.ArgumentParser()
    for name in "kn":
        ap.add_argument("-" + name, type=int, required=True)
    s = ap.parse_args()
    if s.k % TILE_K or s.n % 1024:
        ap.error("k must be a multiple of 256, n of 1024")
    bf16, u8, f32 = np.dtype[bfloat16], np.dtype[np.uint8], np.dtype[np.float32]
    a_type, b_type, c_type = np.ndarray[(TILE_K,), bf16], np.ndarray[(TILE_BYTES,), u8], np.ndarray[(TILE_N,), f32]
    steps = s.k // TILE_K
    with mlir_mod_ctx() as ctx:

        @device(AIEDevice.npu2)
        def gemv_q4():
            zero = external_func("gemv_q4_zero", inputs=[c_type])
            multiply = external_func("gemv_q4_tile", inputs=[a_type, b_type, c_type])
            array = Array(a_type, b_type, c_type, True, [])
            array.cores(zero, multiply, "gemv_q4.o")

            @runtime_sequence(np.ndarray[(s.k,), bf16], np.ndarray[(s.n // TILE_N * steps * TILE_BYTES,), u8], np.ndarray[(s.n,), f32])
            def run(x, w, y):
                sequence(1, steps, s.n // 1024, 2 * s.k, steps * ROWS * TILE_BYTES, 0, s.n, 1)

        print(ctx.module)


if __name__ == "__main__":
    main()
