/* dev/hrx/soft/gfx.h: what the interpreter of gfx11 wave32 machine code is made of.
 *
 * Owns: code objects (elf.c), instructions (decode.c), their execution (wave.c, salu.c, valu.c, lanes.c, mem.c) and
 * what they do wrong. It knows nothing of libhrx (abi.c) and nothing of the engine: libhrx-soft is a library of its
 * own and needs libc only.
 *
 * What is modelled: results, EXEC, SCC and VCC, LDS, barriers, DPP, permutes, dual issue, matrices, bounds of every
 * access, waits for loads, LDS that nobody wrote, and races between waves. What is not: time, caches, denormal modes
 * (denormals are kept), the last bit of transcendental functions, wave64, scratch memory, traps. Whatever is not known
 * is an error that names the instruction, the kernel and the place; nothing is passed over but hints.
 */
#ifndef OB_DEV_HRX_SOFT_GFX_H
#define OB_DEV_HRX_SOFT_GFX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GFX_LANES = 32,
    GFX_VCC = 106, GFX_NULL = 124, GFX_M0 = 125, GFX_EXEC = 126, GFX_N_SGPR = 128,
    GFX_MAX_ARGS = 64,
    GFX_MAX_WAVES = 32, /* of a workgroup: 1,024 threads */
    GFX_TEXT = 256,
};

/* Operand encodings, in the order in which the words are told apart. */
typedef enum gfx_enc {
    GFX_SOP2, GFX_SOP1, GFX_SOPK, GFX_SOPC, GFX_SOPP, GFX_SMEM, GFX_VOP2, GFX_VOP1, GFX_VOPC, GFX_VOP3, GFX_VOP3P,
    GFX_DS, GFX_FLAT, GFX_MUBUF, GFX_VOPD
} gfx_enc;

typedef enum gfx_class {
    GFX_NONE, GFX_END, GFX_BARRIER, GFX_WAIT, GFX_BRANCH, GFX_SALU, GFX_VALU, GFX_CMP, GFX_CMPX, GFX_PACKED, GFX_MIX,
    GFX_DOT, GFX_WMMA, GFX_LANE, GFX_LDS, GFX_MEM, GFX_BUFFER, GFX_SCALAR_LOAD
} gfx_class;

typedef enum gfx_op {
#define OP(name, enc, code, cls, operands) OP_##name,
#include "dev/hrx/soft/gfx_ops.def"
#undef OP
    GFX_N_OPS
} gfx_op;

typedef struct gfx_op_info {
    const char *name, *operands;
    uint16_t code;
    uint8_t enc, cls;
} gfx_op_info;
extern const gfx_op_info gfx_ops[GFX_N_OPS];

typedef enum gfx_kind { GFX_K_NONE, GFX_K_VGPR, GFX_K_SGPR, GFX_K_CONST, GFX_K_SCC, GFX_K_VCCZ, GFX_K_EXECZ } gfx_kind;

/* A source: where it comes from and what is done to it on the way. `type` is a letter of gfx_ops.def. */
typedef struct gfx_src {
    uint8_t kind, reg, type;
    bool neg, abs, half; /* half: the upper 16 bits */
    bool plain;          /* a vector register as it is */
    uint64_t value;      /* of a constant, expanded for its type, modifiers not applied */
} gfx_src;

/* Registers as a set, for waits. */
typedef struct gfx_set { uint64_t v[4], s[2]; } gfx_set;

typedef struct gfx_dpp { bool on, bound, inactive; uint32_t keep, valid; uint8_t from[GFX_LANES]; } gfx_dpp;

