/* GET /metrics: Prometheus text, format 0.0.4. All names start with onebit_. */
#include "serve/serve_int.h"

#include "base/clock.h"
#include "base/math.h"

/* Upper bounds of the histograms in seconds; one more bucket holds what is above. */
static const double k_bounds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
enum { N_BOUNDS = sizeof k_bounds / sizeof *k_bounds };
_Static_assert(N_BOUNDS + 1 == OB_METRICS_BUCKETS, "a bucket for each bound and one above");

static void note(ob_histogram *h, double seconds)
{
    int i = 0;
    while (i < N_BOUNDS && seconds > k_bounds[i]) i++;
    h->bucket[i]++;
    h->count++;
    h->sum += seconds;
}

void ob_metrics_note_first_token(ob_metrics *m, double seconds) { note(&m->first_token, seconds); }
void ob_metrics_note_done(ob_metrics *m, double seconds) { note(&m->whole, seconds); }

static void add_head(ob_buf *out, const char *name, const char *type, const char *help)
{
    ob_buf_addf(out, "# HELP onebit_%s %s\n# TYPE onebit_%s %s\n", name, help, name, type);
}

static void add_histogram(ob_buf *out, const char *name, const char *help, const ob_histogram *h)
{
    add_head(out, name, "histogram", help);
    uint64_t below = 0;
    for (int i = 0; i < N_BOUNDS; i++) {
        below += h->bucket[i];
        ob_buf_addf(out, "onebit_%s_bucket{le=\"%g\"} %llu\n", name, k_bounds[i],
                    (unsigned long long)below);
    }
    ob_buf_addf(out, "onebit_%s_bucket{le=\"+Inf\"} %llu\nonebit_%s_sum ", name,
                (unsigned long long)h->count, name);
    ob_buf_add_double(out, h->sum);
    ob_buf_addf(out, "\nonebit_%s_count %llu\n", name, (unsigned long long)h->count);
}

static void add_label(ob_buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '\\' || *s == '"') ob_buf_addc(out, '\\');
        if (*s == '\n') ob_buf_adds(out, "\\n");
        else ob_buf_addc(out, *s);
    }
}

static void add_experts(const ob_expert_stats *t, ob_buf *out)
{
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"moe_slots", "gauge", "Experts that there is room for in memory.", (double)t->n_slots},
        {"moe_experts", "gauge", "Experts of the model.", (double)t->n_experts},
        {"moe_hits_total", "counter", "Experts that a step needed and that were there or on their way.", (double)t->n_hits},
        {"moe_misses_total", "counter", "Experts that a step had to wait for from the start.", (double)t->n_misses},
        {"moe_prefetch_hits_total", "counter", "Hits that are due to a guess.", (double)t->n_ahead_hits},
        {"moe_guesses_total", "counter", "Experts guessed for the next layer.", (double)t->n_guessed},
        {"moe_guesses_right_total", "counter", "Guessed experts that the layer needed.", (double)t->n_guessed_right},
        {"moe_read_bytes_total", "counter", "Bytes of experts read from disk.", (double)t->n_read_bytes},
        {"moe_wait_seconds_total", "counter", "Time that steps waited for experts.", t->wait_ms * 1e-3},
    };
    for (size_t i = 0; i < OB_COUNT(rows) && t->n_experts; i++) {
        add_head(out, rows[i].name, rows[i].type, rows[i].help);
        ob_buf_addf(out, "onebit_%s ", rows[i].name);
        ob_buf_add_double(out, rows[i].value);
        ob_buf_addc(out, '\n');
    }
}

