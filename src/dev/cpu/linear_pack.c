/* Packing: each block type is read into one row of one unit (`unit_row`), which is then spread over the
 * group. Both sides work on dwords of four codes, so packing runs at a few GB/s. Block layouts are
 * restated in quant/; here only what moves where. */
#include "dev/cpu/linear_pack.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

/* 32 codes of one row, as dwords of the packed layout. */
typedef struct unit_row {
    uint32_t c[8];   /* code dwords: 4 of nibbles, or 8 of bytes */
    uint32_t h[2];   /* high-bit dwords of 5- and 6-bit codes */
    uint16_t s16[2], m16[2]; /* F16, BF16 scales and minimums */
    int8_t sk[2], mk[2];     /* K scales */
    float s32[2];
    uint16_t head[2]; /* K: d, -dmin */
} unit_row;

static uint16_t load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static void load_dwords(uint32_t *c, const uint8_t *p, int n)
{
    for (int i = 0; i < n; i++) c[i] = load32(p + 4 * i);
}

/* Bits 4i + j of a row's 32 high bits become bit i of byte j. */
static uint32_t spread_high(uint32_t qh)
{
    uint32_t out = 0;
    for (int j = 0; j < 4; j++) {
        uint32_t x = qh >> j & 0x11111111u;
        x = (x | x >> 3) & 0x03030303u;
        x = (x | x >> 6) & 0x000f000fu;
        x = (x | x >> 12) & 0xffu;
        out |= x << (8 * j);
    }
    return out;
}

/* ---- one unit of one row, by type. p: the block that holds it; b: which unit of the block ---------- */

static void row_q4_0(const uint8_t *p, int b, unit_row *u)
{
    (void)b;
    u->s16[0] = load16(p);
    load_dwords(u->c, p + 2, 4);
}
static void row_q4_1(const uint8_t *p, int b, unit_row *u)
{
    (void)b;
    u->s16[0] = load16(p);
    u->m16[0] = load16(p + 2);
    load_dwords(u->c, p + 4, 4);
}
static void row_q5_0(const uint8_t *p, int b, unit_row *u)
{
    (void)b;
    u->s16[0] = load16(p);
    u->h[0] = spread_high(load32(p + 2));
    load_dwords(u->c, p + 6, 4);
}
static void row_q5_1(const uint8_t *p, int b, unit_row *u)
{
    (void)b;
    u->s16[0] = load16(p);
    u->m16[0] = load16(p + 2);
    u->h[0] = spread_high(load32(p + 4));
    load_dwords(u->c, p + 8, 4);
}
static void row_q8_0(const uint8_t *p, int b, unit_row *u)
{
    (void)b;
    u->s16[0] = load16(p);
    for (int i = 0; i < 8; i++) u->c[i] = load32(p + 2 + 4 * i) ^ 0x80808080u;
}
static void row_mxfp4(const uint8_t *p, int b, unit_row *u)
{
    (void)b;
    /* Half of 2^(e - 127) as bf16: subnormal for e < 2. */
    u->s16[0] = p[0] >= 2 ? (uint16_t)((p[0] - 1) << 7) : (uint16_t)(0x20 << p[0]);
    load_dwords(u->c, p + 1, 4);
}

