/* convert/convert_int.h: which type each tensor gets. For this room only. */
#ifndef OB_CONVERT_CONVERT_INT_H
#define OB_CONVERT_CONVERT_INT_H

#include "convert/convert.h"

typedef struct conv_target {
    ob_type type;
    bool rotate;     /* H32 before quantising */
    bool fallback;   /* its rows do not fit the type of the mix */
    bool by_rule;
} conv_target;

/* targets [ob_file_n_tensors]; *file_type: GGUF's general.file_type of the mix. */
OB_MUST_CHECK ob_status conv_choose_types(const ob_file *f, const ob_quantize_params *p, conv_target *targets,
                                          uint32_t *file_type, ob_err *err);

/* Compensated rounding of rotated or plain rows (gptq.c), to these types. */
bool conv_gptq_can(ob_type type);
/* U [n][n] of columns [first, first + n), one block of the importance file's products, of one matrix, and the order
 * [n / 32] in which blocks of 32 columns go; `rotated`: the rows will be. FORMAT when they are no covariance. */
OB_MUST_CHECK ob_status conv_gptq_prepare(const ob_imatrix *im, const char *name, int64_t mat, bool rotated, int64_t first,
                                          int64_t n, float *u, int32_t *order, ob_err *err);
/* The n weights w of one row in that block, into n / 32 blocks of the type; scratch [n]. */
void conv_gptq_row(ob_type type, float *w, const float *u, const int32_t *order, int64_t n, float *scratch, uint8_t *dst);

#endif
