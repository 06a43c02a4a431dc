/* Products on the software array: exact for every shape, wrong where control text is wrong. */
#include "test.h"

#include <openssl/evp.h>
#include <unistd.h>

#include "dev/npu/npu_array_mac.h"
#include "dev/npu/npu_gemm.h"
#include "dev/npu/npu_kernel.h"
#include "npu_bus.h"

static uint32_t seed;
static uint32_t rnd(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* One product with all that belongs to it. */
typedef struct problem {
    int64_t m, k, n; /* rows, inputs, outputs: not padded */
    int8_t *a, *w, *packed;
    int32_t *want, *got;
} problem;

enum { RANDOM, LOWEST, HIGHEST, MIXED }; /* activations x weights: any, -128 x -128, 127 x 127, -128 x 127 */

static problem *problem_new(int64_t m, int64_t k, int64_t n, int fill)
{
    problem *p = calloc(1, sizeof *p);
    *p = (problem){.m = m, .k = k, .n = n};
    p->a = malloc((size_t)(m * k));
    p->w = malloc((size_t)(n * k));
    p->packed = malloc(ob_npu_i8c_bytes(k, n));
    p->want = malloc((size_t)(m * n) * 4);
    p->got = malloc((size_t)(m * n) * 4);
    for (int64_t i = 0; i < m * k; i++) p->a[i] = fill == RANDOM ? (int8_t)rnd() : fill == HIGHEST ? 127 : -128;
    for (int64_t i = 0; i < n * k; i++) p->w[i] = fill == RANDOM ? (int8_t)rnd() : fill == LOWEST ? -128 : 127;
    memset(p->packed, 0x5A, ob_npu_i8c_bytes(k, n));
    ob_npu_i8c_pack(p->packed, p->w, k, k, n);
    memset(p->got, 0x77, (size_t)(m * n) * 4);
    for (int64_t r = 0; r < m; r++)
        for (int64_t j = 0; j < n; j++) { /* of the plain matrices, not of the packed ones */
            int32_t sum = 0;
            for (int64_t i = 0; i < k; i++) sum += p->a[r * k + i] * p->w[j * k + i];
            p->want[r * n + j] = sum;
        }
    return p;
}

static void problem_free(problem *p)
{
    free(p->a);
    free(p->w);
    free(p->packed);
    free(p->want);
    free(p->got);
    free(p);
}

static void test_packing(void **state)
{
    (void)state;
    problem *p = problem_new(3, 70, 1100, RANDOM);
    int64_t k_pad = ob_npu_pad_k(70);
    size_t n_bytes = ob_npu_i8c_bytes(70, 1100);
    assert_int_equal(n_bytes, 128 * 2048);
    uint8_t *seen = calloc(1, n_bytes);
    for (int64_t j = 0; j < 2048; j++)
        for (int64_t i = 0; i < k_pad; i++) { /* a bijection, zero in the padding */
            uint64_t at = ob_npu_i8c_at(k_pad, i, j);
            assert_true(at < n_bytes && !seen[at]);
            seen[at] = 1;
            assert_int_equal(p->packed[at], i < 70 && j < 1100 ? p->w[j * 70 + i] : 0);
        }
    /* in pieces */
    int8_t *parts = malloc(n_bytes);
    memset(parts, 1, n_bytes);
    ob_npu_i8c_pack_part(parts, p->w, 70, 70, 1100, 384, 1100);
    ob_npu_i8c_pack_part(parts, p->w, 70, 70, 1100, 0, 384);
    assert_memory_equal(parts, p->packed, n_bytes);
    /* a place that is written down here: block 1, column 0, k step 1, micro-tile (0, 1), row 2, column 3 */
    assert_int_equal(ob_npu_i8c_at(k_pad, 66, 1024 + 11), 1024 * 128 + 8192 + 64 + 2 * 8 + 3);
    assert_int_equal(ob_npu_i8r_at(k_pad, 32 + 9, 64 + 17), 2 * 2048 + 2048 + 8 * 64 + 2 * 64 + 8 + 1);
    int8_t *rows = malloc((size_t)(128 * k_pad));
    ob_npu_i8r_pack(rows, p->a, 70, 3, 128, 70);
    for (int64_t m = 0; m < 128; m++)
        for (int64_t i = 0; i < k_pad; i++) assert_int_equal(rows[ob_npu_i8r_at(k_pad, m, i)], m < 3 && i < 70 ? p->a[m * 70 + i] : 0);
    free(rows);
    free(parts);
    free(seen);
    problem_free(p);
}

/* --- the array alone --------------------------------------------------------------------------- */

typedef struct bench {
    problem *p;
    int64_t m_pad, k_pad, n_pad;
    int8_t *a;
    int32_t *c;
    bus bus;
    uint64_t args[3];
    void *array;
    ob_npu_soft_run run;
} bench;

static ob_npu_soft_end load_pdi(bench *b, ob_npu_design design)
{
    static ob_npu_soft_pdi pdi;
    ob_npu_soft_pdi_make(&pdi, design);
    uint64_t at = bus_add(&b->bus, &pdi, sizeof pdi);
    ob_npu_txn t;
    assert_int_equal(ob_npu_text_init(&t, 1, sizeof pdi, NULL), OB_OK);
    ob_npu_soft_end end = bus_run(b->array, &b->bus, &t, &at, 1, &b->run);
    ob_npu_txn_deinit(&t);
    return end;
}

static void bench_new(bench *b, int64_t m, int64_t k, int64_t n)
{
    memset(b, 0, sizeof *b);
    b->p = problem_new(m, k, n, RANDOM);
    b->m_pad = ob_npu_pad_m(m), b->k_pad = ob_npu_pad_k(k), b->n_pad = ob_npu_pad_n(n);
    b->a = malloc((size_t)(b->m_pad * b->k_pad));
    b->c = malloc((size_t)(b->m_pad * b->n_pad) * 4);
    ob_npu_i8r_pack(b->a, b->p->a, k, m, b->m_pad, k);
    memset(b->c, 0x55, (size_t)(b->m_pad * b->n_pad) * 4);
    b->args[0] = bus_add(&b->bus, b->a, (size_t)(b->m_pad * b->k_pad));
    b->args[1] = bus_add(&b->bus, b->p->packed, ob_npu_i8c_bytes(k, n));
    b->args[2] = bus_add(&b->bus, b->c, (size_t)(b->m_pad * b->n_pad) * 4);
    b->array = ob_npu_array.make(8, 6);
    assert_non_null(b->array);
    assert_int_equal(load_pdi(b, OB_NPU_DESIGN_GEMM_I8), OB_NPU_RUN_DONE);
}

static void bench_free(bench *b)
{
    ob_npu_array.end(b->array);
    problem_free(b->p);
    free(b->a);
    free(b->c);
}

static bool right(const bench *b)
{
    for (int64_t r = 0; r < b->m_pad; r++)
        for (int64_t j = 0; j < b->n_pad; j++)
            if (b->c[r * b->n_pad + j] != (r < b->p->m && j < b->p->n ? b->p->want[r * b->p->n + j] : 0)) return false;
    return true;
}

static void text_of(const bench *b, ob_npu_txn *t)
{
    ob_npu_place place = ob_npu_place_default();
    assert_int_equal(ob_npu_text_gemm(t, &place, b->m_pad, b->k_pad, b->n_pad, false, NULL), OB_OK);
}

static void test_array(void **state)
{
    (void)state;
    /* iterations of one descriptor; several rounds; steps too long for a descriptor (K over 4096) */
    static const int64_t shapes[][3] = {{1, 64, 1024}, {128, 64, 1024}, {9, 200, 3000}, {512, 64, 1024}, {130, 128, 2048}, {2, 4160, 3072}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bench b;
        bench_new(&b, shapes[i][0], shapes[i][1], shapes[i][2]);
        for (int twice = 0; twice < 2; twice++) { /* registers of the first do not disturb the second */
            memset(b.c, 0x55, (size_t)(b.m_pad * b.n_pad) * 4);
            ob_npu_txn t;
            text_of(&b, &t);
            ob_npu_soft_end end = bus_run(b.array, &b.bus, &t, b.args, 3, &b.run);
            if (end != OB_NPU_RUN_DONE) fail_msg("shape %zu: op %u: %s", i, b.run.txn_op, b.run.text);
            assert_true(right(&b));
            ob_npu_txn_deinit(&t);
        }
        bench_free(&b);
    }
}

/* Words of the nth operation of a kind. */
static uint32_t *nth_op(ob_npu_txn *t, uint32_t code, int n)
{
    ob_npu_walk w;
    ob_npu_op op;
    assert_int_equal(ob_npu_walk_begin(&w, (const uint32_t *)t->text.data, t->text.len / 4, NULL), OB_OK);
    for (bool more = true;;) {
        assert_int_equal(ob_npu_walk_next(&w, &op, &more, NULL), OB_OK);
        assert_true(more);
        if (op.code == code && n-- == 0) return (uint32_t *)t->text.data + op.off / 4;
    }
}

/* One spoiled text. Which: of what goes wrong on hardware. */
static void spoil(ob_npu_txn *t, int which)
{
    enum { RTPS = 32 }; /* blockwrites of parameters come first; then C's, A's and B's descriptors of round 0 */
    uint32_t *c_bd = nth_op(t, OB_TXN_BLOCKWRITE, RTPS) + 4, *a_bd = nth_op(t, OB_TXN_BLOCKWRITE, RTPS + 8) + 4, *b_bd = nth_op(t, OB_TXN_BLOCKWRITE, RTPS + 12) + 4;
    uint32_t n_ops = ((uint32_t *)t->text.data)[2];
    ob_npu_patch *patches = (ob_npu_patch *)t->patches.data;
    switch (which) {
    case 0: c_bd[4] += 1; break;                                   /* stride of the product's rows */
    case 1: b_bd[6] += 1; break;                                   /* step from block to block of weights */
    case 2: c_bd[6] += 4; break;                                   /* step from block to block of outputs */
    case 3: a_bd[0] -= 1; break;                                   /* a transfer one word short */
    case 4: patches[8].addend += 64; break;                        /* activations from another row */
    case 5: patches[12].addend += 8192; break;                     /* weights one step on */
    case 6: c_bd[3] = (c_bd[3] & ~(0x3FFu << 20)) | 127u << 20; break; /* runs of 127 words */
    case 7: nth_op(t, OB_TXN_BLOCKWRITE, 5)[4] += 1; break;        /* a core that counts otherwise */
    case 8: nth_op(t, OB_TXN_MASKWRITE, 3)[4] = 0; break;          /* tokens to nobody */
    case 9: nth_op(t, OB_TXN_BLOCKWRITE, RTPS + 12)[2] ^= 1 << 25; break; /* a descriptor in the wrong column */
    case 10: c_bd[7] = 0; break;                                   /* not valid */
    case 11: nth_op(t, OB_TXN_WRITE, 0)[4] = 0; break;             /* a core that is not started */
    case 12: nth_op(t, OB_TXN_WRITE, RTPS)[4] &= 0x7FFFFFFF; break; /* no token asked for */
    case 13: nth_op(t, OB_TXN_WRITE, RTPS + 12)[4] |= 3; break;    /* another descriptor than was written */
    case 14: patches[0].addend += 1ull << 40; break;               /* outside of the buffer */
    case 15: /* no wait at the end */
        t->text.len -= 16;
        ((uint32_t *)t->text.data)[2] = n_ops - 1;
        ((uint32_t *)t->text.data)[3] -= 16;
        break;
    }
}

/* Each must end in an error or a hang, or in other numbers. */
static void test_wrong_text(void **state)
{
    (void)state;
    for (int which = 0; which < 16; which++) {
        bench b;
        bench_new(&b, 40, 128, 2048);
        ob_npu_txn t;
        text_of(&b, &t);
        spoil(&t, which);
        ob_npu_soft_end end = bus_run(b.array, &b.bus, &t, b.args, 3, &b.run);
        if (end == OB_NPU_RUN_DONE && right(&b)) fail_msg("text spoiled in way %d gives the right product", which);
        if (end != OB_NPU_RUN_DONE) assert_true(b.run.text[0]);
        ob_npu_txn_deinit(&t);
        bench_free(&b);
    }
}

/* Packed in another order, or a descriptor used again before its results were waited for. */
static void test_wrong_order(void **state)
{
    (void)state;
    bench b;
    bench_new(&b, 40, 128, 2048);
    for (int64_t j = 0; j < 2048; j++) /* micro-tiles with k inside */
        for (int64_t i = 0; i < 128; i++) {
            uint64_t at = ob_npu_i8c_at(128, i, j), micro = at & ~63ull;
            b.p->packed[micro + (uint64_t)(j % 8 * 8 + i % 8)] = b.p->w[j * 128 + i];
        }
    ob_npu_txn t;
    text_of(&b, &t);
    assert_int_equal(bus_run(b.array, &b.bus, &t, b.args, 3, &b.run), OB_NPU_RUN_DONE);
    assert_false(right(&b));
    ob_npu_txn_deinit(&t);
    bench_free(&b);

    /* Four rounds of a product of 512 rows; the first wait moved to the end: round 2 overwrites round 0's descriptors. */
    bench_new(&b, 512, 64, 1024);
    text_of(&b, &t);
    uint32_t *words = (uint32_t *)t.text.data, *wait = nth_op(&t, OB_TXN_TCT, 0);
    size_t n = t.text.len / 4, at = (size_t)(wait - words);
    uint32_t keep[4];
    memcpy(keep, wait, sizeof keep);
    memmove(wait, wait + 4, (n - at - 4) * 4);
    memcpy(words + n - 4, keep, sizeof keep);
    ob_npu_patch *p = (ob_npu_patch *)t.patches.data;
    for (size_t i = 0; i < t.patches.len / sizeof *p; i++)
        if (p[i].off > at * 4) p[i].off -= 16;
    ob_npu_soft_end end = bus_run(b.array, &b.bus, &t, b.args, 3, &b.run);
    assert_true(end != OB_NPU_RUN_DONE || !right(&b));
    ob_npu_txn_deinit(&t);
    bench_free(&b);
}

static void test_array_rules(void **state)
{
    (void)state;
    bench b;
    bench_new(&b, 1, 64, 1024);
    ob_npu_txn t;
    /* nothing is loaded after power was off */
    ob_npu_array.wipe(b.array);
    text_of(&b, &t);
    assert_int_equal(bus_run(b.array, &b.bus, &t, b.args, 3, &b.run), OB_NPU_RUN_FAULT);
    assert_non_null(strstr(b.run.text, "no PDI"));
    ob_npu_txn_deinit(&t);
    assert_int_equal(load_pdi(&b, OB_NPU_DESIGN_GEMM_I8), OB_NPU_RUN_DONE);
    /* a fifth transfer in a queue */
    ob_npu_txn_init(&t, false);
    for (int i = 0; i < 5; i++) ob_npu_txn_push(&t, 3, OB_MM2S, 1, 0, 1, false);
    assert_int_equal(ob_npu_txn_finish(&t, NULL), OB_OK);
    assert_int_equal(bus_run(b.array, &b.bus, &t, b.args, 3, &b.run), OB_NPU_RUN_FAULT);
    assert_non_null(strstr(b.run.text, "full"));
    assert_int_equal(b.run.txn_op, 4);
    ob_npu_txn_deinit(&t);
    /* a wait for what nobody sends */
    ob_npu_txn_init(&t, false);
    ob_npu_txn_wait(&t, 0, 8, OB_S2MM, 0);
    assert_int_equal(ob_npu_txn_finish(&t, NULL), OB_OK);
    assert_int_equal(bus_run(b.array, &b.bus, &t, b.args, 3, &b.run), OB_NPU_RUN_HANG);
    ob_npu_txn_deinit(&t);
    /* a buffer the NPU may only read */
    assert_int_equal(load_pdi(&b, OB_NPU_DESIGN_GEMM_I8), OB_NPU_RUN_DONE);
    b.bus.bufs[2].read_only = true;
    text_of(&b, &t);
    assert_int_equal(bus_run(b.array, &b.bus, &t, b.args, 3, &b.run), OB_NPU_RUN_FAULT);
    ob_npu_txn_deinit(&t);
    /* what is no soft PDI, or one that was changed */
    ob_npu_soft_pdi pdi;
    ob_npu_soft_pdi_make(&pdi, OB_NPU_DESIGN_GEMM_I8);
    for (size_t i = 0; i < sizeof pdi; i++) {
        ob_npu_soft_pdi bad = pdi;
        ((uint8_t *)&bad)[i] ^= 1;
        b.bus.n = 3;
        uint64_t at = bus_add(&b.bus, &bad, sizeof bad);
        assert_int_equal(ob_npu_text_init(&t, 1, sizeof pdi, NULL), OB_OK);
        assert_int_equal(bus_run(b.array, &b.bus, &t, &at, 1, &b.run), OB_NPU_RUN_FAULT);
        ob_npu_txn_deinit(&t);
    }
    bench_free(&b);
}

static float bf16(const uint8_t *p)
{
    uint32_t bits = (uint32_t)(p[0] | p[1] << 8) << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* The core of the GEMV takes its terms in the stated order, whatever vectors it uses: to the bit. */
static void test_q4_core(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        uint8_t tile[OB_NPU_Q4_TILE_BYTES];
        uint16_t x[OB_NPU_Q4_TILE_K];
        float got[OB_NPU_Q4_TILE_N], want[OB_NPU_Q4_TILE_N];
        for (size_t i = 0; i < OB_NPU_Q4_NIBBLE_BYTES; i++) tile[i] = (uint8_t)rnd();
        for (size_t i = OB_NPU_Q4_NIBBLE_BYTES; i < sizeof tile; i += 2) { /* bf16 of either sign, 2^-7 to 2 */
            tile[i] = (uint8_t)rnd();
            tile[i + 1] = (uint8_t)(0x3C + rnd() % 4 + (rnd() & 1) * 0x80);
        }
        for (int k = 0; k < OB_NPU_Q4_TILE_K; k++) x[k] = (uint16_t)(0x3E00 + rnd() % 0x200 + (rnd() & 1) * 0x8000);
        for (int n = 0; n < OB_NPU_Q4_TILE_N; n++) {
            got[n] = want[n] = (float)n - 16;
            for (int g = 0; g < OB_NPU_Q4_TILE_K / OB_NPU_Q4_GROUP; g++) {
                float dot = 0, xs = 0;
                for (int k = g * OB_NPU_Q4_GROUP; k < (g + 1) * OB_NPU_Q4_GROUP; k++) {
                    float v = bf16((const uint8_t *)&x[k]);
                    dot += (float)(tile[ob_npu_q4_nibble_at(k, n)] >> (n % 2 * 4) & 15) * v;
                    xs += v;
                }
                const uint8_t *scale = tile + ob_npu_q4_scale_at(g * OB_NPU_Q4_GROUP, n);
                want[n] += bf16(scale) * dot;
                want[n] += bf16(scale + 2 * OB_NPU_Q4_SCALES) * xs;
            }
        }
        ob_npu_mac_q4(x, tile, got);
        assert_memory_equal(got, want, sizeof got);
    }
}

static void test_copy(void **state)
{
    (void)state;
    enum { N = 8 * 4096 };
    bench b = {.array = ob_npu_array.make(8, 6)};
    static uint8_t from[N], to[N + 4];
    for (int i = 0; i < N; i++) from[i] = (uint8_t)rnd();
    memset(to, 7, sizeof to);
    uint64_t args[2] = {bus_add(&b.bus, from, N), bus_add(&b.bus, to, N)};
    assert_int_equal(load_pdi(&b, OB_NPU_DESIGN_COPY), OB_NPU_RUN_DONE);
    ob_npu_place place = ob_npu_place_default();
    ob_npu_txn t;
    assert_int_equal(ob_npu_text_copy(&t, &place, N, NULL), OB_OK);
    assert_int_equal(bus_run(b.array, &b.bus, &t, args, 2, &b.run), OB_NPU_RUN_DONE);
    assert_memory_equal(from, to, N);
    assert_int_equal(to[N], 7);
    ob_npu_txn_deinit(&t);
    ob_npu_array.end(b.array);
}

/* --- through the driver ------------------------------------------------------------------------ */

typedef struct npu {
    ob_npu_soft *soft;
    ob_npu_dev *dev;
    ob_npu_gemm *gemm;
} npu;

static void npu_new(npu *u, const ob_npu_soft_options *opt)
{
    ob_err err = {0};
    ob_status s = ob_npu_soft_new(opt, &u->soft, &err);
    if (s == OB_OK) s = ob_npu_dev_open(ob_npu_soft_os(u->soft), 0, &u->dev, &err);
    if (s == OB_OK) u->dev->teardown_ms = 60000; /* on a machine that is shared by many */
    if (s == OB_OK) s = ob_npu_gemm_new(u->dev, &u->gemm, &err);
    if (s != OB_OK) fail_msg("%s", err.text);
}

static void npu_free(npu *u)
{
    ob_npu_gemm_free(u->gemm);
    assert_int_equal(u->dev->n_bos, 0);
    assert_int_equal(u->dev->n_queues, 0);
    ob_npu_dev_close(u->dev);
    ob_npu_soft_counts c = ob_npu_soft_counts_get(u->soft);
    assert_int_equal(c.n_fds + c.n_bos + c.n_maps + c.n_ctxs + c.n_syncobjs, 0);
    assert_int_equal(c.n_stale_writes, 0);
    ob_npu_soft_free(u->soft);
}

static ob_npu_bo *upload(npu *u, const problem *p)
{
    ob_npu_bo *b;
    ob_err err = {0};
    size_t n = ob_npu_i8c_bytes(p->k, p->n);
    if (ob_npu_bo_new(u->dev, OB_NPU_BO_SHARE, n, &b, &err) != OB_OK) fail_msg("%s", err.text);
    ob_npu_bo_write(b, 0, p->packed, n);
    return b;
}

static ob_npu_mm mm_of(const problem *p, const ob_npu_bo *w)
{
    return (ob_npu_mm){.a = p->a, .lda = p->k, .n_rows = (int32_t)p->m, .k = (int32_t)p->k, .n = (int32_t)p->n, .w = w, .c = p->got, .ldc = p->n};
}

static void run_shapes(const ob_npu_soft_options *opt, const int64_t (*shapes)[3], int n, int fill)
{
    npu u;
    problem *p[16];
    ob_npu_bo *w[16];
    ob_npu_mm mm[16];
    ob_err err = {0};
    npu_new(&u, opt);
    for (int i = 0; i < n; i++) {
        p[i] = problem_new(shapes[i][0], shapes[i][1], shapes[i][2], fill);
        w[i] = upload(&u, p[i]);
        mm[i] = mm_of(p[i], w[i]);
    }
    if (ob_npu_gemm_run(u.gemm, mm, n, &err) != OB_OK) fail_msg("%s", err.text);
    ob_npu_gemm_stats st;
    ob_npu_gemm_get_stats(u.gemm, &st);
    assert_int_equal(st.n_products, n);
    for (int i = 0; i < n; i++) {
        if (memcmp(p[i]->got, p[i]->want, (size_t)(p[i]->m * p[i]->n) * 4) != 0) fail_msg("shape %d differs", i);
        int64_t to = p[i]->n < 40 ? p[i]->n : 40;
        assert_int_equal(ob_npu_mm_check(&mm[i], p[i]->packed, 0, to, &err), OB_OK);
        p[i]->got[5 % p[i]->n] ^= 1;
        assert_int_equal(ob_npu_mm_check(&mm[i], p[i]->packed, 0, to, &err), OB_E_CORRUPT);
        ob_npu_bo_free(w[i]);
        problem_free(p[i]);
    }
    npu_free(&u);
}

static void test_shapes(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 576, 1536}, {5, 1536, 576}, {128, 64, 1}, {129, 65, 1025}, {300, 100, 200}, {512, 128, 1024},
                                        {1, 1, 1},      {7, 4097, 2049}, {3, 576, 192}, {40, 576, 576}};
    for (int iova = 0; iova < 2; iova++)
        for (int eager = 0; eager < 2; eager++)
            run_shapes(&(ob_npu_soft_options){.driver_minor = iova ? 16 : 6, .iova = iova, .eager = eager}, shapes, 10, RANDOM);
}

