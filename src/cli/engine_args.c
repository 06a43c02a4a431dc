/* From the options of commands that load an engine to its parameters. */
#include <string.h>

#include "base/math.h"
#include "cli/cli.h"

/* With --exact also caches are f32 where nothing else is said. */
static ob_type cache_type(const ob_args *a, ob_opt_id id)
{
    if (ob_cli_flag(a, OB_OPT_EXACT) && !ob_cli_given(a, id)) return OB_F32;
    ob_type t = OB_F16;
    const char *s = ob_cli_str(a, id);
    if (s) (void)ob_type_from_name(s, &t); /* the option table lists only known names */
    return t;
}

ob_act4_use ob_cli_act4(const ob_args *a)
{
    const char *s = ob_cli_str(a, OB_OPT_ACT4); /* NULL where the command lacks it */
    return !s || !strcmp(s, "off") ? OB_ACT4_OFF : !strcmp(s, "attn") ? OB_ACT4_ATTN : OB_ACT4_ALL;
}

static ob_speculate speculate(const ob_args *a)
{
    const char *s = ob_cli_str(a, OB_OPT_SPECULATE); /* NULL where the command lacks it */
    return !s || !strcmp(s, "off") ? OB_SPECULATE_OFF : !strcmp(s, "on") ? OB_SPECULATE_ON : OB_SPECULATE_AUTO;
}

void ob_cli_memory_params(const ob_args *a, ob_engine_params *out)
{
    out->n_moe_slots = ob_cli_str(a, OB_OPT_MOE_SLOTS) ? OB_MOE_SLOTS_AUTO : ob_cli_int(a, OB_OPT_MOE_SLOTS);
    out->moe_guess = !ob_cli_flag(a, OB_OPT_NO_MOE_PREFETCH);
    out->memory_bytes = (uint64_t)ob_cli_int(a, OB_OPT_MEMORY);
    out->lock_memory = ob_cli_flag(a, OB_OPT_MLOCK);
    out->no_mmap = ob_cli_flag(a, OB_OPT_NO_MMAP);
}

static void npu_params(const ob_args *a, ob_engine_params *out)
{
    const char *s = ob_cli_str(a, OB_OPT_NPU_VERIFY); /* NULL where the command lacks it */
    out->verify = !s || !strcmp(s, "some") ? OB_VERIFY_SOME : !strcmp(s, "all") ? OB_VERIFY_ALL : OB_VERIFY_OFF;
    out->pin_weights = ob_cli_flag(a, OB_OPT_NPU_PIN);
    s = ob_cli_str(a, OB_OPT_NPU_MODE);
    out->unit_mode = !s || !strcmp(s, "int8") ? OB_UNIT_INT8 : !strcmp(s, "q4") ? OB_UNIT_Q4 : OB_UNIT_FUSED;
}

void ob_cli_engine_params(const ob_args *a, ob_engine_params *out)
{
    ob_engine_defaults(out);
    out->device = ob_cli_str(a, OB_OPT_DEVICE);
    out->split = ob_cli_str(a, OB_OPT_SPLIT);
    out->n_cpu_moe = (int32_t)ob_cli_int(a, OB_OPT_CPU_MOE);
    ob_cli_memory_params(a, out);
    npu_params(a, out);
    out->fallback = true;
    out->n_ctx = (int32_t)ob_cli_int(a, OB_OPT_CTX_SIZE);
    out->n_threads = (int32_t)ob_cli_int(a, OB_OPT_THREADS);
    out->n_ubatch = (int32_t)ob_cli_int(a, OB_OPT_UBATCH);
    out->no_recipes = ob_cli_flag(a, OB_OPT_NO_RECIPES);
    out->n_seq = (int32_t)ob_cli_int(a, OB_OPT_PARALLEL); /* 0 where the command lacks it */
    out->prefill_device = ob_cli_str(a, OB_OPT_PREFILL_DEVICE); /* NULL where the command lacks it */
    out->prefill_min_tokens = (int32_t)ob_cli_int(a, OB_OPT_PREFILL_MIN);
    out->speculate = speculate(a);
    out->n_draft = (int32_t)ob_cli_int(a, OB_OPT_DRAFT_MAX);
    out->exact = ob_cli_flag(a, OB_OPT_EXACT);
    out->act4 = ob_cli_act4(a);
    out->official_rounding = ob_cli_flag(a, OB_OPT_OFFICIAL_ROUNDING);
    out->k_type = cache_type(a, OB_OPT_CTK);
    out->v_type = cache_type(a, OB_OPT_CTV);
}

ob_pooling ob_cli_pooling(const ob_args *a)
{
    static const struct {
        const char *name;
        ob_pooling pooling;
    } known[] = {{"none", OB_POOLING_NONE}, {"mean", OB_POOLING_MEAN}, {"cls", OB_POOLING_CLS},
                 {"last", OB_POOLING_LAST}};
    const char *s = ob_cli_str(a, OB_OPT_POOLING);
    for (size_t i = 0; s && i < OB_COUNT(known); i++)
        if (!strcmp(s, known[i].name)) return known[i].pooling;
    return OB_POOLING_AUTO;
}
