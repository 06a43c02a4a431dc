/* 1bit run: one prompt, one reply. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "cli/talk.h"

/* -p, --file, or the words of the command line; without them, standard input when it is no terminal. */
static ob_status read_prompt(const ob_args *a, ob_buf *b, ob_err *err)
{
    const char *text = ob_cli_str(a, OB_OPT_PROMPT), *path = ob_cli_str(a, OB_OPT_FILE);
    if ((text != NULL) + (path != NULL) + (a->n_pos > 0) > 1)
        return ob_err_set(err, OB_E_INVALID, "more than one prompt: give one of --prompt, --file and TEXT");
    if (text) {
        ob_buf_adds(b, text);
    } else if (path) {
        FILE *f = fopen(path, "rb");
        if (!f) return ob_err_set_errno(err, OB_E_IO, errno, "cannot open %.200s", path);
        ob_status s = ob_cli_read_all(f, path, b, err);
        fclose(f);
        OB_TRY(s);
    } else if (a->n_pos) {
        for (int i = 0; i < a->n_pos; i++) ob_buf_addf(b, "%s%s", i ? " " : "", a->pos[i]);
    } else if (!isatty(STDIN_FILENO)) {
        OB_TRY(ob_cli_read_all(stdin, "standard input", b, err));
    }
    if (b->len == 0)
        return ob_err_set(err, OB_E_INVALID, "no prompt: give -p TEXT, --file FILE, or text on standard input");
    return ob_buf_status(b, err);
}

static ob_status add_message(json_t *messages, const char *role, const char *text, size_t len, ob_err *err)
{
    json_t *content = json_stringn(text, len);
    if (!content) return ob_err_set(err, OB_E_INVALID, "the %s text is not valid UTF-8", role);
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", content));
    return OB_OK;
}

/* The pictures' marks in front of the text: parts, which the template or our joining keeps apart from text. */
static ob_status add_user(json_t *messages, const ob_talk *t, const ob_buf *text, ob_err *err)
{
    if (!t->n_pictures) return add_message(messages, "user", ob_buf_str(text), text->len, err);
    json_t *parts = json_array(), *last = json_stringn(ob_buf_str(text), text->len);
    if (!last) {
        json_decref(parts);
        return ob_err_set(err, OB_E_INVALID, "the user text is not valid UTF-8");
    }
    for (size_t i = 0; i < t->n_pictures; i++)
        json_array_append_new(parts, json_pack("{s:s, s:o}", "type", OB_TMPL_PICTURE_MARK, "text",
                                               json_sprintf(OB_TALK_MARK "%zu>", i)));
    json_array_append_new(parts, json_pack("{s:s, s:o}", "type", "text", "text", last));
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", parts));
    return OB_OK;
}

static ob_status chat_prompt(const ob_talk *t, const ob_args *a, const ob_buf *text, ob_buf *out, ob_err *err)
{
    ob_status s = OB_OK;
    json_t *messages = json_array();
    const char *system = ob_cli_str(a, OB_OPT_SYSTEM);
    if (system) OB_GOTO(add_message(messages, "system", system, strlen(system), err));
    OB_GOTO(add_user(messages, t, text, err));
    OB_GOTO(ob_talk_render(t, messages, out, err));
out:
    json_decref(messages);
    return s;
}

static void write_json(ob_buf *o, const ob_talk *t, const ob_talk_result *r)
{
    static const char *const finish[] = {"stop", "length", "cancelled", "error"};
    const ob_timings *m = &r->timings;
    ob_buf_adds(o, "{\"text\": ");
    ob_buf_add_json(o, ob_buf_str(&r->text), r->text.len);
    ob_buf_addf(o, ", \"finish_reason\": \"%s\", \"model\": ", finish[r->finish]);
    ob_buf_add_json(o, t->info.name, strlen(t->info.name));
    ob_buf_addf(o, ", \"device\": \"%s\", \"usage\": {\"prompt_tokens\": %d, \"cached_tokens\": %d, \"completion_tokens\": %d}",
                t->info.device.kind, m->n_prompt, m->n_cached, m->n_gen);
    ob_buf_addf(o, ", \"timings\": {\"load_ms\": %.3f, \"prompt_ms\": %.3f, \"predicted_ms\": %.3f", t->info.load_ms,
                m->prompt_ms, m->gen_ms);
    if (m->n_drafted) ob_buf_addf(o, ", \"draft_n\": %d, \"draft_n_accepted\": %d", m->n_drafted, m->n_draft_right);
    if (t->info.prefill_device[0])
        ob_buf_addf(o, ", \"prefill_device\": \"%s\", \"handed_n\": %d, \"handover_ms\": %.3f", t->info.prefill_device,
                    m->n_handed, m->handover_ms);
    ob_buf_adds(o, "}}\n");
}

int ob_cmd_run(const ob_args *a)
{
    ob_err err;
    ob_status s;
    ob_talk t = {0};
    ob_talk_result r = {0};
    bool json = ob_cli_flag(a, OB_OPT_JSON);
    ob_buf text, prompt, out;
    ob_buf_init(&text, OB_MAX_TOK_TEXT_BYTES);
    ob_buf_init(&prompt, OB_MAX_RENDER_BYTES);
    ob_buf_init(&out, OB_MAX_RENDER_BYTES);
    s = read_prompt(a, &text, &err);
    if (s == OB_E_INVALID) {
        ob_buf_deinit(&text);
        return ob_cli_usage_error(a->cmd_name, "%s", err.text);
    }
    if (s != OB_OK) goto out;
    OB_GOTO(ob_talk_init(&t, a, &err));
    /* A model without a template of its own is a base model: it continues the text. */
    bool raw = ob_cli_flag(a, OB_OPT_RAW) || !t.own_template;
    if (raw && ob_cli_str(a, OB_OPT_SYSTEM)) {
        s = ob_err_set(&err, OB_E_INVALID, "--system needs a chat template%s",
                       t.own_template ? ", and --raw turns it off" : ", which this model does not have");
        goto out;
    }
    OB_GOTO(ob_talk_read_pictures(&t, a, &err));
    for (size_t i = 0; raw && i < t.n_pictures; i++) ob_buf_addf(&prompt, OB_TALK_MARK "%zu>", i);
    if (raw) ob_buf_add(&prompt, ob_buf_str(&text), text.len);
    else OB_GOTO(chat_prompt(&t, a, &text, &prompt, &err));
    OB_GOTO(ob_talk_generate(&t, &prompt, !json, &r, &err));
    if (r.output_errno) {
        s = ob_err_set_errno(&err, OB_E_IO, r.output_errno, "cannot write to standard output");
        goto out;
    }
    if (json) write_json(&out, &t, &r);
    else ob_buf_adds(&out, "\n");
    if (!json && !ob_cli_flag(a, OB_OPT_QUIET) && isatty(STDERR_FILENO)) {
        char speed[160];
        fflush(stdout);
        ob_talk_speed(&t, &r.timings, speed, sizeof speed);
        fprintf(stderr, "\n[%s]", speed);
    }
out:;
    int rc;
    if (s == OB_OK) rc = ob_cli_print(a, &out);
    else if (r.output_errno == EPIPE) rc = OB_EXIT_FAILED; /* who reads has gone: nothing to say */
    else rc = ob_cli_fail(a, &err);
    if (s == OB_OK && r.finish == OB_FINISH_CANCELLED) rc = 130; /* as a shell names SIGINT */
    ob_talk_deinit(&t);
    ob_buf_deinit(&r.text);
    ob_buf_deinit(&text);
    ob_buf_deinit(&prompt);
    ob_buf_deinit(&out);
    return rc;
}