typedef struct gfx_insn {
    uint16_t op;
    uint8_t enc, cls, n_src, n_bytes;
    uint32_t at;          /* byte offset in the kernel's code */
    gfx_src src[4];
    uint8_t dst, dst_type;/* vector or scalar register; letter of gfx_ops.def, 0: none */
    uint8_t sdst;         /* mask of lanes that the instruction also writes */
    bool dst_half, clamp;
    uint8_t omod;         /* 1: times 2, 2: times 4, 3: half */
    uint8_t op_sel, op_sel_hi, neg_lo, neg_hi;
    int32_t imm;          /* constants of scalar and memory instructions; offset0 of DS */
    uint8_t imm2;         /* offset1 of DS */
    bool glc, offen, idxen, has_base;
    bool writes_mask;     /* a carry, beside its result */
    bool descriptor;      /* a scalar load through one */
    /* memory, from gfx_ops.def */
    char access;          /* L S A R, or b p w of DS */
    char what, sign, part;
    uint8_t width, pair, stride64;
    int32_t target;       /* of a branch: index */
    int32_t dual;         /* index of the second half of a dual instruction, -1 */
    int32_t constant;     /* first of this instruction's broadcast constants, [n_src][32] words; -1: none */
    int32_t dpp;          /* -1: none */
    gfx_set reads, writes;
} gfx_insn;

typedef struct gfx_arg { uint32_t offset, size; bool buffer; } gfx_arg;

typedef struct gfx_kernel {
    char *name;
    const uint8_t *code; /* inside the object's bytes */
    uint32_t code_bytes, lds_bytes, scratch_bytes, kernarg_bytes, rsrc2, properties, vgprs;
    uint32_t workgroup[3];
    uint32_t n_args;
    gfx_arg args[GFX_MAX_ARGS];
    /* after gfx_decode */
    gfx_insn *insns;
    int32_t n_insns;
    uint32_t *constants; /* [n_constants][GFX_LANES] */
    int32_t n_constants;
    gfx_dpp *dpps;
    int32_t n_dpps;
    uint8_t lds_shift;   /* of the smallest access to LDS: 1 << lds_shift bytes, at most 4 */
} gfx_kernel;

typedef struct gfx_object {
    uint8_t *data;
    size_t n_bytes;
    char target[64];
    gfx_kernel *kernels;
    uint32_t n_kernels;
} gfx_object;

/* Copies and reads an HSACO. Untrusted bytes: every offset is checked. False with a text in `why`. */
bool gfx_object_read(const void *data, size_t n_bytes, gfx_object **out, char why[GFX_TEXT]);
void gfx_object_free(gfx_object *o);
/* Decodes a kernel once; cheap when it was done. */
bool gfx_decode(gfx_kernel *k, char why[GFX_TEXT]);

/* What a kernel may touch: its arguments and its bindings, each in a window of addresses of its own, so that an
 * access outside one never lands in another. `shadow` (may be NULL): per 4 bytes who wrote them last. */
typedef struct gfx_window {
    uint8_t *data;      /* host memory */
    uint64_t addr, len;
    uint64_t *shadow;   /* of the dword at data - shift, see gfx_shadow */
    uint32_t shift;     /* bytes of data's offset within its first dword */
    bool touched;       /* this dispatch has stored to some of its bytes, through whichever window */
} gfx_window;
enum { GFX_WINDOW_BITS = 40, GFX_MAX_WINDOWS = 66 };

typedef enum gfx_order { GFX_FORWARD, GFX_REVERSE, GFX_RANDOM } gfx_order;

typedef struct gfx_dispatch {
    gfx_kernel *kernel;
    uint32_t grid[3];
    gfx_window windows[GFX_MAX_WINDOWS]; /* [0]: kernel arguments, then the bindings; addr = (index + 1) << 40 + ... */
    uint32_t n_windows;
    gfx_order order;
    uint64_t seed;
    uint32_t serial;     /* number of this dispatch, for shadows */
    bool races;          /* look for races between waves */
    uint64_t max_steps;  /* wave instructions; more is an endless loop */
    uint64_t n_steps;    /* out */
} gfx_dispatch;

