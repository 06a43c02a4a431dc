/* fmt/gguf_write.h: write GGUF v3 files: metadata, the tensor directory, then data as it comes.
 *
 *     ob_gguf_meta_init, _copy, _u32, ...      gather the pairs
 *     ob_gguf_write_head                       pairs and directory; the places of all data are fixed
 *     for each tensor, in order: ob_outfile_write its bytes, then ob_outfile_pad to the alignment
 *     ob_outfile_commit
 */
#ifndef OB_FMT_GGUF_WRITE_H
#define OB_FMT_GGUF_WRITE_H

#include "base/outfile.h"
#include "fmt/fmt.h"

typedef struct ob_gguf_meta {
    ob_buf bytes;
    uint64_t n;
} ob_gguf_meta;

void ob_gguf_meta_init(ob_gguf_meta *m);
void ob_gguf_meta_deinit(ob_gguf_meta *m);
/* Append the pairs of a file byte for byte, but for keys in `skip` (NULL-terminated; an entry that ends
 * in '.' stands for all keys that begin so). */
void ob_gguf_meta_copy(ob_gguf_meta *m, const ob_file *f, const char *const *skip);
void ob_gguf_meta_u32(ob_gguf_meta *m, const char *key, uint32_t v);
void ob_gguf_meta_i32(ob_gguf_meta *m, const char *key, int32_t v);
void ob_gguf_meta_str(ob_gguf_meta *m, const char *key, const char *v);
void ob_gguf_meta_strs(ob_gguf_meta *m, const char *key, const char *const *v, uint64_t n);

/* Only name, type, n_dims, ne and n_bytes of a tensor are looked at. align: a power of two, the file's
 * general.alignment (32 where it has none). A failed append above is reported here. */
OB_MUST_CHECK ob_status ob_gguf_write_head(ob_outfile *o, const ob_gguf_meta *m, const ob_tensor *tensors,
                                           size_t n_tensors, size_t align, ob_err *err);
/* What general.alignment says, else 32. */
size_t ob_gguf_alignment(const ob_file *f);

#endif