/* The largest K there is in use, and every corner of int8: sums of up to 3.1e8. */
static void test_corners(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{2, 18944, 130}};
    for (int fill = RANDOM; fill <= MIXED; fill++) run_shapes(&(ob_npu_soft_options){.driver_minor = 8}, shapes, 1, fill);
}

/* Products with the same activations share an upload; many make several chains; a second run builds nothing new. */
static void test_chains(void **state)
{
    (void)state;
    npu u;
    ob_err err = {0};
    npu_new(&u, &(ob_npu_soft_options){.driver_minor = 8});
    problem *p = problem_new(3, 192, 300, RANDOM);
    ob_npu_bo *w = upload(&u, p);
    enum { N = 150 };
    static ob_npu_mm mm[N];
    static int32_t c[N][3 * 300];
    for (int i = 0; i < N; i++) {
        mm[i] = mm_of(p, w);
        mm[i].c = c[i];
    }
    ob_npu_gemm_stats before, after;
    ob_npu_gemm_get_stats(u.gemm, &before);
    if (ob_npu_gemm_run(u.gemm, mm, N, &err) != OB_OK) fail_msg("%s", err.text);
    for (int i = 0; i < N; i++) assert_memory_equal(c[i], p->want, sizeof c[i]);
    ob_npu_gemm_get_stats(u.gemm, &after);
    assert_int_equal(after.n_chains - before.n_chains, 3);
    assert_int_equal(after.n_texts, 1);
    assert_true(after.buffer_bytes < 150ull << 20 && after.heap_bytes < 1 << 20);
    memset(c, 0, sizeof c);
    assert_int_equal(ob_npu_gemm_run(u.gemm, mm, N, &err), OB_OK);
    assert_memory_equal(c[N - 1], p->want, sizeof c[0]);
    ob_npu_gemm_get_stats(u.gemm, &before);
    assert_int_equal(before.n_texts, 1);
    assert_int_equal(before.heap_bytes, after.heap_bytes);
    assert_int_equal(ob_npu_gemm_run(u.gemm, mm, 0, &err), OB_OK);
    /* what does not fit is refused before anything runs */
    ob_npu_mm bad = mm[0];
    bad.w_off = 4096 * 200;
    assert_int_equal(ob_npu_gemm_run(u.gemm, &bad, 1, &err), OB_E_INVALID);
    bad = mm[0];
    bad.n_rows = 513;
    assert_int_equal(ob_npu_gemm_run(u.gemm, &bad, 1, &err), OB_E_INVALID);
    ob_npu_bo_free(w);
    problem_free(p);
    npu_free(&u);
}

