/* Promise of tmpl: any bytes as a template, with any JSON as messages, give a text or an error with a
 * text. Input: the template, a zero byte, the messages (a fixed conversation if there is none). */
#include "fuzz.h"

#include <string.h>

#include "base/limits.h"
#include "base/utf8.h"
#include "tmpl/tmpl.h"

static const char k_chat[] =
    "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u <x> \\u00e9\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
    "\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]},{\"role\":\"tool\",\"content\":\"r\"}]";

static void render(const ob_tmpl *t, const char *messages, size_t len)
{
    ob_err err = {0};
    ob_buf out;
    ob_buf_init(&out, 1 << 20);
    const ob_tmpl_args args = {.messages_json = messages,
                               .messages_len = len,
                               .bos_token = "<s>",
                               .now_unix = 1,
                               .add_generation_prompt = true};
    ob_status s = ob_tmpl_render(t, &args, &out, &err);
    FUZZ_REQUIRE(s != OB_E_INTERNAL);
    FUZZ_REQUIRE(s == OB_OK || out.failed || out.len == 0);
    FUZZ_REQUIRE(s != OB_OK || ob_utf8_is_valid(ob_buf_str(&out), out.len));
    ob_buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    const char *text = (const char *)data;
    const char *zero = len ? memchr(text, 0, len) : NULL;
    size_t n = zero ? (size_t)(zero - text) : len;
    ob_err err = {0};
    ob_tmpl *t;
    ob_status s = ob_tmpl_new(text ? text : "", n, &t, &err);
    FUZZ_REQUIRE((s == OB_OK) == (t != NULL));
    FUZZ_REQUIRE(s != OB_E_INTERNAL);
    FUZZ_REQUIRE(s == OB_OK || err.text[0]);
    if (!t) return 0;

    bool own = zero && len - n > 1;
    const char *messages = own ? zero + 1 : k_chat;
    size_t m = own ? len - n - 1 : sizeof k_chat - 1;
    render(t, messages, m);
    json_t *parsed = json_loadb(messages, m, 0, NULL);
    ob_buf converted;
    ob_buf_init(&converted, 1 << 20);
    if (parsed && ob_tmpl_messages(t, parsed, &converted, &err) == OB_OK)
        render(t, ob_buf_str(&converted), converted.len);
    ob_buf_deinit(&converted);
    json_decref(parsed);
    ob_tmpl_free(t);
    return 0;
}
