/* What a producer writes beside its f32 result for the product that reads it, so that no pass of its own is
 * needed: vk_form in vk_int.h. Kinds: 0 f32, 1 int8 with scales (quantise.comp), 2 f16. + TURNED: through the transform of
 * quant/hadamard.h; + COARSE: rows that the step marks rounded to 4 bits as in quant/act4.h, the codes in bytes. Both to the
 * bit as the reference has them. */
layout(constant_id = 10) const uint FORM = 0;
const uint KIND = FORM & 3u;
const bool TURNED = (FORM & 4u) != 0u, COARSE = (FORM & 8u) != 0u;

shared float form_top[WG];
shared int form_sum[WG];
shared vec4 form_v[TURNED ? WG : 1];

bool is_coarse(Params pr, uint rows, uint row)
{
    return COARSE && pr.coarse[rows] != 0u && U1(pr).v[pr.coarse[rows] + row] != 0u;
}

/* 4 of 32 values, transformed; the passes over neighbours are sums and differences of pairs, of those, and so on. */
vec4 turn4(vec4 v)
{
    uint tid = gl_LocalInvocationID.x, first = tid & ~7u;
    precise vec4 a = vec4(v.x + v.y, v.x - v.y, v.z + v.w, v.z - v.w);
    precise vec4 b = vec4(a.xy + a.zw, a.xy - a.zw);
    barrier();
    form_v[tid] = b;
    barrier();
    precise vec4 s[4];
    [[unroll]] for (uint i = 0; i < 4u; i++) {
        vec4 lo = form_v[first + 2u * i], hi = form_v[first + 2u * i + 1u];
        s[i] = (tid & 1u) != 0u ? lo - hi : lo + hi;
    }
    precise vec4 p = (tid & 2u) != 0u ? s[0] - s[1] : s[0] + s[1], q = (tid & 2u) != 0u ? s[2] - s[3] : s[2] + s[3];
    precise vec4 r = ((tid & 4u) != 0u ? p - q : p + q) * 0.17677669529663687;
    return r;
}

/* fma(b, b, c), rounded once. */
vec4 square_add(vec4 b, vec4 c)
{
    precise vec4 p = b * b, t = 4097.0 * b;
    precise vec4 hi = t - (t - b);
    precise vec4 lo = b - hi;
    precise vec4 pe = ((hi * hi - p) + 2.0 * hi * lo) + lo * lo;
    precise vec4 s = p + c;
    precise vec4 bb = s - p;
    precise vec4 se = (p - (s - bb)) + (c - bb);
    precise vec4 r = s + (se + pe);
    return r;
}

vec4 code4(vec4 x, float inv)
{
    precise vec4 v = x * inv;
    return clamp(roundEven(v), -8.0, 7.0);
}

/* d * q - x for codes q, rounded once: the two parts of d times a code are exact. */
vec4 miss4(vec4 x, float d, float inv)
{
    vec4 q = code4(x, inv);
    precise float t = 4097.0 * d;
    precise float hi = t - (t - d);
    precise float lo = d - hi;
    precise vec4 e = (q * hi - x) + q * lo;
    return e;
}

/* Scale and inverse t of a block whose value of largest magnitude is m. */
vec2 try4(uint t, float m)
{
    const vec4 step = vec4(7.0, -7.5, -8.25, -9.25), unit = vec4(1.0 / 7.0, 1.0 / -7.5, 1.0 / -8.25, 1.0 / -9.25);
    float r = div_exact(1.0, m);
    precise float d = (t != 0u ? m : abs(m)) * unit[t], inv = (t != 0u ? r : abs(r)) * step[t];
    return vec2(d, inv);
}

