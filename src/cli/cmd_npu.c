/* 1bit npu selftest: an NPU step by step. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "dev/npu/npu_selftest.h"
#include "dev/npu/npu_soft.h"

enum { MAX_OUT_BYTES = 1 << 20 };

/* "npu", "npu:1", "npu-soft" or "auto" (npu) as the table of an operating system and a number. */
static ob_status find_npu(const char *spec, ob_npu_os **os, int *index, ob_err *err)
{
    const size_t kind = strcspn(spec, ":");
    char *tail = NULL;
    *index = spec[kind] ? (int)strtol(spec + kind + 1, &tail, 10) : 0;
    if (*index < 0 || (tail && (*tail || tail == spec + kind + 1)))
        return ob_err_set(err, OB_E_INVALID, "'%.40s' names no NPU", spec);
    if ((kind == 3 && strncmp(spec, "npu", 3) == 0) || strcmp(spec, "auto") == 0) {
        *os = ob_npu_os_real();
        return OB_OK;
    }
    if (kind != 8 || strncmp(spec, "npu-soft", 8) != 0)
        return ob_err_set(err, OB_E_INVALID, "'%.40s' is no NPU: --device takes npu or npu-soft here", spec);
    ob_npu_soft *soft = ob_npu_soft_shared(err);
    if (!soft) return err->code;
    *os = ob_npu_soft_os(soft);
    return OB_OK;
}

static void add_figure(ob_buf *o, const char *name, double v)
{
    if (v <= 0) return;
    ob_buf_addf(o, ", \"%s\": ", name);
    ob_buf_add_double(o, v);
}

static void add_text(ob_buf *o, const char *name, const char *text)
{
    ob_buf_addf(o, "%s: ", name);
    ob_buf_add_json(o, text, strlen(text));
}

static void write_json(ob_buf *o, const ob_npu_selftest *t)
{
    ob_buf_addf(o, "{\"hardware\": %s, \"ok\": %s, ", t->hardware ? "true" : "false", t->ok ? "true" : "false");
    add_text(o, "\"npu\"", ob_npu_gen_name(t->id.gen));
    add_text(o, ", \"name\"", t->id.node.name);
    add_text(o, ", \"reason\"", t->id.reason);
    ob_buf_addf(o, ", \"driver\": \"%d.%d\", \"firmware\": \"%u.%u.%u.%u\"", t->id.driver_major, t->id.driver_minor,
                t->id.firmware.major, t->id.firmware.minor, t->id.firmware.patch, t->id.firmware.build);
    if (t->hardware) {
        add_text(o, ", \"kernels\"", t->kernels);
        ob_buf_addf(o, ", \"validated\": %s, \"power_mode\": %d", t->validated ? "true" : "false", t->id.power_mode);
    }
    ob_buf_adds(o, ",\n \"steps\": [");
    for (int i = 0; i < t->n_steps; i++) {
        const ob_npu_selftest_step *s = &t->steps[i];
        add_text(o, i ? ",\n  {\"name\"" : "\n  {\"name\"", s->name);
        ob_buf_addf(o, ", \"ok\": %s", s->ok ? "true" : "false");
        add_text(o, ", \"text\"", s->text);
        add_figure(o, "ms", s->ms);
        add_figure(o, "gb_s", s->gb_s);
        add_figure(o, "tmac_s", s->tmac_s);
        add_figure(o, "tok_s", s->tok_s);
        ob_buf_addc(o, '}');
    }
    ob_buf_adds(o, "]}\n");
}

static void write_text(ob_buf *o, const ob_npu_selftest *t)
{
    if (!t->hardware)
        ob_buf_adds(o, "npu-soft: a software model, no NPU. What follows says that our code is right, and nothing "
                       "about speed.\n");
    else if (t->kernels[0])
        ob_buf_addf(o, "kernels %s%s\n", t->kernels, t->validated ? "" : "; nobody has validated them on this NPU yet");
    for (int i = 0; i < t->n_steps; i++) {
        const ob_npu_selftest_step *s = &t->steps[i];
        ob_buf_addf(o, "%-6s %-30s %s", s->ok ? "ok" : "FAILED", s->name, s->text);
        if (s->ms > 0) ob_buf_addf(o, "; %.3f ms", s->ms);
        if (s->gb_s > 0) ob_buf_addf(o, ", %.1f GB/s", s->gb_s);
        if (s->tmac_s > 0) ob_buf_addf(o, ", %.2f TMAC/s", s->tmac_s);
        if (s->tok_s > 0) ob_buf_addf(o, ", at most %.1f tok/s", s->tok_s);
        ob_buf_addc(o, '\n');
    }
}

int ob_cmd_npu(const ob_args *a)
{
    ob_err err = {0};
    ob_npu_os *os = NULL;
    int index;
    static ob_npu_selftest t;
    if (strcmp(a->pos[0], "selftest") != 0)
        return ob_cli_usage_error("npu", "'%s' is none of its actions: selftest", a->pos[0]);
    if (find_npu(ob_cli_str(a, OB_OPT_DEVICE), &os, &index, &err) != OB_OK) return ob_cli_fail(a, &err);
    ob_npu_selftest_run(os, index, &t);
    ob_buf out;
    ob_buf_init(&out, MAX_OUT_BYTES);
    if (ob_cli_flag(a, OB_OPT_JSON)) write_json(&out, &t);
    else write_text(&out, &t);
    int rc = ob_cli_print(a, &out);
    ob_buf_deinit(&out);
    return rc != OB_EXIT_OK ? rc : t.ok ? OB_EXIT_OK : OB_EXIT_FAILED;
}
