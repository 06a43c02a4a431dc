/* hub/http_int.h: what every HTTP request of this room shares: set-up of a curl handle, the headers
 * of an answer that matter, what an error means, how long to wait before the next try. */
#ifndef OB_HUB_HTTP_INT_H
#define OB_HUB_HTTP_INT_H

#include <curl/curl.h>

#include "hub/hub.h"

enum { OB_HTTP_MAX_FRUITLESS = 5 }; /* tries in a row that brought no byte */

typedef struct ob_http_answer {
    long status;
    uint64_t range_start, range_total, length; /* of Content-Range and Content-Length */
    bool has_range, has_length;
    char etag[256];         /* as sent, with its quotes; empty if none */
    char linked_sha256[65]; /* X-Linked-ETag, which redirects carry: kept until the next request */
} ob_http_answer;

/* A handle, or NULL without memory. Any thread. */
CURL *ob_http_new(void);
/* Forget what the handle did last, and prepare a GET: redirects (https stays https), time-outs, the
 * User-Agent. `headers` and `reason` (CURL_ERROR_SIZE bytes) must live as long as the request. */
void ob_http_setup(CURL *curl, const char *url, struct curl_slist *headers, char *reason);
/* false: no memory, or a value that is no header. */
bool ob_http_add_header(struct curl_slist **list, const char *name, const char *value);
/* A token goes to the host of the address only: curl drops it when a redirect leads elsewhere. */
bool ob_http_add_bearer(struct curl_slist **list, const char *token);

/* One header line; a status line starts a new answer (redirects have one each). */
void ob_http_answer_line(ob_http_answer *a, const char *data, size_t len);
/* Seconds that the last answer asks to wait, at most a minute; 0 if it does not. */
long ob_http_retry_after_s(CURL *curl);

/* Is it an error that another try would only repeat? */
bool ob_http_curl_is_final(CURLcode rc);
bool ob_http_status_is_passing(long status);
/* An answer that is neither 200 nor 206. */
ob_status ob_http_error(const char *url, long status, bool had_token, ob_err *err);
/* Before the next try, after so many in a row that brought nothing. */
long ob_http_pause_ms(int fruitless, long retry_after_s);

bool ob_http_is_sha256(const char *s, size_t n);

#endif
