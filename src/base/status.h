/* base/status.h: the one list of what can go wrong, and how an error travels.
 *
 * Owns: status codes, the error object, and the table that maps a status to an exit code, an HTTP
 * code and OpenAI's `type`/`code` strings. Knows nothing of any other room.
 *
 * Every fallible function returns `ob_status` and takes `ob_err *err` last. `err` may be NULL; when it
 * is not, it is filled exactly when the status is not OB_OK. Error texts say what, where and what to
 * do, in one sentence without a final full stop.
 */
#ifndef OB_BASE_STATUS_H
#define OB_BASE_STATUS_H

#include <stdarg.h>
#include <stddef.h>

#if defined(__GNUC__)
#define OB_MUST_CHECK __attribute__((warn_unused_result))
#define OB_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define OB_MUST_CHECK
#define OB_PRINTF(fmt, args)
#endif

/* Order is ABI within one build only; always name codes. */
typedef enum ob_status_code {
    OB_OK = 0,
    OB_E_INVALID,        /* an argument or request field is wrong */
    OB_E_FORMAT,         /* bytes of a file or message do not follow their format */
    OB_E_UNSUPPORTED,    /* well-formed, but this build or device cannot do it */
    OB_E_NOT_FOUND,      /* file, model, tensor or route does not exist */
    OB_E_EXISTS,         /* would overwrite something */
    OB_E_IO,             /* the operating system refused or failed */
    OB_E_NO_MEMORY,      /* host or device memory ran out */
    OB_E_LIMIT,          /* a stated maximum was passed (see base/limits.h) */
    OB_E_CONTEXT_LENGTH, /* prompt or generation longer than the context */
    OB_E_AUTH,           /* missing or wrong key */
    OB_E_FORBIDDEN,      /* known caller, not allowed (foreign origin, host) */
    OB_E_METHOD,         /* HTTP method not allowed on that route */
    OB_E_TOO_LARGE,      /* request body over the limit */
    OB_E_BUSY,           /* queue full, resource in use */
    OB_E_LOADING,        /* model is not ready yet */
    OB_E_TIMEOUT,        /* did not finish in time */
    OB_E_CANCELLED,      /* the caller went away or asked to stop */
    OB_E_NETWORK,        /* a remote host did not do its part */
    OB_E_CORRUPT,        /* checksum mismatch */
    OB_E_DEVICE,         /* a device failed in a way that may not repeat */
    OB_E_DEVICE_LOST,    /* the device is gone; a new one must be opened */
    OB_E_INTERNAL,       /* a bug of ours */
    OB_STATUS_COUNT
} ob_status_code;

typedef ob_status_code ob_status;

typedef struct ob_err {
    ob_status code;
    char text[512]; /* what, where, what to do; NUL-terminated, cut at a whole UTF-8 character */
    /* For OB_E_CONTEXT_LENGTH: both counts, so that a server can report them. 0 otherwise. */
    long n_prompt_tok, n_ctx;
} ob_err;

/* How a status is shown outside. All strings are static. */
typedef struct ob_status_info {
    const char *name;        /* "OB_E_FORMAT" without the prefix, lower case: "format" */
    int exit_code;           /* 0, 1 failed, 2 usage */
    int http_code;           /* 200, 400, ... */
    const char *openai_type; /* "invalid_request_error", "server_error", ... */
    const char *openai_code; /* "context_length_exceeded", ... or NULL */
} ob_status_info;

const ob_status_info *ob_status_describe(ob_status s);

/* Fill *err (if not NULL) and return `code`, so that `return ob_err_set(err, ...)` reads well. */
ob_status ob_err_set(ob_err *err, ob_status code, const char *fmt, ...) OB_PRINTF(3, 4);
ob_status ob_err_setv(ob_err *err, ob_status code, const char *fmt, va_list ap);
/* Put "prefix: " in front of the text already in *err and return its code. */
ob_status ob_err_prefix(ob_err *err, ob_status code, const char *fmt, ...) OB_PRINTF(3, 4);
/* Like ob_err_set with ": <strerror(errno_value)>" appended. */
ob_status ob_err_set_errno(ob_err *err, ob_status code, int errno_value, const char *fmt, ...)
    OB_PRINTF(4, 5);

/* Propagate: `OB_TRY(f(x, err));` returns from a function that owns nothing to clean up. */
#define OB_TRY(expr)                                                                              \
    do {                                                                                          \
        ob_status ob_try_s_ = (expr);                                                             \
        if (ob_try_s_ != OB_OK) return ob_try_s_;                                                 \
    } while (0)
/* Propagate to the one clean-up label: needs `ob_status s = OB_OK;` and `out:`. */
#define OB_GOTO(expr)                                                                             \
    do {                                                                                          \
        s = (expr);                                                                               \
        if (s != OB_OK) goto out;                                                                 \
    } while (0)

#endif
