/* convert/convert.h: one model file into another: quantised, rotated; and the importance that guides it.
 *
 * Owns: which tensor gets which type (mix.c), the streaming conversion (quantize.c), importance files
 * (imatrix.c). Memory is bounded: the source is mapped and let go tensor by tensor, results are written
 * as they come. Must not know engines or devices: whoever runs a model hands activations over.
 */
#ifndef OB_CONVERT_CONVERT_H
#define OB_CONVERT_CONVERT_H

#include "fmt/fmt.h"
#include "quant/quant.h"

/* ---- importance ---------------------------------------------------------------------------------- */

typedef struct ob_imatrix ob_imatrix; /* mean squared activations, and their mean products, by weight name */

/* llama.cpp's GGUF form: tensors NAME.in_sum2 [K, n_mats] and NAME.counts [1, n_mats], f32; ours beside them, where
 * products were gathered: NAME.in_cov [B, K, n_mats]. */
OB_MUST_CHECK ob_status ob_imatrix_load(const char *path, ob_imatrix **out, ob_err *err);
/* cov_block: 0, or products x_i x_j are summed too, for i and j in the same block of so many columns (a multiple
 * of 32; shorter rows: all of them). That takes 4 * cov_block bytes per column. */
OB_MUST_CHECK ob_status ob_imatrix_new(int64_t cov_block, ob_imatrix **out, ob_err *err);
/* Add the squares of n_rows rows x [n_rows][ldx] of k activations that matrix `mat` (of n_mats) of the
 * weight multiplied. The name is copied. OB_E_INVALID when k or n_mats differ from before. */
OB_MUST_CHECK ob_status ob_imatrix_add(ob_imatrix *im, const char *name, int64_t k, int64_t n_mats, int64_t mat,
                                       const float *x, int64_t ldx, int64_t n_rows, ob_err *err);
/* dataset: what the text was called; chunks of chunk_tok tokens. */
OB_MUST_CHECK ob_status ob_imatrix_save(const ob_imatrix *im, const char *path, const char *dataset,
                                        uint32_t n_chunks, uint32_t chunk_tok, ob_err *err);
size_t ob_imatrix_n(const ob_imatrix *im);
/* Mean squares [k] of one matrix into out; ones where it never saw a row. False when the name is unknown
 * or the shape differs. */
bool ob_imatrix_get(const ob_imatrix *im, const char *name, int64_t k, int64_t n_mats, int64_t mat, float *out);
/* Columns of a block of products of a weight of k columns; 0 where there are none. */
int64_t ob_imatrix_cov_block(const ob_imatrix *im, const char *name, int64_t k, int64_t n_mats);
/* Mean products of one matrix, columns [first, first + n) of one block, into out [n][n], symmetric. False when the matrix
 * never saw a row. */
bool ob_imatrix_cov(const ob_imatrix *im, const char *name, int64_t mat, int64_t first, int64_t n, double *out);
void ob_imatrix_free(ob_imatrix *im); /* NULL is allowed */

/* ---- quantising ---------------------------------------------------------------------------------- */

/* The key of a rotated file: every Q4_0 weight but token_embd was multiplied, in blocks of 32 along its
 * rows, by H32 (quant/hadamard.h); the value is 32. */
#define OB_HADAMARD_KEY "onebit.hadamard_q4_0"

/* "Q4_K_M", "F16", ... in order; NULL past the end. */
const char *ob_convert_type_name(int index);

typedef struct ob_quantize_params {
    const char *type;            /* a name of ob_convert_type_name (any case); ignored by rotate */
    const char *const *rules;    /* [n_rules] "REGEX=TYPE": tensors whose name matches; the first one wins */
    int n_rules;
    const ob_imatrix *imatrix;   /* may be NULL */
    bool pure;                   /* one type for all, no mix */
    bool requantize;             /* allow sources that were quantised to less than 8 bits */
    bool rotate;                 /* H32 and Q4_0 */
    int n_threads;               /* <= 0: one per physical core */
    void (*on_progress)(void *arg, const char *tensor, uint64_t done_bytes, uint64_t total_bytes);
    void (*on_note)(void *arg, const char *text); /* what a user should know; may be NULL, as above */
    void *arg;
} ob_quantize_params;

typedef struct ob_quantize_result {
    uint64_t n_bytes, src_bytes; /* of all tensors */
    double bits_per_weight;
    int n_tensors, n_quantized, n_fallback, n_requantized, n_rotated, n_with_importance, n_compensated;
} ob_quantize_result;

/* src must have been opened with data. dst_path appears when all is written. Errors: INVALID (type, rule,
 * NaN in a tensor, wrong importance), UNSUPPORTED (a type that is not written, a source of less than 8
 * bits, a source that is rotated already), IO, NO_MEMORY. */
OB_MUST_CHECK ob_status ob_convert_quantize(const ob_file *src, const char *dst_path, const ob_quantize_params *p,
                                            ob_quantize_result *out, ob_err *err);

#endif
