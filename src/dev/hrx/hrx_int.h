/* dev/hrx/hrx_int.h: what the files of the HRX device share. */
#ifndef OB_DEV_HRX_HRX_INT_H
#define OB_DEV_HRX_HRX_INT_H

#include "base/math.h"
#include "dev/hrx/hrx.h"
#include "dev/hrx/hrx_lib.h"

enum {
    HX_MAX_REFS = 12, HX_MAX_CONSTS = 16, HX_MAX_OBJECTS = 96, HX_MAX_KERNELS = 224,
    HX_DIM = 1024,          /* widest head of values, most experts: what kernels keep in LDS */
    HX_SPLIT_TOK = 16,      /* plans up to this size cut each token's cache into segments */
    HX_TILE = 128, HX_SEG_TILES = 4, HX_MAX_SEG = 64,
    HX_ROPE_LOW = 256,      /* positions of the first table of rope */
    HX_INDEX_DIM = 256,     /* widest head of an indexer: 32 keys are kept in LDS */
};

/* Machine code made ahead of time; generated from loom/ by cmake/hrx.cmake. Ends with a NULL arch. */
typedef struct hx_code { const char *arch, *object; const unsigned char *data; size_t n_bytes; } hx_code;
extern const hx_code hx_codes[];

/* loom/NAME.loom as text; ends with a NULL name. */
typedef struct hx_source { const char *name, *text; size_t n_bytes; } hx_source;
extern const hx_source hx_sources[];

/* The user's compiler, where there is one to be used. */
typedef struct hx_compiler {
    bool usable;
    char program[400], folder[400], version[100], why[300]; /* why: it is wanted and cannot be used */
    uint64_t id;
} hx_compiler;

/* A kernel that is ready: where it is, and what it takes. */
typedef struct hx_kernel {
    char object[24], name[24];
    hx_object exe;
    uint32_t ordinal, n_consts, n_refs; /* constants are words */
} hx_kernel;

typedef struct hx_dev {
    ob_dev base;
    const hx_lib *lib;
    int index;
    hx_object device, allocator, stream;
    char name[96], arch[32], code_arch[32]; /* what it is, and whose code it runs */
    bool exact, lost;
    hx_compiler compiler;
    hx_object none;                         /* bound where a kernel's optional buffer is absent */
    struct { char name[24]; hx_object exe; } objects[HX_MAX_OBJECTS];
    int n_objects;
    hx_kernel kernels[HX_MAX_KERNELS];
    int n_kernels;
    bool pending;                           /* work was given and not waited for */
    uint64_t n_submits, ticket;
    char disabled[256];                     /* kernels that are off, by name */
    uint64_t tested[64];                    /* hashes of ops whose kernels were tested, and whether they passed */
    bool passed[64];
    int n_tested;
} hx_dev;

struct ob_dev_buf { hx_object mem; uint64_t n_bytes; };

struct ob_dev_weight {
    hx_object mem;
    uint64_t n_bytes;
    ob_type type;    /* as it lies in memory */
    int64_t ne[4];
};

/* How a dispatch follows the step: its rows, on a grid axis. */
typedef enum hx_rows { HX_TOK = OB_ROWS_TOK, HX_OUT = OB_ROWS_OUT, HX_SEQ = OB_ROWS_SEQ, HX_FIXED } hx_rows;

typedef struct hx_dispatch {
    const hx_kernel *kernel;
    hx_config cfg;
    uint32_t consts[HX_MAX_CONSTS];
    hx_ref refs[HX_MAX_REFS];
    uint32_t n_consts, n_refs;
    hx_rows rows;
    int8_t axis, per;      /* rows / per, rounded up, is cfg.count[axis] */
    int8_t rows_at;        /* constant that holds the rows, -1 */
    int8_t seg_at;         /* attention: constant that holds the number of segments, -1 */
    bool merges;           /* only where there are several */
    hx_ref whole;          /* attention: the output where there is one segment */
    const char *op;
} hx_dispatch;

/* Where a step's parameters lie in a plan's buffer; bytes. */
typedef struct hx_layout { size_t tok, pos, type, out, coarse, coarse_out, info, block, seq, table, vec, n_bytes; } hx_layout;

struct ob_dev_plan {
    hx_dev *dev;
    ob_program prog;       /* with arrays of its own */
    ob_dev_weight **weights;
    hx_object *cache_k, *cache_v, *states;
    uint64_t *cache_k_len, *cache_v_len;
    ob_type k_type, v_type;
    int32_t page_tok, n_pages, max_ctx, n_slots, max_pages;
    hx_object work, params, scratch;
    size_t scratch_bytes;
    hx_layout at;
    uint8_t *host;         /* parameters of the step in flight */
    hx_object *tables;     /* [n_ops] of rope; ops that turn alike share one */
    hx_dispatch *steps;
    int32_t n_steps, cap_steps;
    size_t *result_off;    /* [n_vals] in results; SIZE_MAX: read when asked */
    uint8_t *results;
    uint8_t **inputs;      /* [n_vals] rows given by write_input */
    int32_t n_tok, n_out, n_seq;
    ob_fence in_flight;
};

