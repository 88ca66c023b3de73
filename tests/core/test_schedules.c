/* Every schedule against orders written by hand or computed by a second, independent rule, and
 * against closed formulas for its bubble and for the activations that a rank keeps. */
#include "core/base/error.h"
#include "tests/made/schedules.h"
#include "tests/runner/runner.h"
#include <stdio.h>
#include <string.h>

static weft_grid *
interleaved (uint32_t p, uint32_t v, uint32_t m, uint32_t group)
{
  return schedule_made (&(struct weft_grid_spec){
      .schedule = WEFT_SCHEDULE_1F1B, .n_ranks = p, .n_chunks = v, .n_micro = m, .group = group });
}

/* The cells of a rank as papers write them: phase, microbatch and, with several chunks, a letter
 * for the chunk. The caller frees the text. */
static char *
row_text (const weft_grid *grid, uint32_t rank)
{
  GString *text = g_string_new (NULL);

  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    const struct weft_cell *cell = &grid->cell[rank][i];
    g_string_append_printf (text, "%s%s%u", i ? " " : "", weft_phase_words[cell->phase],
                            cell->micro);
    if (grid->n_chunks > 1)
      g_string_append_c (text, 'a' + cell->chunk);
  }
  return g_string_free (text, FALSE);
}

static void
assert_row (const weft_grid *grid, uint32_t rank, const char *wanted)
{
  g_autofree char *text = row_text (grid, rank);

  assert_string_equal (text, wanted);
}

/* Makespan of a schedule if the forward of a whole stage takes 1 and its backward 2; a chunk takes
 * its share. */
static double
makespan_of_chunks (const weft_grid *grid)
{
  double chunk = 1.0 / grid->n_chunks;

  return weft_grid_replay (grid, (struct weft_cell_times){ chunk, chunk, chunk }, NULL);
}

static void
two_ranks_of_two_chunks_in_groups_of_two (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = interleaved (2, 2, 4, 2);

  assert_row (grid, 0, "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a");
  assert_row (grid, 1, "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a");
  assert_true (makespan_of_chunks (grid) == 13.5);
  assert_true (weft_grid_in_flight (grid, 0) == 5);
  assert_true (weft_grid_in_flight (grid, 1) == 3);
}

static void
two_ranks_of_two_chunks_whose_last_group_is_short (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = interleaved (2, 2, 5, 3);

  assert_row (grid, 0,
              "F0a F1a F2a F0b F1b F2b B0b F3a B1b F4a B2b F3b B0a F4b B1a B2a B3b B4b B3a B4a");
  assert_row (grid, 1,
              "F0a F1a F2a F0b B0b F1b B1b F2b B2b F3a B0a F4a B1a F3b B2a F4b B3b B4b B3a B4a");
  assert_true (makespan_of_chunks (grid) == 16.5);
  assert_true (weft_grid_in_flight (grid, 0) == 6);
  assert_true (weft_grid_in_flight (grid, 1) == 4);
}

static void
four_ranks_of_two_chunks_in_groups_of_four (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = interleaved (4, 2, 8, 4);

  assert_row (grid, 3,
              "F0a F1a F2a F3a F0b B0b F1b B1b F2b B2b F3b B3b F4a B0a F5a B1a F6a B2a F7a B3a "
              "F4b B4b F5b B5b F6b B6b F7b B7b B4a B5a B6a B7a");
  assert_true (makespan_of_chunks (grid) == 28.5);
  for (uint32_t rank = 0; rank < 4; rank++)
    assert_true (weft_grid_in_flight (grid, rank) == 11 - 2 * rank);
}

/* ------------------------------------------------------------------ a second rule for each
 * order */

/* The cells that a rank is expected to run, in order. expect() compares one cell after the other
 * with the grid. */
struct wanted {
  const weft_grid *grid;
  uint32_t rank, n;
};

static void
expect (struct wanted *w, enum weft_phase phase, uint32_t chunk, uint32_t micro)
{
  assert_true (w->n < w->grid->n_cell[w->rank]);
  const struct weft_cell *cell = &w->grid->cell[w->rank][w->n++];
  if (cell->phase != phase || cell->chunk != chunk || cell->micro != micro)
    fail_msg ("cell %u of rank %u is %s%u of chunk %u, wanted %s%u of chunk %u", w->n - 1, w->rank,
              weft_phase_words[cell->phase], cell->micro, cell->chunk, weft_phase_words[phase],
              micro, chunk);
}

static void
expect_end (const struct wanted *w)
{
  assert_int_equal (w->n, w->grid->n_cell[w->rank]);
}

/* One entry of the forward order of a rank that holds several model chunks: microbatch and
 * chunk. */
struct turn {
  uint32_t micro, chunk;
};

