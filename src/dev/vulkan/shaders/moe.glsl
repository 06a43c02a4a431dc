/* Rows sorted by the expert they chose, so that an expert's weights are read once for several of them.
 * A place holds one (row, choice) pair; the places of an expert are adjacent, its first one a multiple of
 * the padding. moe_sort.glsl writes the table, vk_moe.c says where its parts lie. */
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer MoeTable {
    uint n_tiles, pad[3];
    uvec4 tile[]; /* expert, first place, places in use */
};

const uint NOWHERE = 0xFFFFFFFFu; /* the place of a pair that chose no expert */
