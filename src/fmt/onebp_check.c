/* Is a package what its GGUF file says, and does it still have its sums? */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "fmt/fmt_int.h"
#include "fmt/onebp.h"

enum { STEP = 16 << 20 }; /* bytes hashed between two looks at progress */

static ob_shown show_name(const char *name) { return ob_show(name, strlen(name)); }

/* ---- against the GGUF file ------------------------------------------------------------------ */

typedef struct checker {
    ob_onebp_say say;
    void *arg;
    ob_onebp_report *report;
} checker;

static void OB_PRINTF(2, 3) wrong(const checker *c, const char *fmt, ...)
{
    char line[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    c->report->n_wrong++;
    c->say(c->arg, line);
}

/* Where two byte strings of one length begin to differ. */
static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
    size_t i = 0;
    for (; i + 4096 <= n && memcmp(a + i, b + i, 4096) == 0; i += 4096) {}
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static void compare_tensor(const checker *c, const ob_tensor *g, const ob_tensor *p)
{
    ob_shown name = show_name(g->name);
    if (strcmp(g->name, p->name) != 0) {
        wrong(c, "tensor '%s': the package has '%s' in its place", name.text,
              show_name(p->name).text);
        return;
    }
    if (g->n_dims != p->n_dims || memcmp(g->ne, p->ne, sizeof g->ne) != 0) {
        wrong(c, "tensor '%s': the shape differs", name.text);
        return;
    }
    if (g->type != p->type) {
        wrong(c, "tensor '%s': the type is %s instead of %s", name.text,
              ob_fmt_type_name(p->type), ob_fmt_type_name(g->type));
        return;
    }
    if (g->n_bytes != p->n_bytes) {
        wrong(c, "tensor '%s': %zu bytes instead of %zu", name.text, p->n_bytes, g->n_bytes);
        return;
    }
    if (p->file_off % OB_ONEBP_ALIGNMENT != 0)
        wrong(c, "tensor '%s': not at a multiple of %d bytes", name.text, OB_ONEBP_ALIGNMENT);
    size_t at = first_difference(g->data, p->data, g->n_bytes);
    if (at < g->n_bytes)
        wrong(c, "tensor '%s': the bytes differ, first at %zu of %zu (byte %" PRIu64 " of the package)",
              name.text, at, g->n_bytes, p->file_off + at);
}

static void compare_metadata(const checker *c, const ob_file *g, const ob_file *p)
{
    ob_str a = ob_file_kv_bytes(g), b = ob_file_kv_bytes(p);
    if (g->pairs.n != p->pairs.n)
        wrong(c, "metadata: %zu keys instead of %zu", p->pairs.n, g->pairs.n);
    else if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
        wrong(c, "metadata: the block of keys and values differs");
}

/* What no tensor and no key has: header, padding, length. */
static void compare_rest(const checker *c, const ob_onebp_plan *plan, const ob_file *p)
{
    const ob_part *part = &p->parts[0];
    size_t at = first_difference((const uint8_t *)plan->head.data, part->data,
                                 OB_MIN(plan->head.len, part->len));
    if (at < plan->head.len)
        wrong(c, "%s: byte %zu is not what conversion gives",
              at < OB_ONEBP_HEADER_BYTES ? "header" : "index", at);
    if (part->len != plan->n_bytes)
        wrong(c, "the file has %zu bytes instead of %" PRIu64, part->len, plan->n_bytes);
    uint64_t end = plan->head.len;
    for (size_t i = 0; i < plan->n_tensors; i++) {
        const ob_onebp_piece *t = &plan->pieces[i];
        for (uint64_t k = end; k < t->dst_off && k < part->len; k++) {
            if (part->data[k] == 0) continue;
            wrong(c, "the padding before tensor '%s' is not zero (byte %" PRIu64 ")",
                  show_name(t->name).text, k);
            break;
        }
        end = t->dst_off + t->n_bytes;
    }
}

static void compare(const checker *c, const ob_onebp_plan *plan, const ob_file *g, const ob_file *p)
{
    compare_metadata(c, g, p);
    if (g->n_tensors != p->n_tensors)
        wrong(c, "%zu tensors instead of %zu", p->n_tensors, g->n_tensors);
    for (size_t i = 0; i < OB_MIN(g->n_tensors, p->n_tensors); i++) {
        compare_tensor(c, &g->tensors[i], &p->tensors[i]);
        ob_file_release_pages(g, &g->tensors[i]);
        ob_file_release_pages(p, &p->tensors[i]);
    }
    if (c->report->n_wrong == 0) compare_rest(c, plan, p);
}

static ob_status compare_sums(const checker *c, const char *package, const char *sums, ob_err *err)
{
    ob_err why;
    ob_status s = ob_onebp_sums_verify(package, sums, NULL, NULL, &why);
    if (s == OB_E_NO_MEMORY) {
        if (err) *err = why;
        return s;
    }
    if (s != OB_OK) wrong(c, "%s", why.text);
    return OB_OK;
}

ob_status ob_onebp_check(const char *gguf, const char *package, const char *sums, ob_onebp_say say,
                         void *arg, ob_onebp_report *out, ob_err *err)
{
    checker c = {.say = say, .arg = arg, .report = out};
    ob_file *g = NULL, *p = NULL;
    ob_onebp_plan plan = {0};
    ob_err why;
    *out = (ob_onebp_report){0};
    ob_status s = ob_file_open(gguf, 0, &g, err);
    if (s == OB_OK) {
        s = ob_onebp_plan_make(&plan, &g, 1, err);
        if (s != OB_OK) s = ob_err_prefix(err, s, "%.200s", gguf);
    }
    if (s != OB_OK) goto out;
    s = ob_file_open(package, 0, &p, &why);
    if (s == OB_OK && strncmp(p->format, "1BP", 3) != 0)
        s = ob_err_set(&why, OB_E_FORMAT, "%.300s: it is %s, not a 1BP package", package, p->format);
    if (s == OB_E_NO_MEMORY || s == OB_E_NOT_FOUND) {
        if (err) *err = why;
        goto out;
    }
    if (s != OB_OK) {
        wrong(&c, "%s", why.text);
        s = OB_OK;
        goto out;
    }
    out->n_tensors = p->n_tensors;
    out->n_kv = p->pairs.n;
    compare(&c, &plan, g, p);
    if (sums) s = compare_sums(&c, package, sums, err);
out:
    ob_onebp_plan_deinit(&plan);
    ob_file_close(g);
    ob_file_close(p);
    return s;
}

/* ---- sums ----------------------------------------------------------------------------------- */

typedef struct hasher {
    EVP_MD_CTX *md;
    ob_onebp_progress progress;
    void *arg;
    uint64_t done, total;
} hasher;

static ob_status hash(hasher *h, const uint8_t *data, size_t n, char out[65], ob_err *err)
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    if (EVP_DigestInit_ex(h->md, EVP_sha256(), NULL) != 1)
        return ob_err_set(err, OB_E_INTERNAL, "SHA-256 is not available in OpenSSL");
    for (size_t at = 0; at < n; at += STEP) {
        size_t k = OB_MIN(n - at, (size_t)STEP);
        EVP_DigestUpdate(h->md, data + at, k);
        h->done += k;
        if (h->progress && !h->progress(h->arg, h->done, h->total))
            return ob_err_set(err, OB_E_CANCELLED, "stopped");
    }
    EVP_DigestFinal_ex(h->md, digest, &len);
    for (unsigned i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
    return OB_OK;
}

/* All bytes before the first tensor; the whole file when there is none. */
static size_t head_bytes(const ob_file *p)
{
    uint64_t n = p->parts[0].len;
    for (size_t i = 0; i < p->n_tensors; i++) n = OB_MIN(n, p->tensors[i].file_off);
    return (size_t)n;
}

static ob_status make_sums(const ob_file *p, hasher *h, ob_buf *out, ob_err *err)
{
    char hex[65];
    ob_buf_adds(out, "1bp-sums 1 sha256\n");
    h->total = p->parts[0].len;
    OB_TRY(hash(h, p->parts[0].data, head_bytes(p), hex, err));
    ob_buf_addf(out, "%s head\n", hex);
    for (size_t i = 0; i < p->n_tensors; i++) {
        const ob_tensor *t = &p->tensors[i];
        if (strchr(t->name, '\n'))
            return ob_err_set(err, OB_E_UNSUPPORTED, "tensor %zu has a line break in its name", i);
        OB_TRY(hash(h, t->data, t->n_bytes, hex, err));
        ob_file_release_pages(p, t);
        ob_buf_addf(out, "%s tensor %s\n", hex, t->name);
    }
    return ob_buf_status(out, err);
}

/* The sums as they are now. */
static ob_status sums_of(const char *package, ob_onebp_progress progress, void *arg, ob_buf *out,
                         ob_err *err)
{
    ob_file *p = NULL;
    hasher h = {.md = EVP_MD_CTX_new(), .progress = progress, .arg = arg};
    ob_status s = OB_OK;
    if (!h.md) s = ob_err_set(err, OB_E_NO_MEMORY, "no memory for a checksum");
    if (s == OB_OK) s = ob_file_open(package, 0, &p, err);
    if (s == OB_OK && strncmp(p->format, "1BP", 3) != 0)
        s = ob_err_set(err, OB_E_UNSUPPORTED, "%.300s: it is %s; sums belong to 1BP packages",
                       package, p->format);
    if (s == OB_OK) s = make_sums(p, &h, out, err);
    ob_file_close(p);
    EVP_MD_CTX_free(h.md);
    return s;
}

ob_status ob_onebp_sums_write(const char *package, const char *sums, ob_onebp_progress progress,
                              void *arg, ob_err *err)
{
    ob_buf text, part;
    ob_status s = OB_OK;
    FILE *f = NULL;
    ob_buf_init(&text, OB_MAX_SUMS_BYTES);
    ob_buf_init(&part, 1 << 16);
    OB_GOTO(sums_of(package, progress, arg, &text, err));
    ob_buf_addf(&part, "%s.part", sums);
    OB_GOTO(ob_buf_status(&part, err));
    f = fopen(ob_buf_str(&part), "w");
    bool ok = f && fwrite(text.data, 1, text.len, f) == text.len && fflush(f) == 0 &&
              fsync(fileno(f)) == 0;
    int why = errno;
    if (f) ok &= fclose(f) == 0;
    if (ok && rename(ob_buf_str(&part), sums) != 0) ok = false, why = errno;
    if (!ok) {
        unlink(ob_buf_str(&part));
        s = ob_err_set_errno(err, OB_E_IO, why, "cannot write %.300s", sums);
    }
out:
    ob_buf_deinit(&part);
    ob_buf_deinit(&text);
    return s;
}

static ob_status read_text(const char *path, ob_buf *out, ob_err *err)
{
    char chunk[16384];
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ob_err_set_errno(err, errno == ENOENT ? OB_E_NOT_FOUND : OB_E_IO, errno,
                                "cannot open %.300s", path);
    while ((n = read(fd, chunk, sizeof chunk)) > 0 && out->failed == OB_OK)
        ob_buf_add(out, chunk, (size_t)n);
    int why = errno;
    close(fd);
    if (n < 0) return ob_err_set_errno(err, OB_E_IO, why, "cannot read %.300s", path);
    return ob_buf_status(out, err);
}

/* Compare line by line, so that the first difference has a name. */
static ob_status compare_lines(const char *want, const char *have, const char *sums, ob_err *err)
{
    for (size_t line = 0; *want || *have; line++) {
        size_t n = strcspn(want, "\n"), m = strcspn(have, "\n");
        if (n != m || memcmp(want, have, n) != 0) {
            const char *name = m > 65 + 7 && !strncmp(have + 65, "tensor ", 7) ? have + 65 + 7 : NULL;
            /* The lines must speak of the same thing, else the sums are of another package. */
            if (line == 0 || n != m || n < 66 || memcmp(want + 64, have + 64, n - 64) != 0)
                return ob_err_set(err, OB_E_FORMAT,
                                  "%.300s: line %zu does not belong to this package", sums, line + 1);
            if (!name)
                return ob_err_set(err, OB_E_CORRUPT,
                                  "header, index or metadata: SHA-256 is not that of %.300s", sums);
            return ob_err_set(err, OB_E_CORRUPT, "tensor '%s': SHA-256 is not that of %.300s",
                              ob_show(name, m - (size_t)(name - have)).text, sums);
        }
        want += n + (want[n] != 0);
        have += m + (have[m] != 0);
    }
    return OB_OK;
}

ob_status ob_onebp_sums_verify(const char *package, const char *sums, ob_onebp_progress progress,
                               void *arg, ob_err *err)
{
    ob_buf want, have;
    ob_status s = OB_OK;
    ob_buf_init(&want, OB_MAX_SUMS_BYTES);
    ob_buf_init(&have, OB_MAX_SUMS_BYTES);
    OB_GOTO(read_text(sums, &want, err));
    OB_GOTO(sums_of(package, progress, arg, &have, err));
    s = compare_lines(ob_buf_str(&want), ob_buf_str(&have), sums, err);
out:
    ob_buf_deinit(&want);
    ob_buf_deinit(&have);
    return s;
}
