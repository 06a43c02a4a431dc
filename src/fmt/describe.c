/* What `1bit info` prints: a file's format, metadata, tensors and totals, for people or as JSON. */
#include "fmt/fmt_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"

enum {
    N_SHOWN_HUMAN = 5,  /* elements of an array */
    N_SHOWN_JSON = 16,
    MAX_COLUMN = 56,    /* a longer name pushes its own line out, not everybody's */
    N_TYPE_IDS = 64,
};

typedef struct totals {
    uint64_t n_tensors, n_elems, n_bytes;
} totals;

static uint64_t n_elems_of(const ob_tensor *t)
{
    uint64_t n = 1;
    for (int d = 0; d < t->n_dims; d++) n *= (uint64_t)t->ne[d]; /* checked at load */
    return n;
}

/* by_type has N_TYPE_IDS entries; returns the sum. */
static totals count_totals(const ob_file *f, totals *by_type)
{
    totals all = {0};
    memset(by_type, 0, N_TYPE_IDS * sizeof *by_type);
    for (size_t i = 0; i < f->n_tensors; i++) {
        const ob_tensor *t = &f->tensors[i];
        totals *both[] = {&all, &by_type[t->type % N_TYPE_IDS]};
        for (size_t k = 0; k < OB_COUNT(both); k++) {
            both[k]->n_tensors++;
            both[k]->n_elems += n_elems_of(t);
            both[k]->n_bytes += t->n_bytes;
        }
    }
    return all;
}

/* ---- values --------------------------------------------------------------------------------- */

/* The shortest decimal that reads back to the same float. */
static void add_f32(ob_buf *b, float x)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) break;
    }
    ob_buf_adds(b, text);
}

/* Element i as a JSON value; strings are left to the callers, who cut them differently. */
static void add_number(ob_buf *b, const ob_kv *kv, uint64_t i)
{
    int64_t whole;
    double real;
    uint64_t big;
    if (kv->elem_type == OB_KV_BOOL) {
        ob_buf_adds(b, kv->data[i] ? "true" : "false");
    } else if (ob_kv_elem_i64(kv, i, &whole)) {
        ob_buf_addf(b, "%" PRId64, whole);
    } else if (kv->elem_type == OB_KV_U64) {
        memcpy(&big, kv->data + i * sizeof big, sizeof big);
        ob_buf_addf(b, "%" PRIu64, big);
    } else if (ob_kv_elem_f64(kv, i, &real)) {
        if (kv->elem_type == OB_KV_F32 && isfinite(real)) add_f32(b, (float)real);
        else ob_buf_add_double(b, real);
    }
}

static void add_value_human(ob_buf *b, const ob_kv *kv)
{
    uint64_t n = OB_MIN(kv->n, (uint64_t)N_SHOWN_HUMAN);
    for (uint64_t i = 0; i < n; i++) {
        ob_str s;
        if (i) ob_buf_adds(b, ", ");
        if (ob_kv_elem_str(kv, i, &s)) ob_buf_addf(b, "\"%s\"", ob_show(s.data, s.len).text);
        else add_number(b, kv, i);
    }
    if (kv->n > n) ob_buf_adds(b, ", ...");
}

static void add_value_json(ob_buf *b, const ob_kv *kv)
{
    uint64_t n = OB_MIN(kv->n, (uint64_t)N_SHOWN_JSON);
    bool array = kv->type == OB_KV_ARRAY;
    if (array)
        ob_buf_addf(b, "{\"type\": \"array\", \"elem_type\": \"%s\", \"length\": %" PRIu64
                       ", \"first\": [", ob_kv_type_name(kv->elem_type), kv->n);
    for (uint64_t i = 0; i < n; i++) {
        ob_str s;
        if (i) ob_buf_adds(b, ", ");
        if (ob_kv_elem_str(kv, i, &s)) ob_buf_add_json(b, s.data, s.len);
        else add_number(b, kv, i);
    }
    if (array) ob_buf_adds(b, "]}");
}

