/* Promise of serve: any body gives parameters within their ranges, or an error with a text; with
 * memory running out it is the same. The first byte chooses the API; the rest is the body. */
#include "fuzz.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "serve/serve_int.h"

static void check_params(const ob_gen_params *p)
{
    const ob_sampler_params *s = &p->sampler;
    FUZZ_REQUIRE(s->temperature >= 0 && s->temperature <= 100);
    FUZZ_REQUIRE(s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    FUZZ_REQUIRE(s->top_k >= -1 && s->repeat_last_n >= -1 && s->repeat_penalty > 0);
    FUZZ_REQUIRE(fabsf(s->presence_penalty) <= 2 && fabsf(s->frequency_penalty) <= 2);
    FUZZ_REQUIRE(p->n >= 1 && p->n <= (int32_t)OB_MAX_N_CHOICES);
    FUZZ_REQUIRE(p->max_tokens == -1 || p->max_tokens >= 1);
    FUZZ_REQUIRE(p->n_top_logprobs >= -1 && p->n_top_logprobs <= (int32_t)OB_MAX_TOP_LOGPROBS);
    FUZZ_REQUIRE(p->n_stop <= OB_MAX_STOP_STRINGS && s->n_bias <= OB_MAX_LOGIT_BIAS);
    for (size_t i = 0; i < p->n_stop; i++)
        FUZZ_REQUIRE(p->stop[i][0] && strlen(p->stop[i]) <= OB_MAX_STOP_BYTES);
    for (size_t i = 0; i < s->n_bias; i++)
        FUZZ_REQUIRE(s->bias[i].id >= 0 && s->bias[i].id < 1000 && !isnan(s->bias[i].bias));
    if (p->kwargs) { /* what goes to the template is an object again */
        json_t *j = json_loadb(p->kwargs, p->kwargs_len, 0, NULL);
        FUZZ_REQUIRE(json_is_object(j));
        json_decref(j);
    }
}

static ob_status read_request(ob_server *srv, ob_api_kind api, const char *body, size_t len,
                              bool check)
{
    ob_job job = {.srv = srv};
    ob_gen_params p;
    ob_gen_params_defaults(&p);
    ob_arena_init(&job.arena, OB_MAX_REQUEST_ARENA_BYTES);
    ob_status s = ob_json_parse(body, len, &job.json, &job.err);
    if (s == OB_OK) s = ob_params_check_model(&job);
    if (s == OB_OK) s = ob_params_read(&job, api, &p);
    if (s == OB_OK && check) check_params(&p);
    FUZZ_REQUIRE(s == OB_OK || (job.err.code == s && job.err.text[0]));
    if (s != OB_OK && check) { /* the reply to it is JSON, whatever the body held */
        ob_buf out;
        ob_buf_init(&out, 1 << 16);
        ob_serve_write_error(&out, &job.err, job.param);
        json_t *j = json_loadb(ob_buf_str(&out), out.len, 0, NULL);
        FUZZ_REQUIRE(!out.failed && json_is_object(j));
        json_decref(j);
        ob_buf_deinit(&out);
    }
    json_decref(job.json);
    ob_arena_deinit(&job.arena);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const ob_api_kind apis[] = {OB_API_CHAT, OB_API_COMPLETIONS, OB_API_TEMPLATE};
    static char model[] = "m";
    if (!len) return 0;
    ob_server srv = {.model_id = model, .info = {.n_vocab = 1000}};
    const char *body = (const char *)data + 1;
    ob_api_kind api = apis[data[0] % 3];
    ob_status s = read_request(&srv, api, body, len - 1, true);
    ob_alloc_fail_after(data[len - 1] % 24);
    ob_status starved = read_request(&srv, api, body, len - 1, false);
    ob_alloc_fail_after(-1);
    FUZZ_REQUIRE(starved == s || starved == OB_E_NO_MEMORY);
    return 0;
}
