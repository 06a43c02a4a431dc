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

/* Compensated rounding of rotated or plain rows to Q4_0 (gptq.c). U [n][n] of columns [first, first + n), one block
 * of the importance file's products, of one matrix; `rotated`: the rows will be. FORMAT when they are no covariance. */
OB_MUST_CHECK ob_status conv_gptq_prepare(const ob_imatrix *im, const char *name, int64_t mat, bool rotated, int64_t first,
                                          int64_t n, float *u, ob_err *err);
/* The n weights w (destroyed) of one row in that block, into n / 32 blocks of Q4_0. */
void conv_gptq_row(float *w, const float *u, int64_t n, uint8_t *dst);

#endif
