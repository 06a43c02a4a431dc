/* Pictures in a request's messages (worker).
 *
 *   image_url part -> bytes (data:, file:, http:) -> pixels -> the family's rows and marks, in an ob_draft
 *
 * In the messages a text part with a mark takes the picture's place; it goes through the template like any text, and
 * ob_draft_add_marked puts the draft where the mark comes out. The mark holds 128 random bits, so no text of a client
 * can pass for one. Where bytes may come from is the server's choice: only the request itself, unless a folder
 * (--image-dir) or the network (--image-urls) was opened. */
#include "serve/serve_int.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/math.h"

enum { FETCH_TIMEOUT_S = 20, FETCH_CONNECT_S = 5, FETCH_REDIRECTS = 3 };

/* --- data: --------------------------------------------------------------------------------------- */

static int digit64(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool ob_serve_base64(const char *s, size_t len, ob_buf *out)
{
    if (len && len % 4 == 0 && s[len - 1] == '=') {
        len--;
        if (s[len - 1] == '=') len--;
    }
    if (len % 4 == 1 || ob_buf_reserve(out, len / 4 * 3 + 3) != OB_OK) return false;
    uint32_t bits = 0;
    for (size_t i = 0; i < len; i++) {
        const int d = digit64(s[i]);
        if (d < 0) return false;
        bits = bits << 6 | (uint32_t)d;
        if (i % 4 != 3) continue;
        const char three[3] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
        ob_buf_add(out, three, 3);
    }
    const size_t rest = len % 4;
    if (rest) bits <<= 6 * (4 - rest);
    const char two[2] = {(char)(bits >> 16), (char)(bits >> 8)};
    if (rest) ob_buf_add(out, two, rest - 1);
    return out->failed == OB_OK;
}

static ob_status read_data(ob_job *job, const char *url, size_t len, ob_buf *out)
{
    const char *comma = memchr(url, ',', OB_MIN(len, (size_t)200));
    if (!comma || comma - url < 7 || memcmp(comma - 7, ";base64", 7) != 0)
        return ob_job_fail(job, "messages", OB_E_INVALID,
                           "a picture's data: URL must be data:image/TYPE;base64, and then the data");
    comma++;
    if (!ob_serve_base64(comma, len - (size_t)(comma - url), out))
        return out->failed == OB_OK
                   ? ob_job_fail(job, "messages", OB_E_INVALID, "the data of a picture are not base64")
                   : ob_job_fail(job, "messages", out->failed, "the data of a picture are too large (at most %u bytes)",
                                 OB_MAX_IMAGE_BYTES);
    return OB_OK;
}

/* --- file: --------------------------------------------------------------------------------------- */

static ob_status read_file(ob_job *job, const char *path, ob_buf *out)
{
    struct stat st;
    char bytes[1 << 14];
    FILE *f = fopen(path, "rbe");
    if (!f || fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > (off_t)OB_MAX_IMAGE_BYTES) {
        if (f) fclose(f);
        return ob_job_fail(job, "messages", OB_E_INVALID, "a picture's file cannot be read, or has more than %u bytes",
                           OB_MAX_IMAGE_BYTES);
    }
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, f)) > 0;) ob_buf_add(out, bytes, n);
    fclose(f);
    if (out->failed) return ob_job_fail(job, "messages", out->failed, "no memory for a picture");
    return OB_OK;
}

/* The file of a file: URL, which must lie within --image-dir when all links are followed. */
static ob_status read_local(ob_job *job, const char *url, ob_buf *out)
{
    const char *dir = job->srv->params.image_dir;
    char wanted[PATH_MAX], real[PATH_MAX], top[PATH_MAX];
    ob_sv name = {url + strlen("file://"), strlen(url) - strlen("file://")};
    if (!dir)
        return ob_job_fail(job, "messages", OB_E_INVALID,
                           "pictures from files are not allowed here: send a data: URL, or start the server with --image-dir");
    char decoded[PATH_MAX / 2];
    if (!ob_http_percent_decode(name, decoded, sizeof decoded))
        return ob_job_fail(job, "messages", OB_E_INVALID, "a picture's file: URL is malformed");
    const int n = *decoded == '/' ? snprintf(wanted, sizeof wanted, "%s", decoded)
                                  : snprintf(wanted, sizeof wanted, "%s/%s", dir, decoded);
    const size_t n_top = realpath(dir, top) ? strlen(top) : 0;
    /* One text for what is not there and what is elsewhere: nothing is told about other folders. */
    if (n < 0 || (size_t)n >= sizeof wanted || !n_top || !realpath(wanted, real) || strncmp(real, top, n_top) != 0 ||
        real[n_top] != '/')
        return ob_job_fail(job, "messages", OB_E_INVALID, "there is no such picture in the server's --image-dir");
    return read_file(job, real, out);
}

