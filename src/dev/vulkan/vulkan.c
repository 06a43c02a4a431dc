/* The Vulkan device: which ones there are, opening and closing one, buffers, the function tables.
 */
#include "dev/vulkan/vulkan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/limits.h"
#include "base/math.h"
#include "dev/vulkan/vk_int.h"

enum { LARGE_TOK = 2048 };
static const uint64_t LARGE_BYTES = (uint64_t)20 << 30;

/* --- what there is ---------------------------------------------------------------------------- */

static void add_feature(char *out, size_t cap, const char *text)
{
    const size_t n = strlen(out);
    snprintf(out + n, cap - n, "%s%s", n ? "; " : "", text);
}

static void describe_features(const vk_phys *p, char *out, size_t cap)
{
    char text[200];
    out[0] = 0;
    if (p->f16) add_feature(out, cap, "fp16");
    if (p->int8) add_feature(out, cap, "int8");
    if (p->int_dot) add_feature(out, cap, "int8 dot products");
    int n = snprintf(text, sizeof text, "subgroups of %u", p->subgroup);
    if (p->subgroup_max) n += snprintf(text + n, sizeof text - (size_t)n, " (%u to %u)", p->subgroup_min, p->subgroup_max);
    if (!p->subgroup_add || !p->subgroup_shuffle) snprintf(text + n, sizeof text - (size_t)n, " without arithmetic");
    add_feature(out, cap, text);
    snprintf(text, sizeof text, "%u KiB shared", p->max_shared_bytes >> 10);
    add_feature(out, cap, text);
    if (p->n_cores) {
        snprintf(text, sizeof text, "%u cores", p->n_cores);
        add_feature(out, cap, text);
    }
    if (p->sparse) add_feature(out, cap, "sparse buffers");
    if (p->import_align) add_feature(out, cap, "host memory import");
    if (p->matrices[0]) {
        snprintf(text, sizeof text, "matrices %s", p->matrices);
        add_feature(out, cap, text);
    }
}

static void fill_info(ob_dev_info *out, const vk_lib *lib, int index, const char *kind, int shown)
{
    const vk_phys *p = &lib->phys[index];
    memset(out, 0, sizeof *out);
    snprintf(out->kind, sizeof out->kind, "%s", kind);
    out->index = shown;
    snprintf(out->name, sizeof out->name, "%.127s", p->name);
    snprintf(out->driver, sizeof out->driver, "%.100s, Vulkan %u.%u", p->driver, VK_API_VERSION_MAJOR(p->api),
             VK_API_VERSION_MINOR(p->api));
    describe_features(p, out->features, sizeof out->features);
    ob_dev_heap heaps[VK_MAX_MEMORY_HEAPS];
    out->n_heaps = OB_MIN(vk_phys_heaps(lib, p, heaps), (int)OB_DEV_MAX_HEAPS);
    memcpy(out->heaps, heaps, (size_t)out->n_heaps * sizeof *heaps);
    out->caps = OB_DEV_ASYNC | OB_DEV_EXACT | OB_DEV_SAMPLE | OB_DEV_HADAMARD | OB_DEV_ACT4 |
                (p->soft ? OB_DEV_SOFT : OB_DEV_GPU) |
                (p->timestamps ? OB_DEV_PROFILE : 0);
    vk_phys_memory(lib, p, &out->mem_total_bytes, &out->mem_free_bytes);
    out->max_buffer_bytes = p->sparse ? p->max_buffer_bytes : OB_MIN(p->max_alloc_bytes, p->max_buffer_bytes);
    out->max_tok = OB_MAX_UBATCH;
    /* Many tokens amortise reading and unpacking weights, but need workspace. */
    if (p->coopmat.f16_16x16x16 && out->mem_total_bytes >= LARGE_BYTES) out->good_tok = LARGE_TOK;
    out->available = !p->missing[0];
    if (p->missing[0])
        snprintf(out->reason, sizeof out->reason, "the driver lacks %.120s", p->missing);
}

