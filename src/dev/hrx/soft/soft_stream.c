/* Streams: commands are recorded, flushed and only then, at a synchronise, executed. That is later than any real
 * device, so a caller that reads too early or writes over what a command still needs gets caught. */
#include "dev/hrx/soft/soft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- settings -------------------------------------------------------------------------------- */

static bool setting_is(const char *name, const char *value)
{
    const char *s = getenv(name);
    return s && !strncmp(s, value, strlen(value));
}

static gfx_order order_of_waves(uint64_t *seed)
{
    const char *s = getenv("HRX_SOFT_ORDER"); /* forward, reverse, random[:seed] */
    const char *colon = s ? strchr(s, ':') : NULL;
    *seed = (colon ? strtoull(colon + 1, NULL, 10) : 1) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    return setting_is("HRX_SOFT_ORDER", "random") ? GFX_RANDOM : setting_is("HRX_SOFT_ORDER", "reverse") ? GFX_REVERSE : GFX_FORWARD;
}

/* ---- recording ------------------------------------------------------------------------------- */

static hrx_status record(hrx_handle h, const char *function, soft_stream **stream, soft_command **out)
{
    soft_stream *s = soft_object_get(h, SOFT_STREAM, function);
    if (!s) return soft_status_make(HRX_INVALID_ARGUMENT, "%s: no stream", function);
    if (s->failed) return soft_status_make(HRX_PRECONDITION, "the stream has failed: %.200s", s->why);
    if (s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 64;
        soft_command *grown = realloc(s->commands, cap * sizeof *grown);
        if (!grown) return soft_status_make(HRX_NO_MEMORY, "no memory for commands");
        s->commands = grown;
        s->cap = cap;
    }
    *stream = s;
    *out = &s->commands[s->n];
    memset(*out, 0, sizeof **out);
    return NULL;
}

static hrx_status use_buffer(soft_command *c, hrx_handle h, size_t off, size_t n, const char *function)
{
    soft_buffer *b = soft_object_get(h, SOFT_BUFFER, function);
    if (!b) return soft_status_make(HRX_INVALID_ARGUMENT, "%s: no buffer", function);
    if (off > b->len || n > b->len - off)
        return soft_status_make(HRX_OUT_OF_RANGE, "%s: bytes %zu..+%zu of a buffer of %zu", function, off, n, b->len);
    c->buffers[c->n_buffers] = b;
    c->offset[c->n_buffers] = off;
    c->length[c->n_buffers++] = n;
    return NULL;
}

/* From here on the command is the stream's; its buffers live at least as long. */
static void keep(soft_stream *s, soft_command *c)
{
    for (uint32_t i = 0; i < c->n_buffers; i++) {
        c->buffers[i]->base.refs++;
        c->buffers[i]->n_pending++;
    }
    if (c->exe) c->exe->base.refs++;
    s->n++;
}

static hrx_status own(soft_command *c, const void *data, size_t n)
{
    c->owned = malloc(n + 1);
    if (!c->owned) return soft_status_make(HRX_NO_MEMORY, "no memory for a command");
    if (n) memcpy(c->owned, data, n);
    c->owned_len = n;
    return NULL;
}

#define TRY(expr)                                                                                                      \
    do {                                                                                                               \
        hrx_status status_ = (expr);                                                                                   \
        if (status_) return status_;                                                                                   \
    } while (0)

HRX_EXPORT hrx_status hrx_stream_copy_h2d(hrx_handle stream, const void *src, hrx_handle dst, size_t off, size_t n)
{
    soft_stream *s;
    soft_command *c;
    SOFT_ENTRY();
    TRY(record(stream, __func__, &s, &c));
    TRY(use_buffer(c, dst, off, n, __func__));
    c->kind = SOFT_H2D;
    c->host = (void *)(uintptr_t)src;
    keep(s, c);
    return NULL;
}

HRX_EXPORT hrx_status hrx_stream_copy_d2h(hrx_handle stream, hrx_handle src, size_t off, void *dst, size_t n)
{
    soft_stream *s;
    soft_command *c;
    SOFT_ENTRY();
    TRY(record(stream, __func__, &s, &c));
    TRY(use_buffer(c, src, off, n, __func__));
    c->kind = SOFT_D2H;
    c->host = dst;
    keep(s, c);
    return NULL;
}

HRX_EXPORT hrx_status hrx_stream_update_buffer(hrx_handle stream, const void *src, size_t n, hrx_handle dst, size_t off)
{
    soft_stream *s;
    soft_command *c;
    SOFT_ENTRY();
    TRY(record(stream, __func__, &s, &c));
    TRY(use_buffer(c, dst, off, n, __func__));
    TRY(own(c, src, n));
    c->kind = SOFT_H2D;
    c->host = c->owned;
    keep(s, c);
    return NULL;
}

