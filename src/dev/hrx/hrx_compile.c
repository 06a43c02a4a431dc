/* Kernels compiled at run time, by the user's own loom-compile: for a processor whose code does not come with the program,
 * or a newer compiler. What it made is kept in $XDG_CACHE_HOME/1bit/loom, under a name that has object, processor and a
 * hash of sources, configuration and compiler in it. Whatever fails, the code that came with the program is used.
 *
 *   OB_LOOM_COMPILE=PROGRAM   this compiler, for every object; without it loom-compile of $PATH, where the program has
 *                             no code for the very processor
 *   OB_LOOM_COMPILE=0         none
 *
 * The command: PROGRAM FILE --target=amdgpu:PROCESSOR --format=amdgpu-hsaco --root=KERNEL... --config=KEY=VALUE...
 * --output=FILE, and PROGRAM --version. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "dev/hrx/hrx_int.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"

enum { MAX_SOURCE = 1 << 20, MAX_CODE = 16 << 20, MAX_ARGS = 64, MAX_ROOTS = 32, PATIENCE_MS = 60000 };

extern char **environ;

typedef struct object_info { const char *name, *files, *config, *roots, *processors; } object_info;
static const object_info k_objects[] = {
#define OBJECT(name, files, config, roots, processors) {name, files, config, roots, processors},
#include "dev/hrx/loom/objects.def"
#undef OBJECT
};

static const object_info *find_object(const char *object, const char *arch)
{
    for (size_t i = 0; i < OB_COUNT(k_objects); i++)
        if (!strcmp(k_objects[i].name, object)) return strncmp(arch, k_objects[i].processors, strlen(k_objects[i].processors)) ? NULL : &k_objects[i];
    return NULL;
}

bool hx_has_object(const hx_dev *d, const char *object) { return find_object(object, d->arch) != NULL; }

/* ---- the compiler ---------------------------------------------------------------------------- */

