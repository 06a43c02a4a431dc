/* Open addressing over twice as many slots as keys, with the keys in a ring by age. */
#include "route/sticky.h"

#include "base/alloc.h"

enum { N_SLOTS = 2 * OB_MAX_STICKY }; /* a power of two */

typedef struct slot {
    uint64_t key;
    ob_stuck value;
    bool used;
} slot;

struct ob_sticky {
    slot slots[N_SLOTS];
    uint64_t ring[OB_MAX_STICKY]; /* keys, oldest at `first` */
    int32_t first, n;
};

ob_status ob_sticky_new(ob_sticky **out, ob_err *err)
{
    *out = ob_calloc(1, sizeof **out);
    return *out ? OB_OK : ob_err_set(err, OB_E_NO_MEMORY, "no memory for routing");
}

void ob_sticky_free(ob_sticky *s) { ob_free(s); }

/* The key's slot, or the empty one where it belongs. Keys are hashes already. */
static uint32_t find(const ob_sticky *s, uint64_t key)
{
    uint32_t i = (uint32_t)key & (N_SLOTS - 1);
    while (s->slots[i].used && s->slots[i].key != key) i = (i + 1) & (N_SLOTS - 1);
    return i;
}

ob_stuck *ob_sticky_find(ob_sticky *s, uint64_t key)
{
    slot *at = &s->slots[find(s, key)];
    return at->used ? &at->value : NULL;
}

/* Take a key out and close the gap: those behind it that may move up do. */
static void forget(ob_sticky *s, uint64_t key)
{
    uint32_t hole = find(s, key);
    s->slots[hole].used = false;
    for (uint32_t i = (hole + 1) & (N_SLOTS - 1); s->slots[i].used; i = (i + 1) & (N_SLOTS - 1)) {
        const uint32_t home = (uint32_t)s->slots[i].key & (N_SLOTS - 1);
        if (((i - home) & (N_SLOTS - 1)) < ((i - hole) & (N_SLOTS - 1))) continue;
        s->slots[hole] = s->slots[i];
        s->slots[i].used = false;
        hole = i;
    }
}

void ob_sticky_put(ob_sticky *s, uint64_t key, const ob_stuck *v)
{
    uint32_t i = find(s, key);
    if (!s->slots[i].used) {
        if (s->n == OB_MAX_STICKY) {
            forget(s, s->ring[s->first]);
            s->first = (s->first + 1) % OB_MAX_STICKY;
            s->n--;
            i = find(s, key);
        }
        s->ring[(s->first + s->n++) % OB_MAX_STICKY] = key;
    }
    s->slots[i] = (slot){.key = key, .value = *v, .used = true};
}
