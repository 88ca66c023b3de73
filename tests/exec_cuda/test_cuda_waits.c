/* exec_gpu/watchdog.c: how long the host pauses between two polls of the device. */
#include "exec_gpu/watchdog.h"
#include "tests/runner/runner.h"

/* Pauses grow from 20 to 200 microseconds, but within 1 ms or one percent of the time of the last
 * step the host only yields its processor. */
static void
the_host_does_not_pause_near_the_expected_end_of_a_step (void **state)
{
  static const struct {
    gint64 expected, elapsed;
    gulong last, pause;
    gboolean closely;
  } cases[] = {
    { 0, 5000, 0, 20, FALSE },          { 0, 5000, 20, 40, FALSE },
    { 0, 5000, 160, 200, FALSE },       { 0, 5000, 200, 20, TRUE },
    { 500000, 0, 0, 20, FALSE },        { 500000, 494999, 200, 200, FALSE },
    { 500000, 495001, 200, 0, FALSE },  { 500000, 504999, 200, 0, FALSE },
    { 500000, 505001, 200, 200, FALSE }, { 20000, 18999, 200, 200, FALSE },
    { 20000, 19001, 200, 0, FALSE },    { 20000, 21001, 200, 200, FALSE },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    const struct gpu_watchdog w = { .pause = cases[i].last,
                                    .short_pauses = cases[i].closely,
                                    .expected = cases[i].expected };
    assert_int_equal (gpu_watchdog_pause (&w, cases[i].elapsed), cases[i].pause);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_host_does_not_pause_near_the_expected_end_of_a_step),
};

WEFT_TESTS (tests)
