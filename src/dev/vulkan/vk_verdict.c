/* Which tests of kernels were passed: by this process, and by earlier ones, on disk beside the driver's cache of
 * pipelines. The file is that of one device and driver version, and its first line names the shaders of this build,
 * so a new driver or a new shader means new tests. Kernels that were wrong are not kept: they are tried again. */
#include "dev/vulkan/vk_int.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/math.h"

enum { MAX_VERDICTS = 4096, MAX_DEVICES = 16 };

typedef struct verdict {
    int device;
    uint32_t value;
    uint64_t key;
} verdict;

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static verdict g_all[MAX_VERDICTS];
static int g_n;
static bool g_loaded[MAX_DEVICES], g_new[MAX_DEVICES]; /* from disk; not on disk yet */

uint64_t vk_hash(uint64_t h, const void *data, size_t n)
{
    for (const uint8_t *p = data; n--; p++) h = (h ^ *p) * 1099511628211u;
    return h;
}

static uint64_t shaders_hash(void)
{
    static uint64_t hash; /* by lock */
    if (hash) return hash;
    uint64_t h = OB_VK_HASH_START;
    for (const vk_shader *s = vk_shaders; s->name; s++) {
        h = vk_hash(h, s->name, strlen(s->name));
        for (size_t i = 0; i < s->n_bytes / 4; i++) h = (h ^ s->code[i]) * 1099511628211u;
    }
    return hash = h ? h : 1;
}

static void add(int device, uint64_t key, uint32_t value)
{
    for (int i = 0; i < g_n; i++)
        if (g_all[i].device == device && g_all[i].key == key) return;
    if (g_n < MAX_VERDICTS) g_all[g_n++] = (verdict){device, value, key};
}

static void read_file(const vk_dev *d)
{
    char path[600];
    uint64_t key;
    uint32_t value;
    FILE *f = vk_cache_path(d->phys, "ok", path, sizeof path, false) ? fopen(path, "re") : NULL;
    if (!f) return;
    if (fscanf(f, "shaders %" SCNx64, &key) == 1 && key == shaders_hash())
        while (fscanf(f, "%" SCNx64 " %" SCNx32, &key, &value) == 2) add(d->index, key, value);
    fclose(f);
}

uint64_t vk_verdict_key(const vk_dev *d, const char *test)
{
    static const char *const tuning[] = {"OB_VK_SPREAD", "OB_VK_ATTN"};
    uint64_t h = vk_hash(OB_VK_HASH_START, test, strlen(test));
    h = vk_hash(h, &d->fast, sizeof d->fast);
    h = vk_hash(h, &d->sg, sizeof d->sg);
    h = vk_hash(h, &(uint32_t){d->exact}, sizeof(uint32_t));
    h = vk_hash(h, d->disabled, strlen(d->disabled));
    for (size_t i = 0; i < OB_COUNT(tuning); i++) {
        const char *text = getenv(tuning[i]);
        if (text) h = vk_hash(h, text, strlen(text));
    }
    return h;
}

bool vk_verdict_find(const vk_dev *d, uint64_t key, uint32_t *value)
{
    bool found = false;
    if (d->index >= MAX_DEVICES) return false;
    pthread_mutex_lock(&g_lock);
    if (!g_loaded[d->index]) {
        g_loaded[d->index] = true;
        read_file(d);
    }
    for (int i = 0; i < g_n && !found; i++) {
        found = g_all[i].device == d->index && g_all[i].key == key;
        if (found) *value = g_all[i].value;
    }
    pthread_mutex_unlock(&g_lock);
    return found;
}

void vk_verdict_add(const vk_dev *d, uint64_t key, uint32_t value)
{
    if (d->listing || d->index >= MAX_DEVICES) return;
    pthread_mutex_lock(&g_lock);
    add(d->index, key, value);
    g_new[d->index] = true;
    pthread_mutex_unlock(&g_lock);
}

/* Through a file of its own and a rename, so that a reader never sees half of it. */
void vk_verdict_write(const vk_dev *d)
{
    char path[600], tmp[640];
    if (d->lost || d->index >= MAX_DEVICES) return;
    pthread_mutex_lock(&g_lock);
    FILE *f = NULL;
    if (g_new[d->index] && vk_cache_path(d->phys, "ok", path, sizeof path, true)) {
        snprintf(tmp, sizeof tmp, "%s.%d", path, (int)getpid());
        f = fopen(tmp, "we");
    }
    if (f) {
        bool ok = fprintf(f, "shaders %016" PRIx64 "\n", shaders_hash()) > 0;
        for (int i = 0; i < g_n; i++)
            if (g_all[i].device == d->index) ok &= fprintf(f, "%016" PRIx64 " %08" PRIx32 "\n", g_all[i].key, g_all[i].value) > 0;
        ok &= fclose(f) == 0;
        if (!ok || rename(tmp, path) != 0) (void)unlink(tmp);
        g_new[d->index] = false;
    }
    pthread_mutex_unlock(&g_lock);
}
