"""int8 GEMM on 4 x 8 cores: prints MLIR for one shape. UNBUILT, see README.md.

    gemm_i8.py -m 128 -k 64 -n 1024 > gemm_i8.mlir

The shape decides the control text only: the array's configuration is the same for all.
"""
import argparse

import numpy as np
from aie.dialects.aie import AIEDevice, device, external_func
from aie.dialects.aiex import runtime_sequence
from aie.extras.context import mlir_mod_ctx

from design import ROWS, Array, sequence

TILE_M, TILE_K, TILE_N = 32, 64, 128


def main():
    ap = argparse.ArgumentParser()
    for name in "mkn":
        ap.add_argument("-" + name, type=int, required=True)
    s = ap.parse_args()
    if s.m % 128 or s.k % TILE_K or s.n % 1024:
        ap.error("m must be a multiple of 128, k of 64, n of 1024")
    i8, i32 = np.dtype[np.int8], np.dtype[np.int32]
    a_type, b_type, c_type = np.ndarray[(TILE_M * TILE_K,), i8], np.ndarray[(TILE_K * TILE_N,), i8], np.ndarray[(TILE_M * TILE_N,), i32]
    with mlir_mod_ctx() as ctx:

        @device(AIEDevice.npu2)
        def gemm_i8():
            zero = external_func("gemm_i8_zero", inputs=[c_type])
            multiply = external_func("gemm_i8_tile", inputs=[a_type, b_type, c_type])
            # A column's 128 x 128 results lie in micro-tiles; they leave as rows.
            to_stream = [(ROWS * TILE_M // 8, 8 * TILE_N), (8, 8), (TILE_N // 8, 64), (8, 1)]
            array = Array(a_type, b_type, c_type, False, to_stream)
            array.cores(zero, multiply, "gemm_i8.o")

            @runtime_sequence(np.ndarray[(s.m * s.k,), i8], np.ndarray[(s.k * s.n,), i8], np.ndarray[(s.m * s.n,), i32])
            def run(a, b, c):
                sequence(s.m // 128, s.k // TILE_K, s.n // 1024, s.k * TILE_M, s.k * TILE_N, s.k * TILE_M, s.n, 128)

        print(ctx.module)


if __name__ == "__main__":
    main()