static int first_soft(const vk_lib *lib)
{
    int i = 0;
    while (i < lib->n_phys && !lib->phys[i].soft) i++; /* real devices first */
    return i;
}

static int vulkan_count(void)
{
    return vk_lib_get()->n_phys;
}
static int soft_count(void)
{
    return vk_lib_get()->n_phys - first_soft(vk_lib_get());
}
static void probe(int index, const char *kind, int shown, ob_dev_info *out)
{
    char off[200];
    fill_info(out, vk_lib_get(), index, kind, shown);
    vk_disabled_read(&vk_lib_get()->phys[index], off, sizeof off);
    if (out->available && off[0]) snprintf(out->reason, sizeof out->reason, "switched off when last used: %s", off);
}

static void vulkan_probe(int index, ob_dev_info *out)
{
    probe(index, "vulkan", index, out);
}
static void soft_probe(int index, ob_dev_info *out)
{
    probe(first_soft(vk_lib_get()) + index, "lavapipe", index, out);
}

static void vulkan_describe(const ob_dev *dev, ob_dev_info *out)
{
    const vk_dev *d = (const vk_dev *)dev;
    fill_info(out, d->lib, d->index, dev->api->kind,
              d->base.api == &ob_dev_lavapipe ? d->index - first_soft(d->lib) : d->index);
    out->n_submits = d->n_submits;
    out->max_experts = VK_MAX_EXPERTS;
    out->max_buffer_bytes = vk_max_buffer(d);
    if (!(d->fast & VK_FAST_SAMPLE)) out->caps &= ~(uint32_t)OB_DEV_SAMPLE;
    if (d->fast & VK_FAST_ATTN) out->caps |= OB_DEV_HALF_ATTN;
    if (d->disabled[0])
        snprintf(out->reason, sizeof out->reason, "switched off: %.200s", d->disabled);
    if (d->lost) {
        out->available = false;
        snprintf(out->reason, sizeof out->reason, "the device was lost");
    }
}

/* --- open and close --------------------------------------------------------------------------- */

/* VK_KHR_cooperative_matrix's features, for headers that lack them. */
typedef struct coopmat_features {
    VkStructureType sType;
    void *pNext;
    VkBool32 cooperativeMatrix, robustBufferAccess;
} coopmat_features;
enum { STYPE_COOPMAT_FEATURES = 1000506000 };

static VkResult create_device(vk_dev *d)
{
    const vk_phys *p = d->phys;
    const char *names[2];
    uint32_t n_names = 0;
    const bool cm = p->coopmat.f16_16x16x16;
    if (cm) names[n_names++] = "VK_KHR_cooperative_matrix";
    if (d->import) names[n_names++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
    coopmat_features matrices = {.sType = (VkStructureType)STYPE_COOPMAT_FEATURES,
                                 .cooperativeMatrix = VK_TRUE};
    VkPhysicalDeviceVulkan13Features f13 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES,
        .pNext = cm ? &matrices : NULL,
        .synchronization2 = VK_TRUE,
        .maintenance4 = VK_TRUE,
        .subgroupSizeControl = p->full_subgroups,
        .computeFullSubgroups = p->full_subgroups,
        .shaderIntegerDotProduct = p->int_dot};
    VkPhysicalDeviceVulkan12Features f12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .pNext = &f13,
        .bufferDeviceAddress = VK_TRUE,
        .scalarBlockLayout = VK_TRUE,
        .timelineSemaphore = VK_TRUE,
        .shaderFloat16 = p->f16,
        .shaderInt8 = p->int8,
        .vulkanMemoryModel = p->memory_model,
        .vulkanMemoryModelDeviceScope = p->memory_model};
    VkPhysicalDeviceVulkan11Features f11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .pNext = &f12,
        .storageBuffer16BitAccess = VK_TRUE};
    const VkPhysicalDeviceFeatures2 features = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
        .pNext = &f11,
        .features = {.sparseBinding = p->sparse}};
    static const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = p->queue_family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = n_names,
                                     .ppEnabledExtensionNames = names};
    return d->lib->CreateDevice(p->handle, &info, NULL, &d->handle);
}