/* A weight that lies behind another in one buffer, and outputs of one product split over commands. */
static void test_offsets(void **state)
{
    (void)state;
    npu u;
    ob_err err = {0};
    npu_new(&u, &(ob_npu_soft_options){.driver_minor = 8});
    problem *p = problem_new(2, 128, 260, RANDOM), *q = problem_new(1, 64, 33000, RANDOM);
    size_t n = ob_npu_i8c_bytes(p->k, p->n);
    ob_npu_bo *w, *v = upload(&u, q);
    assert_int_equal(ob_npu_bo_new(u.dev, OB_NPU_BO_SHARE, 3 * n, &w, &err), OB_OK);
    memset(w->host, 3, 3 * n);
    ob_npu_bo_write(w, 2 * n, p->packed, n);
    ob_npu_mm mm[] = {mm_of(p, w), mm_of(q, v)};
    mm[0].w_off = 2 * n;
    /* 512 rows make the second product two commands */
    int8_t *rows = calloc(512, 64);
    memcpy(rows + 511 * 64, q->a, 64);
    int32_t *c = malloc(512ull * 33000 * 4);
    mm[1].a = rows, mm[1].lda = 64, mm[1].n_rows = 512, mm[1].c = c;
    if (ob_npu_gemm_run(u.gemm, mm, 2, &err) != OB_OK) fail_msg("%s", err.text);
    assert_memory_equal(p->got, p->want, (size_t)(p->m * p->n) * 4);
    assert_memory_equal(c + 511ull * 33000, q->want, 33000 * 4);
    for (size_t i = 0; i < 511ull * 33000; i++)
        if (c[i]) fail_msg("row %zu is not zero", i / 33000);
    ob_npu_gemm_stats st;
    ob_npu_gemm_get_stats(u.gemm, &st);
    assert_int_equal(st.n_products, 3);
    free(rows);
    free(c);
    ob_npu_bo_free(w);
    ob_npu_bo_free(v);
    problem_free(p);
    problem_free(q);
    npu_free(&u);
}