HRX_EXPORT hrx_status hrx_stream_fill_buffer(hrx_handle stream, hrx_handle dst, size_t off, size_t n, const void *pattern, size_t len)
{
    soft_stream *s;
    soft_command *c;
    SOFT_ENTRY();
    TRY(record(stream, __func__, &s, &c));
    if (len != 1 && len != 2 && len != 4) return soft_status_make(HRX_INVALID_ARGUMENT, "a pattern of %zu bytes", len);
    if (off % len || n % len) return soft_status_make(HRX_INVALID_ARGUMENT, "a fill that is no multiple of its pattern");
    TRY(use_buffer(c, dst, off, n, __func__));
    TRY(own(c, pattern, len));
    c->kind = SOFT_FILL;
    keep(s, c);
    return NULL;
}

HRX_EXPORT hrx_status hrx_stream_copy_buffer(hrx_handle stream, hrx_handle src, size_t src_off, hrx_handle dst, size_t dst_off, size_t n)
{
    soft_stream *s;
    soft_command *c;
    SOFT_ENTRY();
    TRY(record(stream, __func__, &s, &c));
    TRY(use_buffer(c, dst, dst_off, n, __func__));
    TRY(use_buffer(c, src, src_off, n, __func__));
    if (c->buffers[0] == c->buffers[1] && src_off < dst_off + n && dst_off < src_off + n)
        return soft_status_make(HRX_INVALID_ARGUMENT, "a copy over itself");
    c->kind = SOFT_COPY;
    keep(s, c);
    return NULL;
}

/* Kernel arguments: by-value ones in order from `constants` as C would pack them, addresses of the windows. */
static hrx_status make_arguments(soft_command *c, const uint8_t *constants, size_t n)
{
    const gfx_kernel *k = c->kernel;
    c->owned_len = k->kernarg_bytes;
    c->owned = calloc(1, (size_t)k->kernarg_bytes + 4);
    if (!c->owned) return soft_status_make(HRX_NO_MEMORY, "no memory for arguments");
    size_t from = 0;
    for (uint32_t i = 0, binding = 0; i < k->n_args; i++) {
        const gfx_arg *a = &k->args[i];
        if (a->buffer) {
            const uint64_t addr = (uint64_t)(binding + 2) << GFX_WINDOW_BITS | (4096 + (c->offset[binding] & 255));
            memcpy(c->owned + a->offset, &addr, 8);
            binding++;
        } else {
            from = (from + a->size - 1) / a->size * a->size;
            if (from + a->size > n) return soft_status_make(HRX_INVALID_ARGUMENT, "%.64s: too few constants", k->name);
            memcpy(c->owned + a->offset, constants + from, a->size);
            from += a->size;
        }
    }
    if (from != n) return soft_status_make(HRX_INVALID_ARGUMENT, "%.64s takes %zu bytes of constants, not %zu", k->name, from, n);
    return NULL;
}

HRX_EXPORT hrx_status hrx_stream_dispatch(hrx_handle stream, hrx_handle exe, uint32_t ordinal, const hrx_dispatch_config *cfg,
                                          const void *constants, size_t n_constants, const hrx_buffer_ref *refs, size_t n_refs,
                                          uint32_t flags)
{
    soft_stream *s;
    soft_command *c;
    SOFT_ENTRY();
    TRY(record(stream, __func__, &s, &c));
    soft_executable *x = soft_object_get(exe, SOFT_EXECUTABLE, __func__);
    if (!x || ordinal >= x->code->n_kernels || flags) return soft_status_make(HRX_INVALID_ARGUMENT, "no such kernel, or flags");
    c->kind = SOFT_DISPATCH;
    c->exe = x;
    c->kernel = &x->code->kernels[ordinal];
    uint32_t bindings = 0;
    for (uint32_t i = 0; i < c->kernel->n_args; i++) bindings += c->kernel->args[i].buffer;
    if (n_refs != bindings || n_refs + 1 > GFX_MAX_WINDOWS)
        return soft_status_make(HRX_INVALID_ARGUMENT, "%.64s takes %u buffers, not %zu", c->kernel->name, bindings, n_refs);
    for (int a = 0; a < 3; a++) {
        if (!cfg->count[a]) return soft_status_make(HRX_INVALID_ARGUMENT, "%.64s: an empty grid", c->kernel->name);
        if (cfg->size[a] && cfg->size[a] != c->kernel->workgroup[a])
            return soft_status_make(HRX_INVALID_ARGUMENT, "%.64s: another workgroup size than the code's", c->kernel->name);
        c->grid[a] = cfg->count[a];
    }
    for (size_t i = 0; i < n_refs; i++) TRY(use_buffer(c, refs[i].buffer, refs[i].offset, refs[i].length, __func__));
    hrx_status bad = make_arguments(c, constants, n_constants);
    if (bad) {
        free(c->owned);
        return bad;
    }
    keep(s, c);
    return NULL;
}

/* ---- executing ------------------------------------------------------------------------------- */

static bool give_shadow(soft_buffer *b)
{
    if (!b->shadow) b->shadow = calloc(b->len / 4 + 2, sizeof *b->shadow);
    return b->shadow != NULL;
}