static struct turn *
turns (uint32_t v, uint32_t m, uint32_t group)
{
  struct turn *turn = g_new (struct turn, (size_t) v * m);
  uint32_t n = 0;

  for (uint32_t first = 0; first < m; first += group)
    for (uint32_t chunk = 0; chunk < v; chunk++)
      for (uint32_t micro = first; micro < first + group && micro < m; micro++)
        turn[n++] = (struct turn){ micro, chunk };
  return turn;
}

static void
check_interleaved (uint32_t p, uint32_t v, uint32_t m, uint32_t group)
{
  g_autoptr (weft_grid) grid = interleaved (p, v, m, group);
  g_autofree struct turn *turn = turns (v, m, group);

  for (uint32_t rank = 0; rank < p; rank++) {
    uint32_t warm = v == 1 ? p - 1 - rank : 2 * (p - 1 - rank) + (v - 1) * group, done = 0;
    struct wanted w = { grid, rank, 0 };
    warm = MIN (warm, m * v);
    for (uint32_t k = 0; k < m * v; k++) {
      expect (&w, WEFT_PHASE_FORWARD, turn[k].chunk, turn[k].micro);
      if (k < warm)
        continue;
      expect (&w, WEFT_PHASE_BACKWARD, v - 1 - turn[done].chunk, turn[done].micro);
      done++;
    }
    for (; done < m * v; done++)
      expect (&w, WEFT_PHASE_BACKWARD, v - 1 - turn[done].chunk, turn[done].micro);
    expect_end (&w);
    for (uint32_t q = 0; q < v; q++)
      assert_int_equal (weft_grid_stage (grid, rank, q), q * p + rank);
    assert_true (weft_grid_in_flight (grid, rank) == MIN (warm + 1, m * v));
  }
  assert_true (weft_grid_replay (grid, (struct weft_cell_times){ 3, 2, 4, 0 }, NULL) ==
               (m * v + p - 1) * 9);
}

/* The bubble of interleaved 1F1B is (p - 1)(tF + tB) / v, with the times tF and tB of a whole
 * stage: as long as p - 1 passes of one chunk. */
static void
interleaved_orders_bubbles_and_peaks_for_all_sizes (void **state)
{
  (void) state;
  for (uint32_t p = 2; p <= 16; p++)
    for (uint32_t v = 1; v <= 4; v++)
      for (uint32_t m = p; m <= 3 * p + 1; m += MAX (p / 3, 1))
        for (uint32_t group = p; group <= m; group += MAX (p / 2, 1))
          if (m % group == 0 || m % group >= p)
            check_interleaved (p, v, m, group);
}

static void
one_forward_more_in_advance_is_one_chunk_more_in_flight (void **state)
{
  (void) state;
  const struct weft_grid_spec spec = { WEFT_SCHEDULE_1F1B, 4, 2, 8, 4, 1 };
  g_autoptr (weft_grid) grid = schedule_made (&spec);

  for (uint32_t rank = 0; rank < 4; rank++)
    assert_true (weft_grid_in_flight (grid, rank) == 12 - 2 * rank);
}

/* ------------------------------------------------------------------ zero bubble */

/* Asserts the order of ZB-H1 (times = 1) or ZB-H2 (times = 2). In the steady state a rank runs one
 * forward, one input gradient, and then the oldest weight gradients, until at most `times * rank`
 * of them are pending. */
static void
check_zero_bubble (enum weft_schedule schedule, uint32_t p, uint32_t m)
{
  g_autoptr (weft_grid) grid = schedule_plain (schedule, p, m);
  uint32_t times = schedule == WEFT_SCHEDULE_ZB_H2 ? 2 : 1;

  for (uint32_t rank = 0; rank < p; rank++) {
    struct wanted w = { grid, rank, 0 };
    uint32_t forwards = 0, weights = 0;
    while (forwards < MIN (times * (p - 1 - rank), m))
      expect (&w, WEFT_PHASE_FORWARD, 0, forwards++);
    for (uint32_t i = 0; i < m; i++) {
      if (forwards < m)
        expect (&w, WEFT_PHASE_FORWARD, 0, forwards++);
      expect (&w, WEFT_PHASE_INPUT_GRAD, 0, i);
      while (i + 1 - weights > times * rank)
        expect (&w, WEFT_PHASE_WEIGHT_GRAD, 0, weights++);
    }
    while (weights < m)
      expect (&w, WEFT_PHASE_WEIGHT_GRAD, 0, weights++);
    expect_end (&w);
  }
}

static double
work (struct weft_cell_times t)
{
  return t.forward + t.input + t.weight;
}

