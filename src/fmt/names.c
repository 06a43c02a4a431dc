/* Hash lookups of keys and tensor names: open addressing, linear probing, at most half full. */
#include "fmt/fmt_int.h"

#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/clock.h"

ob_status ob_names_init(ob_names *t, size_t n_max, ob_err *err)
{
    size_t n_slots = 8;
    *t = (ob_names){0};
    if (n_max >= UINT32_MAX / 4) return ob_err_set(err, OB_E_LIMIT, "%zu names are too many", n_max);
    while (n_slots < 2 * n_max) n_slots *= 2;
    t->names = ob_calloc(n_max, sizeof *t->names);
    t->slots = ob_calloc(n_slots, sizeof *t->slots);
    if (!t->names || !t->slots) {
        ob_names_deinit(t);
        return ob_err_set(err, OB_E_NO_MEMORY, "no memory for a table of %zu names", n_max);
    }
    t->mask = n_slots - 1;
    /* The address is random where the system randomises them, the clock nearly everywhere. */
    t->seed = (uint64_t)(uintptr_t)t->slots ^ (uint64_t)ob_now_ns();
    return OB_OK;
}

void ob_names_deinit(ob_names *t)
{
    ob_free(t->names);
    ob_free(t->slots);
    *t = (ob_names){0};
}

/* The slot of the name, or the free slot where it belongs. */
static size_t find_slot(const ob_names *t, const char *name, size_t len)
{
    size_t i = (size_t)XXH3_64bits_withSeed(name, len, t->seed) & t->mask;
    for (; t->slots[i]; i = (i + 1) & t->mask) {
        const ob_str *have = &t->names[t->slots[i] - 1];
        if (have->len == len && memcmp(have->data, name, len) == 0) break;
    }
    return i;
}

size_t ob_names_add(ob_names *t, ob_str name)
{
    size_t i = find_slot(t, name.data, name.len);
    if (t->slots[i]) return t->slots[i] - 1;
    t->names[t->n] = name;
    t->slots[i] = (uint32_t)++t->n;
    return t->n - 1;
}

size_t ob_names_find(const ob_names *t, const char *name, size_t len)
{
    if (!t->slots) return SIZE_MAX;
    size_t i = find_slot(t, name, len);
    return t->slots[i] ? t->slots[i] - 1 : SIZE_MAX;
}
