/* The report as a page of its own: no scripts, nothing fetched, light and dark. */
#include "gates/gates.h"

#include <string.h>

#include "base/math.h"
#include "gates/gates_int.h"

static const char k_head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>1bit gates</title>\n<style>\n"
    ":root{--bg:#f6f6f3;--card:#fff;--ink:#1c1d1f;--dim:#66696f;--line:#e4e4df;--closed:#14733c;--closed-bg:#e2f3e7;"
    "--open:#a8321c;--open-bg:#fbe6e1;--unmeasured:#6b5a17;--unmeasured-bg:#f6efd4;--bar:#9fb8d9;--bar2:#cfd3d9}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#151618;--card:#1e2023;--ink:#e9e9e6;--dim:#9a9da4;--line:#303338;"
    "--closed:#7fd6a0;--closed-bg:#173524;--open:#f3a08f;--open-bg:#43201a;--unmeasured:#e0cc7d;--unmeasured-bg:#37300f;"
    "--bar:#4d6a92;--bar2:#40444b}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}\n"
    "main{max-width:60rem;margin:0 auto;padding:2.2rem 1.2rem 4rem}h1{font-size:1.5rem;margin:0 0 .2rem}\n"
    "p{margin:.2rem 0}.dim{color:var(--dim)}.verdict{margin:1.2rem 0;padding:.8rem 1rem;border-radius:.6rem;font-weight:600}\n"
    "section{background:var(--card);border:1px solid var(--line);border-radius:.6rem;margin:.9rem 0;padding:.9rem 1.1rem}\n"
    "header{display:flex;gap:.8rem;align-items:baseline}h2{font-size:1.05rem;margin:0;flex:1}\n"
    ".letter{color:var(--dim);font-variant-numeric:tabular-nums}.state{white-space:nowrap;border-radius:1rem;padding:.05rem .65rem;"
    "font-size:.84rem;font-weight:600}\n"
    ".closed{color:var(--closed);background:var(--closed-bg)}.open{color:var(--open);background:var(--open-bg)}"
    ".unmeasured{color:var(--unmeasured);background:var(--unmeasured-bg)}.beside{color:var(--dim)}\n"
    "table{border-collapse:collapse;width:100%;margin-top:.6rem;font-size:.92rem}td,th{text-align:left;padding:.28rem .5rem;"
    "border-top:1px solid var(--line);vertical-align:top}th{font-weight:500;color:var(--dim);border:0}\n"
    "td:first-child{overflow-wrap:anywhere;width:32%}.s{width:1%}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    ".bars{width:8rem}.bars div{height:.5rem;border-radius:.25rem;margin:.28rem 0;background:var(--bar)}.bars div+div{background:var(--bar2)}\n"
    ".words{color:var(--dim)}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.8rem 0 0}dt{color:var(--dim)}dd{margin:0}\n"
    "</style></head>\n<body><main>\n";

static void add_text(ob_buf *o, const char *s)
{
    for (; *s; s++) switch (*s) {
        case '<': ob_buf_adds(o, "&lt;"); break;
        case '>': ob_buf_adds(o, "&gt;"); break;
        case '&': ob_buf_adds(o, "&amp;"); break;
        case '"': ob_buf_adds(o, "&quot;"); break;
        default: ob_buf_addc(o, *s);
        }
}

static const char *class_of(ob_gate_state s)
{
    static const char *const names[] = {"closed", "open", "unmeasured", "beside"};
    return names[s];
}

static void add_state(ob_buf *o, ob_gate_state s)
{
    ob_buf_addf(o, "<span class=\"state %s\">%s</span>", class_of(s), ob_gate_state_name(s));
}

static void add_device(ob_buf *o, const char *role, const ob_gates_device *d)
{
    ob_buf_addf(o, "<dt>%s</dt><dd>", role);
    add_text(o, d->id);
    ob_buf_adds(o, " <span class=\"dim\">");
    add_text(o, d->name);
    if (d->driver[0]) ob_buf_adds(o, " · "), add_text(o, d->driver);
    ob_buf_adds(o, d->soft ? " · an emulation</span></dd>\n" : "</span></dd>\n");
}

