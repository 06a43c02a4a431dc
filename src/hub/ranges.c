/* Range requests: one stretch of a remote file, whatever the connection does. */
#include "hub/ranges.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/math.h"

typedef struct request {
    ob_hub_remote *remote;
    const ob_hub_watch *watch;
    uint64_t off;
    size_t n, got;   /* bytes wanted at off; bytes of them at out */
    uint8_t *out;
    bool got_bytes;  /* this request brought some */
    bool in_body;
    ob_http_answer answer;
    ob_status stop;  /* why a callback ended the request */
    ob_err stop_err;
} request;

static size_t on_header(char *data, size_t size, size_t n, void *arg)
{
    request *q = arg;
    ob_http_answer_line(&q->answer, data, size * n);
    return size * n;
}

static const char *id_of(const ob_http_answer *a)
{
    return a->linked_sha256[0] ? a->linked_sha256 : a->etag;
}

/* The first answer of all: what the others will be compared with. */
static ob_status meet(request *q, ob_err *err)
{
    ob_hub_remote *r = q->remote;
    if (q->answer.range_total == 0)
        return ob_err_set(err, OB_E_NETWORK, "the server does not tell the size of the file");
    r->n_bytes = q->answer.range_total;
    snprintf(r->id, sizeof r->id, "%s", id_of(&q->answer));
    q->n = (size_t)OB_MIN((uint64_t)q->n, r->n_bytes);
    return OB_OK;
}

static ob_status begin_body(request *q)
{
    const ob_http_answer *a = &q->answer;
    const ob_hub_remote *r = q->remote;
    ob_err *err = &q->stop_err;
    if (a->status == 200)
        return ob_err_set(err, OB_E_NETWORK,
                          "the server ignores ranges: HTTP 200 with the whole file instead of 206; "
                          "`1bit pull` can fetch it first");
    if (!a->has_range || a->range_start != q->off + q->got)
        return ob_err_set(err, OB_E_NETWORK, "the server sent another range than asked for");
    if (r->n_bytes == 0) return meet(q, err);
    if (a->range_total && a->range_total != r->n_bytes)
        return ob_err_set(err, OB_E_CORRUPT,
                          "the file on the server changed: %" PRIu64 " bytes, it had %" PRIu64,
                          a->range_total, r->n_bytes);
    /* Another server of the same name may know the file by another ETag: tried again, too. */
    if (strcmp(r->id, id_of(a)) != 0)
        return ob_err_set(err, OB_E_NETWORK, "the file on the server changed (its ETag did)");
    return OB_OK;
}

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    request *q = arg;
    size_t len = size * n;
    if (q->answer.status != 200 && q->answer.status != 206) return len; /* text of an error page */
    if (!q->in_body) {
        q->in_body = true;
        q->stop = begin_body(q);
        if (q->stop != OB_OK) return 0;
    }
    size_t k = OB_MIN(len, q->n - q->got);
    memcpy(q->out + q->got, data, k);
    q->got += k;
    q->got_bytes |= k > 0;
    if (k && q->watch->got) q->watch->got(q->watch->arg, k);
    return q->got < q->n || k == len ? len : 0; /* more than asked for: enough */
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    request *q = arg;
    if (!q->watch->go_on || q->watch->go_on(q->watch->arg)) return 0;
    q->stop = ob_err_set(&q->stop_err, OB_E_CANCELLED, "stopped");
    return 1;
}

static CURLcode perform(request *q, CURL *curl)
{
    struct curl_slist *headers = NULL;
    char range[64], reason[CURL_ERROR_SIZE] = "";
    memset(&q->answer, 0, sizeof q->answer);
    q->stop = OB_OK;
    q->in_body = q->got_bytes = false;
    bool ok = !q->remote->bearer || ob_http_add_bearer(&headers, q->remote->bearer);
    ob_http_setup(curl, q->remote->url, headers, reason);
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, q->off + q->got, q->off + q->n - 1);
    curl_easy_setopt(curl, CURLOPT_RANGE, range);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, q);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, q);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, q);
    CURLcode rc = ok ? curl_easy_perform(curl) : CURLE_OUT_OF_MEMORY;
    if (rc != CURLE_OK && q->stop == OB_OK)
        (void)ob_err_set(&q->stop_err, OB_E_NETWORK, "%s", *reason ? reason : curl_easy_strerror(rc));
    curl_slist_free_all(headers);
    return rc;
}

/* Is the read at its end, well (OB_OK) or not? With false: *err says why to try again. */
static bool is_over(request *q, CURLcode rc, ob_status *s, ob_err *err)
{
    long status = q->answer.status;
    *s = OB_OK;
    if (q->stop == OB_OK && q->got == q->n && q->remote->n_bytes) return true;
    if (q->stop != OB_OK || rc != CURLE_OK) {
        *err = q->stop_err;
        *s = err->code;
        return q->stop != OB_OK ? q->stop != OB_E_NETWORK : ob_http_curl_is_final(rc);
    }
    if (status == 416) {
        *s = q->remote->n_bytes
                 ? ob_err_set(err, OB_E_CORRUPT, "the file on the server changed: it is shorter now")
                 : ob_err_set(err, OB_E_FORMAT, "%.400s: the file is empty", q->remote->url);
        return true;
    }
    if (status != 200 && status != 206) {
        *s = ob_http_error(q->remote->url, status, q->remote->bearer != NULL, err);
        return !ob_http_status_is_passing(status);
    }
    *s = ob_err_set(err, OB_E_NETWORK, "the connection ended after %zu of %zu bytes", q->got, q->n);
    return false;
}

/* Sleep in short steps, so that a caller who wants to stop is heard. */
static bool pause_ms(const ob_hub_watch *w, long ms)
{
    for (; ms > 0; ms -= 100) {
        struct timespec step = {.tv_nsec = OB_MIN(ms, 100L) * 1000000L};
        if (w->go_on && !w->go_on(w->arg)) return false;
        nanosleep(&step, NULL);
    }
    return true;
}

static void remark(const ob_hub_watch *w, const char *why, long ms)
{
    char text[640];
    if (!w->remark) return;
    snprintf(text, sizeof text, "%s; trying again in %.1f s", why, (double)ms / 1000);
    w->remark(w->arg, text);
}

ob_status ob_hub_range_read(CURL *curl, ob_hub_remote *r, uint64_t off, size_t n, uint8_t *out,
                            size_t *n_read, const ob_hub_watch *watch, ob_err *err)
{
    request q = {.remote = r, .watch = watch, .off = off, .n = n, .out = out};
    ob_err why;
    *n_read = 0;
    if (n == 0) return OB_OK;
    for (int fruitless = 0;;) {
        ob_status s;
        CURLcode rc = perform(&q, curl);
        bool over = is_over(&q, rc, &s, &why);
        if (over && s == OB_OK) break;
        fruitless = q.got_bytes ? 0 : fruitless + 1;
        if (over || fruitless >= OB_HTTP_MAX_FRUITLESS) {
            if (err) *err = why;
            return s;
        }
        long ms = ob_http_pause_ms(fruitless, ob_http_retry_after_s(curl));
        remark(watch, why.text, ms);
        if (!pause_ms(watch, ms)) return ob_err_set(err, OB_E_CANCELLED, "stopped");
    }
    *n_read = q.n;
    return OB_OK;
}
