/* Schedules in PyTorch's CSV format: a written schedule is read back unchanged; text that is no
 * schedule is refused with its line, its cell, and what was found and wanted. */
#include "core/base/error.h"
#include "core/schedule/grid.h"
#include "tests/runner/command.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>

static weft_grid *
read_grid (const char *text)
{
  g_autoptr (GError) error = NULL;
  weft_grid *grid = weft_grid_read (text, "mine.csv", &error);

  if (!grid)
    fail_msg ("%s", error->message);
  return grid;
}

static void
assert_refused (const char *text, const char *message)
{
  g_autoptr (GError) error = NULL;

  assert_null (weft_grid_read (text, "mine.csv", &error));
  assert_string_equal (error->message, message);
  assert_int_equal (weft_error_exit_status (error), 2);
}

static void
assert_same (const weft_grid *a, const weft_grid *b)
{
  uint32_t n_places = a->n_ranks * a->n_chunks;

  assert_int_equal (a->n_ranks, b->n_ranks);
  assert_int_equal (a->n_chunks, b->n_chunks);
  assert_int_equal (a->n_micro, b->n_micro);
  assert_int_equal (a->n_stages, b->n_stages);
  assert_int_equal (a->n_copies, b->n_copies);
  assert_memory_equal (a->stage, b->stage, n_places * sizeof (*a->stage));
  assert_memory_equal (a->copy, b->copy, n_places * sizeof (*a->copy));
  assert_memory_equal (a->place, b->place, n_places * sizeof (*a->place));
  assert_memory_equal (a->copy_of, b->copy_of, a->n_micro * sizeof (*a->copy_of));
  for (uint32_t rank = 0; rank < a->n_ranks; rank++) {
    assert_int_equal (a->n_cell[rank], b->n_cell[rank]);
    assert_memory_equal (a->cell[rank], b->cell[rank], a->n_cell[rank] * sizeof (**a->cell));
  }
}

/* Writing a schedule as CSV and reading it back changes neither its cells nor its numbers of chunks
 * and model copies (DualPipe has two copies of the model). */
static void
every_schedule_reads_back_as_it_was (void **state)
{
  (void) state;
  for (int schedule = 0; weft_schedule_words[schedule]; schedule++)
    for (uint32_t p = 2; p <= 12; p += 2)
      for (uint32_t v = 0; v <= (weft_schedules[schedule].chunks == WEFT_CHUNKS_ANY ? 3 : 0); v++) {
        const struct weft_grid_spec spec = { schedule, p, v, 3 * p, 0, 0 };
        g_autoptr (weft_grid) grid = weft_grid_new (&spec, NULL);
        g_autofree char *csv = weft_grid_csv (grid);
        g_autoptr (weft_grid) again = read_grid (csv);
        assert_same (grid, again);
      }
}

static void
blank_cells_and_ends_of_lines_mean_nothing (void **state)
{
  (void) state;
  g_autoptr (weft_grid) plain = read_grid ("0F0,0B0\n1F0,1B0\n");
  g_autoptr (weft_grid) spaced = read_grid (" 0F0,,,0B0\r\n,1F0 , 1B0,\r\n\r\n");

  assert_same (plain, spaced);
}

/* PyTorch can write a "lowered" schedule, which also lists all-gathers, reduce-scatters, sends
 * and receives. These actions are ignored. */
static void
gathers_and_transfers_are_passed_over (void **state)
{
  (void) state;
  g_autoptr (weft_grid) plain = read_grid ("0F0,0I0,0W0\n1F0,1B0\n");
  g_autoptr (weft_grid) lowered =
    read_grid ("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD,0RESHARD\n"
               "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD");

  assert_same (plain, lowered);
}

static void
a_pair_is_two_cells_that_run_together (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = read_grid ("0F0,(0F1;0B0)OVERLAP_F_B,( 0F2 ; 0B1 )OVERLAP_F_B,0B2");
  g_autofree char *csv = weft_grid_csv (grid);

  assert_string_equal (csv, "0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,0B2\n");
  assert_true (grid->cell[0][1].paired && !grid->cell[0][2].paired && grid->cell[0][3].paired);
  assert_true (weft_grid_replay (grid, (struct weft_cell_times){ 1, 1, 1, 0 }, NULL) == 9);
  assert_true (weft_grid_replay (grid, (struct weft_cell_times){ 1, 1, 1, 2 }, NULL) == 7);
}

/* The CSV of a schedule does not state which stage is on which rank. Weft finds the stages of a
 * rank from the cells of this rank. */
