/* Faults on demand, so that what follows from them can be tested on any device.
 *
 *   OB_VK_LOSE_AFTER=N[,M...]    the Nth step of the first device that is opened finds it lost, the Mth of the next one
 *   OB_VK_NO_MEMORY_AFTER=N[,M...]  the same with memory that has run out
 *
 * A device whose turn is 0 or past the end of the list has no fault. The lists start over when they change.
 */
#include "dev/vulkan/vk_int.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static struct turn {
    const char *variable;
    char text[128];
    int n_opened;
} g_turns[] = {{.variable = "OB_VK_LOSE_AFTER"}, {.variable = "OB_VK_NO_MEMORY_AFTER"}};

static uint64_t next_turn(struct turn *t)
{
    const char *text = getenv(t->variable);
    if (!text) text = "";
    if (strncmp(text, t->text, sizeof t->text - 1) != 0) {
        snprintf(t->text, sizeof t->text, "%s", text);
        t->n_opened = 0;
    }
    for (int i = t->n_opened++; i > 0 && text; i--) {
        text = strchr(text, ',');
        if (text) text++;
    }
    return text ? strtoull(text, NULL, 10) : 0;
}

void vk_fault_init(vk_dev *d)
{
    pthread_mutex_lock(&g_lock);
    d->lose_at = next_turn(&g_turns[0]);
    d->no_memory_at = next_turn(&g_turns[1]);
    pthread_mutex_unlock(&g_lock);
}

ob_status vk_fault(vk_dev *d, ob_err *err)
{
    if (!d->lose_at && !d->no_memory_at) return OB_OK;
    const uint64_t n = ++d->n_begun;
    if (n == d->lose_at || n == d->no_memory_at) (void)d->DeviceWaitIdle(d->handle); /* what was begun is not lost */
    if (n == d->lose_at) return vk_error(d, VK_ERROR_DEVICE_LOST, "a fault on demand", err);
    if (n == d->no_memory_at) return vk_error(d, VK_ERROR_OUT_OF_DEVICE_MEMORY, "a fault on demand", err);
    return OB_OK;
}
