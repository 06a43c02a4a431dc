/* 1bit quantize and 1bit rotate: a model file with smaller weights. */
#include <unistd.h>

#include "base/alloc.h"
#include "base/math.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "convert/convert.h"

typedef struct reporter {
    const ob_args *a;
    ob_progress progress;
} reporter;

static void on_progress(void *arg, const char *tensor, uint64_t done, uint64_t total)
{
    (void)tensor;
    ob_progress_bytes(&((reporter *)arg)->progress, "quantising", done, total);
}

static void on_note(void *arg, const char *text)
{
    reporter *r = arg;
    if (ob_cli_flag(r->a, OB_OPT_QUIET)) return;
    ob_progress_end(&r->progress);
    fprintf(stderr, "1bit %s: note: %s\n", r->a->cmd_name, text);
}

static int convert(const ob_args *a, ob_quantize_params *p)
{
    ob_err err;
    ob_status s;
    char *path = NULL;
    ob_file *src = NULL;
    ob_imatrix *im = NULL;
    ob_quantize_result r;
    reporter rep = {.a = a};
    ob_buf out;
    ob_buf_init(&out, 4096);
    ob_progress_init(&rep.progress, ob_cli_flag(a, OB_OPT_QUIET));
    p->n_threads = (int)ob_cli_int(a, OB_OPT_THREADS);
    p->on_progress = on_progress;
    p->on_note = on_note;
    p->arg = &rep;
    OB_GOTO(ob_cli_find_model(a->pos[0], &path, &err));
    OB_GOTO(ob_file_open(path, 0, &src, &err));
    if (access(a->pos[1], F_OK) == 0) on_note(&rep, "DST is there already; it is replaced when the new file is complete");
    if (ob_cli_str(a, OB_OPT_IMATRIX)) OB_GOTO(ob_imatrix_load(ob_cli_str(a, OB_OPT_IMATRIX), &im, &err));
    p->imatrix = im;
    OB_GOTO(ob_convert_quantize(src, a->pos[1], p, &r, &err));
    ob_progress_end(&rep.progress);
    ob_buf_addf(&out, "%s: %d tensors, %d converted", a->pos[1], r.n_tensors, r.n_quantized);
    if (p->rotate) ob_buf_addf(&out, ", %d rotated", r.n_rotated);
    if (im) ob_buf_addf(&out, ", %d with importance", r.n_with_importance);
    if (r.n_compensated) ob_buf_addf(&out, ", %d with compensated rounding", r.n_compensated);
    ob_buf_addf(&out, "; %.1f MB to %.1f MB, %.3f bits per weight\n", (double)r.src_bytes / 1e6, (double)r.n_bytes / 1e6,
                r.bits_per_weight);
out:;
    ob_progress_end(&rep.progress);
    int rc = s == OB_OK ? ob_cli_flag(a, OB_OPT_QUIET) ? OB_EXIT_OK : ob_cli_print(a, &out) : ob_cli_fail(a, &err);
    ob_imatrix_free(im);
    if (src) ob_file_close(src);
    ob_free(path);
    ob_buf_deinit(&out);
    return rc;
}

int ob_cmd_quantize(const ob_args *a)
{
    const ob_opt_value *rules = &a->values[OB_OPT_TENSOR_TYPE];
    ob_quantize_params p = {.type = a->pos[2], .rules = rules->list, .n_rules = rules->n_list,
                            .pure = ob_cli_flag(a, OB_OPT_PURE), .requantize = ob_cli_flag(a, OB_OPT_REQUANTIZE)};
    return convert(a, &p);
}

int ob_cmd_rotate(const ob_args *a)
{
    const ob_opt_value *rules = &a->values[OB_OPT_TENSOR_TYPE];
    ob_quantize_params p = {.rotate = true, .rules = rules->list, .n_rules = rules->n_list,
                            .requantize = ob_cli_flag(a, OB_OPT_REQUANTIZE)};
    return convert(a, &p);
}
