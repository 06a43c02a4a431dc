/* dev/cpu/cpu_int.h: what the files of the CPU device share.
 *
 * A plan is a list of stages. All threads of the pool walk it together in one dispatch per step and
 * meet after each stage. Inside a stage the work is taken in grains (ob_pool_take).
 *
 *   rows    consecutive row-wise ops: a grain of rows goes through all of them while it is in cache
 *   linear  [norm ->] quantise activations -> products [-> glu]
 *   attend  attention over the cache (the cache write is a row-wise op before it)
 *   own     an op that shares its work out by itself: experts, products per head, convolution, delta net
 *   product matrices of a linear op that another unit multiplies (dev/products.h)
 *   ref     one op by ops/ref.c
 *
 * Owner of everything here: the engine thread; during a step also the pool's threads, each in its own
 * cpu_thread.
 */
#ifndef OB_DEV_CPU_CPU_INT_H
#define OB_DEV_CPU_CPU_INT_H

#include "base/arena.h"
#include "base/threads.h"
#include "dev/cpu/kernels.h"
#include "dev/cpu/linear.h"
#include "dev/device.h"
#include "dev/products.h"
#include "ops/ref.h"

typedef struct cpu_profile {
    uint64_t calls;
    double ms, flops, bytes;
} cpu_profile;

/* Memory for what a step writes. Steps run one after the other, so all plans may have the same. */
typedef struct cpu_block {
    uint8_t *data;
    size_t n_bytes;
    int32_t n_plans; /* that use it; the last one frees it */
    struct cpu_block *next;
} cpu_block;

/* What the thread that has products done hands to the others. */
typedef struct cpu_help {
    ob_parallel base; /* first: what the unit sees */
    ob_pool *pool;
    void (*fn)(void *arg, int64_t i0, int64_t i1); /* NULL: nothing more */
    void *arg;
    int64_t n, grain;
} cpu_help;

typedef struct cpu_dev {
    ob_dev base;
    ob_pool *pool;
    int n_threads;
    ob_cpu_level level;
    const ob_cpu_kernels *kern;
    bool exact, profile;
    ob_observe_fn observe; /* may be NULL */
    void *observe_arg;
    const ob_dev_products *products; /* may be NULL */
    cpu_help help;
    cpu_profile prof[OB_OP_COUNT];
    cpu_block *blocks;
} cpu_dev;

struct ob_dev_buf {
    uint8_t *data; /* 64-aligned, within memory */
    void *memory;
    uint64_t n_bytes;
};

struct ob_dev_weight {
    ob_weight desc; /* name not kept */
    ob_lin *lin;    /* LINEAR, EXPERTS; NULL at level ref and where `prod` is not */
    ob_product_weight *prod; /* of cpu_dev.products */
    float *vec;     /* VECTOR */
    uint8_t *raw;   /* experts that are written one by one, at level ref */
};

/* Scratch of one thread. */
typedef struct cpu_thread {
    float *ref;      /* ob_ref_scratch_floats */
    float *rows;     /* normalised rows before a small product */
    uint8_t *act;    /* its quantised activations */
    void *lin;       /* ob_lin_scratch_bytes */
    float *work;     /* of attention, delta net, compressed attention */
    int32_t *pairs;  /* rows of a mixture sorted by expert */
} cpu_thread;

typedef struct cpu_rope {
    const ob_rope_params *p;
    const float *factors;
    float *cs; /* [max_tok][ob_cpu_rope_floats] */
} cpu_rope;

typedef enum cpu_stage_kind { STAGE_ROWS, STAGE_LINEAR, STAGE_PRODUCT, STAGE_ATTEND, STAGE_OWN, STAGE_REF } cpu_stage_kind;

typedef void (*cpu_own_fn)(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t);
typedef void (*cpu_row_fn)(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t, int64_t r0, int64_t r1);
typedef struct cpu_row_op {
    cpu_row_fn fn;
    int32_t op; /* -1: the rope tables */
} cpu_row_op;

