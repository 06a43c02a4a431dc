/* Pipelines, made when a plan first wants them, and the driver's cache of them on disk. */
#include "dev/vulkan/vk_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"

enum { MAX_CACHE_BYTES = 256 << 20 };

static const vk_shader *find_shader(const char *name)
{
    for (const vk_shader *s = vk_shaders; s->name; s++)
        if (strcmp(s->name, name) == 0) return s;
    return NULL;
}

bool vk_kernel_exists(const char *name)
{
    return find_shader(name) != NULL;
}

/* --- cache on disk ---------------------------------------------------------------------------- */

bool vk_cache_path(const vk_phys *d, const char *ending, char *path, size_t cap, bool make_folder)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[400];
    if (xdg && *xdg)
        snprintf(folder, sizeof folder, "%.300s/1bit", xdg);
    else if (home && *home)
        snprintf(folder, sizeof folder, "%.300s/.cache/1bit", home);
    else
        return false;
    if (make_folder) {
        for (char *p = folder + 1; *p; p++)
            if (*p == '/') {
                *p = 0;
                (void)mkdir(folder, 0700);
                *p = '/';
            }
        (void)mkdir(folder, 0700);
    }
    char uuid[2 * VK_UUID_SIZE + 1];
    for (size_t i = 0; i < VK_UUID_SIZE; i++)
        snprintf(uuid + 2 * i, 3, "%02x", d->cache_uuid[i]);
    return (size_t)snprintf(path, cap, "%s/vulkan-%08x-%08x-%08x-%s.%s", folder, d->vendor_id, d->device_id,
                            d->driver_version, uuid, ending) < cap;
}

static void *cache_read(const vk_dev *d, size_t *n)
{
    char path[600];
    *n = 0;
    FILE *f = vk_cache_path(d->phys, "bin", path, sizeof path, false) ? fopen(path, "rbe") : NULL;
    if (!f) return NULL;
    struct stat st;
    void *data = NULL;
    if (fstat(fileno(f), &st) == 0 && st.st_size > 0 && st.st_size < MAX_CACHE_BYTES)
        data = ob_malloc((size_t)st.st_size);
    if (data) *n = fread(data, 1, (size_t)st.st_size, f);
    fclose(f);
    return data; /* the driver checks its own header */
}

/* Through a file of its own and a rename, so that a reader never sees half of it. */
static void cache_write(vk_dev *d)
{
    char path[600], tmp[640];
    size_t n = 0;
    if (d->lost || d->GetPipelineCacheData(d->handle, d->cache, &n, NULL) != VK_SUCCESS ||
        n <= d->cache_bytes || n > MAX_CACHE_BYTES ||
        !vk_cache_path(d->phys, "bin", path, sizeof path, true))
        return;
    void *data = ob_malloc(n);
    snprintf(tmp, sizeof tmp, "%s.%d", path, (int)getpid());
    FILE *f = data && d->GetPipelineCacheData(d->handle, d->cache, &n, data) == VK_SUCCESS
                  ? fopen(tmp, "wbe")
                  : NULL;
    bool ok = f && fwrite(data, 1, n, f) == n;
    if (f && fclose(f) != 0) ok = false;
    if (f && (!ok || rename(tmp, path) != 0)) {
        ob_log_debug("vulkan: the cache of pipelines was not written: %s", strerror(errno));
        (void)unlink(tmp);
    }
    d->cache_bytes = n;
    ob_free(data);
}

/* --- what was wrong the last time, for `1bit devices` ------------------------------------------ */

void vk_disabled_read(const vk_phys *p, char *out, size_t cap)
{
    char path[600];
    FILE *f = vk_cache_path(p, "off", path, sizeof path, false) ? fopen(path, "re") : NULL;
    out[0] = 0;
    if (!f) return;
    if (!fgets(out, (int)cap, f)) out[0] = 0;
    fclose(f);
    for (char *c = out; *c; c++)
        if (*c < ' ' || *c > '~') *c = ' '; /* whoever wrote it, it goes to a terminal */
}

void vk_disabled_write(const vk_dev *d)
{
    char path[600], tmp[640];
    if (!vk_cache_path(d->phys, "off", path, sizeof path, d->disabled[0] != 0)) return;
    if (!d->disabled[0]) {
        (void)unlink(path);
        return;
    }
    snprintf(tmp, sizeof tmp, "%s.%d", path, (int)getpid());
    FILE *f = fopen(tmp, "we");
    bool ok = f && fputs(d->disabled, f) >= 0;
    if (f && fclose(f) != 0) ok = false;
    if (f && (!ok || rename(tmp, path) != 0)) (void)unlink(tmp);
}

