/* Kernels by name: which machine code runs on this processor, and what it takes. */
#include "dev/hrx/hrx_int.h"

#include <stdio.h>
#include <string.h>

static bool has_code(const char *arch)
{
    for (const hx_code *c = hx_codes; c->arch; c++)
        if (!strcmp(c->arch, arch)) return true;
    return false;
}

const char *hx_code_for(const char *arch)
{
    static const char *const k_families[][2] = {{"gfx11", "gfx11-generic"}, {"gfx12", "gfx12-generic"}};
    for (const hx_code *c = hx_codes; c->arch; c++)
        if (!strcmp(c->arch, arch)) return c->arch;
    for (size_t i = 0; i < OB_COUNT(k_families); i++)
        if (!strncmp(arch, k_families[i][0], strlen(k_families[i][0])) && has_code(k_families[i][1])) return k_families[i][1];
    return NULL;
}

static ob_status load_object(hx_dev *d, const char *object, hx_object *out, ob_err *err)
{
    char format[64], doing[80];
    *out = NULL;
    for (int i = 0; i < d->n_objects; i++)
        if (!strcmp(d->objects[i].name, object)) {
            *out = d->objects[i].exe;
            return OB_OK;
        }
    const hx_code *c = hx_codes;
    while (c->arch && (strcmp(c->arch, d->code_arch) != 0 || strcmp(c->object, object) != 0)) c++;
    if (!c->arch) return ob_err_set(err, OB_E_UNSUPPORTED, "hrx: no code object %s for %s", object, d->code_arch);
    if (d->n_objects == HX_MAX_OBJECTS) return ob_err_set(err, OB_E_INTERNAL, "hrx: too many code objects");
    snprintf(format, sizeof format, "amdgcn-amd-amdhsa--%.31s", d->code_arch);
    snprintf(doing, sizeof doing, "loading kernels %.24s", object);
    OB_TRY(hx_check(d->lib, d->lib->executable_load_data(d->device, c->data, c->n_bytes, format, out), doing, err));
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
