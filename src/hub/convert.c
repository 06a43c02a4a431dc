/* A remote GGUF file becomes a local 1BP package without ever being on the disk.
 *
 * The head of each part comes through growing windows until fmt/ can read its directory; then the
 * tensors come in stretches of a few megabytes, several at a time, each written to its places in
 * DST.part as soon as it is whole. DST.part.log has a line for each stretch that was written, with a
 * hash of its bytes: so what an earlier run left is believed only where it is read back right, and
 * neither a kill nor a lost page makes a wrong package. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "hub/hub_int.h"
#include "hub/ranges.h"

enum {
    FIRST_WINDOW = 1 << 20,  /* of a head; doubles */
    STRETCH = 8 << 20,       /* bytes of one range of tensors */
    MAX_GAP = 64 << 10,      /* between two tensors of one stretch */
    N_WORKERS = 4,
};

typedef struct source { /* one part */
    ob_hub_remote remote;
    ob_buf head;   /* its first bytes, as far as the directory goes */
    ob_file *file; /* over head */
} source;

typedef struct stretch {
    int part;
    bool done;
    size_t first;  /* of `order`: its first tensor */
    uint64_t off;  /* in the part */
    size_t n_bytes;
} stretch;

typedef struct job {
    const ob_hub_pull_opts *opts;
    source *parts;
    int n_parts;
    ob_onebp_plan plan;
    size_t *order;         /* tensors by part and place in it */
    stretch *stretches;
    size_t n_stretches;
    ob_onebp_out out;
    ob_hub_path log_path;
    int log_fd;
    _Atomic uint64_t done; /* bytes of stretches that are here; relaxed: for the display */
    _Atomic bool stop;     /* relaxed: workers look at it now and then */

    pthread_mutex_t lock;  /* of the fields below */
    pthread_cond_t change;
    size_t next;           /* stretch to look at */
    int n_running;
    ob_status failed;
    ob_err why;
    char remark[640];      /* for the main thread to say; empty: nothing */
} job;

/* ---- heads ---------------------------------------------------------------------------------- */

static bool head_go_on(void *arg) { return ob_hub_tell(((job *)arg)->opts, "reading the head", 0, 0); }
static void head_remark(void *arg, const char *text) { ob_hub_remark(((job *)arg)->opts, "%s", text); }

/* More of the head, so that it has n bytes (or all of the file). */
static ob_status read_window(job *j, source *p, CURL *curl, size_t n, ob_err *err)
{
    const ob_hub_watch watch = {.arg = j, .go_on = head_go_on, .remark = head_remark};
    size_t have = p->head.len, got;
    if (p->remote.n_bytes) n = (size_t)OB_MIN((uint64_t)n, p->remote.n_bytes);
    if (ob_buf_reserve(&p->head, n - have) != OB_OK) return ob_buf_status(&p->head, err);
    OB_TRY(ob_hub_range_read(curl, &p->remote, have, n - have, (uint8_t *)p->head.data + have, &got,
                             &watch, err));
    p->head.len += got;
    p->head.data[p->head.len] = 0;
    return OB_OK;
}

static ob_status open_part(job *j, source *p, CURL *curl, ob_err *err)
{
    bool need_more = true;
    ob_status s = OB_OK;
    for (size_t n = FIRST_WINDOW; need_more; n *= 2) {
        OB_TRY(read_window(j, p, curl, n, err));
        s = ob_file_open_head(p->head.data, p->head.len, p->remote.n_bytes, &p->file, &need_more, err);
        if (s == OB_OK) return OB_OK;
    }
    return s;
}