/* --- pipelines -------------------------------------------------------------------------------- */

ob_status vk_kernels_init(vk_dev *d, ob_err *err)
{
    const VkPushConstantRange push = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                      .size = sizeof(vk_push)};
    const VkPipelineLayoutCreateInfo layout = {.sType =
                                                   VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                               .pushConstantRangeCount = 1,
                                               .pPushConstantRanges = &push};
    VkResult r = d->CreatePipelineLayout(d->handle, &layout, NULL, &d->layout);
    if (r != VK_SUCCESS) return vk_error(d, r, "making the pipeline layout", err);
    VkPipelineCacheCreateInfo cache = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    void *data = cache_read(d, &cache.initialDataSize);
    cache.pInitialData = data;
    r = d->CreatePipelineCache(d->handle, &cache, NULL, &d->cache);
    ob_free(data);
    if (r != VK_SUCCESS) return vk_error(d, r, "making the pipeline cache", err);
    if (d->GetPipelineCacheData(d->handle, d->cache, &d->cache_bytes, NULL) != VK_SUCCESS) d->cache_bytes = 0;
    return OB_OK;
}

void vk_caches_write(vk_dev *d)
{
    if (d->cache && d->n_made != d->n_written) cache_write(d);
    d->n_written = d->n_made;
    vk_verdict_write(d);
}

void vk_kernels_deinit(vk_dev *d)
{
    if (d->cache) {
        vk_caches_write(d);
        d->DestroyPipelineCache(d->handle, d->cache, NULL);
    }
    for (size_t i = 0; i < d->n_pipes; i++) {
        if (d->pipes[i]->handle) d->DestroyPipeline(d->handle, d->pipes[i]->handle, NULL);
        if (d->pipes[i]->base) d->DestroyPipeline(d->handle, d->pipes[i]->base, NULL);
        ob_free(d->pipes[i]);
    }
    ob_free(d->pipes);
    if (d->layout) d->DestroyPipelineLayout(d->handle, d->layout, NULL);
}

static VkResult make_pipeline(vk_dev *d, const vk_pipe *p, VkPipelineCreateFlags flags, VkPipeline *out)
{
    VkSpecializationMapEntry entries[VK_MAX_SPEC];
    for (uint32_t i = 0; i < p->n_spec; i++) entries[i] = (VkSpecializationMapEntry){i, 4 * i, 4};
    const VkSpecializationInfo spec = {.mapEntryCount = p->n_spec,
                                       .pMapEntries = entries,
                                       .dataSize = 4 * p->n_spec,
                                       .pData = p->spec};
    const VkShaderModuleCreateInfo code = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                           .codeSize = p->shader->n_bytes,
                                           .pCode = p->shader->code};
    VkShaderModule module;
    VkResult r = d->CreateShaderModule(d->handle, &code, NULL, &module);
    if (r != VK_SUCCESS) return r;
    const bool whole = d->phys->full_subgroups && d->phys->subgroup_max &&
                       p->spec[0] % d->sg == 0 && p->spec[0] / d->sg <= d->phys->max_subgroups;
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = d->sg};
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .flags = flags,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = whole ? &size : NULL,
                  .flags = whole ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &spec},
        .layout = d->layout};
    r = d->CreateComputePipelines(d->handle, d->cache, 1, &info, NULL, out);
    d->DestroyShaderModule(d->handle, module, NULL);
    return r;
}

ob_status vk_kernel_get(vk_dev *d, const char *name, uint32_t n_spec, const uint32_t *spec,
                        const vk_pipe **out, ob_err *err)
{
    vk_pipe p = {.shader = find_shader(name), .n_spec = n_spec};
    if (!p.shader)
        return ob_err_set(err, OB_E_INTERNAL, "vulkan: kernel %s is not in this build", name);
    if (n_spec > VK_MAX_SPEC || spec[0] > d->phys->max_invocations)
        return ob_err_set(err, OB_E_INTERNAL, "vulkan: kernel %s: bad constants", name);
    memcpy(p.spec, spec, n_spec * sizeof *spec);
    for (size_t i = 0; i < d->n_pipes; i++) {
        vk_pipe *q = d->pipes[i];
        if (q->shader != p.shader || memcmp(q->spec, p.spec, sizeof p.spec) != 0) continue;
        *out = q;
        return OB_OK;
    }
    if (d->n_pipes == d->cap_pipes) {
        const size_t cap = d->cap_pipes ? 2 * d->cap_pipes : 64;
        vk_pipe **grown = ob_reallocarray(d->pipes, cap, sizeof *grown);
        if (!grown) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for pipelines");
        d->pipes = grown;
        d->cap_pipes = cap;
    }
    vk_pipe *kept = ob_malloc(sizeof *kept);
    if (!kept) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for pipelines");
    *kept = p;
    d->pipes[d->n_pipes++] = kept;
    *out = kept;
    return OB_OK;
}