static inline hx_dev *hx_of(ob_dev *d) { return (hx_dev *)d; }

/* ---- memory (hrx_memory.c) ------------------------------------------------------------------ */

OB_MUST_CHECK ob_status hx_alloc(hx_dev *d, uint64_t n_bytes, hx_object *out, ob_err *err);
OB_MUST_CHECK ob_status hx_quiet(hx_dev *d, ob_err *err); /* waits for everything */
void hx_settle(hx_dev *d);                                /* the same, before memory is given back */
OB_MUST_CHECK ob_status hx_upload(hx_dev *d, hx_object to, uint64_t off, const void *src, uint64_t n, ob_err *err);
ob_status hx_buffer_new(ob_dev *d, uint64_t n, unsigned flags, ob_dev_buf **out, ob_err *err);
void hx_buffer_free(ob_dev *d, ob_dev_buf *b);
ob_status hx_buffer_write(ob_dev *d, ob_dev_buf *b, uint64_t off, const void *src, uint64_t n, ob_err *err);
ob_status hx_buffer_read(ob_dev *d, ob_dev_buf *b, uint64_t off, void *dst, uint64_t n, ob_err *err);
ob_status hx_buffer_copy(ob_dev *d, ob_dev_buf *dst, uint64_t dst_off, ob_dev_buf *src, uint64_t src_off, uint64_t n, ob_err *err);
ob_status hx_buffer_zero(ob_dev *d, ob_dev_buf *b, uint64_t off, uint64_t n, ob_err *err);
ob_status hx_weight_new(ob_dev *d, const ob_weight *desc, ob_dev_weight **out, bool *keeps_data, ob_err *err);
void hx_weight_free(ob_dev *d, ob_dev_weight *w);
/* Name of the object with this type's kernels, NULL where there is none. */
const char *hx_type_object(ob_type t);
/* The type a weight has in memory: its own, or floats where it has no kernels. */
ob_type hx_packed_type(const hx_dev *d, const ob_weight *w);

/* ---- code (hrx_code.c) ---------------------------------------------------------------------- */

/* Whose code runs on this processor: its own, else its family's, else "": what a compiler makes. NULL where there is none. */
const char *hx_code_for(const char *arch);
OB_MUST_CHECK ob_status hx_kernel_get(hx_dev *d, const char *object, const char *name, uint32_t n_consts, uint32_t n_refs,
                                      const hx_kernel **out, ob_err *err);
void hx_code_deinit(hx_dev *d);
/* ---- kernels compiled at run time (hrx_compile.c) --------------------------------------------- */

typedef struct hx_compiled { void *data; size_t n_bytes; char path[512]; } hx_compiled;

/* Is this object made for the device's processor (loom/objects.def)? */
bool hx_has_object(const hx_dev *d, const char *object);
/* Is there a compiler at all? Nothing is run. */
bool hx_compiler_there(void);
/* has_own_code: the program has code for this very processor, so that only a compiler that is named is used. */
void hx_compiler_find(hx_compiler *c, bool has_own_code);
/* Out of the cache, or compiled now. */
OB_MUST_CHECK ob_status hx_compile(const hx_compiler *c, const char *object, const char *arch, hx_compiled *out, ob_err *err);
void hx_compiled_drop(hx_compiled *c, bool bad); /* bad: it is taken out of the cache too */

/* ---- plans (hrx_plan.c, hrx_ops.c, hrx_attn.c, hrx_csa.c, hrx_moe.c, hrx_state.c) ------------- */

bool hx_supports(const ob_dev *d, const ob_program *p, int32_t op, char *why, size_t cap);
bool hx_has_kernels(const hx_dev *d, const ob_program *p, int32_t op, char *why, size_t cap);
ob_status hx_plan_new(ob_dev *d, const ob_program *p, const ob_plan_bindings *b, ob_dev_plan **out, ob_err *err);
void hx_plan_free(ob_dev *d, ob_dev_plan *p);

/* A dispatch under construction: constants and buffers are appended in the order of the kernel's arguments. NULL (and
 * *s, *err set) when there is no such kernel or no memory. */
