/* Each executor declares its flags in a table. Commands must parse the flags of any such table,
 * including the tables of two executors that only this test defines. */
#include "cli/executor_options.h"
#include "cli/executors.h"
#include "core/base/error.h"
#include "tests/runner/command.h"
#include "tests/runner/runner.h"
#include <string.h>

/* --------------------------------------------------------------- two made executors */

#define SPEED(X)                                                                                   \
  X (double, speed, WEFT_TYPE_REAL, "speed", "none", "0.5", "9", "", NULL, "turns per second")
#define ABACUS_OPTION_LIST(X)                                                                      \
  X (int64_t, beads, WEFT_TYPE_INT, "beads", "3", "1", "9", "", NULL, "beads on a wire")           \
  X (int64_t, dry_run, WEFT_TYPE_BOOL, "dry-run", "false", NULL, NULL, "", NULL, "move none")      \
  X (int64_t, wood, WEFT_TYPE_WORD, "wood", "oak", NULL, NULL, "", woods, "what it is made of")    \
  X (int64_t, hidden, WEFT_TYPE_INT, "hidden", "7", "0", "9", "", NULL, NULL)                      \
  SPEED (X)
#define CRANK_OPTION_LIST(X)                                                                       \
  SPEED (X)                                                                                        \
  X (int64_t, wood, WEFT_TYPE_WORD, "wood", "elm", NULL, NULL, "", woods, "what turns it")

static const char *const woods[] = { "oak", "elm", NULL };

union abacus_options {
  struct {
    ABACUS_OPTION_LIST (WEFT_OPTION_MEMBER)
  };
  union weft_value at[0 ABACUS_OPTION_LIST (WEFT_OPTION_ONE)];
};

static const struct weft_field abacus_fields[] = { ABACUS_OPTION_LIST (WEFT_OPTION_FIELD) };
static const struct weft_field crank_fields[] = { CRANK_OPTION_LIST (WEFT_OPTION_FIELD) };
static const struct weft_table abacus_table = { "option of executor abacus", abacus_fields,
                                                G_N_ELEMENTS (abacus_fields) };
static const struct weft_table crank_table = { "option of executor crank", crank_fields,
                                               G_N_ELEMENTS (crank_fields) };

/* options that the open function of this executor has received last */
static union abacus_options got;

static weft_exec *
abacus_open (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  (void) plan;
  weft_own_options_read (&options->own, &abacus_table, got.at);
  weft_bad_input (error, "an abacus has no ranks");
  return NULL;
}

static const struct weft_exec_ops abacus = { .name = "abacus",
                                             .options = &abacus_table,
                                             .open = abacus_open },
                                  crank = { .name = "crank", .options = &crank_table },
                                  stone = { .name = "stone" };
static const struct weft_exec_ops *const made[] = { &abacus, &crank, NULL };
static const struct weft_exec_ops *const with_stone[] = { &stone, &abacus, NULL };

/* Parses words as a command does: first the arguments of the command itself, then the flags of
 * the executor `chosen`. */
static gboolean
read_words (const char *words, const struct weft_exec_ops *chosen, struct weft_own_options *own,
            GError **error)
{
  g_autoptr (weft_cli_options) options = weft_cli_options_new (made);
  struct weft_cli_page page = { .usage = "weft reckon" };
  g_autofree char *whole = g_strconcat ("reckon ", words, NULL);
  g_auto (GStrv) argv = g_strsplit (*words ? whole : "reckon", " ", -1);
  g_auto (weft_cli_input) input = { 0 };

  page.more = weft_cli_options_flags (options, &page.n_more);
  return weft_cli_read (&page, (int) g_strv_length (argv), argv, &input, error) &&
         weft_cli_options_read (options, chosen, own, error);
}

static void
open_abacus (const char *words)
{
  g_autoptr (GError) error = NULL, refused = NULL;
  struct weft_exec_options options = { 0 };

  if (!read_words (words, &abacus, &options.own, &error))
    fail_msg ("%s: %s", words, error->message);
  assert_null (abacus.open (NULL, &options, &refused));
}

