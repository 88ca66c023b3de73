/* Figures: the chart layer, what commands draw with it, and the figures of the pages, each of which
 * is what its command in the text draws. */
#include "charts/scale.h"
#include "cli/figures/figures.h"
#include "exec_sim/exec_sim.h"
#include "tests/made/random_job.h"
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------- one SVG */

struct drawn {
  uint32_t n_rect, n_number;
  double width, height;
};

static double
attribute (const char **name, const char **value, const char *wanted)
{
  for (; *name; name++, value++)
    if (strcmp (*name, wanted) == 0)
      return g_ascii_strtod (*value, NULL);
  return 0;
}

static void
see_element (GMarkupParseContext *context, const char *element, const char **name,
             const char **value, void *data, GError **error)
{
  (void) context, (void) error;
  struct drawn *seen = data;
  double x = attribute (name, value, "x"), y = attribute (name, value, "y");

  if (strcmp (element, "svg") == 0) {
    seen->width = attribute (name, value, "width");
    seen->height = attribute (name, value, "height");
  }
  seen->n_rect += strcmp (element, "rect") == 0;
  assert_true (x + attribute (name, value, "width") <= seen->width);
  assert_true (y + attribute (name, value, "height") <= seen->height);
}

static void
see_text (GMarkupParseContext *context, const char *text, gsize length, void *data, GError **error)
{
  (void) context, (void) length, (void) error;
  struct drawn *seen = data;

  seen->n_number += g_ascii_isdigit (text[0]);
}

/* Parses an SVG: it must be well-formed, load nothing, and have all elements inside its frame. */
static struct drawn
look (const char *svg)
{
  static const GMarkupParser parser = { .start_element = see_element, .text = see_text };
  struct drawn seen = { 0 };
  g_autoptr (GError) error = NULL;
  GMarkupParseContext *context = g_markup_parse_context_new (&parser, 0, &seen, NULL);

  if (!g_markup_parse_context_parse (context, svg, -1, &error) ||
      !g_markup_parse_context_end_parse (context, &error))
    fail_msg ("%s", error->message);
  g_markup_parse_context_free (context);
  assert_null (strstr (svg, "href"));
  assert_null (strstr (svg, "nan"));
  assert_null (strstr (svg, "inf"));
  return seen;
}

/* ------------------------------------------------------------------------ schedules */

static char *
draw_schedule (enum weft_schedule schedule, uint32_t ranks, uint32_t micro, uint32_t chunks)
{
  const struct weft_grid_spec spec = { schedule, ranks, chunks, micro, 0, 0 };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_grid) grid = weft_grid_new (&spec, &error);

  if (!grid)
    fail_msg ("%s", error->message);
  g_autoptr (weft_figure) figure = weft_cli_figure_schedule (grid);
  return weft_figure_svg (figure, FALSE);
}

static void
a_schedule_has_a_box_with_a_number_for_every_cell (void **state)
{
  g_autofree char *svg = draw_schedule (WEFT_SCHEDULE_1F1B, 4, 8, 1);
  struct drawn seen = look (svg);

  (void) state;
  /* numbers of 64 cells and of the ticks 0, 5, ... 30; boxes of 64 cells, the frame and the key */
  assert_int_equal (seen.n_number, 64 + 7);
  assert_int_equal (seen.n_rect, 64 + 1 + 2);
  assert_non_null (strstr (svg, "<title>Pipeline schedule: 4 ranks, 4 stages, 8 microbatches, "
                                "33 slots</title>"));
  assert_non_null (strstr (svg, ">backward</text>"));
  assert_null (strstr (svg, ">weight gradient</text>"));
}

static void
a_number_is_left_out_where_it_has_no_room (void **state)
{
  g_autofree char *svg = draw_schedule (WEFT_SCHEDULE_GPIPE, 16, 600, 1);
  struct drawn seen = look (svg);

  (void) state;
  assert_int_equal (seen.n_rect, 16 * 1200 + 1 + 2);
  assert_true (seen.n_number < 10);
}

