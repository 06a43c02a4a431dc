#include "engine/share.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"

typedef struct entry {
    ob_weight desc; /* name is a copy; data NULL: its file may be closed, so nobody finds it any more */
    const ob_dev_api *api;
    bool exact;
    ob_dev_weight *w;
    const void *owner;
    int32_t n_ref;
} entry;

struct ob_share {
    pthread_mutex_t lock;
    entry *entries; /* [n] of room cap, in no order */
    size_t n, cap;
};

ob_status ob_share_new(ob_share **out, ob_err *err)
{
    *out = ob_calloc(1, sizeof **out);
    if (!*out) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the table of shared weights");
    pthread_mutex_init(&(*out)->lock, NULL);
    return OB_OK;
}

void ob_share_free(ob_share *s)
{
    if (!s) return;
    pthread_mutex_destroy(&s->lock);
    ob_free(s->entries);
    ob_free(s);
}

static bool same_shape(const ob_weight *a, const ob_weight *b)
{
    return a->type == b->type && a->use == b->use && a->hadamard == b->hadamard && a->act4 == b->act4 &&
           a->n_bytes == b->n_bytes && memcmp(a->ne, b->ne, sizeof a->ne) == 0 && strcmp(a->name, b->name) == 0;
}

ob_dev_weight *ob_share_find(ob_share *s, const ob_dev *dev, bool exact, const ob_weight *desc)
{
    ob_dev_weight *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n && !found; i++) {
        entry *e = &s->entries[i];
        if (!e->desc.data || e->api != dev->api || e->exact != exact || !same_shape(&e->desc, desc)) continue;
        if (memcmp(e->desc.data, desc->data, desc->n_bytes) != 0) continue;
        e->n_ref++;
        found = e->w;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

ob_status ob_share_add(ob_share *s, const ob_dev *dev, bool exact, const ob_weight *desc, ob_dev_weight *w, const void *owner,
                       ob_err *err)
{
    ob_status status = OB_OK;
    entry e = {.desc = *desc, .api = dev->api, .exact = exact, .w = w, .owner = owner, .n_ref = 1};
    e.desc.name = ob_strdup(desc->name);
    if (!e.desc.name) return ob_err_set(err, OB_E_NO_MEMORY, "no memory for the table of shared weights");
    pthread_mutex_lock(&s->lock);
    if (s->n == s->cap) {
        entry *more = ob_reallocarray(s->entries, 2 * s->cap + 64, sizeof *more);
        if (more) {
            s->entries = more;
            s->cap = 2 * s->cap + 64;
        } else {
            status = ob_err_set(err, OB_E_NO_MEMORY, "no memory for the table of shared weights");
        }
    }
    if (status == OB_OK) s->entries[s->n++] = e;
    else ob_free((char *)e.desc.name);
    pthread_mutex_unlock(&s->lock);
    return status;
}

void ob_share_drop(ob_share *s, ob_dev *dev, ob_dev_weight *w, const void *owner)
{
    bool last = true;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n; i++) {
        entry *e = &s->entries[i];
        if (e->w != w) continue;
        if (e->owner == owner) e->desc.data = NULL;
        last = --e->n_ref == 0;
        if (last) {
            ob_free((char *)e->desc.name);
            *e = s->entries[--s->n];
        }
        break;
    }
    pthread_mutex_unlock(&s->lock);
    if (last) dev->api->weight_free(dev, w);
}