static void
zb_h1_idles_less_than_1f1b_and_keeps_as_much (void **state)
{
  (void) state;
  for (uint32_t p = 2; p <= 16; p++)
    for (uint32_t m = 1; m <= 4 * p; m += 3) {
      check_zero_bubble (WEFT_SCHEDULE_ZB_H1, p, m);
      if (m < p)
        continue;
      g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_ZB_H1, p, m);
      for (uint32_t rank = 0; rank < p; rank++)
        assert_true (weft_grid_in_flight (grid, rank) == p - rank + MIN (rank, m - p + rank) / 2.0);
      for (size_t i = 0; i < G_N_ELEMENTS (schedule_times) && m >= 2 * p; i++) {
        const struct weft_cell_times t = schedule_times[i];
        assert_true (weft_grid_replay (grid, t, NULL) ==
                     m * work (t) + (p - 1) * (t.forward + t.input - t.weight));
      }
    }
}

static void
zb_h2_has_no_bubble_and_keeps_nearly_twice_as_much (void **state)
{
  (void) state;
  for (uint32_t p = 2; p <= 16; p++)
    for (uint32_t m = 1; m <= 4 * p; m += 3) {
      check_zero_bubble (WEFT_SCHEDULE_ZB_H2, p, m);
      if (m < 2 * p)
        continue;
      g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_ZB_H2, p, m);
      for (uint32_t rank = 0; rank < p; rank++)
        assert_true (weft_grid_in_flight (grid, rank) == 2 * (p - rank) - 1 + rank);
      for (size_t i = 0; i < G_N_ELEMENTS (schedule_times); i++) {
        const struct weft_cell_times t = schedule_times[i];
        double bubble = (p - 1) * (t.forward + t.input - 2 * t.weight);
        assert_true (schedule_longest_span (grid, t) == m * work (t) + MAX (bubble, 0));
      }
    }
}

static weft_grid *
zb_auto (uint32_t p, uint32_t m, uint32_t limit)
{
  return schedule_made (&(struct weft_grid_spec){
      .schedule = WEFT_SCHEDULE_ZB_AUTO, .n_ranks = p, .n_micro = m, .most_pending = limit });
}

static void
zb_auto_keeps_no_more_than_its_limit (void **state)
{
  (void) state;
  for (uint32_t p = 1; p <= 9; p++)
    for (uint32_t m = 1; m <= 4 * p; m += 3)
      for (uint32_t limit = 1; limit <= 2 * p + 1; limit++) {
        g_autoptr (weft_grid) grid = zb_auto (p, m, limit);
        for (uint32_t rank = 0; rank < p; rank++)
          assert_true (weft_grid_in_flight (grid, rank) <= limit);
      }
}

/* Qi et al. 2023, section 3.1: with the memory of p microbatches the search finds the bubble of
 * ZB-H1 (ZB-1p), with that of 2p microbatches almost none (ZB-2p), also if weight gradients are
 * shorter than the other passes, where ZB-H2 idles. */
static void
zb_auto_is_zb_1p_and_zb_2p (void **state)
{
  (void) state;
  const struct weft_cell_times t = { 3, 3, 2, 0 };

  for (uint32_t p = 2; p <= 16; p *= 2) {
    uint32_t m = 3 * p;
    g_autoptr (weft_grid) lean = zb_auto (p, m, p), fast = zb_auto (p, m, 0),
                          h1 = schedule_plain (WEFT_SCHEDULE_ZB_H1, p, m),
                          h2 = schedule_plain (WEFT_SCHEDULE_ZB_H2, p, m);
    assert_true (schedule_longest_span (lean, t) == schedule_longest_span (h1, t));
    assert_true (schedule_longest_span (h2, t) == m * work (t) + 2 * (p - 1));
    assert_true (schedule_longest_span (fast, t) <= m * work (t) + 2);
  }
}

static void
zero_bubble_rows_of_four_ranks (void **state)
{
  (void) state;
  g_autoptr (weft_grid) h1 = schedule_plain (WEFT_SCHEDULE_ZB_H1, 4, 8);
  g_autoptr (weft_grid) h2 = schedule_plain (WEFT_SCHEDULE_ZB_H2, 4, 8);
  static const double kept[4] = { 4, 3.5, 3, 2.5 };

  assert_row (h1, 0, "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7");
  assert_row (h1, 3, "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7");
  assert_row (h2, 0, "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7");
  assert_row (h2, 3, "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7");
  assert_true (weft_grid_replay (h1, schedule_times[0], NULL) == 27);
  assert_true (weft_grid_replay (h2, schedule_times[0], NULL) == 27);
  assert_true (schedule_longest_span (h2, schedule_times[0]) == 24);
  for (uint32_t rank = 0; rank < 4; rank++) {
    assert_true (weft_grid_in_flight (h1, rank) == kept[rank]);
    assert_true (weft_grid_in_flight (h2, rank) == 7 - rank);
  }
}