/* A chain that fails once is run again on a new context; one that fails for good is an error, and the next may work. */
static void test_faults(void **state)
{
    (void)state;
    static const struct { const char *faults; bool recovers; } cases[] = {
        {"end:2:1:TIMEOUT", true}, {"end:2:0:ERROR", true}, {"suspend:2", true}, {"end:2:1:ERROR,end:4:1:ERROR", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        npu u;
        ob_err err = {0};
        npu_new(&u, &(ob_npu_soft_options){.driver_minor = 8, .faults = cases[i].faults});
        problem *p = problem_new(4, 64, 100, RANDOM);
        ob_npu_bo *w = upload(&u, p);
        ob_npu_mm mm = mm_of(p, w);
        ob_status s = ob_npu_gemm_run(u.gemm, &mm, 1, &err);
        if (cases[i].recovers != (s == OB_OK)) fail_msg("%s: %s", cases[i].faults, s == OB_OK ? "no error" : err.text);
        if (s != OB_OK) s = ob_npu_gemm_run(u.gemm, &mm, 1, &err);
        if (s != OB_OK) fail_msg("%s: %s", cases[i].faults, err.text);
        assert_memory_equal(p->got, p->want, (size_t)(p->m * p->n) * 4);
        ob_npu_bo_free(w);
        problem_free(p);
        npu_free(&u);
    }
}

/* --- texts of a kernel set --------------------------------------------------------------------- */

/* A kernel file with a text and maybe a PDI into the set's folder and its list. */
static void save_set_file(ob_npu_set *set, const char *name, const ob_npu_txn *t, const uint8_t *pdi_bytes, size_t n_pdi)
{
    ob_buf out;
    ob_buf_init(&out, 1 << 20);
    const ob_npu_elf_pdi pdi = {.id = 1, .data = pdi_bytes, .n_bytes = n_pdi};
    const ob_npu_elf_text text = {.name = "run", .data = (uint8_t *)t->text.data, .n_bytes = t->text.len,
                                  .patches = (ob_npu_patch *)t->patches.data, .n_patches = t->patches.len / sizeof(ob_npu_patch)};
    assert_int_equal(ob_npu_elf_write(&out, "gemm_i8", 3, &pdi, n_pdi > 0, &text, 1, NULL), OB_OK);
    char path[700];
    snprintf(path, sizeof path, "%s/%s", set->dir, name);
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(out.data, 1, out.len, f), out.len);
    fclose(f);
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n_digest;
    assert_int_equal(EVP_Digest(out.data, out.len, digest, &n_digest, EVP_sha256(), NULL), 1);
    for (unsigned i = 0; i < 32; i++) snprintf(set->files[set->n_files].sha256 + 2 * i, 3, "%02x", digest[i]);
    snprintf(set->files[set->n_files++].name, sizeof set->files[0].name, "%s", name);
    ob_buf_deinit(&out);
}

