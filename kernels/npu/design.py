"""What the two designs share: the array, the streams, the parameters, and control text in the order of npu_text.c.

UNBUILT: nobody has run this yet, see README.md. Written for mlir_aie's placed dialect API (aie.dialects).

Streams of both: weights of a column enter by its shim's MM2S 0 and go to its four cores; activations of a row of cores
enter by MM2S 1 of column 0, 2, 4 or 6 and go to all eight columns; a column's results leave by its S2MM 0. Weights are
declared first, so that they get channel 0 everywhere. A memory tile takes 1 + 1 + 4 streams at most, which is all it
has.

Loop counts are two words at RTP_ADDR of each core, [steps along K][output tiles]; a core waits for 1 in lock LOCK_ID.
These numbers are repeated in src/dev/npu/npu_layout.h and in the manifest.
"""
import numpy as np
from aie.dialects.aie import (AIEDevice, LockAction, ObjectFifoPort, WireBundle, buffer, core, device, external_func, lock, object_fifo,
                              object_fifo_link, tile, use_lock)
from aie.dialects.aiex import npu_address_patch, npu_blockwrite, npu_maskwrite32, npu_push_queue, npu_sync, npu_write32, runtime_sequence
from aie.helpers.dialects.ext.scf import _for as range_

ROWS, COLS, FIRST_ROW = 4, 8, 2
RTP_ADDR, LOCK_ID, CONTROLLER = 0xF000, 15, 15
LOCK_ADDR = 0x1F000 + 16 * LOCK_ID
S2MM, MM2S = 0, 1
CH_A, CH_B, CH_C = 1, 0, 0
BD_A, BD_B, BD_C = 0, 2, 4
STEP_MAX, IT_MAX, IN_FLIGHT = 1 << 20, 64, 2


def register(col, row, offset):
    return col << 25 | row << 20 | offset


class Array:
    """Tiles, streams and cores. a_type, b_type, c_type: of one core's piece; b_split: each core gets a piece of its own of a
    column's weights, instead of all cores the same; to_stream: how a column's results leave its memory tile."""

    def __init__(self, a_type, b_type, c_type, b_split, to_stream):
        self.shim = [tile(c, 0) for c in range(COLS)]
        self.mem = [tile(c, 1) for c in range(COLS)]
        self.core = [[tile(c, FIRST_ROW + r) for c in range(COLS)] for r in range(ROWS)]
        self.a, self.b, self.c = [], [], [[None] * COLS for _ in range(ROWS)]
        self.types = a_type, b_type, c_type
        elements = int(np.prod(b_type.__args__[0])) if hasattr(b_type, "__args__") else 0
        for c in range(COLS):  # weights first: channel 0
            cores = [self.core[r][c] for r in range(ROWS)]
            if b_split:
                whole = np.ndarray[(ROWS * elements,), b_type.__args__[1]]
                into = object_fifo(f"b_in{c}", self.shim[c], self.mem[c], 2, whole)
                parts = [object_fifo(f"b{c}_{r}", self.mem[c], cores[r], 2, b_type) for r in range(ROWS)]
                object_fifo_link(into, parts, [], [elements * r for r in range(ROWS)])
                self.b.append(parts)
            else:
                into = object_fifo(f"b_in{c}", self.shim[c], self.mem[c], 2, b_type)
                out = object_fifo(f"b{c}", self.mem[c], cores, 2, b_type)
                object_fifo_link(into, out)
                self.b.append([out] * ROWS)
        for r in range(ROWS):
            into = object_fifo(f"a_in{r}", self.shim[2 * r], self.mem[2 * r], 2, a_type)
            out = object_fifo(f"a{r}", self.mem[2 * r], self.core[r], 2, a_type)
            object_fifo_link(into, out)
            self.a.append(out)
        c_elements = int(np.prod(c_type.__args__[0]))
        for c in range(COLS):
            whole = np.ndarray[(ROWS * c_elements,), c_type.__args__[1]]
            parts = [object_fifo(f"c{c}_{r}", self.core[r][c], self.mem[c], 1, c_type) for r in range(ROWS)]
            out = object_fifo(f"c_out{c}", self.mem[c], self.shim[c], 2, whole, dimensionsToStream=to_stream)
            object_fifo_link(parts, out, [c_elements * r for r in range(ROWS)], [])
            for r in range(ROWS):
                self.c[r][c] = parts[r]

    def cores(self, zero, multiply, link_with):
        """Every core, for ever: parameters, then output tiles, each a sum over steps."""
        for r in range(ROWS):
            for c in range(COLS):
                rtp = buffer(self.core[r][c], np.ndarray[(8,), np.dtype[np.int32]], name=f"rtp{c}_{r}", address=RTP_ADDR)
                start = lock(self.core[r][c], lock_id=LOCK_ID, init=0, sym_name=f"start{c}_{r}")

                @core(self.core[r][c], link_with)
                def body(r=r, c=c, rtp=rtp, start=start):
                    for _ in range_(0xFFFFFFFF):
                        use_lock(start, LockAction.AcquireGreaterEqual, value=1)
                        steps, tiles = rtp[0], rtp[1]
                        for _ in range_(tiles):
                            out = self.c[r][c].acquire(ObjectFifoPort.Produce, 1)
                            zero(out)
                            for _ in range_(steps):
                                x = self.a[r].acquire(ObjectFifoPort.Consume, 1)
                                w = self.b[c][r].acquire(ObjectFifoPort.Consume, 1)
                                multiply(x, w, out)
                                self.a[r].release(ObjectFifoPort.Consume, 1)
                                self.b[c][r].release(ObjectFifoPort.Consume, 1)
                            self.c[r][c].release(ObjectFifoPort.Produce, 1)


