/* The policy file, the choice, and predictions. */
#include "route/policy.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/math.h"

enum { MAX_POLICY_BYTES = 4 << 20 };

/* Tokens of a prompt that a class stands for where none is known: a text below the gate, or a long one. */
static const int32_t k_typical_prompt[OB_CLASS_COUNT] = {128, 96, 64, 2048};
static const int32_t k_typical_reply[OB_CLASS_COUNT] = {256, 320, 16, 192};

void ob_policy_default(ob_policy *p)
{
    *p = (ob_policy){.min_confidence = 0.16, .fallback = "auto", .measured = {.margin = 0.1, .busy = 4}};
    for (int c = 0; c < OB_CLASS_COUNT; c++) {
        strcpy(p->target[c], "auto");
        strcpy(p->why[c], "nothing was measured");
        p->measured.out_tok[c] = k_typical_reply[c];
    }
}

/* ------------------------------------------------------------------ reading */

static ob_status copy_name(const json_t *v, const char *what, const char *key, char *out, size_t cap, ob_err *err)
{
    const char *s = json_string_value(v);
    if (!s || !*s) return ob_err_set(err, OB_E_INVALID, "%s: %s is missing or no text", what, key);
    if (strlen(s) >= cap) return ob_err_set(err, OB_E_INVALID, "%s: %s is longer than %zu bytes", what, key, cap - 1);
    strcpy(out, s);
    return OB_OK;
}

static ob_status number(const json_t *o, const char *what, const char *key, double least, double most, double *out,
                        ob_err *err)
{
    const json_t *v = json_object_get(o, key);
    if (!v) return OB_OK;
    if (!json_is_number(v) || !(json_number_value(v) >= least && json_number_value(v) <= most))
        return ob_err_set(err, OB_E_INVALID, "%s: %s is no number from %g to %g", what, key, least, most);
    *out = json_number_value(v);
    return OB_OK;
}

static ob_status read_class(ob_policy *p, const json_t *classes, ob_class c, const char *what, ob_err *err)
{
    char key[64], model[OB_TARGET_NAME * 4] = "";
    const json_t *v = json_object_get(classes, ob_class_name(c));
    snprintf(key, sizeof key, "classes.%s", ob_class_name(c));
    if (!json_is_object(v)) return ob_err_set(err, OB_E_INVALID, "%s: %s is missing", what, key);
    snprintf(key, sizeof key, "classes.%s.device", ob_class_name(c));
    OB_TRY(copy_name(json_object_get(v, "device"), what, key, p->target[c], OB_TARGET_NAME, err));
    if (json_object_get(v, "model")) {
        OB_TRY(copy_name(json_object_get(v, "model"), what, "a class's model", model, sizeof model, err));
        snprintf(p->target[c] + strlen(p->target[c]), sizeof p->target[c] - strlen(p->target[c]), "@%s", model);
    }
    const char *why = json_string_value(json_object_get(v, "why"));
    snprintf(p->why[c], sizeof p->why[c], "%s", why ? why : "");
    return OB_OK;
}

