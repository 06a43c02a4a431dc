/* Activations by number of ob_act; exp only, because tanh and erf have no stated precision. */
float tanh_by_exp(float x) { return 1.0 - 2.0 / (exp(min(2.0 * x, 80.0)) + 1.0); }

/* Chebyshev fit of erfc, relative error below 1.2e-7 (Press et al., Numerical Recipes, 6.2). */
float erf_by_exp(float x)
{
    float a = abs(x), t = 1.0 / (1.0 + 0.5 * a);
    float p = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806 +
              t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))))));
    float c = 1.0 - t * exp(max(p - a * a, -80.0));
    return x < 0.0 ? -c : c;
}

float activate(uint act, float x)
{
    switch (act) {
    case 1: return x / (1.0 + exp(min(-x, 80.0)));
    case 2: return 0.5 * x * (1.0 + erf_by_exp(x * 0.70710678118654752));
    case 3: return 0.5 * x * (1.0 + tanh_by_exp(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case 4: return max(x, 0.0);
    case 5: return 1.0 / (1.0 + exp(min(-x, 80.0)));
    case 6: return x / (1.0 + exp(min(-1.702 * x, 80.0)));
    default: return x;
    }
}
