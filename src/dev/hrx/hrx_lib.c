#include "dev/hrx/hrx_lib.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The version whose interface the declarations here are. A later one takes other arguments when it loads code. */
enum { MAJOR = 0, MINOR = 1 };

static hx_lib g_libs[2];

static void open_first(hx_lib *l, const char *const *names)
{
    for (; *names && !l->handle; names++) {
        l->handle = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        if (l->handle) snprintf(l->path, sizeof l->path, "%.255s", *names);
    }
}

/* Beside the program, above it (tests), or where it was installed. */
static void open_soft(hx_lib *l)
{
    static const char *const where[] = {"", "../", "../lib/1bit/"};
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return;
    self[n] = 0;
    char *slash = strrchr(self, '/');
    if (slash) slash[1] = 0;
    for (size_t i = 0; i < sizeof where / sizeof *where && !l->handle; i++) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s%slibhrx-soft.so", self, where[i]);
        open_first(l, (const char *const[]){path, NULL});
    }
}

static bool find_functions(hx_lib *l)
{
#define X(name, result, args)                                                                                          \
    {                                                                                                                  \
        void *f = dlsym(l->handle, "hrx_" #name);                                                                      \
        if (!f) {                                                                                                      \
            snprintf(l->missing, sizeof l->missing, "%.160s lacks hrx_" #name, l->path);                               \
            return false;                                                                                              \
        }                                                                                                              \
        memcpy(&l->name, &f, sizeof f);                                                                                \
    }
    HX_FUNCTIONS(X)
#undef X
    return true;
}

/* The text of a status, which is consumed. */
static void take_text(const hx_lib *l, hx_status s, char *text, size_t cap)
{
    char *got = NULL;
    hx_status again = l->status_to_string(s, &got, NULL);
    snprintf(text, cap, "%s", !again && got ? got : "no text");
    if (!again && got) l->status_free_message(got);
    if (again) l->status_ignore(again);
    l->status_ignore(s);
}

static void count_devices(hx_lib *l)
{
    char text[160];
    hx_status s = l->gpu_initialize(0);
    if (!s) s = l->gpu_device_count(&l->n_devices);
    if (!s && l->n_devices > 0) return;
    if (s) take_text(l, s, text, sizeof text);
    snprintf(l->missing, sizeof l->missing, "HRX finds no GPU: %s", s ? text : "there is none that it knows");
    l->n_devices = 0;
}

static void open_library(hx_lib *l, bool soft)
{
    static const char *const system_names[] = {"libhrx.so.0", "libhrx.so", NULL};
    const char *named = getenv("OB_HRX_LIBRARY");
    if (named && *named) open_first(l, (const char *const[]){named, NULL});
    else if (soft) open_soft(l);
    else open_first(l, system_names);
    if (!l->handle) {
        const char *why = dlerror();
        snprintf(l->missing, sizeof l->missing, "HRX is not installed: %.200s", why ? why : "libhrx-soft.so is not beside the program");
        return;
    }
    if (!find_functions(l)) return;
    l->soft = dlsym(l->handle, "hrx_soft_about") != NULL;
    l->runtime_version(&l->version[0], &l->version[1], &l->version[2]);
    if (l->version[0] != MAJOR || l->version[1] != MINOR) {
        snprintf(l->missing, sizeof l->missing, "%.120s is version %d.%d.%d; this program knows %d.%d", l->path, l->version[0],
                 l->version[1], l->version[2], MAJOR, MINOR);
        return;
    }
    if (l->soft != soft) {
        snprintf(l->missing, sizeof l->missing, "%.160s is %s: ask for it as %s", l->path, l->soft ? "an emulation" : "no emulation",
                 l->soft ? "hrx-soft" : "hrx");
        return;
    }
    count_devices(l);
}

static void open_system(void) { open_library(&g_libs[0], false); }
static void open_emulation(void) { open_library(&g_libs[1], true); }

const hx_lib *hx_lib_get(bool soft)
{
    static pthread_once_t once[2] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};
    pthread_once(&once[soft], soft ? open_emulation : open_system);
    return &g_libs[soft];
}

ob_status hx_check(const hx_lib *l, hx_status s, const char *doing, ob_err *err)
{
    if (!s) return OB_OK;
    char text[400];
    const int code = l->status_code(s);
    take_text(l, s, text, sizeof text);
    const ob_status as = code == 8 ? OB_E_NO_MEMORY : code == 12 ? OB_E_UNSUPPORTED
                         : code == 14 || code == 15 || code == 10 ? OB_E_DEVICE_LOST : OB_E_DEVICE;
    return ob_err_set(err, as, "hrx: %s: %s", doing, text);
}