static ob_status load_functions(vk_dev *d, ob_err *err)
{
    PFN_vkVoidFunction f;
#define X(name) \
    f = d->lib->GetDeviceProcAddr(d->handle, "vk" #name); \
    memcpy(&d->name, &f, sizeof f); \
    if (!f) return ob_err_set(err, OB_E_UNSUPPORTED, "vulkan: the driver has no vk" #name);
    VK_DEVICE_FNS(X)
#undef X
    if (d->import) {
        f = d->lib->GetDeviceProcAddr(d->handle, "vkGetMemoryHostPointerPropertiesEXT");
        memcpy(&d->GetMemoryHostPointerPropertiesEXT, &f, sizeof f);
        d->import = f != NULL;
    }
    return OB_OK;
}

static ob_status make_queue(vk_dev *d, ob_err *err)
{
    d->GetDeviceQueue(d->handle, d->phys->queue_family, 0, &d->queue);
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo sem = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                       .pNext = &type};
    VkResult r = d->CreateSemaphore(d->handle, &sem, NULL, &d->timeline);
    if (r != VK_SUCCESS) return vk_error(d, r, "making the timeline", err);
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = d->phys->queue_family};
    r = d->CreateCommandPool(d->handle, &pool, NULL, &d->pool);
    return r == VK_SUCCESS ? OB_OK : vk_error(d, r, "making the command pool", err);
}

static void vulkan_close(ob_dev *dev)
{
    vk_dev *d = vk_of(dev);
    if (d->handle && d->DestroyDevice) {
        if (d->DeviceWaitIdle && !d->lost) (void)d->DeviceWaitIdle(d->handle);
        if (d->tested_ops) vk_disabled_write(d);
        vk_kernels_deinit(d);
        vk_mem_deinit(d);
        if (d->pool) d->DestroyCommandPool(d->handle, d->pool, NULL);
        if (d->timeline) d->DestroySemaphore(d->handle, d->timeline, NULL);
        d->DestroyDevice(d->handle, NULL);
    }
    ob_pool_free(d->host_pool);
    ob_free(d);
}

/* The subgroup size kernels are made for: 32 where it may be asked for. */
static uint32_t choose_subgroup(const vk_phys *p)
{
    if (!p->subgroup_max) return p->subgroup;
    return OB_MAX(p->subgroup_min, OB_MIN(32u, p->subgroup_max));
}

/* OB_VK_DISABLE=subgroup,int8,coopmat,attn,sample: go without these kernels, for tests and for broken drivers.
 */
static unsigned disabled_by_hand(ob_err *err, ob_status *s)
{
    static const struct {
        const char *name;
        unsigned bit;
    } k_names[] = {
        {"subgroup", VK_FAST_SUBGROUP}, {"int8", VK_FAST_INT8}, {"coopmat", VK_FAST_COOPMAT}, {"attn", VK_FAST_ATTN},
        {"fused", VK_FAST_FUSED},
        {"sample", VK_FAST_SAMPLE}};
    const char *p = getenv("OB_VK_DISABLE");
    unsigned off = 0;
    for (size_t n; p && *p; p += n + (p[n] == ',')) {
        n = strcspn(p, ",");
        size_t i = 0;
        while (i < OB_COUNT(k_names) &&
               (strlen(k_names[i].name) != n || strncmp(k_names[i].name, p, n) != 0))
            i++;
        if (i == OB_COUNT(k_names)) {
            *s =
                ob_err_set(err, OB_E_INVALID,
                           "OB_VK_DISABLE: \"%.*s\" is none of subgroup, int8, coopmat, attn, fused, sample", (int)n, p);
            return 0;
        }
        off |= k_names[i].bit;
    }
    return off;
}

/* OB_VK_MAX_ALLOC_MB: as if the driver allocated no more at once, for tests. */
static uint64_t limit_by_hand(void)
{
    const char *text = getenv("OB_VK_MAX_ALLOC_MB");
    const uint64_t mb = text ? strtoull(text, NULL, 10) : 0;
    return mb ? mb << 20 : UINT64_MAX;
}