static bool runs(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static bool find_program(const char *name, char *out, size_t cap)
{
    if (strchr(name, '/')) return (size_t)snprintf(out, cap, "%s", name) < cap && runs(out);
    for (const char *p = getenv("PATH"); p && *p; p += *p == ':') {
        const size_t n = strcspn(p, ":");
        if (n && (size_t)snprintf(out, cap, "%.*s/%s", (int)n, p, name) < cap && runs(out)) return true;
        p += n;
    }
    return false;
}

/* Runs a program to its end, its output into `log` (a descriptor). 0, or why not. */
static const char *run_program(char *const *argv, int log)
{
    posix_spawn_file_actions_t io;
    pid_t pid;
    if (posix_spawn_file_actions_init(&io) != 0) return "no memory";
    int e = posix_spawn_file_actions_addopen(&io, 0, "/dev/null", O_RDONLY, 0);
    if (!e) e = posix_spawn_file_actions_adddup2(&io, log, 1);
    if (!e) e = posix_spawn_file_actions_adddup2(&io, log, 2);
    if (!e) e = posix_spawn(&pid, argv[0], &io, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&io);
    if (e) return "it cannot be started";
    for (int ms = 0, status; ; ms += 2) {
        const pid_t got = waitpid(pid, &status, ms < PATIENCE_MS ? WNOHANG : 0);
        if (got == pid) return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? NULL : "it failed";
        if (got < 0 && errno != EINTR) return "it cannot be waited for";
        if (ms >= PATIENCE_MS - 2) kill(pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

/* A file that only this process knows, already without a name. */
static int nameless(const char *folder)
{
    char path[600];
    if ((size_t)snprintf(path, sizeof path, "%s/log-XXXXXX", folder) >= sizeof path) return -1;
    const int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    return fd;
}

static size_t read_log(int fd, char *text, size_t cap)
{
    const ssize_t n = pread(fd, text, cap - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

static bool make_folder(char *folder, size_t cap)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (xdg && *xdg) n = snprintf(folder, cap, "%s/1bit/loom", xdg);
    else if (home && *home) n = snprintf(folder, cap, "%s/.cache/1bit/loom", home);
    if (n < 0 || (size_t)n >= cap) return false;
    for (char *p = folder + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            (void)mkdir(folder, 0700);
            *p = '/';
        }
    return mkdir(folder, 0700) == 0 || errno == EEXIST;
}

/* What a compiler is: its version's text, and the file itself, for those that do not count up. */
static void identify(hx_compiler *c)
{
    struct stat st;
    char version[400] = "";
    const int log = nameless(c->folder);
    char *argv[] = {c->program, (char *)(uintptr_t)"--version", NULL};
    if (log >= 0 && !run_program(argv, log)) read_log(log, version, sizeof version);
    if (log >= 0) close(log);
    version[strcspn(version, "\n")] = 0;
    snprintf(c->version, sizeof c->version, "%s", version);
    c->id = XXH3_64bits(version, strlen(version));
    if (stat(c->program, &st) == 0) {
        const int64_t of[3] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
        c->id = XXH3_64bits_withSeed(of, sizeof of, c->id);
    }
}

bool hx_compiler_there(void)
{
    const char *named = getenv("OB_LOOM_COMPILE");
    char path[400];
    return named && *named ? strcmp(named, "0") != 0 && find_program(named, path, sizeof path) : find_program("loom-compile", path, sizeof path);
}

void hx_compiler_find(hx_compiler *c, bool has_own_code)
{
    const char *named = getenv("OB_LOOM_COMPILE");
    const bool wanted = named && *named;
    *c = (hx_compiler){.usable = false};
    if (wanted ? !strcmp(named, "0") : has_own_code) return;
    if (!find_program(wanted ? named : "loom-compile", c->program, sizeof c->program)) {
        if (wanted) snprintf(c->why, sizeof c->why, "%.200s: there is no such program", named);
        return;
    }
    if (!make_folder(c->folder, sizeof c->folder)) {
        snprintf(c->why, sizeof c->why, "no folder for what it makes: neither XDG_CACHE_HOME nor HOME can be written to");
        return;
    }
    identify(c);
    c->usable = true;
}

/* ---- sources --------------------------------------------------------------------------------- */

/* The next word of *at; false at the end. */
static bool next_word(const char **at, char *word, size_t cap)
{
    *at += strspn(*at, " ");
    const size_t n = strcspn(*at, " ");
    if (!n || n >= cap) return false;
    memcpy(word, *at, n);
    word[n] = 0;
    *at += n;
    return true;
}

/* gfx12 spreads the halves of a matrix over the lanes once, gfx11 twice. */
static const char *fragment_of(const char *arch) { return strncmp(arch, "gfx12", 5) ? "16" : "8"; }

static void add_source(ob_buf *b, const hx_source *s, const char *fragment)
{
    static const char word[] = "FRAGMENT";
    const char *p = s->text, *end = s->text + s->n_bytes;
    for (const char *hit; (hit = memmem(p, (size_t)(end - p), word, sizeof word - 1)); p = hit + sizeof word - 1) {
        ob_buf_add(b, p, (size_t)(hit - p));
        ob_buf_adds(b, fragment);
    }
    ob_buf_add(b, p, (size_t)(end - p));
    ob_buf_addc(b, '\n');
}

static ob_status join(const object_info *o, const char *arch, ob_buf *b, ob_err *err)
{
    char name[24];
    for (const char *at = o->files; next_word(&at, name, sizeof name);) {
        const hx_source *s = hx_sources;
        while (s->name && strcmp(s->name, name) != 0) s++;
        if (!s->name) return ob_err_set(err, OB_E_INTERNAL, "hrx: no source %s", name);
        add_source(b, s, fragment_of(arch));
    }
    return ob_buf_status(b, err);
}

/* --root=NAME of the kernels: those asked for, else every kernel.def of the text. */
static int add_roots(const object_info *o, const char *text, char roots[MAX_ROOTS][48])
{
    char name[40];
    int n = 0;
    for (const char *at = o->roots; n < MAX_ROOTS && next_word(&at, name, sizeof name); n++) snprintf(roots[n], sizeof roots[n], "--root=%s", name);
    if (n) return n;
    for (const char *p = text; n < MAX_ROOTS && (p = strstr(p, "\nkernel.def "));) {
        p = strchr(p, '@');
        if (!p) break;
        snprintf(roots[n++], sizeof roots[0], "--root=%.*s", (int)OB_MIN(strcspn(p + 1, "("), sizeof name - 1), p + 1);
    }
    return n;
}

/* ---- an object ------------------------------------------------------------------------------- */

static bool read_code(const char *path, void **data, size_t *n)
{
    struct stat st;
    FILE *f = fopen(path, "rbe");
    bool ok = false;
    *data = NULL;
    if (!f) return false;
    if (fstat(fileno(f), &st) == 0 && st.st_size > 64 && st.st_size <= MAX_CODE && (*data = ob_malloc((size_t)st.st_size))) {
        *n = (size_t)st.st_size;
        ok = fread(*data, 1, *n, f) == *n && !memcmp(*data, "\177ELF", 4);
    }
    fclose(f);
    if (!ok) {
        ob_free(*data);
        *data = NULL;
    }
    return ok;
}

/* Files of this process: OBJECT-RANDOM.loom goes in, the same with .hsaco comes out. */
typedef struct work { char source[520], output[520]; int log; } work;

static bool begin(const hx_compiler *c, const char *object, const ob_buf *text, work *w)
{
    snprintf(w->source, sizeof w->source, "%s/%.24s-XXXXXX.loom", c->folder, object);
    const int fd = mkostemps(w->source, 5, O_CLOEXEC);
    if (fd < 0) return false;
    snprintf(w->output, sizeof w->output, "%.*s.hsaco", (int)(strlen(w->source) - 5), w->source);
    const bool ok = write(fd, text->data, text->len) == (ssize_t)text->len;
    close(fd);
    return ok && (w->log = nameless(c->folder)) >= 0;
}

static ob_status compile(const hx_compiler *c, const object_info *o, const char *arch, const ob_buf *text, const char *path, ob_err *err)
{
    char roots[MAX_ROOTS][48], target[64], output[540], configs[8][64], word[48], said[300] = "";
    char *argv[MAX_ARGS];
    int n = 0, n_configs = 0;
    const char *why = "no files in its folder";
    work w = {.log = -1};
    if (!begin(c, o->name, text, &w)) goto out;
    snprintf(target, sizeof target, "--target=amdgpu:%.40s", arch);
    snprintf(output, sizeof output, "--output=%s", w.output);
    argv[n++] = (char *)(uintptr_t)c->program;
    argv[n++] = w.source;
    argv[n++] = target;
    argv[n++] = (char *)(uintptr_t)"--format=amdgpu-hsaco";
    for (int k = 0, n_roots = add_roots(o, text->data, roots); k < n_roots; k++) argv[n++] = roots[k];
    for (const char *at = o->config; n_configs < 8 && next_word(&at, word, sizeof word); n_configs++) {
        snprintf(configs[n_configs], sizeof configs[0], "--config=%s", word);
        argv[n++] = configs[n_configs];
    }
    argv[n++] = output;
    argv[n] = NULL;
    why = run_program(argv, w.log);
    read_log(w.log, said, sizeof said);
    void *made = NULL;
    size_t n_made = 0;
    if (!why && !read_code(w.output, &made, &n_made)) why = "it made no code object";
    ob_free(made);
    if (!why && rename(w.output, path) != 0) why = "its result cannot be kept";
out:
    if (w.log >= 0) close(w.log);
    if (*w.source) unlink(w.source);
    if (*w.output) unlink(w.output);
    said[strcspn(said, "\n")] = 0;
    return why ? ob_err_set(err, OB_E_UNSUPPORTED, "%.100s, %s for %.20s: %s%s%.200s", c->program, o->name, arch, why, *said ? ": " : "", said) : OB_OK;
}

/* Where the object is kept. */
static void name_file(const hx_compiler *c, const object_info *o, const char *arch, const ob_buf *text, char *path, size_t cap)
{
    uint64_t h = XXH3_64bits_withSeed(text->data, text->len, c->id);
    h = XXH3_64bits_withSeed(o->config, strlen(o->config), h);
    h = XXH3_64bits_withSeed(o->roots, strlen(o->roots), h);
    snprintf(path, cap, "%s/%s-%.24s-%016llx.hsaco", c->folder, o->name, arch, (unsigned long long)h);
}

ob_status hx_compile(const hx_compiler *c, const char *object, const char *arch, hx_compiled *out, ob_err *err)
{
    const object_info *o = find_object(object, arch);
    ob_status s = OB_OK;
    ob_buf text;
    *out = (hx_compiled){.data = NULL};
    if (!o) return ob_err_set(err, OB_E_UNSUPPORTED, "hrx: there are no sources of %s for %s", object, arch);
    ob_buf_init(&text, MAX_SOURCE);
    OB_GOTO(join(o, arch, &text, err));
    name_file(c, o, arch, &text, out->path, sizeof out->path);
    if (!read_code(out->path, &out->data, &out->n_bytes)) {
        OB_GOTO(compile(c, o, arch, &text, out->path, err));
        if (!read_code(out->path, &out->data, &out->n_bytes)) s = ob_err_set(err, OB_E_IO, "%s cannot be read", out->path);
    }
out:
    ob_buf_deinit(&text);
    return s;
}

/* What came from the cache or the compiler and cannot be loaded. */
void hx_compiled_drop(hx_compiled *c, bool bad)
{
    if (bad) unlink(c->path);
    ob_free(c->data);
    c->data = NULL;
}
