/* V schedules (a rank runs two chunks; stages run down the ranks and up again) against orders
 * computed by a second rule, against the least number of slots that any order needs, and against
 * closed formulas for idle slots and kept activations. */
#include "tests/made/schedules.h"
#include "tests/runner/runner.h"

/* Writes the order of one rank as text, cell by cell. A cell is a pass of a microbatch, or the
 * oldest pending weight gradient. The order may continue for ever; cells of microbatches from m on
 * are left out. */
struct told {
  GString *text;
  uint32_t p, m, rank, next[4];
  /* weight gradients that have not run yet, oldest first, as microbatch * 2 + chunk */
  GQueue waiting;
};

static void
tell (struct told *t, char phase, uint32_t chunk, uint32_t micro)
{
  if (micro < t->m)
    g_string_append_printf (t->text, "%u%c%u,", chunk ? 2 * t->p - 1 - t->rank : t->rank, phase,
                            micro);
}

/* Writes the cell of the pass for its next microbatch. The four passes: 0 forward of chunk 0 (ranks
 * in rising order), 1 forward of chunk 1 (falling), 2 input gradient of chunk 1 (rising), 3 input
 * gradient of chunk 0 (falling). */
static void
tell_pass (struct told *t, int pass)
{
  uint32_t chunk = pass == 1 || pass == 2, micro = t->next[pass]++;

  tell (t, pass < 2 ? 'F' : 'I', chunk, micro);
  if (pass >= 2)
    g_queue_push_tail (&t->waiting, GUINT_TO_POINTER (micro * 2 + chunk));
}

static void
tell_weight (struct told *t)
{
  uint32_t oldest = GPOINTER_TO_UINT (g_queue_pop_head (&t->waiting));

  tell (t, 'W', oldest % 2, oldest / 2);
}

static void
end_rank (struct told *t)
{
  while (!g_queue_is_empty (&t->waiting))
    tell_weight (t);
  g_string_truncate (t->text, t->text->len - 1);
  g_string_append_c (t->text, '\n');
}

/* The order of ZB-V with many microbatches: ranks fill up, then run both chunks of a microbatch
 * in every six slots, and then drain. The caller frees the text. */
static char *
full_v (uint32_t p, uint32_t m)
{
  GString *text = g_string_new (NULL);

  for (uint32_t rank = 0; rank < p; rank++) {
    struct told t = { .text = text, .p = p, .m = m, .rank = rank };
    for (uint32_t i = 0; i < 2 * (p - rank) - 1; i++)
      tell_pass (&t, 0);
    for (uint32_t i = 0; i < p + MAX (m, 2 * p - 1); i++) {
      gboolean filling = i < rank, late = i >= MAX (m, 2 * p - 1);
      if (i >= p && !late) {
        tell_pass (&t, 0);
        tell_pass (&t, 3);
        tell_weight (&t);
      }
      if (!late)
        tell_pass (&t, 1);
      if (filling)
        tell_pass (&t, 0);
      if (late)
        tell_pass (&t, 3);
      if (i >= rank && (!late || i < MAX (m, 2 * p - 1) + rank))
        tell_pass (&t, 2);
      if (i >= rank && (!late || i >= MAX (m, 2 * p - 1) + rank))
        tell_weight (&t);
    }
    end_rank (&t);
  }
  return g_string_free (text, FALSE);
}

/* An order in which each of the four passes starts a microbatch every six slots; pending weight
 * gradients use free slots. `first` returns the slots in which the passes of microbatch 0 run on
 * a rank. The caller frees the text. */
static char *
rhythmic_v (uint32_t p, uint32_t m, void (*first) (uint32_t p, uint32_t rank, uint32_t slot[4]))
{
  GString *text = g_string_new (NULL);

  for (uint32_t rank = 0; rank < p; rank++) {
    struct told t = { .text = text, .p = p, .m = m, .rank = rank };
    uint32_t slot[4];
    first (p, rank, slot);
    for (uint32_t now = 0; t.next[3] < m; now++) {
      int pass = 3;
      while (pass >= 0 && (now < slot[pass] || (now - slot[pass]) % 6 || t.next[pass] == m))
        pass--;
      if (pass >= 0)
        tell_pass (&t, pass);
      else if (!g_queue_is_empty (&t.waiting))
        tell_weight (&t);
    }
    end_rank (&t);
  }
  return g_string_free (text, FALSE);
}