static void
stages_are_where_their_cells_are (void **state)
{
  (void) state;
  g_autoptr (weft_grid) turned = read_grid ("1F0,1B0\n0F0,0B0\n");
  uint32_t rank = 1, chunk = 0;

  assert_int_equal (weft_grid_stage (turned, 0, 0), 1);
  assert_true (weft_grid_next (turned, &rank, &chunk));
  assert_int_equal (rank, 0);
}

static void
a_stage_on_two_ranks_is_two_copies (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = read_grid ("0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1\n");

  assert_int_equal (grid->n_copies, 2);
  assert_int_equal (grid->n_stages, 2);
  assert_int_equal (weft_grid_micro_copy (grid, 1), 1);
  assert_int_equal (weft_grid_copy (grid, 0, 1), 1);
  assert_int_equal (weft_grid_stage (grid, 0, 1), 1);
}

#define WANTED                                                                                     \
  ", wanted a stage, one of F, B, I and W, and a microbatch, as in 0F3, or (0F3;1B2)OVERLAP_F_B"

static void
a_cell_that_is_none_is_shown (void **state)
{
  (void) state;
  static const char *const cells[] = { "F0",
                                       "0F",
                                       "0X0",
                                       "0F0x",
                                       "-1F0",
                                       "0f0",
                                       "0FF0",
                                       "0 F 0",
                                       "0",
                                       "0F0;0B0",
                                       "(0F0;0B0)",
                                       "(0F0)OVERLAP_F_B",
                                       "(0F0;0B0;0W0)OVERLAP_F_B",
                                       "(0F0;0RESHARD)OVERLAP_F_B",
                                       "0F123456",
                                       "65535F0" };

  for (size_t i = 0; i < G_N_ELEMENTS (cells); i++) {
    g_autofree char *text = g_strdup_printf ("0F0,0B0\n1F0,,%s,1B0", cells[i]);
    g_autoptr (GError) error = NULL;
    assert_null (weft_grid_read (text, "mine.csv", &error));
    assert_true (g_str_has_prefix (error->message, "mine.csv:2: cell 3: found \""));
    assert_true (g_str_has_suffix (error->message, WANTED));
  }
  assert_refused ("0F0,0X0", "mine.csv:1: cell 2: found \"0X0\"" WANTED);
}

static void
texts_that_are_no_schedule_are_refused (void **state)
{
  (void) state;
  assert_refused (
      "", "mine.csv: found 0 cells for 0 stages and 0 microbatches, wanted every microbatch "
          "on every stage, both from 0");
  assert_refused ("9F60000,0B0",
                  "mine.csv: found 2 cells for 10 stages and 60001 microbatches, wanted "
                  "every microbatch on every stage, both from 0");
  assert_refused (
      "0F0,0B0,0F1,0B1\n2F0,2B0,2F1,2B1",
      "mine.csv: stage 1 is on 0 ranks, and stage 0 on 1 ranks: every stage must be on the same "
      "number of ranks");
  assert_refused (
      "0F0,0B0\n\n1F0,1B0",
      "mine.csv:2: rank 1 runs 0 stages, and rank 0 1 stages: the numbers must be equal");
  assert_refused (
      "0F0,2F0,2B0,0B0\n1F0,1B0",
      "mine.csv:2: rank 1 runs 1 stages, and rank 0 2 stages: the numbers must be equal");
  assert_refused (
      "0F0,0B0,0F1,0B1\n1F0,1B0,0F2,0B2",
      "mine.csv: stage 1 is on 1 ranks, and stage 0 on 2 ranks: every stage must be on the same "
      "number of ranks");
  assert_refused ("0F0,0B0,1F0,1B0,1F2,1B2\n1F1,1B1,0F1,0B1\n",
                  "mine.csv: 0F2 is missing, wanted once on rank 0");
}

static void
a_schedule_that_cannot_run_is_refused (void **state)
{
  (void) state;
  assert_refused ("0F0,0B0\n1F0,1I0", "mine.csv: 1W0 is missing, wanted once on rank 1");
  assert_refused ("0B0,0F0",
                  "mine.csv: 0B0 never starts: it waits for 0F0, which rank 0 runs after 0B0");
  assert_refused ("(0F0;0B0)OVERLAP_F_B",
                  "mine.csv: 0F0 and 0B0 of rank 0 never start together: one waits for the other");
  assert_refused ("0F1,(0B1;0F0)OVERLAP_F_B,0B0",
                  "mine.csv: 0B1 is in a pair on rank 0, wanted a forward and a backward");
  assert_refused ("0F0,1F1,1B1,0B0,0F1\n0F1,1F0,1B0,0B1",
                  "mine.csv: rank 0 runs 0F1, but microbatch 1 belongs to the other copy of the "
                  "model");
  assert_refused (
      "0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1,0F0",
      "mine.csv:2: another rank also runs stage 0 for microbatches that start on the same rank as "
      "microbatch 0, wanted one rank");
}

