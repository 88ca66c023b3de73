/* The table of knobs: complete and consistent; printed values are parsed to the same values. */
#include "core/job/strategy.h"
#include "core/base/suggest.h"
#include "core/base/units.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <string.h>

static const struct weft_table *const table = &weft_strategy_table;

static void
every_field_of_the_public_classes_is_a_knob (void **state)
{
  (void) state;
  g_autofree char *text = NULL;
  unsigned n = 0;

  assert_true (
      g_file_get_contents (WEFT_SOURCE_DIR "/tests/data/knob-checklist.txt", &text, NULL, NULL));
  g_auto (GStrv) lines = g_strsplit (g_strchomp (text), "\n", -1);
  for (unsigned i = 0; lines[i]; i++) {
    if (*lines[i] == '#')
      continue;
    g_auto (GStrv) word = g_strsplit (lines[i], "\t", 2);
    int row = weft_table_find (table, word[1]);
    if (row < 0)
      fail_msg ("%s.%s is not a knob", word[0], word[1]);
    g_auto (GStrv) source = g_strsplit (table->field[row].source, " ", -1);
    if (!g_strv_contains ((const char *const *) source, word[0]))
      fail_msg ("%s: %s is not among its sources", word[1], word[0]);
    n++;
  }
  assert_int_equal (n, 160);
}

static void
every_name_and_alias_finds_its_own_row (void **state)
{
  (void) state;
  for (unsigned i = 0; i < table->n; i++) {
    assert_int_equal (weft_table_find (table, table->field[i].name), i);
    g_auto (GStrv) alias = g_strsplit (table->field[i].aliases, " ", -1);
    for (unsigned k = 0; alias[k]; k++)
      assert_int_equal (weft_table_find (table, alias[k]), i);
  }
}

static void
affects_is_a_set_of_words_or_a_reason (void **state)
{
  (void) state;
  static const char *const words[] = { "program", "memory", "cost", "executor", "init", NULL };

  for (unsigned i = 0; i < table->n; i++) {
    const char *affects = table->field[i].affects;
    if (strcmp (affects, "not yet") == 0)
      continue;
    if (g_str_has_prefix (affects, "none: ")) {
      assert_true (strlen (affects) > strlen ("none: ") + 10);
      continue;
    }
    g_auto (GStrv) word = g_strsplit (affects, " ", -1);
    for (unsigned k = 0; word[k]; k++)
      if (!g_strv_contains (words, word[k]))
        fail_msg ("%s affects \"%s\"", table->field[i].name, word[k]);
  }
}

/* Parses the text of a knob's value, prints the value, parses the printed text, and asserts that
 * both values are equal. */
static void
round_trip (const struct weft_field *field, const char *text)
{
  union weft_value first, second;
  g_autoptr (GError) error = NULL;

  if (!weft_field_parse (field, text, &first, &error))
    fail_msg ("%s", error->message);
  g_autofree char *printed = weft_field_print (field, first);
  assert_true (weft_field_parse (field, printed, &second, NULL));
  assert_int_equal (first.i, second.i);
}

static void
refused (const struct weft_field *field, const char *text)
{
  union weft_value value;
  g_autoptr (GError) error = NULL;

  if (weft_field_parse (field, text, &value, &error))
    fail_msg ("%s accepts \"%s\"", field->name, text);
  assert_non_null (strstr (error->message, field->name));
}

static void
try_range (const struct weft_field *field)
{
  double lo, hi;

  round_trip (field, field->lo);
  round_trip (field, field->hi);
  assert_true (weft_units_parse (field->lo, "", &lo, NULL));
  assert_true (weft_units_parse (field->hi, "", &hi, NULL));
  g_autofree char *below = g_strdup_printf ("%.0f", lo - 1);
  g_autofree char *above = g_strdup_printf ("%.0f", hi + 1);
  refused (field, below);
  refused (field, above);
  refused (field, "1.5");
}

static void
try_words (const struct weft_field *field)
{
  for (unsigned k = 0; field->words[k]; k++)
    round_trip (field, field->words[k]);
  refused (field, "no such word");
}

static void
every_value_of_every_knob_prints_and_parses_back (void **state)
{
  (void) state;
  for (unsigned i = 0; i < table->n; i++) {
    const struct weft_field *field = &table->field[i];
    if (field->type == WEFT_TYPE_METHOD) {
      refused (field, "true");
      continue;
    }
    round_trip (field, field->def);
    if (field->type == WEFT_TYPE_INT)
      try_range (field);
    if (field->type == WEFT_TYPE_WORD)
      try_words (field);
    if (field->type == WEFT_TYPE_BOOL) {
      round_trip (field, "true");
      round_trip (field, "false");
      refused (field, "maybe");
    }
  }
}

static void
defaults_pass_the_check (void **state)
{
  (void) state;
  union weft_strategy strategy;

  weft_table_defaults (table, strategy.at);
  assert_true (weft_strategy_check (&strategy, NULL));
  assert_int_equal (strategy.batch_p2p_comm, 1);
  assert_int_equal (strategy.bucket_size, WEFT_NONE);
  assert_int_equal (strategy.tensor_model_parallel_size, 1);
}

