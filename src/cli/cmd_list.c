#include <string.h>

#include "cli/cli.h"
#include "cli/progress.h"
#include "hub/hub.h"

static void add_json_field(ob_buf *b, const char *name, const char *value)
{
    ob_buf_addf(b, "\"%s\": ", name);
    ob_buf_add_json(b, value, strlen(value));
}

static bool in_library(const ob_hub_model *models, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(models[i].name, name)) return true;
    return false;
}

static void write_json(ob_buf *b, const ob_hub_model *models, size_t n)
{
    ob_buf_adds(b, "{\"models\": [");
    for (size_t i = 0; i < n; i++) {
        const ob_hub_model *m = &models[i];
        ob_buf_adds(b, i ? ",\n  {" : "\n  {");
        add_json_field(b, "name", m->name);
        ob_buf_adds(b, ", ");
        add_json_field(b, "path", m->path);
        ob_buf_adds(b, ", ");
        add_json_field(b, "source", m->source);
        ob_buf_adds(b, ", ");
        add_json_field(b, "sha256", m->files[0].sha256);
        ob_buf_addf(b, ", \"size\": %llu, \"n_files\": %zu, \"pulled_at\": %lld, \"damaged\": %s}",
                    (unsigned long long)m->n_bytes, m->n_files, (long long)m->pulled_at,
                    m->damaged ? "true" : "false");
    }
    ob_buf_adds(b, "],\n \"available\": [");
    bool first = true;
    for (size_t i = 0; i < ob_hub_n_known(); i++) {
        const ob_hub_known *k = ob_hub_known_at(i);
        if (in_library(models, n, k->name)) continue;
        ob_buf_adds(b, first ? "\n  {" : ",\n  {");
        add_json_field(b, "name", k->name);
        ob_buf_adds(b, ", ");
        add_json_field(b, "title", k->title);
        ob_buf_addf(b, ", \"size\": %llu}", (unsigned long long)k->n_bytes);
        first = false;
    }
    ob_buf_adds(b, "]}\n");
}

static void write_row(ob_buf *b, const char *name, uint64_t n_bytes, const char *what)
{
    char size[32];
    ob_format_bytes(size, sizeof size, (double)n_bytes);
    ob_buf_addf(b, "%-32s %9s  %s\n", name, size, what);
}

static void write_table(ob_buf *b, const ob_hub_model *models, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char advice[192];
        snprintf(advice, sizeof advice, "damaged: run `1bit pull %.128s --force`", models[i].name);
        write_row(b, models[i].name, models[i].n_bytes, models[i].damaged ? advice : models[i].source);
    }
    bool first = true;
    for (size_t i = 0; i < ob_hub_n_known(); i++) {
        const ob_hub_known *k = ob_hub_known_at(i);
        if (in_library(models, n, k->name)) continue;
        if (first) ob_buf_addf(b, "%sTo be had with `1bit pull NAME`:\n", n ? "\n" : "");
        first = false;
        write_row(b, k->name, k->n_bytes, k->title);
    }
}

int ob_cmd_list(const ob_args *a)
{
    ob_hub_model *models;
    size_t n;
    ob_err err;
    if (ob_hub_list(&models, &n, &err) != OB_OK) return ob_cli_fail(a, &err);
    ob_buf b;
    ob_buf_init(&b, 16u << 20);
    if (ob_cli_flag(a, OB_OPT_JSON)) write_json(&b, models, n);
    else write_table(&b, models, n);
    int rc = ob_cli_print(a, &b);
    ob_buf_deinit(&b);
    ob_hub_models_free(models, n);
    return rc;
}
