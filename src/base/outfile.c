#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/scratch.h"

enum { MAX_ALIGN = 65536 };

struct ob_outfile {
    FILE *f;
    char *path, *temp;
    uint64_t n_bytes;
    int ticket; /* of base/scratch.h */
};

static void outfile_free(ob_outfile *o)
{
    if (o->f) fclose(o->f);
    ob_scratch_drop(o->ticket);
    ob_free(o->path);
    ob_free(o->temp);
    ob_free(o);
}

ob_status ob_outfile_new(const char *path, ob_outfile **out, ob_err *err)
{
    ob_status s = OB_OK;
    struct stat st;
    *out = NULL;
    /* A rename would replace a device or a pipe by a file. */
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return ob_err_set(err, OB_E_INVALID, "%.200s is not an ordinary file", path);
    ob_outfile *o = ob_calloc(1, sizeof *o);
    if (!o) return ob_err_set(err, OB_E_NO_MEMORY, "no memory to write %.200s", path);
    o->ticket = -1;
    size_t len = strlen(path) + 32;
    o->path = ob_strdup(path);
    o->temp = ob_malloc(len);
    if (!o->path || !o->temp) {
        s = ob_err_set(err, OB_E_NO_MEMORY, "no memory to write %.200s", path);
        goto out;
    }
    snprintf(o->temp, len, "%s.%ld.part", path, (long)getpid());
    o->ticket = ob_scratch_add(o->temp); /* before the file is there: none may be left in between */
    o->f = fopen(o->temp, "wbx");
    if (!o->f) s = ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.200s", o->temp);
out:
    if (s != OB_OK) outfile_free(o);
    else *out = o;
    return s;
}

ob_status ob_outfile_write(ob_outfile *o, const void *bytes, size_t n, ob_err *err)
{
    if (n && fwrite(bytes, 1, n, o->f) != n)
        return ob_err_set_errno(err, OB_E_IO, errno, "cannot write %.200s", o->temp);
    o->n_bytes += n;
    return OB_OK;
}

ob_status ob_outfile_pad(ob_outfile *o, size_t align, ob_err *err)
{
    static const uint8_t zeros[MAX_ALIGN];
    size_t over = (size_t)(o->n_bytes & (align - 1));
    return ob_outfile_write(o, zeros, over ? align - over : 0, err);
}

uint64_t ob_outfile_n_bytes(const ob_outfile *o) { return o->n_bytes; }

/* A new name is safe only when its folder is. Some file systems cannot sync a folder: not an error. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? ob_strndup(path, (size_t)(slash - path) + 1) : ob_strdup(".");
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    ob_free(dir);
}

ob_status ob_outfile_commit(ob_outfile *o, ob_err *err)
{
    FILE *f = o->f;
    o->f = NULL;
    int bad = fflush(f) || fsync(fileno(f)) ? errno : 0;
    if (fclose(f) && !bad) bad = errno;
    if (!bad && rename(o->temp, o->path)) bad = errno;
    ob_status s = OB_OK;
    if (bad) {
        s = ob_err_set_errno(err, OB_E_IO, bad, "cannot write %.200s", o->path);
        unlink(o->temp);
    } else {
        sync_folder(o->path);
    }
    outfile_free(o);
    return s;
}

void ob_outfile_abort(ob_outfile *o)
{
    if (!o) return;
    unlink(o->temp);
    outfile_free(o);
}
