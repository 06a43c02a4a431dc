/* Opening an NPU: the system's, or one in software. */
#include "dev/npu/npu_open.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/math.h"
#include "dev/npu/npu_soft.h"

struct ob_npu_open {
    ob_npu_soft *own; /* a software NPU of this one's own; NULL: hardware, or the shared one */
    ob_npu_dev *dev;
    ob_npu_gemm *gemm;
};

/* npu-soft:NAME. The first is npu-soft itself, which the environment may change (npu_soft.h). */
static const struct {
    const char *name, *what;
    ob_npu_soft_options opt;
} k_soft[] = {
    {"npu5", "Strix Halo, driver 0.8", {.driver_minor = -1}},
    {"npu4", "Strix, driver 0.8", {.gen = OB_NPU_4, .driver_minor = 8}},
    {"npu6", "Krackan, driver 0.8", {.gen = OB_NPU_6, .driver_minor = 8}},
    {"driver-0.6", "Strix Halo, the oldest driver that will do", {.gen = OB_NPU_5, .driver_minor = 6}},
    {"driver-0.16", "Strix Halo, driver 0.16", {.gen = OB_NPU_5, .driver_minor = 16}},
    {"driver-0.0", "Strix Halo, Linux 6.14's driver, which will not do", {.gen = OB_NPU_5, .driver_minor = 0}},
    {"iova", "Strix Halo, device addresses of their own", {.gen = OB_NPU_5, .driver_minor = 8, .iova = true}},
    {"npu1", "Phoenix, which will not do", {.gen = OB_NPU_1, .driver_minor = 8}},
};

int ob_npu_open_count(bool soft) { return soft ? (int)OB_COUNT(k_soft) : ob_npu_count(ob_npu_os_real()); }

int ob_npu_open_soft_find(const char *name)
{
    for (size_t i = 0; i < OB_COUNT(k_soft); i++)
        if (strcmp(k_soft[i].name, name) == 0) return (int)i;
    return -1;
}

static void describe(const ob_npu_id *id, bool soft, ob_dev_info *out)
{
    const char *name = id->node.name[0] ? id->node.name : "AMD NPU";
    out->caps |= soft ? OB_DEV_SOFT : OB_DEV_GATED;
    snprintf(out->name, sizeof out->name, "%.90s (%s)", name, ob_npu_gen_name(id->gen)); /* the model's says that it is one */
    if (id->driver_major || id->driver_minor)
        snprintf(out->driver, sizeof out->driver, "amdxdna %d.%d, firmware %.32s%s", id->driver_major, id->driver_minor,
                 id->node.firmware[0] ? id->node.firmware : "unknown", soft ? ", all in software" : "");
    else
        out->driver[0] = 0;
    out->available = id->verdict == OB_NPU_FINE;
    snprintf(out->reason, sizeof out->reason, "%s", id->reason);
    snprintf(out->features, sizeof out->features, "matrix products in int8; everything else on the CPU");
}

void ob_npu_open_probe(bool soft, int index, ob_dev_info *out)
{
    ob_npu_id id;
    ob_npu_soft *own = NULL;
    ob_err err = {0};
    ob_npu_os *os = soft ? NULL : ob_npu_os_real();
    if (soft && ob_npu_soft_new(&k_soft[index].opt, &own, &err) == OB_OK) os = ob_npu_soft_os(own);
    memset(&id, 0, sizeof id);
    if (os) ob_npu_probe(os, soft ? 0 : index, &id);
    else snprintf(id.reason, sizeof id.reason, "%.250s", err.text);
    describe(&id, soft, out);
    if (!os) out->available = false;
    ob_npu_soft_free(own);
}

static ob_status find_os(ob_npu_open *o, bool soft, int index, ob_npu_os **os, ob_err *err)
{
    *os = NULL;
    if (!soft) {
        *os = ob_npu_os_real();
        return OB_OK;
    }
    ob_npu_soft *s = NULL;
    if (index == 0) {
        s = ob_npu_soft_shared(err);
        if (!s) return err && err->code != OB_OK ? err->code : OB_E_NO_MEMORY;
    } else {
        OB_TRY(ob_npu_soft_new(&k_soft[index].opt, &o->own, err));
        s = o->own;
    }
    *os = ob_npu_soft_os(s);
    return OB_OK;
}

ob_status ob_npu_open_new(bool soft, int index, ob_npu_open **out, ob_err *err)
{
    ob_status s = OB_OK;
    ob_npu_os *os;
    *out = NULL;
    ob_npu_open *o = ob_calloc(1, sizeof *o);
    if (!o) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the NPU");
    OB_GOTO(find_os(o, soft, index, &os, err));
    OB_GOTO(ob_npu_dev_open(os, soft ? 0 : index, &o->dev, err));
    OB_GOTO(ob_npu_gemm_new(o->dev, &o->gemm, err));
    *out = o;
out:
    if (s != OB_OK) ob_npu_open_close(o);
    return s;
}

void ob_npu_open_close(ob_npu_open *o)
{
    if (!o) return;
    ob_npu_gemm_free(o->gemm);
    if (o->dev) ob_npu_dev_close(o->dev);
    ob_npu_soft_free(o->own);
    ob_free(o);
}

ob_npu_dev *ob_npu_open_dev(const ob_npu_open *o) { return o->dev; }
ob_npu_gemm *ob_npu_open_gemm(const ob_npu_open *o) { return o->gemm; }

void ob_npu_open_describe(const ob_npu_open *o, ob_dev_info *out)
{
    describe(&o->dev->id, o->dev->os->soft, out);
    out->n_submits = o->dev->n_submits;
}
