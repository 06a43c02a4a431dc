/* Device memory in few large blocks, the one queue, and moving bytes to and from the device.
 *
 * A block hands out its bytes from the front. What is freed last is used again at once; otherwise a
 * block starts over when all of it is free. That suits a model: weights and caches come once and
 * stay.
 *
 * Everything goes through one queue in order. Each submit raises the timeline by one, so a ticket
 * is a number and a wait has no object of its own.
 */
#include "dev/vulkan/vk_int.h"

#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/math.h"

enum {
    ALIGN = 256,
    BLOCK_BYTES = 64 << 20,
    LARGE_BLOCK_BYTES = 256 << 20,
    SMALL_BLOCK_BYTES = 4 << 20
};

struct vk_block {
    vk_block *next;
    VkDeviceMemory memory;
    VkDeviceMemory *parts; /* of a buffer that is larger than one allocation may be */
    uint32_t n_parts;
    VkBuffer buffer;
    VkDeviceAddress addr;
    uint8_t *map;
    vk_mem_kind kind;
    uint64_t size, used;
    uint32_t n_live;
    bool own; /* made for one large buffer */
};

VkBuffer vk_mem_buffer(const vk_mem *m)
{
    return m->block->buffer;
}

ob_status vk_error(vk_dev *d, VkResult r, const char *what, ob_err *err)
{
    switch (r) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        return ob_err_set(err, OB_E_NO_MEMORY, "vulkan: %s: %s", what, vk_result_name(r));
    case VK_ERROR_DEVICE_LOST:
        d->lost = true;
        return ob_err_set(err, OB_E_DEVICE_LOST, "vulkan: %s: the device was lost", what);
    default:
        return ob_err_set(err, OB_E_DEVICE, "vulkan: %s: %s (%d)", what, vk_result_name(r), (int)r);
    }
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* Wanted properties by kind, best first. */
static const VkMemoryPropertyFlags k_wanted[VK_MEM_KINDS][3] = {
    [VK_MEM_DEVICE] = {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0, 0},
    [VK_MEM_PARAM] = {VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
                          VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
                      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                      0},
    [VK_MEM_READBACK] = {VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                             VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
                             VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
                         VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                         0},
};

/* Where device and host share one memory, all of it is the device's, and the host writes it in place. */
static const VkMemoryPropertyFlags k_shared[3] = {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT |
                                                      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                                      VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                                                  VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                                      VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                                                  VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT};

static bool is_shared(const vk_dev *d)
{
    return d->phys->integrated || d->phys->soft;
}

static int memory_type(const vk_dev *d, uint32_t allowed, VkMemoryPropertyFlags want)
{
    const VkPhysicalDeviceMemoryProperties *m = &d->phys->mem;
    for (uint32_t i = 0; i < m->memoryTypeCount; i++)
        if ((allowed >> i & 1) && (m->memoryTypes[i].propertyFlags & want) == want) return (int)i;
    return -1;
}

static void block_free(vk_dev *d, vk_block *b)
{
    if (b->buffer) d->DestroyBuffer(d->handle, b->buffer, NULL);
    if (b->memory) d->FreeMemory(d->handle, b->memory, NULL);
    for (uint32_t i = 0; i < b->n_parts; i++) d->FreeMemory(d->handle, b->parts[i], NULL);
    ob_free(b->parts);
    ob_free(b);
}

static VkResult make_buffer(vk_dev *d, vk_block *b, VkBufferCreateFlags flags, const void *next, VkMemoryRequirements *need)
{
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .pNext = next,
        .flags = flags,
        .size = b->size,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                 (b->kind == VK_MEM_PARAM ? VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT : 0)};
    const VkResult r = d->CreateBuffer(d->handle, &info, NULL, &b->buffer);
    if (r == VK_SUCCESS) d->GetBufferMemoryRequirements(d->handle, b->buffer, need);
    return r;
}

