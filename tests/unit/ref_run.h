/* tests/unit/ref_run.h: a whole text through a program by the reference ops alone (ops/ref.h), and flips:
 * changes of one convention in a built program. For test_conventions*.c. */
#ifndef OB_TESTS_REF_RUN_H
#define OB_TESTS_REF_RUN_H

#include <math.h>

#include "graph/model.h"
#include "npz.h"
#include "ops/ref.h"
#include "test.h"

enum { PAGE_TOK = 64, MAX_TOK = 320 };

typedef struct run {
    const ob_program *p;
    float **vals, **states;
    ob_cache_view *caches;
    float *scratch, *work;
} run;

static inline void run_new(run *r, ob_program *p, int32_t n_tok)
{
    ob_err err;
    if (ob_program_plan(p, n_tok, n_tok, 1, &err) != OB_OK) fail_msg("%s", err.text);
    *r = (run){.p = p};
    r->work = calloc(1, p->workspace_bytes + 64);
    r->vals = calloc((size_t)p->n_vals, sizeof *r->vals);
    r->states = calloc((size_t)p->n_states + 1, sizeof *r->states);
    r->caches = calloc((size_t)p->n_caches + 1, sizeof *r->caches);
    r->scratch = calloc(ob_ref_scratch_floats(p, MAX_TOK), sizeof *r->scratch);
    for (int32_t v = 0; v < p->n_vals; v++) r->vals[v] = r->work + p->vals[v].offset / sizeof(float);
    for (int32_t s = 0; s < p->n_states; s++) r->states[s] = calloc((size_t)p->states[s].n_floats, sizeof(float));
    for (int32_t c = 0; c < p->n_caches; c++) {
        const ob_cache_spec *k = &p->caches[c];
        r->caches[c] = (ob_cache_view){.k_type = OB_F32, .v_type = OB_F32, .page_tok = PAGE_TOK,
                                       .k = calloc(MAX_TOK * (size_t)k->n_head_kv * (size_t)k->k_dim, 4),
                                       .v = calloc(MAX_TOK * (size_t)k->n_head_kv * (size_t)k->v_dim + 1, 4)};
    }
}

static inline void run_free(run *r)
{
    for (int32_t s = 0; s < r->p->n_states; s++) free(r->states[s]);
    for (int32_t c = 0; c < r->p->n_caches; c++) {
        free(r->caches[c].k);
        free(r->caches[c].v);
    }
    free(r->work);
    free(r->vals);
    free(r->states);
    free(r->caches);
    free(r->scratch);
}

/* Run one text, the whole of it in one step. out: the tokens whose rows are wanted; NULL: all of them. What the
 * program gives stays in the run. */
static inline const float *run_text(run *r, const int32_t *tok, int32_t n, const int32_t *out, int32_t n_out,
                                    int32_t type_of_all)
{
    int32_t pos[MAX_TOK], type[MAX_TOK], pages[MAX_TOK / PAGE_TOK];
    const int32_t first[2] = {0, n}, past = 0, slot = 0;
    for (int32_t i = 0; i < n; i++) pos[i] = i;
    for (int32_t i = 0; i < n; i++) type[i] = type_of_all;
    for (int32_t i = 0; i < MAX_TOK / PAGE_TOK; i++) pages[i] = MAX_TOK / PAGE_TOK - 1 - i;
    const ob_step st = {.n_tok = n, .n_seq = 1, .n_out = out ? n_out : n, .tok = tok, .pos = pos, .type = type,
                        .seq_first = first, .seq_past = &past, .seq_slot = &slot, .page_table = pages,
                        .max_pages = MAX_TOK / PAGE_TOK, .out_rows = out ? out : pos};
    const ob_ref_env e = {.prog = r->p, .step = &st, .vals = r->vals, .caches = r->caches, .states = r->states,
                          .scratch = r->scratch};
    for (int32_t i = 0; i < r->p->n_ops; i++)
        for (int phase = 0; phase < ob_ref_n_phases(r->p->ops[i].kind); phase++)
            ob_ref_run(&e, i, phase, 0, ob_ref_n_items(&e, i));
    return r->vals[r->p->logits != OB_NONE ? r->p->logits : r->p->embeddings];
}

/* ------------------------------------------------------------------ flips */

/* Changes an op; false when the convention does not concern it. The program may be changed as well. */
typedef bool (*flip_fn)(ob_op *op, ob_program *p);

#define FLIP(name, kind_, cond, change)                                                           \
    static bool name(ob_op *op, ob_program *p)                                                    \
    {                                                                                             \
        (void)p;                                                                                  \
        if (op->kind != (kind_) || !(cond)) return false;                                         \
        change;                                                                                   \
        return true;                                                                              \
    }

/* Copies that own_weight made, for own_weights_free. */
typedef struct own_copy {
    struct own_copy *next;
    float data[];
} own_copy;
static own_copy *own_copies;

/* A copy of an F32 weight to be changed; the program then reads it instead. Lives until own_weights_free. */
static inline float *own_weight(ob_program *p, int32_t w)
{
    ob_weight *x = &p->weights[w];
    assert_int_equal(x->type, OB_F32);
    own_copy *copy = malloc(sizeof *copy + x->n_bytes);
    assert_non_null(copy);
    copy->next = own_copies;
    own_copies = copy;
    memcpy(copy->data, x->data, x->n_bytes);
    x->data = copy->data;
    return copy->data;
}

/* After the programs that read them. */
static inline void own_weights_free(void)
{
    for (own_copy *c; (c = own_copies);) {
        own_copies = c->next;
        free(c);
    }
}

static inline double worst_of(const float *a, const float *b, int64_t n)
{
    double d = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = fabs((double)a[i] - (double)b[i]);
        if (!(x <= d)) d = isnan(x) ? INFINITY : x;
    }
    return d;
}

#endif