/* Super-blocks keep 32 codes in one nibble (or bit pair) of 32 bytes: join the halves. */
static void join_nibbles(uint32_t *c, const uint8_t *q, int shift, uint32_t mask)
{
    for (int i = 0; i < 4; i++)
        c[i] = (load32(q + 4 * i) >> shift & mask) | (load32(q + 16 + 4 * i) >> shift & mask) << 4;
}
static void k_scale_min(const uint8_t *s, int j, unit_row *u)
{
    if (j < 4) {
        u->sk[0] = (int8_t)(s[j] & 63);
        u->mk[0] = (int8_t)(s[j + 4] & 63);
    } else {
        u->sk[0] = (int8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        u->mk[0] = (int8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
    }
}
static void row_q4_k(const uint8_t *p, int b, unit_row *u)
{
    u->head[0] = load16(p);
    u->head[1] = load16(p + 2) ^ 0x8000u;
    k_scale_min(p + 4, b, u);
    join_nibbles(u->c, p + 16 + 32 * (b / 2), 4 * (b & 1), 0x0f0f0f0fu);
}
static void row_q5_k(const uint8_t *p, int b, unit_row *u)
{
    u->head[0] = load16(p);
    u->head[1] = load16(p + 2) ^ 0x8000u;
    k_scale_min(p + 4, b, u);
    join_nibbles(u->c, p + 48 + 32 * (b / 2), 4 * (b & 1), 0x0f0f0f0fu);
    u->h[0] = 0;
    for (int i = 0; i < 8; i++) u->h[0] |= (load32(p + 16 + 4 * i) >> b & 0x01010101u) << i;
}
static void row_q6_k(const uint8_t *p, int b, unit_row *u)
{
    const int half = b / 4, g = b % 4;
    const uint8_t *qh = p + 128 + 32 * half;
    u->head[0] = load16(p + 208);
    for (int s = 0; s < 2; s++) u->sk[s] = (int8_t)p[192 + 2 * b + s];
    join_nibbles(u->c, p + 64 * half + 32 * (g & 1), g >= 2 ? 4 : 0, 0x0f0f0f0fu);
    u->h[0] = u->h[1] = 0;
    for (int i = 0; i < 8; i++)
        u->h[i / 4] |= (load32(qh + 4 * i) >> (2 * g) & 0x03030303u) << (2 * (i % 4));
}
static void row_q2_k(const uint8_t *p, int b, unit_row *u)
{
    u->head[0] = load16(p + 80);
    u->head[1] = load16(p + 82) ^ 0x8000u;
    for (int s = 0; s < 2; s++) {
        u->sk[s] = (int8_t)(p[2 * b + s] & 15);
        u->mk[s] = (int8_t)(p[2 * b + s] >> 4);
    }
    join_nibbles(u->c, p + 16 + 32 * (b / 4), 2 * (b % 4), 0x03030303u);
}
static void row_q3_k(const uint8_t *p, int b, unit_row *u)
{
    const uint8_t *scales = p + 96;
    u->head[0] = load16(p + 108);
    for (int s = 0; s < 2; s++) {
        const int j = 2 * b + s, low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
        u->sk[s] = (int8_t)((low | (scales[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32);
    }
    /* Code = 2 low bits + 4 when the mask bit is set + 4: the value (low - 4 or low) plus 8. */
    join_nibbles(u->c, p + 32 + 32 * (b / 4), 2 * (b % 4), 0x03030303u);
    for (int i = 0; i < 4; i++) {
        const uint32_t lo = load32(p + 4 * i) >> b & 0x01010101u;
        const uint32_t hi = load32(p + 16 + 4 * i) >> b & 0x01010101u;
        u->c[i] += (lo | hi << 4) * 4 + 0x44444444u;
    }
}
static void row_iq4_xs(const uint8_t *p, int b, unit_row *u)
{
    const int low = p[4 + b / 2] >> (4 * (b % 2)) & 15, high = load16(p + 2) >> (2 * b) & 3;
    u->head[0] = load16(p);
    u->sk[0] = (int8_t)((low | high << 4) - 32);
    load_dwords(u->c, p + 8 + 16 * b, 4);
}

/* ---- types without a reader of their own ---------------------------------------------------------- */

/* The largest s with x[i] = s * integer, |integer| <= top; else (never for the types that come here) the
 * rounding scale. Such a block's values are integers times a scale, rounded once to f32. */
static float lattice_scale(const float *x, int n, int top)
{
    float max = 0.0f;
    for (int i = 0; i < n; i++) max = fmaxf(max, fabsf(x[i]));
    if (!(max > 0.0f) || !isfinite(max)) return 0.0f;
    for (int q = 1; q <= top; q++) {
        const float inv = (float)q / max;
        int i = 0;
        while (i < n && fabsf(x[i] * inv - rintf(x[i] * inv)) <= 2e-5f) i++;
        if (i == n) return max / (float)q;
    }
    return max / (float)top;
}

static void row_generic(const float *x, lin_format f, unit_row *u)
{
    const lin_props *p = &lin_fmt[f];
    const int n = LIN_BLK / p->n_sub, top = f == LIN_G4 ? 7 : 127;
    uint8_t code[LIN_BLK];
    for (int s = 0; s < p->n_sub; s++) {
        u->s32[s] = lattice_scale(x + s * n, n, top);
        const float inv = u->s32[s] > 0.0f ? 1.0f / u->s32[s] : 0.0f;
        for (int i = 0; i < n; i++) code[s * n + i] = (uint8_t)(lrintf(x[s * n + i] * inv) + p->off);
    }
    if (f == LIN_G8) {
        load_dwords(u->c, code, 8);
        return;
    }
    for (int i = 0; i < 4; i++) u->c[i] = load32(code + 4 * i) | load32(code + 16 + 4 * i) << 4;
}

/* ---- the table, and spreading a row over its group ------------------------------------------------- */

typedef void (*row_fn)(const uint8_t *block, int b, unit_row *u);

static const struct { ob_type type; lin_format fmt; row_fn row; } readers[] = {
    {OB_Q4_0, LIN_Q4_0, row_q4_0},     {OB_Q4_1, LIN_Q4_1, row_q4_1},
    {OB_Q5_0, LIN_Q5_0, row_q5_0},     {OB_Q5_1, LIN_Q5_1, row_q5_1},
    {OB_Q8_0, LIN_Q8_0, row_q8_0},     {OB_Q4_K, LIN_Q4_K, row_q4_k},
    {OB_Q5_K, LIN_Q5_K, row_q5_k},     {OB_Q6_K, LIN_Q6_K, row_q6_k},
    {OB_Q2_K, LIN_Q2_K, row_q2_k},     {OB_Q3_K, LIN_Q3_K, row_q3_k},
    {OB_IQ4_NL, LIN_IQ4_NL, row_q4_0}, {OB_IQ4_XS, LIN_IQ4_XS, row_iq4_xs},
    {OB_MXFP4, LIN_MXFP4, row_mxfp4},
};

static row_fn reader_of(ob_type t)
{
    for (size_t i = 0; i < OB_COUNT(readers); i++)
        if (readers[i].type == t) return readers[i].row;
    return NULL;
}

lin_format lin_format_of(ob_type t)
{
    for (size_t i = 0; i < OB_COUNT(readers); i++)
        if (readers[i].type == t) return readers[i].fmt;
    switch (t) {
    case OB_F32:
    case OB_F64: return LIN_F32;
    case OB_F16: return LIN_F16;
    case OB_BF16: return LIN_BF16;
    case OB_TQ1_0:
    case OB_TQ2_0:
    case OB_Q1_0:
    case OB_Q2_0: return LIN_G4;
    default: return LIN_G8;
    }
}

static void spread_scales(lin_format f, const unit_row *u, uint8_t *scales, int r)
{
    const lin_props *p = &lin_fmt[f];
    const size_t sub = lin_sub_bytes(f), mins = sub * p->n_sub;
    for (int s = 0; s < p->n_sub; s++) {
        uint8_t *at = scales + sub * (size_t)s;
        if (p->scale == LIN_S_K) {
            at[r] = (uint8_t)u->sk[s];
            if (p->has_min) at[mins + (size_t)r] = (uint8_t)u->mk[s];
        } else if (p->scale == LIN_S_F32) {
            memcpy(at + 4 * r, &u->s32[s], 4);
        } else {
            memcpy(at + 2 * r, &u->s16[s], 2);
            if (p->has_min) memcpy(at + mins + 2 * r, &u->m16[s], 2);
        }
    }
}

static void spread(lin_format f, const unit_row *u, uint8_t *codes, uint8_t *scales, uint8_t *head, int r)
{
    const lin_props *p = &lin_fmt[f];
    const int n_code = p->code == LIN_C8 ? 8 : 4, n_high = p->code == LIN_C6 ? 2 : p->code == LIN_C5;
    for (int i = 0; i < n_code; i++) memcpy(codes + 64 * i + 4 * r, &u->c[i], 4);
    for (int i = 0; i < n_high; i++) memcpy(codes + 256 + 64 * i + 4 * r, &u->h[i], 4);
    spread_scales(f, u, scales, r);
    if (head) {
        memcpy(head + 2 * r, &u->head[0], 2);
        if (p->has_min) memcpy(head + 32 + 2 * r, &u->head[1], 2);
    }
}

typedef struct pack_src {
    const ob_type_info *ti;
    row_fn row; /* NULL: generic */
    float *buf; /* generic: one row in f32 */
} pack_src;

/* One row of a group; row is NULL past the last one. */
static void pack_row(const ob_lin *l, const pack_src *src, const uint8_t *row, uint8_t *group, int r)
{
    const size_t code = lin_code_bytes(l->fmt), scale = lin_scale_bytes(l->fmt);
    const size_t head = lin_head_bytes(l->fmt);
    uint8_t *scales = group + code * (size_t)l->n_blk, *heads = scales + scale * (size_t)l->n_blk;
    const int per_block = src->ti->block_elems / LIN_BLK;
    unit_row u;
    memset(&u, 0, sizeof u);
    if (row && !src->row) src->ti->dequant(row, src->buf, l->k);
    for (int64_t b = 0; b < l->n_blk; b++) {
        if (row && src->row) {
            const int64_t block = per_block > 1 ? b / per_block : b;
            src->row(row + block * src->ti->block_bytes, (int)(b - block * per_block), &u);
        } else if (row) {
            row_generic(src->buf + b * LIN_BLK, l->fmt, &u);
        }
        uint8_t *h = head && b % 8 == 0 ? heads + (size_t)(b / 8) * head : NULL;
        spread(l->fmt, &u, group + (size_t)b * code, scales + (size_t)b * scale, h, r);
    }
}

static void pack_row_float(const ob_lin *l, const pack_src *src, const uint8_t *row, uint8_t *group, int r)
{
    if (l->fmt == LIN_F32) {
        const float *x = src->buf;
        float *to = (float *)(void *)group + r;
        if (row) src->ti->dequant(row, src->buf, l->k);
        for (int64_t k = 0; k < l->k; k++) to[k * LIN_ROWS] = row ? x[k] : 0.0f;
        return;
    }
    uint16_t *to = (uint16_t *)(void *)group + r;
    for (int64_t k = 0; k < l->k; k++) to[k * LIN_ROWS] = row ? load16(row + 2 * k) : 0;
}

ob_status ob_lin_pack_expert(ob_lin *l, ob_type type, int64_t at, const void *data, ob_err *err)
{
    pack_src src = {.ti = ob_type_get(type), .row = reader_of(type)};
    const size_t row_bytes = ob_type_row_bytes(type, l->k);
    if (!src.row) {
        src.buf = ob_malloc((size_t)(l->n_blk * LIN_BLK) * sizeof(float));
        if (!src.buf) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to pack a row of %lld", (long long)l->k);
    }
    for (int64_t g = 0; g < l->n_grp; g++) {
        uint8_t *group = l->data + (size_t)at * l->expert_bytes + (size_t)g * l->group_bytes;
        for (int r = 0; r < LIN_ROWS; r++) {
            const int64_t n = g * LIN_ROWS + r;
            const uint8_t *row = n < l->n ? (const uint8_t *)data + (size_t)n * row_bytes : NULL;
            if (l->fmt < LIN_N_QUANT) pack_row(l, &src, row, group, r);
            else pack_row_float(l, &src, row, group, r);
        }
    }
    ob_free(src.buf);
    return OB_OK;
}
