/* Products on npu-soft through dev/products.h: the definition by plain loops, whatever the shapes, the size of the staging
 * buffers, and what fails. */
#include <math.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "dev/npu/npu_fwd.h"
#include "dev/npu/npu_int8.h"
#include "dev/npu/npu_soft.h"
#include "quant/hadamard.h"
#include "noise.h"
#include "test.h"

/* Backwards and in odd pieces: nothing may rest on the order. */
static void run_parts(const ob_parallel *par, int64_t n, int64_t grain, void (*fn)(void *arg, int64_t i0, int64_t i1), void *arg)
{
    (void)par;
    assert_true(grain >= 1);
    for (int64_t i1 = n; i1 > 0; i1 -= OB_MIN(grain, i1)) fn(arg, OB_MAX(i1 - grain, 0), i1);
}
static const ob_parallel k_par = {run_parts};

typedef struct unit {
    ob_npu_soft *soft;
    ob_npu_dev *dev;
    ob_npu_gemm *gemm;
    ob_npu_fwd *f;
    const ob_dev_products *p;
} unit;

/* faults NULL and no device: the host's arithmetic alone. */
static unit open_unit(bool device, const char *faults, ob_npu_fwd_options fo)
{
    unit u = {0};
    ob_err err;
    const ob_npu_soft_options so = {.gen = OB_NPU_5, .driver_minor = 8, .faults = faults};
    if (device && (ob_npu_soft_new(&so, &u.soft, &err) != OB_OK || ob_npu_dev_open(ob_npu_soft_os(u.soft), 0, &u.dev, &err) != OB_OK ||
                   ob_npu_gemm_new(u.dev, &u.gemm, &err) != OB_OK))
        fail_msg("%s", err.text);
    fo.dev = u.dev;
    fo.gemm = u.gemm;
    if (ob_npu_fwd_new(&fo, &u.f, &err) != OB_OK) fail_msg("%s", err.text);
    u.p = ob_npu_fwd_products(u.f);
    return u;
}

static void close_unit(unit *u)
{
    ob_npu_fwd_free(u->f);
    ob_npu_gemm_free(u->gemm);
    if (u->dev) ob_npu_dev_close(u->dev);
    if (!u->soft) return;
    const ob_npu_soft_counts c = ob_npu_soft_counts_get(u->soft);
    assert_true(!c.n_fds && !c.n_bos && !c.n_maps && !c.n_ctxs && !c.n_syncobjs);
    ob_npu_soft_free(u->soft);
}

/* ---- jobs and what they must give --------------------------------------------------------------- */

enum { MAX_W = 4, E = 3 };
typedef struct shape { int64_t k, n; bool experts, rotated; } shape;

typedef struct world {
    shape s[MAX_W];
    float *data[MAX_W], *x, *bias, *res;
    ob_product_weight *w[MAX_W];
    int n_w;
    int64_t rows, ldx;
} world;

static world make_world(const shape *s, int n, int64_t rows)
{
    world w = {.n_w = n, .rows = rows, .ldx = 700};
    for (int i = 0; i < n; i++) {
        w.s[i] = s[i];
        w.data[i] = random_floats(s[i].k * s[i].n * (s[i].experts ? E : 1));
        w.ldx = OB_MAX(w.ldx, s[i].k + 3);
    }
    w.x = random_floats(rows * w.ldx);
    for (int64_t i = 0; i < w.ldx && rows > 3; i++) w.x[2 * w.ldx + i] = 0; /* a row of nothing */
    if (rows > 5) w.x[4 * w.ldx + 1] = 50; /* and one with an outlier */
    w.bias = random_floats(4096);
    w.res = random_floats(rows * 4096);
    return w;
}