static ob_status read_target(ob_measured *m, const json_t *v, const char *what, ob_err *err)
{
    if (m->n_targets == OB_MAX_TARGETS)
        return ob_err_set(err, OB_E_INVALID, "%s: measured has more than %d targets", what, OB_MAX_TARGETS);
    ob_measured_target *t = &m->targets[m->n_targets];
    size_t i;
    json_t *row;
    OB_TRY(copy_name(json_object_get(v, "target"), what, "measured.targets[].target", t->name, sizeof t->name, err));
    json_array_foreach(json_object_get(v, "times"), i, row)
    {
        if (t->n == OB_MAX_LENGTHS) return ob_err_set(err, OB_E_INVALID, "%s: too many lengths were measured", what);
        ob_measure *r = &t->at[t->n];
        double n = 0;
        OB_TRY(number(row, what, "n_prompt", 1, 1e7, &n, err));
        OB_TRY(number(row, what, "ttft_ms", 0, 1e9, &r->ttft_ms, err));
        OB_TRY(number(row, what, "token_ms", 0, 1e9, &r->token_ms, err));
        r->busy_token_ms = r->token_ms;
        OB_TRY(number(row, what, "busy_token_ms", 0, 1e9, &r->busy_token_ms, err));
        OB_TRY(number(row, what, "spread", 0, 1e9, &r->spread, err));
        r->n_prompt = (int32_t)n;
        if (n < 1 || (t->n && r->n_prompt <= t->at[t->n - 1].n_prompt))
            return ob_err_set(err, OB_E_INVALID, "%s: measured lengths do not ascend", what);
        t->n++;
    }
    if (t->n == 0) return ob_err_set(err, OB_E_INVALID, "%s: measured target %.80s has no times", what, t->name);
    m->n_targets++;
    return OB_OK;
}

static ob_status read_measured(ob_policy *p, const json_t *v, const char *what, ob_err *err)
{
    ob_measured *m = &p->measured;
    size_t i;
    json_t *row;
    double busy = m->busy;
    static const struct { const char *key; size_t off, cap; } texts[] = {
        {"machine", offsetof(ob_measured, machine), sizeof m->machine}, {"when", offsetof(ob_measured, when), sizeof m->when},
        {"model", offsetof(ob_measured, model), sizeof m->model}};
    for (size_t k = 0; k < OB_COUNT(texts); k++) {
        const char *s = json_string_value(json_object_get(v, texts[k].key));
        snprintf((char *)m + texts[k].off, texts[k].cap, "%s", s ? s : "");
    }
    OB_TRY(number(v, what, "margin", 0, 10, &m->margin, err));
    OB_TRY(number(v, what, "busy", 1, 1024, &busy, err));
    OB_TRY(number(v, what, "decision_ms", 0, 1e6, &m->decision_ms, err));
    OB_TRY(number(v, what, "decision_spread", 0, 1e6, &m->decision_spread, err));
    m->busy = (int32_t)busy;
    for (int c = 0; c < OB_CLASS_COUNT; c++) {
        double n = m->out_tok[c];
        OB_TRY(number(json_object_get(v, "reply_tokens"), what, ob_class_name((ob_class)c), 1, 1e6, &n, err));
        m->out_tok[c] = (int32_t)n;
    }
    json_array_foreach(json_object_get(v, "targets"), i, row) OB_TRY(read_target(m, row, what, err));
    return OB_OK;
}

ob_status ob_policy_parse(const char *text, size_t len, const char *what, ob_policy *p, ob_err *err)
{
    ob_status s = OB_OK;
    json_t *v = NULL;
    const char *name;
    json_t *item;
    ob_policy_default(p);
    OB_GOTO(ob_json_load(text, len, what, &v, err));
    json_t *classes = json_object_get(v, "classes");
    if (!json_is_object(classes)) OB_GOTO(ob_err_set(err, OB_E_INVALID, "%s: classes is missing", what));
    OB_GOTO(number(v, what, "min_confidence", 0, 1e6, &p->min_confidence, err));
    OB_GOTO(copy_name(json_object_get(v, "default"), what, "default", p->fallback, sizeof p->fallback, err));
    json_object_foreach(classes, name, item)
    {
        (void)item;
        if (ob_class_find(name) == OB_CLASS_COUNT)
            OB_GOTO(ob_err_set(err, OB_E_INVALID, "%s: classes.%.40s is not one of code, prose, short, long_doc", what, name));
    }
    for (int c = 0; c < OB_CLASS_COUNT; c++) OB_GOTO(read_class(p, classes, (ob_class)c, what, err));
    if (json_object_get(v, "measured")) OB_GOTO(read_measured(p, json_object_get(v, "measured"), what, err));
out:
    json_decref(v);
    return s;
}