typedef struct making {
    vk_dev *d;
    ob_pool *pool;
    size_t first;
    VkResult *results; /* of each from `first` on */
} making;

/* The driver's cache locks itself. */
static void make_some(void *arg, int ith, int n_threads)
{
    making *m = arg;
    (void)ith;
    (void)n_threads;
    for (int64_t i, end; ob_pool_take(m->pool, (int64_t)(m->d->n_pipes - m->first), 1, &i, &end);) {
        vk_pipe *p = m->d->pipes[m->first + (size_t)i];
        m->results[i] = make_pipeline(m->d, p, 0, &p->handle);
    }
}

/* What the driver refuses is forgotten, so that it is asked again when it is wanted again. */
static void drop(vk_dev *d, size_t i)
{
    ob_free(d->pipes[i]);
    memmove(d->pipes + i, d->pipes + i + 1, (--d->n_pipes - i) * sizeof *d->pipes);
}

void vk_kernels_forget(vk_dev *d, size_t first)
{
    while (d->n_pipes > OB_MAX(first, d->n_made)) drop(d, d->n_pipes - 1);
}

ob_status vk_kernels_make(vk_dev *d, ob_err *err)
{
    const size_t n = d->n_pipes - d->n_made;
    ob_status s = OB_OK;
    if (!n) return OB_OK;
    const double t0 = ob_now_ms();
    making m = {.d = d, .pool = n > 1 ? vk_pool(d) : NULL, .first = d->n_made, .results = ob_calloc(n, sizeof(VkResult))};
    if (!m.results) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for pipelines");
    if (m.pool) ob_pool_run(m.pool, make_some, &m);
    else
        for (size_t i = 0; i < n; i++)
            m.results[i] = make_pipeline(d, d->pipes[m.first + i], 0, &d->pipes[m.first + i]->handle);
    for (size_t i = n; i-- > 0;) {
        if (m.results[i] == VK_SUCCESS) continue;
        s = vk_error(d, m.results[i], "making a pipeline", err);
        s = ob_err_prefix(err, s, "kernel %s", d->pipes[m.first + i]->shader->name);
        drop(d, m.first + i);
    }
    d->n_made = d->n_pipes;
    d->load.n_pipes += (int)n;
    d->load.pipes_ms += ob_now_ms() - t0;
    ob_free(m.results);
    return s;
}

ob_status vk_kernel_base(vk_dev *d, const vk_pipe *pipe, VkPipeline *out, ob_err *err)
{
    size_t i = 0;
    while (i < d->n_pipes && d->pipes[i] != pipe) i++;
    if (i == d->n_pipes) return ob_err_set(err, OB_E_INTERNAL, "vulkan: a pipeline of nobody");
    vk_pipe *p = d->pipes[i];
    if (!p->base) {
        const VkResult r = make_pipeline(d, p, VK_PIPELINE_CREATE_DISPATCH_BASE_BIT, &p->base);
        if (r != VK_SUCCESS) {
            p->base = VK_NULL_HANDLE;
            const ob_status s = vk_error(d, r, "making a pipeline", err);
            return ob_err_prefix(err, s, "kernel %s", p->shader->name);
        }
    }
    *out = p->base;
    return OB_OK;
}

ob_pool *vk_pool(vk_dev *d)
{
    enum { MOST = 32 };
    if (d->host_pool || d->n_host_threads == 1) return d->host_pool;
    const int n = OB_MIN(d->n_host_threads > 0 ? d->n_host_threads : ob_cpu_count(), MOST);
    if (n < 2 || ob_pool_new(n, &d->host_pool, NULL) != OB_OK) {
        d->host_pool = NULL;
        d->n_host_threads = 1;
    }
    return d->host_pool;
}
