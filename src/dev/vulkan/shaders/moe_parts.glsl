/* What a product with norm and router leaves behind the int8 form of its result (matvec.comp, NORM_OUT, ROUTER), in
 * words from the scales xd on: at 2 X_ROWS NU the sums of squares of each 32 columns [row][NU], at 3 X_ROWS NU parts of
 * the router's product [NU][row][class]. Both lack the norm's factor. */
float square_of(U2 xd, uint row, uint b) { return uintBitsToFloat(U1(uvec2(xd)).v[(2u * X_ROWS + row) * NU + b]); }
float norm_factor(float squares) { return 1.0 / sqrt(squares / float(NU * 32u) + EPS); }

const uint GROUPS = WG / N_CLASS > 0u ? WG / N_CLASS : 1u; /* of threads, each of which sums some of the parts */
shared float route_sum[X_ROWS > 0u ? GROUPS * N_CLASS : 1];

/* Then add_parts, after a barrier. */
void sum_parts(U2 xd, uint row)
{
    const uint EACH = (NU + GROUPS - 1u) / GROUPS, AT_ONCE = 16u;
    for (uint i = gl_LocalInvocationID.x; i < GROUPS * N_CLASS; i += WG) {
        uint c = i % N_CLASS, b0 = i / N_CLASS * EACH;
        float sum = 0.0;
        [[dont_unroll]] for (uint j0 = 0; j0 < EACH; j0 += AT_ONCE) {
            float v[AT_ONCE];
            [[unroll]] for (uint j = 0; j < AT_ONCE; j++) {
                uint b = min(b0 + j0 + j, NU - 1u);
                v[j] = uintBitsToFloat(U1(uvec2(xd)).v[3u * X_ROWS * NU + (b * X_ROWS + row) * N_CLASS + c]);
            }
            [[unroll]] for (uint j = 0; j < AT_ONCE; j++)
                if (j0 + j < EACH && b0 + j0 + j < NU) sum += v[j];
        }
        route_sum[i] = sum;
    }
}

void add_parts(float by)
{
    for (uint c = gl_LocalInvocationID.x; c < N_CLASS; c += WG) {
        float sum = route_sum[c];
        for (uint g = 1u; g < GROUPS; g++) sum += route_sum[g * N_CLASS + c];
        route_p[c] = sum * by;
    }
}
