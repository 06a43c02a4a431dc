/* One file over HTTP: resumable, checked, retried.
 *
 * A request for the rest of a file is trusted only as far as the answer proves it: 206 must begin
 * where we stopped, 200 means the server sends everything again, and the ETag of the first part goes
 * along as If-Range so that a file that changed in between starts over. */
#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "hub/hub_int.h"

enum {
    CONNECT_S = 5,         /* to give up on a host that does not answer; three times with retries */
    STALL_S = 20,          /* no byte for so long: try again */
    MAX_FRUITLESS = 5,     /* tries in a row that brought no byte */
    FIRST_PAUSE_MS = 500,  /* doubles with each fruitless try but the first */
    MAX_PAUSE_MS = 15000,
    MAX_RETRY_AFTER_S = 60,
    HASH_CHUNK = 1 << 20,
};
/* Left free on the disk. */
#define SPARE_BYTES (UINT64_C(32) << 20)

/* ---- Callbacks ------------------------------------------------------------------------------ */

bool ob_hub_tell(const ob_hub_pull_opts *opts, const char *stage, uint64_t done, uint64_t total)
{
    ob_hub_progress p = {.stage = stage, .done = done, .total = total};
    return !opts->progress || opts->progress(opts->arg, &p);
}

void ob_hub_remark(const ob_hub_pull_opts *opts, const char *fmt, ...)
{
    if (!opts->remark) return;
    char text[700];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    opts->remark(opts->arg, text);
}

/* ---- SHA-256 -------------------------------------------------------------------------------- */

