/* What all kernels share: buffers by device address, the parameters of a step, reductions.
 *
 * Every kernel's push constants are eight addresses, of which the first is Params, then words
 * (vk_push in vk_int.h). Arrays of values are row-major f32; rows at and after the step's number of
 * rows are never written. -DSUBGROUP=1 uses subgroup arithmetic, 0 only shared memory. */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference_uvec2 : require

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer F1 { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer F2 { vec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer F4 { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer I1 { int v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer U1 { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer U2 { uvec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer U4 { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer H1 { uint16_t v[]; };

/* Written by the host before each submit. */
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Params {
    uint n_rows[4]; /* by ob_rows: tokens, outputs, sequences */
    uint coarse[4]; /* the same: words from here to a flag per row, 1: rounded to 4 bits where a weight asks for it; 0: none */
};

/* One token of the step: its sequence, its place in the cache, tokens of its sequence in the cache
 * after this step, its position. */
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer TokInfo { uvec4 v[]; };

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 0) const uint WG = 128;

/* The address n * size bytes behind `base`. An index into an array is multiplied by its elements' size in 32 bits by some
 * drivers, so what lies in a buffer that may be larger than 4 GiB is indexed from the beginning of its own row. */
uvec2 row_at(uvec2 base, uint n, uint size)
{
    uint high, low, carry;
    umulExtended(n, size, high, low);
    low = uaddCarry(low, base.x, carry);
    return uvec2(low, base.y + high + carry);
}

/* Round to nearest even whatever the device's own conversion does; NaN stays NaN. */
uint f16_bits(float f)
{
    uint bits = floatBitsToUint(f), sign = (bits >> 16) & 0x8000u, em = bits & 0x7FFFFFFFu;
    if (em > 0x7F800000u) return sign | 0x7E00u;
    if (em >= 0x477FF000u) return sign | 0x7C00u;
    if (em >= 0x38800000u) return sign | ((em - (112u << 23) + 0xFFFu + ((em >> 13) & 1u)) >> 13);
    if (em < 0x33000000u) return sign; /* at most half of the least subnormal */
    uint shift = 126u - (em >> 23), m = (em & 0x7FFFFFu) | 0x800000u; /* units of 2^-24 */
    uint half_ulp = 1u << (shift - 1u), r = m >> shift, rest = m & ((1u << shift) - 1u);
    return sign | (r + ((rest > half_ulp || (rest == half_ulp && (r & 1u) != 0u)) ? 1u : 0u));
}

/* What a product of f32 loses by rounding: fma() need not be exact everywhere. */
float product_error(float a, float b, float p)
{
    precise float s = 4097.0 * a, t = 4097.0 * b;
    precise float ah = s - (s - a), bh = t - (t - b);
    precise float al = a - ah, bl = b - bh;
    precise float e = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
    return e;
}

/* a / b as IEEE has it, from a quotient that may be a few ulp off. */
float div_exact(float a, float b)
{
    precise float q = a / b;
    [[unroll]] for (uint i = 0; i < 2u; i++) {
        precise float p = q * b;
        precise float r = (a - p) - product_error(q, b, p);
        q += r / b;
    }
    return q;
}
