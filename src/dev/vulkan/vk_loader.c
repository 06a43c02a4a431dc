/* libvulkan by dlopen, one instance for the process, and what its devices can do. */
#include "dev/vulkan/vk_int.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/math.h"

/* VK_KHR_cooperative_matrix, which headers before 1.3.255 lack (Vulkan registry). */
#ifndef VK_KHR_cooperative_matrix
enum {
    VK_COMPONENT_TYPE_FLOAT16_KHR = 0,
    VK_COMPONENT_TYPE_FLOAT32_KHR = 1,
    VK_SCOPE_SUBGROUP_KHR = 3
};
typedef struct VkCooperativeMatrixPropertiesKHR {
    VkStructureType sType;
    void *pNext;
    uint32_t MSize, NSize, KSize, AType, BType, CType, ResultType;
    VkBool32 saturatingAccumulation;
    uint32_t scope;
} VkCooperativeMatrixPropertiesKHR;
typedef VkResult(VKAPI_PTR *PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)(
    VkPhysicalDevice, uint32_t *, VkCooperativeMatrixPropertiesKHR *);
#endif
enum { STYPE_COOPMAT_PROPERTIES = 1000506001 };

const char *vk_result_name(VkResult r)
{
    switch (r) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
        return "out of host memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        return "out of device memory";
    case VK_ERROR_INITIALIZATION_FAILED:
        return "initialisation failed";
    case VK_ERROR_DEVICE_LOST:
        return "device lost";
    case VK_ERROR_LAYER_NOT_PRESENT:
        return "layer not present";
    case VK_ERROR_EXTENSION_NOT_PRESENT:
        return "extension not present";
    case VK_ERROR_FEATURE_NOT_PRESENT:
        return "feature not present";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
        return "incompatible driver";
    case VK_TIMEOUT:
        return "time-out";
    default:
        return "error";
    }
}

/* --- instance --------------------------------------------------------------------------------- */

static VkBool32 VKAPI_PTR on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                     VkDebugUtilsMessageTypeFlagsEXT types,
                                     const VkDebugUtilsMessengerCallbackDataEXT *data, void *arg)
{
    (void)types;
    (void)arg;
    if (severity >= VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT)
        ob_log_warn("vulkan validation: %s", data->pMessage);
    return VK_FALSE;
}

/* OB_VK_VALIDATION=1: the validation layer with its synchronisation checks; says so when it is
 * absent. */
static VkResult create_instance(vk_lib *lib, PFN_vkCreateInstance create)
{
    static const VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                          .pApplicationName = "1bit",
                                          .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &app};
    const char *const want = getenv("OB_VK_VALIDATION");
    if (want && strcmp(want, "1") == 0) {
        static const char *const layers[] = {"VK_LAYER_KHRONOS_validation"};
        static const char *const extensions[] = {"VK_EXT_debug_utils",
                                                 "VK_EXT_validation_features"};
        static const VkValidationFeatureEnableEXT enables[] = {
            VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
        static const VkDebugUtilsMessengerCreateInfoEXT messenger = {
            .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
            .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                               VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
            .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT |
                           VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
            .pfnUserCallback = on_message};
        VkValidationFeaturesEXT features = {.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                            .pNext = &messenger,
                                            .enabledValidationFeatureCount = 1,
                                            .pEnabledValidationFeatures = enables};
        VkInstanceCreateInfo checked = info;
        checked.pNext = &features;
        checked.enabledLayerCount = 1;
        checked.ppEnabledLayerNames = layers;
        checked.enabledExtensionCount = OB_COUNT(extensions);
        checked.ppEnabledExtensionNames = extensions;
        if (create(&checked, NULL, &lib->instance) == VK_SUCCESS) {
            PFN_vkCreateDebugUtilsMessengerEXT make;
            PFN_vkVoidFunction f =
                lib->GetInstanceProcAddr(lib->instance, "vkCreateDebugUtilsMessengerEXT");
            VkDebugUtilsMessengerEXT handle;
            memcpy(&make, &f, sizeof make);
            if (make) (void)make(lib->instance, &messenger, NULL, &handle);
            return VK_SUCCESS;
        }
        ob_log_warn("vulkan: the validation layer is not installed");
    }
    return create(&info, NULL, &lib->instance);
}

