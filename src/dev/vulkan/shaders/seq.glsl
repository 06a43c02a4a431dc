/* The sequences of a step: first row, row past the last, tokens before the step, slot of the state. */
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer SeqInfo { uvec4 v[]; };
