/* What the kernels of the gated delta rule share. */

/* log(1 + e^z): by the series of artanh, because the device's log has an absolute error near 1. */
float softplus(float z)
{
    float e = exp(-abs(z)), s = e / (2.0 + e), q = s * s;
    float log1p = 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q / 13.0))))));
    return z > 20.0 ? z : max(z, 0.0) + log1p;
}

float sigmoid(float x) { return 1.0 / (1.0 + exp(min(-x, 80.0))); }

/* Which of n_head_k heads of keys belongs to head `head` of values. */
uint key_head(bool tiled, uint head, uint n_head_k, uint n_head_v)
{
    return tiled ? head % n_head_k : head / (n_head_v / n_head_k);
}