static void give_weights(world *w, const unit *u)
{
    ob_err err;
    for (int i = 0; i < w->n_w; i++) {
        const int64_t n_mat = w->s[i].experts ? E : 1;
        bool keeps;
        const ob_weight d = {.name = "w", .type = OB_F32, .ne = {w->s[i].k, w->s[i].n, n_mat, 1}, .data = w->data[i],
                             .n_bytes = (size_t)(w->s[i].k * w->s[i].n * n_mat) * 4, .use = w->s[i].experts ? OB_USE_EXPERTS : OB_USE_LINEAR,
                             .hadamard = w->s[i].rotated};
        if (u->p->weight_new(u->p->self, &d, &w->w[i], &keeps, &err) != OB_OK) fail_msg("%s", err.text);
        assert_non_null(w->w[i]);
    }
    if (ob_npu_fwd_prepare(u->f, &err) != OB_OK) fail_msg("%s", err.text);
}

static void take_weights(world *w, const unit *u)
{
    for (int i = 0; i < w->n_w; i++) u->p->weight_free(u->p->self, w->w[i]);
}

static void free_world(world *w)
{
    for (int i = 0; i < w->n_w; i++) free(w->data[i]);
    free(w->x), free(w->bias), free(w->res);
}

static float codes_of(const float *x, int64_t k, bool rotated, int8_t *q)
{
    float *y = malloc((size_t)k * sizeof *y);
    memcpy(y, x, (size_t)k * sizeof *y);
    if (rotated) ob_hadamard_row(y, k);
    const float amax = ob_npu_amax(y, k, 0);
    ob_npu_codes(y, k, ob_npu_inverse(amax), q);
    free(y);
    return ob_npu_scale(amax);
}

/* y of one job by the definition. */
static void plain(const world *w, int i, const ob_product *j, float *y)
{
    const int64_t k = w->s[i].k, n = w->s[i].n;
    int8_t *a = malloc((size_t)k), *b = malloc((size_t)k);
    for (int64_t r = 0; r < j->n_rows; r++) {
        const float sa = codes_of(j->x + (j->rows ? j->rows[r] : r) * j->ldx, k, w->s[i].rotated, a);
        for (int64_t o = 0; o < n; o++) {
            const float sw = codes_of(w->data[i] + (j->mat * n + o) * k, k, false, b);
            int32_t sum = 0;
            for (int64_t c = 0; c < k; c++) sum += a[c] * b[c];
            float v = (float)sum * (sa * sw);
            if (j->bias) v += j->bias[o];
            v *= j->scale;
            y[r * j->ldy + o] = j->res ? j->res[r * j->ldres + o] + v : v;
        }
    }
    free(a), free(b);
}

/* All kinds of jobs over a world in one call. */
static void check(world *w, const unit *u)
{
    ob_product jobs[16] = {0};
    float *y[16];
    int of[16], n = 0;
    static const int32_t pick[] = {5, 0, 3};
    for (int i = 0; i < w->n_w; i++)
        for (int variant = 0; variant < (w->s[i].experts ? 2 : 1); variant++) {
            ob_product j = {.w = w->w[i], .x = w->x, .ldx = w->ldx, .n_rows = w->rows, .ldy = w->s[i].n + 5, .scale = 1.0f};
            if (w->s[i].experts) {
                j.mat = variant ? E - 1 : 0;
                j.rows = pick;
                j.n_rows = w->rows > 5 ? 3 : 0;
            }
            if (i % 2) {
                j.bias = w->bias;
                j.res = w->res;
                j.ldres = w->s[i].n;
                j.scale = 0.75f;
            }
            y[n] = malloc((size_t)(j.n_rows * j.ldy + 1) * sizeof **y);
            for (int64_t c = 0; c <= j.n_rows * j.ldy; c++) y[n][c] = -123;
            j.y = y[n];
            of[n] = i;
            jobs[n++] = j;
        }
    u->p->mul(u->p->self, jobs, n, &k_par);
    for (int i = 0; i < n; i++) {
        float *want = malloc((size_t)(jobs[i].n_rows * jobs[i].ldy + 1) * sizeof *want);
        for (int64_t c = 0; c <= jobs[i].n_rows * jobs[i].ldy; c++) want[c] = -123;
        plain(w, of[i], &jobs[i], want);
        for (int64_t c = 0; c <= jobs[i].n_rows * jobs[i].ldy; c++)
            if (memcmp(&want[c], &y[i][c], 4) != 0)
                fail_msg("job %d, row %d, column %d: %g, should be %g", i, (int)(c / jobs[i].ldy), (int)(c % jobs[i].ldy), (double)y[i][c],
                         (double)want[c]);
        free(want);
        free(y[i]);
    }
}

