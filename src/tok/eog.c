/* Which tokens end a generation. Files name eos and sometimes eot; the rest is known by its text
 * alone. The lists are llama.cpp's, so that a model stops here where it stops there. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"
#include "tok/tok_int.h"

#define BAR "\xEF\xBD\x9C"  /* U+FF5C, DeepSeek's bar */
#define MARK "\xE2\x96\x81" /* U+2581 */
#define DEEPSEEK_END "<" BAR "end" MARK "of" MARK "sentence" BAR ">"

enum { EOG = 1, EOT = 2 };

static const struct {
    const char *text;
    unsigned use;
} names[] = {
    /* the first EOT of this list that the vocabulary has is its eot, if the file names none */
    {"<|eot_id|>", EOG | EOT}, {"<|im_end|>", EOG | EOT}, {"<|end|>", EOG | EOT},
    {"<end_of_turn>", EOG | EOT}, {"<|endoftext|>", EOG | EOT}, {"<|end_of_text|>", EOG | EOT},
    {"<EOT>", EOG | EOT}, {"_<EOT>", EOG | EOT}, {"[EOT]", EOG | EOT}, {DEEPSEEK_END, EOG | EOT},
    {"<end_of_utterance>", EOG | EOT},
    {"<|return|>", EOG}, {"<|call|>", EOG}, {"<|calls|>", EOG}, {"<|flush|>", EOG}, {"</s>", EOG},
    {"<|eom_id|>", EOG}, {"[EOS]", EOG}, {"<eos>", EOG}, {"<turn|>", EOG}, {"<|tool_response>", EOG},
    {"[e~[", EOG},
    /* fill-in-the-middle marks after which nothing of use follows: padding, next repository, file */
    {"<|fim_pad|>", EOG}, {"<fim-pad>", EOG}, {"<fim_pad>", EOG}, {"<PAD>", EOG}, {"[PAD]", EOG},
    {"<|fim_repo|>", EOG}, {"<|repo_name|>", EOG}, {"<fim-repo>", EOG}, {"<REPO>", EOG},
    {"<reponame>", EOG}, {"<|file_sep|>", EOG},
};

static int32_t id_named(const int32_t *found, const char *text)
{
    for (size_t i = 0; i < OB_COUNT(names); i++)
        if (!strcmp(names[i].text, text)) return found[i];
    return -1;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void add(ob_tok *t, int32_t id)
{
    if (id >= 0 && !ob_tok_is_eog(t, id)) t->eog[t->n_eog++] = id;
}

static void drop(ob_tok *t, int32_t id, ob_tok_type type)
{
    for (size_t i = 0; i < t->n_eog; i++) {
        if (t->eog[i] != id) continue;
        t->eog[i] = t->eog[--t->n_eog];
        t->types[id] = (uint8_t)type;
        return;
    }
}

static void find_names(const ob_tok *t, int32_t *found)
{
    for (size_t i = 0; i < OB_COUNT(names); i++) found[i] = -1;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t len;
        const char *s = ob_strs_get(&t->text, id, &len);
        if (len < 4 || len > 32 || (*s != '<' && *s != '[' && *s != '_')) continue;
        for (size_t i = 0; i < OB_COUNT(names); i++)
            if (found[i] < 0 && strlen(names[i].text) == len && !memcmp(names[i].text, s, len))
                found[i] = id;
    }
}

ob_status ob_tok_find_eog(ob_tok *t, ob_err *err)
{
    t->eog = ob_calloc(OB_COUNT(names) + 4, sizeof *t->eog);
    if (!t->eog) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a tokenizer");
    if (t->kind == OB_TOK_KIND_WPM) return OB_OK; /* encoders generate nothing */
    int32_t found[OB_COUNT(names)];
    find_names(t, found);
    for (size_t i = 0; i < OB_COUNT(names); i++) {
        if (found[i] < 0) continue;
        if ((names[i].use & EOT) && t->eot < 0) t->eot = found[i];
        add(t, found[i]);
        t->types[found[i]] = OB_TOK_CONTROL;
    }
    add(t, t->eos);
    add(t, t->eot);
    bool harmony = id_named(found, "<|return|>") >= 0 && id_named(found, "<|call|>") >= 0;
    bool solar = id_named(found, "<|calls|>") >= 0 && id_named(found, "<|flush|>") >= 0;
    if (harmony || solar) drop(t, id_named(found, "<|end|>"), OB_TOK_USER_DEFINED);
    if (id_named(found, "<|tool_response>") >= 0) drop(t, id_named(found, "</s>"), OB_TOK_NORMAL);
    qsort(t->eog, t->n_eog, sizeof *t->eog, by_id);
    return OB_OK;
}
