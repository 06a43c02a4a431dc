#include "route/long.h"

#include <string.h>

#include "engine/engine.h"

/* What decides which ids a text becomes, and the text that messages become. */
static const struct {
    const char *key, *what;
} k_same[] = {
    {"tokenizer.ggml.model", "vocabularies are of different kinds"},
    {"tokenizer.ggml.pre", "vocabularies split text differently"},
    {"tokenizer.ggml.tokens", "vocabularies differ"},
    {"tokenizer.ggml.add_bos_token", "vocabularies begin a text differently"},
    {"tokenizer.ggml.bos_token_id", "vocabularies begin a text differently"},
    {"tokenizer.chat_template", "chat templates differ"},
};

static bool same_strings(const ob_kv *a, const ob_kv *b)
{
    for (uint64_t i = 0; i < a->n; i++)
        if (a->strings[i].len != b->strings[i].len || memcmp(a->strings[i].data, b->strings[i].data, a->strings[i].len) != 0)
            return false;
    return true;
}

static bool same_pair(const ob_kv *a, const ob_kv *b)
{
    int64_t x, y;
    bool p, q;
    if (!a || !b) return a == b;
    if (a->n != b->n || !a->strings != !b->strings) return false;
    if (a->strings) return same_strings(a, b);
    if (ob_kv_i64(a, &x) && ob_kv_i64(b, &y)) return x == y;
    return ob_kv_bool(a, &p) && ob_kv_bool(b, &q) && p == q;
}

static ob_status compare(const ob_file *served, const ob_file *other, ob_err *err)
{
    if (ob_file_find_kv(served, "onebit.hadamard_q4_0"))
        return ob_err_set(err, OB_E_UNSUPPORTED, "%.150s is Hadamard-rotated: it reads long prompts as fast as --long-model %.150s "
                          "would; serve it alone, or give the plain file as -m", ob_file_path(served), ob_file_path(other));
    for (size_t i = 0; i < sizeof k_same / sizeof *k_same; i++)
        if (!same_pair(ob_file_find_kv(served, k_same[i].key), ob_file_find_kv(other, k_same[i].key)))
            return ob_err_set(err, OB_E_UNSUPPORTED, "--long-model %.150s cannot stand in for %.150s: their %s (%s)",
                              ob_file_path(other), ob_file_path(served), k_same[i].what, k_same[i].key);
    return OB_OK;
}

ob_status ob_long_check(const char *served_path, const char *long_path, ob_err *err)
{
    ob_file *served, *other;
    OB_TRY(ob_file_open(served_path, OB_OPEN_NO_DATA, &served, err));
    ob_status s = ob_file_open(long_path, OB_OPEN_NO_DATA, &other, err);
    if (s == OB_OK) {
        s = compare(served, other, err);
        ob_file_close(other);
    }
    ob_file_close(served);
    return s;
}