static void write_set_file(ob_npu_set *set, const char *name, int64_t m, int64_t k, int64_t n, bool spoiled)
{
    ob_npu_place place = ob_npu_place_default();
    ob_npu_txn t;
    assert_int_equal(ob_npu_text_gemm(&t, &place, m, k, n, true, NULL), OB_OK);
    if (spoiled) nth_op(&t, OB_TXN_MASKWRITE, 0)[5] = 0xF00;
    save_set_file(set, name, &t, NULL, 0);
    ob_npu_txn_deinit(&t);
}

static void write_manifest(const ob_npu_set *set)
{
    char path[700];
    snprintf(path, sizeof path, "%s/manifest.json", set->dir);
    FILE *f = fopen(path, "w");
    fprintf(f, "{\"format\": 1, \"layout\": \"%s\", \"tile\": [32, 64, 128], \"mma\": [8, 8, 8], \"rtp\": {\"address\": 61440, \"lock\": 15, "
               "\"controller\": 15}, \"devices\": [\"npu5\"], \"toolchain\": {}, \"validated_on\": [\"npu5\"], \"files\": {", OB_NPU_SET_LAYOUT);
    for (int i = 0; i < set->n_files; i++) fprintf(f, "%s\"%s\": \"%s\"", i ? ", " : "", set->files[i].name, set->files[i].sha256);
    fprintf(f, "}}");
    fclose(f);
}