static ob_status make_urls(job *j, const char *src, ob_hub_ref *ref, ob_err *err)
{
    int part = 1, n_parts = 1;
    OB_TRY(ob_hub_parse(src, ref, err));
    bool split = ob_hub_split(ref->file, &part, &n_parts);
    if (split && ref->kind == OB_HUB_URL && strpbrk(ref->path, "?#"))
        return ob_err_set(err, OB_E_UNSUPPORTED,
                          "a split file behind an address with a query cannot be followed");
    j->parts = ob_calloc((size_t)n_parts, sizeof *j->parts);
    if (!j->parts) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for %d parts", n_parts);
    j->n_parts = n_parts;
    const char *token = getenv("HF_TOKEN");
    for (int i = 0; i < n_parts; i++) {
        ob_hub_remote *r = &j->parts[i].remote;
        ob_buf url;
        ob_buf_init(&url, 4096);
        ob_buf_init(&j->parts[i].head, UINT32_MAX);
        if (split) ob_hub_split_name(ref->path, i + 1);
        if (ref->kind == OB_HUB_HF) {
            r->bearer = token && *token ? token : NULL;
            ob_status s = ob_hub_hf_url(ref, ref->path, &url, err);
            if (s != OB_OK) return s; /* nothing is in the buffer */
        } else {
            ob_buf_adds(&url, ref->path);
        }
        ob_status s = ob_buf_status(&url, err);
        r->url = s == OB_OK ? ob_buf_take(&url, NULL) : NULL;
        ob_buf_deinit(&url);
        OB_TRY(s);
    }
    return OB_OK;
}

static ob_status open_source(job *j, const char *src, ob_err *err)
{
    ob_hub_ref ref;
    OB_TRY(make_urls(j, src, &ref, err));
    CURL *curl = ob_http_new();
    ob_file **files = ob_calloc((size_t)j->n_parts, sizeof *files);
    ob_status s = OB_OK;
    if (!curl || !files) s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a download");
    for (int i = 0; s == OB_OK && i < j->n_parts; i++) {
        s = open_part(j, &j->parts[i], curl, err);
        files[i] = j->parts[i].file;
    }
    if (s == OB_OK) s = ob_onebp_plan_make(&j->plan, files, j->n_parts, err);
    ob_free(files);
    if (curl) curl_easy_cleanup(curl);
    return s;
}

/* ---- stretches ------------------------------------------------------------------------------ */

static int by_place(const void *a, const void *b, void *arg)
{
    const ob_onebp_piece *pieces = arg;
    const ob_onebp_piece *x = &pieces[*(const size_t *)a], *y = &pieces[*(const size_t *)b];
    if (x->part != y->part) return (x->part > y->part) - (x->part < y->part);
    return (x->src_off > y->src_off) - (x->src_off < y->src_off);
}

/* The stretch under construction takes n more bytes of tensor `k` at `off`, or a new one begins. */
static void extend(job *j, size_t k, int part, uint64_t off, size_t n)
{
    stretch *last = j->n_stretches ? &j->stretches[j->n_stretches - 1] : NULL;
    uint64_t end = last ? last->off + last->n_bytes : 0;
    if (last && last->part == part && off - end <= MAX_GAP && off + n - last->off <= STRETCH) {
        last->n_bytes = (size_t)(off + n - last->off);
        return;
    }
    j->stretches[j->n_stretches++] = (stretch){.part = part, .first = k, .off = off, .n_bytes = n};
}

static ob_status cut(job *j, ob_err *err)
{
    const ob_onebp_plan *p = &j->plan;
    size_t n_max = p->n_tensors + (size_t)(p->n_weight_bytes / STRETCH) + 1;
    j->order = ob_calloc(p->n_tensors, sizeof *j->order);
    j->stretches = ob_calloc(n_max, sizeof *j->stretches);
    if (!j->order || !j->stretches)
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a list of %zu ranges", n_max);
    for (size_t i = 0; i < p->n_tensors; i++) j->order[i] = i;
    qsort_r(j->order, p->n_tensors, sizeof *j->order, by_place, p->pieces);
    for (size_t k = 0; k < p->n_tensors; k++) {
        const ob_onebp_piece *t = &p->pieces[j->order[k]];
        for (uint64_t at = 0; at < t->n_bytes; at += STRETCH)
            extend(j, k, t->part, t->src_off + at, (size_t)OB_MIN(t->n_bytes - at, (uint64_t)STRETCH));
    }
    return OB_OK;
}

/* The tensors' bytes in a stretch, one after the other: false when there are no more. *k starts as
 * s->first. They are n bytes at `from` in the stretch and at `to` in the package. */
