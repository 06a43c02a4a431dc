#include "cli/load.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "fmt/onebp.h"

static void on_progress(void *arg, double fraction)
{
    ob_cli_load *l = arg;
    ob_progress_part(&l->progress, "loading", fraction);
}

ob_status ob_cli_verify(const ob_args *a, const char *path, ob_err *err)
{
    ob_buf sums;
    if (!ob_cli_flag(a, OB_OPT_VERIFY)) return OB_OK;
    ob_buf_init(&sums, 1 << 16);
    ob_buf_addf(&sums, "%s.sums", path);
    ob_status s = ob_buf_status(&sums, err);
    if (s == OB_OK) s = ob_onebp_sums_verify(path, ob_buf_str(&sums), NULL, NULL, err);
    ob_buf_deinit(&sums);
    return s;
}

ob_status ob_cli_load_init(ob_cli_load *l, const ob_args *a, ob_err *err)
{
    memset(l, 0, sizeof *l);
    OB_TRY(ob_cli_find_model(ob_cli_str(a, OB_OPT_MODEL), &l->path, err));
    OB_TRY(ob_cli_verify(a, l->path, err));
    ob_progress_init(&l->progress, ob_cli_flag(a, OB_OPT_QUIET));
    ob_cli_engine_params(a, &l->params);
    l->params.model_path = l->path;
    l->params.n_seq = 1;
    l->params.on_progress = on_progress;
    l->params.progress_arg = l;
    return OB_OK;
}

void ob_cli_load_deinit(ob_cli_load *l)
{
    ob_progress_end(&l->progress);
    ob_free(l->path);
    l->path = NULL;
}

/* Names the model in an error that is about its file and does not name it yet; a device that is not
 * there, say, has nothing to do with the model. */
static ob_status name_model(const ob_cli_load *l, ob_status s, ob_err *err)
{
    const bool of_file = s == OB_E_FORMAT || s == OB_E_CORRUPT || s == OB_E_UNSUPPORTED || s == OB_E_LIMIT ||
                         s == OB_E_IO;
    if (!of_file || !err || strstr(err->text, l->path)) return s;
    return ob_err_prefix(err, s, "%.150s", l->path);
}

ob_status ob_cli_load_ctx(ob_cli_load *l, ob_ctx **out, ob_err *err)
{
    ob_status s = ob_ctx_new(&l->params, out, err);
    ob_progress_end(&l->progress);
    if (s != OB_OK) return name_model(l, s, err);
    ob_engine_info info;
    ob_ctx_describe(*out, &info);
    if (info.causal || l->encoders_too) return OB_OK;
    ob_ctx_free(*out);
    *out = NULL;
    return ob_err_set(err, OB_E_UNSUPPORTED,
                      "%.150s is an encoder: it gives vectors (`1bit embed`) and predicts no tokens", l->path);
}

ob_status ob_cli_load_handover(ob_cli_load *l, const ob_ctx *c, ob_handover **out, ob_err *err)
{
    *out = NULL;
    if (!l->params.prefill_device) return OB_OK;
    const ob_status s = ob_handover_new(&l->params, c, NULL, NULL, out, err);
    return s == OB_OK ? s : ob_err_prefix(err, s, "--prefill-device");
}

ob_status ob_cli_load_engine(ob_cli_load *l, ob_engine **out, ob_err *err)
{
    ob_status s = ob_engine_new(&l->params, out, err);
    ob_progress_end(&l->progress);
    return name_model(l, s, err);
}

ob_status ob_cli_load_engine_and_tower(ob_cli_load *l, const ob_args *a, ob_engine **out, ob_vision **vision,
                                       ob_err *err)
{
    char *path;
    const char *name = ob_cli_str(a, OB_OPT_MMPROJ);
    *vision = NULL;
    if (!name) return ob_cli_load_engine(l, out, err);
    OB_TRY(ob_cli_find_model(name, &path, err));
    const ob_status s = ob_vision_new(&l->params, path, (int32_t)ob_cli_int(a, OB_OPT_IMAGE_MAX_TOK), vision, err);
    ob_free(path);
    if (s != OB_OK) return s;
    l->params.n_picture_tok = ob_vision_max_tok(*vision);
    OB_TRY(ob_cli_load_engine(l, out, err));
    ob_engine_info info;
    ob_engine_describe(*out, &info);
    return ob_vision_check_model(*vision, &info, err);
}

ob_status ob_cli_chat_template(const ob_args *a, ob_buf *out, ob_err *err)
{
    const char *path = ob_cli_str(a, OB_OPT_CHAT_TEMPLATE);
    if (!path) return OB_OK;
    FILE *f = fopen(path, "rb");
    if (!f) return ob_err_set_errno(err, OB_E_NOT_FOUND, errno, "%.150s", path);
    const ob_status s = ob_cli_read_all(f, path, out, err);
    fclose(f);
    if (s == OB_OK && !out->len) return ob_err_set(err, OB_E_FORMAT, "%.150s is empty: it holds no chat template", path);
    return s;
}

ob_status ob_cli_load_encoder(ob_cli_load *l, ob_encoder **out, ob_err *err)
{
    ob_status s = ob_encoder_new(&l->params, out, err);
    ob_progress_end(&l->progress);
    return name_model(l, s, err);
}
