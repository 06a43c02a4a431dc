/* POST /v1/embeddings in OpenAI's shape, and POST /v1/rerank in Jina's and Cohere's.
 *
 * A request is read by a worker, run by the encoder, and its reply written by a worker again: a list of
 * vectors is a lot of text. In between it is the encoder's; the io thread only hands it on.
 *
 * Rerank: a model with a head for one score reads "query [SEP] document" and gives the sigmoid of the
 * score; a model for vectors gives the cosine of query and document.
 */
#include "serve/serve_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

typedef struct embed_job {
    ob_job job; /* first */
    const ob_served *model;
    ob_encode_text *texts; /* arena; tok of text i is taken from ob_tok_encode when i < n_taken */
    int32_t n, n_taken;
    int64_t n_tok;
    ob_encode_job *run;    /* with the encoder, or done; NULL before */
    const float *rows;     /* [sum of rows][n_cols], the run's; this and its status: by on_encoded */
    ob_status run_status;
    ob_err run_err;
    void (*write)(struct embed_job *e);
    /* embeddings */
    bool base64;
    int32_t n_dims;
    /* rerank */
    size_t top_n;
    bool with_documents;
} embed_job;

/* --- life ------------------------------------------------------------------------------------ */

static void destroy(ob_job *job)
{
    embed_job *e = (embed_job *)job;
    ob_encode_job_free(e->run);
    for (int32_t i = 0; i < e->n_taken; i++) ob_free((void *)(uintptr_t)e->texts[i].tok);
}

/* Worker, second time. */
static ob_status write_reply(ob_job *job)
{
    embed_job *e = (embed_job *)job;
    e->write(e);
    return OB_OK;
}

/* io thread, between two stages: a job that failed, or that nobody waits for, is answered now. */
static bool ends_here(ob_job *job)
{
    if (job->status == OB_OK && job->conn && !job->srv->cancelling) return false;
    if (job->status == OB_OK) job->status = ob_err_set(&job->err, OB_E_CANCELLED, "the server is stopping");
    ob_job_reply(job);
    return true;
}

/* io thread, when the encoder is done. */
static void encoded(ob_job *job)
{
    embed_job *e = (embed_job *)job;
    job->status = e->run_status;
    if (job->status != OB_OK) job->err = e->run_err;
    if (ends_here(job)) return;
    job->run = write_reply;
    job->finish = ob_job_reply;
    ob_job_queue(job);
}

/* Encoder's thread. */
static void on_encoded(void *arg, ob_status s, const ob_err *err, const float *rows)
{
    embed_job *e = arg;
    e->rows = rows;
    e->run_status = s;
    if (s != OB_OK) e->run_err = *err;
    ob_mbox_post(&e->job.srv->mbox, &e->job.post);
}

static void abandon(ob_job *job) { ob_encode_job_cancel(((embed_job *)job)->run); }

/* io thread, when the request has been read. */
static void prepared(ob_job *job)
{
    embed_job *e = (embed_job *)job;
    if (ends_here(job)) return;
    job->finish = encoded;
    job->status = ob_encoder_submit(e->model->encoder, e->texts, e->n, on_encoded, e, &e->run, &job->err);
    if (job->status != OB_OK) ob_job_reply(job);
    else job->abandon = abandon;
}

static void start(ob_conn *c, const ob_served *model, const char *option, ob_status (*read)(ob_job *job),
                  void (*write)(embed_job *e))
{
    if (!model) {
        ob_err err;
        ob_err_set(&err, OB_E_UNSUPPORTED, "this server has no model for that: start it with %s MODEL", option);
        ob_conn_reply_err(c, &err, NULL);
        return;
    }
    embed_job *e = (embed_job *)ob_job_new(c, sizeof *e);
    if (!e) return;
    e->model = model;
    e->write = write;
    e->job.run = read;
    e->job.finish = prepared;
    e->job.destroy = destroy;
    ob_job_queue(&e->job);
}

/* --- reading (worker) ------------------------------------------------------------------------ */

static ob_status parse_body(embed_job *e, const char *const *known)
{
    ob_job *job = &e->job;
    OB_TRY(ob_json_parse(ob_buf_str(&job->body), job->body.len, &job->json, &job->err));
    ob_buf_deinit(&job->body);
    OB_TRY(ob_params_only(job, known));
    return ob_params_check_model_is(job, e->model->id, e->model->also, " for this");
}