/* ------------------------------------------------------------------ DualPipe */

/* DualPipe: the eight steps of its published code, as seen by one rank. Index 0 of the arrays:
 * microbatches that enter at the end of the pipeline that is nearer to the rank; index 1:
 * microbatches from the other end. */
struct dual {
  struct wanted w;
  uint32_t chunk[2], base[2], forwards[2], backwards[2], pairs;
  GQueue waiting;
};

static void
forward (struct dual *d, int way)
{
  expect (&d->w, WEFT_PHASE_FORWARD, d->chunk[way], d->base[way] + d->forwards[way]++);
}

static void
backward (struct dual *d, int way, gboolean split)
{
  uint32_t micro = d->base[way] + d->backwards[way]++;

  expect (&d->w, split ? WEFT_PHASE_INPUT_GRAD : WEFT_PHASE_BACKWARD, d->chunk[way], micro);
  if (split)
    g_queue_push_tail (&d->waiting, GUINT_TO_POINTER (micro << 1 | d->chunk[way]));
}

static void
weight (struct dual *d)
{
  uint32_t oldest = GPOINTER_TO_UINT (g_queue_pop_head (&d->waiting));

  expect (&d->w, WEFT_PHASE_WEIGHT_GRAD, oldest & 1, oldest >> 1);
}

static void
together (struct dual *d, int first, int second, gboolean overlapped)
{
  assert_int_equal (d->w.grid->cell[d->w.rank][d->w.n].paired, overlapped);
  forward (d, first);
  backward (d, second, FALSE);
}

static void
drain_ends (struct dual *d, uint32_t h)
{
  gboolean split = FALSE;

  for (uint32_t i = 0; i <= h; i++) {
    split |= i == (h + 1) / 2 && h % 2 == 1;
    backward (d, 1, split);
    split |= i == (h + 1) / 2 && h % 2 == 0;
    backward (d, 0, split);
  }
}

/* Asserts the order of one rank in the eight steps of DualPipe's published code. `deep`: half the
 * number of ranks; h: distance of the rank from the nearer end of the pipeline; n: microbatches
 * that enter at each end. */
static void
eight_steps (struct dual *d, uint32_t deep, uint32_t h, uint32_t n)
{
  for (uint32_t i = 0; i < 2 * (deep - h - 1); i++)
    forward (d, 0);
  for (uint32_t i = 0; i < h + 1; i++) {
    forward (d, 0);
    forward (d, 1);
  }
  for (uint32_t i = 0; i < deep - h - 1; i++) {
    backward (d, 1, TRUE);
    weight (d);
    forward (d, 1);
  }
  for (uint32_t i = 0; i < n - 2 * deep + h + 1; i++) {
    together (d, 0, 1, i > 0 || h + 1 < deep);
    together (d, 1, 0, TRUE);
  }
  for (uint32_t i = 0; i < deep - h - 1; i++) {
    backward (d, 1, FALSE);
    together (d, 1, 0, TRUE);
  }
  drain_ends (d, h);
  for (uint32_t i = 0; i < deep - h - 1; i++) {
    weight (d);
    backward (d, 0, TRUE);
  }
  for (uint32_t i = 0; i < h + 1; i++)
    weight (d);
  expect_end (&d->w);
  assert_true (g_queue_is_empty (&d->waiting));
}

/* Time that a rank spends in its cells. A cell with an overlapped forward and backward takes
 * `t.pair`. */
static double
busy (const weft_grid *grid, uint32_t rank, struct weft_cell_times t)
{
  double sum = 0;

  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    const struct weft_cell *cell = &grid->cell[rank][i];
    sum += cell->phase == WEFT_PHASE_FORWARD      ? t.forward
           : cell->phase == WEFT_PHASE_BACKWARD   ? t.input + t.weight
           : cell->phase == WEFT_PHASE_INPUT_GRAD ? t.input
                                                  : t.weight;
    if (cell->paired)
      sum += t.pair - work (t);
  }
  return sum;
}

/* Asserts that the two middle ranks idle (deep - 1)(tF&B + tB - 3tW), the bubble of the DualPipe
 * paper. tF&B is the time of an overlapped forward and backward; `deep` is half the number of
 * ranks. An input gradient takes as long as a forward. */
static void
assert_dual_bubble (const weft_grid *grid, uint32_t deep)
{
  static const struct weft_cell_times times[] = {
    { 1, 1, 1, 3 }, { 2, 2, 1, 5 }, { 2, 2, 1, 4 }, { 3, 3, 3, 7 }, { 4, 4, 3, 9 },
  };

  for (size_t i = 0; i < G_N_ELEMENTS (times); i++) {
    const struct weft_cell_times t = times[i];
    assert_true (weft_grid_replay (grid, t, NULL) - busy (grid, deep - 1, t) ==
                 (deep - 1) * (t.pair + t.input + t.weight - 3 * t.weight));
  }
}

