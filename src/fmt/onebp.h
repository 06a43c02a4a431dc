/* fmt/onebp.h: 1BP packages, version 5. docs/onebp.md has the layout. */
#ifndef OB_FMT_ONEBP_H
#define OB_FMT_ONEBP_H

#include "fmt/fmt.h"

enum {
    OB_ONEBP_VERSION = 5,
    OB_ONEBP_HEADER_BYTES = 256,
    OB_ONEBP_AT_N_TENSORS = 88, /* where the header has the number of tensors, a u32 */
    OB_ONEBP_ALIGNMENT = 64,    /* of each tensor, from the start of the file */
    OB_ONEBP_GGML_BASE = 256,   /* quant of an index entry: this plus the ggml type */
};

#endif
