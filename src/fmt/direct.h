/* fmt/direct.h: bytes of tensors read past the mapping and, where the file system can, past the page cache.
 *
 * For what is read often and kept by the caller (experts that are streamed): neither a mapping's resident
 * pages nor the page cache grow by it. io_uring where the kernel has it, so that one thread keeps several
 * requests before the disk; pread otherwise. Must not know what the bytes mean.
 *
 * A reader belongs to one thread at a time. The file must outlive it.
 */
#ifndef OB_FMT_DIRECT_H
#define OB_FMT_DIRECT_H

#include "fmt/fmt.h"

typedef struct ob_direct ob_direct;

enum { OB_DIRECT_NO_RING = 1 /* pread even where io_uring is */ };

/* A reader for up to max_bytes at once: so much memory (and two pages) is its own. Files in memory are copied from.
 * Errors: NO_MEMORY, IO. */
OB_MUST_CHECK ob_status ob_direct_new(const ob_file *f, size_t max_bytes, unsigned flags, ob_direct **out, ob_err *err);
void ob_direct_free(ob_direct *d);
/* Bytes [off, off + n) of a tensor of the file, n <= max_bytes; *out is valid until the next read.
 * Errors: IO (the file has become shorter, too), INVALID (outside the tensor). */
OB_MUST_CHECK ob_status ob_direct_read(ob_direct *d, const ob_tensor *t, uint64_t off, size_t n, const void **out,
                                       ob_err *err);
/* "io_uring, direct", "pread, direct", "pread": how tensors of the first part are read. Static. */
const char *ob_direct_how(const ob_direct *d);
/* Of bytes read so far, what the disk was asked for: with the rest of the pages at both ends. */
uint64_t ob_direct_n_bytes(const ob_direct *d);

#endif
