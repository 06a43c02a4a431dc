"""Copy through the array: prints MLIR. Each shim's MM2S 0 goes through its memory tile to its S2MM 0; no cores. UNBUILT,
see README.md. `1bit npu selftest` moves bytes with it before anything is multiplied.

    through.py > through.mlir
"""
import numpy as np
from aie.dialects.aie import AIEDevice, device, object_fifo, object_fifo_link, tile
from aie.dialects.aiex import npu_maskwrite32, npu_sync, runtime_sequence
from aie.extras.context import mlir_mod_ctx

from design import COLS, CONTROLLER, MM2S, S2MM, descriptor, register, transfer

BYTES, PIECE = 1 << 20, 4096


def main():
    words = np.ndarray[(BYTES // 4,), np.dtype[np.int32]]
    piece = np.ndarray[(PIECE // 4,), np.dtype[np.int32]]
    with mlir_mod_ctx() as ctx:

        @device(AIEDevice.npu2)
        def through():
            for c in range(COLS):
                shim, mem = tile(c, 0), tile(c, 1)
                into = object_fifo(f"in{c}", shim, mem, 2, piece)
                out = object_fifo(f"out{c}", mem, shim, 2, piece)
                object_fifo_link(into, out)

            @runtime_sequence(words, words)
            def run(a, b):
                part = BYTES // COLS
                for c in range(COLS):
                    npu_maskwrite32(register(c, 0, 0x1D200), CONTROLLER << 8, 0x1F00)
                for c in range(COLS):
                    transfer(c, S2MM, 0, 0, descriptor(part // 4), 1, 1, part * c)
                    transfer(c, MM2S, 0, 1, descriptor(part // 4), 1, 0, part * c)
                npu_sync(column=0, row=0, direction=S2MM, channel=0, column_num=COLS, row_num=1)

        print(ctx.module)


if __name__ == "__main__":
    main()
