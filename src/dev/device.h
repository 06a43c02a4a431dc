/* dev/device.h: one interface for every kind of device, and the registry.
 *
 * Owns: the function table that a device implements. A device receives weights and programs of ops
 * (ops/ops.h), never models; it must not include another device. Every device passes the same
 * conformance suite (tests/devcts).
 *
 * Threads: a device belongs to the engine thread; only `describe` may be called from another.
 *
 * Life: api->open -> weight_new (packs and uploads, once per tensor) -> buffer_new (caches, states)
 * -> plan_new (a program of one bucket with its buffers: everything that can be prepared is) ->
 * per step: write_input -> submit (writes the small parameters, starts the work, returns at once where the
 * device can) -> wait -> read_output. Plans of a device may share their workspace: what one was given or has
 * left there is lost when another one is written to or submitted.
 */
#ifndef OB_DEV_DEVICE_H
#define OB_DEV_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "ops/ops.h"

typedef struct ob_dev ob_dev;
typedef struct ob_dev_buf ob_dev_buf;
typedef struct ob_dev_weight ob_dev_weight;
typedef struct ob_dev_plan ob_dev_plan;
typedef uint64_t ob_fence; /* ticket of a submit; 0 = already done */

/* Capability bits */
enum {
    OB_DEV_ASYNC = 1 << 0,        /* submit returns before the work is done */
    OB_DEV_DYNAMIC_ROWS = 1 << 1, /* one plan serves any n_tok up to its bucket at no extra cost */
    OB_DEV_HOST_MEMORY = 1 << 2,  /* buffers are host memory (buffer_map works) */
    OB_DEV_SOFT = 1 << 3,         /* an emulation: says so everywhere, never yields a speed figure */
    OB_DEV_GPU = 1 << 4,
    OB_DEV_SAMPLE = 1 << 5,       /* TOP_K is quicker here than reading whole rows of logits back */
    OB_DEV_EXACT = 1 << 6,        /* honours ob_dev_options.exact */
    OB_DEV_PROFILE = 1 << 7,
    OB_DEV_HADAMARD = 1 << 8,     /* honours ob_weight.hadamard; a device without it gets no such weight */
    OB_DEV_OBSERVE = 1 << 9,      /* honours ob_dev_options.observe */
    OB_DEV_HALF_ATTN = 1 << 10,   /* unless exact, attention of many tokens over an f16 cache rounds queries and weights to f16 */
    OB_DEV_ACT4 = 1 << 11,        /* honours ob_weight.act4; a device without it gets no such weight */
    OB_DEV_SHARES = 1 << 12,      /* a packed weight may be used by every open device of this kind with the same options,
                                     and be freed through any */
    OB_DEV_GATED = 1 << 13,       /* `auto` takes it only where ob_dev_set_prefer's function names it */
    OB_DEV_PRODUCTS = 1 << 14,    /* honours ob_dev_options.products */
};

/* A part of what a device calls its memory. */
typedef struct ob_dev_heap {
    uint64_t total_bytes, free_bytes; /* free: what the driver says this process may still take, or all of it */
    bool own;                         /* the device's; else the host's, which it reaches too */
} ob_dev_heap;
enum { OB_DEV_MAX_HEAPS = 4 };

typedef struct ob_dev_info {
    char kind[16];        /* "cpu" */
    int index;
    char name[128];       /* "AMD EPYC ..., 2 threads, avx512" */
    char driver[128];
    uint32_t caps;
    uint64_t mem_total_bytes, mem_free_bytes; /* 0 when unknown */
    ob_dev_heap heaps[OB_DEV_MAX_HEAPS]; /* where there are several kinds of memory */
    int n_heaps;
    char features[320];   /* what it can do that others cannot, split by "; "; empty where there is nothing to say */
    uint64_t max_buffer_bytes;
    int32_t max_tok;      /* most tokens of a step */
    int32_t good_tok;     /* tokens of a step that use it well, where prompts are long; 0: as good as any */
    int32_t max_experts;  /* most experts of a weight; 0: any number */
    uint64_t n_submits;   /* of an open device: pieces of work handed to it; 0 where nobody counts */
    bool available;       /* false: see reason */
    char reason[256];     /* why it is not available, or what was switched off (disabled kernels) */
} ob_dev_info;

