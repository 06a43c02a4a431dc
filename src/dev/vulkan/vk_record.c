/* The list of dispatches as command buffers. A barrier stands only where a dispatch touches what
 * an earlier one since the last barrier wrote, or writes what one of those read.
 *
 * Where the largest step of the plan may take longer than one submit should, the list is cut into segments, and
 * a single dispatch that is too long into parts of its grid. A step gathers as many segments into a submit as fit
 * its own size, so that small steps stay one submit. */
#include "dev/vulkan/vk_int.h"

#include <math.h>

#include "base/math.h"

enum {
    MAX_OPEN = 128,
    MAX_PARTS = 64,       /* of one dispatch */
    SPARE_SEGMENTS = 1024 /* beyond one for each dispatch */
};

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

/* One part of n_parts of a dispatch, along the dimension it may be cut. */
static ob_status record_part(ob_dev_plan *p, VkCommandBuffer cmd, const vk_dispatch *s, uint32_t part, uint32_t n_parts,
                             ob_err *err)
{
    vk_dev *d = p->dev;
    VkPipeline pipe = s->pipe->handle;
    if (n_parts > 1) OB_TRY(vk_kernel_base(d, s->pipe, &pipe, err));
    d->CmdBindPipeline(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, pipe);
    d->CmdPushConstants(cmd, d->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof s->push, &s->push);
    if (s->indirect >= 0) {
        d->CmdDispatchIndirect(cmd, vk_mem_buffer(&p->params),
                               p->params.off + offsetof(vk_params, split) +
                                   (uint64_t)s->indirect * sizeof(VkDispatchIndirectCommand));
    } else if (n_parts == 1) {
        d->CmdDispatch(cmd, s->grid[0], s->grid[1], s->grid[2]);
    } else {
        uint32_t base[3] = {0, 0, 0}, n[3] = {s->grid[0], s->grid[1], s->grid[2]};
        const int at = s->cut - 1;
        base[at] = (uint32_t)((uint64_t)s->grid[at] * part / n_parts);
        n[at] = (uint32_t)((uint64_t)s->grid[at] * (part + 1) / n_parts) - base[at];
        d->CmdDispatchBase(cmd, base[0], base[1], base[2], n[0], n[1], n[2]);
    }
    return OB_OK;
}

/* --- segments ----------------------------------------------------------------------------------- */

static ob_status segment_begin(ob_dev_plan *p, ob_err *err)
{
    vk_dev *d = p->dev;
    vk_segment *g = &p->segments[p->n_segments];
    VkResult r;
    if (p->n_segments == p->n_cmds) {
        const VkCommandBufferAllocateInfo alloc = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                   .commandPool = d->pool,
                                                   .commandBufferCount = 1};
        r = d->AllocateCommandBuffers(d->handle, &alloc, &g->cmd);
        if (r != VK_SUCCESS) return vk_error(d, r, "allocating a command buffer", err);
        p->n_cmds++;
    }
    p->n_segments++;
    g->cost = (vk_cost){0};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    r = d->BeginCommandBuffer(g->cmd, &begin);
    if (r != VK_SUCCESS) return vk_error(d, r, "beginning a command buffer", err);
    if (p->n_segments > 1) between(d, g->cmd);
    return OB_OK;
}

static ob_status segment_end(ob_dev_plan *p, ob_err *err)
{
    const VkResult r = p->dev->EndCommandBuffer(p->segments[p->n_segments - 1].cmd);
    return r == VK_SUCCESS ? OB_OK : vk_error(p->dev, r, "recording a plan", err);
}

/* Parts in which a dispatch must run so that none takes longer than a submit may. */
static uint32_t parts_of(const ob_dev_plan *p, const vk_dispatch *s)
{
    const double ms = vk_time_worst(p, &s->cost);
    if (!s->cut || s->indirect >= 0 || ms <= p->dev->submit_ms) return 1;
    return (uint32_t)OB_MIN(ceil(ms / p->dev->submit_ms), OB_MIN((double)s->grid[s->cut - 1], (double)MAX_PARTS));
}

