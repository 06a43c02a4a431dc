/* base/outfile.h: a file that appears under its name only when it is complete.
 *
 * Bytes go to a file of another name in the same folder. ob_outfile_commit makes them safe on disk and
 * gives the file its name, in place of one that was there; until then, and after a failure, nothing of
 * that name has changed. Owner: one thread.
 */
#ifndef OB_BASE_OUTFILE_H
#define OB_BASE_OUTFILE_H

#include <stdint.h>

#include "base/status.h"

typedef struct ob_outfile ob_outfile;

OB_MUST_CHECK ob_status ob_outfile_new(const char *path, ob_outfile **out, ob_err *err);
OB_MUST_CHECK ob_status ob_outfile_write(ob_outfile *o, const void *bytes, size_t n, ob_err *err);
/* Zeros up to a multiple of `align` (a power of two, at most 65536). */
OB_MUST_CHECK ob_status ob_outfile_pad(ob_outfile *o, size_t align, ob_err *err);
uint64_t ob_outfile_n_bytes(const ob_outfile *o); /* written so far */
/* Flush, sync, rename. Frees `o` whatever comes of it; NULL is allowed nowhere here. */
OB_MUST_CHECK ob_status ob_outfile_commit(ob_outfile *o, ob_err *err);
/* Remove what was written. NULL is allowed. */
void ob_outfile_abort(ob_outfile *o);

#endif