/* Called with what a matrix (`mat` of a weight: an expert or a head, else 0) is about to multiply: rows
 * x [n_rows][ldx] of w->ne[0] activations, borrowed for the call. One call at a time, on any thread of the device. */
typedef void (*ob_observe_fn)(void *arg, const ob_weight *w, int64_t mat, const float *x, int64_t ldx, int64_t n_rows);

/* Where weights come from, for devices that keep their packed forms on disk: a device sees weights, not models. */
typedef struct ob_dev_source {
    const char *path; /* of the model file; its first part */
    uint64_t stamp;   /* another number whenever its bytes may have changed */
} ob_dev_source;

struct ob_dev_products;

typedef struct ob_dev_options {
    int n_threads;  /* host threads for compute; <= 0: chosen by the device */
    bool exact;     /* f32 activations, no 8-bit rounding of activations */
    bool profile;   /* collect per-op times */
    ob_observe_fn observe; /* NULL, or OB_DEV_OBSERVE must be there; slows every step down */
    void *observe_arg;
    const struct ob_dev_products *products; /* matrix products done elsewhere (dev/products.h), *borrowed*; NULL, or
                                               OB_DEV_PRODUCTS must be there */
    const ob_dev_source *source;  /* borrowed for the call; NULL: unknown, so nothing is kept on disk */
    int verify;   /* products of a unit that are also computed on the host: OB_VERIFY_ */
    bool pin;     /* keep packed weights in memory that the unit reaches without a copy, where it may take so much */
    int unit_mode; /* what a unit that multiplies is used for: OB_UNIT_ */
} ob_dev_options;

enum { OB_UNIT_INT8,  /* products in 8 bits, many rows at a time */
       OB_UNIT_Q4,    /* products with 4-bit weights, a row at a time */
       OB_UNIT_FUSED  /* the same, and steps of few tokens as a whole, where it can */ };

/* Of a unit with arithmetic that the host can repeat exactly. */
enum { OB_VERIFY_SOME, /* a block of columns of the first products and of every 1024th */
       OB_VERIFY_ALL,  /* everything */
       OB_VERIFY_OFF };

enum { OB_BUF_ZERO = 1 }; /* flags of buffer_new */

/* Buffers a plan works on. Arrays are copied; buffers are *shared* and outlive the plan. Caches and states lie in them
 * as ops/ref.h lays them out, on every device: their bytes are handed from one device to another. */
typedef struct ob_plan_bindings {
    ob_dev_weight *const *weights; /* [n_weights] */
    ob_dev_buf *const *cache_k;    /* [n_caches] */
    ob_dev_buf *const *cache_v;    /* [n_caches]; NULL where v_dim is 0 */
    ob_type k_type, v_type;
    int32_t page_tok, n_pages;
    int32_t max_ctx;               /* most tokens of one sequence */
    ob_dev_buf *const *states;     /* [n_states], each [n_slots][n_floats] f32 */
    int32_t n_slots;
} ob_plan_bindings;

typedef struct ob_profile_row {
    const char *name; /* op or kernel name, static */
    uint64_t calls;
    double ms, flops, bytes;
} ob_profile_row;