static void
dualpipe_runs_the_eight_steps_from_both_ends (void **state)
{
  (void) state;
  for (uint32_t p = 2; p <= 16; p += 2)
    for (uint32_t m = 2 * p; m <= 5 * p; m += 6) {
      g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_DUALPIPE, p, m);
      for (uint32_t rank = 0; rank < p; rank++) {
        uint32_t up = rank >= p / 2, half = m / 2;
        struct dual d = { .w = { grid, rank, 0 },
                          .chunk = { up, !up },
                          .base = { up ? half : 0, up ? 0 : half } };
        eight_steps (&d, p / 2, MIN (rank, p - 1 - rank), half);
        assert_true (weft_grid_in_flight (grid, rank) == p + 1);
        assert_int_equal (weft_grid_stage (grid, rank, 0), rank);
        assert_int_equal (weft_grid_stage (grid, rank, 1), p - 1 - rank);
      }
      assert_dual_bubble (grid, p / 2);
    }
}

static void
dualpipev_runs_the_eight_steps_down_and_up (void **state)
{
  (void) state;
  for (uint32_t p = 2; p <= 16; p++)
    for (uint32_t m = 2 * p; m <= 4 * p; m += 5) {
      g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_DUALPIPEV, p, m);
      schedule_assert_v (grid);
      for (uint32_t rank = 0; rank < p; rank++) {
        struct dual d = { .w = { grid, rank, 0 }, .chunk = { 0, 1 } };
        eight_steps (&d, p, rank, m);
        assert_true (weft_grid_in_flight (grid, rank) == 2 * p + 1);
      }
      assert_dual_bubble (grid, p);
    }
}

/* The order of four ranks in the DualPipe figure of the DeepSeek-V3 report: microbatches 0 to 3
 * enter the pipeline at rank 0, and 4 to 7 at rank 3. */
static void
dualpipe_rows_of_four_ranks (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_DUALPIPE, 4, 8);

  assert_row (grid, 0,
              "F0a F1a F2a F4b I4b W4b F5b F3a B5b F6b B0a B6b F7b B1a B7b I2a W2a I3a W3a");
  assert_row (grid, 1, "F0a F4b F1a F5b F2a B4b F6b B0a F3a B5b F7b B1a B6b B2a I7b I3a W7b W3a");
  assert_int_equal (weft_grid_micro_copy (grid, 3), 0);
  assert_int_equal (weft_grid_micro_copy (grid, 4), 1);
}

/* The cells of rank 2 as PyTorch's pull request 158978 lists them, in its notation. */
static void
dualpipev_is_that_of_pytorch (void **state)
{
  (void) state;
  static const char wanted[] =
      "2F0,2F1,2F2,5F0,2F3,5F1,2F4,5F2,5I0,5W0,5F3,(2F5;5B1)OVERLAP_F_B,(5F4;2B0)OVERLAP_F_B,"
      "(2F6;5B2)OVERLAP_F_B,(5F5;2B1)OVERLAP_F_B,(2F7;5B3)OVERLAP_F_B,(5F6;2B2)OVERLAP_F_B,"
      "(2F8;5B4)OVERLAP_F_B,(5F7;2B3)OVERLAP_F_B,(2F9;5B5)OVERLAP_F_B,(5F8;2B4)OVERLAP_F_B,5B6,"
      "(5F9;2B5)OVERLAP_F_B,5B7,2B6,5B8,2I7,5I9,2I8,2W7,2I9,5W9,2W8,2W9";
  g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_DUALPIPEV, 4, 10);
  g_autofree char *csv = weft_grid_csv (grid);
  g_auto (GStrv) line = g_strsplit (csv, "\n", -1);

  assert_string_equal (line[2], wanted);
}

/* ------------------------------------------------------------------ where stages are */

/* Checks the links between the stages of one model copy: next-stage links lead from the first
 * stage through every stage to the last, and previous-stage links back. */
static void
check_path (const weft_grid *grid, uint32_t copy)
{
  uint32_t rank = 0, chunk = 0, n = 1;

  while (weft_grid_stage (grid, rank, chunk) != 0 || weft_grid_copy (grid, rank, chunk) != copy)
    if (++chunk == grid->n_chunks) {
      chunk = 0;
      rank++;
    }
  assert_false (weft_grid_prev (grid, &rank, &chunk));
  for (; weft_grid_next (grid, &rank, &chunk); n++) {
    assert_int_equal (weft_grid_stage (grid, rank, chunk), n);
    assert_int_equal (weft_grid_copy (grid, rank, chunk), copy);
  }
  assert_int_equal (n, grid->n_stages);
  while (weft_grid_prev (grid, &rank, &chunk))
    assert_int_equal (weft_grid_stage (grid, rank, chunk), --n - 1);
  assert_int_equal (n, 1);
}

