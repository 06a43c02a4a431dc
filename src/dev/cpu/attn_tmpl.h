/* dev/cpu/attn_tmpl.h: attention over one tile of cached tokens; included by kern_tmpl.h.
 *
 * Scores are products [queries] x [tokens] whose inner dimension is the head's columns. Cached rows
 * run along the columns, so lanes hold 4 columns of VW / 4 tokens: packing then only moves groups of
 * four floats, and a score is four chains (columns mod 4) that one small reduction adds up. A group
 * of VW tokens is four vectors; vector j holds tokens j, 4 + j, 8 + j, ..., so that the reduction
 * leaves the scores in order.
 *
 *     kp: [token group of VW][column / 4][j = 0..3][VW lanes = tokens x 4 columns]
 *     vp: [token][v_pad]
 *
 * Prefill and decode run the same loops (decode just has few queries), so a query's result does not
 * depend on who shares its tile.
 */

static inline vf load_any(const void *row, bool f16, int64_t at, int64_t n)
{
    if (n >= VW)
        return f16 ? vf_load_f16((const uint16_t *)row + at) : vf_load((const float *)row + at);
    return f16 ? vf_load_f16_n((const uint16_t *)row + at, (int)n)
               : vf_load_n((const float *)row + at, (int)n);
}

static inline void pack_keys_of(const ob_cpu_attn_tile *t, bool f16)
{
    for (int32_t g = 0; g < t->n_tok; g += VW) {
        float *dst = t->kp + (int64_t)g * t->k_pad;
        for (int32_t c = 0; c < t->k_dim; c += VW) {
            vf row[VW];
            vf out[4][VW / 4];
            for (int r = 0; r < VW; r++)
                row[r] = g + r < t->n_tok ? load_any(t->k_row[g + r], f16, c, t->k_dim - c) : vf_set1(0);
            vf_pack_k(row, out);
            for (int d = 0; d < VW / 4 && c + 4 * d < t->k_pad; d++)
                for (int j = 0; j < 4; j++) vf_store(dst + ((c / 4 + d) * 4 + j) * VW, out[j][d]);
        }
    }
}

static inline void pack_values_of(const ob_cpu_attn_tile *t, bool f16)
{
    for (int32_t r = 0; r < t->n_tok; r++) {
        float *dst = t->vp + (int64_t)r * t->v_pad;
        int32_t c = 0;
        for (; c < t->v_dim; c += VW) vf_store(dst + c, load_any(t->v_row[r], f16, c, t->v_dim - c));
        for (; c < t->v_pad; c += VW) vf_store(dst + c, vf_set1(0));
    }
}

/* Scores of n (a constant) queries against all tokens of the tile. */
static inline __attribute__((always_inline)) void score_block(const ob_cpu_attn_tile *t, int32_t q0, const int n)
{
    const float *q = t->q + (int64_t)q0 * t->k_pad;
    for (int32_t g = 0; g < t->n_tok; g += VW) {
        const float *k = t->kp + (int64_t)g * t->k_pad;
        vf acc[ATTN_MB][4];
        for (int m = 0; m < n; m++)
            for (int j = 0; j < 4; j++) acc[m][j] = vf_set1(0);
        for (int32_t c = 0; c < t->k_pad; c += 4, k += 4 * VW) {
            vf qv[ATTN_MB];
            for (int m = 0; m < n; m++) qv[m] = vf_dup4(q + m * t->k_pad + c);
            for (int j = 0; j < 4; j++) {
                const vf kv = vf_load(k + j * VW);
                for (int m = 0; m < n; m++) acc[m][j] = vf_fma(qv[m], kv, acc[m][j]);
            }
        }
        for (int m = 0; m < n; m++)
            vf_store(t->s + (int64_t)(q0 + m) * OB_CPU_ATTN_TILE + g,
                     vf_hsum4(acc[m][0], acc[m][1], acc[m][2], acc[m][3]));
    }
}

/* Scores to weights, in place; rescales what the query has summed so far. */
static void soften(const ob_cpu_attn_tile *t, int32_t i)
{
    float *s = t->s + (int64_t)i * OB_CPU_ATTN_TILE;
    const int32_t lo = t->lo[i], hi = t->hi[i];
    const vf none = vf_set1(-INFINITY);
    vf top = none;
    for (int32_t g = 0; g < t->n_tok; g += VW) {
        vf v = vf_load(s + g);
        if (t->softcap > 0) v = vf_set1(t->softcap) * vf_tanh(v / vf_set1(t->softcap));
        if (g < lo || g + VW > hi) v = vf_keep(v, g, lo, hi);
        top = vf_max(top, v);
        vf_store(s + g, v);
    }
    const float m = fmaxf(t->max[i], vf_hmax(top));
    if (lo >= hi || m == -INFINITY) { /* sees nothing here: leave everything as it is */
        for (int32_t g = 0; g < t->n_tok; g += VW) vf_store(s + g, vf_set1(0));
        return;
    }
    const vf vm = vf_set1(m);
    vf sum = vf_set1(0);
    for (int32_t g = 0; g < t->n_tok; g += VW) {
        const vf p = vf_exp(vf_load(s + g) - vm);
        sum = sum + p;
        vf_store(s + g, p);
    }
    if (m != t->max[i]) {
        float part[VW];
        vf_store(part, vf_exp(vf_set1(t->max[i] - m)));
        float *o = t->o + (int64_t)i * t->v_pad;
        for (int32_t c = 0; c < t->v_pad; c += VW) vf_store(o + c, vf_load(o + c) * vf_set1(part[0]));
        t->sum[i] *= part[0];
        t->max[i] = m;
    }
    t->sum[i] += vf_hsum(sum);
}

