/* Trace files: what viewers require (valid JSON, nested slices, arrows that begin and end inside
 * slices), and the memory counter, which must show the planned memory. */
#include "core/base/error.h"
#include "core/exec/exec.h"
#include "core/report/trace.h"
#include "tests/made/own.h"
#include "tests/runner/runner.h"
#include <gio/gio.h>
#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

struct step {
  weft_plan *plan;
  weft_timeline *timeline;
};

/* A step on eight GPUs with four pipeline stages; gradient reduction overlaps with the backward
 * pass. */
static struct step
make_step (gboolean unfolded)
{
  static const char *const settings[][3] = { { "model", "config", "gpt2-nano" },
                                             { "cluster", "topology", "dgx-h100" },
                                             { "train", "global_batch_size", "16" },
                                             { "strategy", "pipeline_model_parallel_size", "4" },
                                             { "strategy", "overlap_grad_reduce", "true" },
                                             { "strategy", "use_distributed_optimizer", "true" } };
  g_autoptr (weft_settings) list = weft_settings_new ();
  g_autoptr (GError) error = NULL;
  const struct weft_exec_options options = { .own = made_own (&weft_exec_clock, "unfolded=%d",
                                                              unfolded) };
  struct weft_job job;
  struct step s;

  for (unsigned i = 0; i < G_N_ELEMENTS (settings); i++)
    weft_settings_add (list, settings[i][0], settings[i][1], settings[i][2], "--test");
  if (!weft_job_build (list, &job, &error) || !(s.plan = weft_plan_new (&job, &error)) ||
      !(s.timeline = weft_exec_run (&weft_exec_clock, s.plan, &options, &error)))
    fail_msg ("%s", error->message);
  return s;
}

static void
step_free (struct step *s)
{
  weft_timeline_free (s->timeline);
  weft_plan_free (s->plan);
}

/* Writes a trace file and returns its bytes. `gzip`: compressed. */
static GBytes *
write_trace (const struct step *s, uint32_t n_rows, gboolean gzip)
{
  g_autofree char *folder = g_dir_make_tmp ("weft-trace-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, gzip ? "t.json.gz" : "t.json", NULL);
  g_autoptr (GError) error = NULL;
  char *text;
  gsize length;

  if (!weft_trace_write (s->plan, s->timeline, n_rows, path, &error) ||
      !g_file_get_contents (path, &text, &length, &error))
    fail_msg ("%s", error->message);
  g_unlink (path);
  g_rmdir (folder);
  return g_bytes_new_take (text, length);
}

/* A parsed trace. */
struct trace {
  JsonParser *parser;
  JsonArray *events;
};

static struct trace
read_trace (const struct step *s, uint32_t n_rows)
{
  g_autoptr (GBytes) bytes = write_trace (s, n_rows, FALSE);
  struct trace t = { json_parser_new (), NULL };
  g_autoptr (GError) error = NULL;

  if (!json_parser_load_from_data (t.parser, g_bytes_get_data (bytes, NULL),
                                   g_bytes_get_size (bytes), &error))
    fail_msg ("%s", error->message);
  JsonObject *root = json_node_get_object (json_parser_get_root (t.parser));
  assert_int_equal (json_object_get_int_member (root, "schemaVersion"), 1);
  assert_string_equal (json_object_get_string_member (root, "displayTimeUnit"), "ms");
  assert_int_equal (json_object_get_int_member (
                        json_object_get_object_member (root, "distributedInfo"), "world_size"),
                    8);
  t.events = json_object_get_array_member (root, "traceEvents");
  return t;
}

static JsonObject *
event (const struct trace *t, unsigned i)
{
  return json_array_get_object_element (t->events, i);
}

static unsigned
n_events (const struct trace *t)
{
  return json_array_get_length (t->events);
}

static gboolean
is_phase (JsonObject *e, const char *phase)
{
  return strcmp (json_object_get_string_member (e, "ph"), phase) == 0;
}

/* Returns a time of a trace event in nanoseconds. Trace files state microseconds with three decimal
 * places. */
static int64_t
nanoseconds (JsonObject *e, const char *member)
{
  return llround (json_object_get_double_member (e, member) * 1000);
}

static int64_t
thread (JsonObject *e)
{
  return json_object_get_int_member (e, "pid") * 1000 + json_object_get_int_member (e, "tid");
}

static unsigned
count_phase (const struct trace *t, const char *phase)
{
  unsigned n = 0;

  for (unsigned i = 0; i < n_events (t); i++)
    n += is_phase (event (t, i), phase);
  return n;
}

/* ----------------------------------------------------------------------- slices */

struct slice {
  int64_t thread, begin, end;
};

static int
by_thread_and_begin (const void *a, const void *b)
{
  const struct slice *x = a, *y = b;

  if (x->thread != y->thread)
    return x->thread < y->thread ? -1 : 1;
  if (x->begin != y->begin)
    return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end);
}

