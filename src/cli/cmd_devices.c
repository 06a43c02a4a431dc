/* 1bit devices: what this machine can run models on. */
#include <string.h>

#include "cli/cli.h"
#include "cli/progress.h"
#include "dev/device.h"
#include "gates/gates.h"

/* Several to a line, none torn. */
static void write_features(ob_buf *o, const char *text)
{
    enum { WIDTH = 88 };
    size_t at = 0;
    for (const char *p = text; *p;) {
        const size_t n = strcspn(p, ";");
        if (!at || at + n + 2 > WIDTH) {
            ob_buf_adds(o, at ? ",\n             " : "    features ");
            at = 13;
        } else {
            ob_buf_adds(o, ", ");
            at += 2;
        }
        ob_buf_addf(o, "%.*s", (int)n, p);
        at += n;
        p += n;
        p += strspn(p, "; ");
    }
    if (at) ob_buf_addc(o, '\n');
}

static void write_text(ob_buf *o, const ob_dev_info *d)
{
    char total[32] = "", free_mem[32] = "";
    ob_buf_addf(o, "%s:%d  %s%s\n", d->kind, d->index, d->name,
                d->caps & OB_DEV_SOFT ? "  [an emulation: not for use]" : "");
    if (d->driver[0]) ob_buf_addf(o, "    driver   %s\n", d->driver);
    if (d->mem_total_bytes) {
        ob_format_bytes(total, sizeof total, (double)d->mem_total_bytes);
        ob_format_bytes(free_mem, sizeof free_mem, (double)d->mem_free_bytes);
        ob_buf_addf(o, "    memory   %s, %s free\n", total, free_mem);
    }
    for (int i = 0; i < d->n_heaps && d->n_heaps > 1; i++) {
        ob_format_bytes(total, sizeof total, (double)d->heaps[i].total_bytes);
        ob_format_bytes(free_mem, sizeof free_mem, (double)d->heaps[i].free_bytes);
        ob_buf_addf(o, "      heap %d %s of the %s, %s free\n", i, total, d->heaps[i].own ? "device" : "host", free_mem);
    }
    write_features(o, d->features);
    if (!d->available) ob_buf_addf(o, "    NOT USABLE: %s\n", d->reason);
    else if (d->reason[0]) ob_buf_addf(o, "    note     %s\n", d->reason);
    char gates[600];
    if (ob_gates_describe(d, gates, sizeof gates)) ob_buf_addf(o, "    gates    %s\n", gates);
    else if (d->caps & OB_DEV_GATED) ob_buf_adds(o, "    gates    not measured: auto does not take it (`1bit gates`)\n");
}

static void add_field(ob_buf *o, const char *name, const char *value)
{
    ob_buf_addf(o, "\"%s\": ", name);
    ob_buf_add_json(o, value, strlen(value));
}

static void write_json(ob_buf *o, const ob_dev_info *d)
{
    ob_buf_addf(o, "{\"id\": \"%s:%d\", ", d->kind, d->index);
    add_field(o, "kind", d->kind);
    ob_buf_adds(o, ", ");
    add_field(o, "name", d->name);
    ob_buf_adds(o, ", ");
    add_field(o, "driver", d->driver);
    ob_buf_addf(o, ", \"hardware\": %s, \"available\": %s, ", d->caps & OB_DEV_SOFT ? "false" : "true",
                d->available ? "true" : "false");
    add_field(o, "reason", d->reason);
    ob_buf_addf(o, ", \"mem_total_bytes\": %llu, \"mem_free_bytes\": %llu, \"heaps\": [",
                (unsigned long long)d->mem_total_bytes, (unsigned long long)d->mem_free_bytes);
    for (int i = 0; i < d->n_heaps; i++)
        ob_buf_addf(o, "%s{\"own\": %s, \"total_bytes\": %llu, \"free_bytes\": %llu}", i ? ", " : "", d->heaps[i].own ? "true" : "false",
                    (unsigned long long)d->heaps[i].total_bytes, (unsigned long long)d->heaps[i].free_bytes);
    ob_buf_adds(o, "], \"features\": [");
    for (const char *p = d->features; *p;) {
        const size_t n = strcspn(p, ";");
        ob_buf_adds(o, p == d->features ? "" : ", ");
        ob_buf_add_json(o, p, n);
        p += n;
        p += strspn(p, "; ");
    }
    ob_buf_addc(o, ']');
    char gates[600];
    if (ob_gates_describe(d, gates, sizeof gates)) {
        ob_buf_adds(o, ", ");
        add_field(o, "gates", gates);
    }
    ob_buf_addc(o, '}');
}

/* A kind with no device here, where its probe knows why. */
static void write_absent(ob_buf *o, const ob_dev_api *api, bool json, bool *first)
{
    ob_dev_info info;
    memset(&info, 0, sizeof info);
    api->probe(0, &info);
    if (!info.reason[0]) return;
    if (!json) {
        ob_buf_addf(o, "%s: none here: %s\n", api->kind, info.reason);
        return;
    }
    ob_buf_addf(o, "%s{\"id\": \"%s\", ", *first ? "\n " : ",\n ", api->kind);
    add_field(o, "kind", api->kind);
    ob_buf_adds(o, ", \"available\": false, ");
    add_field(o, "reason", info.reason);
    ob_buf_addc(o, '}');
    *first = false;
}

int ob_cmd_devices(const ob_args *a)
{
    ob_buf out;
    ob_buf_init(&out, 1 << 20);
    bool json = ob_cli_flag(a, OB_OPT_JSON), first = true;
    if (json) ob_buf_adds(&out, "[");
    for (const ob_dev_api *const *api = ob_dev_registry(); *api; api++) {
        const int n = (*api)->count();
        if (!n) write_absent(&out, *api, json, &first);
        for (int i = 0; i < n; i++) {
            ob_dev_info info;
            memset(&info, 0, sizeof info);
            (*api)->probe(i, &info);
            if (json) {
                ob_buf_adds(&out, first ? "\n " : ",\n ");
                write_json(&out, &info);
            } else {
                write_text(&out, &info);
            }
            first = false;
        }
    }
    if (json) ob_buf_adds(&out, "\n]\n");
    int rc = ob_cli_print(a, &out);
    ob_buf_deinit(&out);
    return rc;
}
