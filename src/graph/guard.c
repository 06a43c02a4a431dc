/* Does a program do what its file declares? Looked at op by op, not by how the program was built.
 *
 * A model whose scales, soft-caps or biases were lost on the way still writes fluent text, only a worse one, so nobody
 * would notice. What a file declares is therefore looked for in the finished program, whatever device it goes to and
 * whatever cache of packed weights it finds. The table of rotary pairings is not the one that programs are built with.
 */
#include <math.h>
#include <string.h>

#include "base/math.h"
#include "graph/graph_int.h"

/* How the file's rows of q and k lie (llama.cpp's rope types): a property of the architecture that no key tells. */
static const struct {
    const char *arch;
    ob_rope_pairing pairing;
} k_pairing[] = {
    {"llama", OB_ROPE_NORM},   {"minicpm", OB_ROPE_NORM},  {"deepseek2", OB_ROPE_NORM}, {"deepseek4", OB_ROPE_NORM},
    {"qwen2", OB_ROPE_NEOX},   {"qwen3", OB_ROPE_NEOX},    {"qwen3moe", OB_ROPE_NEOX},  {"qwen35", OB_ROPE_NEOX},
    {"qwen35moe", OB_ROPE_NEOX}, {"qwen2vl", OB_ROPE_NEOX}, {"gemma3", OB_ROPE_NEOX},   {"zaya", OB_ROPE_NEOX},
    {"modern-bert", OB_ROPE_NEOX},
};

/* What an op has in the place where a declared number belongs; false: this op has no such place. */
typedef bool (*place_fn)(const ob_program *p, const ob_op *op, float *has);

static bool embed_scale(const ob_program *p, const ob_op *op, float *has)
{
    (void)p;
    *has = op->p.embed.scale;
    return op->kind == OB_OP_EMBED;
}
static bool residual_scale(const ob_program *p, const ob_op *op, float *has)
{
    (void)p;
    *has = op->p.linear.scale;
    return op->kind == OB_OP_LINEAR && op->in[1] != OB_NONE;
}
static bool logit_scale(const ob_program *p, const ob_op *op, float *has)
{
    *has = op->p.linear.scale;
    return op->kind == OB_OP_LINEAR && op->out[0] == p->logits;
}
static bool final_softcap(const ob_program *p, const ob_op *op, float *has)
{
    *has = op->p.scale.softcap;
    return op->kind == OB_OP_SCALE && op->out[0] == p->logits;
}
static bool attn_softcap(const ob_program *p, const ob_op *op, float *has)
{
    (void)p;
    *has = op->p.attn.softcap;
    return op->kind == OB_OP_ATTENTION;
}
static bool route_scale(const ob_program *p, const ob_op *op, float *has)
{
    (void)p;
    *has = op->p.route.scale;
    return op->kind == OB_OP_MOE_ROUTE;
}

static const struct {
    const char *suffix;
    place_fn place;
    bool inverse; /* the program multiplies by 1 / value */
    float absent; /* a value that means "none": then no op is asked for */
} k_declared[] = {
    {"embedding_scale", embed_scale, false, 1.0f},
    {"residual_scale", residual_scale, false, 1.0f},
    {"logit_scale", logit_scale, true, 1.0f},
    {"final_logit_softcapping", final_softcap, false, 0.0f},
    {"attn_logit_softcapping", attn_softcap, false, 0.0f},
    {"expert_weights_scale", route_scale, false, 0.0f},
};

static ob_status check_declared(const ob_model *m, const ob_program *p, ob_err *err)
{
    for (size_t i = 0; i < OB_COUNT(k_declared); i++) {
        const ob_kv *kv = ob_file_find_kvf(m->file, "%s.%s", m->arch->name, k_declared[i].suffix);
        double x;
        int32_t n = 0;
        if (!kv) continue;
        if (!ob_kv_f64(kv, &x))
            return ob_err_set(err, OB_E_FORMAT, "key %s.%s is not a number", m->arch->name, k_declared[i].suffix);
        const float value = (float)x, want = k_declared[i].inverse ? 1.0f / value : value;
        if (value == k_declared[i].absent) continue;
        for (int32_t o = 0; o < p->n_ops; o++) {
            float has;
            if (!k_declared[i].place(p, &p->ops[o], &has)) continue;
            n++;
            if (has != want)
                return ob_err_set(err, OB_E_UNSUPPORTED, "the file declares %s.%s = %g, and %s of layer %d works with %g: the "
                                  "model would not run as it was made", m->arch->name, k_declared[i].suffix, value,
                                  ob_op_name(p->ops[o].kind), p->ops[o].layer, has);
        }
        if (!n && p->logits != OB_NONE)
            return ob_err_set(err, OB_E_UNSUPPORTED, "the file declares %s.%s = %g, which no op applies: the model would not run "
                              "as it was made", m->arch->name, k_declared[i].suffix, value);
    }
    return OB_OK;
}

static ob_status check_pairing(const ob_model *m, const ob_program *p, ob_err *err)
{
    size_t a = 0;
    while (a < OB_COUNT(k_pairing) && strcmp(k_pairing[a].arch, m->arch->name) != 0) a++;
    for (int32_t o = 0; o < p->n_ops && a < OB_COUNT(k_pairing); o++)
        if (p->ops[o].kind == OB_OP_ROPE && p->ops[o].p.rope.pairing != k_pairing[a].pairing)
            return ob_err_set(err, OB_E_UNSUPPORTED, "rotary pairs of architecture %s are %s, and rope of layer %d turns others: the "
                              "model would not run as it was made", m->arch->name,
                              k_pairing[a].pairing == OB_ROPE_NORM ? "neighbours" : "half a head apart", p->ops[o].layer);
    return OB_OK;
}

/* Every weight that the program took from the file is read by some op: a bias, a norm or factors that were dropped are
 * not. */
static ob_status check_weights(const ob_program *p, ob_err *err)
{
    for (int32_t w = 0; w < p->n_weights; w++) {
        bool used = false;
        for (int32_t o = 0; o < p->n_ops && !used; o++)
            for (int k = 0; k < OB_OP_MAX_W && !used; k++) used = p->ops[o].w[k] == w;
        if (!used)
            return ob_err_set(err, OB_E_UNSUPPORTED, "tensor %s is in the file, and no op reads it: the model would not run as it "
                              "was made", p->weights[w].name);
    }
    return OB_OK;
}

ob_status ob_model_guard(const ob_model *m, const ob_program *p, ob_err *err)
{
    OB_TRY(check_declared(m, p, err));
    OB_TRY(check_pairing(m, p, err));
    return check_weights(p, err);
}
