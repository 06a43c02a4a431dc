/* 1bit chat: a conversation on the terminal, with history, multi-line input and /commands. */
#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "cli/talk.h"

typedef struct chat {
    ob_talk talk;
    json_t *messages;
    EditLine *el;        /* NULL when stdin is no terminal */
    History *history;
    char history_path[512];
    bool continued;      /* the prompt shown is that of a further line */
    bool quit;
    ob_timings last;
} chat;

static const char k_help[] =
    "  /help            this list\n"
    "  /clear           forget the conversation (the system message stays)\n"
    "  /system [TEXT]   show, or set, the system message (and forget the conversation)\n"
    "  /regen           drop the last reply and ask again\n"
    "  /undo            drop the last question and reply\n"
    "  /save FILE       write the conversation as JSON\n"
    "  /load FILE       go on with a saved conversation\n"
    "  /stats           speed of the last reply\n"
    "  /exit            leave (Ctrl-D does as well)\n"
    "A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several lines.\n"
    "Ctrl-C stops a reply, or empties the line. Lines are kept in $XDG_STATE_HOME/1bit/chat_history.\n";

/* ------------------------------------------------------------------ input */

static const char *show_prompt(EditLine *el)
{
    chat *c;
    el_get(el, EL_CLIENTDATA, &c);
    return c->continued ? ". " : "> ";
}

static void open_history(chat *c)
{
    HistEvent ev;
    const char *base = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    c->history = history_init();
    if (!c->history) return;
    history(c->history, &ev, H_SETSIZE, 1000);
    history(c->history, &ev, H_SETUNIQUE, 1);
    el_set(c->el, EL_HIST, history, c->history);
    if (!base && !home) return;
    char dir[400];
    snprintf(dir, sizeof dir, "%s%s", base ? base : home, base ? "/1bit" : "/.local/state/1bit");
    for (char *p = dir + 1; *p; p++) /* mkdir -p */
        if (*p == '/') {
            *p = 0;
            (void)mkdir(dir, 0700);
            *p = '/';
        }
    (void)mkdir(dir, 0700);
    snprintf(c->history_path, sizeof c->history_path, "%s/chat_history", dir);
    history(c->history, &ev, H_LOAD, c->history_path);
}

static void open_terminal(chat *c)
{
    if (!isatty(STDIN_FILENO)) return;
    /* The line editor drops what is no character of the locale; text here is UTF-8 in any case. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    c->el = el_init("1bit", stdin, stdout, stderr);
    if (!c->el) return;
    el_set(c->el, EL_CLIENTDATA, c);
    el_set(c->el, EL_PROMPT, show_prompt);
    el_set(c->el, EL_EDITOR, "emacs");
    /* While a line is edited Ctrl-C is a key: it empties the line. While a reply comes, it is a signal. */
    el_set(c->el, EL_SETTY, "-d", "-isig", NULL);
    el_set(c->el, EL_BIND, "^C", "em-kill-line", NULL);
    open_history(c);
    el_source(c->el, NULL); /* the user's own key bindings */
}

static void close_terminal(chat *c)
{
    if (c->history) history_end(c->history);
    if (c->el) el_end(c->el);
}

/* One line without its end, appended to b; false at the end of input. */
static bool read_line(chat *c, ob_buf *b)
{
    if (c->el) {
        int n;
        const char *line = el_gets(c->el, &n);
        if (!line || n <= 0) return false;
        ob_buf_add(b, line, line[n - 1] == '\n' ? (size_t)n - 1 : (size_t)n);
        return true;
    }
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    if (n > 0) ob_buf_add(b, line, line[n - 1] == '\n' ? (size_t)n - 1 : (size_t)n);
    free(line);
    return n > 0;
}

static bool ends_with(const ob_buf *b, const char *end)
{
    size_t n = strlen(end);
    return b->len >= n && !memcmp(b->data + b->len - n, end, n);
}