ob_status ob_policy_load(const char *path, ob_policy *p, ob_err *err)
{
    FILE *f = fopen(path, "rb");
    if (!f) return ob_err_set_errno(err, errno == ENOENT ? OB_E_NOT_FOUND : OB_E_IO, errno, "route policy %.150s", path);
    ob_buf b;
    char chunk[4096];
    ob_buf_init(&b, MAX_POLICY_BYTES);
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;) ob_buf_add(&b, chunk, n);
    ob_status s = ferror(f) ? ob_err_set(err, OB_E_IO, "route policy %.150s cannot be read", path) : ob_buf_status(&b, err);
    fclose(f);
    char what[200];
    snprintf(what, sizeof what, "route policy %.150s", path);
    if (s == OB_OK) s = ob_policy_parse(ob_buf_str(&b), b.len, what, p, err);
    ob_buf_deinit(&b);
    return s;
}

/* ------------------------------------------------------------------ writing */

static void add_text(ob_buf *out, const char *key, const char *value)
{
    ob_buf_addf(out, "\"%s\": ", key);
    ob_buf_add_json(out, value, strlen(value));
}

static void write_measured(const ob_measured *m, ob_buf *out)
{
    ob_buf_adds(out, ",\n  \"measured\": {\n    ");
    add_text(out, "when", m->when);
    ob_buf_adds(out, ", ");
    add_text(out, "machine", m->machine);
    ob_buf_adds(out, ", ");
    add_text(out, "model", m->model);
    ob_buf_addf(out, ",\n    \"margin\": %g, \"busy\": %d, \"decision_ms\": %.3f, \"decision_spread\": %.3f,\n    \"reply_tokens\": {",
                m->margin, m->busy, m->decision_ms, m->decision_spread);
    for (int c = 0; c < OB_CLASS_COUNT; c++)
        ob_buf_addf(out, "%s\"%s\": %d", c ? ", " : "", ob_class_name((ob_class)c), m->out_tok[c]);
    ob_buf_adds(out, "},\n    \"targets\": [");
    for (int32_t t = 0; t < m->n_targets; t++) {
        ob_buf_adds(out, t ? ",\n      {" : "\n      {");
        add_text(out, "target", m->targets[t].name);
        ob_buf_adds(out, ", \"times\": [");
        for (int32_t i = 0; i < m->targets[t].n; i++) {
            const ob_measure *r = &m->targets[t].at[i];
            ob_buf_addf(out, "%s\n        {\"n_prompt\": %d, \"ttft_ms\": %.3f, \"token_ms\": %.3f, \"busy_token_ms\": %.3f, \"spread\": %.3f}",
                        i ? "," : "", r->n_prompt, r->ttft_ms, r->token_ms, r->busy_token_ms, r->spread);
        }
        ob_buf_adds(out, "]}");
    }
    ob_buf_adds(out, "]\n  }");
}

void ob_policy_write(const ob_policy *p, ob_buf *out)
{
    ob_buf_adds(out, "{\n  \"about\": \"which target serves which kind of request; written by 1bit policy measure\",\n");
    ob_buf_addf(out, "  \"min_confidence\": %g,\n  ", p->min_confidence);
    add_text(out, "default", p->fallback);
    ob_buf_adds(out, ",\n  \"classes\": {");
    for (int c = 0; c < OB_CLASS_COUNT; c++) {
        char device[sizeof p->target[0]];
        strcpy(device, p->target[c]);
        char *colon = strchr(device, '@');
        if (colon) *colon = 0;
        ob_buf_addf(out, "%s\n    \"%s\": {", c ? "," : "", ob_class_name((ob_class)c));
        add_text(out, "device", device);
        if (colon) {
            ob_buf_adds(out, ", ");
            add_text(out, "model", colon + 1);
        }
        ob_buf_adds(out, ", ");
        add_text(out, "why", p->why[c]);
        ob_buf_addc(out, '}');
    }
    ob_buf_adds(out, "\n  }");
    if (p->measured.n_targets) write_measured(&p->measured, out);
    ob_buf_adds(out, "\n}\n");
}

