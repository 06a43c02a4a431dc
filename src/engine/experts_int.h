/* engine/experts_int.h: what experts.c (which expert lies where) and expert_io.c (reading them) share. */
#ifndef OB_ENGINE_EXPERTS_INT_H
#define OB_ENGINE_EXPERTS_INT_H

#include <pthread.h>

#include "base/arena.h"
#include "engine/experts.h"
#include "fmt/direct.h"

enum {
    EXPERT_MATS = 3,            /* gate, up, down */
    EXPERT_READERS = 4,         /* threads: enough to keep a disk and two cores of packing busy */
    EXPERT_READ_BYTES = 8 << 20, /* one read at most, unless an expert's matrix is larger */
    EXPERT_HELD_BYTES = 64 << 20, /* read, but not yet on a device whose thread must put it there */
};

/* A place for one expert of a pool. Engine thread, but for `left` (locked). */
typedef struct expert_slot {
    int32_t layer, expert; /* what it holds or will hold; layer -1: nothing */
    int32_t left;          /* matrices that are still to come; locked by ob_experts.lock */
    uint32_t turn;         /* of ob_experts.turn: wanted by the mixture that runs, or guessed for the next one */
    bool ahead;            /* was read because of a guess, and nobody wanted it yet */
} expert_slot;

/* Slots of one shape on one device. */
typedef struct expert_pool {
    int32_t place;
    ob_dev *dev; /* while attached */
    bool threads; /* readers may write its weights themselves */
    ob_weight desc[EXPERT_MATS]; /* ne[2] is n_slots; type OB_TYPE_END: no such matrix */
    ob_dev_weight *weight[EXPERT_MATS];
    int64_t n_experts; /* of all its layers */
    uint64_t slot_bytes;
    int32_t n_slots, n_used;
    expert_slot *slots;
} expert_pool;

typedef struct expert_layer {
    int32_t op, pool, n_expert;
    int32_t w[EXPERT_MATS];       /* of the program; OB_NONE: merged into gate */
    const ob_tensor *tensor[EXPERT_MATS];
    size_t bytes[EXPERT_MATS];    /* of one expert in the file */
    int32_t *slot_of;             /* [n_expert], -1: not there */
    float *rate;                  /* [n_expert] uses per token, a mean that forgets; as of rate_at */
    uint64_t *rate_at;
    uint32_t *guessed;            /* [n_expert] the turn for which it was guessed */
} expert_layer;

/* Experts [first, first + n) of a layer, matrices [mat, mat_end): the slots know where they go. */
typedef struct expert_job {
    int32_t layer, first, n;
    int16_t mat, mat_end;
} expert_job;

typedef struct expert_queue {
    expert_job *jobs; /* [cap], a ring */
    int32_t cap, first, n;
} expert_queue;

/* Bytes of a job that were read for a device that only the engine thread may write to. */
typedef struct expert_parcel {
    struct expert_parcel *next;
    expert_job job;
    size_t n_bytes;
    uint8_t data[];
} expert_parcel;

typedef struct expert_reader {
    ob_experts *x;
    ob_direct *file;
    pthread_t thread;
    bool started;
} expert_reader;

struct ob_experts {
    ob_arena arena;
    const ob_file *file;
    expert_layer *layers; /* in order of the program */
    int32_t n_layers;
    expert_pool *pools;
    int32_t n_pools;
    bool *owned; /* [n_weights] */
    int32_t n_weights;
    size_t read_bytes; /* of a reader at once */
    bool attached;
    /* Engine thread */
    uint32_t turn;
    int32_t now;        /* the layer that runs */
    int32_t now_tok;    /* its tokens */
    uint64_t clock;     /* tokens so far */
    int32_t *count;     /* [most experts of a layer] */
    int32_t *want, *ahead, *victims; /* lists of the same size */
    float *victim_score;
    /* Shared with the readers, under `lock` */
    pthread_mutex_t lock;
    pthread_cond_t work, done, room; /* jobs for readers; progress for the engine thread; parcels were taken */
    expert_queue urgent, later;
    int32_t n_running;
    bool stop;
    ob_err failed; /* code OB_OK: nothing */
    expert_parcel *parcels;
    size_t held_bytes;
    expert_reader readers[EXPERT_READERS];
    ob_expert_stats stats;
};

/* expert_io.c. All with x->lock held, but for start and stop. */
OB_MUST_CHECK ob_status expert_io_start(ob_experts *x, ob_err *err);
void expert_io_stop(ob_experts *x);
void expert_io_push(ob_experts *x, expert_queue *q, const expert_job *j);
/* The oldest job of a queue; false when it is empty. */
bool expert_io_pop(expert_queue *q, expert_job *out);
/* Put what lies in parcels into its slots. Unlocks meanwhile. */
OB_MUST_CHECK ob_status expert_io_unpack(ob_experts *x, ob_err *err);

#endif
