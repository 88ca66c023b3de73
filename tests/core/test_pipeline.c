/* Pipeline schedules: the rows of cells, exact step times, errors of damaged grids, and
 * pictures. Expected rows and bubbles are those of GPipe (Huang et al. 2019), 1F1B and
 * interleaved 1F1B (Narayanan et al. 2021) and ZB-H1 (Qi et al. 2023). */
#include "core/base/error.h"
#include "core/schedule/order.h"
#include "tests/runner/runner.h"
#include <stdio.h>
#include <string.h>

static uint8_t
phase_of (char letter)
{
  for (int phase = 0; phase < WEFT_N_PHASE; phase++)
    if (weft_phase_words[phase][0] == letter)
      return phase;
  fail_msg ("no phase %c", letter);
  return 0;
}

static weft_grid *
grid_of (enum weft_schedule schedule, uint32_t n_ranks, uint32_t n_micro)
{
  const struct weft_grid_spec spec = { schedule, n_ranks, 1, n_micro, 0, 0 };
  g_autoptr (GError) error = NULL;
  weft_grid *grid = weft_grid_new (&spec, &error);

  if (!grid)
    fail_msg ("%s", error->message);
  return grid;
}

/* Times of the cells of a schedule: a forward, and a backward, of which the input gradient and the
 * weight gradient take half each. */
static struct weft_cell_times
times (double forward, double backward)
{
  return (struct weft_cell_times){ forward, backward / 2, backward / 2 };
}

/* Parses a grid, valid or not: one line per rank, cells separated by blanks. */
static weft_grid *
grid_read (const char *text, uint32_t n_chunks, uint32_t n_micro)
{
  g_auto (GStrv) line = g_strsplit (text, "\n", -1);
  weft_grid *grid = weft_grid_blank (g_strv_length (line), n_chunks, n_micro, WEFT_GRID_LOOP);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    g_auto (GStrv) word = g_strsplit (line[rank], " ", -1);
    grid->n_cell[rank] = g_strv_length (word);
    grid->cell[rank] = g_new0 (struct weft_cell, grid->n_cell[rank]);
    for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
      unsigned stage, micro;
      char letter;
      assert_int_equal (sscanf (word[i], "%u%c%u", &stage, &letter, &micro), 3);
      assert_int_equal (stage % grid->n_ranks, rank);
      grid->cell[rank][i] = (struct weft_cell){ phase_of (letter), stage / grid->n_ranks, micro };
    }
  }
  return grid;
}

static void
assert_good (const weft_grid *grid)
{
  g_autoptr (GError) error = NULL;

  if (!weft_grid_check (grid, &error))
    fail_msg ("%s", error->message);
}

/* Asserts that the grid is refused, and that `message` is the whole error. */
static void
assert_damaged (const weft_grid *grid, const char *message)
{
  g_autoptr (GError) error = NULL;

  assert_false (weft_grid_check (grid, &error));
  assert_string_equal (error->message, message);
  assert_int_equal (weft_error_exit_status (error), 2);
}

static void
assert_wrong (const char *text, uint32_t n_micro, const char *message)
{
  g_autoptr (weft_grid) grid = grid_read (text, 1, n_micro);

  assert_damaged (grid, message);
}

static void
assert_csv (const weft_grid *grid, const char *wanted)
{
  g_autofree char *csv = weft_grid_csv (grid);

  assert_string_equal (csv, wanted);
}

static void
rows_of_1f1b_on_four_ranks_with_eight_microbatches (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_of (WEFT_SCHEDULE_1F1B, 4, 8);

  assert_csv (grid, "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7\n"
                    "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7\n"
                    "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7\n"
                    "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7\n");
  assert_good (grid);
}

static void
gpipe_runs_every_forward_before_the_first_backward (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_of (WEFT_SCHEDULE_GPIPE, 3, 4);

  assert_csv (grid, "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n"
                    "1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n"
                    "2F0,2F1,2F2,2F3,2B0,2B1,2B2,2B3\n");
  assert_good (grid);
}

