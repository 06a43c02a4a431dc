/* Help, man page and docs/cli.md, all from the tables of options.c and commands.c. */
#include <stdio.h>
#include <string.h>

#include "base/math.h"
#include "cli/cli.h"

static const char k_tagline[] = "runs language models on your own machine";
enum { TEXT_COLUMNS = 80, LEFT_COLUMNS = 28 };

static bool takes(const ob_command *cmd, const ob_option *o)
{
    return (o->commands >> cmd->id) & 1;
}

/* " N", " auto|cpu" or "" for a flag. */
static void value_name(const ob_option *o, char *out, size_t n)
{
    const char *name = o->kind == OB_OPT_KIND_ENUM ? o->choices : o->arg;
    snprintf(out, n, "%s%s", name ? " " : "", name ? name : "");
}

/* "default 8000, from 1 to 65535, environment ONEBIT_PORT"; empty when there is nothing to add. */
static void facts(const ob_option *o, char *out, size_t n)
{
    size_t len = 0;
    out[0] = 0;
    if (o->def) len += (size_t)snprintf(out, n, "default %s", *o->def ? o->def : "empty");
    if ((o->kind == OB_OPT_KIND_INT || o->kind == OB_OPT_KIND_FLOAT) && len < n) {
        /* A bound as wide as the type says nothing to a reader. */
        if (o->max < 1e9)
            len += (size_t)snprintf(out + len, n - len, "%sfrom %g to %.10g", len ? ", " : "",
                                    o->min, o->max);
    }
    if (o->many && len < n)
        len += (size_t)snprintf(out + len, n - len, "%smay be repeated", len ? ", " : "");
    if (o->env && len < n)
        snprintf(out + len, n - len, "%senvironment %s", len ? ", " : "", o->env);
}

/* ---- Terminal ------------------------------------------------------------------------------- */

/* Columns of UTF-8 text in which every character takes one. */
static int columns(const char *text, int len)
{
    int n = 0;
    for (int i = 0; i < len; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* Words of `text` up to `end` in lines of TEXT_COLUMNS, each but the first indented by `indent`
 * spaces; `col` is where the cursor stands. */
static void wrap(FILE *f, const char *text, const char *end, int indent, int col)
{
    bool first = true;
    while (text < end) {
        while (text < end && (*text == ' ' || *text == '\n')) text++;
        const char *word = text;
        while (text < end && *text != ' ' && *text != '\n') text++;
        int len = (int)(text - word);
        if (!len) break;
        int wide = columns(word, len);
        if (!first && col + 1 + wide > TEXT_COLUMNS) {
            fprintf(f, "\n%*s", indent, "");
            col = indent;
        } else if (!first) {
            fputc(' ', f);
            col++;
        }
        fwrite(word, 1, (size_t)len, f);
        col += wide;
        first = false;
    }
    fputc('\n', f);
}

/* Call `put` for each paragraph of a text, paragraphs being split by blank lines. */
static void each_paragraph(const char *text, void (*put)(FILE *, const char *, const char *),
                           FILE *f)
{
    while (text && *text) {
        const char *end = strstr(text, "\n\n");
        put(f, text, end ? end : text + strlen(text));
        text = end ? end + 2 : NULL;
    }
}

static void put_paragraph(FILE *f, const char *text, const char *end)
{
    fputc('\n', f);
    wrap(f, text, end, 0, 0);
}

static void put_left(FILE *f, const char *left)
{
    int n = columns(left, (int)strlen(left));
    if (n + 2 > LEFT_COLUMNS) fprintf(f, "%s\n%*s", left, LEFT_COLUMNS, "");
    else fprintf(f, "%s%*s", left, LEFT_COLUMNS - n, "");
}

static void put_option(FILE *f, const ob_option *o)
{
    char left[160], value[96], more[200], text[400];
    value_name(o, value, sizeof value);
    int n = o->letter ? snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name)
                      : snprintf(left, sizeof left, "      --%s", o->name);
    int len;
    const char *at = o->aliases;
    for (const char *word; (word = ob_cli_next_alias(&at, &len));)
        n += snprintf(left + n, sizeof left - (size_t)n, ", %.*s", len, word);
    snprintf(left + n, sizeof left - (size_t)n, "%s", value);
    facts(o, more, sizeof more);
    snprintf(text, sizeof text, *more ? "%s (%s)" : "%s", o->doc, more);
    put_left(f, left);
    wrap(f, text, text + strlen(text), LEFT_COLUMNS, LEFT_COLUMNS);
}

void ob_cli_write_help(FILE *f, const ob_command *cmd)
{
    if (!cmd) {
        fprintf(f, "1bit %s: %s\n\nusage: 1bit COMMAND [OPTIONS]\n\ncommands:\n", OB_VERSION,
                k_tagline);
        for (int i = 0; i < ob_cli_n_commands(); i++) {
            const ob_command *c = ob_cli_command(i);
            char left[64];
            snprintf(left, sizeof left, "  %s%s%s", c->name, *c->args ? " " : "", c->args);
            put_left(f, left);
            wrap(f, c->summary, c->summary + strlen(c->summary), LEFT_COLUMNS, LEFT_COLUMNS);
        }
        fprintf(f, "\n`1bit help COMMAND` shows the options of a command.\n");
        return;
    }
    fprintf(f, "1bit %s: %s\n\nusage: 1bit %s%s%s [OPTIONS]\n", cmd->name, cmd->summary, cmd->name,
            *cmd->args ? " " : "", cmd->args);
    each_paragraph(cmd->text, put_paragraph, f);
    fprintf(f, "\noptions:\n");
    for (int i = 0; i < OB_OPT_COUNT; i++)
        if (takes(cmd, ob_cli_option(i))) put_option(f, ob_cli_option(i));
}

/* ---- Man page ------------------------------------------------------------------------------- */

/* roff: a hyphen that is typed is \-, a backslash \e, and `code` becomes bold. */
static void roff(FILE *f, const char *text, const char *end)
{
    bool bold = false;
    for (; text < end; text++) {
        switch (*text) {
        case '-': fputs("\\-", f); break;
        case '\\': fputs("\\e", f); break;
        case '`':
            bold = !bold;
            fputs(bold ? "\\fB" : "\\fR", f);
            break;
        default: fputc(*text, f);
        }
    }
}

static void roff_str(FILE *f, const char *text) { roff(f, text, text + strlen(text)); }

static void roff_paragraph(FILE *f, const char *text, const char *end)
{
    fputs(".PP\n", f);
    roff(f, text, end);
    fputc('\n', f);
}

static void roff_option(FILE *f, const ob_option *o)
{
    char value[96], more[200];
    value_name(o, value, sizeof value);
    facts(o, more, sizeof more);
    fputs(".TP\n", f);
    if (o->letter) fprintf(f, "\\fB\\-%c\\fR, ", o->letter);
    fputs("\\fB\\-\\-", f);
    roff_str(f, o->name);
    fputs("\\fR", f);
    int len;
    const char *at = o->aliases;
    for (const char *word; (word = ob_cli_next_alias(&at, &len));) {
        fputs(", \\fB", f);
        roff(f, word, word + len);
        fputs("\\fR", f);
    }
    if (*value) {
        fputs(" \\fI", f);
        roff_str(f, value + 1);
        fputs("\\fR", f);
    }
    fputc('\n', f);
    roff_str(f, o->doc);
    if (*more) {
        fputs(" (", f);
        roff_str(f, more);
        fputc(')', f);
    }
    fputc('\n', f);
}

void ob_cli_write_man(FILE *f)
{
    fprintf(f,
            ".\\\" Made by `1bit help --man` from the option table; do not edit.\n"
            ".TH 1BIT 1 \"\" \"1bit %s\" \"User Commands\"\n.SH NAME\n1bit \\- %s\n"
            ".SH SYNOPSIS\n\\fB1bit\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH COMMANDS\n",
            OB_VERSION, k_tagline);
    for (int i = 0; i < ob_cli_n_commands(); i++) {
        const ob_command *c = ob_cli_command(i);
        fprintf(f, ".SS 1bit %s %s\n", c->name, c->args);
        roff_str(f, c->summary);
        fputc('\n', f);
        each_paragraph(c->text, roff_paragraph, f);
        for (int k = 0; k < OB_OPT_COUNT; k++)
            if (takes(c, ob_cli_option(k))) roff_option(f, ob_cli_option(k));
    }
    fputs(".SH EXIT STATUS\n.TP\n0\ndone\n.TP\n1\nfailed; the reason is on standard error\n"
          ".TP\n2\nwrong usage\n",
          f);
}

/* ---- docs/cli.md ---------------------------------------------------------------------------- */

static void md_paragraph(FILE *f, const char *text, const char *end)
{
    fprintf(f, "%.*s\n\n", (int)(end - text), text);
}

static void md_cell(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == '|') fputc('\\', f);
        fputc(*text, f);
    }
}

