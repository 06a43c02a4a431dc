/* What a producer writes beside its f32 result for the product that reads it, so that no pass of its own is
 * needed: FORM 1 int8 with scales (quantise.comp), 2 f16. */
layout(constant_id = 10) const uint FORM = 0;

shared float form_top[WG];
shared int form_sum[WG];

/* All threads of the workgroup come here together; 8 neighbours hold one block of 32: elements 4 e4 .. of a
 * row of k. */
void store_form(bool on, vec4 v, uint row, uint e4, uint k, U1 q, U2 d)
{
    if (FORM == 2u && on) U2(q).v[row * (k / 4u) + e4] = uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));
    if (FORM != 1u) return;
    uint tid = gl_LocalInvocationID.x, first = tid & ~7u;
    vec4 a = abs(v);
    form_top[tid] = on ? max(max(a.x, a.y), max(a.z, a.w)) : 0.0;
    barrier();
    float top = 0.0;
    for (uint i = 0; i < 8u; i++) top = max(top, form_top[first + i]);
    ivec4 r = ivec4(round(v * (top > 0.0 ? 127.0 / top : 0.0)));
    form_sum[tid] = r.x + r.y + r.z + r.w;
    barrier();
    if (!on) return;
    q.v[row * (k / 4u) + e4] = uint(r.x & 255) | uint(r.y & 255) << 8 | uint(r.z & 255) << 16 | uint(r.w) << 24;
    if (tid != first) return;
    int s0 = form_sum[first] + form_sum[first + 1u] + form_sum[first + 2u] + form_sum[first + 3u];
    int s1 = form_sum[first + 4u] + form_sum[first + 5u] + form_sum[first + 6u] + form_sum[first + 7u];
    d.v[row * (k / 32u) + e4 / 8u] = uvec2(floatBitsToUint(top / 127.0), uint(s0 & 0xFFFF) | uint(s1) << 16);
}
