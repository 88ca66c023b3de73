/* The INI reader: lines, comments, and every way a file can be wrong. */
#include "core/base/conf.h"
#include "core/base/error.h"
#include "tests/runner/runner.h"
#include <string.h>

static weft_conf *
parse (const char *text)
{
  g_autoptr (GError) error = NULL;
  weft_conf *conf = weft_conf_parse (text, -1, "job.ini", &error);

  if (!conf)
    fail_msg ("%s", error->message);
  return conf;
}

static void
assert_entry (const weft_conf *conf, unsigned i, struct weft_conf_entry wanted)
{
  assert_true (i < conf->n_entry);
  assert_string_equal (conf->entry[i].section, wanted.section);
  assert_string_equal (conf->entry[i].key, wanted.key);
  assert_string_equal (conf->entry[i].value, wanted.value);
  assert_int_equal (conf->entry[i].line, wanted.line);
}

/* Asserts that the INI reader refuses `text`, and that `message` is the whole error. */
static void
assert_wrong (const char *text, gssize length, const char *message)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_conf) conf = weft_conf_parse (text, length, "job.ini", &error);

  assert_null (conf);
  assert_string_equal (error->message, message);
  assert_int_equal (weft_error_exit_status (error), 2);
}

static void
entries_keep_their_order_and_their_line (void **state)
{
  (void) state;
  g_autoptr (weft_conf) conf = parse ("# a job\n\n[model]\nconfig = gpt2\n\n[ train ]\r\n"
                                      "\tmicro_batch_size=4\r\n[model]\nhidden_size = 64");

  assert_int_equal (conf->n_entry, 3);
  assert_entry (conf, 0, (struct weft_conf_entry){ "model", "config", "gpt2", 4 });
  assert_entry (conf, 1, (struct weft_conf_entry){ "train", "micro_batch_size", "4", 7 });
  assert_entry (conf, 2, (struct weft_conf_entry){ "model", "hidden_size", "64", 9 });
}

static void
a_comment_begins_after_a_blank (void **state)
{
  (void) state;
  g_autoptr (weft_conf) conf = parse ("[a] # first\nb = 1 # one\nc = x#y\nd = # nothing\n"
                                      "e = two words\t# tab\n  # indented\nf = p = q\n");

  assert_int_equal (conf->n_entry, 5);
  assert_entry (conf, 0, (struct weft_conf_entry){ "a", "b", "1", 2 });
  assert_entry (conf, 1, (struct weft_conf_entry){ "a", "c", "x#y", 3 });
  assert_entry (conf, 2, (struct weft_conf_entry){ "a", "d", "", 4 });
  assert_entry (conf, 3, (struct weft_conf_entry){ "a", "e", "two words", 5 });
  assert_entry (conf, 4, (struct weft_conf_entry){ "a", "f", "p = q", 7 });
}

static void
nothing_is_a_file_without_entries (void **state)
{
  (void) state;
  static const char *const texts[] = { "", "\n", "# only a comment", "[empty]\n", "\xef\xbb\xbf" };

  for (unsigned i = 0; i < G_N_ELEMENTS (texts); i++) {
    g_autoptr (weft_conf) conf = parse (texts[i]);
    assert_int_equal (conf->n_entry, 0);
  }
}

static void
a_wrong_line_is_named (void **state)
{
  (void) state;
  assert_wrong ("[a]\nb = 1\nc\n", -1, "job.ini:3: found \"c\", wanted KEY = VALUE");
  assert_wrong ("[a]\n= 1\n", -1, "job.ini:2: found \"= 1\", wanted KEY = VALUE");
  assert_wrong ("[a\nb = 1\n", -1, "job.ini:1: found \"[a\", wanted [section]");
  assert_wrong ("[]\n", -1, "job.ini:1: found \"[]\", wanted [section]");
  assert_wrong ("b = 1\n", -1, "job.ini:1: found \"b = 1\", wanted a [section] before it");
  assert_wrong ("[a]\nb = 1\n\nb = 2\n", -1,
                "job.ini:4: [a] \"b\" is given twice, first on line 2");
  assert_wrong ("[a]\nb = 1\n[c]\n[a]\nb = 1\n", -1,
                "job.ini:5: [a] \"b\" is given twice, first on line 2");
}

