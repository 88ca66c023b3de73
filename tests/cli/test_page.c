/* The page of `weft sim --html` in a browser without a screen. The script of the page must read the
 * arrays, name each op and the op that it waited for as the program does, and draw hundreds of
 * thousands of ops. Also the pages of weft compare and weft sweep. Skipped without Chromium. */
#include "tests/made/random_job.h"
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include "cli/compare_page.h"
#include "cli/html.h"
#include "exec_sim/exec_sim.h"
#include <math.h>
#include <string.h>

#define STAGES                                                                                     \
  "model=gpt2-nano topology=dgx-a100 gpus=8 pipeline_model_parallel_size=2 "                       \
  "tensor_model_parallel_size=2 global_batch_size=16 overlap_grad_reduce=true"

/* Runs in the page after it is ready; %s: statements that set members of `out`. */
#define PROBE                                                                                      \
  "<script>(async()=>{const out=document.documentElement.dataset;"                                 \
  "while(!out.weft)await new Promise(r=>setTimeout(r,20));"                                        \
  "const w=window.weftTimelines?.[0];%s"                                                           \
  "out.done=1})()</script>"

static gboolean
has_browser (void)
{
  g_autofree char *path = g_find_program_in_path ("chromium");

  return path != NULL;
}

/* The plan of a job and its timeline; the caller frees both. */
static weft_timeline *
run_job (const char *words, weft_plan **plan)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;
  const struct weft_exec_options options = { 0 };

  *plan = weft_test_job (words, &job, &error) ? weft_plan_new (&job, &error) : NULL;
  weft_timeline *t = *plan ? weft_exec_run (&weft_exec_clock, *plan, &options, &error) : NULL;
  if (!t)
    fail_msg ("%s", error->message);
  return t;
}

/* The page of a job; the caller frees it. */
static char *
make_page (const char *folder, const char *words, weft_plan **plan)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *path = g_build_filename (folder, "page.html", NULL);
  g_autoptr (weft_timeline) t = run_job (words, plan);
  char *page = NULL;

  g_autoptr (weft_report) report = weft_report_new (*plan, t);
  g_autoptr (weft_critical) critical = weft_critical_new (*plan, t, FALSE, &error);
  assert_non_null (critical);
  assert_true (weft_cli_html (report, critical, path, &error));
  assert_true (g_file_get_contents (path, &page, NULL, NULL));
  return page;
}

/* The document that the browser has after it ran the page with a probe; the caller frees it. */
static char *
run_page (const char *folder, const char *page, const char *statements)
{
  g_autofree char *probe = g_strdup_printf (PROBE, statements);
  g_autofree char *both = g_strconcat (page, probe, NULL);
  g_autofree char *path = g_build_filename (folder, "probed.html", NULL);
  g_autofree char *command = g_strdup_printf (
      "timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
      "--disable-background-networking --disable-component-update --disable-sync "
      "--user-data-dir=%s/browser --log-level=3 --virtual-time-budget=60000 --dump-dom file://%s",
      folder, path);
  g_autofree char *log = NULL; /* the browser says much about buses that are not there */
  char *out = NULL;
  int status;

  assert_true (g_file_set_contents (path, both, -1, NULL));
  assert_true (g_spawn_command_line_sync (command, &out, &log, &status, NULL));
  if (status || !strstr (out, "data-done"))
    fail_msg ("%s: status %d: %.300s", command, status, out);
  return out;
}

/* The value of an attribute of the document, with its entities; the caller frees it. */
static char *
attribute (const char *document, const char *name)
{
  g_autofree char *begin = g_strdup_printf ("data-%s=\"", name);
  const char *at = strstr (document, begin);

  assert_non_null (at);
  at += strlen (begin);
  return g_strndup (at, strcspn (at, "\""));
}

static void
the_page_names_ops_and_what_they_waited_for (void **state)
{
  g_autoptr (weft_plan) plan = NULL;

  if (!has_browser ()) {
    print_message ("no chromium\n");
    skip ();
  }
  g_autofree char *page = make_page (*state, STAGES, &plan);
  assert_null (strstr (page, "http://"));
  assert_null (strstr (page, "https://"));
  const weft_program *p = plan->role[1];
  uint32_t op = p->lane_ops[WEFT_LANE_GPU][p->lane_n[WEFT_LANE_GPU] / 2];
  g_autofree char *label = weft_op_label (p, op);
  g_autofree char *probe = g_strdup_printf (
      "const row=w.head.rows.findIndex(r=>r.role===1);w.keep({row,op:%u});out.facts=w.facts();"
      "w.back();out.before=w.facts();w.step(1);out.after=w.facts();"
      "out.ops=w.head.roles[1].kind.length;",
      op);
  g_autofree char *document = run_page (*state, page, probe);
  g_autofree char *facts = attribute (document, "facts");
  g_autofree char *before = attribute (document, "before");
  g_autofree char *ops = attribute (document, "ops");
  assert_true (g_str_has_prefix (facts, label));
  assert_non_null (strstr (facts, "it waited for"));
  assert_non_null (strstr (facts, "kernel_gap = "));
  assert_string_not_equal (facts, before);
  assert_int_equal (atoi (ops), p->n_op);
}

