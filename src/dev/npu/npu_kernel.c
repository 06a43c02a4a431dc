/* Loading a design and finding its control text. */
#include "dev/npu/npu_kernel.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"

const char *ob_npu_design_name(ob_npu_design d)
{
    return d == OB_NPU_DESIGN_COPY      ? "through"
           : d == OB_NPU_DESIGN_GEMM_I8 ? "gemm_i8"
           : d == OB_NPU_DESIGN_STEP    ? "step"
                                        : "gemv_q4";
}

/* --- texts of a set ----------------------------------------------------------------------------- */

/* With DDR_PATCH operations, as a compiler's text has them: they were carried out by the host and do nothing here, but
 * so the words can be compared. */
static ob_status build(const ob_npu_kernel *k, ob_npu_txn *t, int64_t m, int64_t n_in, int64_t n_out, ob_err *err)
{
    return k->design == OB_NPU_DESIGN_GEMM_I8 ? ob_npu_text_gemm(t, &k->place, m, n_in, n_out, true, err)
                                              : ob_npu_text_gemv(t, &k->place, n_in, n_out, true, err);
}

/* Do two texts differ only in the words that patches fill in, and patch the same? */
static bool same_text(const ob_npu_elf_text *a, const ob_npu_txn *b)
{
    size_t n_patches = b->patches.len / sizeof(ob_npu_patch);
    if (a->n_bytes != b->text.len || a->n_patches != n_patches) return false;
    uint8_t *x = ob_malloc(a->n_bytes), *y = ob_malloc(a->n_bytes);
    bool same = x && y;
    if (same) {
        static const uint64_t zero[OB_NPU_ELF_MAX_ARGS];
        memcpy(x, a->data, a->n_bytes);
        memcpy(y, b->text.data, a->n_bytes);
        const ob_npu_patch *p = (const ob_npu_patch *)b->patches.data;
        same = ob_npu_patch_apply(x, a->n_bytes, a->patches, n_patches, zero, OB_NPU_ELF_MAX_ARGS, NULL) == OB_OK &&
               ob_npu_patch_apply(y, a->n_bytes, p, n_patches, zero, OB_NPU_ELF_MAX_ARGS, NULL) == OB_OK &&
               memcmp(x, y, a->n_bytes) == 0;
    }
    ob_free(x);
    ob_free(y);
    return same;
}

/* One text with argument patches only: what a shape's file holds. */
static ob_status one_text(const ob_npu_elf *e, const char *file, ob_err *err)
{
    if (e->n_texts != 1 || e->n_args != 3)
        return ob_err_set(err, OB_E_FORMAT, "%s: %zu texts of %u arguments, not 1 of 3", file, e->n_texts, e->n_args);
    for (size_t i = 0; i < e->texts[0].n_patches; i++)
        if (e->texts[0].patches[i].arg >= e->n_args) return ob_err_set(err, OB_E_FORMAT, "%s: it loads a PDI", file);
    return OB_OK;
}

typedef struct loaded {
    uint8_t *file;
    size_t n_bytes;
    ob_npu_elf elf;
} loaded;

static void unload(loaded *l)
{
    ob_npu_elf_free(&l->elf);
    ob_free(l->file);
}

static ob_status load(const ob_npu_set *set, const char *name, loaded *l, ob_err *err)
{
    memset(l, 0, sizeof *l);
    OB_TRY(ob_npu_set_read(set, name, &l->file, &l->n_bytes, err));
    ob_status s = ob_npu_elf_read(l->file, l->n_bytes, &l->elf, err);
    if (s == OB_OK) return OB_OK;
    unload(l);
    return ob_err_prefix(err, s, "%s/%s", set->dir, name);
}

static void file_name(char *out, size_t cap, ob_npu_design d, int64_t m, int64_t n_in, int64_t n_out)
{
    snprintf(out, cap, "%s_m%lld_k%lld_n%lld.elf", ob_npu_design_name(d), (long long)m, (long long)n_in,
             (long long)n_out);
}