static void add_engine(const ob_server *s, ob_buf *out)
{
    ob_engine_stats t = {0};
    if (s->engine) ob_engine_get_stats(s->engine, &t);
    if (s->ready && s->routing) ob_routing_add_stats(s->routing, &t);
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"requests_total", "counter", "Generations given to the engine.", (double)t.n_requests},
        {"requests_done_total", "counter", "Generations that ended well.", (double)t.n_done},
        {"requests_failed_total", "counter", "Generations that ended with an error.",
         (double)t.n_failed},
        {"requests_cancelled_total", "counter",
         "Generations whose client went away or that were stopped.", (double)t.n_cancelled},
        {"requests_running", "gauge", "Generations in the batch now.", t.n_running},
        {"requests_waiting", "gauge", "Generations that wait for a place.", t.n_waiting},
        {"prompt_tokens_total", "counter", "Tokens of prompts that were computed.",
         (double)t.n_prompt_tok},
        {"cached_tokens_total", "counter", "Tokens of prompts found in the cache.",
         (double)t.n_cached_tok},
        {"generated_tokens_total", "counter", "Tokens generated.", (double)t.n_gen_tok},
        {"steps_total", "counter", "Batched steps of the model.", (double)t.n_steps},
        {"prompt_seconds_total", "counter", "Time spent in steps that read prompts.", t.prompt_s},
        {"generated_seconds_total", "counter", "Time spent in steps that generate.", t.gen_s},
        {"draft_tokens_total", "counter", "Tokens tried ahead by speculative decoding.", (double)t.n_drafted},
        {"draft_tokens_accepted_total", "counter", "Of these, tokens that came true.", (double)t.n_draft_right},
        {"handover_prompts_total", "counter", "Prompts computed on the prefill device.", (double)t.n_handovers},
        {"handover_failed_total", "counter", "Prompts that the prefill device failed; computed without it.",
         (double)t.n_handover_failed},
        {"handover_tokens_total", "counter", "Tokens of prompts handed over from the prefill device.", (double)t.n_handed_tok},
        {"handover_seconds_total", "counter", "Time until handed-over prompts were here.", t.handover_s},
        {"kv_tokens_used", "gauge", "Cache positions of live sequences.", (double)t.kv_tok_used},
        {"kv_tokens_kept", "gauge", "Cache positions kept for reuse.", (double)t.kv_tok_cached},
        {"kv_tokens_size", "gauge", "Cache positions in all.", (double)t.kv_tok_total},
    };
    for (size_t i = 0; i < OB_COUNT(rows); i++) {
        add_head(out, rows[i].name, rows[i].type, rows[i].help);
        ob_buf_addf(out, "onebit_%s ", rows[i].name);
        ob_buf_add_double(out, rows[i].value);
        ob_buf_addc(out, '\n');
    }
    add_experts(&t.experts, out);
}

static void add_http(const ob_server *s, ob_buf *out)
{
    const ob_metrics *m = &s->metrics;
    add_head(out, "http_replies_total", "counter", "Replies by class of HTTP code.");
    for (int k = 1; k < 6; k++)
        ob_buf_addf(out, "onebit_http_replies_total{class=\"%dxx\"} %llu\n", k,
                    (unsigned long long)m->http[k]);
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } rows[] = {
        {"connections", "gauge", "Connections open now.", (uint64_t)s->n_conns},
        {"connections_total", "counter", "Connections accepted.", m->connections},
        {"connections_refused_total", "counter", "Connections turned away for their number.",
         m->refused_connections},
        {"clients_gone_total", "counter", "Clients that left before their reply was complete.",
         m->client_gone},
        {"clients_slow_total", "counter", "Clients dropped because they did not read.",
         m->slow_clients},
    };
    for (size_t i = 0; i < OB_COUNT(rows); i++) {
        add_head(out, rows[i].name, rows[i].type, rows[i].help);
        ob_buf_addf(out, "onebit_%s %llu\n", rows[i].name, (unsigned long long)rows[i].value);
    }
}

void ob_route_metrics(ob_conn *c)
{
    const ob_server *s = ob_conn_server(c);
    ob_buf out;
    ob_buf_init(&out, 1u << 20);
    add_head(&out, "build_info", "gauge", "The program and what it serves; always 1.");
    ob_buf_adds(&out, "onebit_build_info{version=\"" OB_VERSION "\",model=\"");
    add_label(&out, s->model_id);
    ob_buf_adds(&out, "\",device=\"");
    add_label(&out, s->ready ? s->info.device.kind : ""); /* the loader still writes it before */
    ob_buf_adds(&out, "\"} 1\n");
    add_head(&out, "ready", "gauge", "1 once the model has been loaded.");
    ob_buf_addf(&out, "onebit_ready %d\n", s->ready ? 1 : 0);
    add_head(&out, "uptime_seconds", "gauge", "Time since the server started.");
    ob_buf_addf(&out, "onebit_uptime_seconds %lld\n", (long long)(ob_unix_seconds() - s->created));
    add_engine(s, &out);
    add_http(s, &out);
    if (s->ready && s->routing) ob_routing_metrics(s->routing, &out);
    add_histogram(&out, "first_token_seconds", "From a request's arrival to its first token.",
                  &s->metrics.first_token);
    add_histogram(&out, "generation_seconds", "From a request's arrival to its last token.",
                  &s->metrics.whole);
    ob_conn_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, ob_buf_str(&out),
                  out.len);
    ob_buf_deinit(&out);
}
