/* 1bit policy: measure, show and explain which target serves which kind of request. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/math.h"
#include "base/outfile.h"
#include "cli/load.h"
#include "cli/scorer.h"
#include "route/measure.h"
#include "route/policy.h"

enum { MAX_OUTPUT_BYTES = 1 << 24 };

static ob_status load_policy(const ob_args *a, ob_policy *p, ob_err *err)
{
    const char *path = ob_cli_str(a, OB_OPT_ROUTE_POLICY);
    if (path) return ob_policy_load(path, p, err);
    ob_policy_default(p);
    return OB_OK;
}

/* ---- measure ------------------------------------------------------------------------------------ */

static void on_note(void *arg, const char *target, int32_t n_prompt, const char *error)
{
    const ob_args *a = arg;
    if (error) fprintf(stderr, "1bit policy: %s is left out: %s\n", target, error);
    else if (!ob_cli_flag(a, OB_OPT_QUIET)) fprintf(stderr, "1bit policy: %s, prompts of %d tokens\n", target, n_prompt);
}

/* "a,b,c" into a list; the text is cut in place. */
static int32_t split(char *text, const char **list, int32_t most)
{
    int32_t n = 0;
    for (char *save, *s = strtok_r(text, ",", &save); s && n < most; s = strtok_r(NULL, ",", &save)) list[n++] = s;
    return n;
}

/* Every device of this machine that is not an emulation. */
static int32_t all_devices(char names[][32], const char **list)
{
    int32_t n = 0;
    for (const ob_dev_api *const *a = ob_dev_registry(); *a; a++)
        for (int i = 0, count = (*a)->count(); i < count && n < OB_MAX_TARGETS; i++) {
            ob_dev_info info;
            memset(&info, 0, sizeof info);
            (*a)->probe(i, &info);
            if (!info.available || (info.caps & OB_DEV_SOFT)) continue;
            snprintf(names[n], sizeof names[n], i ? "%.20s:%d" : "%.20s", (*a)->kind, i);
            list[n] = names[n];
            n++;
        }
    return n;
}

static ob_status write_file(const char *path, const ob_policy *p, ob_err *err)
{
    ob_buf b;
    ob_outfile *o = NULL;
    ob_buf_init(&b, MAX_OUTPUT_BYTES);
    ob_policy_write(p, &b);
    ob_status s = ob_buf_status(&b, err);
    if (s == OB_OK) s = ob_outfile_new(path, &o, err);
    if (s == OB_OK) s = ob_outfile_write(o, b.data, b.len, err);
    if (s == OB_OK) s = ob_outfile_commit(o, err);
    else ob_outfile_abort(o);
    ob_buf_deinit(&b);
    return s;
}

static ob_status measure(const ob_args *a, ob_buf *out, ob_err *err)
{
    const char *targets[OB_MAX_TARGETS], *parts[OB_MAX_LENGTHS], *given = ob_cli_str(a, OB_OPT_TARGETS);
    char names[OB_MAX_TARGETS][32], text[4096], lengths_text[256];
    int32_t lengths[OB_MAX_LENGTHS];
    ob_policy p;
    ob_scorer *scorer = NULL;
    ob_cli_load load = {0};
    ob_status s = OB_OK;
    ob_measure_params m = {.targets = targets, .lengths = lengths, .n_repeat = (int32_t)ob_cli_int(a, OB_OPT_REPETITIONS),
                           .on_note = on_note, .arg = (void *)a};
    if (given) {
        snprintf(text, sizeof text, "%s", given);
        m.n_targets = split(text, targets, OB_MAX_TARGETS);
    } else {
        m.n_targets = all_devices(names, targets);
    }
    snprintf(lengths_text, sizeof lengths_text, "%s", ob_cli_str(a, OB_OPT_LENGTHS));
    m.n_lengths = split(lengths_text, parts, OB_MAX_LENGTHS);
    for (int32_t i = 0; i < m.n_lengths; i++) {
        lengths[i] = atoi(parts[i]);
        if (lengths[i] < 1 || (i && lengths[i] <= lengths[i - 1]))
            return ob_err_set(err, OB_E_INVALID, "--lengths wants ascending numbers of tokens, such as 64,512,2048");
    }
    if (m.n_targets < 1 || m.n_lengths < 1) return ob_err_set(err, OB_E_INVALID, "there is nothing to measure");
    OB_GOTO(ob_cli_load_init(&load, a, err));
    m.engine = load.params;
    if (m.engine.n_ctx == 0) m.engine.n_ctx = lengths[m.n_lengths - 1] + 64;
    ob_err why;
    if (ob_cli_load_scorer(a, &scorer, &why) == OB_OK) m.scorer = scorer;
    else fprintf(stderr, "1bit policy: decisions are not measured: %s\n", why.text);
    OB_GOTO(ob_policy_measure(&m, &p, err));
    OB_GOTO(write_file(ob_cli_str(a, OB_OPT_OUTPUT), &p, err));
    ob_policy_show(&p, out);
out:
    ob_scorer_free(scorer);
    ob_cli_load_deinit(&load);
    return s;
}

