/* The list of dispatches as one command buffer. A barrier stands only where a dispatch touches what
 * an earlier one since the last barrier wrote, or writes what one of those read. */
#include "dev/vulkan/vk_int.h"

#include "base/math.h"

enum { MAX_OPEN = 128 };

typedef struct open_set {
    vk_range r[MAX_OPEN];
    int n;
} open_set;

static bool overlaps(const open_set *s, const vk_range *r, int n)
{
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < n; k++)
            if (s->r[i].first < r[k].last && r[k].first < s->r[i].last) return true;
    return false;
}

static void add(open_set *s, const vk_range *r, int n)
{
    for (int k = 0; k < n; k++) s->r[s->n++] = r[k];
}

static void barrier(const vk_dev *d, VkCommandBuffer cmd, VkPipelineStageFlags2 to,
                    VkAccessFlags2 access)
{
    const VkMemoryBarrier2 b = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER_2,
                                .srcStageMask = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT,
                                .srcAccessMask = VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT,
                                .dstStageMask = to,
                                .dstAccessMask = access};
    const VkDependencyInfo dep = {
        .sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO, .memoryBarrierCount = 1, .pMemoryBarriers = &b};
    d->CmdPipelineBarrier2(cmd, &dep);
}

static void between(const vk_dev *d, VkCommandBuffer cmd)
{
    barrier(d, cmd, VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT,
            VK_ACCESS_2_SHADER_STORAGE_READ_BIT | VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT);
}

static void record_step(ob_dev_plan *p, const vk_dispatch *s)
{
    const vk_dev *d = p->dev;
    d->CmdBindPipeline(p->cmd, VK_PIPELINE_BIND_POINT_COMPUTE, s->pipe);
    d->CmdPushConstants(p->cmd, d->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof s->push,
                        &s->push);
    if (s->indirect >= 0)
        d->CmdDispatchIndirect(p->cmd, vk_mem_buffer(&p->params),
                               p->params.off + offsetof(vk_params, split) +
                                   (uint64_t)s->indirect * sizeof(VkDispatchIndirectCommand));
    else
        d->CmdDispatch(p->cmd, s->grid[0], s->grid[1], s->grid[2]);
}

static void record_all(ob_dev_plan *p)
{
    const vk_dev *d = p->dev;
    open_set reads = {.n = 0}, writes = {.n = 0};
    if (p->times) {
        d->CmdResetQueryPool(p->cmd, p->times, 0, (uint32_t)p->n_steps + 1);
        d->CmdWriteTimestamp2(p->cmd, VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT, p->times, 0);
    }
    for (int32_t i = 0; i < p->n_steps; i++) {
        const vk_dispatch *s = &p->steps[i];
        if (reads.n > MAX_OPEN - VK_MAX_RANGES || writes.n > MAX_OPEN - VK_MAX_RANGES ||
            (p->times && i) || overlaps(&writes, s->reads, s->n_reads) ||
            overlaps(&writes, s->writes, s->n_writes) || overlaps(&reads, s->writes, s->n_writes)) {
            between(d, p->cmd);
            reads.n = writes.n = 0;
        }
        add(&reads, s->reads, s->n_reads);
        add(&writes, s->writes, s->n_writes);
        record_step(p, s);
        if (p->times)
            d->CmdWriteTimestamp2(p->cmd, VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT, p->times,
                                  (uint32_t)i + 1);
    }
    /* The next step, copies between steps and the host see all of it. */
    barrier(d, p->cmd, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_2_HOST_BIT,
            VK_ACCESS_2_MEMORY_READ_BIT | VK_ACCESS_2_MEMORY_WRITE_BIT | VK_ACCESS_2_HOST_READ_BIT);
}

ob_status vk_record(ob_dev_plan *p, ob_err *err)
{
    vk_dev *d = p->dev;
    VkResult r;
    if (d->profile && d->phys->timestamps) {
        const VkQueryPoolCreateInfo q = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                         .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                         .queryCount = (uint32_t)p->n_steps + 1};
        r = d->CreateQueryPool(d->handle, &q, NULL, &p->times);
        if (r != VK_SUCCESS) return vk_error(d, r, "making a pool of time stamps", err);
    }
    const VkCommandBufferAllocateInfo alloc = {.sType =
                                                   VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                               .commandPool = d->pool,
                                               .commandBufferCount = 1};
    r = d->AllocateCommandBuffers(d->handle, &alloc, &p->cmd);
    if (r != VK_SUCCESS) return vk_error(d, r, "allocating a command buffer", err);
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    r = d->BeginCommandBuffer(p->cmd, &begin);
    if (r != VK_SUCCESS) return vk_error(d, r, "beginning a command buffer", err);
    record_all(p);
    r = d->EndCommandBuffer(p->cmd);
    return r == VK_SUCCESS ? OB_OK : vk_error(d, r, "recording a plan", err);
}