static bool load_functions(vk_lib *lib)
{
    PFN_vkVoidFunction f;
#define X(name) \
    f = lib->GetInstanceProcAddr(lib->instance, "vk" #name); \
    memcpy(&lib->name, &f, sizeof f); \
    if (!f) return false;
    VK_INSTANCE_FNS(X)
#undef X
    return true;
}

/* --- physical devices ------------------------------------------------------------------------- */

static bool has_extension(const vk_lib *lib, VkPhysicalDevice dev, const char *name)
{
    uint32_t n = 0;
    if (lib->EnumerateDeviceExtensionProperties(dev, NULL, &n, NULL) != VK_SUCCESS || n == 0)
        return false;
    VkExtensionProperties *e = ob_calloc(n, sizeof *e);
    bool found = false;
    if (e && lib->EnumerateDeviceExtensionProperties(dev, NULL, &n, e) == VK_SUCCESS)
        for (uint32_t i = 0; i < n; i++) found |= strcmp(e[i].extensionName, name) == 0;
    ob_free(e);
    return found;
}

/* "f16 16x16x16 to f32", once each, as many as there is room for. */
static void note_matrix(vk_phys *p, const VkCooperativeMatrixPropertiesKHR *m)
{
    static const char *const names[] = {"f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"};
    char text[48];
    if (m->AType != m->BType || m->CType != m->ResultType || (int)m->scope != VK_SCOPE_SUBGROUP_KHR || m->AType >= OB_COUNT(names) ||
        m->CType >= OB_COUNT(names))
        return;
    snprintf(text, sizeof text, "%s %ux%ux%u to %s", names[m->AType], m->MSize, m->NSize, m->KSize, names[m->CType]);
    const size_t n = strlen(p->matrices);
    if (strstr(p->matrices, text) || n + strlen(text) + 3 > sizeof p->matrices) return;
    snprintf(p->matrices + n, sizeof p->matrices - n, "%s%s", n ? ", " : "", text);
}

static void find_coopmat(const vk_lib *lib, vk_phys *p)
{
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR get;
    PFN_vkVoidFunction f = lib->GetInstanceProcAddr(
        lib->instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    uint32_t n = 0;
    memcpy(&get, &f, sizeof get);
    if (!get || get(p->handle, &n, NULL) != VK_SUCCESS || n == 0) return;
    VkCooperativeMatrixPropertiesKHR *m = ob_calloc(n, sizeof *m);
    if (!m) return;
    for (uint32_t i = 0; i < n; i++) m[i].sType = (VkStructureType)STYPE_COOPMAT_PROPERTIES;
    if (get(p->handle, &n, m) >= 0)
        for (uint32_t i = 0; i < n; i++) {
            note_matrix(p, &m[i]);
            const bool fits = m[i].MSize == 16 && m[i].NSize == 16 && m[i].KSize == 16 &&
                              (int)m[i].AType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
                              (int)m[i].BType == VK_COMPONENT_TYPE_FLOAT16_KHR && m[i].CType == m[i].ResultType &&
                              (int)m[i].scope == VK_SCOPE_SUBGROUP_KHR;
            p->coopmat.f16_16x16x16 |= fits && (int)m[i].CType == VK_COMPONENT_TYPE_FLOAT32_KHR;
            p->coopmat.f16_sums |= fits && (int)m[i].CType == VK_COMPONENT_TYPE_FLOAT16_KHR;
        }
    ob_free(m);
}

/* Whether memory of the host can become a buffer's. */
static void find_import(const vk_lib *lib, vk_phys *p)
{
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &host};
    if (!has_extension(lib, p->handle, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME)) return;
    lib->GetPhysicalDeviceProperties2(p->handle, &props);
    p->import_align = host.minImportedHostPointerAlignment;
}

/* Multiprocessors, where the driver tells. */
static void find_cores(const vk_lib *lib, vk_phys *p)
{
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nv = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
    VkPhysicalDeviceShaderCorePropertiesAMD amd = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    if (has_extension(lib, p->handle, "VK_NV_shader_sm_builtins")) {
        props.pNext = &nv;
        lib->GetPhysicalDeviceProperties2(p->handle, &props);
        p->n_cores = nv.shaderSMCount;
    } else if (has_extension(lib, p->handle, "VK_AMD_shader_core_properties")) {
        props.pNext = &amd;
        lib->GetPhysicalDeviceProperties2(p->handle, &props);
        p->n_cores = amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray;
    }
}

/* A queue family with compute, without graphics where there is one. */
static bool find_queue(const vk_lib *lib, vk_phys *p)
{
    VkQueueFamilyProperties q[16];
    uint32_t n = OB_COUNT(q);
    bool found = false;
    lib->GetPhysicalDeviceQueueFamilyProperties(p->handle, &n, q);
    for (uint32_t i = 0; i < n; i++) {
        if (!(q[i].queueFlags & VK_QUEUE_COMPUTE_BIT)) continue;
        const bool better = !found || !(q[i].queueFlags & VK_QUEUE_GRAPHICS_BIT);
        if (!better) continue;
        p->queue_family = i;
        p->timestamps = q[i].timestampValidBits == 64;
        p->sparse_queue = q[i].queueFlags & VK_QUEUE_SPARSE_BINDING_BIT;
        if (found || !(q[i].queueFlags & VK_QUEUE_GRAPHICS_BIT)) return true;
        found = true;
    }
    return found;
}

static void read_properties(const vk_lib *lib, vk_phys *p, uint32_t *api)
{
    VkPhysicalDeviceVulkan13Properties p13 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES};
    VkPhysicalDeviceVulkan12Properties p12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, .pNext = &p13};
    VkPhysicalDeviceVulkan11Properties p11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES, .pNext = &p12};
    VkPhysicalDeviceProperties2 props = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &p11};
    lib->GetPhysicalDeviceProperties2(p->handle, &props);
    const VkPhysicalDeviceProperties *b = &props.properties;
    *api = p->api = b->apiVersion;
    snprintf(p->name, sizeof p->name, "%.127s", b->deviceName);
    snprintf(p->driver, sizeof p->driver, "%.60s %.60s", p12.driverName, p12.driverInfo);
    memcpy(p->cache_uuid, b->pipelineCacheUUID, sizeof p->cache_uuid);
    p->vendor_id = b->vendorID;
    p->device_id = b->deviceID;
    p->driver_version = b->driverVersion;
    p->soft = b->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    p->integrated = b->deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    p->timestamp_ns = b->limits.timestampPeriod;
    p->max_shared_bytes = b->limits.maxComputeSharedMemorySize;
    p->max_invocations = b->limits.maxComputeWorkGroupInvocations;
    p->subgroup = p11.subgroupSize;
    p->subgroup_add = (p11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) &&
                      (p11.subgroupSupportedOperations & VK_SUBGROUP_FEATURE_ARITHMETIC_BIT);
    const VkSubgroupFeatureFlags both = VK_SUBGROUP_FEATURE_SHUFFLE_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT;
    p->subgroup_shuffle = (p11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) &&
                          (p11.subgroupSupportedOperations & both) == both;
    if (p13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) {
        p->subgroup_min = p13.minSubgroupSize;
        p->subgroup_max = p13.maxSubgroupSize;
        p->max_subgroups = p13.maxComputeWorkgroupSubgroups;
    }
    p->max_alloc_bytes = p11.maxMemoryAllocationSize;
    p->max_buffer_bytes = p13.maxBufferSize;

}

