/* Unit tests of gates/: reports go to disk and back, and are used only where they hold. */
#include "test.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "gates/gates.h"

static ob_dev_info device(const char *kind, const char *name, const char *driver, uint32_t caps)
{
    ob_dev_info i = {.caps = caps, .available = true};
    snprintf(i.kind, sizeof i.kind, "%s", kind);
    snprintf(i.name, sizeof i.name, "%s", name);
    snprintf(i.driver, sizeof i.driver, "%s", driver);
    return i;
}

/* The CPU as it is here: the one candidate that every machine has. */
static ob_dev_info the_cpu(void)
{
    ob_dev_info i = {0};
    for (const ob_dev_api *const *api = ob_dev_registry(); *api; api++)
        if (!strcmp((*api)->kind, "cpu")) (*api)->probe(0, &i);
    assert_true(i.available);
    return i;
}

static void add_row(ob_gate *g, const char *name, ob_gate_state state, const char *text)
{
    ob_gate_row *w;
    ob_err err;
    assert_int_equal(ob_gate_add_row(g, name, &w, &err), OB_OK);
    w->state = state;
    snprintf(w->text, sizeof w->text, "%s", text);
}

/* Two gates, the second with one row in this state. */
static void fill(ob_gates_report *r, const ob_dev_info *candidate, const ob_dev_info *baseline, ob_gate_state state)
{
    ob_gates_init(r, candidate, baseline);
    ob_gate *g = ob_gates_add(r, 'a', "decode", "decode within 10 % of the baseline");
    add_row(g, "m<script>\"1\"", OB_GATE_CLOSED, "fast & good");
    g->rows[0].has_speed = true;
    g->rows[0].candidate = (ob_gate_speed){95, 90, 99};
    g->rows[0].baseline = (ob_gate_speed){100, 98, 101};
    g->rows[0].ratio = 0.9525;
    ob_gate_settle(g);
    g = ob_gates_add(r, 'b', "files", "the same distributions from model files");
    add_row(g, "one", state, "why");
    ob_gate_settle(g);
}