static void unlink_in(const char *dir, const char *name)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static void test_set(void **state)
{
    (void)state;
    char dir[] = "/tmp/ob_npu_set_XXXXXX";
    assert_non_null(mkdtemp(dir));
    ob_npu_kernel k = {.design = OB_NPU_DESIGN_GEMM_I8, .place = ob_npu_place_default()};
    snprintf(k.set.dir, sizeof k.set.dir, "%s", dir);
    write_set_file(&k.set, "gemm_i8_m128_k64_n1024.elf", 128, 64, 1024, false);
    uint8_t *text;
    size_t n, n_patches;
    ob_npu_patch *patches;
    ob_err err;
    /* Only what the set has, as long as its compiler has not shown that the builder is right. */
    assert_int_equal(ob_npu_kernel_text(&k, 128, 64, 1024, &text, &n, &patches, &n_patches, &err), OB_OK);
    ob_npu_txn t;
    assert_int_equal(ob_npu_text_gemm(&t, &k.place, 128, 64, 1024, true, NULL), OB_OK);
    assert_int_equal(n, t.text.len);
    assert_memory_equal(text, t.text.data, n);
    assert_int_equal(n_patches, 20);
    free(text);
    free(patches);
    ob_npu_txn_deinit(&t);
    assert_int_equal(ob_npu_kernel_text(&k, 128, 128, 1024, &text, &n, &patches, &n_patches, &err), OB_E_UNSUPPORTED);
    assert_true(ob_npu_kernel_builder_agrees(&k));
    write_set_file(&k.set, "gemm_i8_m128_k128_n1024.elf", 128, 128, 1024, true);
    assert_false(ob_npu_kernel_builder_agrees(&k));
    k.builder = true;
    assert_int_equal(ob_npu_kernel_text(&k, 128, 256, 1024, &text, &n, &patches, &n_patches, &err), OB_OK);
    free(text);
    free(patches);
    /* damaged */
    k.builder = false;
    k.set.files[0].sha256[0] ^= 1;
    assert_int_equal(ob_npu_kernel_text(&k, 128, 64, 1024, &text, &n, &patches, &n_patches, &err), OB_E_CORRUPT);
    for (int i = 0; i < k.set.n_files; i++) unlink_in(dir, k.set.files[i].name);
    rmdir(dir);
}