bool ob_npu_kernel_builder_agrees(const ob_npu_kernel *k)
{
    int n_same = 0, n_seen = 0;
    for (int i = 0; i < k->set.n_files; i++) {
        long long m, n_in, n_out;
        const char *name = k->set.files[i].name, *design = ob_npu_design_name(k->design);
        if (strncmp(name, design, strlen(design)) != 0 ||
            sscanf(name + strlen(design), "_m%lld_k%lld_n%lld.elf", &m, &n_in, &n_out) != 3)
            continue;
        n_seen++;
        loaded l;
        ob_npu_txn t;
        if (load(&k->set, name, &l, NULL) != OB_OK) continue;
        bool same = build(k, &t, m, n_in, n_out, NULL) == OB_OK && one_text(&l.elf, name, NULL) == OB_OK &&
                    same_text(&l.elf.texts[0], &t);
        ob_npu_txn_deinit(&t);
        unload(&l);
        n_same += same;
        if (!same)
            ob_log(OB_LOG_WARN, "npu: %s/%s is not what this program would build; only the set's own shapes are used",
                   k->set.dir, name);
    }
    return n_same > 0 && n_same == n_seen;
}

/* --- loading ------------------------------------------------------------------------------------ */

static ob_status real_pdi(ob_npu_kernel *k, uint32_t *id, ob_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "%s.init.elf", ob_npu_design_name(k->design));
    OB_TRY(ob_npu_set_find(k->dev->id.gen, &k->set, err));
    loaded l;
    OB_TRY(load(&k->set, name, &l, err));
    ob_status s = OB_OK;
    if (l.elf.n_pdis != 1)
        s = ob_err_set(err, OB_E_FORMAT, "%s/%s has %zu PDIs, not one", k->set.dir, name, l.elf.n_pdis);
    else if (ob_npu_pdi_is_soft(l.elf.pdis[0].data, l.elf.pdis[0].n_bytes))
        s = ob_err_set(err, OB_E_UNSUPPORTED, "%s/%s is for the software model, not for hardware", k->set.dir, name);
    else s = ob_npu_bo_new(k->dev, OB_NPU_BO_DEV, l.elf.pdis[0].n_bytes, &k->pdi, err);
    if (s == OB_OK) {
        *id = l.elf.pdis[0].id;
        ob_npu_bo_write(k->pdi, 0, l.elf.pdis[0].data, l.elf.pdis[0].n_bytes);
        k->place = (ob_npu_place){.rtp_addr = k->set.rtp_addr,
                                  .lock_addr = OB_NPU_LOCK_BASE + 16 * k->set.rtp_lock,
                                  .controller = k->set.controller};
        if (!k->set.validated)
            ob_log_warn("npu: nobody has validated the kernels in %s on %s yet; `1bit npu selftest` tries them",
                        k->set.dir, ob_npu_gen_name(k->dev->id.gen));
    }
    unload(&l);
    return s;
}

static ob_status soft_pdi(ob_npu_kernel *k, uint32_t *id, ob_err *err)
{
    ob_npu_soft_pdi pdi;
    ob_npu_soft_pdi_make(&pdi, k->design);
    OB_TRY(ob_npu_bo_new(k->dev, OB_NPU_BO_DEV, sizeof pdi, &k->pdi, err));
    ob_npu_bo_write(k->pdi, 0, &pdi, sizeof pdi);
    *id = 1;
    return OB_OK;
}

ob_status ob_npu_kernel_load(ob_npu_kernel *k, ob_npu_dev *d, ob_npu_design design, ob_err *err)
{
    *k = (ob_npu_kernel){.dev = d, .design = design, .place = ob_npu_place_default()};
    uint32_t id = 0;
    ob_npu_txn t;
    ob_npu_txn_init(&t, false);
    ob_status s = d->os->soft ? soft_pdi(k, &id, err) : real_pdi(k, &id, err);
    if (s != OB_OK) goto out;
    ob_npu_txn_deinit(&t);
    OB_GOTO(ob_npu_text_init(&t, (uint16_t)id, (uint32_t)k->pdi->n_bytes, err));
    OB_GOTO(ob_npu_patch_apply((uint8_t *)t.text.data, t.text.len, (ob_npu_patch *)t.patches.data, 1, &k->pdi->dev_addr,
                               1, err));
    OB_GOTO(ob_npu_bo_new(d, OB_NPU_BO_DEV, t.text.len, &k->init, err));
    ob_npu_bo_write(k->init, 0, t.text.data, t.text.len);
    ob_npu_queue_options opt = {.init = {.text = k->init, .n_bytes = t.text.len, .est_ms = 5}};
    OB_GOTO(ob_npu_queue_new(d, &opt, &k->queue, err));
    k->builder = d->os->soft || ob_npu_kernel_builder_agrees(k);
out:
    ob_npu_txn_deinit(&t);
    if (s != OB_OK) ob_npu_kernel_unload(k);
    return s;
}

