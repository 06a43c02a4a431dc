/* Run a fuzz target over files and folders of files: `fuzz_X PATH...`. For compilers without
 * libFuzzer. Exit 0 when every input came back, 1 when there was none or one cannot be read. */
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0) {
        perror(path);
        if (f) fclose(f);
        return -1;
    }
    /* Exactly as long as the input, so that ASan sees a read past its end. */
    size_t len = (size_t)st.st_size;
    uint8_t *data = malloc(len ? len : 1);
    int n = -1;
    if (data && fread(data, 1, len, f) == len) {
        (void)LLVMFuzzerTestOneInput(data, len);
        n = 1;
    }
    free(data);
    fclose(f);
    return n;
}

/* Number of inputs run, -1 on failure. */
static int replay(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) return replay_file(path);
    DIR *dir = opendir(path);
    if (!dir) {
        perror(path);
        return -1;
    }
    int total = 0;
    for (struct dirent *e; total >= 0 && (e = readdir(dir));) {
        char name[4096];
        if (e->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        int n = replay(name);
        total = n < 0 ? -1 : total + n;
    }
    closedir(dir);
    return total;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int n = replay(argv[i]);
        if (n < 0) return 1;
        total += n;
    }
    printf("%d inputs replayed\n", total);
    return total > 0 ? 0 : 1;
}