static void test_states_of_a_gate(void **state)
{
    (void)state;
    const struct {
        ob_gate_state rows[3], want;
        int n;
    } cases[] = {
        {{OB_GATE_CLOSED, OB_GATE_CLOSED, OB_GATE_BESIDE}, OB_GATE_CLOSED, 3},
        {{OB_GATE_CLOSED, OB_GATE_OPEN, OB_GATE_UNMEASURED}, OB_GATE_OPEN, 3},
        {{OB_GATE_CLOSED, OB_GATE_UNMEASURED}, OB_GATE_UNMEASURED, 2},
        {{OB_GATE_BESIDE, OB_GATE_BESIDE}, OB_GATE_UNMEASURED, 2}, /* nothing was asked of the candidate */
        {{0}, OB_GATE_UNMEASURED, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ob_gates_report r = {0};
        ob_gate *g = ob_gates_add(&r, 'a', "x", "y");
        for (int k = 0; k < cases[i].n; k++) add_row(g, "row", cases[i].rows[k], "");
        ob_gate_settle(g);
        assert_int_equal(g->state, cases[i].want);
        assert_int_equal(ob_gates_closed(&r), cases[i].want == OB_GATE_CLOSED);
        ob_gates_deinit(&r);
    }
    ob_gates_report none = {0};
    assert_false(ob_gates_closed(&none));
}

static void test_forms(void **state)
{
    (void)state;
    ob_gates_report r, back;
    ob_err err = {0};
    ob_buf json, again, html;
    const ob_dev_info a = device("hrx", "A \"GPU\"", "1.2", 0), b = device("lavapipe", "B", "3", OB_DEV_SOFT);
    fill(&r, &a, &b, OB_GATE_OPEN);
    r.seconds = 12.5;
    ob_buf_init(&json, 1 << 20);
    ob_buf_init(&again, 1 << 20);
    ob_buf_init(&html, 1 << 20);
    ob_gates_write_json(&r, &json);
    if (ob_gates_read_json(ob_buf_str(&json), json.len, &back, &err) != OB_OK) fail_msg("%s", err.text);
    ob_gates_write_json(&back, &again);
    assert_string_equal(ob_buf_str(&json), ob_buf_str(&again));
    assert_true(back.baseline.soft && !back.candidate.soft && back.n_gates == 2);
    assert_true(back.gates[0].rows[0].has_speed && back.gates[0].rows[0].ratio == 0.9525);
    ob_gates_write_html(&r, &html);
    const char *page = ob_buf_str(&html);
    assert_null(strstr(page, "<script"));
    assert_non_null(strstr(page, "m&lt;script&gt;&quot;1&quot;"));
    assert_non_null(strstr(page, "95.2 %"));
    assert_non_null(strstr(page, "1 of 2 gates are closed"));
    static const char *const bad[] = {"", "{}", "[]", "{\"gates\": []}", "nonsense"};
    ob_gates_deinit(&back);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_not_equal(ob_gates_read_json(bad[i], strlen(bad[i]), &back, &err), OB_OK);
    for (size_t n = 0; n + 2 < json.len; n += 17) assert_int_not_equal(ob_gates_read_json(ob_buf_str(&json), n, &back, &err), OB_OK);
    ob_gates_deinit(&r);
    ob_buf_deinit(&json);
    ob_buf_deinit(&again);
    ob_buf_deinit(&html);
}

static void test_a_report_holds_for_what_it_was_made_with(void **state)
{
    (void)state;
    ob_gates_report r;
    char why[400];
    const ob_dev_info a = device("hrx", "A", "1.2", 0), b = device("vulkan", "B", "3", 0);
    fill(&r, &a, &b, OB_GATE_CLOSED);
    assert_int_equal(ob_gates_judge(&r, &a, &b, why, sizeof why), OB_GATES_CLOSED);
    const ob_dev_info newer = device("hrx", "A", "1.3", 0), other = device("hrx", "A2", "1.2", 0), base = device("vulkan", "B", "4", 0);
    assert_int_equal(ob_gates_judge(&r, &newer, &b, why, sizeof why), OB_GATES_STALE);
    assert_non_null(strstr(why, "driver of the candidate was \"1.2\""));
    assert_int_equal(ob_gates_judge(&r, &other, &b, why, sizeof why), OB_GATES_STALE);
    assert_int_equal(ob_gates_judge(&r, &a, &base, why, sizeof why), OB_GATES_STALE);
    assert_non_null(strstr(why, "baseline"));
    snprintf(r.version, sizeof r.version, "0.0.9");
    assert_int_equal(ob_gates_judge(&r, &a, &b, why, sizeof why), OB_GATES_STALE);
    assert_non_null(strstr(why, "1bit 0.0.9"));
    ob_gates_deinit(&r);
    fill(&r, &a, &b, OB_GATE_CLOSED);
    snprintf(r.machine_id, sizeof r.machine_id, "0000000000000000");
    assert_int_equal(ob_gates_judge(&r, &a, &b, why, sizeof why), OB_GATES_STALE);
    ob_gates_deinit(&r);
    fill(&r, &a, &b, OB_GATE_UNMEASURED);
    assert_int_equal(ob_gates_judge(&r, &a, &b, why, sizeof why), OB_GATES_OPEN);
    assert_string_equal(why, "files (not measurable)");
    ob_gates_deinit(&r);
}

/* The CPU as candidate against an invented device that `auto` would take. */
static void test_auto_takes_only_what_is_closed(void **state)
{
    (void)state;
    char dir[] = "/tmp/1bit-gates-XXXXXX", spec[64], text[600], path[600];
    ob_gates_report r;
    ob_err err = {0};
    assert_non_null(mkdtemp(dir));
    setenv("XDG_STATE_HOME", dir, 1);
    const ob_dev_info cpu = the_cpu(), usual = device("abacus", "B", "3", 0), newer = device("abacus", "B", "4", 0);
    assert_false(ob_gates_prefer(&usual, spec, sizeof spec)); /* no report */
    assert_false(ob_gates_describe(&cpu, text, sizeof text));
    const ob_gate_state states[] = {OB_GATE_OPEN, OB_GATE_UNMEASURED, OB_GATE_CLOSED};
    for (int i = 0; i < 3; i++) {
        fill(&r, &cpu, &usual, states[i]);
        if (ob_gates_save(&r, &err) != OB_OK) fail_msg("%s", err.text);
        assert_int_equal(ob_gates_prefer(&usual, spec, sizeof spec), states[i] == OB_GATE_CLOSED);
        if (i < 2) ob_gates_deinit(&r);
    }
    assert_string_equal(spec, "cpu:0");
    assert_false(ob_gates_prefer(&newer, spec, sizeof spec)); /* another driver */
    assert_false(ob_gates_prefer(&cpu, spec, sizeof spec));   /* not against that one */
    snprintf(r.version, sizeof r.version, "0.0.9");
    assert_int_equal(ob_gates_save(&r, &err), OB_OK);
    assert_false(ob_gates_prefer(&usual, spec, sizeof spec));
    assert_true(ob_gates_describe(&cpu, text, sizeof text));
    assert_non_null(strstr(text, "abacus:0 is not here"));
    ob_gates_deinit(&r);
    /* the same CPU on both sides: nothing to prefer, but the words of a stale report */
    fill(&r, &cpu, &cpu, OB_GATE_CLOSED);
    snprintf(r.candidate.driver, sizeof r.candidate.driver, "older");
    snprintf(path, sizeof path, "%s/1bit/gates/%s-cpu-0-vs-abacus-0.json", dir, r.machine_id);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ob_gates_save(&r, &err), OB_OK);
    assert_true(ob_gates_describe(&cpu, text, sizeof text));
    assert_non_null(strstr(text, "stale"));
    assert_false(ob_gates_prefer(&cpu, spec, sizeof spec));
    /* a damaged one is passed over */
    snprintf(path, sizeof path, "%s/1bit/gates/%s-cpu-0-vs-cpu-0.json", dir, r.machine_id);
    assert_int_equal(truncate(path, 20), 0);
    ob_log_set_level(OB_LOG_ERROR);
    assert_false(ob_gates_describe(&cpu, text, sizeof text));
    ob_log_set_level(OB_LOG_INFO);
    unlink(path);
    ob_gates_deinit(&r);
    const char *const dirs[] = {"/1bit/gates", "/1bit", ""};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", dir, dirs[i]);
        assert_int_equal(rmdir(path), 0);
    }
}