static bool next_run(const job *j, const stretch *s, size_t *k, size_t *from, uint64_t *to, size_t *n)
{
    if (*k >= j->plan.n_tensors) return false;
    const ob_onebp_piece *t = &j->plan.pieces[j->order[*k]];
    uint64_t begin = OB_MAX(t->src_off, s->off);
    uint64_t end = OB_MIN(t->src_off + t->n_bytes, s->off + s->n_bytes);
    if (t->part != s->part || begin >= end) return false;
    *from = (size_t)(begin - s->off);
    *to = t->dst_off + (begin - t->src_off);
    *n = (size_t)(end - begin);
    ++*k;
    return true;
}

static uint64_t hash_stretch(const job *j, const stretch *s, const uint8_t *bytes)
{
    uint64_t h = 0, to;
    size_t k = s->first, from, n;
    while (next_run(j, s, &k, &from, &to, &n)) h = XXH3_64bits_withSeed(bytes + from, n, h);
    return h;
}

static ob_status write_stretch(const job *j, const stretch *s, const uint8_t *bytes, ob_err *err)
{
    uint64_t to;
    size_t k = s->first, from, n;
    while (next_run(j, s, &k, &from, &to, &n))
        OB_TRY(ob_onebp_out_write(&j->out, to, bytes + from, n, err));
    return OB_OK;
}

/* What an earlier run left of it; false when it is not all there. */
static bool read_back(const job *j, const stretch *s, uint8_t *bytes)
{
    uint64_t to;
    size_t k = s->first, from, n;
    while (next_run(j, s, &k, &from, &to, &n))
        if (pread(j->out.fd, bytes + from, n, (off_t)to) != (ssize_t)n) return false;
    return true;
}

/* ---- what an earlier run left ---------------------------------------------------------------- */

/* Whatever makes two runs work on the same bytes in the same stretches. */
static uint64_t identity(const job *j, const char *src)
{
    uint64_t h = XXH3_64bits_withSeed(src, strlen(src), STRETCH);
    for (int i = 0; i < j->n_parts; i++) {
        const ob_hub_remote *r = &j->parts[i].remote;
        h = XXH3_64bits_withSeed(r->id, strlen(r->id), h);
        h = XXH3_64bits_withSeed(&r->n_bytes, sizeof r->n_bytes, h);
    }
    return XXH3_64bits_withSeed(j->plan.head.data, j->plan.head.len, h);
}

static bool all_identified(const job *j)
{
    for (int i = 0; i < j->n_parts; i++)
        if (!j->parts[i].remote.id[0]) return false;
    return true;
}

/* A server without ETags does not say whether the file is still the one of the earlier run: one
 * stretch of it is fetched again. */
static ob_status still_the_same(job *j, stretch *s, uint64_t hash, uint8_t *bytes, bool *same,
                                ob_err *err)
{
    const ob_hub_watch watch = {.arg = j, .go_on = head_go_on, .remark = head_remark};
    size_t got;
    CURL *curl = ob_http_new();
    if (!curl) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a download");
    ob_status st = ob_hub_range_read(curl, &j->parts[s->part].remote, s->off, s->n_bytes, bytes, &got,
                                     &watch, err);
    curl_easy_cleanup(curl);
    *same = st == OB_OK && hash_stretch(j, s, bytes) == hash;
    return st;
}

/* Mark the stretches that the log names and that read back right. */
static ob_status believe_log(job *j, FILE *log, uint8_t *bytes, ob_err *err)
{
    size_t i;
    uint64_t hash, sample_hash = 0, done = 0;
    char line[64], end;
    stretch *sample = NULL; /* the largest */
    while (fgets(line, sizeof line, log)) {
        if (sscanf(line, "%zu %" SCNx64 "%c", &i, &hash, &end) != 3 || end != '\n') continue;
        if (i >= j->n_stretches || j->stretches[i].done) continue;
        stretch *s = &j->stretches[i];
        if (!read_back(j, s, bytes) || hash_stretch(j, s, bytes) != hash) continue;
        if (!sample || s->n_bytes > sample->n_bytes) sample = s, sample_hash = hash;
        s->done = true;
        done += s->n_bytes;
    }
    bool same = true;
    if (sample && !all_identified(j))
        OB_TRY(still_the_same(j, sample, sample_hash, bytes, &same, err));
    for (i = 0; !same && i < j->n_stretches; i++) j->stretches[i].done = false;
    atomic_store_explicit(&j->done, same ? done : 0, memory_order_relaxed);
    return OB_OK;
}