/* Returns CSV in which some bytes are changed, dropped or doubled. Such text must be refused with a
 * message, or be a schedule that is read back unchanged. The caller frees the text. */
static char *
damaged (GRand *random, const char *text)
{
  static const char letters[] = "0123456789FBIW,;()\n OVERLAP_F_B\xff";
  GString *out = g_string_new (text);

  for (int n = g_rand_int_range (random, 1, 4); n > 0 && out->len > 1; n--) {
    gsize at = g_rand_int_range (random, 0, out->len);
    char letter = letters[g_rand_int_range (random, 0, sizeof (letters) - 1)];
    switch (g_rand_int_range (random, 0, 3)) {
    case 0:
      out->str[at] = letter;
      break;
    case 1:
      g_string_erase (out, at, 1);
      break;
    default:
      g_string_insert_c (out, at, letter);
    }
  }
  return g_string_free (out, FALSE);
}

static void
damaged_texts_are_read_or_refused (void **state)
{
  (void) state;
  GRand *random = g_rand_new_with_seed (20);
  uint32_t n_good = 0;

  for (int round = 0; round < 6000; round++) {
    uint32_t p = 2 * g_rand_int_range (random, 1, 4);
    const struct weft_grid_spec spec = { round % (WEFT_N_SCHEDULE), p, 0, 2 * p, 0, 0 };
    g_autoptr (weft_grid) grid = weft_grid_new (&spec, NULL);
    g_autofree char *csv = weft_grid_csv (grid), *text = damaged (random, csv);
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_grid) other = weft_grid_read (text, "mine.csv", &error);
    if (!other) {
      assert_true (g_str_has_prefix (error->message, "mine.csv"));
      assert_true (g_utf8_validate (error->message, -1, NULL));
      continue;
    }
    g_autofree char *printed = weft_grid_csv (other);
    g_autoptr (weft_grid) again = read_grid (printed);
    assert_same (other, again);
    n_good++;
  }
  assert_in_range (n_good, 20, 4000); /* some of the damaged texts are still valid schedules */
  g_rand_free (random);
}

/* ------------------------------------------------------------------ as a knob */

#define JOB                                                                                        \
  "--schedule --model gpt2-nano --topology cpu --gpus 2 --pipeline-model-parallel-size 2 "

static void
a_file_is_the_schedule_of_a_job (void **state)
{
  (void) state;
  g_autofree char *path = NULL;
  int file = g_file_open_tmp ("schedule-XXXXXX.csv", &path, NULL);

  assert_true (g_close (file, NULL));
  assert_true (g_file_set_contents (path, "0F0,0F1,,0B1,0B0\n,1F0,1F1,1B1,1B0\n", -1, NULL));
  g_autofree char *good = g_strdup_printf (
    "program " JOB "--csv --global-batch-size 2 --pipeline-schedule-file %s", path);
  struct answer answer = weft_test_answer (good);
  assert_int_equal (answer.status, 0);
  assert_string_equal (answer.out, "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n");
  weft_test_answer_free (&answer);

  g_autofree char *more = g_strdup_printf (
    "program " JOB "--csv --global-batch-size 4 --pipeline-schedule-file %s", path);
  weft_test_refused (more, 2, "found 2 microbatches, wanted 4");
  assert_int_equal (remove (path), 0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_schedule_reads_back_as_it_was),
  cmocka_unit_test (blank_cells_and_ends_of_lines_mean_nothing),
  cmocka_unit_test (gathers_and_transfers_are_passed_over),
  cmocka_unit_test (a_pair_is_two_cells_that_run_together),
  cmocka_unit_test (stages_are_where_their_cells_are),
  cmocka_unit_test (a_stage_on_two_ranks_is_two_copies),
  cmocka_unit_test (a_cell_that_is_none_is_shown),
  cmocka_unit_test (texts_that_are_no_schedule_are_refused),
  cmocka_unit_test (a_schedule_that_cannot_run_is_refused),
  cmocka_unit_test (damaged_texts_are_read_or_refused),
  cmocka_unit_test (a_file_is_the_schedule_of_a_job),
};

WEFT_TESTS (tests)
