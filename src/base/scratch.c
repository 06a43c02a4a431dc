#include "base/scratch.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { N_SLOTS = 8, MAX_PATH = 4096 };

/* Global, because a signal handler has nothing else: free -> taken (the path is written) -> ready. */
enum { FREE, TAKEN, READY };
static struct {
    atomic_int state;
    char path[MAX_PATH];
} slots[N_SLOTS];

int ob_scratch_add(const char *path)
{
    const size_t n = strlen(path) + 1;
    for (int i = 0; i < N_SLOTS && n <= MAX_PATH; i++) {
        int none = FREE;
        if (!atomic_compare_exchange_strong(&slots[i].state, &none, TAKEN)) continue;
        memcpy(slots[i].path, path, n);
        atomic_store(&slots[i].state, READY);
        return i;
    }
    return -1;
}

void ob_scratch_drop(int ticket)
{
    if (ticket >= 0) atomic_store(&slots[ticket].state, FREE);
}

void ob_scratch_remove_all(void)
{
    const int saved = errno;
    for (int i = 0; i < N_SLOTS; i++)
        if (atomic_load(&slots[i].state) == READY) (void)unlink(slots[i].path);
    errno = saved;
}
