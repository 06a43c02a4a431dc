/* dev/hrx/soft/soft.h: objects, statuses and settings of libhrx-soft, and what it finds fault with. */
#ifndef OB_DEV_HRX_SOFT_SOFT_H
#define OB_DEV_HRX_SOFT_SOFT_H

#include "dev/hrx/soft/gfx.h"
#include "dev/hrx/soft/hrx_abi.h"

typedef enum soft_kind { SOFT_DEVICE = 1, SOFT_ALLOCATOR, SOFT_BUFFER, SOFT_STREAM, SOFT_EXECUTABLE, SOFT_EVENT } soft_kind;

/* Every handle begins with this. An object that was released stays known, so that its use is an error with a text and
 * not a crash; only what it held is given back. */
typedef struct soft_object {
    soft_kind kind;
    uint32_t refs;   /* 0: released */
    uint64_t number; /* for messages */
    struct soft_object *next;
} soft_object;

typedef struct soft_buffer {
    soft_object base;
    uint8_t *data;
    uint64_t *shadow; /* per dword, made at the first dispatch that checks races; see gfx_window */
    size_t len;
    bool mappable, mapped;
    uint32_t n_pending; /* commands recorded or submitted and not yet done */
} soft_buffer;

typedef struct soft_executable {
    soft_object base;
    gfx_object *code;
} soft_executable;

typedef enum soft_command_kind { SOFT_DISPATCH, SOFT_COPY, SOFT_H2D, SOFT_D2H, SOFT_FILL } soft_command_kind;

typedef struct soft_command {
    soft_command_kind kind;
    soft_buffer *buffers[GFX_MAX_WINDOWS]; /* bindings; or destination and source */
    size_t offset[GFX_MAX_WINDOWS], length[GFX_MAX_WINDOWS];
    uint32_t n_buffers;
    void *host;      /* of transfers */
    uint8_t *owned;  /* kernel arguments, pattern, or bytes to write; of this command */
    size_t owned_len;
    soft_executable *exe;
    gfx_kernel *kernel;
    uint32_t grid[3];
} soft_command;

typedef struct soft_stream {
    soft_object base;
    soft_command *commands;
    size_t n, cap, n_submitted; /* the first n_submitted were flushed */
    bool failed;
    char why[GFX_TEXT];
} soft_stream;

/* ---- statuses: NULL is success; each must be consumed --------------------------------------- */

hrx_status soft_status_make(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Does the environment want this call to fail? HRX_SOFT_FAIL=function:n:code, the nth call of it. */
hrx_status soft_injected(const char *function);
#define SOFT_ENTRY()                                                                                                   \
    do {                                                                                                               \
        hrx_status injected_ = soft_injected(__func__);                                                                \
        if (injected_) return injected_;                                                                               \
    } while (0)

/* ---- objects --------------------------------------------------------------------------------- */

void *soft_object_new(soft_kind kind, size_t size);
/* NULL where h is no such object or was released; says so (soft_misuse). */
void *soft_object_get(hrx_handle h, soft_kind kind, const char *function);
/* True when the last reference went: the caller gives back what it holds. */
bool soft_object_release(hrx_handle h, soft_kind kind, const char *function);
/* A mistake of the caller that no status can tell: to stderr, counted, fatal with HRX_SOFT_ABORT=1. */
void soft_misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Objects of a kind that are alive. */
unsigned soft_alive(soft_kind kind);

void soft_buffer_gone(soft_buffer *b);      /* gives back what it holds */
hrx_status soft_run(soft_stream *s);       /* everything that was submitted */
void soft_commands_drop(soft_stream *s);   /* forgets commands, done or not */
const char *soft_architecture(void);       /* HRX_SOFT_ARCH, else gfx1151 */

#endif