/* Memory of the first of the wanted types that has so much. */
static VkResult allocate(vk_dev *d, const vk_block *b, uint64_t n, uint32_t allowed, VkDeviceMemory *out, bool *mappable)
{
    const bool shared = b->kind == VK_MEM_DEVICE && is_shared(d);
    const VkMemoryPropertyFlags *wanted = shared ? k_shared : k_wanted[b->kind];
    VkResult r = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    for (int i = 0; i < 3 && r != VK_SUCCESS; i++) {
        const int type = memory_type(d, allowed, wanted[i]);
        if (type < 0 || (i && !wanted[i])) continue; /* other memory would be slow without a word */
        const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                                 .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
        const VkMemoryAllocateInfo alloc = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                            .pNext = &flags,
                                            .allocationSize = n,
                                            .memoryTypeIndex = (uint32_t)type};
        r = d->AllocateMemory(d->handle, &alloc, NULL, out);
        *mappable = wanted[i] & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
    }
    return r;
}

static void take_address(vk_dev *d, vk_block *b)
{
    const VkBufferDeviceAddressInfo at = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                          .buffer = b->buffer};
    b->addr = d->GetBufferDeviceAddress(d->handle, &at);
}

static VkResult block_allocate(vk_dev *d, vk_block *b)
{
    VkMemoryRequirements need;
    bool mappable = false;
    VkResult r = make_buffer(d, b, 0, NULL, &need);
    if (r == VK_SUCCESS) r = allocate(d, b, need.size, need.memoryTypeBits, &b->memory, &mappable);
    if (r == VK_SUCCESS) r = d->BindBufferMemory(d->handle, b->buffer, b->memory, 0);
    if (r != VK_SUCCESS) return r;
    void *map = NULL;
    if (mappable) r = d->MapMemory(d->handle, b->memory, 0, VK_WHOLE_SIZE, 0, &map);
    b->map = map;
    take_address(d, b);
    return r;
}

/* Let the queue bind all parts, one after the other, and wait for it. */
static VkResult bind_parts(vk_dev *d, vk_block *b, VkSparseMemoryBind *binds)
{
    /* Binding is not ordered after earlier submits by itself, and the timeline must not go back. */
    if (vk_queue_wait(d, d->last, NULL) != OB_OK) return VK_ERROR_DEVICE_LOST;
    const VkSparseBufferMemoryBindInfo buffer = {.buffer = b->buffer, .bindCount = b->n_parts, .pBinds = binds};
    const uint64_t value = d->last + 1;
    const VkTimelineSemaphoreSubmitInfo timeline = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                    .signalSemaphoreValueCount = 1,
                                                    .pSignalSemaphoreValues = &value};
    const VkBindSparseInfo info = {.sType = VK_STRUCTURE_TYPE_BIND_SPARSE_INFO,
                                   .pNext = &timeline,
                                   .bufferBindCount = 1,
                                   .pBufferBinds = &buffer,
                                   .signalSemaphoreCount = 1,
                                   .pSignalSemaphores = &d->timeline};
    const VkResult r = d->QueueBindSparse(d->queue, 1, &info, VK_NULL_HANDLE);
    if (r != VK_SUCCESS) return r;
    d->last = value;
    return vk_queue_wait(d, value, NULL) == OB_OK ? VK_SUCCESS : VK_ERROR_DEVICE_LOST;
}

/* A buffer that is larger than one allocation may be: one range of addresses over several of them. */
static VkResult block_allocate_parts(vk_dev *d, vk_block *b)
{
    VkMemoryRequirements need;
    bool mappable;
    VkResult r = make_buffer(d, b, VK_BUFFER_CREATE_SPARSE_BINDING_BIT, NULL, &need);
    if (r != VK_SUCCESS) return r;
    const uint64_t part = OB_MAX(d->max_alloc_bytes / need.alignment, (uint64_t)1) * need.alignment;
    const uint64_t n = (need.size + part - 1) / part;
    VkSparseMemoryBind *binds = ob_calloc((size_t)n, sizeof *binds);
    b->parts = ob_calloc((size_t)n, sizeof(VkDeviceMemory));
    if (!binds || !b->parts) r = VK_ERROR_OUT_OF_HOST_MEMORY;
    for (uint64_t i = 0; i < n && r == VK_SUCCESS; i++) {
        const uint64_t size = OB_MIN(part, need.size - i * part);
        r = allocate(d, b, size, need.memoryTypeBits, &b->parts[i], &mappable);
        if (r != VK_SUCCESS) break;
        binds[b->n_parts++] =
            (VkSparseMemoryBind){.resourceOffset = i * part, .size = size, .memory = b->parts[i]};
    }
    if (r == VK_SUCCESS) r = bind_parts(d, b, binds);
    if (r == VK_SUCCESS) take_address(d, b);
    ob_free(binds);
    return r;
}