/* Draws a schedule with counts (stages, chunks, microbatches) that are legal for it. */
static struct weft_grid_spec
random_spec (GRand *random)
{
  struct weft_grid_spec spec = { 0 };

  do {
    spec.schedule = g_rand_int_range (random, 0, WEFT_N_SCHEDULE);
    spec.n_ranks = g_rand_int_range (random, 1, 17);
    spec.n_chunks = weft_schedules[spec.schedule].chunks == WEFT_CHUNKS_ANY
                        ? g_rand_int_range (random, 0, 5)
                        : 0;
    spec.n_micro = g_rand_int_range (random, 1, 50);
    spec.group = g_rand_int_range (random, 0, 2) ? g_rand_int_range (random, 1, 50) : 0;
    spec.extra_warmup = g_rand_int_range (random, 0, 2);
  } while (weft_spec_broken (&spec) != WEFT_SPEC_FITS);
  return spec;
}

static void
neighbours_of_a_stage_are_found_either_way (void **state)
{
  (void) state;
  GRand *random = g_rand_new_with_seed (404);

  for (int round = 0; round < 300; round++) {
    const struct weft_grid_spec spec = random_spec (random);
    /* schedule_made() checks the grid and fails if a cell is wrong */
    g_autoptr (weft_grid) grid = schedule_made (&spec);
    for (uint32_t copy = 0; copy < grid->n_copies; copy++)
      check_path (grid, copy);
    assert_int_equal (grid->n_stages * grid->n_copies, grid->n_ranks * grid->n_chunks);
  }
  g_rand_free (random);
}

/* ------------------------------------------------------------------ breadth first */

static weft_grid *
breadth_first (uint32_t p, uint32_t v, uint32_t m)
{
  return schedule_made (&(struct weft_grid_spec){
      .schedule = WEFT_SCHEDULE_BREADTH_FIRST, .n_ranks = p, .n_chunks = v, .n_micro = m });
}

static void
breadth_first_runs_a_chunk_for_all_microbatches_before_the_next (void **state)
{
  (void) state;
  g_autoptr (weft_grid) grid = breadth_first (2, 2, 3);

  for (uint32_t rank = 0; rank < 2; rank++)
    assert_row (grid, rank, "F0a F1a F2a F0b F1b F2b B0b B1b B2b B0a B1a B2a");
}

/* Breadth-first schedule (Lamy-Poirier 2023, section 3): its bubble is that of GPipe divided by
 * the number of chunks. */
static void
breadth_first_idles_as_gpipe_over_its_chunks_and_keeps_every_microbatch (void **state)
{
  (void) state;
  for (uint32_t p = 2; p <= 8; p++)
    for (uint32_t v = 1; v <= 4; v++)
      for (uint32_t m = p; m <= 2 * p; m++) {
        g_autoptr (weft_grid) grid = breadth_first (p, v, m);
        double seconds = weft_grid_replay (grid, (struct weft_cell_times){ 1, 1, 1, 0 }, NULL);
        assert_true (seconds == 3.0 * (m * v + p - 1));
        for (uint32_t rank = 0; rank < p; rank++)
          assert_true (weft_grid_in_flight (grid, rank) == m * v);
      }
}

/* ------------------------------------------------------------------ traits of rows */

static uint32_t
n_forwards_ahead (const weft_grid *grid, uint32_t rank)
{
  uint32_t n = 0;

  while (n < grid->n_cell[rank] && grid->cell[rank][n].phase == WEFT_PHASE_FORWARD)
    n++;
  return n;
}

/* Number of forwards before the first backward, by the formulas of Narayanan et al. 2021 for
 * 1F1B. */
static uint32_t
forwards_of_warm_up (const weft_grid *grid, const struct weft_grid_spec *spec, uint32_t rank)
{
  uint32_t after = grid->n_ranks - 1 - rank, all = grid->n_micro * grid->n_chunks;
  uint32_t ahead =
      grid->n_chunks == 1 ? after : 2 * after + (grid->n_chunks - 1) * weft_spec_group (spec);

  return MIN (ahead + spec->extra_warmup + 1, all);
}

/* Checks two properties on which the search's lower bounds rely: the number of forwards before
 * the first backward, and the time to fill and drain the pipeline. */