static void
one_rank_alternates (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_of (WEFT_SCHEDULE_1F1B, 1, 3);

  assert_csv (grid, "0F0,0B0,0F1,0B1,0F2,0B2\n");
  assert_good (grid);
  assert_true (weft_grid_replay (grid, times (1, 2), NULL) == 9);
  assert_int_equal (weft_grid_in_flight (grid, 0), 1);
}

static void
fewer_microbatches_than_ranks_still_make_a_schedule (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_of (WEFT_SCHEDULE_1F1B, 4, 2);

  assert_csv (grid, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n3F0,3B0,3F1,3B1\n");
  assert_good (grid);
  assert_true (weft_grid_replay (grid, times (1, 2), NULL) == (2 + 3) * 3);
}

static double **
start_new (const weft_grid *grid)
{
  double **start = g_new (double *, grid->n_ranks);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    start[rank] = g_new (double, grid->n_cell[rank]);
  return start;
}

static void
start_free (const weft_grid *grid, double **start)
{
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    g_free (start[rank]);
  g_free (start);
}

/* Two stages in 1F1B, computed by hand: rank 0 runs F0 F1 B0 B1, rank 1 runs F0 B0 F1 B1; a
 * forward takes 1, a backward 2. */
static void
a_cell_starts_as_soon_as_what_it_needs_has_ended (void **state)
{
  (void) state;
  static const double wanted[2][4] = { { 0, 1, 4, 7 }, { 1, 2, 4, 5 } };
  g_autoptr (weft_grid) grid = grid_of (WEFT_SCHEDULE_1F1B, 2, 2);
  double **start = start_new (grid);

  assert_true (weft_grid_replay (grid, times (1, 2), start) == 9);
  for (uint32_t rank = 0; rank < 2; rank++)
    assert_memory_equal (start[rank], wanted[rank], sizeof (wanted[rank]));
  start_free (grid, start);
}

/* Returns the time at which a cell ends. Only for grids with one chunk per rank and whole backward
 * passes. */
static double
end_of (const weft_grid *grid, double **start, struct weft_cell cell, uint32_t stage)
{
  static const double length[WEFT_N_PHASE] = {
    [WEFT_PHASE_FORWARD] = 3, [WEFT_PHASE_BACKWARD] = 5
  };

  for (uint32_t i = 0; i < grid->n_cell[stage]; i++)
    if (memcmp (&grid->cell[stage][i], &cell, sizeof (cell)) == 0)
      return start[stage][i] + length[cell.phase];
  fail_msg ("no such cell");
  return 0;
}

/* Checks that a cell starts as soon as all its predecessors have ended: the previous cell of the
 * rank; for F, the forward of the previous stage; for B, its own forward and the backward of the
 * next stage. */
static void
assert_tight (const weft_grid *grid, double **start, uint32_t rank, uint32_t i)
{
  struct weft_cell cell = grid->cell[rank][i];
  struct weft_cell forward = { WEFT_PHASE_FORWARD, 0, cell.micro };
  double ready = i ? end_of (grid, start, grid->cell[rank][i - 1], rank) : 0;

  if (cell.phase == WEFT_PHASE_FORWARD && rank > 0)
    ready = MAX (ready, end_of (grid, start, cell, rank - 1));
  if (cell.phase == WEFT_PHASE_BACKWARD)
    ready = MAX (ready, end_of (grid, start, forward, rank));
  if (cell.phase == WEFT_PHASE_BACKWARD && rank + 1 < grid->n_ranks)
    ready = MAX (ready, end_of (grid, start, cell, rank + 1));
  assert_true (start[rank][i] == ready);
}

static void
every_start_is_the_earliest_one (void **state)
{
  (void) state;
  for (uint32_t schedule = 0; schedule < WEFT_N_SCHEDULE; schedule++) {
    if (weft_schedules[schedule].in_flight == WEFT_IN_FLIGHT_UNKNOWN)
      continue;
    g_autoptr (weft_grid) grid = grid_of (schedule, 5, 11);
    double **start = start_new (grid);
    assert_true (weft_grid_replay (grid, times (3, 5), start) == (11 + 4) * 8);
    for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
      for (uint32_t i = 0; i < grid->n_cell[rank]; i++)
        assert_tight (grid, start, rank, i);
    start_free (grid, start);
  }
}

/* GPipe and 1F1B with equal stages: makespan (m + p - 1)(tF + tB), and so a bubble of (p - 1) /
 * m. */
static void
equal_stages_idle_for_one_round_trip_of_the_pipeline (void **state)
{
  (void) state;
  GRand *random = g_rand_new_with_seed (1109);

  for (int round = 0; round < 300; round++) {
    uint32_t p = g_rand_int_range (random, 1, 25), m = g_rand_int_range (random, 1, 70);
    double forward = g_rand_int_range (random, 1, 9), backward = g_rand_int_range (random, 1, 9);
    for (uint32_t schedule = 0; schedule < WEFT_N_SCHEDULE; schedule++) {
      if (weft_schedules[schedule].in_flight == WEFT_IN_FLIGHT_UNKNOWN)
        continue;
      g_autoptr (weft_grid) grid = grid_of (schedule, p, m);
      assert_good (grid);
      assert_true (weft_grid_replay (grid, times (forward, backward), NULL) ==
                   (m + p - 1) * (forward + backward));
    }
  }
  g_rand_free (random);
}

static void
a_rank_keeps_one_microbatch_for_each_stage_from_it_to_the_end (void **state)
{
  (void) state;
  GRand *random = g_rand_new_with_seed (76);

  for (int round = 0; round < 200; round++) {
    uint32_t p = g_rand_int_range (random, 1, 25), m = g_rand_int_range (random, 1, 70);
    g_autoptr (weft_grid) early = grid_of (WEFT_SCHEDULE_1F1B, p, m);
    g_autoptr (weft_grid) late = grid_of (WEFT_SCHEDULE_GPIPE, p, m);
    for (uint32_t rank = 0; rank < p; rank++) {
      assert_int_equal (weft_grid_in_flight (early, rank), MIN (m, p - rank));
      assert_int_equal (weft_grid_in_flight (late, rank), m);
    }
  }
  g_rand_free (random);
}

static void
a_pipeline_of_64_ranks_and_4096_microbatches_is_checked_whole (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_of (WEFT_SCHEDULE_1F1B, 64, 4096);

  assert_good (grid);
  assert_true (weft_grid_replay (grid, times (1, 2), NULL) == (4096 + 63) * 3);
}

/* Interleaved 1F1B: two ranks with two chunks each, in groups of two microbatches. A whole stage
 * takes 1 in forward and 2 in backward, so a chunk takes 1/2 and 1. The bubble is half of the
 * bubble without chunks. */
static void
chunks_of_one_rank_are_stages_of_their_own (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid =
      grid_read ("0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3\n"
                 "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
                 2, 4);

  assert_good (grid);
  assert_true (weft_grid_replay (grid, times (0.5, 1), NULL) == 4 * 3 + 3 / 2.0);
  assert_int_equal (weft_grid_in_flight (grid, 0), 5);
  assert_int_equal (weft_grid_in_flight (grid, 1), 3);
}

static void
the_last_stage_of_a_chunk_waits_for_the_gradient_of_the_next_chunk (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_read ("0F0 2F0 2B0 0B0\n1F0 3F0 1B0 3B0", 2, 1);

  assert_damaged (grid, "2B0 never starts: it waits for 3B0, which rank 1 runs after 1B0");
}

/* ZB-H1 on four ranks with eight microbatches. With F, I and W of 1 each: 24 slots of work, and
 * a bubble of (p - 1)(tF + tI - tW) = 3. */
static const char *const zero_bubble = "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 "
                                       "0F6 0I3 0W3 0F7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7\n"
                                       "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 "
                                       "1W2 1F6 1I4 1W3 1F7 1I5 1W4 1I6 1W5 1I7 1W6 1W7\n"
                                       "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 "
                                       "2I4 2W2 2F6 2I5 2W3 2F7 2I6 2W4 2I7 2W5 2W6 2W7\n"
                                       "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 "
                                       "3F5 3I5 3W2 3F6 3I6 3W3 3F7 3I7 3W4 3W5 3W6 3W7";

static void
weight_gradients_fill_the_bubble (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_read (zero_bubble, 1, 8);

  assert_good (grid);
  assert_true (weft_grid_replay (grid, times (1, 2), NULL) == 27);
  for (uint32_t rank = 0; rank < 4; rank++)
    assert_true (weft_grid_in_flight (grid, rank) == 4 - rank / 2.0);
}

static void
a_backward_of_one_stage_may_be_split_and_that_of_the_next_whole (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_read ("0F0 0B0\n1F0 1I0 1W0", 1, 1);

  assert_good (grid);
  /* The backward pass B of stage 0 waits for the input gradient 1I0 of stage 1, but not for the
   * weight gradient 1W0. */
  assert_true (weft_grid_replay (grid, times (1, 2), NULL) == 5);
}

static void
a_missing_cell_is_named (void **state)
{
  (void) state;
  assert_wrong ("0F0 0F1 0B0 0B1\n1F0 1B0 1F1", 2, "1B1 is missing, wanted once on rank 1");
  assert_wrong ("0F0 0B0 0B1\n1F0 1B0 1F1 1B1", 2, "0F1 is missing, wanted once on rank 0");
  assert_wrong ("0F0 0I0 0W0\n1F0 1I0", 1, "1W0 is missing, wanted once on rank 1");
  assert_wrong ("0F0 0W0\n1F0 1I0 1W0", 1, "0I0 is missing, wanted once on rank 0");
}

static void
a_cell_done_twice_is_named (void **state)
{
  (void) state;
  assert_wrong ("0F0 0B0\n1F0 1F0 1B0", 1, "rank 1 does 1F0 twice, wanted once");
  assert_wrong ("0F0 0B0 0W0\n1F0 1B0", 1, "rank 0 does 0W0 twice, wanted once");
}

static void
a_cell_that_is_none_is_named (void **state)
{
  (void) state;
  assert_wrong ("0F0 0B0 0F1", 1, "rank 0 runs 0F1, wanted 1 stages and 1 microbatches, from 0");
  assert_wrong ("0F0 2F0 0B0\n1F0 1B0", 1,
                "cell 1 of rank 0 is of chunk 1, wanted 1 chunks, from 0");
  assert_wrong ("0F0 0R0 0B0", 1, "cell 1 of rank 0 is neither F, B, I nor W");
}

static void
a_backward_before_its_forward_never_starts (void **state)
{
  (void) state;
  assert_wrong ("0B0 0F0", 1, "0B0 never starts: it waits for 0F0, which rank 0 runs after 0B0");
  assert_wrong ("0F0 0W0 0I0", 1,
                "0W0 never starts: it waits for 0I0, which rank 0 runs after 0W0");
}

/* Ranks 0 and 1 wait for each other, and rank 2 waits for them. The error message must name a cell
 * of rank 0 or 1. */
static void
a_circle_of_waits_names_one_of_its_own (void **state)
{
  (void) state;
  assert_wrong ("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1\n2F0 2B0 2F1 2B1", 2,
                "0B0 never starts: it waits for 1B0, which rank 1 runs after 1F1");
}

/* Rank 0 runs 0B1 before 0B0, and waits for ranks 1 and 2, which wait for each other. The error
 * message must name a cell of rank 1 or 2, not of rank 0. */
static void
a_rank_that_waits_for_a_circle_is_not_blamed (void **state)
{
  (void) state;
  assert_wrong ("0F0 0F1 0B1 0B0\n1F0 1B0 1F1 1B1\n2F0 2F1 2B0 2B1", 2,
                "2F1 never starts: it waits for 1F1, which rank 1 runs after 1B0");
}

/* Three ranks with two chunks; rank 1 runs 1F0 after 4F0, which is the wrong order. The cells
 * 3F0, 2F0, 1F0 and 4F0 wait for each other in a cycle. The message names 2F0, because 2F0 waits
 * for 1F0, the cell that its rank runs too late. */
static void
the_named_wait_is_where_the_order_is_wrong (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_read ("0F0 3F0 3B0 0B0\n"
                                          "4F0 1F0 4B0 1B0\n"
                                          "2F0 5F0 5B0 2B0",
                                          2, 1);

  assert_damaged (grid, "2F0 never starts: it waits for 1F0, which rank 1 runs after 4F0");
}

static void
remove_cell (weft_grid *grid, uint32_t rank, uint32_t i)
{
  struct weft_cell *row = grid->cell[rank];

  grid->n_cell[rank]--;
  memmove (&row[i], &row[i + 1], (grid->n_cell[rank] - i) * sizeof (*row));
}

static void
any_cell_may_not_be_dropped_or_doubled (void **state)
{
  (void) state;
  GRand *random = g_rand_new_with_seed (5);

  for (int round = 0; round < 300; round++) {
    uint32_t p = g_rand_int_range (random, 1, 9), m = g_rand_int_range (random, 1, 20);
    g_autoptr (weft_grid) grid = grid_of (round % 2, p, m);
    uint32_t rank = g_rand_int_range (random, 0, p);
    uint32_t i = g_rand_int_range (random, 0, 2 * m), j = g_rand_int_range (random, 0, 2 * m);
    g_autofree char *cell = weft_cell_print (grid, rank, &grid->cell[rank][i]);
    g_autofree char *missing =
        g_strdup_printf ("%s is missing, wanted once on rank %u", cell, rank);
    g_autofree char *twice = g_strdup_printf ("rank %u does %s twice, wanted once", rank, cell);

    if (i != j) {
      struct weft_cell other = grid->cell[rank][j];
      grid->cell[rank][j] = grid->cell[rank][i];
      assert_damaged (grid, twice);
      grid->cell[rank][j] = other;
    }
    remove_cell (grid, rank, i);
    assert_damaged (grid, missing);
  }
  g_rand_free (random);
}

/* Whether all cells of a grid can run: sweeps over the ranks and starts every cell whose
 * predecessors have run, until no further cell can start. weft_grid_check() must agree for every
 * order of cells. */
static gboolean
sweeps_through (const weft_grid *grid)
{
  g_autofree uint32_t *next = g_new0 (uint32_t, grid->n_ranks);
  g_autofree uint8_t *done = g_new0 (uint8_t, (size_t) 2 * grid->n_ranks * grid->n_micro);
  uint32_t p = grid->n_ranks, m = grid->n_micro, left = 2 * p * m;

  for (gboolean moved = TRUE; moved;) {
    moved = FALSE;
    for (uint32_t r = 0; r < p; r++) {
      if (next[r] == grid->n_cell[r])
        continue;
      struct weft_cell c = grid->cell[r][next[r]];
      uint8_t *f = done + c.micro, *b = f + (size_t) p * m;
      gboolean ready = c.phase == WEFT_PHASE_FORWARD ? r == 0 || f[(r - 1) * m]
                                                     : f[r * m] && (r + 1 == p || b[(r + 1) * m]);
      if (!ready)
        continue;
      (c.phase == WEFT_PHASE_FORWARD ? f : b)[r * m] = 1;
      next[r]++;
      left--;
      moved = TRUE;
    }
  }
  return left == 0;
}

static void
shuffled_grids_pass_exactly_when_they_can_run (void **state)
{
  (void) state;
  GRand *random = g_rand_new_with_seed (31);
  uint32_t n_good = 0;

  for (int round = 0; round < 2000; round++) {
    uint32_t p = g_rand_int_range (random, 1, 6), m = g_rand_int_range (random, 1, 6);
    g_autoptr (weft_grid) grid = grid_of (round % 2, p, m);
    g_autoptr (GError) error = NULL;
    for (int swaps = g_rand_int_range (random, 1, 4); swaps > 0; swaps--) {
      struct weft_cell *row = grid->cell[g_rand_int_range (random, 0, p)];
      uint32_t i = g_rand_int_range (random, 1, 2 * m);
      struct weft_cell cell = row[i];
      row[i] = row[i - 1];
      row[i - 1] = cell;
    }
    gboolean good = weft_grid_check (grid, &error);
    assert_int_equal (good, sweeps_through (grid));
    assert_true (good || strstr (error->message, " never starts: it waits for "));
    n_good += good;
  }
  assert_in_range (n_good, 200, 1800); /* some random grids can run to the end, and some cannot */
  g_rand_free (random);
}

static void
the_picture_shows_one_column_a_slot (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_of (WEFT_SCHEDULE_1F1B, 4, 8);
  g_autofree char *picture = weft_grid_ascii (grid, 80);

  assert_string_equal (picture, "0 0123......aa4bb5cc6dd7ee.ff.gg.hh\n"
                                "1 .012....aa3bb4cc5dd6ee7ff.gg.hh..\n"
                                "2 ..01..aa2bb3cc4dd5ee6ff7gg.hh....\n"
                                "3 ...0aa1bb2cc3dd4ee5ff6gg7hh......\n");
}

static void
the_picture_of_a_split_backward_has_capitals (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_read (zero_bubble, 1, 8);
  g_autofree char *picture = weft_grid_ascii (grid, 29);

  assert_string_equal (picture, "0 0123...aA4bB5cC6dD7eEfFgGhH\n"
                                "1 .012..a3bA4cB5dC6eD7fEgFhGH\n"
                                "2 ..01.a2b3cA4dB5eC6fD7gEhFGH\n"
                                "3 ...0a1b2c3dA4eB5fC6gD7hEFGH\n");
}

/* The text picture of a schedule has fewer columns than slots if the terminal is narrow. Here a
 * column stands for six slots, and shows the cell that runs in the middle of the six. */
static void
a_narrow_picture_samples_the_time (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = grid_of (WEFT_SCHEDULE_GPIPE, 2, 13);
  g_autofree char *picture = weft_grid_ascii (grid, 9);

  assert_string_equal (picture, "0 39.cfib\n1 28adgjc\n");
}

static void
pictures_fit_their_width (void **state)
{
  (void) state;
  GRand *random = g_rand_new_with_seed (80);

  for (int round = 0; round < 200; round++) {
    uint32_t p = g_rand_int_range (random, 1, 30), m = g_rand_int_range (random, 1, 200);
    uint32_t width = g_rand_int_range (random, 4, 120);
    g_autoptr (weft_grid) grid = grid_of (round % 2, p, m);
    g_autofree char *picture = weft_grid_ascii (grid, width);
    g_auto (GStrv) line = g_strsplit (picture, "\n", -1);
    size_t label = p > 10 ? 3 : 2, slots = (m + p - 1) * 3;
    assert_int_equal (g_strv_length (line), p + 1);
    for (uint32_t rank = 0; rank < p; rank++)
      assert_int_equal (strlen (line[rank]), MIN (width, label + slots));
  }
  g_rand_free (random);
}

/* In the text picture, a rank with two chunks has a row for each chunk. The row is blank while the
 * rank runs the other chunk. */
static void
the_picture_has_a_row_for_each_stage_of_a_rank (void **state)
{
  (void) state;
  const struct weft_grid_spec spec = { WEFT_SCHEDULE_1F1B, 2, 2, 2, 0, 0 };
  g_autoptr (weft_grid) grid = weft_grid_new (&spec, NULL);
  g_autofree char *picture = weft_grid_ascii (grid, 80);

  assert_string_equal (picture, "0:0 01  ..  .  aabb\n"
                                "0:2   01..aa.bb    \n"
                                "1:1 .01      aabb..\n"
                                "1:3 .  0aa1bb    ..\n");
}

/* Two stages in 1F1B, the second ten times as slow as the first. If transfers are fast, the
 * second stage idles only until microbatch 0 arrives, and the step ends when the first stage has
 * run the backward of the last microbatch. */
static void
uneven_stages_wait_for_transfers (void **state)
{
  struct weft_grid_spec spec = { .schedule = WEFT_SCHEDULE_1F1B, .n_ranks = 2, .n_micro = 3 };
  g_autoptr (weft_grid) grid = weft_grid_new (&spec, NULL);
  const struct weft_cell_times times[] = { { .forward = 1, .input = 1.5, .weight = 0.5 },
                                           { .forward = 10, .input = 20 } };

  (void) state;
  assert_non_null (grid);
  assert_true (weft_grid_replay_uneven (grid, times, 0, NULL) == 1 + 3 * 30 + 2);
  assert_true (weft_grid_replay_uneven (grid, times, 0.5, NULL) == 1 + 0.5 + 3 * 30 + 0.5 + 2);
  /* A transfer takes 100. In 1F1B the first stage runs microbatch 2 only after the backward of
   * microbatch 0, so the step consists of two round trips: that of microbatch 0 and that of
   * microbatch 2. */
  /* Expected step time, in two parts: the round trip of microbatch 0 (first line) and that of
   * microbatch 2 (second line). */
  assert_true (weft_grid_replay_uneven (grid, times, 100, NULL) == 1 + 100 + 30 + 100 + 2
                                                                 + 1 + 100 + 30 + 100 + 2);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (uneven_stages_wait_for_transfers),
  cmocka_unit_test (rows_of_1f1b_on_four_ranks_with_eight_microbatches),
  cmocka_unit_test (gpipe_runs_every_forward_before_the_first_backward),
  cmocka_unit_test (one_rank_alternates),
  cmocka_unit_test (fewer_microbatches_than_ranks_still_make_a_schedule),
  cmocka_unit_test (a_cell_starts_as_soon_as_what_it_needs_has_ended),
  cmocka_unit_test (every_start_is_the_earliest_one),
  cmocka_unit_test (equal_stages_idle_for_one_round_trip_of_the_pipeline),
  cmocka_unit_test (a_rank_keeps_one_microbatch_for_each_stage_from_it_to_the_end),
  cmocka_unit_test (a_pipeline_of_64_ranks_and_4096_microbatches_is_checked_whole),
  cmocka_unit_test (chunks_of_one_rank_are_stages_of_their_own),
  cmocka_unit_test (the_last_stage_of_a_chunk_waits_for_the_gradient_of_the_next_chunk),
  cmocka_unit_test (weight_gradients_fill_the_bubble),
  cmocka_unit_test (a_backward_of_one_stage_may_be_split_and_that_of_the_next_whole),
  cmocka_unit_test (a_missing_cell_is_named),
  cmocka_unit_test (a_cell_done_twice_is_named),
  cmocka_unit_test (a_cell_that_is_none_is_named),
  cmocka_unit_test (a_backward_before_its_forward_never_starts),
  cmocka_unit_test (a_circle_of_waits_names_one_of_its_own),
  cmocka_unit_test (a_rank_that_waits_for_a_circle_is_not_blamed),
  cmocka_unit_test (the_named_wait_is_where_the_order_is_wrong),
  cmocka_unit_test (any_cell_may_not_be_dropped_or_doubled),
  cmocka_unit_test (shuffled_grids_pass_exactly_when_they_can_run),
  cmocka_unit_test (the_picture_shows_one_column_a_slot),
  cmocka_unit_test (the_picture_of_a_split_backward_has_capitals),
  cmocka_unit_test (a_narrow_picture_samples_the_time),
  cmocka_unit_test (pictures_fit_their_width),
  cmocka_unit_test (the_picture_has_a_row_for_each_stage_of_a_rank),
};

WEFT_TESTS (tests)
