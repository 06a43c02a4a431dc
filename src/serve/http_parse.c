/* HTTP/1.1 messages as RFC 9112 has them, over bytes in memory: the request head and the chunked
 * coding. Pure functions, so that they can be fuzzed; anything unclear is refused, because a proxy
 * in front may read it another way. */
#include "serve/serve_int.h"

#include <string.h>
#include <strings.h>

#include "base/math.h"

#define MAX_TARGET_BYTES 8192

bool ob_sv_is(ob_sv s, const char *word)
{
    return s.len == strlen(word) && memcmp(s.data, word, s.len) == 0;
}

bool ob_sv_is_nocase(ob_sv s, const char *word)
{
    return s.len == strlen(word) && strncasecmp(s.data, word, s.len) == 0;
}

static bool is_token_char(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_value_char(unsigned char c) { return c == '\t' || (c >= 0x20 && c != 0x7F); }

static ob_sv trim(ob_sv s)
{
    while (s.len && (s.data[0] == ' ' || s.data[0] == '\t')) s.data++, s.len--;
    while (s.len && (s.data[s.len - 1] == ' ' || s.data[s.len - 1] == '\t')) s.len--;
    return s;
}

/* Cut the line that starts at *p; false when it does not end in CRLF. */
static bool take_line(const char **p, const char *end, ob_sv *line)
{
    const char *nl = memchr(*p, '\n', (size_t)(end - *p));
    if (!nl || nl == *p || nl[-1] != '\r') return false;
    *line = (ob_sv){*p, (size_t)(nl - 1 - *p)};
    *p = nl + 1;
    return true;
}

static ob_http_method method_of(ob_sv s)
{
    static const struct {
        const char *name;
        ob_http_method method;
    } known[] = {{"GET", OB_HTTP_GET},         {"HEAD", OB_HTTP_HEAD}, {"POST", OB_HTTP_POST},
                 {"OPTIONS", OB_HTTP_OPTIONS}, {"PUT", OB_HTTP_OTHER}, {"DELETE", OB_HTTP_OTHER},
                 {"PATCH", OB_HTTP_OTHER}};
    for (size_t i = 0; i < OB_COUNT(known); i++)
        if (ob_sv_is(s, known[i].name)) return known[i].method;
    return 0;
}

static int fail(const char **why, int http_code, const char *text)
{
    *why = text;
    return http_code;
}

static int parse_request_line(ob_sv line, ob_http_head *h, const char **why)
{
    const char *sp1 = memchr(line.data, ' ', line.len);
    if (!sp1) return fail(why, 400, "the request line is not HTTP");
    ob_sv method = {line.data, (size_t)(sp1 - line.data)};
    ob_sv rest = {sp1 + 1, line.len - method.len - 1};
    const char *sp2 = memchr(rest.data, ' ', rest.len);
    if (!sp2) return fail(why, 400, "the request line has no HTTP version");
    ob_sv target = {rest.data, (size_t)(sp2 - rest.data)};
    ob_sv version = {sp2 + 1, rest.len - target.len - 1};
    if (version.len != 8 || memcmp(version.data, "HTTP/", 5) != 0 || version.data[6] != '.')
        return fail(why, 400, "the request line is not HTTP");
    if (version.data[5] != '1' || version.data[7] < '0' || version.data[7] > '9')
        return fail(why, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    h->minor = version.data[7] == '0' ? 0 : 1;
    if (target.len > MAX_TARGET_BYTES) return fail(why, 414, "the request target is too long");
    for (size_t i = 0; i < method.len; i++)
        if (!is_token_char((unsigned char)method.data[i]))
            return fail(why, 400, "the request line is not HTTP");
    h->method = method_of(method);
    if (!h->method) return fail(why, 501, "this HTTP method is not known here");
    for (size_t i = 0; i < target.len; i++)
        if ((unsigned char)target.data[i] <= 0x20 || (unsigned char)target.data[i] >= 0x7F)
            return fail(why, 400, "the request target holds a byte that must be percent-encoded");
    if (target.len > 7 && strncasecmp(target.data, "http://", 7) == 0) { /* absolute form */
        const char *slash = memchr(target.data + 7, '/', target.len - 7);
        if (!slash) target = (ob_sv){"/", 1};
        else target = (ob_sv){slash, (size_t)(target.data + target.len - slash)};
    }
    if (ob_sv_is(target, "*") && h->method == OB_HTTP_OPTIONS) target = (ob_sv){"/", 1};
    if (!target.len || target.data[0] != '/')
        return fail(why, 400, "the request target must start with a slash");
    const char *q = memchr(target.data, '?', target.len);
    h->path = (ob_sv){target.data, q ? (size_t)(q - target.data) : target.len};
    if (q) h->query = (ob_sv){q + 1, target.len - h->path.len - 1};
    return 0;
}

static bool parse_length(ob_sv v, int64_t *out)
{
    if (!v.len || v.len > 18) return false;
    int64_t n = 0;
    for (size_t i = 0; i < v.len; i++) {
        if (v.data[i] < '0' || v.data[i] > '9') return false;
        n = n * 10 + (v.data[i] - '0');
    }
    *out = n;
    return true;
}

/* Does the comma-separated list hold this word? */
static bool list_has(ob_sv list, const char *word)
{
    while (list.len) {
        const char *comma = memchr(list.data, ',', list.len);
        size_t n = comma ? (size_t)(comma - list.data) : list.len;
        if (ob_sv_is_nocase(trim((ob_sv){list.data, n}), word)) return true;
        if (!comma) break;
        list.data += n + 1;
        list.len -= n + 1;
    }
    return false;
}

/* The few headers that change how a message is read or who may send it. */
static int note_header(ob_http_head *h, ob_sv name, ob_sv value, const char **why)
{
    struct {
        const char *name;
        ob_sv *to;
        bool once;
    } kept[] = {{"host", &h->host, true},
                {"origin", &h->origin, true},
                {"authorization", &h->authorization, true},
                {"x-api-key", &h->x_api_key, true},
                {"if-none-match", &h->if_none_match, false},
                {"x-1bit-target", &h->route_target, true},
                {"access-control-request-method", &h->cors_method, false}};
    for (size_t i = 0; i < OB_COUNT(kept); i++) {
        if (!ob_sv_is_nocase(name, kept[i].name)) continue;
        if (kept[i].to->data && kept[i].once)
            return fail(why, 400, "a header that may come once came twice");
        *kept[i].to = value;
        return 0;
    }
    if (ob_sv_is_nocase(name, "content-length")) {
        if (h->content_length >= 0) return fail(why, 400, "Content-Length came twice");
        if (!parse_length(value, &h->content_length))
            return fail(why, 400, "Content-Length is not a number");
    } else if (ob_sv_is_nocase(name, "transfer-encoding")) {
        if (h->chunked) return fail(why, 400, "Transfer-Encoding came twice");
        if (!ob_sv_is_nocase(value, "chunked"))
            return fail(why, 501, "the only transfer coding known here is chunked");
        h->chunked = true;
    } else if (ob_sv_is_nocase(name, "connection")) {
        if (list_has(value, "close")) h->keep_alive = false;
        else if (h->minor == 0 && list_has(value, "keep-alive")) h->keep_alive = true;
    } else if (ob_sv_is_nocase(name, "expect")) {
        if (!ob_sv_is_nocase(value, "100-continue"))
            return fail(why, 417, "the only expectation known here is 100-continue");
        h->expect_continue = h->minor >= 1;
    } else if (ob_sv_is_nocase(name, "content-encoding")) {
        if (!ob_sv_is_nocase(value, "identity"))
            return fail(why, 415, "compressed request bodies are not accepted");
    }
    return 0;
}

int ob_http_parse_head(const char *bytes, size_t len, ob_http_head *h, const char **why)
{
    memset(h, 0, sizeof *h);
    h->content_length = -1;
    const char *p = bytes, *end = bytes + len;
    ob_sv line;
    if (!take_line(&p, end, &line)) return fail(why, 400, "lines must end with CR LF");
    int rc = parse_request_line(line, h, why);
    if (rc) return rc;
    h->keep_alive = h->minor >= 1;
    int n_headers = 0;
    for (;;) {
        if (!take_line(&p, end, &line)) return fail(why, 400, "lines must end with CR LF");
        if (!line.len) break;
        if (++n_headers > OB_HTTP_MAX_HEADERS) return fail(why, 431, "too many header lines");
        const char *colon = memchr(line.data, ':', line.len);
        ob_sv name = {line.data, colon ? (size_t)(colon - line.data) : 0};
        if (!name.len) return fail(why, 400, "a header line has no name");
        for (size_t i = 0; i < name.len; i++)
            if (!is_token_char((unsigned char)name.data[i]))
                return fail(why, 400, "a header's name holds a byte that is not allowed there");
        ob_sv value = trim((ob_sv){colon + 1, line.len - name.len - 1});
        for (size_t i = 0; i < value.len; i++)
            if (!is_value_char((unsigned char)value.data[i]))
                return fail(why, 400, "a header's value holds a control character");
        rc = note_header(h, name, value, why);
        if (rc) return rc;
    }
    if (p != end) return fail(why, 400, "lines must end with CR LF");
    if (h->minor >= 1 && !h->host.data) return fail(why, 400, "the Host header is missing");
    if (h->chunked && h->content_length >= 0)
        return fail(why, 400, "Content-Length and Transfer-Encoding exclude each other");
    if (h->chunked && h->minor == 0)
        return fail(why, 400, "HTTP/1.0 has no Transfer-Encoding");
    return 0;
}

/* --- the chunked coding ---------------------------------------------------------------------- */

enum { SIZE, SIZE_EXT, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LINE, TRAILER_LF, END_LF };

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* One byte of framing; false when it cannot stand there. */
static bool chunk_frame_byte(ob_http_chunks *k, char c)
{
    if (++k->frame_bytes > 16384 + k->n_chunks * 4096) return false; /* endless extensions */
    switch (k->state) {
    case SIZE: {
        int v = hex_value(c);
        if (v >= 0) {
            if (k->n_digits++ >= 15) return false;
            k->left = k->left * 16 + (uint64_t)v;
            return true;
        }
        if (!k->n_digits) return false;
        k->state = c == ';' ? SIZE_EXT : SIZE_LF;
        return c == ';' || c == '\r';
    }
    case SIZE_EXT:
        if (c == '\r') k->state = SIZE_LF;
        return c == '\r' || is_value_char((unsigned char)c);
    case SIZE_LF:
        k->state = k->left ? DATA : TRAILER;
        k->n_chunks++;
        k->n_digits = 0;
        return c == '\n';
    case DATA_CR: k->state = DATA_LF; return c == '\r';
    case DATA_LF: k->state = SIZE; return c == '\n';
    case TRAILER:
        k->state = c == '\r' ? END_LF : TRAILER_LINE;
        return c == '\r' || is_token_char((unsigned char)c);
    case TRAILER_LINE:
        if (c == '\r') k->state = TRAILER_LF;
        return c == '\r' || is_value_char((unsigned char)c);
    case TRAILER_LF: k->state = TRAILER; return c == '\n';
    case END_LF: k->done = true; return c == '\n';
    default: return false;
    }
}

bool ob_http_chunks_feed(ob_http_chunks *k, const char *bytes, size_t len, size_t *n_used,
                         ob_buf *out)
{
    size_t i = 0;
    while (i < len && !k->done) {
        if (k->state == DATA) {
            size_t n = (size_t)OB_MIN((uint64_t)(len - i), k->left);
            ob_buf_add(out, bytes + i, n);
            i += n;
            k->left -= n;
            if (!k->left) k->state = DATA_CR;
        } else if (!chunk_frame_byte(k, bytes[i++])) {
            return false;
        }
    }
    *n_used = i;
    return true;
}

/* --- small readers of header values ---------------------------------------------------------- */

/* "host", "host:port", "[v6]", "[v6]:port" -> host without port and brackets. */
static ob_sv host_part(ob_sv s)
{
    if (s.len && s.data[0] == '[') {
        const char *close = memchr(s.data, ']', s.len);
        return close ? (ob_sv){s.data + 1, (size_t)(close - s.data - 1)} : (ob_sv){0};
    }
    const char *colon = memchr(s.data, ':', s.len);
    if (colon) s.len = (size_t)(colon - s.data);
    return s;
}

static bool is_loopback_name(ob_sv host)
{
    if (ob_sv_is_nocase(host, "localhost") || ob_sv_is(host, "::1")) return true;
    if (host.len < 7 || host.len > 15 || memcmp(host.data, "127.", 4) != 0) return false;
    int n_dots = 0, n_digits = 0;
    for (size_t i = 0; i < host.len; i++) { /* "127.0.0.1.example.org" is a name, not an address */
        char c = host.data[i];
        if (c == '.') {
            if (!n_digits) return false;
            n_dots++, n_digits = 0;
        } else if (c >= '0' && c <= '9') {
            if (++n_digits > 3) return false;
        } else {
            return false;
        }
    }
    return n_dots == 3 && n_digits > 0;
}

bool ob_http_host_is_loopback(ob_sv host_header)
{
    return is_loopback_name(host_part(host_header));
}

bool ob_http_host_names(ob_sv host_header, const char *name)
{
    return ob_sv_is_nocase(host_part(host_header), name);
}

bool ob_http_origin_is_own(ob_sv origin, ob_sv host_header, bool loopback_is_own)
{
    size_t scheme = origin.len > 7 && strncasecmp(origin.data, "http://", 7) == 0    ? 7
                    : origin.len > 8 && strncasecmp(origin.data, "https://", 8) == 0 ? 8
                                                                                     : 0;
    if (!scheme) return false;
    ob_sv authority = {origin.data + scheme, origin.len - scheme};
    if (authority.len == host_header.len && host_header.len &&
        strncasecmp(authority.data, host_header.data, authority.len) == 0)
        return true;
    return loopback_is_own && is_loopback_name(host_part(authority));
}

bool ob_http_percent_decode(ob_sv in, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < in.len; i++) {
        char c = in.data[i];
        if (c == '%') {
            int hi = i + 1 < in.len ? hex_value(in.data[i + 1]) : -1;
            int lo = i + 2 < in.len ? hex_value(in.data[i + 2]) : -1;
            if (hi < 0 || lo < 0) return false;
            c = (char)(hi * 16 + lo);
            i += 2;
        }
        if (!c || n + 1 >= cap) return false;
        out[n++] = c;
    }
    out[n] = 0;
    return true;
}
