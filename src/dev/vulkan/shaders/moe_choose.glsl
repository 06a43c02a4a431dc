/* The choice of experts from the logits of a row, which stand in route_p. */
shared float route_p[N_CLASS];
shared vec4 route_c[(N_CLASS + 3) / 4]; /* what the choice is made by; NEVER_CHOSEN: left out */
shared float route_part[WG];
shared float route_score[N_GROUP];
shared float route_w[N_USED];
shared uint route_id[N_USED];

const float NEVER_CHOSEN = -3.4028234e38;

float softplus(float x)
{
    /* log1p(e) = 2 atanh(e / (2 + e)), e = exp(-|x|) <= 1: the device's log has no relative precision near 1 */
    float e = exp(-abs(x)), z = e / (2.0 + e), z2 = z * z;
    float l = 2.0 * z * (1.0 + z2 * (1.0 / 3.0 + z2 * (1.0 / 5.0 + z2 * (1.0 / 7.0 + z2 * (1.0 / 9.0 + z2 * (1.0 / 11.0 + z2 / 13.0))))));
    return max(x, 0.0) + l;
}

/* Logits to probabilities. */
void gate_classes()
{
    uint tid = gl_LocalInvocationID.x;
    if (GATING != 1u) {
        for (uint i = tid; i < N_CLASS; i += WG) {
            float x = route_p[i];
            route_p[i] = GATING == 2u ? 1.0 / (1.0 + exp(-x)) : sqrt(softplus(x));
        }
        barrier();
        return;
    }
    float top = route_p[0];
    for (uint i = tid; i < N_CLASS; i += WG) top = max(top, route_p[i]);
    route_part[tid] = top;
    barrier();
    for (uint m = WG / 2u; m > 0u; m >>= 1) {
        if (tid < m) route_part[tid] = max(route_part[tid], route_part[tid + m]);
        barrier();
    }
    top = route_part[0];
    barrier();
    float sum = 0.0;
    for (uint i = tid; i < N_CLASS; i += WG) {
        float e = exp(route_p[i] - top);
        route_p[i] = e;
        sum += e;
    }
    route_part[tid] = sum;
    barrier();
    for (uint m = WG / 2u; m > 0u; m >>= 1) {
        if (tid < m) route_part[tid] += route_part[tid + m];
        barrier();
    }
    sum = route_part[0];
    for (uint i = tid; i < N_CLASS; i += WG) route_p[i] /= sum;
    barrier();
}

/* A group scores the sum of its two best; the worst go, of equal ones the later. */
void drop_groups()
{
    const uint SIZE = N_CLASS / N_GROUP;
    uint tid = gl_LocalInvocationID.x;
    for (uint g = tid; g < N_GROUP; g += WG) {
        float a = NEVER_CHOSEN, b = NEVER_CHOSEN;
        for (uint i = g * SIZE; i < (g + 1u) * SIZE; i++) {
            float c = route_c[i / 4u][i % 4u];
            b = max(b, min(a, c));
            a = max(a, c);
        }
        route_score[g] = SIZE > 1u && a > NEVER_CHOSEN ? max(a + b, -3.4e38) : a;
    }
    barrier();
    for (uint i = tid; i < N_CLASS; i += WG) {
        uint g = i / SIZE, worse = 0u;
        float s = route_score[g];
        for (uint o = 0u; o < N_GROUP; o++) {
            float t = route_score[o];
            if (t > NEVER_CHOSEN && (t < s || (t == s && o > g))) worse++;
        }
        if (worse < N_GROUP - N_GROUP_USED) route_c[i / 4u][i % 4u] = NEVER_CHOSEN;
    }
    barrier();
}

/* The softmax's own sum cancels when the weights are divided by theirs, and does not change the order. */
const bool SHORT = GATING == 1u && NORM && !HAS_BIAS && !HAS_TABLE && N_GROUP == 1u;

/* The best N_USED classes to route_id, and if asked for their weights to route_w. */
void choose(F1 bias, I1 table, int token, bool weights)
{
    uint tid = gl_LocalInvocationID.x;
    if (!SHORT) gate_classes();
    for (uint j = tid; j < N_USED; j += WG) {
        int id = HAS_TABLE ? table.v[token * int(N_USED) + int(j)] : -1;
        bool known = id >= 0 && id < int(N_CLASS);
        route_id[j] = known ? uint(id) : N_CLASS; /* logits that are no numbers choose the expert that is none */
        route_w[j] = known ? route_p[id] : 0.0;
    }
    const uint QUADS = (N_CLASS + 3u) / 4u, AT_ONCE = 8u; /* loaded before they are compared */
    if (!HAS_TABLE) {
        for (uint i = tid; i < (N_CLASS + 3u) / 4u * 4u; i += WG) {
            float c = i < N_CLASS ? route_p[i] + (HAS_BIAS ? bias.v[i] : 0.0) : NEVER_CHOSEN;
            route_c[i / 4u][i % 4u] = c > NEVER_CHOSEN ? c : NEVER_CHOSEN; /* NaN too */
        }
        barrier();
        if (N_GROUP > 1u) drop_groups();
        for (uint i = tid; i < N_CLASS; i += WG) {
            float c = route_c[i / 4u][i % 4u];
            uint rank = 0u;
            [[dont_unroll]] for (uint q0 = 0u; q0 < QUADS; q0 += AT_ONCE) {
                vec4 d[AT_ONCE];
                [[unroll]] for (uint j = 0u; j < AT_ONCE; j++) d[j] = route_c[min(q0 + j, QUADS - 1u)];
                [[unroll]] for (uint j = 0u; j < AT_ONCE; j++)
                    [[unroll]] for (uint k = 0u; k < 4u; k++)
                        rank += uint(q0 + j < QUADS) & (uint(d[j][k] > c) | (uint(d[j][k] == c) & uint((q0 + j) * 4u + k < i)));
            }
            if (rank >= N_USED || !(c > NEVER_CHOSEN)) continue;
            route_id[rank] = i;
            route_w[rank] = route_p[i];
        }
    }
    barrier();
    if (!weights) return;
    if (SHORT) {
        float top = route_w[0];
        barrier();
        for (uint j = tid; j < N_USED; j += WG) route_w[j] = route_id[j] < N_CLASS ? exp(route_w[j] - top) : 0.0;
        barrier();
    }
    float sum = 0.0;
    [[dont_unroll]] for (uint j = 0u; j < N_USED; j++) sum += route_w[j];
    float scale = NORM ? SCALE / max(sum, 6.103515625e-5) : SCALE;
    barrier();
    for (uint j = tid; j < N_USED; j += WG) route_w[j] *= scale;
    barrier();
}

void store_choice(uint row, RouteOut ids, RouteOut weights)
{
    for (uint j = gl_LocalInvocationID.x; j < N_USED; j += WG) {
        ids.v[row * N_USED + j] = float(route_id[j]);
        weights.v[row * N_USED + j] = route_w[j];
    }
}