static ob_status start_log(job *j, uint64_t id, ob_err *err)
{
    char line[64];
    int n = snprintf(line, sizeof line, "1bp-part 1 %016" PRIx64 "\n", id);
    j->log_fd = open(j->log_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (j->log_fd < 0 || write(j->log_fd, line, (size_t)n) != n)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.300s", j->log_path);
    return OB_OK;
}

static ob_status resume(job *j, const char *src, ob_err *err)
{
    char line[64];
    uint64_t id = identity(j, src), told = 0;
    ob_status s = OB_OK;
    FILE *log = fopen(j->log_path, "r");
    bool ours = log && fgets(line, sizeof line, log) &&
                sscanf(line, "1bp-part 1 %" SCNx64, &told) == 1 && told == id;
    if (ours) {
        uint8_t *bytes = ob_malloc(STRETCH);
        s = bytes ? believe_log(j, log, bytes, err)
                  : ob_err_set(err, OB_E_NO_MEMORY, "no memory for a range");
        ob_free(bytes);
    }
    if (log) fclose(log);
    OB_TRY(s);
    uint64_t done = atomic_load_explicit(&j->done, memory_order_relaxed);
    OB_TRY(ob_onebp_out_begin(&j->out, &j->plan, done > 0, err));
    if (done == 0) return start_log(j, id, err);
    ob_hub_remark(j->opts, "%s: going on after %.1f MB", j->out.dst, (double)done / 1e6);
    j->log_fd = open(j->log_path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (j->log_fd < 0) return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.300s", j->log_path);
    /* A line that a kill cut in two must not join the next one. */
    if (write(j->log_fd, "\n", 1) != 1)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.300s", j->log_path);
    return OB_OK;
}

/* ---- workers -------------------------------------------------------------------------------- */

static bool worker_go_on(void *arg)
{
    return !atomic_load_explicit(&((job *)arg)->stop, memory_order_relaxed);
}

static void worker_got(void *arg, size_t n)
{
    atomic_fetch_add_explicit(&((job *)arg)->done, n, memory_order_relaxed);
}

static void worker_remark(void *arg, const char *text)
{
    job *j = arg;
    pthread_mutex_lock(&j->lock);
    snprintf(j->remark, sizeof j->remark, "%s", text);
    pthread_cond_signal(&j->change);
    pthread_mutex_unlock(&j->lock);
}

static stretch *take(job *j)
{
    stretch *s = NULL;
    pthread_mutex_lock(&j->lock);
    while (j->next < j->n_stretches && j->stretches[j->next].done) j->next++;
    if (j->next < j->n_stretches && j->failed == OB_OK) s = &j->stretches[j->next++];
    pthread_mutex_unlock(&j->lock);
    return s;
}

static ob_status do_stretch(job *j, const stretch *s, CURL *curl, uint8_t *bytes, ob_err *err)
{
    const ob_hub_watch watch = {j, worker_go_on, worker_got, worker_remark};
    size_t got;
    char line[64];
    OB_TRY(ob_hub_range_read(curl, &j->parts[s->part].remote, s->off, s->n_bytes, bytes, &got, &watch,
                             err));
    OB_TRY(write_stretch(j, s, bytes, err));
    int n = snprintf(line, sizeof line, "%zu %016" PRIx64 "\n", (size_t)(s - j->stretches),
                     hash_stretch(j, s, bytes));
    if (write(j->log_fd, line, (size_t)n) != n) /* one call: lines of two threads do not mix */
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.300s", j->log_path);
    return OB_OK;
}

static void *work(void *arg)
{
    job *j = arg;
    ob_err err;
    ob_status s = OB_OK;
    CURL *curl = ob_http_new();
    uint8_t *bytes = ob_malloc(STRETCH);
    if (!curl || !bytes) s = ob_err_set(&err, OB_E_NO_MEMORY, "no memory for a download");
    for (stretch *todo; s == OB_OK && (todo = take(j));) s = do_stretch(j, todo, curl, bytes, &err);
    ob_free(bytes);
    if (curl) curl_easy_cleanup(curl);
    pthread_mutex_lock(&j->lock);
    if (s != OB_OK && j->failed == OB_OK) {
        j->failed = s;
        j->why = err;
        atomic_store_explicit(&j->stop, true, memory_order_relaxed);
    }
    j->n_running--;
    pthread_cond_signal(&j->change);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

/* The lock is held, except while the callbacks run. */
static void report(job *j)
{
    char text[sizeof j->remark];
    memcpy(text, j->remark, sizeof text);
    j->remark[0] = 0;
    pthread_mutex_unlock(&j->lock);
    if (text[0]) ob_hub_remark(j->opts, "%s", text);
    uint64_t done = atomic_load_explicit(&j->done, memory_order_relaxed), total = 0;
    for (size_t i = 0; i < j->n_stretches; i++) total += j->stretches[i].n_bytes;
    bool go_on = ob_hub_tell(j->opts, "converting", done, total);
    pthread_mutex_lock(&j->lock);
    if (go_on || j->failed != OB_OK) return;
    j->failed = ob_err_set(&j->why, OB_E_CANCELLED, "stopped");
    atomic_store_explicit(&j->stop, true, memory_order_relaxed);
}

static ob_status run_workers(job *j, ob_err *err)
{
    pthread_t threads[N_WORKERS];
    int n = 0;
    pthread_mutex_lock(&j->lock);
    while (n < N_WORKERS && pthread_create(&threads[n], NULL, work, j) == 0) n++;
    j->n_running = n;
    if (n == 0) j->failed = ob_err_set(&j->why, OB_E_NO_MEMORY, "cannot start a thread");
    while (j->n_running > 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&j->change, &j->lock, &until);
        report(j);
    }
    ob_status s = j->failed;
    pthread_mutex_unlock(&j->lock);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    if (s != OB_OK && err) *err = j->why;
    return s;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static void job_free(job *j, bool keep)
{
    ob_onebp_out_close(&j->out, keep);
    if (j->log_fd >= 0) close(j->log_fd);
    if (!keep && j->log_path[0]) unlink(j->log_path);
    for (int i = 0; i < j->n_parts; i++) {
        ob_file_close(j->parts[i].file);
        ob_buf_deinit(&j->parts[i].head);
        ob_free(j->parts[i].remote.url);
    }
    ob_free(j->parts);
    ob_onebp_plan_deinit(&j->plan);
    ob_free(j->order);
    ob_free(j->stretches);
    pthread_mutex_destroy(&j->lock);
    pthread_cond_destroy(&j->change);
    ob_free(j);
}

ob_status ob_hub_convert(const char *src, const char *dst, const ob_hub_pull_opts *opts,
                         ob_onebp_made *made, ob_err *err)
{
    static const ob_hub_pull_opts none;
    ob_status s = OB_OK;
    bool ours = false; /* DST.part and its log */
    job *j = ob_calloc(1, sizeof *j);
    if (!j) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a conversion");
    j->opts = opts ? opts : &none;
    j->out.fd = j->log_fd = -1;
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->change, NULL);
    OB_GOTO(ob_onebp_out_open(&j->out, dst, j->opts->force, err));
    ours = true;
    OB_GOTO(open_source(j, src, err));
    OB_GOTO(cut(j, err));
    OB_GOTO(ob_hub_pathf(j->log_path, err, "%s.part.log", dst));
    OB_GOTO(resume(j, src, err));
    OB_GOTO(run_workers(j, err));
    OB_GOTO(ob_onebp_out_finish(&j->out, err));
    *made = (ob_onebp_made){j->plan.n_tensors, j->plan.n_kv, j->plan.n_weight_bytes};
    ours = false;
    unlink(j->log_path);
out:;
    /* What has come is kept for the next try, and what came before this one, too. */
    bool keep = ours && lseek(j->out.fd, 0, SEEK_END) > 0;
    job_free(j, keep);
    return s;
}