static void
chunks_are_paler_and_pairs_underlined (void **state)
{
  g_autofree char *svg = draw_schedule (WEFT_SCHEDULE_DUALPIPEV, 2, 4, 0);
  g_autofree char *split = draw_schedule (WEFT_SCHEDULE_ZB_H1, 2, 4, 1);

  (void) state;
  look (svg);
  look (split);
  assert_non_null (strstr (svg, "paler: later chunks"));
  assert_non_null (strstr (svg, "fill=\"#56b4e9\""));
  assert_non_null (strstr (svg, "fill=\"#b2ddf5\"")); /* 55 % of white in it */
  assert_non_null (strstr (svg, "stroke=\"#888888\">"));
  assert_non_null (strstr (split, ">weight gradient</text>"));
}

/* ---------------------------------------------------------------------------- scales */

static void
assert_ticks (enum weft_scale scale, double low, double high, const char *wanted)
{
  struct weft_chart_axis axis = { .scale = scale, .unit = "", .plain = TRUE };
  gboolean is_log = scale == WEFT_SCALE_LOG;
  const struct weft_scale_range range = { is_log ? log10 (low) : low,
                                          is_log ? log10 (high) : high };
  g_autoptr (GArray) ticks = weft_scale_ticks (&axis, range);
  g_autoptr (GString) found = g_string_new (NULL);

  for (guint i = 0; i < ticks->len; i++) {
    g_autofree char *text = weft_scale_text (&axis, g_array_index (ticks, double, i));
    double place = weft_scale_place (&axis, range, g_array_index (ticks, double, i));
    assert_true (place >= -1e-9 && place <= 1 + 1e-9);
    g_string_append_printf (found, "%s%s", i ? " " : "", text);
  }
  assert_string_equal (found->str, wanted);
}

static void
ticks_are_round_numbers_in_order (void **state)
{
  (void) state;
  assert_ticks (WEFT_SCALE_LINEAR, 0, 33, "0 5 10 15 20 25 30");
  assert_ticks (WEFT_SCALE_LINEAR, -0.3, 1.1, "-0.2 0 0.2 0.4 0.6 0.8 1");
  assert_ticks (WEFT_SCALE_LINEAR, 1e9, 1.3e9, "1e+09 1.05e+09 1.1e+09 1.15e+09 1.2e+09 1.25e+09 "
                                               "1.3e+09");
  assert_ticks (WEFT_SCALE_LOG, 0.9, 60, "1 2 5 10 20 50");
  assert_ticks (WEFT_SCALE_LOG, 1e-3, 1e4, "0.001 0.01 0.1 1 10 100 1000 10000");
}

/* -------------------------------------------------------------------------- a step */

#define PIPELINE                                                                                   \
  "model=gpt2-nano topology=dgx-a100 gpus=8 pipeline_model_parallel_size=2 "                       \
  "tensor_model_parallel_size=2 global_batch_size=16"

static void
figures_of_a_step_are_well_formed_and_the_same_again (void **state)
{
#define MAKE(word, doc) weft_cli_figure_##word,
  static weft_figure *(*const make[]) (const weft_report *r) = { WEFT_CLI_STEP_FIGURE_LIST (MAKE) };
  g_autoptr (weft_plan) plan = weft_test_plan (PIPELINE);
  const struct weft_exec_options options = { 0 };
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &options, NULL);

  (void) state;
  g_autoptr (weft_report) report = weft_report_new (plan, t);
  for (unsigned i = 0; i < G_N_ELEMENTS (make); i++) {
    g_autoptr (weft_figure) figure = make[i](report), again = make[i](report);
    g_autofree char *colour = weft_figure_svg (figure, FALSE);
    g_autofree char *grey = weft_figure_svg (figure, TRUE);
    g_autofree char *same = weft_figure_svg (again, FALSE);
    g_autofree char *part = weft_figure_inline (figure, FALSE);
    assert_true (weft_figure_has_items (figure));
    look (colour);
    look (grey);
    look (part);
    assert_string_equal (colour, same);
    assert_null (strstr (grey, "#e69f00"));
    assert_null (strstr (part, "<style>")); /* the page has the colours */
  }
}

