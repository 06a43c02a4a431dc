/* dev/npu/npu_array_mac.h: the arithmetic of the software array's cores. Pure: pointers and sizes, no state.
 *
 * Tiles are laid out as npu_layout.h says. Integers are exact and wrap as the hardware's 32 bits do.
 */
#ifndef OB_DEV_NPU_NPU_ARRAY_MAC_H
#define OB_DEV_NPU_NPU_ARRAY_MAC_H

#include <stdint.h>

#include "dev/npu/npu_layout.h"

/* One column's cores over n_steps steps along K: a[r] is core row r's i8r tiles (n_steps of 2 KiB), b the column's i8c
 * tiles (n_steps of 8 KiB), acc [128 rows][128 outputs] is added to. */
void ob_npu_mac_i8(const int8_t *const a[OB_NPU_ROWS], const int8_t *b, int64_t n_steps, int32_t *acc);

/* One core of a matrix-vector product over one tile: x is 256 bf16, tile a q4g32 tile, acc [32] is added to. The order
 * of additions is the design's: in each group of 32, dot = sum of nibble * x and xs = sum of x in order; then acc +=
 * scale * dot; acc += minimum * xs. All in f32, rounded to nearest after every operation. */
void ob_npu_mac_q4(const uint16_t *x, const uint8_t *tile, float *acc);

#endif
