/* What every HTTP request shares. */
#include "hub/http_int.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/math.h"

enum {
    CONNECT_S = 5,         /* to give up on a host that does not answer; three times with retries */
    STALL_S = 20,          /* no byte for so long: try again */
    FIRST_PAUSE_MS = 500,  /* doubles with each fruitless try but the first */
    MAX_PAUSE_MS = 15000,
    MAX_RETRY_AFTER_S = 60,
};

/* ---- requests ------------------------------------------------------------------------------- */

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static void curl_init(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

CURL *ob_http_new(void)
{
    pthread_once(&curl_once, curl_init);
    return curl_easy_init();
}

bool ob_http_add_header(struct curl_slist **list, const char *name, const char *value)
{
    char line[4096];
    int n = snprintf(line, sizeof line, "%s: %s", name, value);
    if (n < 0 || n >= (int)sizeof line || strpbrk(value, "\r\n")) return false;
    struct curl_slist *more = curl_slist_append(*list, line);
    if (!more) return false;
    *list = more;
    return true;
}

bool ob_http_add_bearer(struct curl_slist **list, const char *token)
{
    char value[2048];
    int n = snprintf(value, sizeof value, "Bearer %s", token);
    return n < (int)sizeof value && ob_http_add_header(list, "Authorization", value);
}

void ob_http_setup(CURL *curl, const char *url, struct curl_slist *headers, char *reason)
{
    bool https = !strncmp(url, "https://", 8);
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "1bit/" OB_VERSION);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, https ? "https" : "http,https");
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L * 1024);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
}

/* ---- answers -------------------------------------------------------------------------------- */

bool ob_http_is_sha256(const char *s, size_t n)
{
    if (n != 64) return false;
    for (size_t i = 0; i < n; i++)
        if (!isxdigit((unsigned char)s[i])) return false;
    return true;
}

static const char *header_value(const char *line, const char *name)
{
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':') return NULL;
    const char *v = line + n + 1;
    return v + strspn(v, " \t");
}

static void copy_trimmed(char *out, size_t cap, const char *v)
{
    size_t n = strcspn(v, "\r\n");
    while (n && (v[n - 1] == ' ' || v[n - 1] == '\t')) n--;
    if (n >= cap) n = 0; /* too long to be of use */
    memcpy(out, v, n);
    out[n] = 0;
}

/* "bytes 100-199/1000", "bytes 100-199/\*" or "bytes *\/1000" */
static void read_content_range(ob_http_answer *a, const char *v)
{
    unsigned long long from, to, all = 0;
    if (sscanf(v, "bytes %llu-%llu/%llu", &from, &to, &all) >= 2) {
        a->has_range = true;
        a->range_start = from;
        a->range_total = all;
    } else if (sscanf(v, "bytes */%llu", &all) == 1) {
        a->range_total = all;
    }
}

static void new_answer(ob_http_answer *a, const char *status_line)
{
    const char *sp = strchr(status_line, ' ');
    a->status = sp ? strtol(sp, NULL, 10) : 0;
    a->has_range = a->has_length = false;
    a->range_start = a->range_total = a->length = 0;
    a->etag[0] = 0;
}

void ob_http_answer_line(ob_http_answer *a, const char *data, size_t len)
{
    char line[1024], value[256];
    const char *v;
    if (len >= sizeof line) return; /* none of ours is that long */
    memcpy(line, data, len);
    line[len] = 0;
    if (!strncmp(line, "HTTP/", 5)) {
        new_answer(a, line);
    } else if ((v = header_value(line, "Content-Range"))) {
        read_content_range(a, v);
    } else if ((v = header_value(line, "Content-Length"))) {
        a->length = strtoull(v, NULL, 10);
        a->has_length = true;
    } else if ((v = header_value(line, "ETag"))) {
        copy_trimmed(a->etag, sizeof a->etag, v);
    } else if ((v = header_value(line, "X-Linked-ETag"))) {
        copy_trimmed(value, sizeof value, v);
        size_t k = strlen(value);
        if (k == 66 && value[0] == '"' && ob_http_is_sha256(value + 1, 64))
            for (int i = 0; i < 64; i++)
                a->linked_sha256[i] = (char)tolower((unsigned char)value[1 + i]);
    }
}

long ob_http_retry_after_s(CURL *curl)
{
    curl_off_t after = 0;
    curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &after);
    return (long)OB_MIN(after, (curl_off_t)MAX_RETRY_AFTER_S);
}

/* ---- errors --------------------------------------------------------------------------------- */

bool ob_http_curl_is_final(CURLcode rc)
{
    switch (rc) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_OUT_OF_MEMORY: return true;
    default: return false;
    }
}

bool ob_http_status_is_passing(long status)
{
    return status == 408 || status == 425 || status == 429 || status >= 500;
}

ob_status ob_http_error(const char *url, long status, bool had_token, ob_err *err)
{
    switch (status) {
    case 401:
    case 403:
        return ob_err_set(err, OB_E_AUTH,
                          "%.300s: HTTP %ld: it does not exist or needs permission; %s", url, status,
                          had_token ? "the token of HF_TOKEN was not enough"
                                    : "for a gated model set HF_TOKEN");
    case 404:
    case 410: return ob_err_set(err, OB_E_NOT_FOUND, "%.400s: HTTP %ld", url, status);
    default: return ob_err_set(err, OB_E_NETWORK, "%.400s: HTTP %ld", url, status);
    }
}

long ob_http_pause_ms(int fruitless, long retry_after_s)
{
    long ms = OB_MIN((long)FIRST_PAUSE_MS << OB_MAX(fruitless - 1, 0), (long)MAX_PAUSE_MS);
    return OB_MAX(ms, retry_after_s * 1000);
}