/* The path for hardware (on the software driver, which it does not know): a soft PDI in a kernel set is refused by us, a PDI
 * that is none by the driver. */
static void test_pdi_of_a_set(void **state)
{
    (void)state;
    char dir[] = "/tmp/ob_npu_pdi_XXXXXX";
    assert_non_null(mkdtemp(dir));
    npu u;
    npu_new(&u, &(ob_npu_soft_options){.driver_minor = 8});
    ob_npu_gemm_free(u.gemm);
    setenv("OB_NPU_KERNELS", dir, 1);
    for (int soft = 0; soft < 2; soft++) {
        ob_npu_set set = {0};
        snprintf(set.dir, sizeof set.dir, "%s", dir);
        uint8_t pdi[OB_NPU_SOFT_PDI_BYTES] = "a PDI for hardware, as far as anybody can tell";
        if (soft) ob_npu_soft_pdi_make((ob_npu_soft_pdi *)pdi, OB_NPU_DESIGN_GEMM_I8);
        ob_npu_txn t;
        assert_int_equal(ob_npu_text_init(&t, 1, sizeof pdi, NULL), OB_OK);
        ((ob_npu_patch *)t.patches.data)->arg = OB_NPU_ELF_PDI_ARG;
        save_set_file(&set, "gemm_i8.init.elf", &t, pdi, sizeof pdi);
        write_set_file(&set, "gemm_i8_m128_k64_n1024.elf", 128, 64, 1024, false);
        write_manifest(&set);
        ob_npu_os *os = u.dev->os;
        os->soft = false;
        ob_err err = {0};
        ob_status s = ob_npu_gemm_new(u.dev, &u.gemm, &err);
        os->soft = true;
        assert_int_not_equal(s, OB_OK);
        if (soft && !strstr(err.text, "software model")) fail_msg("%s", err.text);
        for (int i = 0; i < set.n_files; i++) unlink_in(dir, set.files[i].name);
        unlink_in(dir, "manifest.json");
        ob_npu_txn_deinit(&t);
    }
    unsetenv("OB_NPU_KERNELS");
    rmdir(dir);
    u.gemm = NULL;
    npu_free(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packing),     cmocka_unit_test(test_array),   cmocka_unit_test(test_wrong_text),
        cmocka_unit_test(test_wrong_order), cmocka_unit_test(test_array_rules), cmocka_unit_test(test_copy), cmocka_unit_test(test_q4_core),
        cmocka_unit_test(test_shapes),      cmocka_unit_test(test_corners), cmocka_unit_test(test_chains),
        cmocka_unit_test(test_offsets),     cmocka_unit_test(test_faults),  cmocka_unit_test(test_set),
        cmocka_unit_test(test_pdi_of_a_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
