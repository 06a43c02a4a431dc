/* Questions: the built-in one about classes, and those of users. */
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "route/scorer.h"

static const char *const k_class[OB_CLASS_COUNT] = {"code", "prose", "short", "long_doc"};

const char *ob_class_name(ob_class c) { return c < OB_CLASS_COUNT ? k_class[c] : "?"; }

ob_class ob_class_find(const char *name)
{
    int c = 0;
    while (c < OB_CLASS_COUNT && strcmp(name, k_class[c]) != 0) c++;
    return (ob_class)c;
}

size_t ob_turns_bytes(const ob_turns *t)
{
    size_t n = t->n > 0 ? (size_t)t->n - 1 : 0;
    for (int32_t i = 0; i < t->n; i++) n += t->texts[i].len;
    return n;
}

const ob_question *ob_question_classes(void)
{
    static char what[] = "What kind of answer does the last request need?", code[] = "code", prose[] = "prose",
                shrt[] = "short",
                code_is[] = "source code: a program, script, query, formula or configuration, a fix, or an explanation "
                            "of code that is given",
                prose_is[] = "several paragraphs: an explanation, an essay, a letter, a story, advice",
                short_is[] = "a word, a number, a name or one sentence";
    static const ob_question q = {.type = OB_QUESTION_CHOICE, .instructions = what, .n_options = 3,
                                  .options = {{code, code_is}, {prose, prose_is}, {shrt, short_is}}};
    return &q;
}

void ob_question_deinit(ob_question *q)
{
    ob_free(q->instructions);
    for (int32_t i = 0; i < q->n_options; i++) {
        ob_free(q->options[i].label);
        ob_free(q->options[i].text);
    }
    *q = (ob_question){0};
}

static ob_status copy(const char *s, char **out, ob_err *err)
{
    const size_t n = strlen(s) + 1;
    *out = ob_malloc(n);
    if (!*out) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a question");
    memcpy(*out, s, n);
    return OB_OK;
}

static ob_status add_option(ob_question *q, const char *what, const char *label, const char *text, ob_err *err)
{
    if (q->n_options == OB_MAX_OPTIONS)
        return ob_err_set(err, OB_E_INVALID, "%s has more than %d options", what, OB_MAX_OPTIONS);
    ob_qoption *o = &q->options[q->n_options++];
    OB_TRY(copy(label, &o->label, err));
    return text && *text ? copy(text, &o->text, err) : OB_OK;
}

static ob_status add_listed(ob_question *q, const json_t *v, const char *what, size_t i, ob_err *err)
{
    if (q->type == OB_QUESTION_SCORE) {
        char label[32];
        snprintf(label, sizeof label, "level %zu", i);
        if (!json_is_string(v)) return ob_err_set(err, OB_E_INVALID, "%s: level %zu is no text", what, i);
        return add_option(q, what, label, json_string_value(v), err);
    }
    if (json_is_string(v)) return add_option(q, what, json_string_value(v), NULL, err);
    const char *label = json_string_value(json_object_get(v, "label"));
    if (!label) return ob_err_set(err, OB_E_INVALID, "%s: option %zu is neither a text nor has a label", what, i);
    return add_option(q, what, label, json_string_value(json_object_get(v, "text")), err);
}

static ob_status parse_options(const json_t *v, const char *what, ob_question *q, ob_err *err)
{
    const char *label;
    json_t *item;
    size_t i;
    if (q->type == OB_QUESTION_NOUL) {
        if (v) return ob_err_set(err, OB_E_INVALID, "%s: a noul question has the options false and true", what);
        OB_TRY(add_option(q, what, "false", "no, the statement does not hold", err));
        return add_option(q, what, "true", "yes, the statement holds", err);
    }
    if (json_is_object(v) && q->type == OB_QUESTION_CHOICE) {
        json_object_foreach((json_t *)v, label, item)
        {
            if (!json_is_string(item)) return ob_err_set(err, OB_E_INVALID, "%s: an option's text is no text", what);
            OB_TRY(add_option(q, what, label, json_string_value(item), err));
        }
    } else if (json_is_array(v)) {
        json_array_foreach((json_t *)v, i, item) OB_TRY(add_listed(q, item, what, i, err));
    }
    if (q->n_options < 2) return ob_err_set(err, OB_E_INVALID, "%s: \"options\" needs two entries at least", what);
    for (int32_t a = 0; a < q->n_options; a++)
        for (int32_t b = 0; b < a; b++)
            if (!strcmp(q->options[a].label, q->options[b].label))
                return ob_err_set(err, OB_E_INVALID, "%s: two options have the same label", what);
    return OB_OK;
}

ob_status ob_question_parse(const json_t *v, const char *what, ob_question *out, ob_err *err)
{
    static const char *const types[] = {"choice", "score", "noul"};
    ob_status s = OB_OK;
    size_t type = 0;
    *out = (ob_question){0};
    if (!json_is_object(v)) return ob_err_set(err, OB_E_INVALID, "%s is no JSON object", what);
    const char *name = json_string_value(json_object_get(v, "type"));
    const char *text = json_string_value(json_object_get(v, "instructions"));
    const json_t *options = json_object_get(v, "options");
    if (!options) options = json_object_get(v, "criteria");
    while (name && type < OB_COUNT(types) && strcmp(name, types[type]) != 0) type++;
    if (!name || type == OB_COUNT(types))
        return ob_err_set(err, OB_E_INVALID, "%s: \"type\" is not choice, score or noul", what);
    if (!text || !*text) return ob_err_set(err, OB_E_INVALID, "%s: \"instructions\" is missing", what);
    out->type = (ob_question_type)type;
    OB_GOTO(copy(text, &out->instructions, err));
    OB_GOTO(parse_options(options, what, out, err));
out:
    if (s != OB_OK) ob_question_deinit(out);
    return s;
}