static GArray *
slices_of (const struct trace *t)
{
  GArray *slices = g_array_new (FALSE, FALSE, sizeof (struct slice));

  for (unsigned i = 0; i < n_events (t); i++) {
    JsonObject *e = event (t, i);
    if (!is_phase (e, "X"))
      continue;
    struct slice s = { thread (e), nanoseconds (e, "ts"),
                       nanoseconds (e, "ts") + nanoseconds (e, "dur") };
    g_array_append_val (slices, s);
  }
  g_array_sort (slices, by_thread_and_begin);
  return slices;
}

static void
every_op_is_a_slice_and_slices_of_a_thread_are_disjoint (void **state)
{
  struct step s = make_step (FALSE);
  struct trace t = read_trace (&s, 0);
  g_autoptr (GArray) slices = slices_of (&t);

  (void) state;
  assert_int_equal (slices->len, s.timeline->n_ops);
  for (unsigned i = 1; i < slices->len; i++) {
    const struct slice *before = &g_array_index (slices, struct slice, i - 1), *now = before + 1;
    assert_true (now->end >= now->begin);
    assert_true (before->thread != now->thread || before->end <= now->begin);
  }
  g_object_unref (t.parser);
  step_free (&s);
}

/* Ops of a launch group run at the same time, which one row of a viewer cannot show: every
 * further member of a group has a row of its own. */
static void
members_of_a_group_have_rows_of_their_own (void **state)
{
  struct step s = make_step (FALSE);
  struct trace t = read_trace (&s, 0);
  unsigned rows = 0, grouped = 0;

  (void) state;
  for (unsigned i = 0; i < n_events (&t); i++) {
    JsonObject *e = event (&t, i);
    if (is_phase (e, "M") && strcmp (json_object_get_string_member (e, "name"), "thread_name") == 0)
      rows +=
          strcmp (json_object_get_string_member (json_object_get_object_member (e, "args"), "name"),
                  "pp 2") == 0;
  }
  for (uint32_t op = 0; op < s.plan->role[1]->n_op; op++)
    grouped += s.plan->role[1]->op[op].flags & WEFT_OP_GROUPED;
  assert_true (grouped > 0);
  assert_true (rows > 0);
  g_object_unref (t.parser);
  step_free (&s);
}

static void
a_slice_says_what_its_op_is (void **state)
{
  struct step s = make_step (FALSE);
  struct trace t = read_trace (&s, 1);

  (void) state;
  for (unsigned i = 0; i < n_events (&t); i++) {
    JsonObject *e = event (&t, i);
    if (!is_phase (e, "X"))
      continue;
    JsonObject *args = json_object_get_object_member (e, "args");
    uint32_t op = json_object_get_int_member (args, "op");
    const weft_program *p = s.plan->role[0];
    g_autofree char *label = weft_op_label (p, op);
    assert_string_equal (json_object_get_string_member (e, "name"), label);
    assert_string_equal (json_object_get_string_member (args, "kind"),
                         weft_op_info[p->op[op].kind].word);
    assert_int_equal (json_object_get_int_member (args, "flops"), (int64_t) weft_op_flops (p, op));
    assert_int_equal (nanoseconds (e, "ts"), llround (s.timeline->begin[0][op] * 1e9));
  }
  g_object_unref (t.parser);
  step_free (&s);
}

/* ----------------------------------------------------------------------- arrows */

static gboolean
is_inside_a_slice (const GArray *slices, JsonObject *e)
{
  int64_t at = nanoseconds (e, "ts"), on = thread (e);

  for (unsigned i = 0; i < slices->len; i++) {
    const struct slice *s = &g_array_index (slices, struct slice, i);
    if (s->thread == on && s->begin <= at && at < s->end)
      return TRUE;
  }
  return FALSE;
}

