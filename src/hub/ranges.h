/* hub/ranges.h: reading a remote file piece by piece, with HTTP range requests.
 *
 * Knows what the pieces must have in common: the size of the file, and its ETag (or the SHA-256 that
 * Hugging Face tells). An answer is believed as far as it proves what it is: 206, beginning where it
 * was asked to. Nothing is ever requested without a range.
 */
#ifndef OB_HUB_RANGES_H
#define OB_HUB_RANGES_H

#include "hub/http_int.h"

typedef struct ob_hub_remote {
    char *url;          /* owned */
    const char *bearer; /* token for url's host, or NULL; borrowed */
    uint64_t n_bytes;   /* of the file; 0 until the first read, constant from then on */
    char id[256];       /* SHA-256 or ETag, the same in all answers; empty when the server has none */
} ob_hub_remote;

/* How a read tells what it does. All may be called on the thread that reads. */
typedef struct ob_hub_watch {
    void *arg;
    bool (*go_on)(void *arg);                     /* false: CANCELLED */
    void (*got)(void *arg, size_t n);             /* so many bytes more */
    void (*remark)(void *arg, const char *text);  /* "trying again ..." */
} ob_hub_watch;

/* Read n bytes at `off` into out, in as many requests as it takes. The first read of a remote file, at
 * offset 0, may find fewer (*n_read): then that is the whole file. Later reads must lie inside the
 * file, and may run on several threads, a handle each. Errors: NOT_FOUND, AUTH, NETWORK (after
 * retries; a server that ignores ranges, too), CORRUPT (the file changed), FORMAT (empty), CANCELLED. */
OB_MUST_CHECK ob_status ob_hub_range_read(CURL *curl, ob_hub_remote *r, uint64_t off, size_t n,
                                          uint8_t *out, size_t *n_read, const ob_hub_watch *watch,
                                          ob_err *err);

#endif