void ob_npu_kernel_unload(ob_npu_kernel *k)
{
    ob_npu_queue_free(k->queue);
    ob_npu_bo_free(k->init);
    ob_npu_bo_free(k->pdi);
    for (size_t i = 0; i < k->n_shapes; i++) {
        ob_free(k->shapes[i].text);
        ob_free(k->shapes[i].patches);
    }
    ob_free(k->shapes);
    k->shapes = NULL;
    k->n_shapes = 0;
    k->queue = NULL;
    k->init = k->pdi = NULL;
}

/* --- the text of a shape ------------------------------------------------------------------------ */

static ob_status copy_out(const void *text, size_t n, const void *patches, size_t n_patches, uint8_t **text_out,
                          ob_npu_patch **patches_out, ob_err *err)
{
    *text_out = ob_malloc(n);
    *patches_out = ob_malloc(n_patches * sizeof(ob_npu_patch));
    if (!*text_out || !*patches_out) {
        ob_free(*text_out);
        ob_free(*patches_out);
        *text_out = NULL;
        *patches_out = NULL;
        return ob_err_set(err, OB_E_NO_MEMORY, "NPU: no memory for control text");
    }
    memcpy(*text_out, text, n);
    if (n_patches) memcpy(*patches_out, patches, n_patches * sizeof(ob_npu_patch));
    return OB_OK;
}

static bool in_set(const ob_npu_set *set, const char *name)
{
    for (int i = 0; i < set->n_files; i++)
        if (strcmp(set->files[i].name, name) == 0) return true;
    return false;
}

ob_status ob_npu_kernel_text(const ob_npu_kernel *k, int64_t m, int64_t n_in, int64_t n_out, uint8_t **text,
                             size_t *n_bytes, ob_npu_patch **patches, size_t *n_patches, ob_err *err)
{
    char name[96];
    file_name(name, sizeof name, k->design, m, n_in, n_out);
    ob_status s;
    if (!k->builder && in_set(&k->set, name)) {
        loaded l;
        OB_TRY(load(&k->set, name, &l, err));
        s = one_text(&l.elf, name, err);
        if (s == OB_OK)
            s = copy_out(l.elf.texts[0].data, l.elf.texts[0].n_bytes, l.elf.texts[0].patches, l.elf.texts[0].n_patches,
                         text, patches, err);
        if (s == OB_OK) {
            *n_bytes = l.elf.texts[0].n_bytes, *n_patches = l.elf.texts[0].n_patches;
            s = ob_npu_txn_check((const uint32_t *)*text, *n_bytes / 4, OB_TXN_OWN_CLASSES, err);
            if (s != OB_OK) {
                ob_free(*text);
                ob_free(*patches);
                ob_err_prefix(err, s, "%s/%s", k->set.dir, name);
            }
        }
        unload(&l);
        return s;
    }
    if (!k->builder)
        return ob_err_set(
            err, OB_E_UNSUPPORTED,
            "NPU: the kernel set %s has no %s, and none of its texts shows that this program's own would be right",
            k->set.dir, name);
    ob_npu_txn t;
    s = build(k, &t, m, n_in, n_out, err);
    *n_bytes = t.text.len, *n_patches = t.patches.len / sizeof(ob_npu_patch);
    if (s == OB_OK) s = copy_out(t.text.data, t.text.len, t.patches.data, *n_patches, text, patches, err);
    ob_npu_txn_deinit(&t);
    return s;
}

ob_status ob_npu_kernel_shape(ob_npu_kernel *kn, int64_t m, int64_t k, int64_t n, size_t *out, ob_err *err)
{
    for (size_t i = 0; i < kn->n_shapes; i++)
        if (kn->shapes[i].m == m && kn->shapes[i].k == k && kn->shapes[i].n == n) {
            *out = i;
            return OB_OK;
        }
    ob_npu_shape *grown = ob_reallocarray(kn->shapes, kn->n_shapes + 1, sizeof *grown);
    if (!grown) return ob_err_set(err, OB_E_NO_MEMORY, "NPU: no memory for a shape");
    kn->shapes = grown;
    ob_npu_shape *s = &grown[kn->n_shapes];
    *s = (ob_npu_shape){.m = m, .k = k, .n = n};
    OB_TRY(ob_npu_kernel_text(kn, m, k, n, &s->text, &s->n_bytes, &s->patches, &s->n_patches, err));
    *out = kn->n_shapes++;
    return OB_OK;
}