typedef struct recorder {
    open_set reads, writes; /* since the last barrier */
    double ms;              /* of the segment so far, in the largest step */
} recorder;

static ob_status record_dispatch(ob_dev_plan *p, recorder *r, int32_t i, ob_err *err)
{
    const vk_dev *d = p->dev;
    const vk_dispatch *s = &p->steps[i];
    const uint32_t n_parts = parts_of(p, s);
    const double ms = vk_time_worst(p, &s->cost) / n_parts;
    for (uint32_t part = 0; part < n_parts; part++) {
        vk_segment *g = &p->segments[p->n_segments - 1];
        if (r->ms > 0 && r->ms + ms > d->submit_ms && p->n_segments < p->cap_segments) {
            OB_TRY(segment_end(p, err));
            OB_TRY(segment_begin(p, err));
            g = &p->segments[p->n_segments - 1];
            r->reads.n = r->writes.n = 0;
            r->ms = 0;
        } else if (part == 0 &&
                   (r->reads.n > MAX_OPEN - VK_MAX_RANGES || r->writes.n > MAX_OPEN - VK_MAX_RANGES ||
                    (p->times && i) || overlaps(&r->writes, s->reads, s->n_reads) ||
                    overlaps(&r->writes, s->writes, s->n_writes) || overlaps(&r->reads, s->writes, s->n_writes))) {
            between(d, g->cmd);
            r->reads.n = r->writes.n = 0;
        }
        if (part == 0 || r->ms == 0) {
            add(&r->reads, s->reads, s->n_reads);
            add(&r->writes, s->writes, s->n_writes);
        }
        r->ms += ms;
        g->cost.fixed += s->cost.fixed / n_parts;
        g->cost.tok += s->cost.tok / n_parts;
        g->cost.kv += s->cost.kv / n_parts;
        OB_TRY(record_part(p, g->cmd, s, part, n_parts, err));
    }
    if (p->times)
        d->CmdWriteTimestamp2(p->segments[p->n_segments - 1].cmd, VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT, p->times,
                              (uint32_t)i + 1);
    return OB_OK;
}

static ob_status record_all(ob_dev_plan *p, ob_err *err)
{
    const vk_dev *d = p->dev;
    recorder r = {.ms = 0};
    p->n_segments = 0;
    p->cut_scale = p->scale;
    OB_TRY(segment_begin(p, err));
    if (p->times) {
        d->CmdResetQueryPool(p->segments[0].cmd, p->times, 0, (uint32_t)p->n_steps + 1);
        d->CmdWriteTimestamp2(p->segments[0].cmd, VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT, p->times, 0);
    }
    for (int32_t i = 0; i < p->n_steps; i++) OB_TRY(record_dispatch(p, &r, i, err));
    /* The next step, copies between steps and the host see all of it. */
    barrier(d, p->segments[p->n_segments - 1].cmd, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_2_HOST_BIT,
            VK_ACCESS_2_MEMORY_READ_BIT | VK_ACCESS_2_MEMORY_WRITE_BIT | VK_ACCESS_2_HOST_READ_BIT);
    return segment_end(p, err);
}

ob_status vk_record(ob_dev_plan *p, ob_err *err)
{
    vk_dev *d = p->dev;
    if (!p->segments) {
        vk_time_dispatches(p);
        p->cap_segments = p->n_steps + SPARE_SEGMENTS;
        p->segments = ob_arena_array(&p->arena, (size_t)p->cap_segments, sizeof *p->segments);
        if (!p->segments) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a plan");
    }
    if (d->profile && d->phys->timestamps && !p->times) {
        const VkQueryPoolCreateInfo q = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                         .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                         .queryCount = (uint32_t)p->n_steps + 1};
        const VkResult r = d->CreateQueryPool(d->handle, &q, NULL, &p->times);
        if (r != VK_SUCCESS) return vk_error(d, r, "making a pool of time stamps", err);
    }
    return record_all(p, err);
}