/* Codes of 4 of 32 values; d: their scale. */
vec4 coarse4(vec4 v, out float d)
{
    uint tid = gl_LocalInvocationID.x, first = tid & ~7u, best = 0u;
    barrier();
    form_v[tid] = v;
    barrier();
    vec4 top = form_v[first], low = top;
    [[unroll]] for (uint i = 1u; i < 8u; i++) {
        top = max(top, form_v[first + i]);
        low = min(low, form_v[first + i]);
    }
    float hi = max(max(top.x, top.y), max(top.z, top.w)), lo = min(min(low.x, low.y), min(low.z, low.w));
    float m = hi >= -lo ? hi : lo;
    bool some = abs(m) > 1e-35;
    vec2 mine = some ? try4(tid & 3u, m) : vec2(0.0);
    precise vec4 e[4];
    [[unroll]] for (uint i = 0; i < 4u; i++) {
        precise vec4 a = miss4(form_v[first + i], mine.x, mine.y);
        precise vec4 aa = a * a;
        e[i] = square_add(miss4(form_v[first + i + 4u], mine.x, mine.y), aa);
    }
    precise vec4 sum = (e[0] + e[2]) + (e[1] + e[3]);
    precise vec2 pair = sum.xy + sum.zw;
    precise float error = pair.x + pair.y;
    form_top[tid] = error;
    barrier();
    [[unroll]] for (uint t = 1u; t < 4u; t++)
        if (form_top[first + t] < form_top[first + best]) best = t;
    vec2 chosen = some ? try4(best, m) : vec2(0.0);
    d = chosen.x;
    return code4(v, chosen.y);
}

/* Codes to bytes, and for the block its scale and the sums of both halves. */
void store_codes(bool on, ivec4 r, float scale, uint row, uint e4, uint k, U1 q, U2 d)
{
    uint tid = gl_LocalInvocationID.x, first = tid & ~7u;
    form_sum[tid] = r.x + r.y + r.z + r.w;
    barrier();
    if (!on) return;
    q.v[row * (k / 4u) + e4] = uint(r.x & 255) | uint(r.y & 255) << 8 | uint(r.z & 255) << 16 | uint(r.w) << 24;
    if (tid != first) return;
    int s0 = form_sum[first] + form_sum[first + 1u] + form_sum[first + 2u] + form_sum[first + 3u];
    int s1 = form_sum[first + 4u] + form_sum[first + 5u] + form_sum[first + 6u] + form_sum[first + 7u];
    d.v[row * (k / 32u) + e4 / 8u] = uvec2(floatBitsToUint(scale), uint(s0 & 0xFFFF) | uint(s1) << 16);
}

/* All threads of the workgroup come here together; 8 neighbours hold one block of 32: elements 4 e4 .. of a
 * row of k. `coarse` is the same for all. */
void store_form(bool on, vec4 v, uint row, uint e4, uint k, U1 q, U2 d, bool coarse)
{
    uint tid = gl_LocalInvocationID.x, first = tid & ~7u;
    if (TURNED) v = turn4(on ? v : vec4(0.0));
    if (COARSE && coarse) {
        float scale;
        vec4 c = coarse4(v, scale);
        if (KIND == 1u) {
            store_codes(on, ivec4(c), scale, row, e4, k, q, d);
            return;
        }
        v = c * scale;
    }
    if (KIND == 0u && TURNED && on) U4(q).v[row * (k / 4u) + e4] = floatBitsToUint(v);
    if (KIND == 2u && on) U2(q).v[row * (k / 4u) + e4] = uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));
    if (KIND != 1u) return;
    vec4 a = abs(v);
    form_top[tid] = on ? max(max(a.x, a.y), max(a.z, a.w)) : 0.0;
    barrier();
    float top = 0.0;
    for (uint i = 0; i < 8u; i++) top = max(top, form_top[first + i]);
    bool some = top > 1e-35;
    float inv = some ? TURNED ? div_exact(127.0, top) : 127.0 / top : 0.0;
    float scale = some ? TURNED ? div_exact(top, 127.0) : top / 127.0 : 0.0;
    precise vec4 scaled = v * inv;
    store_codes(on, ivec4(roundEven(scaled)), scale, row, e4, k, q, d);
}
