/* Portable kernels: the same integers and the same order of f32 operations as the vector ones, so their
 * results are equal bit by bit (fmaf is exact everywhere, if slow where the CPU lacks it). */
#include <math.h>
#include <string.h>

#include "dev/cpu/linear_int.h"
#include "quant/act4.h"

/* ---- activations -------------------------------------------------------------------------------- */

/* 32 values to int8 with one scale; sums of the two halves. */
static float quant_block(const float *x, int8_t *q, int32_t sum[2])
{
    float max = 0.0f;
    for (int i = 0; i < LIN_BLK; i++) {
        const float v = fabsf(x[i]);
        max = v > max ? v : max;
    }
    const float inv = max > LIN_ACT_TINY ? 127.0f / max : 0.0f;
    sum[0] = sum[1] = 0;
    for (int i = 0; i < LIN_BLK; i++) {
        const float v = rintf(x[i] * inv);
        q[i] = (int8_t)(v >= -127.0f && v <= 127.0f ? v : -128.0f); /* out of range: not finite */
        sum[i / 16] += q[i];
    }
    return max > LIN_ACT_TINY ? max / 127.0f : 0.0f;
}

static void act_c(const ob_lin *l, const lin_act *a, const float *x, int64_t ldx, int n_valid, uint8_t *panel)
{
    const int64_t pw = a->pw, ns = a->n_sub;
    float *d = (float *)(void *)(panel + a->off_d), *sumf = (float *)(void *)(panel + a->off_sum);
    for (int c = 0; c < pw; c++) {
        for (int64_t b = 0; b < l->n_blk; b++) {
            int8_t q[LIN_BLK] = {0};
            int32_t half[2] = {0, 0};
            const float scale = c < n_valid ? quant_block(x + c * ldx + b * LIN_BLK, q, half) : 0.0f;
            for (int i = 0; i < 8; i++) memcpy(panel + ((b * 8 + i) * pw + c) * 4, q + 4 * i, 4);
            d[b * pw + c] = scale;
            for (int64_t s = 0; s < ns; s++) {
                const int32_t sum = ns == 1 ? half[0] + half[1] : half[s];
                const int64_t at = (s * l->n_blk + b) * pw + c;
                sumf[at] = scale * (float)sum;
                for (int i = 0; i < 3; i++)
                    ((int32_t *)(void *)(panel + a->off_init[i]))[at] = -lin_act_off((int)ns, i) * sum;
            }
        }
    }
}

/* ---- one unit of packed weights ------------------------------------------------------------------ */

typedef struct unit {
    uint8_t q[8][64];                      /* code vectors */
    float s[2][LIN_ROWS], m[2][LIN_ROWS]; /* by sub-block */
} unit;

static float f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return ob_f16_to_f32(h);
}

static void unpack_codes(lin_format f, const uint8_t *p, uint8_t q[8][64])
{
    const int code = lin_fmt[f].code;
    const uint8_t *table = lin_table(f);
    for (int i = 0; i < 8; i++) {
        for (int e = 0; e < 64; e++) {
            if (code == LIN_C8) {
                q[i][e] = p[64 * i + e];
                continue;
            }
            const int nib = p[64 * (i % 4) + e] >> (i < 4 ? 0 : 4) & 15;
            if (code == LIN_T4) q[i][e] = table[nib];
            else if (code == LIN_C5) q[i][e] = (uint8_t)(nib | (p[256 + e] >> i & 1) << 4);
            else if (code == LIN_C6)
                q[i][e] = (uint8_t)(nib | (p[256 + 64 * (i / 4) + e] >> (2 * (i % 4)) & 3) << 4);
            else q[i][e] = (uint8_t)nib;
        }
    }
}

static void unpack_scales(lin_format f, const uint8_t *p, const uint8_t *head, float out[2][LIN_ROWS], int which)
{
    const lin_props *pr = &lin_fmt[f];
    const size_t sub = lin_sub_bytes(f);
    p += which ? sub * pr->n_sub : 0;
    for (int s = 0; s < pr->n_sub; s++, p += sub) {
        for (int r = 0; r < LIN_ROWS; r++) {
            uint16_t h;
            switch (pr->scale) {
            case LIN_S_F16: out[s][r] = f16(p + 2 * r); break;
            case LIN_S_BF16:
                memcpy(&h, p + 2 * r, 2);
                out[s][r] = ob_bf16_to_f32(h);
                break;
            case LIN_S_F32: memcpy(&out[s][r], p + 4 * r, 4); break;
            default: out[s][r] = f16(head + 32 * which + 2 * r) * (float)(int8_t)p[r]; break;
            }
        }
    }
}

static void unpack_unit(const ob_lin *l, const uint8_t *group, int64_t b, unit *u)
{
    const lin_format f = l->fmt;
    const uint8_t *scales = group + lin_code_bytes(f) * (size_t)l->n_blk;
    const uint8_t *heads = scales + lin_scale_bytes(f) * (size_t)l->n_blk;
    const uint8_t *head = heads + lin_head_bytes(f) * (size_t)(b / 8);
    unpack_codes(f, group + lin_code_bytes(f) * (size_t)b, u->q);
    unpack_scales(f, scales + lin_scale_bytes(f) * (size_t)b, head, u->s, 0);
    if (lin_fmt[f].has_min) unpack_scales(f, scales + lin_scale_bytes(f) * (size_t)b, head, u->m, 1);
}

/* ---- products ------------------------------------------------------------------------------------ */

