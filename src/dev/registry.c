#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dev/cpu/cpu.h"
#include "dev/device.h"
#include "dev/hrx/hrx.h"
#include "dev/npu/npu.h"
#include "dev/null/null.h"
#ifdef OB_HAVE_VULKAN
#include "dev/vulkan/vulkan.h"
#endif

/* In order of preference for `auto`. A new kind of device is one line. */
static const ob_dev_api *const k_registry[] = {
#ifdef OB_HAVE_VULKAN
    &ob_dev_vulkan,
#endif
    &ob_dev_cpu,
    &ob_dev_hrx, /* after the CPU: `auto` takes it only where it passed its gates */
    &ob_dev_npu, /* the same */
    NULL,
};

/* Opened by name only: never listed, never chosen. */
static const ob_dev_api *const k_by_name[] = {
    &ob_dev_null,
    &ob_dev_hrx_soft,
    &ob_dev_npu_soft,
    &ob_dev_npu_ref,
#ifdef OB_HAVE_VULKAN
    &ob_dev_lavapipe,
#endif
    NULL,
};

const ob_dev_api *const *ob_dev_registry(void) { return k_registry; }

static const ob_dev_api *find(const ob_dev_api *const *list, const char *kind, size_t n)
{
    for (; *list; list++)
        if (strlen((*list)->kind) == n && memcmp((*list)->kind, kind, n) == 0) return *list;
    return NULL;
}

/* "cpu, cpu:0" style list of what this machine has, for errors. */
static void list_known(char *text, size_t cap)
{
    size_t n = (size_t)snprintf(text, cap, "auto");
    for (const ob_dev_api *const *a = k_registry; *a && n < cap; a++)
        n += (size_t)snprintf(text + n, cap - n, ", %s", (*a)->kind);
}

static ob_dev_prefer_fn g_prefer; /* set once, before any thread */

void ob_dev_set_prefer(ob_dev_prefer_fn fn) { g_prefer = fn; }

/* The first usable device that is neither an emulation nor gated; or what is preferred to it here. */
static ob_status open_auto(const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    char spec[64];
    ob_status s = ob_err_set(err, OB_E_NOT_FOUND, "no usable device");
    for (const ob_dev_api *const *a = k_registry; *a; a++)
        for (int i = 0, n = (*a)->count(); i < n; i++) {
            ob_dev_info info;
            memset(&info, 0, sizeof info);
            (*a)->probe(i, &info);
            if (!info.available || (info.caps & (OB_DEV_SOFT | OB_DEV_GATED))) continue;
            if (g_prefer && g_prefer(&info, spec, sizeof spec) && strncmp(spec, "auto", 4) != 0 &&
                ob_dev_open(spec, opt, out, NULL) == OB_OK)
                return OB_OK;
            s = (*a)->open(i, opt, out, err);
            if (s == OB_OK) return OB_OK;
        }
    return s;
}

/* The device meant by a kind alone: its first. An emulation that stands among real devices must be
 * asked for by its number. */
static ob_status first_real(const ob_dev_api *api, int count, long *index, ob_err *err)
{
    *index = 0;
    if (count < 1 || find(k_by_name, api->kind, strlen(api->kind))) return OB_OK;
    ob_dev_info info;
    memset(&info, 0, sizeof info);
    api->probe(0, &info);
    if (!(info.caps & OB_DEV_SOFT)) return OB_OK;
    return ob_err_set(err, OB_E_NOT_FOUND, "no real device of kind %s, only an emulation (%.100s): ask for it as %s:0",
                      api->kind, info.name, api->kind);
}

/* Why a kind has no device here is what its probe says. */
static ob_status none_such(const ob_dev_api *api, const char *spec, int count, ob_err *err)
{
    ob_dev_info info;
    memset(&info, 0, sizeof info);
    if (!count) api->probe(0, &info);
    return ob_err_set(err, OB_E_NOT_FOUND, "device \"%.64s\": this machine has %d of kind %s%s%.200s", spec, count, api->kind,
                      info.reason[0] ? ": " : "", info.reason);
}

ob_status ob_dev_open(const char *spec, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    static const ob_dev_options defaults;
    char known[256];
    *out = NULL;
    if (!opt) opt = &defaults;
    if (!spec || !*spec || strcmp(spec, "auto") == 0) return open_auto(opt, out, err);
    const size_t n = strcspn(spec, ":");
    const ob_dev_api *api = find(k_registry, spec, n);
    if (!api) api = find(k_by_name, spec, n);
    if (!api) {
        list_known(known, sizeof known);
#ifndef OB_HAVE_VULKAN
        if (n == 6 && !memcmp(spec, "vulkan", n)) return ob_err_set(err, OB_E_UNSUPPORTED, "this build has no Vulkan (cmake -DOB_VULKAN=ON)");
#endif
        return ob_err_set(err, OB_E_NOT_FOUND, "unknown device \"%.64s\": known are %s (1bit devices shows what is here)", spec, known);
    }
    long index = -1;
    if (spec[n] == ':') {
        char *end;
        index = strtol(spec + n + 1, &end, 10);
        if (!isdigit((unsigned char)spec[n + 1]) || *end || index > 1000000) {
            index = api->find ? api->find(spec + n + 1) : -1;
            if (index < 0)
                return ob_err_set(err, OB_E_INVALID, "device \"%.64s\": after \"%s:\" a number%s is expected", spec, api->kind,
                                  api->find ? " or a name that is known" : "");
        }
    }
    const int count = api->count();
    if (index < 0) OB_TRY(first_real(api, count, &index, err));
    if (index >= count) return none_such(api, spec, count, err);
    return api->open((int)index, opt, out, err);
}

void ob_dev_close(ob_dev *d)
{
    if (d) d->api->close(d);
}
