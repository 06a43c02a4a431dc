/* Sums are in double; single steps are in float as the file's codes are. Standard errors treat rows as
 * independent. */
#include "convert/kld.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "base/outfile.h"

enum { HEAD_BYTES = 20, ROW_HEAD = 4, TOP = 5 }; /* ROW_HEAD: two floats, in units of u16 */
static const float k_range = 16.0f;              /* nats below the likeliest that codes reach */
static const char k_magic[8] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};

const double ob_kld_percents[OB_KLD_N_PERCENTILES] = {0, 0.1, 1, 5, 10, 50, 90, 95, 99, 99.9, 100};

struct ob_base_logits {
    ob_base_head head;
    int32_t *ids;    /* owned; head.ids points here */
    uint16_t *row;   /* [row_len] */
    size_t row_len;
    int64_t n_rows, at;
    FILE *in;
    ob_outfile *out;
};

/* ---- the file ------------------------------------------------------------------------------------ */

static ob_status alloc_rows(ob_base_logits *b, ob_err *err)
{
    const ob_base_head *h = &b->head;
    b->row_len = ob_align_up((size_t)h->n_vocab, 2) + ROW_HEAD;
    b->n_rows = (int64_t)h->n_chunks * ob_base_rows_per_chunk(h->n_ctx);
    b->ids = ob_reallocarray(NULL, (size_t)h->n_ctx * (size_t)h->n_chunks, sizeof *b->ids);
    b->row = ob_calloc(b->row_len, sizeof *b->row);
    if (!b->ids || !b->row) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for base logits");
    return OB_OK;
}

static bool counts_ok(const ob_base_head *h)
{
    return h->n_ctx >= 4 && h->n_ctx <= OB_MAX_CTX && h->n_vocab >= 1 && h->n_vocab <= (int32_t)OB_MAX_VOCAB &&
           h->n_chunks >= 1;
}

ob_status ob_base_logits_create(const char *path, const ob_base_head *head, ob_base_logits **out, ob_err *err)
{
    ob_status s = OB_OK;
    *out = NULL;
    if (!counts_ok(head)) return ob_err_set(err, OB_E_INVALID, "base logits need chunks of at least 4 tokens");
    ob_base_logits *b = ob_calloc(1, sizeof *b);
    if (!b) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for base logits");
    b->head = *head;
    OB_GOTO(alloc_rows(b, err));
    const size_t n_ids = (size_t)head->n_ctx * (size_t)head->n_chunks;
    memcpy(b->ids, head->ids, n_ids * sizeof *b->ids);
    b->head.ids = b->ids;
    const int32_t counts[3] = {head->n_ctx, head->n_vocab, head->n_chunks};
    OB_GOTO(ob_outfile_new(path, &b->out, err));
    OB_GOTO(ob_outfile_write(b->out, k_magic, sizeof k_magic, err));
    OB_GOTO(ob_outfile_write(b->out, counts, sizeof counts, err));
    OB_GOTO(ob_outfile_write(b->out, b->ids, n_ids * sizeof *b->ids, err));
out:
    if (s != OB_OK) ob_base_logits_free(b);
    else *out = b;
    return s;
}

/* ln of the sum of exp(x - max), and where the first largest is. */
static float log_sum(const float *x, int32_t n, int32_t *at)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)expf(x[i] - x[best]);
    *at = best;
    return (float)log(sum);
}

ob_status ob_base_logits_add(ob_base_logits *b, const float *logits, ob_err *err)
{
    const int32_t n = b->head.n_vocab;
    if (!b->out || b->at == b->n_rows) return ob_err_set(err, OB_E_INTERNAL, "base logits: more rows than announced");
    int32_t best;
    const float ln_sum = log_sum(logits, n, &best), max = logits[best];
    float min = max;
    for (int32_t i = 0; i < n; i++) min = OB_MIN(min, logits[i]);
    min = OB_MAX(min, max - k_range);
    const float scale = (max - min) / 65535.0f, low = min - max - ln_sum, inv = scale > 0 ? 1.0f / scale : 0.0f;
    memcpy(b->row, &scale, sizeof scale);
    memcpy(b->row + 2, &low, sizeof low);
    for (int32_t i = 0; i < n; i++) {
        const float code = rintf((logits[i] - min) * inv);
        b->row[ROW_HEAD + i] = (uint16_t)(code > 0 ? OB_MIN(code, 65535.0f) : 0);
    }
    b->at++;
    return ob_outfile_write(b->out, b->row, b->row_len * sizeof *b->row, err);
}

ob_status ob_base_logits_commit(ob_base_logits *b, ob_err *err)
{
    ob_outfile *o = b->out;
    if (!o || b->at != b->n_rows) return ob_err_set(err, OB_E_INTERNAL, "base logits: rows are missing");
    b->out = NULL;
    return ob_outfile_commit(o, err);
}