static void check_all(bool device, const char *faults, ob_npu_fwd_options fo, const shape *s, int n_s, int64_t rows, ob_npu_fwd_stats *out)
{
    unit u = open_unit(device, faults, fo);
    world w = make_world(s, n_s, rows);
    give_weights(&w, &u);
    for (int i = 0; i < 3; i++) check(&w, &u); /* the first is staged with nothing behind it, others follow */
    ob_npu_fwd_get_stats(u.f, out);
    take_weights(&w, &u);
    close_unit(&u);
    free_world(&w);
}

static const shape k_mixed[] = {{200, 300, false, false}, {200, 1030, false, false}, {64, 40, true, false}, {96, 17, false, true}};

static void test_definition(void **state)
{
    (void)state;
    ob_npu_fwd_stats st;
    for (int64_t rows = 1; rows <= 150; rows += rows < 7 ? 5 : 71) {
        check_all(false, NULL, (ob_npu_fwd_options){0}, k_mixed, 4, rows, &st);
        assert_true(st.n_on_host == st.n_products && !st.failed);
        check_all(true, NULL, (ob_npu_fwd_options){0}, k_mixed, 4, rows, &st);
        assert_true(st.n_on_host == 0 && st.n_products > 0 && !st.failed);
        assert_true(st.n_verified > 0 && st.staged_bytes > 0 && st.pinned_bytes == 0);
    }
}

/* More rows than one product has. */
static void test_many_rows(void **state)
{
    (void)state;
    ob_npu_fwd_stats st;
    const shape s[] = {{70, 20, false, false}, {70, 9, false, false}};
    check_all(true, NULL, (ob_npu_fwd_options){0}, s, 2, 1100, &st);
    assert_int_equal(st.n_products, 3 * 2 * 3);
}

/* Buffers that hold everything, one block at a time, or not even that: then the host computes what does not fit. */
static void test_staging(void **state)
{
    (void)state;
    ob_npu_fwd_stats st;
    const shape s[] = {{200, 2100, false, false}, {64, 1500, false, false}};
    const size_t block = 256 * 1024;
    check_all(true, NULL, (ob_npu_fwd_options){.stage_bytes = 8 * block}, s, 2, 9, &st);
    assert_int_equal(st.n_products, 3 * 2);
    check_all(true, NULL, (ob_npu_fwd_options){.stage_bytes = block}, s, 2, 9, &st);
    assert_int_equal(st.n_products, 3 * (3 + 1));
    assert_int_equal(st.n_on_host, 0);
    check_all(true, NULL, (ob_npu_fwd_options){.stage_bytes = block / 4}, s, 2, 9, &st);
    assert_int_equal(st.n_on_host, 3);
    assert_false(st.failed);
}

static void test_pinned(void **state)
{
    (void)state;
    ob_npu_fwd_stats st;
    check_all(true, NULL, (ob_npu_fwd_options){.pin = true, .ram_bytes = 64 << 20}, k_mixed, 4, 9, &st);
    const uint64_t mine = ob_npu_i8c_bytes(200, 300) + ob_npu_i8c_bytes(200, 1030) + ob_npu_i8c_bytes(96, 17);
    assert_int_equal(st.pinned_bytes, mine); /* experts are not */
    check_all(true, NULL, (ob_npu_fwd_options){.pin = true, .ram_bytes = 1 << 20}, k_mixed, 4, 9, &st);
    assert_int_equal(st.pinned_bytes, ob_npu_i8c_bytes(200, 300));
    check_all(true, NULL, (ob_npu_fwd_options){.pin = true}, k_mixed, 4, 9, &st);
    assert_int_equal(st.pinned_bytes, 0);
    check_all(true, "memlock:268435456", (ob_npu_fwd_options){.pin = true, .ram_bytes = (uint64_t)64 << 30}, k_mixed, 4, 9, &st);
    assert_int_equal(st.pinned_bytes, mine);
}