void ob_policy_show(const ob_policy *p, ob_buf *out)
{
    const ob_measured *m = &p->measured;
    ob_buf_addf(out, "default %s, confidence from %.2f\n\n", p->fallback, p->min_confidence);
    for (int c = 0; c < OB_CLASS_COUNT; c++)
        ob_buf_addf(out, "%-9s %-12s %s\n", ob_class_name((ob_class)c), p->target[c], p->why[c]);
    if (!m->n_targets) return;
    ob_buf_addf(out, "\nMeasured %s on %s with %s: milliseconds, a decision %.1f (±%.1f)\n\n%-14s%8s%12s%12s%12s%9s\n", m->when,
                m->machine, m->model, m->decision_ms, m->decision_spread, "target", "prompt", "first token", "each token", "busy", "spread");
    for (int32_t t = 0; t < m->n_targets; t++)
        for (int32_t i = 0; i < m->targets[t].n; i++) {
            const ob_measure *r = &m->targets[t].at[i];
            ob_buf_addf(out, "%-14s%8d%12.1f%12.2f%12.2f%8.0f%%\n", m->targets[t].name, r->n_prompt, r->ttft_ms, r->token_ms,
                        r->busy_token_ms, r->spread * 100);
        }
    ob_buf_adds(out, "\nPicks by class and prompt length\n\nclass    ");
    const ob_measured_target *first = &m->targets[0];
    for (int32_t i = 0; i < first->n; i++) ob_buf_addf(out, "%12d", first->at[i].n_prompt);
    ob_buf_addc(out, '\n');
    for (int c = 0; c < OB_CLASS_COUNT; c++) {
        ob_buf_addf(out, "%-9s", ob_class_name((ob_class)c));
        for (int32_t i = 0; i < first->n; i++)
            ob_buf_addf(out, "%12s", m->targets[ob_policy_cell(p, (ob_class)c, first->at[i].n_prompt)].name);
        ob_buf_addc(out, '\n');
    }
}

/* ------------------------------------------------------------------ choosing */

/* Between two measured lengths a straight line; below the first its value; above the last its time per token. */
static ob_measure at_length(const ob_measured_target *t, int32_t n_prompt)
{
    int32_t i = 0;
    while (i < t->n - 1 && t->at[i + 1].n_prompt <= n_prompt) i++;
    ob_measure a = t->at[i];
    if (n_prompt <= a.n_prompt) return a;
    if (i == t->n - 1) {
        a.ttft_ms *= (double)n_prompt / a.n_prompt;
        return a;
    }
    const ob_measure *b = &t->at[i + 1];
    const double f = (double)(n_prompt - a.n_prompt) / (b->n_prompt - a.n_prompt);
    a.ttft_ms += f * (b->ttft_ms - a.ttft_ms);
    a.token_ms += f * (b->token_ms - a.token_ms);
    a.busy_token_ms += f * (b->busy_token_ms - a.busy_token_ms);
    return a;
}

double ob_policy_predict(const ob_policy *p, const char *target, ob_class c, int32_t n_prompt, int32_t ahead, int32_t n_seq,
                         double *ttft)
{
    const ob_measured *m = &p->measured;
    int32_t t = 0;
    while (t < m->n_targets && strcmp(m->targets[t].name, target) != 0) t++;
    if (ttft) *ttft = NAN;
    if (t == m->n_targets) return NAN;
    const ob_measure at = at_length(&m->targets[t], n_prompt);
    const double share = m->busy > 1 ? fmin((double)ahead / (m->busy - 1), 1) : 0;
    const double token = at.token_ms + share * (at.busy_token_ms - at.token_ms);
    const double alone = at.ttft_ms + m->out_tok[c] * token;
    /* who waits for a place waits, on average, for half of a reply of everyone in the way */
    const double wait = n_seq > 0 && ahead >= n_seq ? (double)(ahead - n_seq + 1) / n_seq * alone * 0.5 : 0;
    if (ttft) *ttft = wait + at.ttft_ms;
    return wait + alone;
}

