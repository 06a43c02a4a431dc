/* Faults on demand: the script of ob_npu_soft_options.faults. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "dev/npu/npu_soft_int.h"

typedef struct name { const char *text; int value; } name;

static const name k_errnos[] = {
    {"EINTR", EINTR}, {"ENOMEM", ENOMEM}, {"EAGAIN", EAGAIN}, {"ENODEV", ENODEV}, {"EBUSY", EBUSY}, {"ENOSPC", ENOSPC},
    {"EINVAL", EINVAL}, {"EACCES", EACCES}, {"ENOENT", ENOENT}, {"EIO", EIO}, {"EFAULT", EFAULT}, {"ETIME", ETIME},
    {"EOPNOTSUPP", EOPNOTSUPP}, {NULL, 0},
};
static const name k_states[] = {
    {"NEW", OB_NPU_STATE_NEW}, {"QUEUED", OB_NPU_STATE_QUEUED}, {"RUNNING", OB_NPU_STATE_RUNNING}, {"ERROR", OB_NPU_STATE_ERROR},
    {"ABORT", OB_NPU_STATE_ABORT}, {"SUBMITTED", OB_NPU_STATE_SUBMITTED}, {"TIMEOUT", OB_NPU_STATE_TIMEOUT},
    {"NORESPONSE", OB_NPU_STATE_NO_RESPONSE}, {NULL, 0},
};
static const struct { const char *text; uint32_t request; } k_ioctls[] = {
    {"*", 0}, {"VERSION", OB_NPU_IOC_VERSION}, {"GEM_CLOSE", OB_NPU_IOC_GEM_CLOSE}, {"CREATE_HWCTX", OB_NPU_IOC_CREATE_HWCTX},
    {"DESTROY_HWCTX", OB_NPU_IOC_DESTROY_HWCTX}, {"CONFIG_HWCTX", OB_NPU_IOC_CONFIG_HWCTX}, {"CREATE_BO", OB_NPU_IOC_CREATE_BO},
    {"GET_BO_INFO", OB_NPU_IOC_GET_BO_INFO}, {"SYNC_BO", OB_NPU_IOC_SYNC_BO}, {"EXEC_CMD", OB_NPU_IOC_EXEC_CMD},
    {"GET_INFO", OB_NPU_IOC_GET_INFO}, {"SYNCOBJ_DESTROY", OB_NPU_IOC_SYNCOBJ_DESTROY}, {"TIMELINE_WAIT", OB_NPU_IOC_SYNCOBJ_TIMELINE_WAIT},
};

static bool number_of(const name *names, const char *text, int *out)
{
    for (; text && names->text; names++)
        if (strcmp(names->text, text) == 0) {
            *out = names->value;
            return true;
        }
    return false;
}

static bool count_of(const char *text, uint64_t *out)
{
    char *end;
    if (!text || *text < '0' || *text > '9') return false;
    *out = strtoull(text, &end, 10);
    return *end == 0;
}

static bool request_of(const char *text, uint32_t *out)
{
    for (size_t i = 0; text && i < OB_COUNT(k_ioctls); i++)
        if (strcmp(k_ioctls[i].text, text) == 0) {
            *out = k_ioctls[i].request;
            return true;
        }
    return false;
}

/* One item, cut into fields at its colons. */
static bool parse_item(char *const f[5], soft_fault *x)
{
    uint64_t index = 0;
    if (strcmp(f[0], "ioctl") == 0) {
        x->kind = FAULT_IOCTL;
        return request_of(f[1], &x->request) && count_of(f[2], &x->n) && x->n && number_of(k_errnos, f[3], &x->value);
    }
    if (strcmp(f[0], "open") == 0) return x->kind = FAULT_OPEN, number_of(k_errnos, f[1], &x->value);
    if (strcmp(f[0], "memlock") == 0) return x->kind = FAULT_MEMLOCK, count_of(f[1], &x->bytes);
    if (strcmp(f[0], "nochip") == 0) return x->kind = FAULT_NO_CHIP, !f[1];
    if (strcmp(f[0], "nodriver") == 0) return x->kind = FAULT_NO_DRIVER, !f[1];
    if (strcmp(f[0], "misalign") == 0) return x->kind = FAULT_MISALIGN, !f[1];
    if (strcmp(f[0], "hang") == 0) return x->kind = FAULT_HANG, f[1] && strcmp(f[1], "destroy") == 0;
    if (strcmp(f[0], "slow") == 0) return x->kind = FAULT_SLOW, f[1] && (x->factor = strtod(f[1], NULL)) > 0;
    if (strcmp(f[0], "geometry") == 0)
        return x->kind = FAULT_GEOMETRY, f[1] && sscanf(f[1], "%dx%d", &x->value, &x->value2) == 2 && x->value > 0 && x->value2 > 0;
    const bool every = f[1] && strcmp(f[1], "*") == 0; /* n stays 0 */
    if (!every && (!count_of(f[1], &x->n) || !x->n)) return false;
    if (strcmp(f[0], "unplug") == 0) return x->kind = FAULT_UNPLUG, true;
    if (strcmp(f[0], "mmap") == 0) return x->kind = FAULT_MMAP, true;
    if (strcmp(f[0], "lost") == 0) return x->kind = FAULT_LOST, true;
    if (strcmp(f[0], "suspend") == 0) return x->kind = FAULT_SUSPEND, true;
    if (strcmp(f[0], "flip") == 0) return x->kind = FAULT_FLIP, true;
    if (strcmp(f[0], "lie") == 0) return x->kind = FAULT_LIE, number_of(k_states, f[2], &x->value);
    if (strcmp(f[0], "end") != 0 || !count_of(f[2], &index) || index >= OB_NPU_CHAIN_MAX) return false;
    x->kind = FAULT_END;
    x->index = (int)index;
    return number_of(k_states, f[3], &x->value);
}

ob_status soft_faults_parse(ob_npu_soft *s, const char *script, ob_err *err)
{
    while (script && *script) {
        char item[96], *f[5] = {item};
        const size_t n = strcspn(script, ",");
        snprintf(item, sizeof item, "%.*s", (int)OB_MIN(n, sizeof item - 1), script);
        int n_fields = 1;
        for (char *p = item; *p && n_fields < 5; p++)
            if (*p == ':') *p = 0, f[n_fields++] = p + 1;
        soft_fault x = {0};
        if (n >= sizeof item || s->n_faults == SOFT_FAULTS || !parse_item(f, &x))
            return ob_err_set(err, OB_E_INVALID, "npu-soft: \"%.*s\" is no fault it knows (npu_soft.h lists them)", (int)OB_MIN(n, 90), script);
        s->faults[s->n_faults++] = x;
        script += n + (script[n] == ',');
    }
    return OB_OK;
}

const soft_fault *soft_fault_find(const ob_npu_soft *s, soft_fault_kind kind, uint64_t n)
{
    for (int i = 0; i < s->n_faults; i++)
        if (s->faults[i].kind == kind && (!n || !s->faults[i].n || s->faults[i].n == n)) return &s->faults[i];
    return NULL;
}

int soft_fault_ioctl(ob_npu_soft *s, uint32_t request)
{
    int r = 0;
    for (int i = 0; i < s->n_faults; i++) {
        soft_fault *x = &s->faults[i];
        if (x->kind == FAULT_UNPLUG && s->counts.n_ioctls >= x->n) return -ENODEV;
        if (x->kind == FAULT_IOCTL && (!x->request || x->request == request) && ++x->n_seen == x->n) r = -x->value;
    }
    return r;
}
