/* One file over HTTP: resumable, checked, retried.
 *
 * A request for the rest of a file is trusted only as far as the answer proves it: 206 must begin
 * where we stopped, 200 means the server sends everything again, and the ETag of the first part goes
 * along as If-Range so that a file that changed in between starts over. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "hub/http_int.h"
#include "hub/hub_int.h"

enum { HASH_CHUNK = 1 << 20 };
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

    ob_http_answer answer;
    bool in_body;

    ob_status stop; /* why a callback ended the transfer */
    ob_err stop_err;
} transfer;

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
              !strcmp(url, t->job->url) && ob_http_is_sha256(sha, strlen(sha)) &&
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

static size_t on_header(char *data, size_t size, size_t n, void *arg)
{
    transfer *t = arg;
    ob_http_answer_line(&t->answer, data, size * n);
    return size * n;
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
    const ob_http_answer *a = &t->answer;
    uint64_t total = a->has_length ? a->length : 0;
    if (a->status == 206) {
        if (!a->has_range || a->range_start != t->off ||
            (t->total && a->range_total && a->range_total != t->total)) {
            OB_TRY(start_over(t, err));
            return ob_err_set(err, OB_E_NETWORK, "the server sent another range than asked for");
        }
        total = a->range_total;
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
    if (a->etag[0] || a->status == 200) snprintf(t->etag, sizeof t->etag, "%s", a->etag);
    return write_meta(t, "", err);
}

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    transfer *t = arg;
    size_t len = size * n;
    if (t->answer.status != 200 && t->answer.status != 206) return len; /* the text of an error page */
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

static bool add_request_headers(transfer *t, struct curl_slist **list)
{
    if (t->job->bearer && !ob_http_add_bearer(list, t->job->bearer)) return false;
    bool strong = t->etag[0] == '"';
    return t->off == 0 || !strong || ob_http_add_header(list, "If-Range", t->etag);
}

static CURLcode perform(transfer *t, CURL *curl, long *retry_after_s)
{
    struct curl_slist *headers = NULL;
    char range[32], reason[CURL_ERROR_SIZE] = "";
    t->answer.status = 0;
    t->in_body = false;
    t->stop = OB_OK;
    t->got_bytes = false;
    bool ok = add_request_headers(t, &headers);
    ob_http_setup(curl, t->job->url, headers, reason);
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
    *retry_after_s = ob_http_retry_after_s(curl);
    if (rc != CURLE_OK && t->stop == OB_OK)
        (void)ob_err_set(&t->stop_err, OB_E_NETWORK, "%s",
                         *reason ? reason : curl_easy_strerror(rc));
    curl_slist_free_all(headers);
    return rc;
}

typedef enum outcome { DONE, AGAIN, FAILED } outcome;

/* What a finished request means. With AGAIN and FAILED, *err says why. */
static outcome judge(transfer *t, CURLcode rc, ob_err *err)
{
    if (t->stop != OB_OK || rc != CURLE_OK) {
        *err = t->stop_err;
        if (t->stop != OB_OK) return t->stop == OB_E_NETWORK ? AGAIN : FAILED;
        return ob_http_curl_is_final(rc) ? FAILED : AGAIN;
    }
    const ob_http_answer *a = &t->answer;
    if (a->status == 416 && t->off > 0) {
        /* "nothing after what you have": either we have it all, or the file is another one now */
        if (a->range_total == t->off) return DONE;
        if (start_over(t, err) != OB_OK) return FAILED;
        (void)ob_err_set(err, OB_E_NETWORK, "the file on the server is shorter now");
        return AGAIN;
    }
    if (a->status != 200 && a->status != 206) {
        (void)ob_http_error(t->job->url, a->status, t->job->bearer != NULL, err);
        return ob_http_status_is_passing(a->status) ? AGAIN : FAILED;
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
        if (what == FAILED || unreachable || fruitless >= OB_HTTP_MAX_FRUITLESS) return err->code;
        long ms = ob_http_pause_ms(fruitless, after_s);
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
    const char *want = job->sha256[0] ? job->sha256 : t->answer.linked_sha256;
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
    transfer *t = ob_calloc(1, sizeof *t);
    CURL *curl = ob_http_new();
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
