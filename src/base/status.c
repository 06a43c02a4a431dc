#include "base/status.h"

#include <stdio.h>
#include <string.h>

static const ob_status_info k_info[OB_STATUS_COUNT] = {
    [OB_OK] = {"ok", 0, 200, "", NULL},
    [OB_E_INVALID] = {"invalid", 1, 400, "invalid_request_error", NULL},
    [OB_E_FORMAT] = {"format", 1, 400, "invalid_request_error", NULL},
    [OB_E_UNSUPPORTED] = {"unsupported", 1, 400, "invalid_request_error", "unsupported"},
    [OB_E_NOT_FOUND] = {"not_found", 1, 404, "invalid_request_error", "not_found"},
    [OB_E_EXISTS] = {"exists", 1, 409, "invalid_request_error", "exists"},
    [OB_E_IO] = {"io", 1, 500, "server_error", NULL},
    [OB_E_NO_MEMORY] = {"no_memory", 1, 503, "server_error", "out_of_memory"},
    [OB_E_LIMIT] = {"limit", 1, 400, "invalid_request_error", "limit_exceeded"},
    [OB_E_CONTEXT_LENGTH] = {"context_length", 1, 400, "invalid_request_error",
                             "context_length_exceeded"},
    [OB_E_AUTH] = {"auth", 1, 401, "authentication_error", "invalid_api_key"},
    [OB_E_FORBIDDEN] = {"forbidden", 1, 403, "permission_error", NULL},
    [OB_E_METHOD] = {"method", 1, 405, "invalid_request_error", "method_not_allowed"},
    [OB_E_TOO_LARGE] = {"too_large", 1, 413, "invalid_request_error", "request_too_large"},
    [OB_E_BUSY] = {"busy", 1, 503, "server_error", "overloaded"},
    [OB_E_LOADING] = {"loading", 1, 503, "server_error", "model_loading"},
    [OB_E_TIMEOUT] = {"timeout", 1, 504, "server_error", "timeout"},
    [OB_E_CANCELLED] = {"cancelled", 1, 499, "server_error", "cancelled"},
    [OB_E_NETWORK] = {"network", 1, 502, "server_error", "network"},
    [OB_E_CORRUPT] = {"corrupt", 1, 500, "server_error", "checksum_mismatch"},
    [OB_E_DEVICE] = {"device", 1, 500, "server_error", "device_error"},
    [OB_E_DEVICE_LOST] = {"device_lost", 1, 500, "server_error", "device_lost"},
    [OB_E_INTERNAL] = {"internal", 1, 500, "server_error", "internal"},
};

const ob_status_info *ob_status_describe(ob_status s)
{
    if ((int)s < 0 || s >= OB_STATUS_COUNT) s = OB_E_INTERNAL;
    return &k_info[s];
}

/* Shorten a NUL-terminated text so that it does not end inside a UTF-8 sequence. */
static void cut_utf8(char *text)
{
    size_t n = strlen(text), back = 0;
    while (back < n && back < 4 && ((unsigned char)text[n - 1 - back] & 0xC0) == 0x80) back++;
    if (back == n) return;
    unsigned char lead = (unsigned char)text[n - 1 - back];
    size_t want = lead < 0x80 ? 0 : lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    if (back < want) text[n - 1 - back] = 0;
}

ob_status ob_err_setv(ob_err *err, ob_status code, const char *fmt, va_list ap)
{
    if (!err) return code;
    memset(err, 0, sizeof *err);
    err->code = code;
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    if (n >= (int)sizeof err->text) cut_utf8(err->text);
    return code;
}

ob_status ob_err_set(ob_err *err, ob_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    ob_err_setv(err, code, fmt, ap);
    va_end(ap);
    return code;
}

ob_status ob_err_prefix(ob_err *err, ob_status code, const char *fmt, ...)
{
    if (!err) return code;
    char old[sizeof err->text], head[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    int n = snprintf(err->text, sizeof err->text, "%.200s: %.300s", head, old);
    if (n >= (int)sizeof err->text || strlen(old) > 300) cut_utf8(err->text);
    err->code = code;
    return code;
}

ob_status ob_err_set_errno(ob_err *err, ob_status code, int errno_value, const char *fmt, ...)
{
    if (!err) return code;
    char head[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    return ob_err_set(err, code, "%s: %s", head, strerror(errno_value));
}
