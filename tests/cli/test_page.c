/* The page of `weft sim --html` in a browser without a screen. The script of the page must read the
 * arrays, name each op and the op that it waited for as the program does, and draw hundreds of
 * thousands of ops. Skipped without Chromium. */
#include "tests/made/random_job.h"
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include "cli/html.h"
#include "exec_sim/exec_sim.h"
#include <string.h>

#define STAGES                                                                                     \
  "model=gpt2-nano topology=dgx-a100 gpus=8 pipeline_model_parallel_size=2 "                       \
  "tensor_model_parallel_size=2 global_batch_size=16 overlap_grad_reduce=true"

/* Runs in the page after it is ready; %s: statements that set members of `out`. */
#define PROBE                                                                                      \
  "<script>(async()=>{const out=document.documentElement.dataset;"                                 \
  "while(!out.weft)await new Promise(r=>setTimeout(r,20));const w=window.weftTimeline;%s"          \
  "out.done=1})()</script>"

static gboolean
has_browser (void)
{
  g_autofree char *path = g_find_program_in_path ("chromium");

  return path != NULL;
}

/* The page of a job; the caller frees it. */
static char *
make_page (const char *folder, const char *words, weft_plan **plan)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;
  const struct weft_exec_options options = { 0 };
  g_autofree char *path = g_build_filename (folder, "page.html", NULL);
  char *page = NULL;

  *plan = weft_test_job (words, &job, &error) ? weft_plan_new (&job, &error) : NULL;
  g_autoptr (weft_timeline) t =
      *plan ? weft_exec_run (&weft_exec_clock, *plan, &options, &error) : NULL;
  if (!t)
    fail_msg ("%s", error->message);
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

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  IN_FOLDER (the_page_names_ops_and_what_they_waited_for),
  IN_FOLDER (the_page_has_the_critical_path),
  IN_FOLDER (memory_at_its_highest_is_that_of_the_report),
  IN_FOLDER (many_ops_are_drawn_at_every_zoom),
};

WEFT_TESTS (tests, .seconds = 10)
