/* 1bit doctor: is this machine ready, and if not, what to do. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/threads.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "dev/device.h"
#include "gates/gates.h"
#include "hub/hub.h"

typedef enum verdict { GOOD, NOTE, BAD } verdict;

typedef struct report {
    ob_buf out;
    bool json, first;
    int n_bad;
} report;

static void say(report *r, verdict v, const char *what, const char *fmt, ...) OB_PRINTF(4, 5);

/* One finding: its subject, and a text that for NOTE and BAD ends with what to do. */
static void say(report *r, verdict v, const char *what, const char *fmt, ...)
{
    static const char *const mark[] = {"ok  ", "note", "BAD "}, *const word[] = {"ok", "note", "bad"};
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->n_bad += v == BAD;
    if (r->json) {
        ob_buf_addf(&r->out, "%s\n {\"check\": \"%s\", \"verdict\": \"%s\", \"text\": ", r->first ? "" : ",", what, word[v]);
        ob_buf_add_json(&r->out, text, strlen(text));
        ob_buf_adds(&r->out, "}");
    } else {
        ob_buf_addf(&r->out, "%s  %-10s %s\n", mark[v], what, text);
    }
    r->first = false;
}

/* AMD's runtime is no package of the distribution: what is missing, and where it comes from. */
static void check_hrx(report *r)
{
    for (const ob_dev_api *const *api = ob_dev_registry(); *api; api++) {
        if (strcmp((*api)->kind, "hrx") != 0 || (*api)->count() > 0) continue;
        ob_dev_info info;
        memset(&info, 0, sizeof info);
        (*api)->probe(0, &info);
        say(r, NOTE, "hrx", "%s. For an AMD GPU (gfx1100 or newer): build and install libhrx 0.1 from ROCm/hrx-system, install ROCm's "
                            "libhsa-runtime64, and let the loader find libhrx.so.0 (ldconfig, or OB_HRX_LIBRARY=FILE)", info.reason);
    }
}

/* Where there is no NPU, or its driver does not show it: what it would take. */
static void check_npu(report *r)
{
    for (const ob_dev_api *const *api = ob_dev_registry(); *api; api++) {
        if (strcmp((*api)->kind, "npu") != 0 || (*api)->count() > 0) continue;
        ob_dev_info info;
        memset(&info, 0, sizeof info);
        (*api)->probe(0, &info);
        say(r, NOTE, "npu", "%s", info.reason);
    }
}

static void check_devices(report *r)
{
    int n_usable = 0;
    for (const ob_dev_api *const *api = ob_dev_registry(); *api; api++)
        for (int i = 0, n = (*api)->count(); i < n; i++) {
            ob_dev_info info;
            memset(&info, 0, sizeof info);
            (*api)->probe(i, &info);
            n_usable += info.available && !(info.caps & OB_DEV_SOFT);
            if (!info.available) say(r, NOTE, "device", "%s:%d %s cannot be used: %s", info.kind, i, info.name, info.reason);
            else if (info.caps & OB_DEV_SOFT)
                say(r, NOTE, "device", "%s:%d %s is an emulation: for tests, not for use", info.kind, i, info.name);
            else say(r, info.reason[0] ? NOTE : GOOD, "device", "%s:%d %s%s%s", info.kind, i, info.name, info.reason[0] ? ": " : "",
                     info.reason);
            char gates[500];
            if (ob_gates_describe(&info, gates, sizeof gates)) say(r, NOTE, "gates", "%s:%d %s", info.kind, i, gates);
        }
    if (!n_usable) say(r, BAD, "device", "no device can run models here");
}

static void check_memory(report *r)
{
    char total[32], avail[32];
    for (const ob_dev_api *const *api = ob_dev_registry(); *api; api++) {
        if (strcmp((*api)->kind, "cpu") != 0) continue;
        ob_dev_info info; /* the figures of `1bit devices` */
        memset(&info, 0, sizeof info);
        (*api)->probe(0, &info);
        if (!info.mem_total_bytes) return;
        ob_format_bytes(total, sizeof total, (double)info.mem_total_bytes);
        ob_format_bytes(avail, sizeof avail, (double)info.mem_free_bytes);
        say(r, info.mem_total_bytes < (uint64_t)1 << 30 ? NOTE : GOOD, "memory", "%s, %s free", total, avail);
    }
}

static void check_library(report *r)
{
    ob_err err;
    ob_hub_model *models = NULL;
    size_t n = 0;
    ob_buf dir;
    ob_buf_init(&dir, 4096);
    if (ob_hub_dir(&dir, &err) != OB_OK) {
        say(r, BAD, "library", "%s", err.text);
        ob_buf_deinit(&dir);
        return;
    }
    const char *folder = ob_buf_str(&dir);
    if (ob_hub_list(&models, &n, &err) != OB_OK) {
        say(r, BAD, "library", "%s", err.text);
    } else if (n == 0) {
        say(r, NOTE, "library", "%s holds no models: `1bit pull smollm2-135m` gets a small one", folder);
    } else {
        for (size_t i = 0; i < n; i++)
            if (models[i].damaged)
                say(r, BAD, "library", "%s is damaged: `1bit pull %s --force` gets it again", models[i].name, models[i].name);
        size_t n_good = 0;
        for (size_t i = 0; i < n; i++) n_good += !models[i].damaged;
        if (n_good) say(r, GOOD, "library", "%zu %s in %s", n_good, n_good == 1 ? "model" : "models", folder);
    }
    struct statvfs fs;
    char size[32];
    if (statvfs(folder, &fs) == 0 || statvfs("/", &fs) == 0) {
        double left = (double)fs.f_bavail * (double)fs.f_frsize;
        ob_format_bytes(size, sizeof size, left);
        say(r, left < 2e9 ? NOTE : GOOD, "disk", "%s free where models are kept%s", size,
            left < 2e9 ? ": little for another model" : "");
    }
    ob_hub_models_free(models, n);
    ob_buf_deinit(&dir);
}

static void check_port(report *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(8000), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (fd < 0) return;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) == 0)
        say(r, GOOD, "port", "8000 is free for `1bit serve`");
    else
        say(r, NOTE, "port", "8000 cannot be used (%s): give `1bit serve` another with -p", strerror(errno));
    close(fd);
}

int ob_cmd_doctor(const ob_args *a)
{
    report r = {.json = ob_cli_flag(a, OB_OPT_JSON), .first = true};
    ob_buf_init(&r.out, 1 << 20);
    if (r.json) ob_buf_adds(&r.out, "[");
    say(&r, GOOD, "program", "1bit %s", OB_VERSION);
    say(&r, GOOD, "processor", "%d usable", ob_cpu_count());
    check_memory(&r);
    check_devices(&r);
    check_hrx(&r);
    check_npu(&r);
    check_library(&r);
    check_port(&r);
    if (r.json) ob_buf_adds(&r.out, "\n]\n");
    int rc = ob_cli_print(a, &r.out);
    ob_buf_deinit(&r.out);
    return rc != OB_EXIT_OK ? rc : r.n_bad ? OB_EXIT_FAILED : OB_EXIT_OK;
}