/* Weights stay in the host's memory where it is the device's too. OB_VK_IMPORT=0 never, 1 on any device. */
static bool wants_import(const vk_phys *p)
{
    const char *text = getenv("OB_VK_IMPORT");
    if (!p->import_align || (text && strcmp(text, "0") == 0)) return false;
    return p->integrated || (text && strcmp(text, "1") == 0);
}

static ob_status open_device(const ob_dev_api *api, int index, const ob_dev_options *opt,
                             ob_dev **out, ob_err *err)
{
    ob_status s = OB_OK;
    const vk_lib *lib = vk_lib_get();
    *out = NULL;
    if (index < 0 || index >= lib->n_phys)
        return ob_err_set(err, OB_E_NOT_FOUND, "no Vulkan device %d: %s", index,
                          lib->missing[0] ? lib->missing : "there are fewer");
    const vk_phys *p = &lib->phys[index];
    if (p->missing[0])
        return ob_err_set(err, OB_E_UNSUPPORTED, "%s: the driver lacks %s", p->name, p->missing);
    vk_dev *d = ob_calloc(1, sizeof *d);
    if (!d) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the vulkan device");
    d->base.api = api;
    d->lib = lib;
    d->phys = p;
    d->index = index;
    d->exact = opt->exact;
    d->profile = opt->profile;
    d->n_host_threads = opt->n_threads;
    d->sg = choose_subgroup(p);
    d->import = wants_import(p);
    d->attn = vk_attn_tuning_get();
    const VkResult r = create_device(d);
    if (r != VK_SUCCESS) {
        s = vk_error(d, r, "opening the device", err);
        goto out;
    }
    d->max_alloc_bytes = OB_MIN(p->max_alloc_bytes, limit_by_hand());
    OB_GOTO(vk_time_init(d, err));
    vk_fault_init(d);
    OB_GOTO(load_functions(d, err));
    OB_GOTO(make_queue(d, err));
    OB_GOTO(vk_stage_init(d, err));
    OB_GOTO(vk_kernels_init(d, err));
    if (p->subgroup_add && p->subgroup_shuffle && p->full_subgroups && p->subgroup_max && d->sg >= 8 && d->sg <= 64)
        d->fast |= VK_FAST_SUBGROUP;
    if (!d->exact && p->int_dot) d->fast |= VK_FAST_INT8;
    if (!d->exact && p->coopmat.f16_16x16x16 && p->full_subgroups && d->sg == 32)
        d->fast |= VK_FAST_COOPMAT;
    d->fast |= VK_FAST_SAMPLE;
    if ((d->fast & VK_FAST_SUBGROUP) && (d->fast & VK_FAST_INT8)) d->fast |= VK_FAST_FUSED;
    if ((d->fast & VK_FAST_COOPMAT) && p->coopmat.f16_sums) d->fast |= VK_FAST_GLU;
    if ((d->fast & VK_FAST_COOPMAT) && p->subgroup_shuffle && vk_kernel_exists("attn_cm")) d->fast |= VK_FAST_ATTN;
    d->fast &= ~disabled_by_hand(err, &s);
    if (s == OB_OK) *out = &d->base;
out:
    if (s != OB_OK) vulkan_close(&d->base);
    return s;
}

static ob_status vulkan_open(int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    return open_device(&ob_dev_vulkan, index, opt, out, err);
}
static ob_status soft_open(int index, const ob_dev_options *opt, ob_dev **out, ob_err *err)
{
    OB_TRY(open_device(&ob_dev_lavapipe, first_soft(vk_lib_get()) + index, opt, out, err));
    ob_log_info("lavapipe is Mesa's software driver of Vulkan: its numbers are right, its times say nothing");
    return OB_OK;
}

/* --- buffers ---------------------------------------------------------------------------------- */