/* A whole input: one line, lines joined by a final backslash, or a text between """ and """. */
static bool read_input(chat *c, ob_buf *b)
{
    HistEvent ev;
    ob_buf_clear(b);
    c->continued = false;
    if (!read_line(c, b)) return false;
    bool quoted = b->len >= 3 && !memcmp(b->data, "\"\"\"", 3) && !(b->len > 5 && ends_with(b, "\"\"\""));
    c->continued = true;
    while (quoted || ends_with(b, "\\")) {
        if (!quoted) b->len--;
        ob_buf_addc(b, '\n');
        if (!read_line(c, b)) break;
        if (quoted && ends_with(b, "\"\"\"")) break;
    }
    if (b->len >= 6 && !memcmp(b->data, "\"\"\"", 3) && ends_with(b, "\"\"\"")) {
        memmove(b->data, b->data + 3, b->len - 6);
        b->len -= 6;
        b->data[b->len] = 0;
    }
    if (c->history && b->len) {
        history(c->history, &ev, H_ENTER, ob_buf_str(b));
        if (c->history_path[0]) history(c->history, &ev, H_SAVE, c->history_path);
    }
    return true;
}

/* ------------------------------------------------------------------ conversation */

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static bool add_message(chat *c, const char *role, const char *text, size_t len)
{
    json_t *content = json_stringn(text, len);
    if (!content) return false;
    json_array_append_new(c->messages, json_pack("{s:s, s:o}", "role", role, "content", content));
    return true;
}

/* Drop the last message if it has this role. */
static bool drop_last(chat *c, const char *role)
{
    size_t n = json_array_size(c->messages);
    if (n == 0 || strcmp(role_of(json_array_get(c->messages, n - 1)), role)) return false;
    json_array_remove(c->messages, n - 1);
    return true;
}

static void clear(chat *c)
{
    for (size_t n = json_array_size(c->messages); n-- > 0;)
        if (strcmp(role_of(json_array_get(c->messages, n)), "system")) json_array_remove(c->messages, n);
}

/* Ask the model for the next message. A failed or empty turn leaves the conversation as it was before
 * the question, so that it can be asked again. */
static void reply(chat *c)
{
    ob_err err;
    ob_talk_result r = {0};
    ob_buf prompt;
    ob_buf_init(&prompt, OB_MAX_RENDER_BYTES);
    ob_status s = ob_talk_render(&c->talk, c->messages, &prompt, &err);
    if (s == OB_OK) s = ob_talk_generate(&c->talk, &prompt, true, &r, &err);
    if (s == OB_OK) {
        c->last = r.timings;
        printf("%s\n", r.finish == OB_FINISH_CANCELLED ? " [stopped]" : r.finish == OB_FINISH_LENGTH ? " [cut: the limit of tokens is reached]" : "");
        add_message(c, "assistant", ob_buf_str(&r.text), r.text.len);
    } else {
        fprintf(stderr, "1bit chat: %s\n", err.text);
        if (s == OB_E_CONTEXT_LENGTH)
            fprintf(stderr, "1bit chat: /undo takes the last question back, /clear begins a new conversation\n");
        drop_last(c, "user");
    }
    fflush(stdout);
    ob_buf_deinit(&prompt);
    ob_buf_deinit(&r.text);
}

/* ------------------------------------------------------------------ /commands */

static void set_system(chat *c, const char *text)
{
    json_t *first = json_array_get(c->messages, 0);
    bool has = first && !strcmp(role_of(first), "system");
    if (!*text) {
        printf("%s\n", has ? json_string_value(json_object_get(first, "content")) : "(no system message)");
        return;
    }
    json_array_clear(c->messages);
    if (!add_message(c, "system", text, strlen(text))) fprintf(stderr, "1bit chat: that is not valid UTF-8\n");
}