/* ---- for people ----------------------------------------------------------------------------- */

/* 1234567 -> "1.2 M"; base-10 steps, for counts and bytes alike. */
static void format_si(char out[24], uint64_t n, const char *unit)
{
    static const char *const k_step[] = {"", "k", "M", "G", "T", "P", "E"};
    double x = (double)n;
    size_t step = 0;
    for (; x >= 999.95 && step + 1 < OB_COUNT(k_step); step++) x /= 1000;
    const char *gap = step || unit[0] ? " " : "";
    snprintf(out, 24, "%.*f%s%s%s", step ? 1 : 0, x, gap, k_step[step], unit);
}

static int column(size_t widest) { return (int)OB_MIN(widest, (size_t)MAX_COLUMN); }

static void add_pairs_human(ob_buf *b, const ob_file *f)
{
    size_t widest = 0;
    for (size_t i = 0; i < f->pairs.n; i++) widest = OB_MAX(widest, f->pairs.kv[i].key.len);
    ob_buf_addf(b, "\nMetadata (%zu)\n", f->pairs.n);
    for (size_t i = 0; i < f->pairs.n; i++) {
        const ob_kv *kv = &f->pairs.kv[i];
        char type[48];
        if (kv->type == OB_KV_ARRAY)
            snprintf(type, sizeof type, "%s[%" PRIu64 "]", ob_kv_type_name(kv->elem_type), kv->n);
        else snprintf(type, sizeof type, "%s", ob_kv_type_name(kv->type));
        ob_buf_addf(b, "  %-*s  %-14s  ", column(widest), ob_show(kv->key.data, kv->key.len).text,
                    type);
        add_value_human(b, kv);
        ob_buf_addc(b, '\n');
    }
}

static void format_shape(char out[96], const ob_tensor *t)
{
    int n = 0;
    for (int d = 0; d < t->n_dims; d++)
        n += snprintf(out + n, (size_t)(96 - n), "%s%" PRId64, d ? " x " : "", t->ne[d]);
}

static void add_tensors_human(ob_buf *b, const ob_file *f)
{
    size_t name_w = 0, shape_w = 0;
    char shape[96];
    for (size_t i = 0; i < f->n_tensors; i++) {
        format_shape(shape, &f->tensors[i]);
        name_w = OB_MAX(name_w, strlen(f->tensors[i].name));
        shape_w = OB_MAX(shape_w, strlen(shape));
    }
    ob_buf_addf(b, "\nTensors (%zu)\n", f->n_tensors);
    for (size_t i = 0; i < f->n_tensors; i++) {
        const ob_tensor *t = &f->tensors[i];
        format_shape(shape, t);
        ob_buf_addf(b, "  %-*s  %-7s  %-*s  %14zu bytes", column(name_w),
                    ob_show(t->name, strlen(t->name)).text, ob_fmt_type_name(t->type),
                    column(shape_w), shape, t->n_bytes);
        if (f->n_parts > 1) ob_buf_addf(b, "  part %d", t->file_index + 1);
        ob_buf_addc(b, '\n');
    }
}

static void add_totals_human(ob_buf *b, const totals *by_type)
{
    char params[24], bytes[24];
    ob_buf_adds(b, "\nTypes\n");
    for (uint32_t id = 0; id < N_TYPE_IDS; id++) {
        const totals *t = &by_type[id];
        if (t->n_tensors == 0) continue;
        format_si(params, t->n_elems, "");
        format_si(bytes, t->n_bytes, "B");
        ob_buf_addf(b, "  %-7s  %6" PRIu64 " tensors  %8s parameters  %9s  %6.3f bits each\n",
                    ob_fmt_type_name(id), t->n_tensors, params, bytes,
                    8.0 * (double)t->n_bytes / (double)t->n_elems);
    }
}

