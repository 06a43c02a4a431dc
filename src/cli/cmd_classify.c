/* 1bit classify: which kind of answer a request needs, or the answer to a typed question. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/limits.h"
#include "cli/cli.h"
#include "cli/scorer.h"
#include "route/turns.h"

enum { MAX_OUTPUT_BYTES = 1 << 30 };

typedef struct classify {
    ob_scorer *scorer;
    const ob_question *q;
    bool own_question; /* then the byte gate does not apply */
    bool json;
} classify;

static ob_status read_question(const ob_args *a, ob_question *q, ob_err *err)
{
    const char *path = ob_cli_str(a, OB_OPT_QUESTION);
    ob_buf b;
    json_t *v = NULL;
    FILE *f = fopen(path, "rb");
    if (!f) return ob_err_set_errno(err, OB_E_NOT_FOUND, errno, "%.150s", path);
    ob_buf_init(&b, 1 << 20);
    ob_status s = ob_cli_read_all(f, path, &b, err);
    fclose(f);
    if (s == OB_OK) s = ob_json_load(ob_buf_str(&b), b.len, path, &v, err);
    if (s == OB_OK) s = ob_question_parse(v, path, q, err);
    json_decref(v);
    ob_buf_deinit(&b);
    return s;
}

static ob_status write_one(const classify *c, const ob_turns *t, ob_buf *out, ob_err *err)
{
    if (!c->own_question && ob_turns_bytes(t) >= OB_ROUTE_GATE_BYTES) {
        ob_buf_adds(out, c->json ? "{\"class\": \"long_doc\", \"confidence\": 1, \"probabilities\": {\"long_doc\": 1}}"
                                 : "long_doc 1.00\n");
        return OB_OK;
    }
    ob_decision d;
    OB_TRY(ob_scorer_ask(c->scorer, c->q, t, &d, err));
    const char *best = c->q->options[d.best].label;
    if (!c->json) {
        ob_buf_addf(out, "%s %.2f\n", best, (double)d.confidence);
        return OB_OK;
    }
    ob_buf_adds(out, "{\"class\": ");
    ob_buf_add_json(out, best, strlen(best));
    ob_buf_addf(out, ", \"confidence\": %.6f, \"probabilities\": {", (double)d.confidence);
    for (int32_t i = 0; i < d.n; i++) {
        if (i) ob_buf_adds(out, ", ");
        ob_buf_add_json(out, c->q->options[i].label, strlen(c->q->options[i].label));
        ob_buf_addf(out, ": %.6f", (double)d.probs[i]);
    }
    ob_buf_adds(out, "}}");
    return OB_OK;
}

/* The words of the command line are one text. */
static ob_status classify_words(const ob_args *a, const classify *c, ob_buf *out, ob_err *err)
{
    ob_buf text;
    ob_buf_init(&text, OB_MAX_TOK_TEXT_BYTES);
    ob_status s = OB_OK;
    for (int i = 0; i < a->n_pos; i++) {
        if (i) ob_buf_addc(&text, ' ');
        ob_buf_adds(&text, a->pos[i]);
    }
    if (a->n_pos == 0) s = ob_cli_read_all(stdin, "standard input", &text, err);
    if (s == OB_OK) s = ob_buf_status(&text, err);
    if (s == OB_OK && text.len == 0) s = ob_err_set(err, OB_E_INVALID, "there is no text to classify");
    const ob_str str = {ob_buf_str(&text), text.len};
    if (s == OB_OK) s = write_one(c, &(ob_turns){&str, 1}, out, err);
    if (c->json) ob_buf_addc(out, '\n');
    ob_buf_deinit(&text);
    return s;
}

/* Standard input holds a JSON list of conversations. */
static ob_status classify_lists(const classify *c, ob_buf *out, ob_err *err)
{
    ob_buf text;
    json_t *list = NULL, *item;
    size_t i;
    ob_buf_init(&text, OB_MAX_BODY_BYTES);
    ob_status s = ob_cli_read_all(stdin, "standard input", &text, err);
    if (s == OB_OK) s = ob_json_load(ob_buf_str(&text), text.len, "standard input", &list, err);
    if (s == OB_OK && !json_is_array(list))
        s = ob_err_set(err, OB_E_INVALID, "standard input is no JSON list of message lists");
    ob_buf_addc(out, '[');
    if (s == OB_OK) {
        json_array_foreach(list, i, item)
        {
            char what[48];
            ob_turn_list t;
            snprintf(what, sizeof what, "conversation %zu", i);
            s = ob_turns_parse(item, what, &t, err);
            if (s != OB_OK) break;
            ob_buf_adds(out, i ? ",\n " : "");
            s = write_one(c, &t.turns, out, err);
            ob_turn_list_deinit(&t);
            if (s != OB_OK) break;
        }
    }
    ob_buf_adds(out, "]\n");
    json_decref(list);
    ob_buf_deinit(&text);
    return s;
}

int ob_cmd_classify(const ob_args *a)
{
    ob_err err;
    ob_status s = OB_OK;
    ob_question own = {0};
    classify c = {.json = ob_cli_flag(a, OB_OPT_JSON), .own_question = ob_cli_str(a, OB_OPT_QUESTION) != NULL};
    ob_buf out;
    ob_buf_init(&out, MAX_OUTPUT_BYTES);
    if (c.own_question) OB_GOTO(read_question(a, &own, &err));
    c.q = c.own_question ? &own : ob_question_classes();
    OB_GOTO(ob_cli_load_scorer(a, &c.scorer, &err));
    OB_GOTO(c.json && a->n_pos == 0 ? classify_lists(&c, &out, &err) : classify_words(a, &c, &out, &err));
out:;
    int rc = s == OB_OK ? ob_cli_print(a, &out) : ob_cli_fail(a, &err);
    ob_scorer_free(c.scorer);
    ob_question_deinit(&own);
    ob_buf_deinit(&out);
    return rc;
}
