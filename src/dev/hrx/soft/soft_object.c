/* Objects, statuses, misuse: what libhrx-soft is strict about. */
#include "dev/hrx/soft/soft.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct soft_status { int code; char text[GFX_TEXT + 64]; };

static struct {
    pthread_mutex_t lock;
    soft_object *first;
    uint64_t n_made;
    unsigned n_misuse;
    unsigned n_calls[64]; /* of functions that may be told to fail, by their place in the setting */
} soft = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- statuses -------------------------------------------------------------------------------- */

hrx_status soft_status_make(int code, const char *format, ...)
{
    static struct soft_status no_memory = {HRX_NO_MEMORY, "no memory"};
    struct soft_status *s = malloc(sizeof *s);
    if (!s) return &no_memory;
    s->code = code;
    va_list ap;
    va_start(ap, format);
    vsnprintf(s->text, sizeof s->text, format, ap);
    va_end(ap);
    return s;
}

HRX_EXPORT int hrx_status_code(hrx_status s) { return s ? s->code : 0; }

HRX_EXPORT void hrx_status_ignore(hrx_status s)
{
    if (s && strcmp(s->text, "no memory") != 0) free(s);
}

HRX_EXPORT hrx_status hrx_status_to_string(hrx_status s, char **text, size_t *len)
{
    *text = strdup(s ? s->text : "ok");
    if (!*text) return soft_status_make(HRX_NO_MEMORY, "no memory");
    if (len) *len = strlen(*text);
    return NULL;
}

HRX_EXPORT void hrx_status_free_message(char *text) { free(text); }

hrx_status soft_injected(const char *function)
{
    const char *p = getenv("HRX_SOFT_FAIL");
    for (unsigned k = 0; p && *p && k < 64; k++) {
        const size_t n = strcspn(p, ":");
        char *end = (char *)(uintptr_t)p + n;
        if (n == strlen(function) && !strncmp(p, function, n) && *end) {
            const unsigned long at = strtoul(end + 1, &end, 10), code = *end ? strtoul(end + 1, &end, 10) : HRX_INTERNAL;
            if (++soft.n_calls[k] == at) return soft_status_make((int)code, "%s was told to fail", function);
        }
        p += strcspn(p, ",");
        p += *p == ',';
    }
    return NULL;
}

/* ---- misuse ---------------------------------------------------------------------------------- */

void soft_misuse(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    fprintf(stderr, "hrx-soft: misuse: ");
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    va_end(ap);
    soft.n_misuse++;
    const char *strict = getenv("HRX_SOFT_ABORT");
    if (strict && *strict == '1') abort();
}

/* For tests; no part of libhrx. */
HRX_EXPORT unsigned hrx_soft_misuses(void) { return soft.n_misuse; }

/* ---- objects --------------------------------------------------------------------------------- */

static const char *const k_kind[] = {"", "device", "allocator", "buffer", "stream", "executable", "event"};

void *soft_object_new(soft_kind kind, size_t size)
{
    soft_object *o = calloc(1, size);
    if (!o) return NULL;
    pthread_mutex_lock(&soft.lock);
    *o = (soft_object){.kind = kind, .refs = 1, .number = ++soft.n_made, .next = soft.first};
    soft.first = o;
    pthread_mutex_unlock(&soft.lock);
    return o;
}

static soft_object *known(hrx_handle h)
{
    pthread_mutex_lock(&soft.lock);
    soft_object *o = soft.first;
    while (o && o != h) o = o->next;
    pthread_mutex_unlock(&soft.lock);
    return o;
}

void *soft_object_get(hrx_handle h, soft_kind kind, const char *function)
{
    soft_object *o = known(h);
    if (!o || o->kind != kind) {
        soft_misuse("%s: this is no %s", function, k_kind[kind]);
        return NULL;
    }
    if (!o->refs) {
        soft_misuse("%s: %s %llu was released", function, k_kind[kind], (unsigned long long)o->number);
        return NULL;
    }
    return o;
}

bool soft_object_release(hrx_handle h, soft_kind kind, const char *function)
{
    if (!h) return false;
    soft_object *o = soft_object_get(h, kind, function);
    return o && --o->refs == 0;
}

unsigned soft_alive(soft_kind kind)
{
    unsigned n = 0;
    for (const soft_object *o = soft.first; o; o = o->next) n += o->kind == kind && o->refs > 0;
    return n;
}

/* What is still alive when the program ends was forgotten. */
__attribute__((destructor)) static void at_exit(void)
{
    for (int kind = SOFT_BUFFER; kind <= SOFT_EVENT; kind++)
        if (soft_alive((soft_kind)kind)) soft_misuse("%u of kind %s were never released", soft_alive((soft_kind)kind), k_kind[kind]);
    while (soft.first) {
        soft_object *o = soft.first;
        soft.first = o->next;
        free(o);
    }
}