def descriptor(words, d0=0, d1=0, d1_step=1, wrap=1, step=1):
    """The eight words of a shim descriptor, as ob_npu_bd_encode makes them."""
    return [words, 0, 0, d0 << 20, 3 << 30 | d1 << 20 | d1_step - 1, 2 << 24, wrap - 1 << 20 | step - 1, 1 << 25]


def transfer(col, direction, channel, bd, words, times, arg, offset):
    address = register(col, 0, 0x1D000 + 32 * bd)
    npu_blockwrite(address, words)
    npu_address_patch(addr=address + 4, arg_idx=arg, arg_plus=offset)
    npu_push_queue(col, 0, direction, channel, direction == S2MM, times - 1, bd)


def sequence(m, steps, blocks, a_strip, b_strip, a_row, c_width, c_rows):
    """The control text of a product; the same order and the same words as product() of src/dev/npu/npu_text.c, which is
    compared with what comes out of this (ob_npu_kernel_builder_agrees). m: blocks of 128 rows; strips in bytes."""
    for c in range(COLS):
        npu_maskwrite32(register(c, 0, 0x1D200), CONTROLLER << 8, 0x1F00)
    for c in range(COLS):
        for r in range(ROWS):
            npu_blockwrite(register(c, FIRST_ROW + r, RTP_ADDR), [steps, m * blocks])
    for c in range(COLS):
        for r in range(ROWS):
            npu_write32(register(c, FIRST_ROW + r, LOCK_ADDR), 1)
    per_round = 1 if b_strip * COLS // 4 > STEP_MAX else min(blocks, IT_MAX)
    rounds = [(mb, nb) for mb in range(m) for nb in range(0, blocks, per_round)]
    wait = lambda: npu_sync(column=0, row=0, direction=S2MM, channel=CH_C, column_num=COLS, row_num=1)
    for i, (mb, nb) in enumerate(rounds):
        if i >= IN_FLIGHT:
            wait()
        turn, tiles = i % IN_FLIGHT, min(per_round, blocks - nb)
        many = tiles > 1
        shape = dict(d0=128, d1=c_rows, d1_step=c_width) if c_rows > 1 else {}
        for c in range(COLS):
            words = descriptor(c_rows * 128, wrap=tiles, step=1024 if many else 1, **shape)
            transfer(c, S2MM, CH_C, BD_C + turn, words, tiles, 2, 4 * (mb * 128 * c_width + nb * 1024 + c * 128))
        for r in range(ROWS):
            transfer(2 * r, MM2S, CH_A, BD_A + turn, descriptor(a_strip // 4), tiles, 0, (mb * ROWS + r) * a_row)
        for c in range(COLS):
            words = descriptor(b_strip // 4, wrap=tiles, step=b_strip * COLS // 4 if many else 1)
            transfer(c, MM2S, CH_B, BD_B + turn, words, tiles, 1, (nb * COLS + c) * b_strip)
    for _ in range(min(len(rounds), IN_FLIGHT)):
        wait()