static void
both_ends_of_an_arrow_lie_inside_slices (void **state)
{
  struct step s = make_step (FALSE);
  struct trace t = read_trace (&s, 0);
  g_autoptr (GArray) slices = slices_of (&t);
  g_autoptr (GHashTable) open = g_hash_table_new (g_direct_hash, g_direct_equal);

  (void) state;
  for (unsigned i = 0; i < n_events (&t); i++) {
    JsonObject *e = event (&t, i);
    if (!is_phase (e, "s") && !is_phase (e, "f"))
      continue;
    gpointer id = GINT_TO_POINTER (json_object_get_int_member (e, "id") + 1);
    assert_true (is_inside_a_slice (slices, e));
    if (is_phase (e, "s"))
      assert_true (g_hash_table_add (open, id));
    else {
      assert_string_equal (json_object_get_string_member (e, "bp"), "e");
      assert_true (g_hash_table_remove (open, id));
    }
  }
  assert_int_equal (g_hash_table_size (open), 0);
  g_object_unref (t.parser);
  step_free (&s);
}

/* Each send of an observed stage has one arrow to its receive. 16 sequences are 8 microbatches
 * on each of 2 replicas, and a microbatch crosses three stage boundaries forward and three
 * backward. */
static void
every_send_points_to_its_receive (void **state)
{
  (void) state;
  for (int unfolded = 0; unfolded < 2; unfolded++) {
    struct step s = make_step (unfolded);
    struct trace t = read_trace (&s, 0);
    unsigned transfers = 0;

    for (unsigned i = 0; i < n_events (&t); i++)
      transfers += is_phase (event (&t, i), "s") &&
                   strcmp (json_object_get_string_member (event (&t, i), "cat"), "transfer") == 0;
    assert_int_equal (transfers, s.timeline->n / 4 * 8 * 3 * 2);
    g_object_unref (t.parser);
    step_free (&s);
  }
}

/* ----------------------------------------------------------------------- memory */

static int64_t
sum_of (JsonObject *args)
{
  g_autoptr (GList) values = json_object_get_values (args);
  int64_t sum = 0;

  for (const GList *at = values; at; at = at->next)
    sum += json_node_get_int (at->data);
  return sum;
}

static int64_t
counter_peak (const struct trace *t, uint32_t rank)
{
  int64_t peak = 0;

  for (unsigned i = 0; i < n_events (t); i++) {
    JsonObject *e = event (t, i);
    if (is_phase (e, "C") && json_object_get_int_member (e, "pid") == rank)
      peak = MAX (peak, sum_of (json_object_get_object_member (e, "args")));
  }
  return peak;
}

static void
the_counter_peaks_at_the_planned_live_bytes (void **state)
{
  struct step s = make_step (FALSE);
  struct trace t = read_trace (&s, 0);

  (void) state;
  for (uint32_t row = 0; row < s.timeline->n; row++) {
    const struct weft_memory *m = &s.plan->memory[s.timeline->role[row]];
    assert_int_equal (counter_peak (&t, s.timeline->rank[row]),
                      m->live[WEFT_POOL_DEVICE] + m->live[WEFT_POOL_SYMMETRIC]);
  }
  g_object_unref (t.parser);
  step_free (&s);
}

/* Before the first and after the last op, the memory counter shows only permanent buffers. */
static void
the_counter_begins_and_ends_with_what_is_permanent (void **state)
{
  struct step s = make_step (FALSE);
  struct trace t = read_trace (&s, 1);
  int64_t permanent = 0, first = -1, last = -1;

  (void) state;
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    permanent += s.plan->memory[0].permanent[WEFT_POOL_DEVICE][kind];
  for (unsigned i = 0; i < n_events (&t); i++) {
    if (!is_phase (event (&t, i), "C"))
      continue;
    last = sum_of (json_object_get_object_member (event (&t, i), "args"));
    first = first < 0 ? last : first;
  }
  assert_int_equal (first, permanent);
  assert_int_equal (last, permanent);
  g_object_unref (t.parser);
  step_free (&s);
}

/* ------------------------------------------------------------------------- file */

static void
only_the_first_rows_are_written_when_asked (void **state)
{
  struct step s = make_step (FALSE);
  struct trace all = read_trace (&s, 0), one = read_trace (&s, 1);

  (void) state;
  assert_int_equal (count_phase (&one, "X"), s.plan->role[0]->n_op);
  assert_true (count_phase (&one, "X") < count_phase (&all, "X"));
  g_object_unref (all.parser);
  g_object_unref (one.parser);
  step_free (&s);
}