static ob_status make_texts(embed_job *e, const char *param, size_t n)
{
    if (n < 1) return ob_job_fail(&e->job, param, OB_E_INVALID, "'%s' is empty", param);
    if (n > OB_MAX_EMBED_TEXTS)
        return ob_job_fail(&e->job, param, OB_E_LIMIT, "'%s' may hold %u texts, not %zu", param, OB_MAX_EMBED_TEXTS,
                           n);
    e->texts = ob_arena_array(&e->job.arena, n + 1, sizeof *e->texts); /* one more for a query */
    return e->texts ? OB_OK : ob_job_fail(&e->job, NULL, OB_E_NO_MEMORY, "no memory for the request");
}

static ob_status check_length(embed_job *e, const char *param, size_t at, size_t n_tok)
{
    ob_job *job = &e->job;
    const int32_t n_ctx = e->model->info.n_ctx;
    e->n_tok += (int64_t)n_tok;
    if (n_tok == 0) return ob_job_fail(job, param, OB_E_INVALID, "text %zu of '%s' has no tokens", at, param);
    if (n_tok <= (size_t)n_ctx) return OB_OK;
    ob_job_fail(job, param, OB_E_CONTEXT_LENGTH, "text %zu of '%s' has %zu tokens; this model takes %d at most", at,
                param, n_tok, n_ctx);
    job->err.n_prompt_tok = (long)n_tok;
    job->err.n_ctx = n_ctx;
    return OB_E_CONTEXT_LENGTH;
}

/* Append a text. */
static ob_status add_text(embed_job *e, const char *param, const json_t *v)
{
    int32_t *ids;
    size_t n;
    if (json_string_length(v) == 0)
        return ob_job_fail(&e->job, param, OB_E_INVALID, "'%s' holds an empty text", param);
    OB_TRY(ob_tok_encode(ob_encoder_tok(e->model->encoder), json_string_value(v), json_string_length(v),
                         OB_TOK_BOS | OB_TOK_SPECIAL, &ids, &n, &e->job.err));
    const int32_t at = e->n_taken++;
    e->texts[e->n++] = (ob_encode_text){.tok = ids, .n_tok = (int32_t)OB_MIN(n, (size_t)INT32_MAX)};
    return check_length(e, param, (size_t)at, n);
}

/* --- embeddings ------------------------------------------------------------------------------ */

static ob_status read_format(embed_job *e)
{
    ob_job *job = &e->job;
    const json_t *f = json_object_get(job->json, "encoding_format"), *d = json_object_get(job->json, "dimensions");
    e->n_dims = e->model->info.n_embd;
    if (f && !json_is_null(f)) {
        const char *s = json_string_value(f);
        e->base64 = s && !strcmp(s, "base64");
        if (!s || (!e->base64 && strcmp(s, "float") != 0))
            return ob_job_fail(job, "encoding_format", OB_E_INVALID, "'encoding_format' must be float or base64");
    }
    if (!d || json_is_null(d)) return OB_OK;
    if (!json_is_integer(d) || json_integer_value(d) < 1 || json_integer_value(d) > e->n_dims)
        return ob_job_fail(job, "dimensions", OB_E_INVALID, "'dimensions' must be an integer from 1 to %d", e->n_dims);
    e->n_dims = (int32_t)json_integer_value(d);
    return OB_OK;
}

static ob_status add_ids(embed_job *e, const json_t *v)
{
    int32_t *ids;
    size_t n;
    OB_TRY(ob_params_read_ids(&e->job, "input", v, e->model->info.n_vocab, &ids, &n));
    e->texts[e->n++] = (ob_encode_text){.tok = ids, .n_tok = (int32_t)n};
    return check_length(e, "input", (size_t)e->n - 1, n);
}

static ob_status read_embeddings(ob_job *job)
{
    static const char *const known[] = {"model", "input", "encoding_format", "dimensions", "user", NULL};
    static const char wanted[] = "'input' must be a string, a list of strings, a list of token ids, or a list of "
                                 "such lists";
    embed_job *e = (embed_job *)job;
    OB_TRY(parse_body(e, known));
    OB_TRY(read_format(e));
    const json_t *v = json_object_get(job->json, "input"), *first = json_array_get(v, 0);
    const bool strings = json_is_string(first), lists = json_is_array(first), one_list = json_is_integer(first);
    if (!json_is_string(v) && !json_is_array(v)) return ob_job_fail(job, "input", OB_E_INVALID, "%s", wanted);
    const size_t n = json_is_string(v) || one_list ? 1 : json_array_size(v);
    OB_TRY(make_texts(e, "input", n));
    if (one_list) return add_ids(e, v);
    /* Ids live in the arena and taken texts are counted from the front: a list is of one kind. */
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_string(v) ? v : json_array_get(v, i);
        if (atomic_load_explicit(&job->abandoned, memory_order_relaxed)) return OB_OK;
        if (json_is_string(one) && (strings || one == v)) OB_TRY(add_text(e, "input", one));
        else if (json_is_array(one) && lists) OB_TRY(add_ids(e, one));
        else return ob_job_fail(job, "input", OB_E_INVALID, "%s", wanted);
    }
    return OB_OK;
}