/* The highest of the drawn memory is the peak of the report: no slice loses it. */
static void
memory_over_time_has_the_peak_of_the_report (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (PIPELINE);
  const struct weft_exec_options options = { 0 };
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &options, NULL);

  (void) state;
  g_autoptr (weft_report) report = weft_report_new (plan, t);
  g_autoptr (weft_figure) figure = weft_cli_figure_memory (report);
  assert_int_equal (figure->panel->len, 2);
  for (uint32_t role = 0; role < 2; role++) {
    const struct weft_panel *panel = figure->panel->pdata[role];
    const struct weft_series *first = panel->series->pdata[0];
    double most = 0;
    for (guint i = 0; i < first->item->len; i++) {
      double sum = 0;
      for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++) {
        const struct weft_series *series = panel->series->pdata[kind];
        sum += g_array_index (series->item, struct weft_item, i).y;
      }
      most = fmax (most, sum);
    }
    assert_true (most == (double) report->role[role].live_bytes);
  }
}

/* --------------------------------------------------------------------------- files */

#define SCHEDULE                                                                                   \
  "program --model gpt2-nano --topology dgx-h100 --gpus 2 --pipeline-model-parallel-size 2 "       \
  "--schedule --figure "

static gboolean
contains (const char *bytes, gsize length, const char *word)
{
  for (gsize i = 0; i + strlen (word) <= length; i++)
    if (memcmp (bytes + i, word, strlen (word)) == 0)
      return TRUE;
  return FALSE;
}

static char *
make_pdf (const char *folder, const char *name, gsize *length)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autofree char *words = g_strconcat (SCHEDULE, path, NULL);
  struct answer a = weft_test_answer (words);
  char *text = NULL;

  assert_int_equal (a.status, 0);
  weft_test_answer_free (&a);
  assert_true (g_file_get_contents (path, &text, length, NULL));
  return text;
}

static void
a_pdf_embeds_its_font_and_has_the_same_bytes_again (void **state)
{
  gsize length, again;
  g_autofree char *a = make_pdf (*state, "a.pdf", &length);
  g_autofree char *b = make_pdf (*state, "b.pdf", &again);

  assert_true (g_str_has_prefix (a, "%PDF-"));
  assert_true (contains (a, length, "/FontFile"));
  assert_int_equal (length, again);
  assert_memory_equal (a, b, length);
}

static void
wrong_files_and_kinds_are_refused (void **state)
{
  (void) state;
  weft_test_refused (SCHEDULE "x.png", 2,
                     "--figure x.png: found a file name with another end, wanted .svg or .pdf");
  weft_test_refused ("program --model gpt2-nano --topology dgx-h100 --gpus 2 --monochrome", 2,
                     "--monochrome needs --figure");
  weft_test_refused ("sim --model gpt2-nano --topology dgx-h100 --gpus 2 --figure lines=x.svg", 2,
                     "wanted KIND=FILE, where KIND is one of timeline, memory, roofline");
  weft_test_refused ("sim --model gpt2-nano --topology dgx-h100 --gpus 2 --figure memory=x.eps", 2,
                     "--figure memory=x.eps: found a file name with another end");
}

/* -------------------------------------------------------------------- figures of pages */

/* The end of the path of a figure below docs/ that begins at `at`. */
static const char *
figure_end (const char *at)
{
  return at + strcspn (at, ", \n");
}

/* Runs a command of a page with its figures in `folder` instead of docs/, and compares them with
 * those of the page. Adds their paths to `drawn`. */
static void
draw_again (const char *line, const char *folder, GHashTable *drawn)
{
  g_autoptr (GRegex) docs = g_regex_new ("docs/(?=[a-z0-9_/]*\\.svg)", 0, 0, NULL);
  g_autofree char *mine = g_strconcat (folder, "/docs/", NULL);
  g_autofree char *words = g_regex_replace_literal (docs, line, -1, 0, mine, 0, NULL);
  g_autofree char *command = g_strdup_printf ("cd %s && %s%s >%s/log 2>&1", WEFT_SOURCE_DIR,
                                              WEFT_BINARY, words + strlen ("    ./weft"), folder);

  if (system (command) != 0)
    fail_msg ("%s", command);
  for (const char *at = line; (at = strstr (at, "docs/")); at++) {
    g_autofree char *name = g_strndup (at, (gsize) (figure_end (at) - at));
    if (!g_str_has_suffix (name, ".svg"))
      continue;
    g_autofree char *made = g_build_filename (folder, name, NULL);
    g_autofree char *committed = g_build_filename (WEFT_SOURCE_DIR, name, NULL);
    g_autofree char *a = NULL, *b = NULL;
    assert_true (g_file_get_contents (made, &a, NULL, NULL));
    if (!g_file_get_contents (committed, &b, NULL, NULL) || strcmp (a, b))
      fail_msg ("%s is not what this command draws: %s", name, line);
    g_hash_table_add (drawn, g_steal_pointer (&name));
  }
}

