#version 460
#extension GL_GOOGLE_include_directive : require
/* From a layer's values to its experts in one: RMS norm of the row (also in the form that the experts read),
 * the router's product, the choice. A workgroup takes some classes of a row, a subgroup a class at a time,
 * and some of the columns of the norm. The last workgroup of a row to finish chooses. */
#include "common.glsl"
#include "form.glsl"
#extension GL_KHR_shader_subgroup_arithmetic : require

layout(constant_id = 1) const uint N_CLASS = 8;
layout(constant_id = 2) const uint N_USED = 1;
layout(constant_id = 3) const uint GATING = 1;
layout(constant_id = 4) const uint N_GROUP = 1;
layout(constant_id = 5) const uint N_GROUP_USED = 1;
layout(constant_id = 6) const uint FLAGS = 0; /* 1: normalise, 2: bias */
layout(constant_id = 7) const float SCALE = 1.0;
layout(constant_id = 8) const uint SG = 32; /* subgroup size */
layout(constant_id = 9) const uint K = 128;
layout(constant_id = 11) const bool HAS_NORM = false; /* else x is what the router reads */
layout(constant_id = 12) const bool CHOOSES = true;   /* else the reader of the logits does */

const bool NORM = (FLAGS & 1u) != 0u, HAS_BIAS = (FLAGS & 2u) != 0u, HAS_TABLE = false;

/* Written and read by different workgroups of one dispatch. */
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer C1 { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Count { uint v[]; };
#define RouteOut C1
#include "moe_choose.glsl"

layout(push_constant, scalar) uniform Push {
    Params pr;
    F4 x, g, w, y;
    C1 logits;
    C1 ids;
    C1 weights;
    F1 bias;
    U1 fq;
    U2 fd;
    Count done; /* [row]: workgroups that have finished; 0 between steps */
    float eps;
};

const uint K4 = K / 4, EACH = (K4 + SG - 1) / SG; /* fours a lane */
const uint AHEAD = EACH < 8 ? EACH : 8;

shared uint s_order;

/* The row's 1 / rms and this class's product. */
float class_logit(uint row, uint c, out float r)
{
    uint lane = gl_SubgroupInvocationID;
    float sum = 0.0, squares = 0.0;
    for (uint j0 = 0u; j0 < EACH; j0 += AHEAD) {
        vec4 wv[AHEAD], xv[AHEAD], gv[AHEAD];
        [[unroll]] for (uint j = 0; j < AHEAD; j++) {
            uint i = (j0 + j) * SG + lane;
            bool on = i < K4;
            wv[j] = on ? w.v[c * K4 + i] : vec4(0.0);
            xv[j] = on ? x.v[row * K4 + i] : vec4(0.0);
            if (HAS_NORM) gv[j] = on ? g.v[i] : vec4(0.0);
        }
        [[unroll]] for (uint j = 0; j < AHEAD; j++) {
            squares += dot(xv[j], xv[j]);
            sum += dot(wv[j], HAS_NORM ? xv[j] * gv[j] : xv[j]);
        }
    }
    r = HAS_NORM ? 1.0 / sqrt(subgroupAdd(squares) / float(K) + eps) : 1.0;
    return subgroupAdd(sum) * r;
}

bool is_last(uint row)
{
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0u) s_order = atomicAdd(done.v[row], 1u);
    barrier();
    if (s_order + 1u != gl_NumWorkGroups.x) return false;
    memoryBarrierBuffer();
    if (gl_LocalInvocationID.x == 0u) done.v[row] = 0u;
    return true;
}

void main()
{
    uint part = gl_WorkGroupID.x, n_part = gl_NumWorkGroups.x, row = gl_WorkGroupID.y, tid = gl_LocalInvocationID.x;
    uint n_rows = pr.n_rows[0];
    if (row >= n_rows) return;
    float r = 1.0;
    const uint SUBS = WG / SG;
    for (uint c0 = part * SUBS; c0 < N_CLASS; c0 += n_part * SUBS) {
        uint c = min(c0 + gl_SubgroupID, N_CLASS - 1u);
        float v = class_logit(row, c, r);
        if (gl_SubgroupInvocationID == 0u) logits.v[row * N_CLASS + c] = v;
    }
    if (HAS_NORM) {
        uint each = K4 / n_part; /* a multiple of 8 */
        for (uint e0 = 0u; e0 < each; e0 += WG) {
            bool on = e0 + tid < each;
            uint i = part * each + min(e0 + tid, each - 1u);
            vec4 f = x.v[row * K4 + i] * r * g.v[i];
            if (on) y.v[row * K4 + i] = f;
            store_form(on, f, row, i, K, fq, fd, is_coarse(pr, 0u, row));
            barrier();
        }
    }
    if (!CHOOSES || !is_last(row)) return;
    for (uint i = tid; i < N_CLASS; i += WG) route_p[i] = logits.v[row * N_CLASS + i];
    barrier();
    I1 none;
    choose(bias, none, 0, true);
    store_choice(row, ids, weights);
}