static void add_base64(ob_buf *out, const uint8_t *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const uint32_t v = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (left > 2 ? p[i + 2] : 0u);
        const char four[4] = {digits[v >> 18], digits[v >> 12 & 63], left > 1 ? digits[v >> 6 & 63] : '=',
                              left > 2 ? digits[v & 63] : '='};
        ob_buf_add(out, four, 4);
    }
}

static void add_vector(const embed_job *e, const float *v, ob_buf *out)
{
    ob_buf_addc(out, '[');
    for (int32_t i = 0; i < e->n_dims; i++) ob_buf_addf(out, i ? ",%.9g" : "%.9g", (double)v[i]);
    ob_buf_addc(out, ']');
}

static void add_usage(embed_job *e)
{
    ob_buf_addf(&e->job.reply, "\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}", (long long)e->n_tok,
                (long long)e->n_tok);
}

static void write_embeddings(embed_job *e)
{
    ob_buf *out = &e->job.reply;
    const int32_t n_cols = e->model->info.n_embd;
    const float *row = e->rows;
    float *v = ob_arena_array(&e->job.arena, (size_t)n_cols, sizeof *v);
    if (!v) {
        out->failed = OB_E_NO_MEMORY;
        return;
    }
    ob_buf_adds(out, "{\"object\":\"list\",\"data\":[");
    for (int32_t i = 0; i < e->n; i++) {
        const int32_t n_rows = ob_encoder_n_rows(e->model->encoder, &e->texts[i]);
        const bool many = e->model->info.pooling == OB_POOLING_NONE; /* a vector per token */
        ob_buf_addf(out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        if (e->base64) ob_buf_addc(out, '"');
        else if (many) ob_buf_addc(out, '[');
        for (int32_t r = 0; r < n_rows; r++, row += n_cols) {
            memcpy(v, row, (size_t)n_cols * sizeof *v);
            ob_normalize(v, e->n_dims);
            if (!e->base64 && r) ob_buf_addc(out, ',');
            if (e->base64) add_base64(out, (const uint8_t *)v, (size_t)e->n_dims * sizeof *v);
            else add_vector(e, v, out);
        }
        if (e->base64) ob_buf_addc(out, '"');
        else if (many) ob_buf_addc(out, ']');
        ob_buf_addc(out, '}');
    }
    ob_buf_adds(out, "],\"model\":");
    ob_buf_add_json(out, e->model->id, strlen(e->model->id));
    ob_buf_addc(out, ',');
    add_usage(e);
    ob_buf_addc(out, '}');
}

void ob_route_embeddings(ob_conn *c)
{
    start(c, ob_conn_server(c)->embed, "--embed", read_embeddings, write_embeddings);
}

/* --- rerank ---------------------------------------------------------------------------------- */

static bool scores_pairs(const embed_job *e) { return e->model->info.output == OB_OUTPUT_CLASSES; }

/* The text of a document: a string, or an object with a text. */
static const json_t *document_text(const json_t *doc)
{
    return json_is_object(doc) ? json_object_get(doc, "text") : doc;
}

/* Turn text i into "query document": the query with its marks at both ends, the document, an end mark. */
static ob_status join_pair(embed_job *e, const ob_encode_text *query, const json_t *doc, size_t at)
{
    const ob_tok *tok = ob_encoder_tok(e->model->encoder);
    const int32_t sep = ob_tok_sep(tok) >= 0 ? ob_tok_sep(tok) : ob_tok_eos(tok);
    int32_t *ids;
    size_t n;
    OB_TRY(ob_tok_encode(tok, json_string_value(doc), json_string_length(doc), OB_TOK_SPECIAL, &ids, &n, &e->job.err));
    int32_t *pair = ob_reallocarray(NULL, n + (size_t)query->n_tok + 1, sizeof *pair);
    if (pair) {
        memcpy(pair, query->tok, (size_t)query->n_tok * sizeof *pair);
        if (n) memcpy(pair + query->n_tok, ids, n * sizeof *pair);
        pair[(size_t)query->n_tok + n] = sep;
    }
    ob_free(ids);
    if (!pair) return ob_job_fail(&e->job, NULL, OB_E_NO_MEMORY, "no memory for the request");
    n += (size_t)query->n_tok + (sep >= 0);
    e->n_taken++;
    e->texts[e->n++] = (ob_encode_text){.tok = pair, .n_tok = (int32_t)OB_MIN(n, (size_t)INT32_MAX)};
    return check_length(e, "documents", at, n);
}

static ob_status read_pairs(embed_job *e, const json_t *query, const json_t *docs)
{
    ob_encode_text q = {0};
    int32_t *ids;
    size_t n;
    OB_TRY(ob_tok_encode(ob_encoder_tok(e->model->encoder), json_string_value(query), json_string_length(query),
                         OB_TOK_BOS | OB_TOK_SPECIAL, &ids, &n, &e->job.err));
    q.tok = ids;
    q.n_tok = (int32_t)OB_MIN(n, (size_t)INT32_MAX / 2);
    ob_status s = OB_OK;
    for (size_t i = 0; i < json_array_size(docs) && s == OB_OK; i++)
        s = join_pair(e, &q, document_text(json_array_get(docs, i)), i);
    ob_free(ids);
    return s;
}

static ob_status read_rerank(ob_job *job)
{
    static const char *const known[] = {"model", "query", "documents", "top_n", "return_documents", NULL};
    embed_job *e = (embed_job *)job;
    if (!scores_pairs(e) && e->model->info.pooling == OB_POOLING_NONE)
        return ob_job_fail(job, NULL, OB_E_UNSUPPORTED, "with --pooling none there is no vector of a text to rank by");
    OB_TRY(parse_body(e, known));
    OB_TRY(ob_params_read_bool(job, "return_documents", &e->with_documents));
    const json_t *query = json_object_get(job->json, "query"), *docs = json_object_get(job->json, "documents"),
                 *top = json_object_get(job->json, "top_n");
    if (!json_is_string(query) || !json_string_length(query))
        return ob_job_fail(job, "query", OB_E_INVALID, "'query' must be a text");
    if (!json_is_array(docs)) return ob_job_fail(job, "documents", OB_E_INVALID, "'documents' must be a list of texts");
    const size_t n = json_array_size(docs);
    e->top_n = n;
    if (top && !json_is_null(top)) {
        if (!json_is_integer(top) || json_integer_value(top) < 1)
            return ob_job_fail(job, "top_n", OB_E_INVALID, "'top_n' must be a positive integer");
        e->top_n = (size_t)OB_MIN(json_integer_value(top), (json_int_t)n);
    }
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(document_text(json_array_get(docs, i))))
            return ob_job_fail(job, "documents", OB_E_INVALID, "document %zu is no text, nor an object with one", i);
    OB_TRY(make_texts(e, "documents", n));
    if (scores_pairs(e)) return read_pairs(e, query, docs);
    OB_TRY(add_text(e, "query", query));
    for (size_t i = 0; i < n; i++) OB_TRY(add_text(e, "documents", document_text(json_array_get(docs, i))));
    return OB_OK;
}

