/* Kernels by name: which machine code runs on this processor, and what it takes. */
#include "dev/hrx/hrx_int.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

static const hx_code *find_code(const char *arch, const char *object)
{
    const hx_code *c = hx_codes;
    while (c->arch && (strcmp(c->arch, arch) != 0 || (object && strcmp(c->object, object) != 0))) c++;
    return c->arch ? c : NULL;
}

/* Processors whose machine code the sources are written for. */
static bool is_known(const char *arch) { return !strncmp(arch, "gfx11", 5) || !strncmp(arch, "gfx120", 6); }

const char *hx_code_for(const char *arch)
{
    static const char family[] = "gfx11-generic";
    const hx_code *own = find_code(arch, NULL);
    if (own) return own->arch;
    if (!strncmp(arch, family, 5) && find_code(family, NULL)) return family;
    return is_known(arch) && hx_compiler_there() ? "" : NULL;
}

static ob_status load(hx_dev *d, const void *data, size_t n, const char *arch, const char *object, hx_object *out, ob_err *err)
{
    char format[64], doing[80];
    snprintf(format, sizeof format, "amdgcn-amd-amdhsa--%.31s", arch);
    snprintf(doing, sizeof doing, "loading kernels %.24s", object);
    return hx_check(d->lib, d->lib->executable_load_data(d->device, data, n, format, out), doing, err);
}

/* By the user's compiler. After a failure it is not asked again. */
static bool load_compiled(hx_dev *d, const char *object, hx_object *out)
{
    hx_compiled made;
    ob_err err;
    if (!d->compiler.usable) return false;
    ob_status s = hx_compile(&d->compiler, object, d->arch, &made, &err);
    if (s == OB_OK) {
        s = load(d, made.data, made.n_bytes, d->arch, object, out, &err);
        hx_compiled_drop(&made, s != OB_OK);
    }
    if (s == OB_OK) return true;
    d->compiler.usable = false;
    ob_log_warn("hrx: kernels are not compiled here but taken as they come with the program: %s", err.text);
    return false;
}

static ob_status load_object(hx_dev *d, const char *object, hx_object *out, ob_err *err)
{
    *out = NULL;
    for (int i = 0; i < d->n_objects; i++)
        if (!strcmp(d->objects[i].name, object)) {
            *out = d->objects[i].exe;
            return OB_OK;
        }
    if (d->n_objects == HX_MAX_OBJECTS) return ob_err_set(err, OB_E_INTERNAL, "hrx: too many code objects");
    if (!load_compiled(d, object, out)) {
        const hx_code *c = find_code(d->code_arch, object);
        if (!c) return ob_err_set(err, OB_E_UNSUPPORTED, "hrx: no code object %s for %s", object, d->arch);
        OB_TRY(load(d, c->data, c->n_bytes, c->arch, object, out, err));
    }
    snprintf(d->objects[d->n_objects].name, sizeof d->objects[0].name, "%s", object);
    d->objects[d->n_objects++].exe = *out;
    return OB_OK;
}

ob_status hx_kernel_get(hx_dev *d, const char *object, const char *name, uint32_t n_consts, uint32_t n_refs,
                        const hx_kernel **out, ob_err *err)
{
    hx_export info;
    *out = NULL;
    for (int i = 0; i < d->n_kernels; i++)
        if (!strcmp(d->kernels[i].name, name) && !strcmp(d->kernels[i].object, object)) {
            *out = &d->kernels[i];
            return OB_OK;
        }
    if (d->n_kernels == HX_MAX_KERNELS) return ob_err_set(err, OB_E_INTERNAL, "hrx: too many kernels");
    hx_kernel *k = &d->kernels[d->n_kernels];
    OB_TRY(load_object(d, object, &k->exe, err));
    OB_TRY(hx_check(d->lib, d->lib->executable_lookup_export_by_name(k->exe, name, &k->ordinal), name, err));
    OB_TRY(hx_check(d->lib, d->lib->executable_export_info(k->exe, k->ordinal, &info), name, err));
    if (info.constant_bytes != 4 * n_consts || info.bindings != n_refs)
        return ob_err_set(err, OB_E_INTERNAL, "hrx: kernel %s of %s takes %u bytes and %u buffers, not %u and %u", name, object,
                          info.constant_bytes, info.bindings, 4 * n_consts, n_refs);
    snprintf(k->object, sizeof k->object, "%s", object);
    snprintf(k->name, sizeof k->name, "%s", name);
    k->n_consts = n_consts;
    k->n_refs = n_refs;
    d->n_kernels++;
    *out = k;
    return OB_OK;
}

void hx_code_deinit(hx_dev *d)
{
    for (int i = 0; i < d->n_objects; i++) d->lib->executable_release(d->objects[i].exe);
    d->n_objects = d->n_kernels = 0;
}