/* One linear op: its matrices that are multiplied here, and which of them share quantised activations. */
typedef struct cpu_linear {
    int32_t n_mat, n_group;
    int32_t mat[OB_OP_MAX_OUT];         /* [n_mat] of the op */
    int32_t group[OB_OP_MAX_OUT];       /* of each of them */
    const ob_lin *lead[OB_OP_MAX_OUT];  /* any matrix of the group */
    size_t act_off[OB_OP_MAX_OUT + 1];  /* of each group in one chunk's activations */
    size_t small_off[OB_OP_MAX_OUT + 1]; /* the same in a thread's own copy */
    int64_t n_granule, act_granule, chunk_rows;
} cpu_linear;

typedef struct cpu_stage {
    cpu_stage_kind kind;
    ob_rows rows;                /* ROWS */
    int32_t first_row_op, n_row_ops;
    cpu_own_fn own;              /* OWN */
    int32_t op, norm_op, glu_op; /* LINEAR, ATTEND, OWN, REF; the fused ones OB_NONE where absent */
    int32_t phase;               /* REF */
    cpu_linear *lin;
} cpu_stage;

struct ob_dev_plan {
    cpu_dev *dev;
    ob_arena arena; /* everything of the plan that is not page-sized */
    ob_program prog;
    ob_dev_weight **weights;
    ob_cache_view *caches;
    float **states;
    float **vals;
    int32_t page_tok, n_pages, max_ctx, n_slots;
    cpu_stage *stages;
    int32_t n_stages;
    cpu_row_op *row_ops;
    int32_t n_row_ops;
    cpu_rope *ropes;
    int32_t n_ropes;
    int32_t *rope_of; /* [n_ops] */
    cpu_thread *threads;
    cpu_block *block; /* workspace, activations, scratch */
    uint8_t *act;     /* shared activations */
    size_t act_bytes; /* of one chunk of rows */
    float *moe_hid, *moe_part; /* a mixture's hidden rows and partial results */
    float *moe_gu;             /* where another unit multiplies: gate and up of a row side by side */
    ob_product *jobs;          /* products of one call; room for the experts of a mixture */
    float **conv_taps;         /* [n_ops]: taps of a convolution, turned for its kernel; else NULL */
    float *part;      /* partial results of attention */
    size_t part_floats;
    /* The step in flight */
    ob_step step;
    int32_t *row_seq, *row_at; /* [max_tok]: sequence of a token, its place in the cache */
    uint8_t *coarse_out;       /* [max_out]: step.coarse of the tokens whose output is wanted */
};

/* --- cpu_rows.c --- */
cpu_row_fn cpu_row_kernel(ob_op_kind kind); /* NULL: not row-wise */
void cpu_rope_tables(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t, int64_t r0, int64_t r1);
void cpu_cache_write(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t, int64_t r0, int64_t r1);

/* --- cpu_linear.c --- */
enum {
    CPU_CHUNK_ROWS = 512,     /* rows whose activations are multiplied together */
    CPU_SMALL_FLOATS = 16384, /* activations up to this are quantised by each thread for itself */
};
/* Fills `l`; *act_bytes: shared activations per chunk, *small_bytes and *scratch_bytes: per thread. */
void cpu_linear_prepare(const ob_dev_plan *p, const ob_op *op, cpu_linear *l, int64_t max_rows,
                        size_t *act_bytes, size_t *small_bytes, size_t *scratch_bytes);
void cpu_linear_run(const ob_dev_plan *p, const cpu_stage *st, const cpu_thread *t);

/* --- cpu_moe.c --- */
enum { CPU_MOE_BLOCK = 128 }; /* rows that an expert multiplies together */
typedef struct cpu_moe_sizes {
    size_t pairs, rows, act, lin; /* bytes per thread */
    size_t hid, part, gu, jobs;   /* bytes of the plan */
} cpu_moe_sizes;
bool cpu_moe_fits(const ob_dev_plan *p, const ob_op *op);
void cpu_moe_measure(const ob_dev_plan *p, const ob_op *op, int32_t max_rows, cpu_moe_sizes *z);
void cpu_moe_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t);
bool cpu_heads_fits(const ob_dev_plan *p, const ob_op *op);
void cpu_heads_measure(const ob_dev_plan *p, const ob_op *op, int32_t max_rows, cpu_moe_sizes *z);
void cpu_heads_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t);