uint64_t vk_max_buffer(const vk_dev *d)
{
    return d->phys->sparse ? d->phys->max_buffer_bytes : OB_MIN(d->max_alloc_bytes, d->phys->max_buffer_bytes);
}

static ob_status block_new(vk_dev *d, vk_mem_kind kind, uint64_t n, vk_block **out, ob_err *err)
{
    if (n > vk_max_buffer(d))
        return ob_err_set(err, OB_E_LIMIT, "vulkan: a buffer of %llu MiB, but this driver allows at most %llu MiB",
                          (unsigned long long)(n >> 20), (unsigned long long)(vk_max_buffer(d) >> 20));
    vk_block *b = ob_calloc(1, sizeof *b);
    if (!b) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a block of device memory");
    b->kind = kind;
    b->size = n;
    const VkResult r = n > d->max_alloc_bytes ? block_allocate_parts(d, b) : block_allocate(d, b);
    if (r != VK_SUCCESS) {
        block_free(d, b);
        const ob_status s = vk_error(d, r, "allocating memory", err);
        return ob_err_prefix(err, s, "%llu MiB", (unsigned long long)(n >> 20));
    }
    b->next = d->blocks[kind];
    d->blocks[kind] = b;
    *out = b;
    return OB_OK;
}

/* Usual size of a block: large where memory is plenty, because what is left over at its end is
 * lost. */
static uint64_t block_bytes(const vk_dev *d, vk_mem_kind kind)
{
    if (kind != VK_MEM_DEVICE) return SMALL_BLOCK_BYTES;
    uint64_t total, available;
    vk_phys_memory(d->lib, d->phys, &total, &available);
    return OB_MIN(total >= (uint64_t)6 << 30 ? LARGE_BLOCK_BYTES : BLOCK_BYTES,
                  vk_max_buffer(d));
}

ob_status vk_mem_new(vk_dev *d, vk_mem_kind kind, uint64_t n, vk_mem *out, ob_err *err)
{
    memset(out, 0, sizeof *out);
    if (n > UINT64_MAX / 2)
        return ob_err_set(err, OB_E_LIMIT, "vulkan: a buffer of %llu bytes", (unsigned long long)n);
    const uint64_t size = (OB_MAX(n, 1u) + ALIGN - 1) / ALIGN * ALIGN;
    if (!d->block_bytes[kind]) d->block_bytes[kind] = block_bytes(d, kind);
    const uint64_t usual = d->block_bytes[kind];
    const bool own = size > usual / 2;
    vk_block *b = own ? NULL : d->blocks[kind];
    while (b && (b->own || b->size - b->used < size)) b = b->next;
    if (!b) {
        OB_TRY(block_new(d, kind, own ? size : usual, &b, err));
        b->own = own;
    }
    *out = (vk_mem){.block = b,
                    .off = b->used,
                    .size = size,
                    .addr = b->addr + b->used,
                    .map = b->map ? b->map + b->used : NULL};
    b->used += size;
    b->n_live++;
    return OB_OK;
}

void vk_mem_free(vk_dev *d, vk_mem *m)
{
    vk_block *b = m->block;
    if (!b) return;
    if (m->off + m->size == b->used) b->used = m->off;
    if (--b->n_live == 0) {
        b->used = 0;
        if (b->own) {
            (void)vk_queue_wait(d, d->last, NULL);
            vk_block **at = &d->blocks[b->kind];
            while (*at != b) at = &(*at)->next;
            *at = b->next;
            block_free(d, b);
        }
    }
    memset(m, 0, sizeof *m);
}