static void save(chat *c, const char *path)
{
    if (!*path) fprintf(stderr, "1bit chat: /save needs a file name\n");
    else if (json_dump_file(c->messages, path, JSON_INDENT(1)) != 0)
        fprintf(stderr, "1bit chat: cannot write %s: %s\n", path, strerror(errno));
    else printf("saved %zu messages to %s\n", json_array_size(c->messages), path);
}

static void load(chat *c, const char *path)
{
    json_error_t e;
    ob_err err;
    ob_buf check;
    if (!*path) {
        fprintf(stderr, "1bit chat: /load needs a file name\n");
        return;
    }
    json_t *m = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (!m) {
        fprintf(stderr, "1bit chat: %s: %s (line %d)\n", path, e.text, e.line);
        return;
    }
    ob_buf_init(&check, OB_MAX_RENDER_BYTES);
    if (ob_talk_render(&c->talk, m, &check, &err) == OB_OK) {
        json_decref(c->messages);
        c->messages = m;
        printf("loaded %zu messages\n", json_array_size(m));
    } else {
        fprintf(stderr, "1bit chat: %s: %s\n", path, err.text);
        json_decref(m);
    }
    ob_buf_deinit(&check);
}

static void command(chat *c, char *line)
{
    size_t n = strcspn(line, " ");
    const char *arg = line + n + strspn(line + n, " ");
    char speed[160];
#define IS(name) (n == sizeof(name) - 1 && !memcmp(line, name, n))
    if (IS("/exit") || IS("/quit") || IS("/bye")) c->quit = true;
    else if (IS("/help") || IS("/?")) fputs(k_help, stdout);
    else if (IS("/clear")) {
        clear(c);
        printf("the conversation begins anew\n");
    }
    else if (IS("/system")) set_system(c, arg);
    else if (IS("/save")) save(c, arg);
    else if (IS("/load")) load(c, arg);
    else if (IS("/undo")) {
        bool any = drop_last(c, "assistant");
        any |= drop_last(c, "user");
        printf(any ? "the last question and its reply are gone\n" : "there is nothing to undo\n");
    } else if (IS("/regen")) {
        if (drop_last(c, "assistant")) reply(c);
        else fprintf(stderr, "1bit chat: there is no reply to make again\n");
    } else if (IS("/stats")) {
        ob_talk_speed(&c->talk, &c->last, speed, sizeof speed);
        printf("%s\n", speed);
    } else {
        fprintf(stderr, "1bit chat: %.*s is no command; /help lists them\n", (int)n, line);
    }
#undef IS
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int ob_cmd_chat(const ob_args *a)
{
    ob_err err;
    ob_status s;
    chat c = {.messages = json_array()};
    ob_buf input;
    const char *system = ob_cli_str(a, OB_OPT_SYSTEM);
    ob_buf_init(&input, OB_MAX_TOK_TEXT_BYTES);
    OB_GOTO(ob_talk_init(&c.talk, a, &err));
    if (system && !add_message(&c, "system", system, strlen(system))) {
        s = ob_err_set(&err, OB_E_INVALID, "--system is not valid UTF-8");
        goto out;
    }
    open_terminal(&c);
    if (c.el && !ob_cli_flag(a, OB_OPT_QUIET))
        printf("%s\non %s. /help lists commands, Ctrl-D leaves.\n%s", file_name(c.talk.load.path), c.talk.info.device.name,
               c.talk.own_template ? "" : "This model has no chat template of its own; ChatML stands in.\n");
    while (!c.quit && read_input(&c, &input)) {
        if (input.len == 0) continue;
        if (input.data[0] == '/') command(&c, input.data);
        else if (!add_message(&c, "user", input.data, input.len))
            fprintf(stderr, "1bit chat: that is not valid UTF-8\n");
        else reply(&c);
    }
    close_terminal(&c);
out:
    json_decref(c.messages);
    ob_talk_deinit(&c.talk);
    ob_buf_deinit(&input);
    return s == OB_OK ? OB_EXIT_OK : ob_cli_fail(a, &err);
}
