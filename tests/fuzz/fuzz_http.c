/* Promise of serve: any bytes are a request head whose parts lie within the bytes, or a refusal
 * with an HTTP code and a reason; and the chunked coding gives the same however the bytes are cut.
 */
#include "fuzz.h"

#include <string.h>

#include "serve/serve_int.h"

static void within(ob_sv s, const char *bytes, size_t len)
{
    if (!s.data || !s.len) return;
    FUZZ_REQUIRE(s.data >= bytes && s.data + s.len <= bytes + len);
    FUZZ_REQUIRE(!memchr(s.data, '\n', s.len) && !memchr(s.data, 0, s.len));
}

static void check_head(const char *bytes, size_t len)
{
    ob_http_head h;
    const char *why = NULL;
    int code = ob_http_parse_head(bytes, len, &h, &why);
    if (code) {
        FUZZ_REQUIRE(code >= 400 && code < 600 && why && *why);
        return;
    }
    FUZZ_REQUIRE(h.path.len && h.path.data[0] == '/');
    FUZZ_REQUIRE(!(h.chunked && h.content_length >= 0) && h.content_length >= -1);
    const ob_sv parts[] = {h.query,         h.host,      h.origin,
                           h.authorization, h.x_api_key, h.if_none_match};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) within(parts[i], bytes, len);
    char decoded[64];
    (void)ob_http_percent_decode(h.path, decoded, sizeof decoded);
    /* A page of elsewhere is never taken for our own. */
    if (h.origin.data && ob_http_origin_is_own(h.origin, h.host, true))
        FUZZ_REQUIRE(h.host.len || h.origin.len);
}

static bool decode(const char *bytes, size_t len, size_t piece, ob_http_chunks *k, ob_buf *out)
{
    memset(k, 0, sizeof *k);
    ob_buf_init(out, 1 << 16);
    for (size_t off = 0; off < len && !k->done;) {
        size_t n = len - off < piece ? len - off : piece, used;
        if (!ob_http_chunks_feed(k, bytes + off, n, &used, out)) return false;
        FUZZ_REQUIRE(used == n || k->done);
        off += used;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    const char *bytes = (const char *)data;
    check_head(bytes, len);
    ob_http_chunks whole, cut;
    ob_buf a, b;
    bool ok = decode(bytes, len, len ? len : 1, &whole, &a);
    bool ok_cut = decode(bytes, len, len ? data[0] % 5 + 1 : 1, &cut, &b);
    FUZZ_REQUIRE(ok == ok_cut && whole.done == cut.done);
    if (ok) FUZZ_REQUIRE(a.len == b.len && (!a.len || memcmp(a.data, b.data, a.len) == 0));
    ob_buf_deinit(&a);
    ob_buf_deinit(&b);
    return 0;
}