static weft_grid *
read_text (const char *text)
{
  g_autoptr (GError) error = NULL;
  weft_grid *grid = weft_grid_read (text, "test", &error);

  if (!grid)
    fail_msg ("%s", error->message);
  return grid;
}

/* Returns the activations of the rank that keeps most, in half stages (the size of a chunk). */
static double
most_in_flight (const weft_grid *grid)
{
  double most = 0;

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    most = MAX (most, weft_grid_in_flight (grid, rank));
  return most;
}

/* A lower bound of the slots of every V schedule of p ranks and m microbatches: the largest of
 * three numbers. Rank p - 1 starts after p - 1 slots and has 6 slots of work per microbatch. Its
 * first input gradient starts after 3p - 1 slots; 4 slots of work per microbatch cannot start
 * earlier. After the 2m input gradients of rank p - 1, the last microbatch needs p - 1 more, one on
 * each other rank, and a weight gradient on rank 0. */
static uint32_t
least_slots (uint32_t p, uint32_t m)
{
  return MAX (6 * m + p - 1, MAX (4 * m + 3 * p - 1, 2 * m + 4 * p - 1));
}

/* ZB-V needs the least number of slots that any V schedule needs. A rank keeps at most 2p chunks,
 * which are half stages: as many activations as 1F1B keeps on rank 0. */
static void
zb_v_takes_the_least_slots_there_are_and_keeps_p_stages (void **state)
{
  (void) state;
  for (uint32_t p = 1; p <= 16; p++)
    for (uint32_t m = 1; m <= 4 * p; m++) {
      g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_ZB_V, p, m);
      schedule_assert_v (grid);
      assert_true (weft_grid_replay (grid, schedule_times[0], NULL) == least_slots (p, m));
      assert_true (most_in_flight (grid) <= 2 * p);
      if (m < 2 * p - 1)
        continue;
      assert_true (schedule_longest_span (grid, schedule_times[0]) == 6 * m);
      for (uint32_t rank = 0; rank < p; rank++)
        assert_true (weft_grid_in_flight (grid, rank) == 2 * p);
    }
  for (uint32_t m = 16; m <= 512; m *= 2) {
    g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_ZB_V, 64, m);
    assert_true (weft_grid_replay (grid, schedule_times[0], NULL) == least_slots (64, m));
    assert_true (most_in_flight (grid) <= 128);
  }
}

/* With at least 5p / 3 microbatches, the ZB-V schedule is exactly the order that full_v() writes.
 * With fewer microbatches it is not slower than that order. */
static void
zb_v_of_many_microbatches_is_the_full_order_and_of_few_is_shorter (void **state)
{
  (void) state;
  for (uint32_t p = 1; p <= 16; p++)
    for (uint32_t m = 1; m <= 3 * p; m++) {
      g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_ZB_V, p, m);
      g_autofree char *text = full_v (p, m), *csv = weft_grid_csv (grid);
      g_autoptr (weft_grid) full = read_text (text);
      if (3 * m >= 5 * p) {
        assert_string_equal (csv, text);
        continue;
      }
      for (size_t i = 0; i < G_N_ELEMENTS (schedule_times); i++)
        if (i == 0 || m <= p)
          assert_true (weft_grid_replay (grid, schedule_times[i], NULL) <=
                       weft_grid_replay (full, schedule_times[i], NULL));
    }
}

/* The regular order of V-Half: forwards and input gradients that run down the ranks advance one
 * rank every two slots. For even p, a gap of three slots prevents two passes in the same slot. */