/* --- http: --------------------------------------------------------------------------------------- */

static bool is_private4(uint32_t a) /* host order */
{
    return a >> 24 == 0 || a >> 24 == 10 || a >> 24 == 127 || a >> 28 >= 0xe || a >> 16 == 0xa9fe || a >> 16 == 0xc0a8 ||
           a >> 20 == 0xac1 || a >> 22 == 0x191 || a >> 8 == 0xc00000; /* 172.16/12, 100.64/10, 192.0.0/24 */
}

/* Is it an address of this machine, of a network behind it, or of no single host? */
bool ob_serve_is_private(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) return is_private4(ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr));
    if (a->sa_family != AF_INET6) return true;
    const uint8_t *b = ((const struct sockaddr_in6 *)(const void *)a)->sin6_addr.s6_addr;
    static const uint8_t zero[10];
    if (!memcmp(b, zero, 10)) { /* ::, ::1, and IPv4 inside */
        const uint32_t v4 = (uint32_t)b[12] << 24 | (uint32_t)b[13] << 16 | (uint32_t)b[14] << 8 | b[15];
        return b[10] != 0xff || b[11] != 0xff || is_private4(v4);
    }
    return (b[0] & 0xe0) != 0x20 || (b[0] == 0x20 && b[1] == 0x02) || /* outside 2000::/3; 6to4, */
           (b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0);  /* Teredo: IPv4 inside */
}

static curl_socket_t open_public(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
    (void)purpose;
    if (ob_serve_is_private(&a->addr)) {
        *(bool *)arg = true;
        return CURL_SOCKET_BAD;
    }
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static size_t take_bytes(char *data, size_t size, size_t n, void *arg)
{
    ob_buf *out = arg;
    ob_buf_add(out, data, size * n);
    return out->failed ? 0 : size * n;
}

static int go_on(void *arg, curl_off_t dt, curl_off_t dn, curl_off_t ut, curl_off_t un)
{
    (void)dt, (void)dn, (void)ut, (void)un;
    return atomic_load_explicit(&((ob_job *)arg)->abandoned, memory_order_relaxed);
}

static ob_status read_remote(ob_job *job, const char *url, ob_buf *out)
{
    const ob_image_urls from = job->srv->params.image_urls;
    bool refused = false;
    long code = 0;
    if (from == OB_IMAGE_URLS_OFF)
        return ob_job_fail(job, "messages", OB_E_INVALID,
                           "pictures from the network are not allowed here: send a data: URL, or start the server with "
                           "--image-urls");
    CURL *c = curl_easy_init();
    if (!c) return ob_job_fail(job, "messages", OB_E_NO_MEMORY, "no memory to fetch a picture");
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)FETCH_REDIRECTS);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)FETCH_CONNECT_S);
    curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)FETCH_TIMEOUT_S);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "1bit/" OB_VERSION);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, go_on);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, job);
    if (from == OB_IMAGE_URLS_PUBLIC) {
        curl_easy_setopt(c, CURLOPT_PROXY, ""); /* else the address that is checked would be the proxy's */
        curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_public);
        curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, &refused);
    }
    const CURLcode rc = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_cleanup(c);
    if (refused)
        return ob_job_fail(job, "messages", OB_E_INVALID, "the address of a picture is not a public one (--image-urls any "
                           "would allow it)");
    if (out->failed)
        return ob_job_fail(job, "messages", out->failed, "a picture has more than %u bytes", OB_MAX_IMAGE_BYTES);
    if (rc != CURLE_OK)
        return ob_job_fail(job, "messages", OB_E_INVALID, "a picture cannot be fetched: %s", curl_easy_strerror(rc));
    if (code != 200) return ob_job_fail(job, "messages", OB_E_INVALID, "a picture cannot be fetched: HTTP status %ld", code);
    return OB_OK;
}

/* --- parts of messages --------------------------------------------------------------------------- */

static bool is_picture(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type && (!strcmp(type, "image_url") || !strcmp(type, "input_image"));
}

static const json_t *url_of(const json_t *part)
{
    const json_t *url = json_object_get(part, "image_url");
    return json_is_object(url) ? json_object_get(url, "url") : url;
}