static void
an_executor_gets_the_values_of_its_own_flags (void **state)
{
  (void) state;
  open_abacus ("--beads 5 --speed=2.5 --wood ELM --dry_run");
  assert_true (got.beads == 5 && got.speed == 2.5 && got.wood == 1 && got.dry_run == 1);
  assert_true (got.hidden == 7);
  open_abacus ("");
  assert_true (got.beads == 3 && got.speed == 0 && got.wood == 0 && got.dry_run == 0);
  assert_true (got.hidden == 7);
  open_abacus ("--speed 3 --speed none");
  assert_true (got.speed == 0 && got.beads == 3);
}

static void
flags_that_the_executor_lacks_or_cannot_take_are_refused (void **state)
{
  static const struct {
    const struct weft_exec_ops *chosen;
    const char *words, *message;
  } cases[] = {
    { &crank, "--beads 5",
      "--beads: not available with executor crank (expected --executor abacus)" },
    { &crank, "--dry-run",
      "--dry-run: not available with executor crank (expected --executor abacus)" },
    { &stone, "--speed 1",
      "--speed: not available with executor stone (expected --executor abacus or crank)" },
    { &abacus, "--beads 12", "--beads: found \"12\", wanted 1..9" },
    { &abacus, "--beads 2.5", "--beads: found \"2.5\", wanted 1..9" },
    { &abacus, "--speed 0", "--speed: found \"0\", wanted none|0.5..9" },
    { &abacus, "--wood pine", "--wood: found \"pine\", wanted oak|elm" },
    { &abacus, "--hidden 3", "unknown flag --hidden" },
    { &abacus, "--beeds 3", "unknown flag --beeds; did you mean --beads?" },
    { &abacus, "--dry-run=5", "--dry-run" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autoptr (GError) error = NULL;
    struct weft_own_options own;
    assert_false (read_words (cases[i].words, cases[i].chosen, &own, &error));
    if (!strstr (error->message, cases[i].message))
      fail_msg ("%s: %s", cases[i].words, error->message);
    assert_int_equal (weft_error_exit_status (error), 2);
  }
}

static const char *
line_of (const weft_cli_options *options, unsigned i, const char *name, const char *value)
{
  unsigned n;
  const struct weft_cli_flag *flags = weft_cli_options_flags (options, &n);

  assert_true (i < n);
  assert_string_equal (flags[i].name, name);
  if (value)
    assert_string_equal (flags[i].value, value);
  else
    assert_null (flags[i].value);
  return flags[i].doc;
}

static void
help_says_which_executors_a_line_is_about (void **state)
{
  g_autoptr (weft_cli_options) both = weft_cli_options_new (made);
  g_autoptr (weft_cli_options) alone = weft_cli_options_new (with_stone);
  unsigned n;

  (void) state;
  assert_string_equal (line_of (both, 0, "beads", "N"), "executor abacus: beads on a wire [3]");
  assert_string_equal (line_of (both, 1, "dry-run", NULL), "executor abacus: move none");
  assert_string_equal (line_of (both, 2, "wood", "oak|elm"),
                       "executor abacus: what it is made of [oak]");
  assert_string_equal (line_of (both, 3, "wood", "oak|elm"), "executor crank: what turns it [elm]");
  assert_string_equal (line_of (both, 4, "speed", "N"), "turns per second [none]");
  weft_cli_options_flags (both, &n);
  assert_int_equal (n, 5);
  assert_string_equal (line_of (alone, 3, "speed", "N"),
                       "executor abacus: turns per second [none]");
}

/* ------------------------------------------------------------ the tables of all executors */

static void
check_table (const struct weft_exec_ops *ops)
{
  union weft_value values[WEFT_MOST_OWN_OPTIONS];

  assert_true (ops->options->n <= WEFT_MOST_OWN_OPTIONS);
  weft_table_defaults (ops->options, values);
  for (unsigned i = 0; i < ops->options->n; i++) {
    const struct weft_field *row = &ops->options->field[i];
    gboolean spelled = strspn (row->name, "abcdefghijklmnopqrstuvwxyz-") == strlen (row->name);
    if (!spelled || (row->type == WEFT_TYPE_BOOL && values[i].i))
      fail_msg ("executor %s: flag --%s", ops->name, row->name);
  }
}

static void
every_table_makes_flags (void **state)
{
  const struct weft_exec_ops *const *lists[] = { weft_cli_executors (),
                                                 weft_cli_real_executors () };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (lists); i++)
    for (const struct weft_exec_ops *const *ops = lists[i]; *ops; ops++)
      check_table (*ops);
}