static void add_speed_row(ob_buf *o, const ob_gate_row *w)
{
    const double most = OB_MAX(OB_MAX(w->candidate.median, w->baseline.median), 1e-9);
    ob_buf_adds(o, "<tr><td>");
    add_text(o, w->name);
    ob_buf_addf(o, "</td><td class=\"bars\"><div style=\"width:%.0f%%\"></div><div style=\"width:%.0f%%\"></div></td>",
                100 * w->candidate.median / most, 100 * w->baseline.median / most);
    ob_buf_addf(o, "<td class=\"n\">%.1f<br><span class=\"words\">%.1f to %.1f</span></td>", w->candidate.median, w->candidate.min,
                w->candidate.max);
    ob_buf_addf(o, "<td class=\"n\">%.1f<br><span class=\"words\">%.1f to %.1f</span></td><td class=\"n\">%.1f %%</td><td>",
                w->baseline.median, w->baseline.min, w->baseline.max, 100 * w->ratio);
    add_state(o, w->state);
    ob_buf_adds(o, "</td></tr>\n");
}

static void add_row(ob_buf *o, const ob_gate_row *w)
{
    ob_buf_adds(o, "<tr><td>");
    add_text(o, w->name);
    ob_buf_adds(o, "</td><td class=\"s\">");
    add_state(o, w->state);
    ob_buf_adds(o, "</td><td class=\"words\">");
    add_text(o, w->text);
    ob_buf_adds(o, "</td></tr>\n");
}

static void add_rows(ob_buf *o, const ob_gate *g)
{
    int n_speed = 0;
    for (int i = 0; i < g->n_rows; i++) n_speed += g->rows[i].has_speed;
    if (n_speed) {
        ob_buf_adds(o, "<table><tr><th></th><th></th><th class=\"n\">candidate tok/s</th><th class=\"n\">baseline tok/s</th>"
                       "<th class=\"n\">ratio</th><th></th></tr>\n");
        for (int i = 0; i < g->n_rows; i++)
            if (g->rows[i].has_speed) add_speed_row(o, &g->rows[i]);
        ob_buf_adds(o, "</table>\n");
    }
    if (n_speed == g->n_rows) return;
    ob_buf_adds(o, "<table>\n");
    for (int i = 0; i < g->n_rows; i++)
        if (!g->rows[i].has_speed) add_row(o, &g->rows[i]);
    ob_buf_adds(o, "</table>\n");
}

void ob_gates_write_html(const ob_gates_report *r, ob_buf *o)
{
    char date[16];
    const bool closed = ob_gates_closed(r);
    int n_closed = 0;
    for (int i = 0; i < r->n_gates; i++) n_closed += r->gates[i].state == OB_GATE_CLOSED;
    ob_gates_date(r->time, date);
    ob_buf_adds(o, k_head);
    ob_buf_adds(o, "<h1>Gates: ");
    add_text(o, r->candidate.id);
    ob_buf_adds(o, " against ");
    add_text(o, r->baseline.id);
    ob_buf_addf(o, "</h1>\n<p class=\"dim\">Measured on this machine on %s, in %.0f s, by 1bit ", date, r->seconds);
    add_text(o, r->version);
    ob_buf_adds(o, "</p>\n<dl>");
    add_device(o, "candidate", &r->candidate);
    add_device(o, "baseline", &r->baseline);
    ob_buf_adds(o, "<dt>machine</dt><dd>");
    add_text(o, r->machine);
    ob_buf_addf(o, "</dd></dl>\n<p class=\"verdict %s\">%d of %d gates are closed. %s</p>\n", closed ? "closed" : "open", n_closed,
                r->n_gates, closed ? "<code>--device auto</code> takes the candidate where it would take the baseline."
                                   : "<code>--device auto</code> does not take the candidate.");
    for (int i = 0; i < r->n_gates; i++) {
        const ob_gate *g = &r->gates[i];
        ob_buf_addf(o, "<section id=\"%s\"><header><span class=\"letter\">(%c)</span><h2>", g->id, g->letter);
        add_text(o, g->title);
        ob_buf_adds(o, "</h2>");
        add_state(o, g->state);
        ob_buf_adds(o, "</header>\n");
        if (g->text[0]) {
            ob_buf_adds(o, "<p class=\"words\">");
            add_text(o, g->text);
            ob_buf_adds(o, "</p>\n");
        }
        if (g->n_rows) add_rows(o, g);
        ob_buf_adds(o, "</section>\n");
    }
    ob_buf_adds(o, "</main></body></html>\n");
}
