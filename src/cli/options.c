#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"

/* ---- Checking a value ----------------------------------------------------------------------- */

static ob_status parse_int(const ob_option *o, const char *shown, const char *text, int64_t *out,
                           ob_err *err)
{
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (end == text || *end || errno == ERANGE)
        return ob_err_set(err, OB_E_INVALID, "%s needs a whole number, not '%s'", shown, text);
    if ((double)x < o->min || (double)x > o->max)
        return ob_err_set(err, OB_E_INVALID, "%s must be from %.0f to %.0f, not %s", shown, o->min,
                          o->max, text);
    *out = x;
    return OB_OK;
}

static ob_status parse_float(const ob_option *o, const char *shown, const char *text, double *out,
                             ob_err *err)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        return ob_err_set(err, OB_E_INVALID, "%s needs a number, not '%s'", shown, text);
    if (x < o->min || x > o->max)
        return ob_err_set(err, OB_E_INVALID, "%s must be from %g to %g, not %s", shown, o->min,
                          o->max, text);
    *out = x;
    return OB_OK;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *p = choices; p;) {
        const char *bar = strchr(p, '|');
        size_t len = bar ? (size_t)(bar - p) : strlen(p);
        if (len == n && memcmp(p, text, n) == 0) return true;
        p = bar ? bar + 1 : NULL;
    }
    return false;
}

/* Bytes: a number and one letter, or none. */
static ob_status parse_size(const ob_option *o, const char *shown, const char *text, int64_t *out, ob_err *err)
{
    static const char units[] = "KMGT";
    char *end;
    double x = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    if (end == text || !isfinite(x) || (*end && (!unit || end[1])))
        return ob_err_set(err, OB_E_INVALID, "%s needs a size such as 800M or 12.5G, not '%s'", shown, text);
    for (const char *u = units; unit && u <= unit; u++) x *= 1024;
    if (x < o->min || x > o->max)
        return ob_err_set(err, OB_E_INVALID, "%s must be from %.0f to %.0f bytes, not %s", shown, o->min, o->max, text);
    *out = (int64_t)x;
    return OB_OK;
}

static ob_status append(ob_opt_value *v, const char *text, ob_err *err)
{
    const char **list = ob_reallocarray(v->list, (size_t)v->n_list + 1, sizeof *list);
    if (!list) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the arguments");
    v->list = list;
    v->list[v->n_list++] = text;
    return OB_OK;
}

/* `shown` is how the user wrote the option, for messages; `text` is NULL for flags. */
static ob_status set_value(const ob_option *o, const char *shown, const char *text,
                           ob_opt_value *v, ob_err *err)
{
    switch (o->kind) {
    case OB_OPT_KIND_FLAG: v->i++; break;
    case OB_OPT_KIND_INT:
        v->s = NULL;
        v->i = -1;
        if (o->choices && is_choice(o->choices, text)) v->s = text;
        else OB_TRY(parse_int(o, shown, text, &v->i, err));
        break;
    case OB_OPT_KIND_SIZE: OB_TRY(parse_size(o, shown, text, &v->i, err)); break;
    case OB_OPT_KIND_FLOAT: OB_TRY(parse_float(o, shown, text, &v->f, err)); break;
    case OB_OPT_KIND_ENUM:
        if (!is_choice(o->choices, text))
            return ob_err_set(err, OB_E_INVALID, "%s must be one of %s, not '%s'", shown,
                              o->choices, text);
        v->s = text;
        break;
    case OB_OPT_KIND_STRING:
    case OB_OPT_KIND_PATH:
        v->s = text;
        if (o->many) OB_TRY(append(v, text, err));
        break;
    }
    v->is_set = true;
    return OB_OK;
}

/* ---- Finding an option ---------------------------------------------------------------------- */

static const ob_option *find_long(uint64_t cmd_bit, const char *name, size_t len)
{
    for (int i = 0; i < OB_OPT_COUNT; i++) {
        const ob_option *o = ob_cli_option(i);
        if ((o->commands & cmd_bit) && strlen(o->name) == len && memcmp(o->name, name, len) == 0)
            return o;
    }
    return NULL;
}

const char *ob_cli_next_alias(const char **at, int *len)
{
    const char *word = *at;
    if (!word || !*word) return NULL;
    size_t n = strcspn(word, " ");
    *len = (int)n;
    *at = word[n] ? word + n + 1 : NULL;
    return word;
}

static bool has_alias(const ob_option *o, const char *word, size_t len)
{
    int n;
    const char *at = o->aliases;
    for (const char *a; (a = ob_cli_next_alias(&at, &n));)
        if ((size_t)n == len && memcmp(a, word, len) == 0) return true;
    return false;
}

static const ob_option *find_alias(uint64_t cmd_bit, const char *word, size_t len)
{
    for (int i = 0; i < OB_OPT_COUNT; i++)
        if ((ob_cli_option(i)->commands & cmd_bit) && has_alias(ob_cli_option(i), word, len))
            return ob_cli_option(i);
    return NULL;
}