static ob_status buffer_new(ob_dev *dev, uint64_t n_bytes, unsigned flags, ob_dev_buf **out,
                            ob_err *err)
{
    vk_dev *d = vk_of(dev);
    ob_status s = OB_OK;
    *out = NULL;
    ob_dev_buf *b = ob_calloc(1, sizeof *b);
    if (!b) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a buffer");
    b->n_bytes = n_bytes;
    OB_GOTO(vk_mem_new(d, VK_MEM_DEVICE, n_bytes, &b->mem, err));
    if (flags & OB_BUF_ZERO) OB_GOTO(vk_zero(d, &b->mem, 0, ob_align_up((size_t)n_bytes, 4), err));
    *out = b;
out:
    if (s != OB_OK) {
        vk_mem_free(d, &b->mem);
        ob_free(b);
    }
    return s;
}

static void buffer_free(ob_dev *dev, ob_dev_buf *b)
{
    if (!b) return;
    (void)vk_queue_wait(vk_of(dev), vk_of(dev)->last, NULL);
    vk_mem_free(vk_of(dev), &b->mem);
    ob_free(b);
}

static ob_status check_range(const ob_dev_buf *b, uint64_t off, uint64_t n, ob_err *err)
{
    if (off <= b->n_bytes && n <= b->n_bytes - off) return OB_OK;
    return ob_err_set(err, OB_E_INVALID, "bytes %llu..+%llu are outside a buffer of %llu",
                      (unsigned long long)off, (unsigned long long)n,
                      (unsigned long long)b->n_bytes);
}

static ob_status buffer_write(ob_dev *dev, ob_dev_buf *b, uint64_t off, const void *src, uint64_t n,
                              ob_err *err)
{
    OB_TRY(check_range(b, off, n, err));
    return vk_upload(vk_of(dev), &b->mem, off, src, n, err);
}

static ob_status buffer_read(ob_dev *dev, ob_dev_buf *b, uint64_t off, void *dst, uint64_t n,
                             ob_err *err)
{
    OB_TRY(check_range(b, off, n, err));
    return vk_download(vk_of(dev), &b->mem, off, dst, n, err);
}

static ob_status buffer_copy(ob_dev *dev, ob_dev_buf *dst, uint64_t dst_off, ob_dev_buf *src,
                             uint64_t src_off, uint64_t n, ob_err *err)
{
    OB_TRY(check_range(dst, dst_off, n, err));
    OB_TRY(check_range(src, src_off, n, err));
    return vk_copy(vk_of(dev), &dst->mem, dst_off, &src->mem, src_off, n, err);
}

static ob_status buffer_zero(ob_dev *dev, ob_dev_buf *b, uint64_t off, uint64_t n, ob_err *err)
{
    OB_TRY(check_range(b, off, n, err));
    return vk_zero(vk_of(dev), &b->mem, off, n, err);
}

static void *buffer_map(ob_dev *dev, ob_dev_buf *b)
{
    (void)dev;
    (void)b;
    return NULL;
}

/* --- tables ----------------------------------------------------------------------------------- */

#define SHARED_FUNCTIONS \
    .close = vulkan_close, .describe = vulkan_describe, .buffer_new = buffer_new, \
    .buffer_free = buffer_free, .buffer_write = buffer_write, .buffer_read = buffer_read, \
    .buffer_copy = buffer_copy, .buffer_zero = buffer_zero, .buffer_map = buffer_map, \
    .supports = vk_supports, .weight_new = vk_weight_new, .weight_free = vk_weight_free, \
    .weight_write = vk_weight_write, .weight_bytes = vk_weight_bytes, \
    .plan_new = vk_plan_new, .plan_free = vk_plan_free, .submit = vk_submit, .wait = vk_wait, \
.write_input = vk_write_input, \
    .read_output = vk_read_output, .profile = vk_profile_read

const ob_dev_api ob_dev_vulkan = {.kind = "vulkan",
                                  .count = vulkan_count,
                                  .probe = vulkan_probe,
                                  .open = vulkan_open,
                                  SHARED_FUNCTIONS};
const ob_dev_api ob_dev_lavapipe = {.kind = "lavapipe",
                                    .count = soft_count,
                                    .probe = soft_probe,
                                    .open = soft_open,
                                    SHARED_FUNCTIONS};