static void describe_human(const ob_file *f, ob_buf *b)
{
    totals by_type[N_TYPE_IDS], all = count_totals(f, by_type);
    char size[24], params[24];
    ob_str name;
    format_si(size, ob_file_n_bytes(f), "B");
    format_si(params, all.n_elems, "");
    ob_buf_addf(b, "File          %s\n", f->path[0] ? f->path : "(memory)");
    ob_buf_addf(b, "Format        %s", f->format);
    if (f->n_parts > 1) ob_buf_addf(b, ", %d parts", f->n_parts);
    ob_buf_addf(b, "\nSize          %s (%" PRIu64 " bytes)\n", size, ob_file_n_bytes(f));
    if (ob_kv_str(ob_file_find_kv(f, "general.name"), &name))
        ob_buf_addf(b, "Name          %s\n", ob_show(name.data, name.len).text);
    if (ob_kv_str(ob_file_find_kv(f, "general.architecture"), &name))
        ob_buf_addf(b, "Architecture  %s\n", ob_show(name.data, name.len).text);
    ob_buf_addf(b, "Parameters    %s (%" PRIu64 ")\n", params, all.n_elems);
    add_pairs_human(b, f);
    if (f->n_tensors == 0) return;
    add_tensors_human(b, f);
    add_totals_human(b, by_type);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void add_tensor_json(ob_buf *b, const ob_tensor *t)
{
    ob_buf_adds(b, "{\"name\": ");
    ob_buf_add_json(b, t->name, strlen(t->name));
    ob_buf_addf(b, ", \"type\": \"%s\", \"shape\": [", ob_fmt_type_name(t->type));
    for (int d = 0; d < t->n_dims; d++) ob_buf_addf(b, "%s%" PRId64, d ? ", " : "", t->ne[d]);
    ob_buf_addf(b, "], \"bytes\": %zu, \"offset\": %" PRIu64 ", \"part\": %d}", t->n_bytes,
                t->file_off, t->file_index);
}

static void describe_json(const ob_file *f, ob_buf *b)
{
    totals by_type[N_TYPE_IDS], all = count_totals(f, by_type);
    ob_buf_adds(b, "{\n\"path\": ");
    ob_buf_add_json(b, f->path, strlen(f->path));
    ob_buf_addf(b, ",\n\"format\": \"%s\",\n\"bytes\": %" PRIu64 ",\n\"parts\": %d,\n", f->format,
                ob_file_n_bytes(f), f->n_parts);
    ob_buf_addf(b, "\"parameters\": %" PRIu64 ",\n\"tensor_bytes\": %" PRIu64 ",\n\"types\": {",
                all.n_elems, all.n_bytes);
    const char *sep = "\n";
    for (uint32_t id = 0; id < N_TYPE_IDS; id++) {
        const totals *t = &by_type[id];
        if (t->n_tensors == 0) continue;
        ob_buf_addf(b, "%s  \"%s\": {\"tensors\": %" PRIu64 ", \"parameters\": %" PRIu64
                       ", \"bytes\": %" PRIu64 "}",
                    sep, ob_fmt_type_name(id), t->n_tensors, t->n_elems, t->n_bytes);
        sep = ",\n";
    }
    ob_buf_adds(b, "\n},\n\"metadata\": {");
    for (size_t i = 0; i < f->pairs.n; i++) {
        const ob_kv *kv = &f->pairs.kv[i];
        ob_buf_adds(b, i ? ",\n  " : "\n  ");
        ob_buf_add_json(b, kv->key.data, kv->key.len);
        ob_buf_adds(b, ": ");
        add_value_json(b, kv);
    }
    ob_buf_adds(b, "\n},\n\"tensors\": [");
    for (size_t i = 0; i < f->n_tensors; i++) {
        ob_buf_adds(b, i ? ",\n  " : "\n  ");
        add_tensor_json(b, &f->tensors[i]);
    }
    ob_buf_adds(b, "\n]\n}\n");
}

ob_status ob_file_describe(const ob_file *f, bool json, ob_buf *out, ob_err *err)
{
    if (json) describe_json(f, out);
    else describe_human(f, out);
    return ob_buf_status(out, err);
}