static void store_rows(const lin_job *j, int64_t row, int64_t col, const float *f)
{
    const ob_lin_epilogue *ep = j->ep;
    const int64_t n = OB_MIN(j->n1 - row, LIN_ROWS);
    float *y = j->y + col * j->ldy + row;
    for (int64_t r = 0; r < n; r++) {
        float v = f[r];
        if (ep->bias) v += ep->bias[row + r];
        v *= ep->scale;
        y[r] = ep->res ? ep->res[col * ep->ldres + row + r] + v : v;
    }
}

/* One unit times one column, added to f[16]. */
static void unit_column(const ob_lin *l, const lin_act *a, const uint8_t *panel, int c, int64_t b,
                        const unit *u, float *f)
{
    const lin_props *p = &lin_fmt[l->fmt];
    const int64_t pw = a->pw;
    const float *d = (const float *)(const void *)(panel + a->off_d);
    const float *sum = (const float *)(const void *)(panel + a->off_sum);
    const int32_t *init = (const int32_t *)(const void *)(panel + a->off_init[lin_init_index(l->fmt)]);
    for (int s = 0; s < p->n_sub; s++) {
        int32_t acc[LIN_ROWS];
        for (int r = 0; r < LIN_ROWS; r++) acc[r] = p->off ? init[(s * l->n_blk + b) * pw + c] : 0;
        for (int i = 8 / p->n_sub * s; i < 8 / p->n_sub * (s + 1); i++) {
            int8_t x[4];
            memcpy(x, panel + ((b * 8 + i) * pw + c) * 4, 4);
            for (int r = 0; r < LIN_ROWS; r++)
                for (int k = 0; k < 4; k++) acc[r] += u->q[i][4 * r + k] * x[k];
        }
        for (int r = 0; r < LIN_ROWS; r++)
            f[r] = fmaf((float)acc[r], u->s[s][r] * d[b * pw + c], f[r]);
    }
    if (p->has_min)
        for (int s = 0; s < p->n_sub; s++)
            for (int r = 0; r < LIN_ROWS; r++)
                f[r] = fmaf(u->m[s][r], sum[(s * l->n_blk + b) * pw + c], f[r]);
}

static void mul_c(const lin_job *j)
{
    const ob_lin *l = j->l;
    float *sums = j->scratch;
    for (int64_t n = j->n0; n < j->n1; n += LIN_ROWS) {
        const uint8_t *group = j->w + (size_t)(n / LIN_ROWS) * l->group_bytes;
        memset(sums, 0, (size_t)j->m * LIN_ROWS * sizeof *sums);
        for (int64_t b = 0; b < l->n_blk; b++) {
            unit u;
            unpack_unit(l, group, b, &u);
            for (int64_t c = 0; c < j->m; c++)
                unit_column(l, &j->a, j->act + (size_t)(c / j->a.pw) * j->a.panel_bytes,
                            (int)(c % j->a.pw), b, &u, sums + c * LIN_ROWS);
        }
        for (int64_t c = 0; c < j->m; c++) store_rows(j, n, c, sums + c * LIN_ROWS);
    }
}

/* Weights of up to 32 columns k in f32: [columns][16]; returns how many. */
static int unpack_f32(const ob_lin *l, const uint8_t *group, int64_t k0, float w[LIN_BLK][LIN_ROWS])
{
    const int n = (int)OB_MIN(l->k - k0, LIN_BLK);
    if (l->fmt < LIN_N_QUANT) {
        const lin_props *p = &lin_fmt[l->fmt];
        unit u;
        unpack_unit(l, group, k0 / LIN_BLK, &u);
        for (int k = 0; k < n; k++)
            for (int r = 0; r < LIN_ROWS; r++) {
                const int s = k * p->n_sub / LIN_BLK;
                w[k][r] = (float)(u.q[k / 4][4 * r + k % 4] - p->off) * u.s[s][r];
                if (p->has_min) w[k][r] += u.m[s][r];
            }
        return n;
    }
    for (int k = 0; k < n; k++)
        for (int r = 0; r < LIN_ROWS; r++) {
            const uint8_t *at = group + (size_t)((k0 + k) * LIN_ROWS + r) * lin_float_bytes(l->fmt);
            uint16_t h;
            memcpy(&h, at, 2);
            if (l->fmt == LIN_F32) memcpy(&w[k][r], at, 4);
            else w[k][r] = l->fmt == LIN_F16 ? ob_f16_to_f32(h) : ob_bf16_to_f32(h);
        }
    return n;
}

static void mul_f32_c(const lin_job *j)
{
    const ob_lin *l = j->l;
    float *sums = j->scratch;
    for (int64_t n = j->n0; n < j->n1; n += LIN_ROWS) {
        const uint8_t *group = j->w + (size_t)(n / LIN_ROWS) * l->group_bytes;
        memset(sums, 0, (size_t)j->m * LIN_ROWS * sizeof *sums);
        for (int64_t k0 = 0; k0 < l->k; k0 += LIN_BLK) {
            float w[LIN_BLK][LIN_ROWS];
            const int nk = unpack_f32(l, group, k0, w);
            for (int64_t c = 0; c < j->m; c++) {
                const float *x = (const float *)(const void *)(j->act + (size_t)(c / j->a.pw) * j->a.panel_bytes);
                float *f = sums + c * LIN_ROWS;
                x += k0 * j->a.pw + c % j->a.pw;
                for (int k = 0; k < nk; k++)
                    for (int r = 0; r < LIN_ROWS; r++) f[r] = fmaf(w[k][r], x[k * j->a.pw], f[r]);
            }
        }
        for (int64_t c = 0; c < j->m; c++) store_rows(j, n, c, sums + c * LIN_ROWS);
    }
}

static float act4_c(const float *x, int8_t *q) { return ob_act4_codes(x, q); }

const lin_kernels lin_kernels_c = {.name = "c", .act = act_c, .act4 = act4_c, .mul = mul_c, .mul_f32 = mul_f32_c};