/* The page has the critical path of the plan, and marks it op by op. */
static void
the_page_has_the_critical_path (void **state)
{
  g_autoptr (weft_plan) plan = NULL;
  g_autoptr (GError) error = NULL;
  const struct weft_exec_options options = { 0 };

  if (!has_browser ())
    skip ();
  g_autofree char *page = make_page (*state, STAGES, &plan);
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &options, &error);
  g_autoptr (weft_critical) c = weft_critical_new (plan, t, FALSE, &error);
  const struct weft_critical_op *first = &g_array_index (c->path, struct weft_critical_op, 0);
  g_autofree char *label = weft_op_label (plan->role[t->role[first->row]], first->op);
  g_autofree char *document =
      run_page (*state, page, "out.n=w.head.path.path_op.length;w.alongPath(1);out.facts=w.facts();"
                              "out.pressed=document.getElementById('weft-path').ariaPressed;");
  g_autofree char *n = attribute (document, "n"), *facts = attribute (document, "facts");
  g_autofree char *pressed = attribute (document, "pressed");
  assert_int_equal (atoi (n), c->path->len);
  assert_true (g_str_has_prefix (facts, label));
  assert_string_equal (pressed, "true");
  const struct weft_critical_kind *most = &g_array_index (c->kind, struct weft_critical_kind, 0);
  g_autofree char *row = g_strdup_printf ("<tr><td>%s</td><td>%u</td>", most->what, most->ops);
  assert_non_null (strstr (page, row));
}

static void
memory_at_its_highest_is_that_of_the_report (void **state)
{
  g_autoptr (weft_plan) plan = NULL;

  if (!has_browser ())
    skip ();
  g_autofree char *page =
      make_page (*state, "model=gpt2-nano topology=dgx-a100 gpus=1 global_batch_size=4", &plan);
  g_autofree char *document =
      run_page (*state, page,
                "const row=w.head.rows.findIndex(r=>r.role===0);w.keep({row,op:0});"
                "out.most=w.head.rows[row].memory.most;");
  g_autofree char *most = attribute (document, "most");
  g_autoptr (weft_report) report = weft_report_new (plan, NULL);
  assert_true (g_ascii_strtod (most, NULL) == (double) report->role[0].live_bytes);
}

/* Ops by the hundred thousand at ten zooms; bench/page.sh measures a million of them. */
static void
many_ops_are_drawn_at_every_zoom (void **state)
{
  g_autoptr (weft_plan) plan = NULL;

  if (!has_browser ())
    skip ();
  g_autofree char *page = make_page (*state,
                                     "model=gpt2-nano topology=dgx-a100 gpus=4 "
                                     "pipeline_model_parallel_size=4 global_batch_size=384",
                                     &plan);
  assert_true (plan->role[0]->n_op > 20000);
  g_autofree char *document =
      run_page (*state, page, "out.frames=(await window.weftPan(40)).length;");
  g_autofree char *frames = attribute (document, "frames");
  assert_string_equal (frames, "40");
}

/* Two jobs have one axis of time, and an op that is selected or pointed at in one page answers in
 * both. */