static void
half_rhythm (uint32_t p, uint32_t rank, uint32_t slot[4])
{
  uint32_t gap = p % 2 ? 0 : 3;

  slot[0] = 2 * rank;
  slot[1] = 3 * p - 2 - rank;
  slot[2] = 3 * p + gap - 1 + 2 * rank;
  slot[3] = 6 * p + gap - 2 - rank;
}

/* Checks a V-Half order, which Weft finds by a search. It must not be longer than the regular order
 * of half_rhythm(), which idles 7(p - 1) / 2 slots or slightly more. If an input gradient takes 1.5
 * times as long as a forward, it may be 4 % longer, but ranks must not wait for each other in every
 * microbatch. */
static void
check_half_rhythm (const weft_grid *grid)
{
  static const struct weft_cell_times times[] = { { 1, 1, 1, 0 }, { 2, 3, 2, 0 } };
  uint32_t p = grid->n_ranks, m = grid->n_micro;
  g_autofree char *text = rhythmic_v (p, m, half_rhythm);
  g_autoptr (weft_grid) rhythmic = read_text (text);

  if (m >= 2 * p)
    assert_true (weft_grid_replay (rhythmic, times[0], NULL) ==
                 6 * m + (p % 2 ? 7 * (p - 1) / 2 : (7 * p - 4) / 2));
  for (size_t i = 0; i < G_N_ELEMENTS (times); i++)
    assert_true (weft_grid_replay (grid, times[i], NULL) <=
                 (i ? 1.04 : 1) * weft_grid_replay (rhythmic, times[i], NULL));
}

/* V-Half idles at most 3(p - 1) + 2 slots and keeps the activations of about p half stages. 1F1B
 * idles 6(p - 1) slots and keeps 2p half stages. */
static void
v_half_idles_half_of_1f1b_and_keeps_half (void **state)
{
  (void) state;
  for (uint32_t p = 2; p <= 64; p += p < 17 ? 1 : 15)
    for (uint32_t m = 1; m <= 8 * p; m += m < 2 * p && p < 17 ? 1 : p) {
      g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_V_HALF, p, m);
      schedule_assert_v (grid);
      assert_true (most_in_flight (grid) <= p + (p % 2 ? 2 : 3));
      assert_true (weft_grid_replay (grid, schedule_times[0], NULL) <=
                   MAX (6 * m + 3 * (p - 1) + 2, least_slots (p, m)));
      check_half_rhythm (grid);
    }
}

static void
least_rhythm (uint32_t p, uint32_t rank, uint32_t slot[4])
{
  uint32_t gap = p % 3 ? 0 : 2;

  slot[0] = rank;
  slot[1] = 2 * p + gap - 1 - rank;
  slot[2] = 2 * p + gap + rank;
  slot[3] = 4 * p + 2 * gap - 1 - rank;
}

static void
v_min_idles_two_thirds_of_1f1b_and_keeps_a_third (void **state)
{
  (void) state;
  for (uint32_t p = 2; p <= 64; p += p < 17 ? 1 : 15)
    for (uint32_t m = 1; m <= 6 * p; m += p) {
      g_autoptr (weft_grid) grid = schedule_plain (WEFT_SCHEDULE_V_MIN, p, m);
      g_autofree char *text = rhythmic_v (p, m, least_rhythm), *csv = weft_grid_csv (grid);
      schedule_assert_v (grid);
      assert_string_equal (csv, text);
      assert_true (weft_grid_replay (grid, schedule_times[0], NULL) ==
                   6 * m + 4 * (p - 1) - (p % 3 ? 1 : 0));
      assert_true (most_in_flight (grid) <= (p % 3 ? (2 * p + 2) / 3 + 1 : 2 * p / 3 + 2));
    }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (zb_v_takes_the_least_slots_there_are_and_keeps_p_stages),
  cmocka_unit_test (zb_v_of_many_microbatches_is_the_full_order_and_of_few_is_shorter),
  cmocka_unit_test (v_half_idles_half_of_1f1b_and_keeps_half),
  cmocka_unit_test (v_min_idles_two_thirds_of_1f1b_and_keeps_a_third),
};

WEFT_TESTS (tests)