/* --- memory of the host ------------------------------------------------------------------------- */

static VkResult block_import(vk_dev *d, vk_block *b, void *base)
{
    const VkExternalMemoryHandleTypeFlagBits kind = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
    const VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                       .handleTypes = kind};
    VkMemoryHostPointerPropertiesEXT host = {.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    VkMemoryRequirements need;
    VkResult r = d->GetMemoryHostPointerPropertiesEXT(d->handle, kind, base, &host);
    if (r == VK_SUCCESS) r = make_buffer(d, b, 0, &external, &need);
    if (r != VK_SUCCESS) return r;
    const int type = memory_type(d, host.memoryTypeBits & need.memoryTypeBits, 0);
    if (type < 0 || need.size > b->size) return VK_ERROR_FEATURE_NOT_PRESENT;
    const VkImportMemoryHostPointerInfoEXT pages = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
                                                    .handleType = kind,
                                                    .pHostPointer = base};
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .pNext = &pages,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo alloc = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                        .pNext = &flags,
                                        .allocationSize = b->size,
                                        .memoryTypeIndex = (uint32_t)type};
    r = d->AllocateMemory(d->handle, &alloc, NULL, &b->memory);
    if (r == VK_SUCCESS) r = d->BindBufferMemory(d->handle, b->buffer, b->memory, 0);
    if (r == VK_SUCCESS) take_address(d, b);
    return r;
}

ob_status vk_mem_import(vk_dev *d, const void *data, uint64_t n, vk_mem *out, ob_err *err)
{
    const uint64_t align = d->phys->import_align, at = (uint64_t)(uintptr_t)data, base = at / align * align;
    const uint64_t size = (at + n - base + align - 1) / align * align;
    memset(out, 0, sizeof *out);
    if (align > (uint64_t)sysconf(_SC_PAGESIZE) || size > d->max_alloc_bytes || (at - base) % 16)
        return ob_err_set(err, OB_E_UNSUPPORTED, "vulkan: alignment or size does not suit the driver");
    vk_block *b = ob_calloc(1, sizeof *b);
    if (!b) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a block of device memory");
    b->kind = VK_MEM_DEVICE;
    b->size = b->used = size;
    b->own = true;
    b->n_live = 1;
    const VkResult r = block_import(d, b, (void *)(uintptr_t)base);
    if (r != VK_SUCCESS) {
        block_free(d, b);
        return vk_error(d, r, "importing host memory", err);
    }
    b->next = d->blocks[VK_MEM_DEVICE];
    d->blocks[VK_MEM_DEVICE] = b;
    *out = (vk_mem){.block = b, .off = at - base, .size = n, .addr = b->addr + (at - base)};
    return OB_OK;
}

void vk_mem_deinit(vk_dev *d)
{
    for (int k = 0; k < VK_MEM_KINDS; k++)
        while (d->blocks[k]) {
            vk_block *next = d->blocks[k]->next;
            block_free(d, d->blocks[k]);
            d->blocks[k] = next;
        }
}

/* --- queue ------------------------------------------------------------------------------------ */

ob_status vk_queue_submit(vk_dev *d, uint32_t n, const VkCommandBuffer *cmds, ob_err *err)
{
    VkCommandBufferSubmitInfo c[VK_MAX_SUBMIT];
    if (d->lost) return ob_err_set(err, OB_E_DEVICE_LOST, "vulkan: the device was lost");
    for (uint32_t i = 0; i < n; i++)
        c[i] = (VkCommandBufferSubmitInfo){.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO,
                                           .commandBuffer = cmds[i]};
    const VkSemaphoreSubmitInfo signal = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO,
                                          .semaphore = d->timeline,
                                          .value = d->last + 1,
                                          .stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT};
    const VkSubmitInfo2 info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2,
                                .commandBufferInfoCount = n,
                                .pCommandBufferInfos = c,
                                .signalSemaphoreInfoCount = 1,
                                .pSignalSemaphoreInfos = &signal};
    const VkResult r = d->QueueSubmit2(d->queue, 1, &info, VK_NULL_HANDLE);
    if (r != VK_SUCCESS) return vk_error(d, r, "submitting work", err);
    d->last++;
    return OB_OK;
}