/* Returns a value of the knob that differs from its default `def`. */
static union weft_value
moved (const struct weft_field *field, union weft_value def)
{
  union weft_value other = def;

  if (field->type == WEFT_TYPE_TEXT)
    other.i = g_quark_from_string ("something else");
  else if (field->type == WEFT_TYPE_WORD)
    other.i = def.i == 0 ? (field->words[1] ? 1 : WEFT_NONE) : 0;
  else
    other.i = def.i == 0 ? 1 : 0;
  return other;
}

static void
a_pending_knob_moved_from_its_default_is_refused_by_name (void **state)
{
  (void) state;
  for (unsigned i = 0; i < table->n; i++) {
    union weft_strategy strategy;
    g_autoptr (GError) error = NULL;

    weft_table_defaults (table, strategy.at);
    strategy.at[i] = moved (&table->field[i], strategy.at[i]);
    gboolean ok = weft_strategy_check (&strategy, &error);
    if (table->field[i].type == WEFT_TYPE_METHOD || !weft_field_is_pending (&table->field[i])) {
      assert_true (ok);
      continue;
    }
    g_autofree char *start =
        g_strdup_printf ("strategy knob \"%s\" is not built yet; leave it at %s",
                         table->field[i].name, table->field[i].def);
    assert_false (ok);
    assert_string_equal (error->message, start);
  }
}

/* Runs `weft knobs` with these flags and returns its standard output. */
static char *
run (const char *flags, int wanted_status)
{
  g_autofree char *command = g_strconcat (WEFT_BINARY, " knobs ", flags, NULL);
  g_autofree char *complaint = NULL;
  char *out;
  int status;

  assert_true (g_spawn_command_line_sync (command, &out, &complaint, &status, NULL));
  assert_int_equal (status, wanted_status << 8);
  return out;
}

static void
the_committed_page_of_knobs_is_the_printed_one (void **state)
{
  (void) state;
  g_autofree char *committed = NULL;
  g_autofree char *printed = run ("--markdown", 0);

  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/docs/knobs.md", &committed, NULL, NULL));
  if (strcmp (committed, printed) != 0)
    fail_msg ("docs/knobs.md is out of date: weft knobs --markdown > docs/knobs.md");
}

/* `weft knobs --markdown` prints a table of six cells per row. A bar in a description would end the
 * cell early. So every row must have exactly seven bars without a backslash. */
static void
every_row_of_the_page_has_six_cells (void **state)
{
  (void) state;
  g_autofree char *printed = run ("--markdown", 0);
  g_auto (GStrv) lines = g_strsplit (printed, "\n", -1);

  for (unsigned i = 0; lines[i]; i++) {
    unsigned bars = 0;
    for (const char *at = lines[i]; *at; at++)
      bars += *at == '|' && (at == lines[i] || at[-1] != '\\');
    if (*lines[i] == '|' && bars != 7)
      fail_msg ("%s: found %u bars, wanted 7", lines[i], bars);
  }
}

static void
json_has_one_object_for_each_knob (void **state)
{
  (void) state;
  g_autofree char *text = run ("--json", 0);
  g_autoptr (JsonNode) root = json_from_string (text, NULL);
  JsonArray *all = json_node_get_array (root);

  assert_int_equal (json_array_get_length (all), table->n);
  for (unsigned i = 0; i < table->n; i++) {
    JsonObject *knob = json_array_get_object_element (all, i);
    JsonArray *affects = json_object_get_array_member (knob, "affects");
    const char *first = json_array_get_string_element (affects, 0);
    assert_string_equal (json_object_get_string_member (knob, "name"), table->field[i].name);
    assert_true (g_str_has_prefix (table->field[i].affects, first));
    assert_int_equal (strcmp (first, "none") == 0, json_object_has_member (knob, "reason"));
  }
}

static void
an_unknown_knob_is_a_usage_error (void **state)
{
  (void) state;
  g_autofree char *none = run ("buket_size --json", 2);
  g_autofree char *flag = run ("--jsn", 2);
  g_autofree char *alias = run ("tp-size", 0);

  assert_string_equal (none, "");
  assert_string_equal (flag, "");
  assert_true (g_str_has_prefix (alias, "tensor_model_parallel_size\n"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_field_of_the_public_classes_is_a_knob),
  cmocka_unit_test (every_name_and_alias_finds_its_own_row),
  cmocka_unit_test (affects_is_a_set_of_words_or_a_reason),
  cmocka_unit_test (every_value_of_every_knob_prints_and_parses_back),
  cmocka_unit_test (defaults_pass_the_check),
  cmocka_unit_test (a_pending_knob_moved_from_its_default_is_refused_by_name),
  cmocka_unit_test (the_committed_page_of_knobs_is_the_printed_one),
  cmocka_unit_test (every_row_of_the_page_has_six_cells),
  cmocka_unit_test (json_has_one_object_for_each_knob),
  cmocka_unit_test (an_unknown_knob_is_a_usage_error),
};

WEFT_TESTS (tests)