/* The size that the head asks for; false when it is beyond all files. */
static bool size_wanted(const ob_base_head *h, uint64_t *out)
{
    uint64_t ids, rows, row = (ob_align_up((size_t)h->n_vocab, 2) + ROW_HEAD) * 2;
    return ob_mul_u64((uint64_t)h->n_ctx * 4, (uint64_t)h->n_chunks, &ids) &&
           ob_mul_u64((uint64_t)ob_base_rows_per_chunk(h->n_ctx) * (uint64_t)h->n_chunks, row, &rows) &&
           ob_add_u64(ids, rows, out) && ob_add_u64(*out, HEAD_BYTES, out);
}

static ob_status read_head(ob_base_logits *b, const char *path, ob_err *err)
{
    char magic[8];
    int32_t counts[3];
    uint64_t want = 0;
    if (fread(magic, sizeof magic, 1, b->in) != 1 || memcmp(magic, k_magic, sizeof magic) ||
        fread(counts, sizeof counts, 1, b->in) != 1)
        return ob_err_set(err, OB_E_FORMAT, "%.200s holds no base logits (it does not begin with _logits_)", path);
    b->head = (ob_base_head){.n_ctx = counts[0], .n_vocab = counts[1], .n_chunks = counts[2]};
    if (!counts_ok(&b->head) || !size_wanted(&b->head, &want))
        return ob_err_set(err, OB_E_FORMAT, "%.200s: impossible counts at byte 8: %d tokens a chunk, vocabulary of %d, %d chunks",
                          path, counts[0], counts[1], counts[2]);
    if (fseeko(b->in, 0, SEEK_END)) return ob_err_set_errno(err, OB_E_IO, errno, "cannot read %.200s", path);
    const uint64_t have = (uint64_t)ftello(b->in);
    if (have < want)
        return ob_err_set(err, OB_E_FORMAT, "%.200s has %llu bytes, its head promises %llu: it was cut off", path,
                          (unsigned long long)have, (unsigned long long)want);
    OB_TRY(alloc_rows(b, err));
    if (fseeko(b->in, HEAD_BYTES, SEEK_SET) ||
        fread(b->ids, sizeof *b->ids * (size_t)counts[0], (size_t)counts[2], b->in) != (size_t)counts[2])
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot read %.200s", path);
    for (int64_t i = 0; i < (int64_t)counts[0] * counts[2]; i++)
        if (b->ids[i] < 0 || b->ids[i] >= counts[1])
            return ob_err_set(err, OB_E_FORMAT, "%.200s: token %lld is %d, not in a vocabulary of %d", path, (long long)i,
                              b->ids[i], counts[1]);
    b->head.ids = b->ids;
    return OB_OK;
}

ob_status ob_base_logits_open(const char *path, ob_base_logits **out, ob_err *err)
{
    ob_status s;
    *out = NULL;
    ob_base_logits *b = ob_calloc(1, sizeof *b);
    if (!b) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for base logits");
    b->in = fopen(path, "rb");
    if (!b->in) s = ob_err_set_errno(err, errno == ENOENT ? OB_E_NOT_FOUND : OB_E_IO, errno, "cannot open %.200s", path);
    else s = read_head(b, path, err);
    if (s != OB_OK) ob_base_logits_free(b);
    else *out = b;
    return s;
}

void ob_base_logits_head(const ob_base_logits *b, ob_base_head *out) { *out = b->head; }

void ob_base_logits_free(ob_base_logits *b)
{
    if (!b) return;
    if (b->in) fclose(b->in);
    ob_outfile_abort(b->out);
    ob_free(b->ids);
    ob_free(b->row);
    ob_free(b);
}

/* ---- statistics ---------------------------------------------------------------------------------- */

typedef struct sums { double x, xx; } sums; /* of a value and of its square */

struct ob_kld {
    ob_base_logits *base;
    int64_t n;
    float *kld;               /* [base rows]; the first n are filled */
    sums nll, nll_base, div, diff, diff2, top1, top5;
    double nll_nll_base;
};

ob_status ob_kld_new(ob_base_logits *base, ob_kld **out, ob_err *err)
{
    ob_kld *k = ob_calloc(1, sizeof *k);
    if (k) k->kld = ob_reallocarray(NULL, (size_t)base->n_rows, sizeof *k->kld);
    if (!k || !k->kld) {
        ob_kld_free(k);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %lld divergences", (long long)base->n_rows);
    }
    k->base = base;
    *out = k;
    return OB_OK;
}

void ob_kld_free(ob_kld *k)
{
    if (!k) return;
    ob_free(k->kld);
    ob_free(k);
}

static void gather(sums *s, double x)
{
    s->x += x;
    s->xx += x * x;
}

/* Put i among the TOP ids ordered by falling value; of equal values the lower id stands first. */
static inline void rank(float *val, int32_t *id, float x, int32_t i)
{
    if (!(x > val[TOP - 1])) return;
    int at = TOP - 1;
    for (; at > 0 && x > val[at - 1]; at--) {
        val[at] = val[at - 1];
        id[at] = id[at - 1];
    }
    val[at] = x;
    id[at] = i;
}