static void
check_in_flight (const weft_grid *grid, const struct weft_grid_spec *spec)
{
  const struct weft_schedule_row *row = &weft_schedules[spec->schedule];
  double work = (double) grid->n_micro * grid->n_chunks;

  if (row->in_flight == WEFT_IN_FLIGHT_UNKNOWN)
    return;
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    assert_int_equal (n_forwards_ahead (grid, rank), row->in_flight == WEFT_IN_FLIGHT_ALL
                                                         ? work
                                                         : forwards_of_warm_up (grid, spec, rank));
  assert_true (weft_grid_replay (grid, (struct weft_cell_times){ 1, 1, 1, 0 }, NULL) >=
               3 * (work + grid->n_ranks - 1));
}

/* The row of a schedule in core/schedules.def states properties that the planner relies on. The
 * cells of the schedule must have these properties. */
static void
cells_of_every_schedule_are_what_its_row_says (void **state)
{
  (void) state;
  GRand *random = g_rand_new_with_seed (1919);

  for (int round = 0; round < 600; round++) {
    const struct weft_grid_spec spec = random_spec (random);
    const struct weft_schedule_row *row = &weft_schedules[spec.schedule];
    g_autoptr (weft_grid) grid = schedule_made (&spec);
    assert_int_equal (row->splits_backward, weft_grid_splits (grid));
    assert_int_equal (grid->n_copies, weft_shape_copies (row->shape));
    assert_int_equal (weft_grid_is_ring (grid), row->shape == WEFT_GRID_LOOP &&
                                                    grid->n_chunks > 1 && grid->n_ranks > 1);
    assert_null (weft_grid_place_problem (grid));
    check_in_flight (grid, &spec);
  }
  g_rand_free (random);
}

static double
seconds_and_peak (struct weft_grid_spec spec, uint32_t n_micro, double *peak)
{
  spec.n_micro = n_micro;
  g_autoptr (weft_grid) grid = schedule_made (&spec);

  *peak = weft_grid_in_flight (grid, 0);
  return weft_grid_replay (grid, (struct weft_cell_times){ 3, 4, 2, 0 }, NULL);
}

/* The search computes long steps from two short ones if the row of the schedule says `steady`. Then
 * each further group of microbatches must add the same time and no activations. */
static void
steady_schedules_grow_by_equal_times_and_keep_as_much (void **state)
{
  (void) state;
  for (enum weft_schedule schedule = 0; schedule < WEFT_N_SCHEDULE; schedule++)
    for (uint32_t p = 2; weft_schedules[schedule].steady && p <= 8; p++)
      for (uint32_t v = 1; v <= (weft_schedules[schedule].interleaved ? 3 : 1); v++) {
        const struct weft_grid_spec spec = { .schedule = schedule, .n_ranks = p, .n_chunks = v };
        uint32_t group = v > 1 ? p : 1, first = 3 * p / group * group;
        double peak[3], s[3];
        for (uint32_t i = 0; i < 3; i++)
          s[i] = seconds_and_peak (spec, first + i * group, &peak[i]);
        assert_true (s[2] - s[1] == s[1] - s[0]);
        assert_true (peak[0] == peak[1] && peak[1] == peak[2]);
      }
}

/* In the other schedules that the search tries, every further pair of microbatches adds the same
 * time from 2 p + 2 microbatches on. */
static void
other_schedules_grow_by_equal_times_once_the_pipeline_is_full (void **state)
{
  (void) state;
  for (enum weft_schedule schedule = 0; schedule < WEFT_N_SCHEDULE; schedule++)
    for (uint32_t p = 2; weft_schedules[schedule].searched && p <= 12; p += 2) {
      const struct weft_schedule_row *row = &weft_schedules[schedule];
      const struct weft_grid_spec spec = { schedule, p, row->chunks };
      double peak[3], s[3];
      if (row->steady)
        continue;
      for (uint32_t i = 0; i < 3; i++)
        s[i] = seconds_and_peak (spec, 2 * p + 2 + 2 * i, &peak[i]);
      assert_true (s[2] - s[1] == s[1] - s[0]);
      if (row->in_flight != WEFT_IN_FLIGHT_ALL)
        assert_true (peak[0] == peak[1] && peak[1] == peak[2]);
    }
}