static void
a_compressed_trace_holds_the_same_text (void **state)
{
  struct step s = make_step (TRUE);
  g_autoptr (GBytes) plain = write_trace (&s, 0, FALSE), zipped = write_trace (&s, 0, TRUE);
  g_autoptr (GConverter) gunzip =
      G_CONVERTER (g_zlib_decompressor_new (G_ZLIB_COMPRESSOR_FORMAT_GZIP));
  gsize size = g_bytes_get_size (plain), read, written;
  g_autofree char *text = g_malloc (size + 1);

  (void) state;
  assert_true (g_bytes_get_size (zipped) < size / 5);
  assert_int_equal (g_converter_convert (gunzip, g_bytes_get_data (zipped, NULL),
                                         g_bytes_get_size (zipped), text, size + 1,
                                         G_CONVERTER_INPUT_AT_END, &read, &written, NULL),
                    G_CONVERTER_FINISHED);
  assert_int_equal (written, size);
  assert_memory_equal (text, g_bytes_get_data (plain, NULL), size);
  step_free (&s);
}

/* A timeline of more ranks than a trace viewer can open is refused, and the message names flags
 * that help. All ranks have the same times here. */
static void
a_trace_that_no_viewer_opens_is_refused_with_a_way_out (void **state)
{
  struct step s = make_step (FALSE);
  uint32_t n = WEFT_TRACE_MOST_EVENTS / s.plan->role[0]->n_op;
  g_autofree uint32_t *rank = g_new0 (uint32_t, n), *role = g_new0 (uint32_t, n);
  g_autofree double **begin = g_new (double *, n), **end = g_new (double *, n);
  weft_timeline many = *s.timeline;
  g_autoptr (GError) error = NULL;

  (void) state;
  for (uint32_t row = 0; row < n; row++) {
    begin[row] = s.timeline->begin[0];
    end[row] = s.timeline->end[0];
  }
  many.n = n;
  many.rank = rank;
  many.role = role;
  many.begin = begin;
  many.end = end;
  assert_false (weft_trace_write (s.plan, &many, 0, "/nonexistent/t.json", &error));
  assert_int_equal (weft_error_exit_status (error), 2);
  const char *hint = strstr (error->message, "--trace-ranks ");
  assert_non_null (hint);
  uint64_t fitting = g_ascii_strtoull (hint + strlen ("--trace-ranks "), NULL, 10);
  g_clear_error (&error);
  assert_false (weft_trace_write (s.plan, &many, fitting + 1, "/nonexistent/t.json", &error));
  assert_int_equal (weft_error_exit_status (error), 2);
  g_clear_error (&error);
  assert_false (weft_trace_write (s.plan, &many, fitting, "/nonexistent/t.json", &error));
  assert_int_equal (weft_error_exit_status (error), 1);
  step_free (&s);
}

static void
a_path_that_cannot_be_written_is_named (void **state)
{
  struct step s = make_step (FALSE);
  g_autoptr (GError) error = NULL;

  (void) state;
  assert_false (weft_trace_write (s.plan, s.timeline, 0, "/nonexistent/t.json", &error));
  assert_true (g_str_has_prefix (error->message, "/nonexistent/t.json: "));
  step_free (&s);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_op_is_a_slice_and_slices_of_a_thread_are_disjoint),
  cmocka_unit_test (members_of_a_group_have_rows_of_their_own),
  cmocka_unit_test (a_slice_says_what_its_op_is),
  cmocka_unit_test (both_ends_of_an_arrow_lie_inside_slices),
  cmocka_unit_test (every_send_points_to_its_receive),
  cmocka_unit_test (the_counter_peaks_at_the_planned_live_bytes),
  cmocka_unit_test (the_counter_begins_and_ends_with_what_is_permanent),
  cmocka_unit_test (only_the_first_rows_are_written_when_asked),
  cmocka_unit_test (a_compressed_trace_holds_the_same_text),
  cmocka_unit_test (a_trace_that_no_viewer_opens_is_refused_with_a_way_out),
  cmocka_unit_test (a_path_that_cannot_be_written_is_named),
};

WEFT_TESTS (tests)