/* A product of the device that is wrong in one bit: seen where everything is checked, and the numbers are right. 128 rows
 * and 1024 outputs, so that the bit is none of the padding. */
static void test_a_wrong_bit(void **state)
{
    (void)state;
    ob_npu_fwd_stats st;
    const shape s[] = {{64, 1024, false, false}};
    for (int n = 2; n <= 4; n++) {
        char fault[16];
        snprintf(fault, sizeof fault, "flip:%d", n);
        check_all(true, fault, (ob_npu_fwd_options){.verify = OB_VERIFY_ALL}, s, 1, 128, &st);
        assert_true(st.failed && st.n_verified > 0);
        assert_non_null(strstr(st.reason, "not what the CPU computes"));
    }
}

static void test_faults(void **state)
{
    (void)state;
    static const struct { const char *fault; bool fails; } k[] = {
        {"end:3:1:ERROR", false}, {"end:3:1:TIMEOUT", false}, {"suspend:3", false}, {"lie:3:ABORT", false}, {"lost:3", false},
        {"end:2:1:ERROR,end:3:1:ERROR,end:4:1:ERROR", true}, {"unplug:60", true}, {"slow:50", false},
        {"ioctl:EXEC_CMD:3:EINTR", false}, {"ioctl:EXEC_CMD:4:ENODEV,ioctl:EXEC_CMD:5:ENODEV,ioctl:EXEC_CMD:6:ENODEV", true},
    };
    for (size_t i = 0; i < OB_COUNT(k); i++) {
        ob_npu_fwd_stats st;
        check_all(true, k[i].fault, (ob_npu_fwd_options){0}, k_mixed, 4, 40, &st);
        if (st.failed != k[i].fails) fail_msg("%s: %s", k[i].fault, st.failed ? st.reason : "nothing is said to have failed");
        assert_true((st.n_on_host > 0) == k[i].fails);
    }
}

/* Of our own; the software driver behind a device allocates its jobs. */
static void test_no_allocation(void **state)
{
    (void)state;
    unit u = open_unit(false, NULL, (ob_npu_fwd_options){0});
    world w = make_world(k_mixed, 2, 20);
    float *y = malloc(20 * 1030 * sizeof *y);
    give_weights(&w, &u);
    uint64_t before = 0;
    for (int i = 0; i < 3; i++) {
        const ob_product j[2] = {{.w = w.w[0], .x = w.x, .ldx = w.ldx, .n_rows = 20, .y = y, .ldy = 300, .scale = 1},
                                 {.w = w.w[1], .x = w.x, .ldx = w.ldx, .n_rows = 20, .y = y, .ldy = 1030, .scale = 1}};
        if (i == 2) before = ob_alloc_count();
        u.p->mul(u.p->self, j, 2, &k_par);
    }
    assert_int_equal(ob_alloc_count(), before);
    free(y);
    take_weights(&w, &u);
    close_unit(&u);
    free_world(&w);
}

static void test_what_is_declined(void **state)
{
    (void)state;
    unit u = open_unit(false, NULL, (ob_npu_fwd_options){0});
    ob_product_weight *w = (void *)&u;
    bool keeps;
    ob_err err;
    const ob_weight d = {.name = "w", .type = OB_I32, .ne = {64, 4, 1, 1}, .n_bytes = 1024, .use = OB_USE_LINEAR};
    assert_int_equal(u.p->weight_new(u.p->self, &d, &w, &keeps, &err), OB_OK);
    assert_null(w);
    assert_int_equal(u.p->weight_bytes(u.p->self, &d), 0);
    close_unit(&u);
}

static void quiet(void *arg, ob_log_level level, const char *line) { (void)arg, (void)level, (void)line; }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition), cmocka_unit_test(test_many_rows), cmocka_unit_test(test_staging),
        cmocka_unit_test(test_pinned), cmocka_unit_test(test_a_wrong_bit), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_no_allocation), cmocka_unit_test(test_what_is_declined),
    };
    ob_log_set_sink(quiet, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
