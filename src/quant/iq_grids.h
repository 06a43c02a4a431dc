/* quant/iq_grids.h: the codebooks of the IQ formats, made by tools/make_iq_grids.py.
 *
 * One byte an element, element 0 in the lowest byte. Constants of the file format, shared with the
 * devices' kernels.
 */
#ifndef OB_QUANT_IQ_GRIDS_H
#define OB_QUANT_IQ_GRIDS_H

#include <stdint.h>

extern const uint64_t ob_quant_iq2xxs_grid[256];
extern const uint64_t ob_quant_iq2xs_grid[512];
extern const uint64_t ob_quant_iq2s_grid[1024];
extern const uint32_t ob_quant_iq3xxs_grid[256];
extern const uint32_t ob_quant_iq3s_grid[512];
extern const uint64_t ob_quant_iq1s_grid[2048]; /* signed bytes */

#endif