static int32_t find(const ob_candidate *cand, int32_t n, const char *name)
{
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(cand[i].name, name)) return i;
    return -1;
}

static double predict(const ob_policy *p, ob_class c, int32_t n_prompt, const ob_candidate *k)
{
    return ob_policy_predict(p, k->name, c, n_prompt, k->n_ahead, k->n_seq, NULL);
}

ob_pick ob_policy_pick(const ob_policy *p, ob_class c, double confidence, int32_t n_prompt, const ob_candidate *cand, int32_t n)
{
    ob_pick pick = {.target = 0, .reason = "default"};
    const int32_t fallback = OB_MAX(find(cand, n, p->fallback), 0);
    pick.target = fallback;
    if (c >= OB_CLASS_COUNT) {
        pick.predicted_ms = NAN;
        return pick;
    }
    if (!(confidence >= p->min_confidence)) {
        pick.reason = "confidence is below the floor";
    } else {
        const int32_t named = find(cand, n, p->target[c]);
        pick.reason = named < 0 ? "the class's target is not there" : "the class's target";
        pick.target = named < 0 ? fallback : named;
        double best = predict(p, c, n_prompt, &cand[pick.target]);
        const double keep = 1 - p->measured.margin;
        for (int32_t i = 0; i < n; i++) {
            const double t = predict(p, c, n_prompt, &cand[i]);
            if (i == pick.target || !isfinite(t) || (isfinite(best) && !(t < best * keep))) continue;
            best = t;
            pick.target = i;
            pick.reason = cand[i].n_ahead < cand[OB_MAX(named, 0)].n_ahead ? "shorter queue" : "faster for this length";
        }
    }
    pick.predicted_ms = predict(p, c, n_prompt, &cand[pick.target]);
    return pick;
}

int32_t ob_policy_cell(const ob_policy *p, ob_class c, int32_t n_prompt)
{
    const ob_measured *m = &p->measured;
    int32_t best = 0;
    for (int32_t t = 1; t < m->n_targets; t++) {
        const double a = ob_policy_predict(p, m->targets[t].name, c, n_prompt, 0, 1, NULL);
        const double b = ob_policy_predict(p, m->targets[best].name, c, n_prompt, 0, 1, NULL);
        /* noise must not flip a cell: the gain has to pass the margin and what the repeats differed by */
        const double noise = fmin(at_length(&m->targets[t], n_prompt).spread + at_length(&m->targets[best], n_prompt).spread, 0.5);
        if (a < b * (1 - fmax(m->margin, noise))) best = t;
    }
    return best;
}

void ob_policy_decide(ob_policy *p)
{
    const ob_measured *m = &p->measured;
    if (!m->n_targets) return;
    for (int c = 0; c < OB_CLASS_COUNT; c++) {
        const int32_t n = k_typical_prompt[c], t = ob_policy_cell(p, (ob_class)c, n);
        int at = snprintf(p->why[c], sizeof p->why[c], "%d + %d tokens:", n, m->out_tok[c]);
        for (int32_t i = 0; i < m->n_targets && at > 0 && (size_t)at < sizeof p->why[c]; i++)
            at += snprintf(p->why[c] + at, sizeof p->why[c] - (size_t)at, "%s %.40s %.0f ms", i ? "," : "", m->targets[i].name,
                           ob_policy_predict(p, m->targets[i].name, (ob_class)c, n, 0, 1, NULL));
        strcpy(p->target[c], m->targets[t].name);
    }
    strcpy(p->fallback, m->targets[0].name);
}