static void
bytes_that_are_no_text_are_refused (void **state)
{
  (void) state;
  assert_wrong ("[a]\nb = \xff\n", -1, "job.ini:2: found byte 0xff, wanted UTF-8 text");
  assert_wrong ("[a]\n\nb = 1\0c", 12, "job.ini:3: found byte 0x00, wanted UTF-8 text");
  assert_wrong ("\xc3", -1, "job.ini:1: found byte 0xc3, wanted UTF-8 text");
}

static void
an_unknown_escape_is_refused_on_its_line (void **state)
{
  (void) state;
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_conf) good = parse ("[a]\nb = \\sx\\\\y\n");
  g_autoptr (weft_conf) bad = weft_conf_parse ("[a]\nb = \\q\n", -1, "job.ini", &error);

  assert_string_equal (good->entry[0].value, " x\\y");
  assert_null (bad);
  assert_true (g_str_has_prefix (error->message, "job.ini:2: [a] "));
}

static void
a_name_that_the_key_file_refuses_is_an_error (void **state)
{
  (void) state;
  static const char *const texts[] = { "[a[b]\nc = 1\n", "[a]b]\nc = 1\n", "[a]\nb[ = 1\n",
                                       "[a]\n]x[ = 1\n", "[ ]\nb = 1\n" };

  for (unsigned i = 0; i < G_N_ELEMENTS (texts); i++) {
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_conf) conf = weft_conf_parse (texts[i], -1, "job.ini", &error);
    assert_null (conf);
    assert_true (g_str_has_prefix (error->message, "job.ini:"));
  }
}

static void
a_line_of_a_million_bytes_is_read_whole (void **state)
{
  (void) state;
  g_autofree char *value = g_strnfill (1000000, 'x');
  g_autofree char *text = g_strconcat ("[a]\nb = ", value, "\n", NULL);
  g_autofree char *bad = g_strconcat ("[a]\n", value, NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_conf) conf = parse (text);
  g_autoptr (weft_conf) none = weft_conf_parse (bad, -1, "job.ini", &error);

  assert_string_equal (conf->entry[0].value, value);
  assert_null (none);
  assert_true (strlen (error->message) < 200);
}

/* Random text made of the characters of the INI grammar must neither crash the parser nor give
 * an entry without key or value. */
static void
no_text_of_the_grammar_crashes (void **state)
{
  (void) state;
  static const char letters[] = "[]=#\\ \n\tab\r\xc3\xa9";
  g_autoptr (GRand) random = g_rand_new_with_seed (20261121);

  for (int i = 0; i < 3000; i++) {
    char text[40];
    unsigned length = g_rand_int_range (random, 0, sizeof text);
    for (unsigned k = 0; k < length; k++)
      text[k] = letters[g_rand_int_range (random, 0, sizeof letters)];
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_conf) conf = weft_conf_parse (text, length, "fuzz.ini", &error);
    assert_true ((conf == NULL) == (error != NULL));
    for (unsigned k = 0; conf && k < conf->n_entry; k++)
      assert_true (*conf->entry[k].key && conf->entry[k].value && conf->entry[k].line > 0);
  }
}

static void
blame_says_file_line_and_section (void **state)
{
  (void) state;
  g_autoptr (weft_conf) conf = parse ("[a]\n\nb = 1\n");
  g_autoptr (GError) error = NULL;

  weft_bad_input (&error, "b: found \"1\"");
  assert_false (weft_conf_blame (conf, &conf->entry[0], &error));
  assert_string_equal (error->message, "job.ini:3: [a] b: found \"1\"");
}