static void
counts_that_do_not_fit_are_refused_by_name (void **state)
{
  (void) state;
  static const struct {
    struct weft_grid_spec spec;
    const char *rule;
  } wrong[] = {
    { { WEFT_SCHEDULE_ZB_H1, 4, 2, 8 }, "chunks_schedule" },
    { { WEFT_SCHEDULE_GPIPE, 4, 3, 8 }, "chunks_schedule" },
    { { WEFT_SCHEDULE_DUALPIPE, 4, 2, 8 }, "chunks_schedule" },
    { { WEFT_SCHEDULE_ZB_V, 4, 1, 8 }, "chunks_schedule" },
    { { WEFT_SCHEDULE_1F1B, 4, 2, 8, 3 }, "chunks_group" },
    { { WEFT_SCHEDULE_1F1B, 4, 2, 8, 9 }, "chunks_group" },
    { { WEFT_SCHEDULE_1F1B, 4, 2, 3 }, "chunks_group" },
    { { WEFT_SCHEDULE_1F1B, 4, 2, 9, 4 }, "chunks_rest" },
    { { WEFT_SCHEDULE_DUALPIPE, 3, 0, 8 }, "dualpipe_even" },
    { { WEFT_SCHEDULE_DUALPIPE, 4, 0, 9 }, "dualpipe_even" },
    { { WEFT_SCHEDULE_DUALPIPE, 4, 0, 6 }, "dualpipe_microbatches" },
    { { WEFT_SCHEDULE_DUALPIPEV, 4, 0, 7 }, "dualpipe_microbatches" },
  };

  for (size_t i = 0; i < G_N_ELEMENTS (wrong); i++) {
    g_autoptr (GError) error = NULL;
    g_autofree char *start = g_strdup_printf ("rule %s: ", wrong[i].rule);
    assert_null (weft_grid_new (&wrong[i].spec, &error));
    if (!g_str_has_prefix (error->message, start))
      fail_msg ("found \"%s\", wanted %s", error->message, start);
  }
}

/* ------------------------------------------------------------------ the page */

/* The picture of a grid as the documentation prints it: indented, without trailing blanks. */
static char *
on_a_page (const weft_grid *grid)
{
  g_autofree char *picture = weft_grid_ascii (grid, 100);
  g_auto (GStrv) line = g_strsplit (picture, "\n", -1);
  GString *text = g_string_new ("\n");

  for (char **at = line; **at; at++)
    if (**at)
      g_string_append_printf (text, "    %s\n", g_strchomp (*at));
  return g_string_free (text, FALSE);
}

static void
the_page_on_schedules_shows_every_one_as_it_is (void **state)
{
  (void) state;
  g_autofree char *page = NULL;

  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/docs/schedules.md", &page, NULL, NULL));
  for (int schedule = 0; weft_schedule_words[schedule]; schedule++) {
    g_autoptr (weft_grid) grid = schedule_plain (schedule, 4, 8);
    g_autofree char *picture = on_a_page (grid);
    g_autofree char *head = g_strdup_printf ("\n### %s\n", weft_schedule_words[schedule]);
    if (!strstr (page, head) || !strstr (page, picture))
      fail_msg ("docs/schedules.md lacks %s or this:\n%s", head, picture);
  }
  g_autoptr (weft_grid) chunks = interleaved (4, 2, 8, 4);
  g_autofree char *picture = on_a_page (chunks);
  assert_non_null (strstr (page, picture));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (two_ranks_of_two_chunks_in_groups_of_two),
  cmocka_unit_test (two_ranks_of_two_chunks_whose_last_group_is_short),
  cmocka_unit_test (four_ranks_of_two_chunks_in_groups_of_four),
  cmocka_unit_test (interleaved_orders_bubbles_and_peaks_for_all_sizes),
  cmocka_unit_test (one_forward_more_in_advance_is_one_chunk_more_in_flight),
  cmocka_unit_test (zb_h1_idles_less_than_1f1b_and_keeps_as_much),
  cmocka_unit_test (zb_h2_has_no_bubble_and_keeps_nearly_twice_as_much),
  cmocka_unit_test (zb_auto_keeps_no_more_than_its_limit),
  cmocka_unit_test (zb_auto_is_zb_1p_and_zb_2p),
  cmocka_unit_test (zero_bubble_rows_of_four_ranks),
  cmocka_unit_test (dualpipe_runs_the_eight_steps_from_both_ends),
  cmocka_unit_test (dualpipev_runs_the_eight_steps_down_and_up),
  cmocka_unit_test (dualpipe_rows_of_four_ranks),
  cmocka_unit_test (dualpipev_is_that_of_pytorch),
  cmocka_unit_test (neighbours_of_a_stage_are_found_either_way),
  cmocka_unit_test (breadth_first_runs_a_chunk_for_all_microbatches_before_the_next),
  cmocka_unit_test (breadth_first_idles_as_gpipe_over_its_chunks_and_keeps_every_microbatch),
  cmocka_unit_test (cells_of_every_schedule_are_what_its_row_says),
  cmocka_unit_test (steady_schedules_grow_by_equal_times_and_keep_as_much),
  cmocka_unit_test (other_schedules_grow_by_equal_times_once_the_pipeline_is_full),
  cmocka_unit_test (counts_that_do_not_fit_are_refused_by_name),
  cmocka_unit_test (the_page_on_schedules_shows_every_one_as_it_is),
};

WEFT_TESTS (tests)
