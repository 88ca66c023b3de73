/* Every schedule against orders written by hand or by a second, independent rule, and against the
 * closed forms of its bubble and of what a rank keeps. */
#include "core/error.h"
#include "core/pipeline.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static weft_grid *
made (const struct weft_grid_spec *spec)
{
  g_autoptr (GError) error = NULL;
  weft_grid *grid = weft_grid_new (spec, &error);

  if (!grid || !weft_grid_check (grid, &error))
    fail_msg ("%s of %u ranks, %u chunks, %u microbatches: %s", weft_schedule_words[spec->schedule],
              spec->n_ranks, spec->n_chunks, spec->n_micro, error->message);
  return grid;
}

static weft_grid *
interleaved (uint32_t p, uint32_t v, uint32_t m, uint32_t group)
{
  return made (&(struct weft_grid_spec){
    .schedule = WEFT_SCHEDULE_1F1B, .n_ranks = p, .n_chunks = v, .n_micro = m, .group = group });
}

/* The cells of a rank as papers write them: phase, microbatch, and a letter for the chunk where
 * there are several. */
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

/* A forward of a whole stage takes 1 and a backward 2. */
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

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (two_ranks_of_two_chunks_in_groups_of_two),
    cmocka_unit_test (two_ranks_of_two_chunks_whose_last_group_is_short),
    cmocka_unit_test (four_ranks_of_two_chunks_in_groups_of_four),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