/* ---- show and explain --------------------------------------------------------------------------- */

static ob_status explain(const ob_args *a, ob_buf *out, ob_err *err)
{
    ob_policy p;
    ob_scorer *scorer = NULL;
    ob_decision d = {.best = OB_CLASS_LONG_DOC, .confidence = 1};
    ob_buf text;
    ob_status s = OB_OK;
    ob_candidate cand[OB_MAX_TARGETS + 1];
    int32_t n = 0;
    ob_buf_init(&text, OB_MAX_TOK_TEXT_BYTES);
    for (int i = 1; i < a->n_pos; i++) ob_buf_addf(&text, "%s%s", i > 1 ? " " : "", a->pos[i]);
    OB_GOTO(ob_buf_status(&text, err));
    if (text.len == 0) OB_GOTO(ob_err_set(err, OB_E_INVALID, "there is no text to explain"));
    OB_GOTO(load_policy(a, &p, err));
    const ob_str str = {text.data, text.len};
    const ob_turns turns = {&str, 1};
    const bool gate = ob_turns_bytes(&turns) >= OB_ROUTE_GATE_BYTES;
    if (!gate) {
        OB_GOTO(ob_cli_load_scorer(a, &scorer, err));
        OB_GOTO(ob_scorer_ask(scorer, ob_question_classes(), &turns, &d, err));
    }
    const ob_class c = (ob_class)d.best;
    const int32_t n_prompt = (int32_t)OB_MIN(text.len / 4 + 1, (size_t)INT32_MAX); /* a guess: no model is loaded */
    cand[n++] = (ob_candidate){.name = p.fallback, .n_seq = 4};
    for (int32_t i = 0; i < p.measured.n_targets; i++)
        if (strcmp(p.measured.targets[i].name, p.fallback) != 0) cand[n++] = (ob_candidate){.name = p.measured.targets[i].name, .n_seq = 4};
    for (int i = 0; i < OB_CLASS_COUNT && n <= OB_MAX_TARGETS; i++) {
        int32_t k = 0;
        while (k < n && strcmp(cand[k].name, p.target[i]) != 0) k++;
        if (k == n) cand[n++] = (ob_candidate){.name = p.target[i], .n_seq = 4};
    }
    const ob_pick pick = ob_policy_pick(&p, c, (double)d.confidence, n_prompt, cand, n);
    ob_buf_addf(out, "%s %.2f %s\n", ob_class_name(c), (double)d.confidence, cand[pick.target].name);
    if (gate) ob_buf_addf(out, "%zu bytes: a long_doc from %d on, without asking the model\n", text.len, OB_ROUTE_GATE_BYTES);
    else
        for (int32_t i = 0; i < d.n; i++)
            ob_buf_addf(out, "%-9s %.3f\n", ob_class_name((ob_class)i), (double)d.probs[i]);
    ob_buf_addf(out, "target    %s: %s\n", cand[pick.target].name, pick.reason);
    for (int32_t i = 0; i < n; i++) {
        double ttft;
        const double all = ob_policy_predict(&p, cand[i].name, c, n_prompt, 0, 4, &ttft);
        if (isfinite(all))
            ob_buf_addf(out, "%-9s first token after %.0f ms, a reply of %d tokens after %.0f ms\n", cand[i].name, ttft,
                        p.measured.out_tok[c], all);
    }
out:
    ob_scorer_free(scorer);
    ob_buf_deinit(&text);
    return s;
}

int ob_cmd_policy(const ob_args *a)
{
    ob_err err;
    ob_status s;
    ob_policy p;
    const char *what = a->pos[0];
    ob_buf out;
    const bool is_measure = !strcmp(what, "measure"), is_show = !strcmp(what, "show");
    if (!is_measure && !is_show && strcmp(what, "explain") != 0)
        return ob_cli_usage_error(a->cmd_name, "\"%s\" is not one of measure, show, explain", what);
    if (is_measure && !ob_cli_str(a, OB_OPT_OUTPUT)) return ob_cli_usage_error(a->cmd_name, "--output FILE is missing");
    if (is_measure && !ob_cli_str(a, OB_OPT_MODEL)) return ob_cli_usage_error(a->cmd_name, "-m MODEL is missing");
    ob_buf_init(&out, MAX_OUTPUT_BYTES);
    if (is_measure) {
        s = measure(a, &out, &err);
    } else if (is_show) {
        s = load_policy(a, &p, &err);
        if (s == OB_OK && ob_cli_flag(a, OB_OPT_JSON)) ob_policy_write(&p, &out);
        else if (s == OB_OK) ob_policy_show(&p, &out);
    } else {
        s = explain(a, &out, &err);
    }
    const int rc = s == OB_OK ? ob_cli_print(a, &out) : ob_cli_fail(a, &err);
    ob_buf_deinit(&out);
    return rc;
}