/* Every executor that computes real numbers returns the name of its machine. An executor that
 * computes on the host does not time kernel launches, and cannot run a job of several processes. */
static void
executors_of_numbers_know_their_machine (void **state)
{
  (void) state;
  for (const struct weft_exec_ops *const *ops = weft_cli_executors (); *ops; ops++)
    assert_false ((*ops)->flags & WEFT_EXEC_NUMBERS);
  for (const struct weft_exec_ops *const *ops = weft_cli_real_executors (); *ops; ops++) {
    g_autofree char *name = (*ops)->machine_name ();
    gboolean on_host = ((*ops)->flags & WEFT_EXEC_HOST) != 0;
    assert_true (name && *name);
    assert_true ((*ops)->flags & WEFT_EXEC_NUMBERS);
    assert_int_equal (on_host, (*ops)->time_launches == NULL);
    assert_int_equal (on_host, !((*ops)->flags & WEFT_EXEC_PROCESSES));
  }
}

/* ------------------------------------------------------------------------- commands */

#define JOB "--model gpt2-nano --topology dgx-h100 "
#define TRAIN "train --model gpt2-nano --data README.md "

static void
commands_refuse_flags_of_other_executors (void **state)
{
  static const char *const cases[][2] = {
    { "sim " JOB "--executor clock --step-by-step",
      "--step-by-step: not available with executor clock (expected --executor sim)" },
    { "compare a.ini b.ini --executor clock --step-by-step",
      "--step-by-step: not available with executor clock (expected --executor sim)" },
    { "sim " JOB "--roles", "unknown flag --roles" },
    { "sim " JOB "--ranks-per-gpu 2", "unknown flag --ranks-per-gpu" },
    { "measure --graph", "unknown flag --graph" },
    { TRAIN "--poison", "unknown flag --poison" },
    { TRAIN "--times cupti",
      "--times: not available with executor cpu (expected --executor cuda)" },
    { TRAIN "--deadline 5",
      "--deadline: not available with executor cpu (expected --executor cuda)" },
    { TRAIN "--patience 5",
      "--patience: not available with executor cpu (expected --executor cuda)" },
    { TRAIN "--threads 0", "--threads: found \"0\", wanted none|1..1024" },
    { TRAIN "--stress 0", "--stress: found \"0\", wanted none|1..9007199254740992" },
    /* A --deadline of 0 is refused, also on a machine without CUDA. */
    { TRAIN "--executor cuda --deadline 0", "--deadline: found \"0\", wanted none|0.001..1e9" },
    { TRAIN "--executor cuda --ranks-per-gpu 2000",
      "--ranks-per-gpu: found \"2000\", wanted 1..1024" },
    { TRAIN "--executor cuda --times clocks", "--times: found \"clocks\", wanted events|cupti" },
    { "measure --model gpt2-nano --topology dgx-h100",
      "topology: found \"dgx-h100\", wanted cpu (or --executor cuda)" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++)
    weft_test_refused (cases[i][0], 2, cases[i][1]);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (an_executor_gets_the_values_of_its_own_flags),
  cmocka_unit_test (flags_that_the_executor_lacks_or_cannot_take_are_refused),
  cmocka_unit_test (help_says_which_executors_a_line_is_about),
  cmocka_unit_test (every_table_makes_flags),
  cmocka_unit_test (executors_of_numbers_know_their_machine),
  cmocka_unit_test (commands_refuse_flags_of_other_executors),
};

WEFT_TESTS (tests)
