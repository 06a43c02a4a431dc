/* fmt/hf_int.h: what readers of Hugging Face's folders share. Not for other rooms. */
#ifndef OB_FMT_HF_INT_H
#define OB_FMT_HF_INT_H

#include <jansson.h>

#include "fmt/fmt_int.h"

/* Folder of a path; *taken*, NULL without memory. */
char *ob_hf_folder_of(const char *path);
/* The bytes of folder/name (unmap with ob_part_unmap); *there false when no such file exists. */
OB_MUST_CHECK ob_status ob_hf_read_beside(const char *folder, const char *name, ob_part *p, bool *there, ob_err *err);
/* A JSON object; *out NULL when there is no such file. */
OB_MUST_CHECK ob_status ob_hf_json_beside(const char *folder, const char *name, json_t **out, ob_err *err);
/* An integer of the config, or its default. */
OB_MUST_CHECK ob_status ob_hf_config_count(const json_t *config, const char *key, int64_t otherwise, int64_t *out,
                                           ob_err *err);

/* Metadata pairs in GGUF's encoding. */
typedef struct ob_pairs_made {
    ob_buf b;
    uint64_t n;
} ob_pairs_made;

/* GGUF's name of a tensor of the folder into out ("": drop it); false when the name is not known. */
typedef bool (*ob_hf_map_fn)(const void *arg, const char *name, char *out, size_t cap);
/* Rename and drop. Tensors that are not known keep their names: whoever builds the model refuses them. */
OB_MUST_CHECK ob_status ob_hf_map_tensors(ob_file *f, ob_hf_map_fn map, const void *arg, ob_err *err);
void ob_hf_add_u32(ob_buf *b, uint32_t x);
void ob_hf_add_text(ob_buf *b, const char *s, uint64_t len);
/* The key and type of a pair; the value is the caller's to append. */
void ob_pair(ob_pairs_made *p, const char *key, ob_kv_type type);
void ob_pair_u32(ob_pairs_made *p, const char *key, uint64_t x);
void ob_pair_bool(ob_pairs_made *p, const char *key, bool x);
void ob_pair_f32(ob_pairs_made *p, const char *key, double x);
void ob_pair_text(ob_pairs_made *p, const char *key, const char *s);
/* A number of the config, or its default. */
double ob_hf_number(const json_t *o, const char *key, double otherwise);

/* A token with a job: named by tokenizer_config.json, else by one of the usual names; GGUF's keys for its id. */
typedef struct ob_hf_role {
    const char *role, *keys[2], *usual[3];
} ob_hf_role;
/* tokenizer.json (NULL: nothing is added) with n_vocab ids. UNSUPPORTED: no byte-pair encoding, or words are split in
 * an unknown way. */
OB_MUST_CHECK ob_status ob_hf_add_tokenizer(ob_pairs_made *p, const json_t *tokenizer, const json_t *tok_config,
                                            const ob_hf_role *roles, size_t n_roles, size_t n_vocab, ob_err *err);
/* Hand them to the file: *taken*. */
OB_MUST_CHECK ob_status ob_hf_make_pairs(ob_file *f, ob_pairs_made *p, ob_err *err);

#endif