typedef struct hx_make { ob_dev_plan *plan; int32_t op; ob_status s; ob_err *err; } hx_make;
hx_dispatch *hx_add(hx_make *m, const char *object, const char *kernel, uint32_t n_consts, uint32_t n_refs);
void hx_int(hx_dispatch *x, int64_t v);
void hx_float(hx_dispatch *x, float v);
void hx_grid(hx_dispatch *x, int64_t gx, int64_t gy, int64_t gz);
void hx_follow(hx_dispatch *x, int axis, ob_rows rows, int per); /* this grid axis counts the step's rows */
void hx_value(hx_make *m, hx_dispatch *x, ob_val v);             /* OB_NONE: the empty buffer */
void hx_weight(hx_make *m, hx_dispatch *x, int32_t w);
void hx_param(hx_make *m, hx_dispatch *x, size_t off, size_t n);
void hx_tokens(hx_make *m, hx_dispatch *x);                      /* per token: sequence, place, end of the sequence, 0 */
void hx_sequences(hx_make *m, hx_dispatch *x);                   /* per sequence: first row, end row, past, slot */
void hx_pages(hx_make *m, hx_dispatch *x);
void hx_state(hx_make *m, hx_dispatch *x, int32_t state);
void hx_scratch(hx_make *m, hx_dispatch *x, size_t off, size_t n);
void hx_mem(hx_dispatch *x, hx_object mem, uint64_t off, uint64_t n);
int64_t hx_max_rows(const ob_dev_plan *p, ob_rows rows);
/* Bytes of a plan's scratch that an op's kernels share. */
size_t hx_op_scratch(const ob_dev_plan *p, int32_t op);

/* What activations become before they meet a weight: rotated, and rounded to 8 bits (not in exact mode) or, where the
 * step says so, to 4. */
typedef enum hx_turn { HX_AS_IS, HX_TURNED, HX_TURNED_4 } hx_turn;
hx_turn hx_turn_of(const ob_weight *w);
size_t hx_turned_bytes(const ob_dev_plan *p, ob_val in); /* of one kind */
/* Value `in` as a weight wants it: where it is, or in scratch from `off` on, where it is made the first time. */
hx_ref hx_turned(hx_make *m, ob_val in, hx_turn turn, size_t off, bool round, bool made[2]);
/* `per` rows of cols columns to each of `rows`; to may be from. */
void hx_add_turn(hx_make *m, hx_turn turn, ob_rows rows, int64_t cols, int32_t per, bool round, hx_ref from, hx_ref to);

void hx_add_rows(hx_make *m, const ob_op *op);
void hx_add_linear(hx_make *m, const ob_op *op);
size_t hx_linear_scratch(const ob_dev_plan *p, const ob_op *op);
void hx_add_rope(hx_make *m, const ob_op *op);
/* Angles of an op's rope: (cos, sin) of each pair at the positions below HX_ROPE_LOW, then at its multiples. */
ob_status hx_rope_table(ob_dev_plan *p, int32_t op, const ob_rope_params *r, int32_t factors, ob_err *err);
uint64_t hx_rope_bytes(const ob_dev_plan *p, const ob_rope_params *r);
void hx_add_attention(hx_make *m, const ob_op *op);
size_t hx_attn_scratch(const ob_dev_plan *p, const ob_op *op);
/* Rows `in` of heads of `dim` columns into a plane of the cache. */
void hx_add_cache_write(hx_make *m, ob_val in, ob_type type, int32_t n_head, int32_t dim, hx_object plane, uint64_t len);
void hx_add_hyper(hx_make *m, const ob_op *op);
void hx_add_csa(hx_make *m, const ob_op *op);
size_t hx_csa_scratch(const ob_dev_plan *p, const ob_op *op);
void hx_add_moe(hx_make *m, const ob_op *op);
size_t hx_moe_scratch(const ob_dev_plan *p, const ob_op *op);
void hx_add_state(hx_make *m, const ob_op *op);
size_t hx_state_scratch(const ob_dev_plan *p, const ob_op *op);

/* ---- steps (hrx_run.c) ---------------------------------------------------------------------- */

void hx_layout_make(ob_dev_plan *p);
ob_status hx_submit(ob_dev *d, ob_dev_plan *p, const ob_step *step, ob_fence *out, ob_err *err);
ob_status hx_wait(ob_dev *d, ob_fence f, ob_err *err);
ob_status hx_write_input(ob_dev *d, ob_dev_plan *p, ob_val v, const float *src, int32_t n_rows, ob_err *err);
ob_status hx_read_output(ob_dev *d, ob_dev_plan *p, ob_val v, int32_t row, int32_t n_rows, float *dst, ob_err *err);

/* ---- self-test (hrx_selftest.c) -------------------------------------------------------------- */

/* Do the kernels of this op agree with the reference? Once per kind and shape. */
bool hx_selftest(hx_dev *d, const ob_program *p, int32_t op);

#endif