static ob_status next_row(ob_base_logits *b, float *scale, float *low, ob_err *err)
{
    if (!b->in || b->at == b->n_rows) return ob_err_set(err, OB_E_INTERNAL, "base logits: no more rows");
    if (fread(b->row, sizeof *b->row, b->row_len, b->in) != b->row_len)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot read base logits, row %lld", (long long)b->at);
    memcpy(scale, b->row, sizeof *scale);
    memcpy(low, b->row + 2, sizeof *low);
    /* Log-probabilities: the scale spans at most k_range, the lowest is finite. */
    if (!(*scale >= 0 && *scale <= 1.0f && isfinite(*low)))
        return ob_err_set(err, OB_E_FORMAT, "base logits: row %lld has impossible scales", (long long)b->at);
    b->at++;
    return OB_OK;
}

ob_status ob_kld_add(ob_kld *k, const float *logits, int32_t next, ob_err *err)
{
    const int32_t n = k->base->head.n_vocab;
    float scale, low, val[2][TOP];
    int32_t id[2][TOP], best;
    if (next < 0 || next >= n) return ob_err_set(err, OB_E_INVALID, "token %d is not in the vocabulary", next);
    OB_TRY(next_row(k->base, &scale, &low, err));
    const uint16_t *code = k->base->row + ROW_HEAD;
    const float ln_sum = log_sum(logits, n, &best) + logits[best];
    for (int j = 0; j < 2 * TOP; j++) {
        val[j / TOP][j % TOP] = -INFINITY;
        id[j / TOP][j % TOP] = -1 - j / TOP; /* no id of one list is in the other */
    }
    double div = 0;
    for (int32_t i = 0; i < n; i++) {
        const float ln_base = scale * (float)code[i] + low;
        if (ln_base > -k_range) div += (double)(expf(ln_base) * (ln_base - logits[i] + ln_sum));
        rank(val[0], id[0], ln_base, i);
        rank(val[1], id[1], logits[i], i);
    }
    int common = 0;
    for (int i = 0; i < TOP * TOP; i++) common += id[0][i / TOP] == id[1][i % TOP];
    const double nll = (double)(ln_sum - logits[next]), nll_base = -(double)(scale * (float)code[next] + low);
    const double diff = exp(-nll) - exp(-nll_base);
    gather(&k->nll, nll);
    gather(&k->nll_base, nll_base);
    k->nll_nll_base += nll * nll_base;
    gather(&k->div, div);
    gather(&k->diff, diff);
    gather(&k->diff2, diff * diff);
    gather(&k->top1, id[0][0] == id[1][0]);
    gather(&k->top5, (double)common / OB_MIN(n, TOP));
    k->kld[k->n++] = (float)div;
    return OB_OK;
}

static ob_estimate mean(const sums *s, int64_t n)
{
    const double m = s->x / (double)n, var = s->xx / (double)n - m * m;
    return (ob_estimate){m, n > 1 && var > 0 ? sqrt(var / (double)(n - 1)) : 0};
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Linear between the two nearest ranks. */
static double percentile(const float *sorted, int64_t n, double percent)
{
    const double at = percent / 100 * (double)(n - 1);
    const int64_t i = OB_MIN((int64_t)at, n - 1), j = OB_MIN(i + 1, n - 1);
    return (double)sorted[i] + (at - (double)i) * ((double)sorted[j] - (double)sorted[i]);
}

void ob_kld_finish(ob_kld *k, ob_kld_report *out)
{
    const int64_t n = k->n;
    *out = (ob_kld_report){.n = n};
    if (n == 0) return;
    const ob_estimate ln = mean(&k->nll, n), ln_base = mean(&k->nll_base, n);
    const double cov = n > 1 ? (k->nll_nll_base / (double)n - ln.value * ln_base.value) / (double)(n - 1) : 0;
    const double var = ln.error * ln.error + ln_base.error * ln_base.error - 2 * cov;
    out->ppl = (ob_estimate){exp(ln.value), exp(ln.value) * ln.error};
    out->ppl_base = (ob_estimate){exp(ln_base.value), exp(ln_base.value) * ln_base.error};
    out->ln_ppl_ratio = (ob_estimate){ln.value - ln_base.value, var > 0 ? sqrt(var) : 0};
    out->ppl_ratio.value = exp(out->ln_ppl_ratio.value);
    out->ppl_ratio.error = out->ppl_ratio.value * out->ln_ppl_ratio.error;
    out->correlation = ln.error > 0 && ln_base.error > 0 ? cov / (ln.error * ln_base.error) : 0;
    out->kld = mean(&k->div, n);
    out->p_diff = mean(&k->diff, n);
    const ob_estimate square = mean(&k->diff2, n);
    out->p_diff_rms.value = sqrt(square.value);
    if (square.value > 0) out->p_diff_rms.error = 0.5 / out->p_diff_rms.value * square.error;
    out->top1 = mean(&k->top1, n);
    out->top5 = mean(&k->top5, n);
    qsort(k->kld, (size_t)n, sizeof *k->kld, by_value);
    for (int i = 0; i < OB_KLD_N_PERCENTILES; i++) out->kld_at[i] = percentile(k->kld, n, ob_kld_percents[i]);
}