static void
a_missing_file_is_bad_input (void **state)
{
  (void) state;
  g_autoptr (GError) error = NULL;

  assert_null (weft_conf_load ("no/such/file.ini", &error));
  assert_int_equal (weft_error_exit_status (error), 2);
  assert_non_null (strstr (error->message, "no/such/file.ini"));
}

static void
a_bundled_name_is_found_however_it_is_spelled (void **state)
{
  (void) state;
  static const char *const names[] = { "dgx-h100", "DGX_H100", "dgx.h100",
                                       "topologies/dgx-h100.ini" };

  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    g_autofree char *path = weft_data_find ("topologies", names[i], ".ini", NULL);
    assert_true (g_str_has_suffix (path, "topologies/dgx-h100.ini"));
  }
}

static void
a_mistyped_bundled_name_is_corrected (void **state)
{
  (void) state;
  g_autoptr (GError) error = NULL;

  assert_null (weft_data_find ("topologies", "dgx-h10", ".ini", &error));
  assert_string_equal (error->message,
                       "nothing named \"dgx-h10\" in topologies; did you mean dgx-h100?");
  g_clear_error (&error);
  static const char *const parts[][3] = {
    { "topologies", "h200", "hgx-h200" },
    { "stacks", "mcore",
      "megatron-core, megatron-core-0.10, megatron-core-0.13 or megatron-core-0.8" },
    { "stacks", "tt", "torchtitan or torchtitan-2412" },
    { "models", "llama4", "llama-4-maverick or llama-4-scout" },
    { "models", "DeepSeek", "deepseek-nano, deepseek-v2, deepseek-v2-lite or deepseek-v3" },
  };
  for (unsigned i = 0; i < G_N_ELEMENTS (parts); i++) {
    g_autofree char *near = g_strdup_printf ("; did you mean %s?", parts[i][2]);
    const char *suffix = strcmp (parts[i][0], "models") == 0 ? ".json" : ".ini";
    assert_null (weft_data_find (parts[i][0], parts[i][1], suffix, &error));
    if (!g_str_has_suffix (error->message, near))
      fail_msg ("%s: %s", parts[i][1], error->message);
    g_clear_error (&error);
  }
  assert_null (weft_data_find ("topologies", "some/where.ini", ".ini", &error));
  assert_string_equal (error->message, "no such file: some/where.ini");
}

static void
the_environment_moves_the_data (void **state)
{
  (void) state;
  g_autofree char *built = g_strdup (weft_data_dir ());
  g_autofree char *before = g_strdup (g_getenv ("WEFT_DATA"));

  g_setenv ("WEFT_DATA", "/nowhere", TRUE);
  assert_string_equal (weft_data_dir (), "/nowhere");
  g_auto (GStrv) names = weft_data_names ("topologies", ".ini");
  assert_int_equal (g_strv_length (names), 0);
  if (before)
    g_setenv ("WEFT_DATA", before, TRUE);
  else
    g_unsetenv ("WEFT_DATA");
  assert_string_equal (weft_data_dir (), built);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (entries_keep_their_order_and_their_line),
  cmocka_unit_test (a_comment_begins_after_a_blank),
  cmocka_unit_test (nothing_is_a_file_without_entries),
  cmocka_unit_test (a_wrong_line_is_named),
  cmocka_unit_test (bytes_that_are_no_text_are_refused),
  cmocka_unit_test (an_unknown_escape_is_refused_on_its_line),
  cmocka_unit_test (a_name_that_the_key_file_refuses_is_an_error),
  cmocka_unit_test (a_line_of_a_million_bytes_is_read_whole),
  cmocka_unit_test (no_text_of_the_grammar_crashes),
  cmocka_unit_test (blame_says_file_line_and_section),
  cmocka_unit_test (a_missing_file_is_bad_input),
  cmocka_unit_test (a_bundled_name_is_found_however_it_is_spelled),
  cmocka_unit_test (a_mistyped_bundled_name_is_corrected),
  cmocka_unit_test (the_environment_moves_the_data),
};

WEFT_TESTS (tests)