static const ob_option *find_letter(uint64_t cmd_bit, char letter)
{
    for (int i = 0; i < OB_OPT_COUNT; i++)
        if ((ob_cli_option(i)->commands & cmd_bit) && ob_cli_option(i)->letter == letter)
            return ob_cli_option(i);
    return NULL;
}

const ob_option *ob_cli_find_option(uint64_t commands, const char *word)
{
    size_t len = strcspn(word, "=");
    const ob_option *o = find_alias(commands, word, len);
    if (o || word[0] != '-') return o;
    return word[1] == '-' ? find_long(commands, word + 2, len - 2) : find_letter(commands, word[1]);
}

/* Edits (insert, delete, replace, swap of neighbours) that turn a into b; gives up over 64 bytes. */
static int edit_distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    int la = (int)strlen(a), lb = (int)strlen(b);
    if (la > MAX || lb > MAX) return MAX;
    int d[3][MAX + 1]; /* the last three rows of the table, row i in d[i % 3] */
    for (int j = 0; j <= lb; j++) d[0][j] = j;
    for (int i = 1; i <= la; i++) {
        int *row = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            best = OB_MIN(best, OB_MIN(up[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = OB_MIN(best, up2[j - 2] + 1);
            row[j] = best;
        }
    }
    return d[la % 3][lb];
}

const char *ob_cli_nearest(const char *word, const char *const *words, int n)
{
    const char *best = NULL;
    int best_d = (int)strlen(word) / 3 + 2; /* one slip in a short word, more in a long one */
    for (int i = 0; i < n; i++) {
        if (!words[i]) continue;
        int dist = edit_distance(word, words[i]);
        if (dist < best_d) {
            best_d = dist;
            best = words[i];
        }
    }
    return best;
}

static ob_status unknown_option(uint64_t cmd_bit, const char *word, ob_err *err)
{
    const char *name = word + strspn(word, "-");
    char bare[64];
    snprintf(bare, sizeof bare, "%.*s", (int)OB_MIN(strcspn(name, "="), sizeof bare - 1), name);
    enum { MAX_NAMES = 2 * OB_OPT_COUNT };
    const char *names[MAX_NAMES];
    char aliases[OB_OPT_COUNT][32];
    int n = 0, n_aliases = 0;
    for (int i = 0; i < OB_OPT_COUNT; i++) {
        const ob_option *o = ob_cli_option(i);
        if (!(o->commands & cmd_bit)) continue;
        names[n++] = o->name;
        int len;
        const char *at = o->aliases;
        for (const char *a; (a = ob_cli_next_alias(&at, &len)) && n_aliases < OB_OPT_COUNT && n < MAX_NAMES;) {
            if (len < 3 || a[1] != '-') continue; /* long spellings only */
            snprintf(aliases[n_aliases], sizeof aliases[0], "%.*s", len - 2, a + 2);
            names[n++] = aliases[n_aliases++];
        }
    }
    const char *near = ob_cli_nearest(bare, names, n);
    if (near)
        return ob_err_set(err, OB_E_INVALID, "unknown option '%.80s'; did you mean --%s?", word,
                          near);
    return ob_err_set(err, OB_E_INVALID, "unknown option '%.80s'", word);
}

/* ---- Parsing -------------------------------------------------------------------------------- */

typedef struct words {
    int argc, at;
    char **argv;
} words;

static ob_status take_value(const ob_option *o, const char *shown, const char *inline_value,
                            words *w, ob_args *a, ob_err *err)
{
    ob_opt_value *v = &a->values[o - ob_cli_option(0)];
    const char *text = inline_value;
    if (o->kind == OB_OPT_KIND_FLAG) {
        if (inline_value)
            return ob_err_set(err, OB_E_INVALID, "%s takes no value", shown);
    } else if (!text && o->optional && (w->at >= w->argc || (w->argv[w->at][0] == '-' && w->argv[w->at][1]))) {
        text = o->kind == OB_OPT_KIND_ENUM ? o->def : "-";
    } else if (!text) {
        if (w->at >= w->argc)
            return ob_err_set(err, OB_E_INVALID, "%s needs a value (%s)", shown, o->arg);
        text = w->argv[w->at++];
    }
    v->given = true;
    return set_value(o, shown, text, v, err);
}

/* Spellings of llama.cpp's programs that many fingers know and that mean nothing here, with what to do instead. Some would
 * otherwise be taken for a letter with its value. */
static const char *hint_for(const char *word)
{
    static const struct {
        const char *words, *hint;
    } known[] = {
        {" -ngl --n-gpu-layers --gpu-layers ", "all layers run on --device; --split shares them, --cpu-moe keeps experts on the CPU"},
        {" -fa --flash-attn ", "attention is always computed in that way"},
        {" -mg --main-gpu ", "name the GPU: --device vulkan:N"},
        {" -sm --split-mode -ts --tensor-split ", "--device A,B --split 3,1 shares the layers"},
        {" -hf -hfr --hf-repo ", "-m hf://OWNER/REPO/FILE.gguf fetches a model"},
        {" -cnv --conversation -no-cnv --no-conversation -i --interactive ", "`1bit chat` talks, `1bit run` answers once"},
        {" -st --single-turn ", "`1bit run` answers once"},
        {" --jinja --no-jinja ", "chat templates are always rendered as Jinja"},
        {" -b --batch-size ", "-ub N is the most tokens of a step"},
        {" -cb --cont-batching ", "requests always share steps; --parallel N says how many"},
        {" -md --model-draft ", "there are no draft models; --speculate guesses from the text itself"},
    };
    char key[64];
    const size_t len = strcspn(word, "=");
    if (len + 3 > sizeof key) return NULL;
    snprintf(key, sizeof key, " %.*s ", (int)len, word);
    for (size_t i = 0; i < OB_COUNT(known); i++)
        if (strstr(known[i].words, key)) return known[i].hint;
    return NULL;
}

/* One word that starts with a dash: --name, --name=value, an alias, or a run of letters where the
 * last may carry its value (-c4096). */
static ob_status parse_dashed(uint64_t bit, const char *word, words *w, ob_args *a, ob_err *err)
{
    const char *eq = strchr(word, '=');
    size_t len = eq ? (size_t)(eq - word) : strlen(word);
    char shown[64];
    snprintf(shown, sizeof shown, "%.*s", (int)OB_MIN(len, sizeof shown - 1), word);
    const ob_option *o = find_alias(bit, word, len);
    if (!o && word[1] == '-') o = find_long(bit, word + 2, len - 2);
    if (o) return take_value(o, shown, eq ? eq + 1 : NULL, w, a, err);
    const char *hint = word[2] ? hint_for(word) : NULL;
    if (hint) return ob_err_set(err, OB_E_INVALID, "%s is an option of llama.cpp: %s", shown, hint);
    if (word[1] == '-') return unknown_option(bit, word, err);
    for (const char *p = word + 1; *p; p++) {
        o = find_letter(bit, *p);
        if (!o) return unknown_option(bit, word, err);
        char name[3] = {'-', *p, 0};
        if (o->kind == OB_OPT_KIND_FLAG) {
            OB_TRY(take_value(o, name, NULL, w, a, err));
            continue;
        }
        return take_value(o, name, p[1] ? p + 1 : NULL, w, a, err);
    }
    return OB_OK;
}

/* "0", "false", "no" and "" leave a flag off when it comes from the environment. */
static bool env_is_off(const char *text)
{
    return !*text || !strcmp(text, "0") || !strcmp(text, "false") || !strcmp(text, "no");
}

static ob_status fill_unset(const ob_option *o, ob_opt_value *v, ob_err *err)
{
    if (v->is_set) return OB_OK;
    const char *text = o->env ? getenv(o->env) : NULL;
    if (text && *text && !(o->kind == OB_OPT_KIND_FLAG && env_is_off(text))) {
        v->given = true;
        return set_value(o, o->env, text, v, err);
    }
    if (!o->def) return OB_OK;
    char shown[64];
    snprintf(shown, sizeof shown, "--%s", o->name);
    return set_value(o, shown, o->def, v, err);
}

ob_status ob_cli_parse(ob_cmd_id cmd, const char *cmd_name, int argc, char **argv, ob_args *out,
                       ob_err *err)
{
    *out = (ob_args){.cmd = cmd, .cmd_name = cmd_name};
    uint64_t bit = UINT64_C(1) << cmd;
    ob_status s = OB_OK;
    words w = {.argc = argc, .argv = argv};
    bool only_pos = false;
    out->pos = ob_calloc((size_t)argc + 1, sizeof *out->pos);
    if (!out->pos) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the arguments");
    while (w.at < w.argc) {
        const char *word = w.argv[w.at++];
        if (!only_pos && !strcmp(word, "--")) {
            only_pos = true;
        } else if (only_pos || word[0] != '-' || !word[1]) {
            out->pos[out->n_pos++] = word;
        } else {
            OB_GOTO(parse_dashed(bit, word, &w, out, err));
        }
        if (ob_cli_flag(out, OB_OPT_HELP)) return OB_OK;
    }
    for (int i = 0; i < OB_OPT_COUNT; i++)
        if (ob_cli_option(i)->commands & bit)
            OB_GOTO(fill_unset(ob_cli_option(i), &out->values[i], err));
out:
    if (s != OB_OK) ob_cli_args_deinit(out);
    return s;
}

void ob_cli_args_deinit(ob_args *a)
{
    ob_free(a->pos);
    for (int i = 0; i < OB_OPT_COUNT; i++) ob_free(a->values[i].list);
    *a = (ob_args){0};
}

bool ob_cli_flag(const ob_args *a, ob_opt_id id) { return a->values[id].i > 0; }
bool ob_cli_given(const ob_args *a, ob_opt_id id) { return a->values[id].given; }
int64_t ob_cli_int(const ob_args *a, ob_opt_id id) { return a->values[id].i; }
double ob_cli_float(const ob_args *a, ob_opt_id id) { return a->values[id].f; }
const char *ob_cli_str(const ob_args *a, ob_opt_id id) { return a->values[id].s; }