static void md_option(FILE *f, const ob_option *o)
{
    char value[96];
    value_name(o, value, sizeof value);
    fputs("| ", f);
    if (o->letter) fprintf(f, "`-%c` ", o->letter);
    int len;
    const char *at = o->aliases;
    for (const char *word; (word = ob_cli_next_alias(&at, &len));)
        fprintf(f, "`%.*s` ", len, word);
    fprintf(f, "`--%s", o->name);
    md_cell(f, value);
    fprintf(f, "` | %s", o->doc);
    if (o->kind == OB_OPT_KIND_INT && o->max < 1e9)
        fprintf(f, " (%.0f to %.0f)", o->min, o->max);
    else if (o->kind == OB_OPT_KIND_FLOAT && o->max < 1e9)
        fprintf(f, " (%g to %g)", o->min, o->max);
    if (o->many) fputs("; may be repeated", f);
    fprintf(f, " | %s | %s%s%s |\n", o->def ? (*o->def ? o->def : "empty") : "",
            o->env ? "`" : "", o->env ? o->env : "", o->env ? "`" : "");
}

void ob_cli_write_markdown(FILE *f)
{
    fputs("<!-- Made by `1bit help --markdown` from the option table; do not edit. -->\n"
          "# Command line\n\n`1bit COMMAND [OPTIONS]`. An option comes from the command line, else "
          "from its environment variable, else it has its default. `--name VALUE`, `--name=VALUE` "
          "and `-nVALUE` are the same; `--` ends the options.\n\n"
          "Exit status: 0 done, 1 failed (the reason is on standard error), 2 wrong usage.\n\n",
          f);
    for (int i = 0; i < ob_cli_n_commands(); i++) {
        const ob_command *c = ob_cli_command(i);
        fprintf(f, "%s## 1bit %s%s%s\n\n%s\n\n", i ? "\n" : "", c->name, *c->args ? " " : "",
                c->args, c->summary);
        each_paragraph(c->text, md_paragraph, f);
        fputs("| option | meaning | default | environment |\n|---|---|---|---|\n", f);
        for (int k = 0; k < OB_OPT_COUNT; k++)
            if (takes(c, ob_cli_option(k))) md_option(f, ob_cli_option(k));
    }
}
