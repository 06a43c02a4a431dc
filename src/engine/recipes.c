#include "engine/recipes.h"

#include <string.h>

#include "base/math.h"

/* On the CPU: a random mixture of 64 experts of 384 columns, 8 used, prompts of 2,048 tokens, one and two threads of an
 * AVX-512 Xeon that others used too. Rounds by turns, 1,024 against 512 tokens: 2.2, 1.15, 1.03, 0.84, 1.04 by the clock,
 * 1.06, 0.95 by processor time. */
static const ob_recipe k_recipes[] = {
    {"rotated-moe-ub1024", "cpu", .moe = true, .rotated = true, .n_ubatch = 0,
     .measured = "steps of 1,024 tokens gain nothing over 512 that stands out from the noise: 0.95 and 1.06 times by processor time"},
    /* An H200, 12 layers of a random 30B-A3B shape, prompts of 2,048 tokens: 58,604, 76,206 and 103,123 tokens/s in steps of 512,
     * 1,024 and 2,048. */
    {"rotated-moe-ub1024", "vulkan", .moe = true, .rotated = true, .n_ubatch = 0,
     .measured = "steps of 2,048 tokens, which large GPUs take without a recipe, are 1.35 times as fast as those of 1,024"},
};

const ob_recipe *ob_recipe_at(int index)
{
    return index >= 0 && index < (int)OB_COUNT(k_recipes) ? &k_recipes[index] : NULL;
}

bool ob_recipe_fits(const ob_recipe *r, const ob_file *f)
{
    bool moe = false;
    for (size_t i = 0; i < ob_file_n_tensors(f) && !moe; i++) moe = strstr(ob_file_tensor(f, i)->name, "_exps.weight") != NULL;
    return r->moe == moe && r->rotated == (ob_file_find_kv(f, "onebit.hadamard_q4_0") != NULL);
}

const ob_recipe *ob_recipe_find(const ob_file *f, const char *device)
{
    const ob_recipe *r;
    for (int i = 0; (r = ob_recipe_at(i)) != NULL; i++)
        if (r->n_ubatch && !strcmp(r->device, device) && ob_recipe_fits(r, f)) return r;
    return NULL;
}