typedef struct ob_dev_api {
    const char *kind;
    /* Devices of this kind on this machine; never fails: an unusable one is reported by probe. */
    int (*count)(void);
    /* Describe device `index` without opening it. */
    void (*probe)(int index, ob_dev_info *out);
    /* The number of a device that has a name of its own ("kind:name"); -1: unknown. NULL: numbers only. */
    int (*find)(const char *name);
    ob_status (*open)(int index, const ob_dev_options *opt, ob_dev **out, ob_err *err);
    void (*close)(ob_dev *d);
    void (*describe)(const ob_dev *d, ob_dev_info *out);

    ob_status (*buffer_new)(ob_dev *d, uint64_t n_bytes, unsigned flags, ob_dev_buf **out, ob_err *err);
    void (*buffer_free)(ob_dev *d, ob_dev_buf *b);
    ob_status (*buffer_write)(ob_dev *d, ob_dev_buf *b, uint64_t off, const void *src, uint64_t n, ob_err *err);
    ob_status (*buffer_read)(ob_dev *d, ob_dev_buf *b, uint64_t off, void *dst, uint64_t n, ob_err *err);
    /* Ordered with submits: a copy sees all earlier steps and is seen by all later ones. */
    ob_status (*buffer_copy)(ob_dev *d, ob_dev_buf *dst, uint64_t dst_off, ob_dev_buf *src,
                             uint64_t src_off, uint64_t n, ob_err *err);
    ob_status (*buffer_zero)(ob_dev *d, ob_dev_buf *b, uint64_t off, uint64_t n, ob_err *err);
    void *(*buffer_map)(ob_dev *d, ob_dev_buf *b); /* host pointer or NULL */

    /* Can this op run here? If not, `why` (cap bytes) says what is missing. */
    bool (*supports)(const ob_dev *d, const ob_program *p, int32_t op, char *why, size_t cap);

    /* Pack one weight for its use. desc->data is only read during the call when *keeps_data comes
     * back false; else it stays borrowed until weight_free. */
    ob_status (*weight_new)(ob_dev *d, const ob_weight *desc, ob_dev_weight **out, bool *keeps_data, ob_err *err);
    void (*weight_free)(ob_dev *d, ob_dev_weight *w);
    /* Experts that come and go: a weight of OB_USE_EXPERTS made with desc->data NULL is room for ne[2] of them, and
     * weight_write packs one ([ne[1]][ne[0]] blocks of desc->type, borrowed for the call) into place `expert`, which
     * no step in flight may use. With OB_DEV_HOST_MEMORY different places may be written by several threads at once,
     * also while steps run; else it belongs to the device's thread like everything. NULL: not possible here. */
    ob_status (*weight_write)(ob_dev *d, ob_dev_weight *w, int64_t expert, const void *data, ob_err *err);
    /* Bytes of memory that weight_new(desc) would take; NULL where weight_write is. */
    uint64_t (*weight_bytes)(const ob_dev *d, const ob_weight *desc);

    ob_status (*plan_new)(ob_dev *d, const ob_program *p, const ob_plan_bindings *b, ob_dev_plan **out, ob_err *err);
    void (*plan_free)(ob_dev *d, ob_dev_plan *p);
    /* The rows [n_rows][cols] of an input value for the next submit; none of the plan's steps may be in flight. */
    ob_status (*write_input)(ob_dev *d, ob_dev_plan *p, ob_val v, const float *src, int32_t n_rows, ob_err *err);
    /* Allocates nothing. At most one step of a plan is in flight. */
    ob_status (*submit)(ob_dev *d, ob_dev_plan *p, const ob_step *step, ob_fence *out, ob_err *err);
    ob_status (*wait)(ob_dev *d, ob_fence f, ob_err *err);
    /* Copy rows [row, row + n_rows) of an output value to dst [n_rows][cols]. After wait. */
    ob_status (*read_output)(ob_dev *d, ob_dev_plan *p, ob_val v, int32_t row, int32_t n_rows,
                             float *dst, ob_err *err);
    /* Up to cap rows; returns how many there are. reset clears the counters. NULL without PROFILE. */
    int (*profile)(ob_dev *d, ob_profile_row *rows, int cap, bool reset);
} ob_dev_api;

struct ob_dev {
    const ob_dev_api *api; /* first member of every device's own struct */
};

/* The registry: NULL-terminated, in order of preference for `auto`. */
const ob_dev_api *const *ob_dev_registry(void);

/* Who knows what was measured on this machine may name the device that `auto` takes instead of the usual one (the first
 * that is no emulation and not gated). False: the usual one. Set before devices are opened; NULL: always the usual one. */
typedef bool (*ob_dev_prefer_fn)(const ob_dev_info *usual, char *spec, size_t cap);
void ob_dev_set_prefer(ob_dev_prefer_fn fn);

/* Open by spec: "auto", "cpu", "vulkan", "vulkan:1", ... Errors name what is known. */
OB_MUST_CHECK ob_status ob_dev_open(const char *spec, const ob_dev_options *opt, ob_dev **out, ob_err *err);
void ob_dev_close(ob_dev *d);

#endif
