#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "cli/load.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/scorer.h"
#include "hub/hub.h"
#include "serve/serve.h"

static void fill_params(const ob_args *a, const char *path, ob_serve_params *p)
{
    ob_serve_defaults(p);
    ob_cli_engine_params(a, &p->engine);
    p->engine.model_path = path;
    p->host = ob_cli_str(a, OB_OPT_HOST);
    p->port = (int)ob_cli_int(a, OB_OPT_PORT);
    p->pooling = ob_cli_pooling(a);
    p->image_max_tok = (int32_t)ob_cli_int(a, OB_OPT_IMAGE_MAX_TOK);
    p->image_dir = ob_cli_str(a, OB_OPT_IMAGE_DIR);
    const char *urls = ob_cli_str(a, OB_OPT_IMAGE_URLS);
    if (urls && !strcmp(urls, "public")) p->image_urls = OB_IMAGE_URLS_PUBLIC;
    if (urls && !strcmp(urls, "any")) p->image_urls = OB_IMAGE_URLS_ANY;
    p->alias = ob_cli_str(a, OB_OPT_ALIAS);
    p->api_keys = a->values[OB_OPT_API_KEY].list;
    p->n_api_keys = a->values[OB_OPT_API_KEY].n_list;
    p->cors_origin = ob_cli_str(a, OB_OPT_CORS);
    p->timeout_s = ob_cli_float(a, OB_OPT_TIMEOUT);
    p->access_log = ob_cli_flag(a, OB_OPT_VERBOSE) || ob_cli_flag(a, OB_OPT_LOG_JSON);
}

/* A name that is not the path itself: that of the library, or where the model was pulled from. */
static const char *name_of(const char *arg, const char *path)
{
    return arg && path && strcmp(arg, path) != 0 ? arg : NULL;
}

/* --laya: where the scorer is. One that was named must be there; without any, the default serves everything. */
static ob_status find_route(const ob_args *a, ob_serve_params *p, char **scorer_path, ob_err *why, ob_err *err)
{
    const char *scorer = ob_cli_str(a, OB_OPT_LAYA_MODEL);
    p->route_policy = ob_cli_str(a, OB_OPT_ROUTE_POLICY);
    p->route = ob_cli_flag(a, OB_OPT_LAYA);
    if (!p->route && ob_cli_given(a, OB_OPT_ROUTE_POLICY))
        return ob_err_set(err, OB_E_INVALID, "--route-policy needs --laya");
    if (!p->route) return OB_OK;
    const ob_status s = ob_cli_find_scorer(a, scorer_path, why);
    if (s != OB_OK && scorer) {
        *err = *why;
        return s;
    }
    p->route_scorer = *scorer_path;
    p->route_scorer_error = s == OB_OK ? NULL : why->text;
    return OB_OK;
}

static ob_status find_long(const ob_args *a, ob_serve_params *p, char **path, ob_err *err)
{
    const char *name = ob_cli_str(a, OB_OPT_LONG_MODEL);
    if (!name) return OB_OK;
    OB_TRY(ob_cli_find_model(name, path, err));
    p->long_path = *path;
    p->long_device = ob_cli_str(a, OB_OPT_LONG_DEVICE);
    p->long_from = (int32_t)ob_cli_int(a, OB_OPT_LONG_FROM);
    p->long_name = name_of(name, *path);
    return OB_OK;
}

int ob_cmd_serve(const ob_args *a)
{
    char *scorer_path = NULL;
    ob_err scorer_err;
    char *path = NULL, *embed_path = NULL, *rerank_path = NULL, *mmproj_path = NULL, *long_path = NULL;
    ob_server *server = NULL;
    ob_buf chat_template;
    ob_err err;
    ob_serve_params p;
    const char *model = ob_cli_str(a, OB_OPT_MODEL);
    fill_params(a, "", &p); /* the path is found below: wrong usage is told before a model is looked for */
    if (!ob_cli_str(a, OB_OPT_LONG_MODEL) && (ob_cli_given(a, OB_OPT_LONG_FROM) || ob_cli_given(a, OB_OPT_LONG_DEVICE)))
        return ob_cli_usage_error(a->cmd_name, "--long-from and --long-device need --long-model");
    if (ob_serve_check(&p, &err) != OB_OK) return ob_cli_usage_error(a->cmd_name, "%s", err.text);
    ob_status s = ob_cli_find_model(model, &path, &err);
    if (s == OB_E_NOT_FOUND && !model)
        return ob_cli_usage_error(a->cmd_name,
                                  "-m MODEL is missing, and the demo model is not here; "
                                  "`1bit pull " OB_HUB_DEMO_MODEL "` fetches it");
    if (s != OB_OK) return ob_cli_fail(a, &err);
    if (ob_cli_flag(a, OB_OPT_LOG_JSON)) ob_log_set_json(true);
    ob_buf_init(&chat_template, OB_MAX_TEMPLATE_BYTES);
    OB_GOTO(ob_cli_verify(a, path, &err));
    p.engine.model_path = path;
    OB_GOTO(ob_cli_chat_template(a, &chat_template, &err));
    if (chat_template.len) p.chat_template = ob_buf_str(&chat_template);
    if (ob_cli_str(a, OB_OPT_EMBED)) OB_GOTO(ob_cli_find_model(ob_cli_str(a, OB_OPT_EMBED), &embed_path, &err));
    if (ob_cli_str(a, OB_OPT_RERANK)) OB_GOTO(ob_cli_find_model(ob_cli_str(a, OB_OPT_RERANK), &rerank_path, &err));
    if (ob_cli_str(a, OB_OPT_MMPROJ)) OB_GOTO(ob_cli_find_model(ob_cli_str(a, OB_OPT_MMPROJ), &mmproj_path, &err));
    p.mmproj_path = mmproj_path;
    p.embed_path = embed_path;
    p.model_name = name_of(model, path);
    p.embed_name = name_of(ob_cli_str(a, OB_OPT_EMBED), embed_path);
    p.rerank_name = name_of(ob_cli_str(a, OB_OPT_RERANK), rerank_path);
    p.rerank_path = rerank_path;
    OB_GOTO(find_long(a, &p, &long_path, &err));
    OB_GOTO(find_route(a, &p, &scorer_path, &scorer_err, &err));
    OB_GOTO(ob_server_new(&p, &server, &err));
    s = ob_server_run(server, &err);
    if (s == OB_E_CANCELLED) _exit(OB_EXIT_OK); /* the loader still runs: nothing may be freed */
out:;
    int rc = s == OB_OK ? OB_EXIT_OK : ob_cli_fail(a, &err);
    ob_server_free(server);
    ob_free(path);
    ob_free(embed_path);
    ob_free(rerank_path);
    ob_free(mmproj_path);
    ob_free(long_path);
    ob_free(scorer_path);
    ob_buf_deinit(&chat_template);
    return rc;
}