/* o += weights x values for n (a constant) queries and nv vectors of columns from c. */
static inline __attribute__((always_inline)) void sum_block(const ob_cpu_attn_tile *t, int32_t q0, const int n,
                                                            int32_t c, const int nv, int32_t first,
                                                            int32_t last)
{
    float *o = t->o + (int64_t)q0 * t->v_pad + c;
    const float *p = t->s + (int64_t)q0 * OB_CPU_ATTN_TILE;
    vf acc[ATTN_MB][4];
    for (int m = 0; m < n; m++)
        for (int j = 0; j < nv; j++) acc[m][j] = vf_load(o + m * t->v_pad + j * VW);
    for (int32_t r = first; r < last; r++) {
        const float *v = t->vp + (int64_t)r * t->v_pad + c;
        vf pv[ATTN_MB];
        for (int m = 0; m < n; m++) pv[m] = vf_set1(p[m * OB_CPU_ATTN_TILE + r]);
        for (int j = 0; j < nv; j++) {
            const vf vv = vf_load(v + j * VW);
            for (int m = 0; m < n; m++) acc[m][j] = vf_fma(pv[m], vv, acc[m][j]);
        }
    }
    for (int m = 0; m < n; m++)
        for (int j = 0; j < nv; j++) vf_store(o + m * t->v_pad + j * VW, acc[m][j]);
}

static inline __attribute__((always_inline)) void sum_columns(const ob_cpu_attn_tile *t, int32_t q0, const int n,
                                                              int32_t first, int32_t last)
{
    int32_t c = 0;
    for (; c + 4 * VW <= t->v_pad; c += 4 * VW) sum_block(t, q0, n, c, 4, first, last);
    for (; c < t->v_pad; c += VW) sum_block(t, q0, n, c, 1, first, last);
}

static void k_attn_tile(const ob_cpu_attn_tile *t)
{
    if (t->k_f16) pack_keys_of(t, true);
    else pack_keys_of(t, false);
    if (t->v_f16) pack_values_of(t, true);
    else pack_values_of(t, false);
    int32_t q = 0;
    for (; q + ATTN_MB <= t->n_q; q += ATTN_MB) score_block(t, q, ATTN_MB);
    for (; q < t->n_q; q++) score_block(t, q, 1);
    for (q = 0; q < t->n_q; q++) soften(t, q);
    /* Tokens that no query of a block sees weigh 0 and are skipped; adding 0 changes nothing. */
    for (q = 0; q < t->n_q;) {
        const int32_t n = q + ATTN_MB <= t->n_q ? ATTN_MB : 1;
        int32_t first = t->n_tok, last = 0;
        for (int32_t m = q; m < q + n; m++) {
            if (t->lo[m] >= t->hi[m]) continue;
            first = t->lo[m] < first ? t->lo[m] : first;
            last = t->hi[m] > last ? t->hi[m] : last;
        }
        if (first < 0) first = 0;
        if (last > t->n_tok) last = t->n_tok;
        if (n == ATTN_MB) sum_columns(t, q, ATTN_MB, first, last);
        else sum_columns(t, q, 1, first, last);
        q += n;
    }
}

static void k_attn_merge(float *max, float *sum, float *o, float max2, float sum2, const float *o2, int32_t v_pad)
{
    if (max2 == -INFINITY) return;
    if (*max == -INFINITY) {
        memcpy(o, o2, (size_t)v_pad * sizeof *o);
        *max = max2;
        *sum = sum2;
        return;
    }
    const float m = fmaxf(*max, max2);
    float a[VW], b[VW];
    vf_store(a, vf_exp(vf_set1(*max - m)));
    vf_store(b, vf_exp(vf_set1(max2 - m)));
    const vf va = vf_set1(a[0]), vb = vf_set1(b[0]);
    for (int32_t c = 0; c < v_pad; c += VW) vf_store(o + c, vf_load(o + c) * va + vf_load(o2 + c) * vb);
    *sum = *sum * a[0] + sum2 * b[0];
    *max = m;
}