ob_status vk_queue_wait(vk_dev *d, uint64_t value, ob_err *err)
{
    if (d->lost) return ob_err_set(err, OB_E_DEVICE_LOST, "vulkan: the device was lost");
    if (value == 0) return OB_OK;
    const uint64_t limit_ns = (uint64_t)(d->phys->soft ? 3600 : 120) * 1000000000u;
    const VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                      .semaphoreCount = 1,
                                      .pSemaphores = &d->timeline,
                                      .pValues = &value};
    const VkResult r = d->WaitSemaphores(d->handle, &info, limit_ns);
    if (r == VK_SUCCESS) return OB_OK;
    if (r == VK_TIMEOUT) d->lost = true; /* work that never ends holds its memory for good */
    return vk_error(d, r, "waiting for the device", err);
}

/* --- moving bytes ----------------------------------------------------------------------------- */

ob_status vk_stage_init(vk_dev *d, ob_err *err)
{
    d->stage_bytes = OB_MIN((uint64_t)VK_STAGE_BYTES, vk_max_buffer(d) / 4 / ALIGN * ALIGN);
    /* The host's own memory: many threads write it, the device's copy engine fetches it. */
    OB_TRY(vk_mem_new(d, VK_MEM_READBACK, VK_STAGE_HALVES * d->stage_bytes, &d->stage, err));
    OB_TRY(vk_mem_new(d, VK_MEM_READBACK, d->stage_bytes, &d->fetch, err));
    const VkCommandBufferAllocateInfo info = {.sType =
                                                  VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = d->pool,
                                              .commandBufferCount = VK_STAGE_HALVES};
    const VkResult r = d->AllocateCommandBuffers(d->handle, &info, d->stage_cmd);
    return r == VK_SUCCESS ? OB_OK : vk_error(d, r, "allocating command buffers", err);
}

static void barrier(vk_dev *d, VkCommandBuffer cmd, bool before)
{
    const VkPipelineStageFlags2 all = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT,
                                move = VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT;
    const VkAccessFlags2 any = VK_ACCESS_2_MEMORY_READ_BIT | VK_ACCESS_2_MEMORY_WRITE_BIT;
    const VkMemoryBarrier2 b = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER_2,
                                .srcStageMask = before ? all : move,
                                .srcAccessMask = VK_ACCESS_2_MEMORY_WRITE_BIT,
                                .dstStageMask = before ? move : all | VK_PIPELINE_STAGE_2_HOST_BIT,
                                .dstAccessMask = any};
    const VkDependencyInfo dep = {
        .sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO, .memoryBarrierCount = 1, .pMemoryBarriers = &b};
    d->CmdPipelineBarrier2(cmd, &dep);
}

/* Begin the next of the two small command buffers, waiting until it is free. */
static ob_status begin(vk_dev *d, VkCommandBuffer *cmd, ob_err *err)
{
    OB_TRY(vk_queue_wait(d, d->stage_done[d->stage_at], err));
    *cmd = d->stage_cmd[d->stage_at];
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    const VkResult r = d->BeginCommandBuffer(*cmd, &info);
    if (r != VK_SUCCESS) return vk_error(d, r, "beginning a command buffer", err);
    barrier(d, *cmd, true);
    return OB_OK;
}

static ob_status end(vk_dev *d, VkCommandBuffer cmd, ob_err *err)
{
    barrier(d, cmd, false);
    const VkResult r = d->EndCommandBuffer(cmd);
    if (r != VK_SUCCESS) return vk_error(d, r, "ending a command buffer", err);
    OB_TRY(vk_queue_submit(d, 1, &cmd, err));
    d->stage_done[d->stage_at] = d->last;
    d->stage_at = (d->stage_at + 1) % VK_STAGE_HALVES;
    return OB_OK;
}

