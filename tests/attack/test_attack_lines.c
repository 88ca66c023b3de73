/* Random command lines from all commands, settings and flags. Values lie inside their ranges or at
 * the ends of the ranges, or are absurd. Arguments: SEED [LINES]. */
#include "tests/attack/attack.h"
#include "tests/attack/surface.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <string.h>

#define LINES weft_tests_cases (100, 150)
#define MOST_SECONDS 60

struct tally {
  uint32_t n[ATTACK_N_END];
  double most_seconds, most_bytes;
};

/* Whether `text` is one JSON document, or has one JSON document in each line. */
static gboolean
is_json (const char *text)
{
  g_autoptr (JsonNode) whole = json_from_string (text, NULL);
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);

  for (char **line = lines; !whole && *line; line++) {
    g_autoptr (JsonNode) one = **line ? json_from_string (*line, NULL) : NULL;
    if (**line && !one)
      return FALSE;
  }
  return TRUE;
}

/* Checks that the output of a successful command with --json can be parsed. */
static void
check_json (struct attack_run *run, char *const *argv)
{
  const char *const *words = (const char *const *) argv;

  if (run->end == ATTACK_DONE && g_strv_contains (words, "--json") &&
      !g_strv_contains (words, "--help") && !is_json (run->out)) {
    run->end = ATTACK_FAULT;
    run->fault = "--json printed what is no JSON";
  }
}

static void
count_run (struct tally *t, const struct attack_run *run, const char *line)
{
  t->n[run->end]++;
  t->most_seconds = MAX (t->most_seconds, run->seconds);
  t->most_bytes = MAX (t->most_bytes, run->bytes);
  if (run->end == ATTACK_FAULT || run->end == ATTACK_SLOW)
    attack_print (run, line);
  if (run->bytes > 2e9)
    print_message ("%.1f GB: %s\n", run->bytes * 1e-9, line);
}

static void
any_line_is_answered_or_refused_with_a_message (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (attack_drawn.seed);
  g_autoptr (surface) s = surface_new (*state);
  struct tally t = { 0 };
  uint32_t n = attack_count (LINES);

  for (uint32_t i = 0; i < n; i++) {
    g_auto (GStrv) argv = surface_line (s, rand);
    g_autofree char *line = attack_line (argv);
    attack_folder_fill (*state);
    struct attack_run run = attack_run (*state, argv, MOST_SECONDS);
    check_json (&run, argv);
    count_run (&t, &run, line);
    attack_run_clear (&run);
  }
  print_message ("seed %u, %u lines: %u done, %u refused, %u slow, %u faults; at most %.0f s, "
                 "%.2f GB\n",
                 attack_drawn.seed, n, t.n[ATTACK_DONE], t.n[ATTACK_REFUSED], t.n[ATTACK_SLOW],
                 t.n[ATTACK_FAULT], t.most_seconds, t.most_bytes * 1e-9);
  assert_int_equal (t.n[ATTACK_FAULT], 0);
  assert_true (t.n[ATTACK_DONE] > n / 20 && t.n[ATTACK_REFUSED] > n / 20);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (any_line_is_answered_or_refused_with_a_message,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests, .begin = attack_begin, .seconds = 15)