/* Commands of a page are indented by four columns, and go over several lines that end with a
 * backslash. */
static void
draw_page (const char *path, const char *folder, GHashTable *drawn)
{
  g_autofree char *page = NULL;
  g_autoptr (GRegex) joined = g_regex_new ("\\\\\n *", 0, 0, NULL);

  assert_true (g_file_get_contents (path, &page, NULL, NULL));
  g_autofree char *flat = g_regex_replace_literal (joined, page, -1, 0, "", 0, NULL);
  g_auto (GStrv) lines = g_strsplit (flat, "\n", -1);
  for (char **line = lines; *line; line++)
    if (g_str_has_prefix (*line, "    ./weft ") && strstr (*line, "docs/") &&
        strstr (*line, ".svg"))
      draw_again (*line, folder, drawn);
}

static const char *const folders[] = { "docs", "docs/labs", "docs/ideas", "docs/figures" };

/* Calls `each` for every page, or every figure, below docs/. */
static void
for_files (const char *end, void (*each) (const char *path, const char *folder, GHashTable *drawn),
           const char *folder, GHashTable *drawn)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (folders); i++) {
    g_autofree char *whole = g_build_filename (WEFT_SOURCE_DIR, folders[i], NULL);
    g_autoptr (GDir) dir = g_dir_open (whole, 0, NULL);
    const char *name;
    while ((name = g_dir_read_name (dir))) {
      g_autofree char *path = g_build_filename (whole, name, NULL);
      if (g_str_has_suffix (name, end))
        each (path, folder, drawn);
    }
  }
}

/* tests/cli/test_sure.c makes the page of accuracy with its figure. Trainings of an hour are behind
 * the figure of losses. */
static void
check_drawn (const char *path, const char *folder, GHashTable *drawn)
{
  static const char *const elsewhere[] = { "docs/accuracy.svg", "docs/fp8_loss.svg", NULL };
  const char *name = path + strlen (WEFT_SOURCE_DIR) + 1;

  (void) folder;
  if (!g_hash_table_contains (drawn, name) && !g_strv_contains (elsewhere, name))
    fail_msg ("no command in the pages draws %s", name);
}

static void
every_figure_of_the_pages_is_what_its_command_draws (void **state)
{
  g_autoptr (GHashTable) drawn = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  for (unsigned i = 0; i < G_N_ELEMENTS (folders); i++) {
    g_autofree char *mine = g_build_filename (*state, folders[i], NULL);
    assert_int_equal (g_mkdir_with_parents (mine, 0700), 0);
  }
  for_files (".md", draw_page, *state, drawn);
  for_files (".svg", check_drawn, *state, drawn);
  assert_true (g_hash_table_size (drawn) >= 10);
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_schedule_has_a_box_with_a_number_for_every_cell),
  cmocka_unit_test (a_number_is_left_out_where_it_has_no_room),
  cmocka_unit_test (chunks_are_paler_and_pairs_underlined),
  cmocka_unit_test (ticks_are_round_numbers_in_order),
  cmocka_unit_test (figures_of_a_step_are_well_formed_and_the_same_again),
  cmocka_unit_test (memory_over_time_has_the_peak_of_the_report),
  IN_FOLDER (a_pdf_embeds_its_font_and_has_the_same_bytes_again),
  cmocka_unit_test (wrong_files_and_kinds_are_refused),
  IN_FOLDER (every_figure_of_the_pages_is_what_its_command_draws),
};

WEFT_TESTS (tests, .seconds = 10)