static bool g_asked;
static bool prefer_null(const ob_dev_info *usual, char *spec, size_t cap)
{
    g_asked = usual->kind[0] && !(usual->caps & OB_DEV_SOFT);
    snprintf(spec, cap, "null");
    return true;
}
static bool prefer_nothing_there(const ob_dev_info *usual, char *spec, size_t cap)
{
    (void)usual;
    snprintf(spec, cap, "abacus:3");
    return true;
}

static const char *kind_of_auto(void)
{
    ob_dev *d;
    ob_err err = {0};
    if (ob_dev_open("auto", NULL, &d, &err) != OB_OK) fail_msg("%s", err.text);
    const char *kind = d->api->kind;
    ob_dev_close(d);
    return kind;
}

static void test_the_registry_asks(void **state)
{
    (void)state;
    const char *usual = kind_of_auto();
    ob_dev_set_prefer(prefer_null);
    assert_string_equal(kind_of_auto(), "null");
    assert_true(g_asked);
    ob_dev_set_prefer(prefer_nothing_there); /* it cannot be opened: the usual one */
    assert_string_equal(kind_of_auto(), usual);
    ob_dev_set_prefer(NULL);
    assert_string_equal(kind_of_auto(), usual);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_of_a_gate),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_a_report_holds_for_what_it_was_made_with),
        cmocka_unit_test(test_auto_takes_only_what_is_closed),
        cmocka_unit_test(test_the_registry_asks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