static void read_features(const vk_lib *lib, vk_phys *p)
{
    VkPhysicalDeviceVulkan13Features f13 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES};
    VkPhysicalDeviceVulkan12Features f12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .pNext = &f13};
    VkPhysicalDeviceVulkan11Features f11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &f12};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                   .pNext = &f11};
    lib->GetPhysicalDeviceFeatures2(p->handle, &f);
    const char *lacks = !f12.bufferDeviceAddress        ? "buffer device addresses"
                        : !f12.scalarBlockLayout        ? "scalar block layout"
                        : !f11.storageBuffer16BitAccess ? "16-bit storage"
                        : !f12.timelineSemaphore        ? "timeline semaphores"
                        : !f13.synchronization2         ? "synchronization2"
                        : !f13.maintenance4             ? "maintenance4"
                                                        : "";
    snprintf(p->missing, sizeof p->missing, "%s", lacks);
    p->sparse = f.features.sparseBinding;
    p->full_subgroups = f13.computeFullSubgroups && f13.subgroupSizeControl;
    if (!f13.subgroupSizeControl) p->subgroup_min = p->subgroup_max = 0;
    p->int_dot = f13.shaderIntegerDotProduct;
    p->f16 = f12.shaderFloat16;
    p->int8 = f12.shaderInt8;
    p->memory_model = f12.vulkanMemoryModel && f12.vulkanMemoryModelDeviceScope;
}

static void describe(const vk_lib *lib, vk_phys *p)
{
    uint32_t api;
    read_properties(lib, p, &api);
    VkPhysicalDeviceMemoryProperties2 mem = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    lib->GetPhysicalDeviceMemoryProperties2(p->handle, &mem);
    p->mem = mem.memoryProperties;
    if (api < VK_API_VERSION_1_3) {
        snprintf(p->missing, sizeof p->missing, "Vulkan 1.3 (it has %u.%u)",
                 VK_API_VERSION_MAJOR(api), VK_API_VERSION_MINOR(api));
        return;
    }
    read_features(lib, p);
    if (!find_queue(lib, p)) snprintf(p->missing, sizeof p->missing, "a compute queue");
    p->sparse &= p->sparse_queue;
    p->budget = has_extension(lib, p->handle, "VK_EXT_memory_budget");
    if (p->f16 && p->memory_model && has_extension(lib, p->handle, "VK_KHR_cooperative_matrix"))
        find_coopmat(lib, p);
    find_cores(lib, p);
    find_import(lib, p);
}