static ob_status hash_fd(int fd, uint64_t total, const ob_hub_pull_opts *opts, EVP_MD_CTX *md,
                         uint8_t *chunk, ob_err *err)
{
    if (EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1)
        return ob_err_set(err, OB_E_INTERNAL, "SHA-256 is not available in OpenSSL");
    for (uint64_t done = 0;;) {
        ssize_t n = read(fd, chunk, HASH_CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot read");
        if (n == 0) return OB_OK;
        EVP_DigestUpdate(md, chunk, (size_t)n);
        done += (uint64_t)n;
        if (!ob_hub_tell(opts, "checking", done, total))
            return ob_err_set(err, OB_E_CANCELLED, "stopped");
    }
}

ob_status ob_hub_sha256(const char *path, const ob_hub_pull_opts *opts, char out[65], ob_err *err)
{
    ob_status s = OB_OK;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    uint8_t *chunk = ob_malloc(HASH_CHUNK);
    if (!md || !chunk) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a checksum");
    } else if (fd < 0 || fstat(fd, &st) != 0) {
        s = ob_err_set_errno(err, OB_E_IO, errno, "cannot open %s", path);
    } else {
        s = hash_fd(fd, (uint64_t)st.st_size, opts, md, chunk, err);
        if (s != OB_OK) s = ob_err_prefix(err, s, "%s", path);
    }
    if (s == OB_OK) {
        uint8_t digest[EVP_MAX_MD_SIZE];
        unsigned n = 0;
        EVP_DigestFinal_ex(md, digest, &n);
        for (unsigned i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
    }
    ob_free(chunk);
    EVP_MD_CTX_free(md);
    if (fd >= 0) close(fd);
    return s;
}

/* ---- The state of one download -------------------------------------------------------------- */

typedef struct transfer {
    ob_hub_fetch_job *job;
    ob_hub_path part, meta;
    int fd;
    uint64_t off;     /* bytes of the file on disk */
    uint64_t total;   /* size of the whole file, 0 while unknown */
    char etag[256];   /* of the bytes on disk; empty: unknown */
    bool resumed;     /* some bytes come from an earlier request */
    bool got_bytes;   /* this request brought some */

    /* the answer being read; reset at each status line */
    long status;
    uint64_t range_start, range_total, length;
    bool has_range, has_length, in_body;
    char new_etag[256];
    char linked_sha256[65]; /* from any answer of the request: redirects carry it */

    ob_status stop; /* why a callback ended the transfer */
    ob_err stop_err;
} transfer;

static bool is_sha256(const char *s, size_t n)
{
    if (n != 64) return false;
    for (size_t i = 0; i < n; i++)
        if (!isxdigit((unsigned char)s[i])) return false;
    return true;
}

/* Remember whose bytes are in the .part file; with a checksum: that dest is complete. */
static ob_status write_meta(transfer *t, const char *sha256, ob_err *err)
{
    ob_buf b;
    ob_buf_init(&b, 1 << 16);
    ob_buf_adds(&b, "{\"url\": ");
    ob_buf_add_json(&b, t->job->url, strlen(t->job->url));
    ob_buf_adds(&b, ", \"etag\": ");
    ob_buf_add_json(&b, t->etag, strlen(t->etag));
    ob_buf_addf(&b, ", \"size\": %llu, \"sha256\": \"%s\"}\n", (unsigned long long)t->total,
                sha256);
    ob_status s = ob_hub_write_file(t->meta, &b, err);
    ob_buf_deinit(&b);
    return s;
}

/* Is dest complete already, from a pull that was cut off at a later file? */
static bool complete_before(transfer *t)
{
    const char *url, *sha;
    json_int_t size;
    struct stat st;
    json_t *root = json_load_file(t->meta, 0, NULL);
    bool ok = root &&
              json_unpack(root, "{s:s, s:s, s:I}", "url", &url, "sha256", &sha, "size", &size) == 0 &&
              !strcmp(url, t->job->url) && is_sha256(sha, strlen(sha)) &&
              (!t->job->sha256[0] || !strcmp(t->job->sha256, sha)) &&
              stat(t->job->dest, &st) == 0 && st.st_size == size;
    if (ok) {
        memcpy(t->job->sha256, sha, sizeof t->job->sha256);
        t->job->n_bytes = (uint64_t)size;
    }
    json_decref(root);
    return ok;
}

static ob_status start_over(transfer *t, ob_err *err)
{
    t->off = t->total = 0;
    t->etag[0] = 0;
    t->resumed = false;
    if (ftruncate(t->fd, 0) != 0 || lseek(t->fd, 0, SEEK_SET) != 0)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot empty %s", t->part);
    return OB_OK;
}

/* Pick up what an earlier run left. Bytes are kept only if we can later prove that they belong to
 * the same file: by ETag (If-Range) or by the checksum of the whole. */
static ob_status open_part(transfer *t, ob_err *err)
{
    t->fd = open(t->part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (t->fd < 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %s", t->part);
    off_t end = lseek(t->fd, 0, SEEK_END);
    if (end < 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot seek in %s", t->part);
    if (end == 0) return OB_OK;
    const char *url, *etag;
    json_int_t size;
    json_t *root = json_load_file(t->meta, 0, NULL);
    bool ours = root && json_unpack(root, "{s:s, s:s, s:I}", "url", &url, "etag", &etag, "size",
                                    &size) == 0 && size >= 0;
    /* With a known checksum the bytes may come from anywhere: it decides in the end. */
    bool keep = ours && (t->job->sha256[0] || (!strcmp(url, t->job->url) && *etag));
    if (keep) {
        t->off = (uint64_t)end;
        t->resumed = true;
        t->total = (uint64_t)size;
        if (!strcmp(url, t->job->url)) snprintf(t->etag, sizeof t->etag, "%s", etag);
        if (t->total && t->off > t->total) keep = false;
    }
    json_decref(root);
    return keep ? OB_OK : start_over(t, err);
}

/* ---- Reading an answer ---------------------------------------------------------------------- */

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
static void read_content_range(transfer *t, const char *v)
{
    unsigned long long a, b, all = 0;
    if (sscanf(v, "bytes %llu-%llu/%llu", &a, &b, &all) >= 2) {
        t->has_range = true;
        t->range_start = a;
        t->range_total = all;
    } else if (sscanf(v, "bytes */%llu", &all) == 1) {
        t->range_total = all;
    }
}

static void new_answer(transfer *t, const char *status_line)
{
    const char *sp = strchr(status_line, ' ');
    t->status = sp ? strtol(sp, NULL, 10) : 0;
    t->has_range = t->has_length = t->in_body = false;
    t->range_start = t->range_total = t->length = 0;
    t->new_etag[0] = 0;
}

static size_t on_header(char *data, size_t size, size_t n, void *arg)
{
    transfer *t = arg;
    char line[1024], value[256];
    size_t len = size * n;
    if (len >= sizeof line) return len; /* none of ours is that long */
    memcpy(line, data, len);
    line[len] = 0;
    const char *v;
    if (!strncmp(line, "HTTP/", 5)) {
        new_answer(t, line);
    } else if ((v = header_value(line, "Content-Range"))) {
        read_content_range(t, v);
    } else if ((v = header_value(line, "Content-Length"))) {
        t->length = strtoull(v, NULL, 10);
        t->has_length = true;
    } else if ((v = header_value(line, "ETag"))) {
        copy_trimmed(t->new_etag, sizeof t->new_etag, v);
    } else if ((v = header_value(line, "X-Linked-ETag"))) {
        copy_trimmed(value, sizeof value, v);
        size_t k = strlen(value);
        if (k == 66 && value[0] == '"' && is_sha256(value + 1, 64))
            for (int i = 0; i < 64; i++)
                t->linked_sha256[i] = (char)tolower((unsigned char)value[1 + i]);
    }
    return len;
}

static ob_status stop(transfer *t, ob_status s)
{
    t->stop = s;
    return s;
}

static ob_status check_space(transfer *t)
{
    struct statvfs v;
    if (!t->total || fstatvfs(t->fd, &v) != 0) return OB_OK;
    uint64_t left = t->total - OB_MIN(t->off, t->total);
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
    if (left + SPARE_BYTES <= room) return OB_OK;
    return ob_err_set(&t->stop_err, OB_E_IO,
                      "%s needs %.1f MB more on the disk, and only %.1f MB are free",
                      t->job->label, (double)(left + SPARE_BYTES) / 1e6, (double)room / 1e6);
}

/* The first byte of a body is here: decide where it belongs. */
static ob_status begin_body(transfer *t)
{
    ob_err *err = &t->stop_err;
    uint64_t total = t->has_length ? t->length : 0;
    if (t->status == 206) {
        if (!t->has_range || t->range_start != t->off ||
            (t->total && t->range_total && t->range_total != t->total)) {
            OB_TRY(start_over(t, err));
            return ob_err_set(err, OB_E_NETWORK, "the server sent another range than asked for");
        }
        total = t->range_total;
    } else if (t->off > 0) {
        ob_hub_remark(t->job->opts, "%s: the server cannot go on where the download stopped; "
                                    "it starts again", t->job->label);
        OB_TRY(start_over(t, err));
    }
    uint64_t want = t->job->n_bytes;
    if (want && total && total != want)
        return ob_err_set(err, OB_E_CORRUPT, "%s has %llu bytes there instead of %llu",
                          t->job->label, (unsigned long long)total, (unsigned long long)want);
    t->total = total ? total : want;
    OB_TRY(check_space(t));
    if (t->new_etag[0] || t->status == 200) snprintf(t->etag, sizeof t->etag, "%s", t->new_etag);
    return write_meta(t, "", err);
}

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    transfer *t = arg;
    size_t len = size * n;
    if (t->status != 200 && t->status != 206) return len; /* the text of an error page */
    if (!t->in_body) {
        t->in_body = true;
        if (stop(t, begin_body(t)) != OB_OK) return 0;
    }
    if (t->total && len > t->total - t->off) {
        (void)start_over(t, &t->stop_err);
        stop(t, ob_err_set(&t->stop_err, OB_E_NETWORK, "the server sent more than the file has"));
        return 0;
    }
    for (size_t done = 0; done < len;) {
        ssize_t k = write(t->fd, data + done, len - done);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            stop(t, ob_err_set_errno(&t->stop_err, OB_E_IO, errno, "cannot write %s", t->part));
            return 0;
        }
        done += (size_t)k;
        t->off += (uint64_t)k;
    }
    t->got_bytes |= len > 0;
    return len;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    transfer *t = arg;
    uint64_t total = t->total ? t->total : t->job->n_bytes;
    if (ob_hub_tell(t->job->opts, t->job->label, t->off, total)) return 0;
    stop(t, ob_err_set(&t->stop_err, OB_E_CANCELLED, "stopped"));
    return 1;
}

/* ---- One request ---------------------------------------------------------------------------- */

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static void curl_init(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

static bool add_line(struct curl_slist **list, const char *name, const char *value)
{
    char line[4096];
    int n = snprintf(line, sizeof line, "%s: %s", name, value);
    if (n < 0 || n >= (int)sizeof line || strpbrk(value, "\r\n")) return false;
    struct curl_slist *more = curl_slist_append(*list, line);
    if (!more) return false;
    *list = more;
    return true;
}

static bool add_request_headers(transfer *t, struct curl_slist **list)
{
    char token[2048];
    if (t->job->bearer) {
        int n = snprintf(token, sizeof token, "Bearer %s", t->job->bearer);
        /* curl drops this header when a redirect leads to another host */
        if (n >= (int)sizeof token || !add_line(list, "Authorization", token)) return false;
    }
    bool strong = t->etag[0] == '"';
    return t->off == 0 || !strong || add_line(list, "If-Range", t->etag);
}

static CURLcode perform(transfer *t, CURL *curl, long *retry_after_s)
{
    struct curl_slist *headers = NULL;
    char range[32], reason[CURL_ERROR_SIZE] = "";
    bool https = !strncmp(t->job->url, "https://", 8);
    t->status = 0;
    t->stop = OB_OK;
    t->got_bytes = false;
    curl_easy_reset(curl);
    bool ok = add_request_headers(t, &headers);
    curl_easy_setopt(curl, CURLOPT_URL, t->job->url);
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
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, t);
    if (t->off > 0) {
        snprintf(range, sizeof range, "%llu-", (unsigned long long)t->off);
        curl_easy_setopt(curl, CURLOPT_RANGE, range);
    }
    CURLcode rc = ok ? curl_easy_perform(curl) : CURLE_OUT_OF_MEMORY;
    curl_off_t after = 0;
    curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &after);
    *retry_after_s = (long)OB_MIN(after, (curl_off_t)MAX_RETRY_AFTER_S);
    if (rc != CURLE_OK && t->stop == OB_OK)
        (void)ob_err_set(&t->stop_err, OB_E_NETWORK, "%s",
                         *reason ? reason : curl_easy_strerror(rc));
    curl_slist_free_all(headers);
    return rc;
}

static ob_status http_error(const transfer *t, ob_err *err)
{
    const char *url = t->job->url;
    switch (t->status) {
    case 401:
    case 403:
        return ob_err_set(err, OB_E_AUTH,
                          "%.300s: HTTP %ld: it does not exist or needs permission; %s", url,
                          t->status,
                          t->job->bearer ? "the token of HF_TOKEN was not enough"
                                         : "for a gated model set HF_TOKEN");
    case 404:
    case 410: return ob_err_set(err, OB_E_NOT_FOUND, "%.400s: HTTP %ld", url, t->status);
    default: return ob_err_set(err, OB_E_NETWORK, "%.400s: HTTP %ld", url, t->status);
    }
}

typedef enum outcome { DONE, AGAIN, FAILED } outcome;

/* What a finished request means. With AGAIN and FAILED, *err says why. */
static outcome judge(transfer *t, CURLcode rc, ob_err *err)
{
    if (t->stop != OB_OK || rc != CURLE_OK) {
        *err = t->stop_err;
        if (t->stop != OB_OK) return t->stop == OB_E_NETWORK ? AGAIN : FAILED;
        switch (rc) {
        case CURLE_PEER_FAILED_VERIFICATION:
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_UNSUPPORTED_PROTOCOL:
        case CURLE_URL_MALFORMAT:
        case CURLE_TOO_MANY_REDIRECTS:
        case CURLE_OUT_OF_MEMORY: return FAILED;
        default: return AGAIN;
        }
    }
    if (t->status == 416 && t->off > 0) {
        /* "nothing after what you have": either we have it all, or the file is another one now */
        if (t->range_total == t->off) return DONE;
        if (start_over(t, err) != OB_OK) return FAILED;
        (void)ob_err_set(err, OB_E_NETWORK, "the file on the server is shorter now");
        return AGAIN;
    }
    if (t->status != 200 && t->status != 206) {
        (void)http_error(t, err);
        bool passing = t->status == 408 || t->status == 425 || t->status == 429 ||
                       t->status >= 500;
        return passing ? AGAIN : FAILED;
    }
    if (!t->total || t->off == t->total) return DONE;
    (void)ob_err_set(err, OB_E_NETWORK, "the connection ended after %llu of %llu bytes",
                     (unsigned long long)t->off, (unsigned long long)t->total);
    return AGAIN;
}

/* ---- The loop ------------------------------------------------------------------------------- */

/* Sleep in short steps, so that a caller who wants to stop is heard. */
static bool pause_ms(const transfer *t, long ms)
{
    for (; ms > 0; ms -= 100) {
        struct timespec step = {.tv_nsec = OB_MIN(ms, 100L) * 1000000L};
        nanosleep(&step, NULL);
        if (!ob_hub_tell(t->job->opts, t->job->label, t->off, t->total)) return false;
    }
    return true;
}

static ob_status download(transfer *t, CURL *curl, ob_err *err)
{
    bool ever = false;
    for (int fruitless = 0;;) {
        long after_s = 0;
        CURLcode rc = perform(t, curl, &after_s);
        outcome what = judge(t, rc, err);
        if (what == DONE) return OB_OK;
        ever |= t->got_bytes;
        fruitless = t->got_bytes ? 0 : fruitless + 1;
        bool unreachable = !ever && t->job->has_fallback;
        if (what == FAILED || unreachable || fruitless >= MAX_FRUITLESS) return err->code;
        long ms = OB_MIN((long)FIRST_PAUSE_MS << OB_MAX(fruitless - 1, 0), (long)MAX_PAUSE_MS);
        ms = OB_MAX(ms, after_s * 1000);
        ob_hub_remark(t->job->opts, "%s: %s; trying again in %.1f s", t->job->label, err->text,
                      (double)ms / 1000);
        if (!pause_ms(t, ms)) return ob_err_set(err, OB_E_CANCELLED, "stopped");
    }
}

/* Compare what came with what was promised. CORRUPT: the .part file is of no use. */
static ob_status check(transfer *t, ob_err *err)
{
    ob_hub_fetch_job *job = t->job;
    char got[65];
    if (t->total && t->off != t->total)
        return ob_err_set(err, OB_E_CORRUPT, "%s: %llu bytes came instead of %llu", job->label,
                          (unsigned long long)t->off, (unsigned long long)t->total);
    OB_TRY(ob_hub_sha256(t->part, job->opts, got, err));
    const char *want = job->sha256[0] ? job->sha256 : t->linked_sha256;
    if (want[0] && strcmp(want, got) != 0)
        return ob_err_set(err, OB_E_CORRUPT, "%s: SHA-256 is %s, expected %s", job->label, got,
                          want);
    memcpy(job->sha256, got, sizeof got);
    job->n_bytes = t->off;
    return OB_OK;
}

static ob_status fetch(transfer *t, CURL *curl, ob_err *err)
{
    if (complete_before(t)) return OB_OK;
    OB_TRY(open_part(t, err));
    if (t->off) ob_hub_remark(t->job->opts, "%s: going on at %.1f MB", t->job->label,
                              (double)t->off / 1e6);
    OB_TRY(download(t, curl, err));
    bool resumed = t->resumed;
    ob_status s = check(t, err);
    if (s == OB_E_CORRUPT && resumed) {
        /* The old bytes may be to blame: once more, all of it. */
        ob_hub_remark(t->job->opts, "%s; starting over", err->text);
        OB_TRY(start_over(t, err));
        OB_TRY(download(t, curl, err));
        s = check(t, err);
    }
    if (s == OB_E_CORRUPT) {
        unlink(t->part);
        unlink(t->meta);
    }
    OB_TRY(s);
    OB_TRY(ob_hub_rename_synced(t->part, t->job->dest, err));
    t->total = t->off;
    return write_meta(t, t->job->sha256, err);
}

ob_status ob_hub_fetch(ob_hub_fetch_job *job, ob_err *err)
{
    pthread_once(&curl_once, curl_init);
    transfer *t = ob_calloc(1, sizeof *t);
    CURL *curl = curl_easy_init();
    ob_err local;
    if (!err) err = &local; /* the loop looks at it */
    ob_status s = OB_OK;
    if (!t || !curl) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a download");
        goto out;
    }
    t->job = job;
    t->fd = -1;
    OB_GOTO(ob_hub_pathf(t->part, err, "%s.part", job->dest));
    OB_GOTO(ob_hub_pathf(t->meta, err, "%s.part.json", job->dest));
    ob_log_debug("GET %s", job->url);
    s = fetch(t, curl, err);
    if (s != OB_OK && t->off == 0) {
        unlink(t->part);
        unlink(t->meta);
    }
out:
    if (t && t->fd >= 0) close(t->fd);
    ob_free(t);
    if (curl) curl_easy_cleanup(curl);
    return s;
}

void ob_hub_fetch_forget(const char *dest)
{
    ob_hub_path meta;
    if (ob_hub_pathf(meta, NULL, "%s.part.json", dest) == OB_OK) unlink(meta);
}