static void
two_jobs_share_zoom_and_selection (void **state)
{
  g_autoptr (weft_plan) a = NULL, b = NULL;
  g_autofree char *path = g_build_filename (*state, "both.html", NULL), *page = NULL;
  g_autoptr (GError) error = NULL;

  if (!has_browser ())
    skip ();
  g_autoptr (weft_timeline) s = run_job (STAGES, &a);
  g_autoptr (weft_timeline) t = run_job (STAGES " gpu_memory_bandwidth=100GB/s", &b);
  const struct weft_compare_side left = { "a.ini", a, s }, right = { "<b>.ini", b, t };
  g_autoptr (weft_compare) compare = weft_compare_new (&left, &right, 0);
  assert_null (compare->mismatch);
  assert_true (weft_cli_compare_html (compare, path, &error));
  assert_true (g_file_get_contents (path, &page, NULL, NULL));
  assert_null (strstr (page, "<b>.ini"));
  assert_non_null (strstr (page, "exposed transfers"));
  assert_non_null (strstr (page, "memory peak"));
  g_autofree char *document = run_page (
      *state, page,
      "const o=window.weftTimelines[1];w.keep({row:0,op:5});out.one=w.facts();out.two=o.facts();"
      "w.keep(null);o.zoom(0.5);const c=window.weftCommon;out.half=(c.t1-c.t0)/c.seconds;"
      "out.longest=c.seconds===o.head.seconds;"
      "for(let x=110;x<700&&!o.facts();x+=2)o.hoverAt(x,30);out.hover=o.facts();"
      "const key=new KeyboardEvent('keydown',{key:'n'});"
      "document.querySelectorAll('canvas')[1].dispatchEvent(key);out.key=o.facts();");
  g_autofree char *one = attribute (document, "one"), *two = attribute (document, "two"),
                  *hover = attribute (document, "hover"), *half = attribute (document, "half"),
                  *longest = attribute (document, "longest"), *key = attribute (document, "key");
  g_autofree char *label = weft_op_label (a->role[0], 5);
  assert_true (g_str_has_prefix (one, label) && g_str_has_prefix (two, label));
  assert_string_not_equal (one, two);
  assert_true (fabs (g_ascii_strtod (half, NULL) - 0.5) < 1e-9);
  assert_string_equal (longest, "true");
  assert_non_null (strstr (hover, "it waited for"));
  assert_non_null (strstr (key, "it waited for"));
}

/* Moving a slider shows another combination at once: its numbers, boxes and memory, or the rule
 * that refuses it. */
static void
a_slider_chooses_a_combination (void **state)
{
  g_autofree char *path = g_build_filename (*state, "sweep.html", NULL), *page = NULL;
  g_autofree char *words =
      g_strconcat ("sweep --model llama-nano --topology dgx-h100 --gpus 8 --global-batch-size 16 "
                   "--executor clock tp=1,3 pp=1,2,4 --html ", path, NULL);

  if (!has_browser ())
    skip ();
  struct answer a = weft_test_answer (words);
  assert_int_equal (a.status, 0);
  weft_test_answer_free (&a);
  assert_true (g_file_get_contents (path, &page, NULL, NULL));
  assert_null (strstr (page, "http://"));
  g_autofree char *document = run_page (
      *state, page,
      "const v=window.weftSweep,id=(i)=>document.getElementById(i);"
      "const set=(i,n)=>{v.sliders[i].value=n;v.sliders[i].dispatchEvent(new Event('input'))};"
      "set(0,0);set(1,0);out.one=v.boxes();set(1,2);out.four=v.boxes();"
      "out.said=v.sliders[1].ariaValueText||v.sliders[1].getAttribute('aria-valuetext');"
      "out.stages=id('weft-memory').querySelectorAll('.bar').length;"
      "out.step=id('weft-numbers').textContent;set(0,1);out.rule=id('weft-reason').textContent;"
      "out.hidden=id('weft-chosen').hidden;out.kind=v.sliders[0].type;"
      "out.label=document.querySelector('label[for=weft-knob-1]').textContent;");
  g_autofree char *one = attribute (document, "one"), *four = attribute (document, "four"),
                  *said = attribute (document, "said"), *stages = attribute (document, "stages"),
                  *rule = attribute (document, "rule"), *hidden = attribute (document, "hidden"),
                  *kind = attribute (document, "kind"), *label = attribute (document, "label");
  assert_true (atoi (one) > 0 && atoi (four) > atoi (one));
  assert_string_equal (said, "4");
  assert_string_equal (stages, "4");
  assert_true (g_str_has_prefix (rule, "Refused: rule world: gpus = 8"));
  assert_string_equal (hidden, "true");
  assert_string_equal (kind, "range");
  assert_string_equal (label, "pp");
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  IN_FOLDER (the_page_names_ops_and_what_they_waited_for),
  IN_FOLDER (the_page_has_the_critical_path),
  IN_FOLDER (memory_at_its_highest_is_that_of_the_report),
  IN_FOLDER (two_jobs_share_zoom_and_selection),
  IN_FOLDER (a_slider_chooses_a_combination),
  IN_FOLDER (many_ops_are_drawn_at_every_zoom),
};

WEFT_TESTS (tests, .seconds = 10)