/* --- cpu_products.c --- */
bool cpu_has_product(const ob_dev_plan *p, const ob_op *op); /* some matrix of a linear op, or a mixture */
void cpu_product_measure(const ob_op *op, cpu_moe_sizes *z);
void cpu_product_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t);
/* Jobs of one thread, helped by all: every thread of the step calls it; only thread 0's jobs count. Its end is no meeting. */
void cpu_products_do(const ob_dev_plan *p, const cpu_thread *t, int32_t n_jobs);
void cpu_products_init(cpu_dev *d);

/* --- cpu_recur.c --- */
void cpu_conv_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t);
size_t cpu_cca_scratch_floats(const ob_dev_plan *p, const ob_op *op);
bool cpu_cca_fits(const ob_dev_plan *p, const ob_op *op);
void cpu_cca_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t);
size_t cpu_gdn_scratch_floats(const ob_op *op);
void cpu_gdn_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t);

/* --- cpu_csa.c --- */
size_t cpu_csa_scratch_floats(const ob_op *op, int32_t max_ctx);
void cpu_csa_run(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t);
void cpu_hc_mix(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t, int64_t r0, int64_t r1);
void cpu_hc_post(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t, int64_t r0, int64_t r1);

/* --- cpu_attn.c --- */
size_t cpu_attn_scratch_floats(const ob_attn_params *a);
/* Floats of partial results worth having so that threads can share one long sequence. */
size_t cpu_attn_part_floats(const ob_attn_params *a, int n_threads, int32_t max_ctx);
void cpu_attend(const ob_dev_plan *p, const ob_op *op, const cpu_thread *t);

/* --- cpu_plan.c --- */
ob_status cpu_plan_new(ob_dev *d, const ob_program *p, const ob_plan_bindings *b, ob_dev_plan **out, ob_err *err);
void cpu_plan_free(ob_dev *d, ob_dev_plan *p);
bool cpu_supports(const ob_dev *d, const ob_program *p, int32_t op, char *why, size_t cap);

/* --- cpu_run.c --- */
ob_status cpu_submit(ob_dev *d, ob_dev_plan *p, const ob_step *step, ob_fence *out, ob_err *err);

/* Address of one cached row (dev/device.h, ops.h: order of elements). */
static inline uint8_t *cpu_cache_row(void *plane, size_t row_bytes, int32_t page_tok, int32_t n_head,
                                     const int32_t *pages, int32_t at, int32_t head)
{
    const size_t row = ((size_t)pages[at / page_tok] * (size_t)n_head + (size_t)head) * (size_t)page_tok +
                       (size_t)(at % page_tok);
    return (uint8_t *)plane + row * row_bytes;
}
static inline float *cpu_row(const ob_dev_plan *p, ob_val v, int64_t r)
{
    return p->vals[v] + r * p->prog.vals[v].cols;
}
/* ob_step.coarse by rows of a value, from `row` on; NULL where no row is coarse. */
static inline const uint8_t *cpu_coarse(const ob_dev_plan *p, ob_val v, int64_t row)
{
    const ob_rows rows = p->prog.vals[v].rows;
    if (!p->step.coarse || rows == OB_ROWS_SEQ) return NULL;
    return (rows == OB_ROWS_OUT ? p->coarse_out : p->step.coarse) + row;
}
static inline const float *cpu_vector(const ob_dev_plan *p, int32_t w)
{
    return w == OB_NONE ? NULL : p->weights[w]->vec;
}
/* Hand the inputs of matrix `mat` of a weight to the observer; on one thread, while the others wait. */
static inline void cpu_observe(const ob_dev_plan *p, int32_t w, int64_t mat, const float *x, int64_t ldx, int64_t n_rows)
{
    if (w != OB_NONE) p->dev->observe(p->dev->observe_arg, &p->prog.weights[w], mat, x, ldx, n_rows);
}
static inline int64_t cpu_n_rows(const ob_dev_plan *p, ob_rows rows)
{
    return rows == OB_ROWS_TOK ? p->step.n_tok : rows == OB_ROWS_OUT ? p->step.n_out : p->step.n_seq;
}

#endif