static ob_status check_detail(ob_job *job, const json_t *part)
{
    const json_t *in = json_object_get(part, "image_url");
    const json_t *d = json_object_get(json_is_object(in) ? in : part, "detail");
    const char *s = json_string_value(d);
    if (!d || json_is_null(d) || (s && (!strcmp(s, "auto") || !strcmp(s, "low") || !strcmp(s, "high")))) return OB_OK;
    return ob_job_fail(job, "messages", OB_E_INVALID, "'detail' of a picture must be auto, low or high");
}

static ob_status read_bytes(ob_job *job, const json_t *url, ob_buf *out)
{
    const char *s = json_string_value(url);
    if (!s) return ob_job_fail(job, "messages", OB_E_INVALID, "a picture has no 'url' text");
    if (!strncmp(s, "data:", 5)) return read_data(job, s, json_string_length(url), out);
    if (!strncmp(s, "file://", 7)) return read_local(job, s, out);
    if (!strncmp(s, "http://", 7) || !strncmp(s, "https://", 8)) return read_remote(job, s, out);
    return ob_job_fail(job, "messages", OB_E_INVALID, "a picture's url must begin with data:, file://, http:// or https://");
}

static ob_status read_picture(ob_job *job, const json_t *part, ob_draft *out)
{
    ob_image img = {0};
    ob_status s = OB_OK;
    ob_buf bytes;
    ob_buf_init(&bytes, OB_MAX_IMAGE_BYTES);
    OB_GOTO(check_detail(job, part));
    OB_GOTO(read_bytes(job, url_of(part), &bytes));
    s = ob_image_decode(ob_buf_str(&bytes), bytes.len, &img, &job->err);
    ob_buf_deinit(&bytes);
    if (s == OB_OK && !atomic_load_explicit(&job->abandoned, memory_order_relaxed))
        s = ob_vision_draft(job->srv->vision, &img, job->srv->tok, out, &job->err);
    if (s != OB_OK) strcpy(job->param, "messages");
out:
    ob_buf_deinit(&bytes);
    ob_image_deinit(&img);
    return s;
}

/* One part that is a picture: read, and its mark put into its place. */
static ob_status take_part(ob_job *job, json_t *parts, size_t at, ob_pictures *p)
{
    if (p->n == OB_MAX_IMAGES)
        return ob_job_fail(job, "messages", OB_E_LIMIT, "a request may have %u pictures", OB_MAX_IMAGES);
    if (!p->drafts) p->drafts = ob_calloc(OB_MAX_IMAGES, sizeof *p->drafts);
    if (!p->drafts) return ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    if (!p->marks_only) OB_TRY(read_picture(job, json_array_get(parts, at), &p->drafts[p->n]));
    json_t *mark = json_sprintf("%s%zu>", p->mark, p->n++);
    json_t *part = json_pack("{s:s,s:o}", "type", OB_TMPL_PICTURE_MARK, "text", mark);
    if (!part || json_array_set_new(parts, at, part))
        return ob_job_fail(job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    return OB_OK;
}

ob_status ob_pictures_take(ob_job *job, ob_pictures *p)
{
    json_t *messages = json_object_get(job->json, "messages");
    unsigned char r[16] = {0};
    if (!p->marks_only && getrandom(r, sizeof r, 0) != (ssize_t)sizeof r)
        return ob_job_fail(job, NULL, OB_E_INTERNAL, "no random numbers");
    int n = snprintf(p->mark, sizeof p->mark, "<picture ");
    for (size_t i = 0; i < sizeof r && !p->marks_only; i++)
        n += snprintf(p->mark + n, sizeof p->mark - (size_t)n, "%02x", r[i]);
    if (!p->marks_only) snprintf(p->mark + n, sizeof p->mark - (size_t)n, " ");
    for (size_t m = 0; m < json_array_size(messages); m++) {
        json_t *parts = json_object_get(json_array_get(messages, m), "content");
        for (size_t i = 0; json_is_array(parts) && i < json_array_size(parts); i++) {
            if (!is_picture(json_array_get(parts, i))) continue;
            if (!job->srv->vision)
                return ob_job_fail(job, "messages", OB_E_UNSUPPORTED,
                                   "messages[%zu]: this model cannot read images here: it was loaded without a vision tower "
                                   "(--mmproj)", m);
            OB_TRY(take_part(job, parts, i, p));
        }
    }
    return OB_OK;
}

void ob_pictures_deinit(ob_pictures *p)
{
    for (size_t i = 0; i < p->n && p->drafts; i++) ob_draft_deinit(&p->drafts[i]);
    ob_free(p->drafts);
    *p = (ob_pictures){0};
}