ob_status vk_stage_begin(vk_dev *d, const vk_mem *dst, uint64_t off, uint64_t *n, uint8_t **out, ob_err *err)
{
    if (dst->map) {
        OB_TRY(vk_queue_wait(d, d->last, err)); /* earlier work may still read what is there */
        *out = dst->map + off;
        return OB_OK;
    }
    OB_TRY(vk_queue_wait(d, d->stage_done[d->stage_at], err));
    *n = OB_MIN(*n, d->stage_bytes);
    *out = d->stage.map + (uint64_t)d->stage_at * d->stage_bytes;
    return OB_OK;
}

ob_status vk_stage_send(vk_dev *d, const vk_mem *dst, uint64_t off, uint64_t n, ob_err *err)
{
    if (dst->map) return OB_OK; /* coherent, and visible to what is submitted from now on */
    VkCommandBuffer cmd;
    const VkBufferCopy c = {.srcOffset = d->stage.off + (uint64_t)d->stage_at * d->stage_bytes,
                            .dstOffset = dst->off + off,
                            .size = n};
    OB_TRY(begin(d, &cmd, err));
    d->CmdCopyBuffer(cmd, vk_mem_buffer(&d->stage), vk_mem_buffer(dst), 1, &c);
    return end(d, cmd, err);
}

ob_status vk_upload(vk_dev *d, const vk_mem *dst, uint64_t off, const void *src, uint64_t n,
                    ob_err *err)
{
    const uint8_t *p = src;
    for (uint64_t part; n > 0; n -= part, p += part, off += part) {
        uint8_t *to;
        part = n;
        OB_TRY(vk_stage_begin(d, dst, off, &part, &to, err));
        memcpy(to, p, (size_t)part);
        OB_TRY(vk_stage_send(d, dst, off, part, err));
    }
    return OB_OK;
}

ob_status vk_download(vk_dev *d, const vk_mem *src, uint64_t off, void *dst, uint64_t n,
                      ob_err *err)
{
    uint8_t *p = dst;
    for (uint64_t part; n > 0; n -= part, p += part, off += part) {
        VkCommandBuffer cmd;
        part = OB_MIN(n, d->stage_bytes);
        const VkBufferCopy c = {
            .srcOffset = src->off + off, .dstOffset = d->fetch.off, .size = part};
        OB_TRY(begin(d, &cmd, err));
        d->CmdCopyBuffer(cmd, vk_mem_buffer(src), vk_mem_buffer(&d->fetch), 1, &c);
        OB_TRY(end(d, cmd, err));
        OB_TRY(vk_queue_wait(d, d->last, err));
        memcpy(p, d->fetch.map, (size_t)part);
    }
    return OB_OK;
}

ob_status vk_copy(vk_dev *d, const vk_mem *dst, uint64_t dst_off, const vk_mem *src,
                  uint64_t src_off, uint64_t n, ob_err *err)
{
    if (n == 0) return OB_OK;
    VkCommandBuffer cmd;
    const VkBufferCopy c = {
        .srcOffset = src->off + src_off, .dstOffset = dst->off + dst_off, .size = n};
    OB_TRY(begin(d, &cmd, err));
    d->CmdCopyBuffer(cmd, vk_mem_buffer(src), vk_mem_buffer(dst), 1, &c);
    return end(d, cmd, err);
}

ob_status vk_zero(vk_dev *d, const vk_mem *m, uint64_t off, uint64_t n, ob_err *err)
{
    /* A fill wants whole words; the ragged ends are sent as bytes. */
    static const uint8_t zeros[4];
    const uint64_t first = OB_MIN(n, (4 - off % 4) % 4), middle = (n - first) / 4 * 4;
    if (first) OB_TRY(vk_upload(d, m, off, zeros, first, err));
    if (middle) {
        VkCommandBuffer cmd;
        OB_TRY(begin(d, &cmd, err));
        d->CmdFillBuffer(cmd, vk_mem_buffer(m), m->off + off + first, middle, 0);
        OB_TRY(end(d, cmd, err));
    }
    return n - first - middle
               ? vk_upload(d, m, off + first + middle, zeros, n - first - middle, err)
               : OB_OK;
}