static int rank(const vk_phys *p)
{
    return p->soft ? 3 : p->missing[0] ? 2 : p->integrated ? 1 : 0;
}

static void find_devices(vk_lib *lib)
{
    VkPhysicalDevice handles[16];
    uint32_t n = OB_COUNT(handles);
    if (lib->EnumeratePhysicalDevices(lib->instance, &n, handles) < 0 || n == 0) {
        snprintf(lib->missing, sizeof lib->missing, "no Vulkan driver is installed");
        return;
    }
    lib->phys = ob_calloc(n, sizeof *lib->phys);
    if (!lib->phys) return;
    for (uint32_t i = 0; i < n; i++) {
        vk_phys p = {.handle = handles[i]};
        describe(lib, &p);
        int at = lib->n_phys++;
        for (; at > 0 && rank(&lib->phys[at - 1]) > rank(&p); at--)
            lib->phys[at] = lib->phys[at - 1];
        lib->phys[at] = p;
    }
}

/* --- once ------------------------------------------------------------------------------------- */

static vk_lib g_lib;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;

static void load(void)
{
    vk_lib *lib = &g_lib;
    void *so = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        snprintf(lib->missing, sizeof lib->missing, "libvulkan.so.1 is not installed");
        return;
    }
    void *symbol = dlsym(so, "vkGetInstanceProcAddr");
    memcpy(&lib->GetInstanceProcAddr, &symbol, sizeof symbol);
    PFN_vkCreateInstance create = NULL;
    if (symbol) {
        PFN_vkVoidFunction f = lib->GetInstanceProcAddr(NULL, "vkCreateInstance");
        memcpy(&create, &f, sizeof create);
    }
    const VkResult r = create ? create_instance(lib, create) : VK_ERROR_INITIALIZATION_FAILED;
    if (r != VK_SUCCESS || !load_functions(lib)) {
        snprintf(lib->missing, sizeof lib->missing, "no Vulkan instance (%s)", vk_result_name(r));
        return;
    }
    find_devices(lib);
}

const vk_lib *vk_lib_get(void)
{
    pthread_once(&g_once, load);
    return &g_lib;
}

/* OB_VK_BUDGET_MB: no more than this is free, for tests. */
static uint64_t budget_limit(void)
{
    const char *text = getenv("OB_VK_BUDGET_MB");
    const uint64_t mb = text ? strtoull(text, NULL, 10) : 0;
    return mb ? mb << 20 : UINT64_MAX;
}

int vk_phys_heaps(const vk_lib *lib, const vk_phys *p, ob_dev_heap heaps[VK_MAX_MEMORY_HEAPS])
{
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 mem = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
        .pNext = p->budget ? &budget : NULL};
    lib->GetPhysicalDeviceMemoryProperties2(p->handle, &mem);
    for (uint32_t i = 0; i < mem.memoryProperties.memoryHeapCount; i++) {
        const VkMemoryHeap *h = &mem.memoryProperties.memoryHeaps[i];
        heaps[i].total_bytes = h->size;
        heaps[i].own = h->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT;
        heaps[i].free_bytes = !p->budget                                      ? h->size
                              : budget.heapBudget[i] > budget.heapUsage[i] ? budget.heapBudget[i] - budget.heapUsage[i]
                                                                              : 0;
    }
    return (int)mem.memoryProperties.memoryHeapCount;
}

void vk_phys_memory(const vk_lib *lib, const vk_phys *p, uint64_t *total, uint64_t *available)
{
    ob_dev_heap heaps[VK_MAX_MEMORY_HEAPS];
    const int n = vk_phys_heaps(lib, p, heaps);
    *total = *available = 0;
    for (int i = 0; i < n; i++) {
        if (p->integrated) { /* all heaps are the machine's memory */
            *total += heaps[i].total_bytes;
            *available += heaps[i].free_bytes;
        } else if (heaps[i].own && heaps[i].total_bytes > *total) {
            *total = heaps[i].total_bytes;
            *available = heaps[i].free_bytes;
        }
    }
    *available = OB_MIN(*available, budget_limit());
}