/* Runs a grid to its end. False: the kernel did something wrong, `why` says what and where. */
bool gfx_run(gfx_dispatch *d, char why[GFX_TEXT]);

/* ---- inside the interpreter ------------------------------------------------------------------ */

typedef struct gfx_group gfx_group;

typedef enum gfx_state { GFX_RUNNING, GFX_AT_BARRIER, GFX_DONE } gfx_state;

typedef struct gfx_pending { gfx_set regs; bool scalar, lds_store; } gfx_pending;
enum { GFX_MAX_PENDING = 64 };

typedef struct gfx_wave {
    uint32_t (*v)[GFX_LANES]; /* [vgprs] */
    uint32_t s[GFX_N_SGPR];
    bool scc;
    int32_t pc;
    gfx_state state;
    uint32_t index;           /* in its workgroup */
    uint32_t epoch;           /* barriers passed */
    /* Stores to memory that were not waited for before a barrier: from which epoch, and visible after which. */
    uint32_t unsafe_from, safe_after;
    bool stores_pending;
    uint32_t first_store_epoch;
    int n_vm, n_lgkm;
    gfx_set busy;             /* registers that they will write */
    gfx_group *group;
    gfx_pending vm[GFX_MAX_PENDING], lgkm[GFX_MAX_PENDING]; /* loads under way, oldest first; not cleared at the start */
} gfx_wave;

typedef struct gfx_lds_shadow { uint8_t written, wave; uint16_t epoch; uint8_t reader; uint16_t read_epoch; } gfx_lds_shadow;

struct gfx_group {
    gfx_dispatch *d;
    const gfx_kernel *k;
    gfx_wave *waves;
    uint32_t n_waves, id;
    uint8_t *lds;
    gfx_lds_shadow *lds_shadow; /* per unit of the kernel's smallest access */
    char *why;
    bool failed;
};

/* First failure sticks; always false. */
bool gfx_fail(gfx_group *g, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline uint32_t gfx_exec(const gfx_wave *w) { return w->s[GFX_EXEC]; }

uint64_t gfx_scalar(const gfx_wave *w, const gfx_src *s, bool wide);
bool gfx_salu(gfx_wave *w, const gfx_insn *i);
bool gfx_scalar_load(gfx_wave *w, const gfx_insn *i);
/* Vector arithmetic: VALU, CMP, CMPX, PACKED, MIX, DOT, LANE, WMMA; `second`: the other half of a dual one, or NULL. */
bool gfx_vector(gfx_wave *w, const gfx_insn *i, const gfx_insn *second);
bool gfx_lane_op(gfx_wave *w, const gfx_insn *i);
bool gfx_wmma(gfx_wave *w, const gfx_insn *i);
bool gfx_packed(gfx_wave *w, const gfx_insn *i);
bool gfx_memory(gfx_wave *w, const gfx_insn *i);
bool gfx_lds(gfx_wave *w, const gfx_insn *i);
/* 32 lanes of a source: in place, or brought together in tmp. `high`: second register of a wide type. */
const uint32_t *gfx_lanes(const gfx_wave *w, const gfx_insn *i, int n, bool high, uint32_t tmp[GFX_LANES]);
void gfx_store_lanes(gfx_wave *w, uint8_t reg, const uint32_t *r, uint32_t mask);
/* All ones where the mask has lane l: in this form compilers do 4 lanes and more at once. */
static inline uint32_t gfx_lane_mask(uint32_t mask, int l)
{
    static const uint32_t bit[GFX_LANES] = {
        1u << 0, 1u << 1, 1u << 2, 1u << 3, 1u << 4, 1u << 5, 1u << 6, 1u << 7, 1u << 8, 1u << 9, 1u << 10,
        1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
        1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};
    return -(uint32_t)((mask & bit[l]) != 0);
}

float gfx_f16_to_f32(uint32_t h);
uint32_t gfx_f32_to_f16(float f); /* nearest even */

#endif