typedef struct ranked {
    double score;
    size_t index;
} ranked;

/* Best first, equal ones in order of the request. */
static int by_score(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

static double cosine(const float *a, const float *b, int32_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int32_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

static void write_rerank(embed_job *e)
{
    ob_buf *out = &e->job.reply;
    const json_t *docs = json_object_get(e->job.json, "documents");
    const size_t n = json_array_size(docs);
    const int32_t n_embd = e->model->info.n_embd;
    ranked *list = ob_arena_array(&e->job.arena, n, sizeof *list);
    if (!list) {
        out->failed = OB_E_NO_MEMORY;
        return;
    }
    for (size_t i = 0; i < n; i++)
        list[i] = (ranked){.index = i,
                           .score = scores_pairs(e) ? 1 / (1 + exp(-(double)e->rows[i]))
                                                    : cosine(e->rows, e->rows + (i + 1) * (size_t)n_embd, n_embd)};
    qsort(list, n, sizeof *list, by_score);
    ob_buf_adds(out, "{\"object\":\"list\",\"model\":");
    ob_buf_add_json(out, e->model->id, strlen(e->model->id));
    ob_buf_adds(out, ",\"results\":[");
    for (size_t i = 0; i < e->top_n; i++) {
        ob_buf_addf(out, "%s{\"index\":%zu,\"relevance_score\":", i ? "," : "", list[i].index);
        ob_buf_add_double(out, list[i].score);
        if (e->with_documents) {
            const json_t *text = document_text(json_array_get(docs, list[i].index));
            ob_buf_adds(out, ",\"document\":{\"text\":");
            ob_buf_add_json(out, json_string_value(text), json_string_length(text));
            ob_buf_addc(out, '}');
        }
        ob_buf_addc(out, '}');
    }
    ob_buf_adds(out, "],");
    add_usage(e);
    ob_buf_addc(out, '}');
}

void ob_route_rerank(ob_conn *c)
{
    start(c, ob_conn_server(c)->rerank, "--rerank", read_rerank, write_rerank);
}