static bool dispatch(const soft_command *c, char why[GFX_TEXT])
{
    static uint32_t serial; /* one engine thread */
    gfx_dispatch d = {.kernel = c->kernel, .grid = {c->grid[0], c->grid[1], c->grid[2]}, .serial = ++serial,
                      .races = !setting_is("HRX_SOFT_RACES", "0"), .max_steps = UINT64_C(20000000000)};
    d.order = order_of_waves(&d.seed);
    d.n_windows = c->n_buffers + 1;
    d.windows[0] = (gfx_window){.data = c->owned, .addr = UINT64_C(1) << GFX_WINDOW_BITS, .len = c->owned_len};
    if ((serial & 0xfffff) == 0) d.serial = ++serial; /* 0 in a shadow means nothing */
    for (uint32_t i = 0; i < c->n_buffers; i++) {
        soft_buffer *b = c->buffers[i];
        if (d.races && !give_shadow(b)) {
            snprintf(why, GFX_TEXT, "no memory");
            return false;
        }
        d.windows[i + 1] = (gfx_window){.data = b->data + c->offset[i], .len = c->length[i],
            .addr = (uint64_t)(i + 2) << GFX_WINDOW_BITS | (4096 + (c->offset[i] & 255)),
            .shadow = d.races ? b->shadow + c->offset[i] / 4 : NULL, .shift = c->offset[i] & 3};
    }
    return gfx_run(&d, why);
}

static bool execute(const soft_command *c, char why[GFX_TEXT])
{
    uint8_t *to = c->n_buffers ? c->buffers[0]->data + c->offset[0] : NULL;
    const size_t n = c->length[0];
    switch (c->kind) {
    case SOFT_DISPATCH: return dispatch(c, why);
    case SOFT_COPY: memcpy(to, c->buffers[1]->data + c->offset[1], n); break;
    case SOFT_H2D: memcpy(to, c->host, n); break;
    case SOFT_D2H: memcpy(c->host, to, n); break;
    case SOFT_FILL:
        for (size_t k = 0; k < n; k++) to[k] = c->owned[k % c->owned_len];
        break;
    }
    return true;
}

static void buffer_done(soft_buffer *b)
{
    b->n_pending--;
    if (--b->base.refs == 0) soft_buffer_gone(b);
}

static void command_done(soft_command *c)
{
    for (uint32_t i = 0; i < c->n_buffers; i++) buffer_done(c->buffers[i]);
    if (c->exe && --c->exe->base.refs == 0) {
        gfx_object_free(c->exe->code);
        c->exe->code = NULL;
    }
    free(c->owned);
}

void soft_commands_drop(soft_stream *s)
{
    for (size_t i = 0; i < s->n; i++) command_done(&s->commands[i]);
    s->n = s->n_submitted = 0;
}

hrx_status soft_run(soft_stream *s)
{
    for (size_t i = 0; i < s->n_submitted && !s->failed; i++)
        if (!execute(&s->commands[i], s->why)) s->failed = true;
    for (size_t i = 0; i < s->n_submitted; i++) command_done(&s->commands[i]);
    memmove(s->commands, s->commands + s->n_submitted, (s->n - s->n_submitted) * sizeof *s->commands);
    s->n -= s->n_submitted;
    s->n_submitted = 0;
    return s->failed ? soft_status_make(HRX_INTERNAL, "kernel fault: %s", s->why) : NULL;
}

HRX_EXPORT hrx_status hrx_stream_create(hrx_handle device, uint32_t flags, hrx_handle *out)
{
    SOFT_ENTRY();
    *out = NULL;
    if (!soft_object_get(device, SOFT_DEVICE, __func__) || flags) return soft_status_make(HRX_INVALID_ARGUMENT, "no device, or flags");
    *out = soft_object_new(SOFT_STREAM, sizeof(soft_stream));
    return *out ? NULL : soft_status_make(HRX_NO_MEMORY, "no memory for a stream");
}

HRX_EXPORT void hrx_stream_release(hrx_handle h)
{
    if (!soft_object_release(h, SOFT_STREAM, __func__)) return;
    soft_stream *s = (soft_stream *)h;
    if (s->n && !s->failed) soft_misuse("a stream was released with %zu commands not done", s->n);
    soft_commands_drop(s);
    free(s->commands);
    s->commands = NULL;
}

HRX_EXPORT hrx_status hrx_stream_flush(hrx_handle h)
{
    SOFT_ENTRY();
    soft_stream *s = soft_object_get(h, SOFT_STREAM, __func__);
    if (!s) return soft_status_make(HRX_INVALID_ARGUMENT, "no stream");
    s->n_submitted = s->n;
    return NULL;
}

HRX_EXPORT hrx_status hrx_stream_synchronize(hrx_handle h)
{
    SOFT_ENTRY();
    soft_stream *s = soft_object_get(h, SOFT_STREAM, __func__);
    if (!s) return soft_status_make(HRX_INVALID_ARGUMENT, "no stream");
    s->n_submitted = s->n;
    return soft_run(s);
}

HRX_EXPORT hrx_status hrx_stream_query(hrx_handle h, bool *done)
{
    SOFT_ENTRY();
    soft_stream *s = soft_object_get(h, SOFT_STREAM, __func__);
    if (!s) return soft_status_make(HRX_INVALID_ARGUMENT, "no stream");
    *done = s->n == 0;
    return NULL;
}
