/* Labs: the answers computed by hand (tests/data/labs) agree with the checker, a wrong answer gets
 * a hint and never the number. */
#include "core/base/error.h"
#include "planner/lab.h"
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

static weft_lab *
load (const char *name)
{
  g_autoptr (GError) error = NULL;
  weft_lab *lab = weft_lab_load (name, &error);

  if (!lab)
    fail_msg ("%s", error->message);
  return lab;
}

static struct weft_lab_mark *
check (const weft_lab *lab, const char *path)
{
  g_autoptr (GError) error = NULL;
  struct weft_lab_mark *mark = weft_lab_check (lab, path, &error);

  if (!mark)
    fail_msg ("%s", error->message);
  return mark;
}

/* Runs `each` for every bundled lab. */
static void
for_labs (void (*each) (const weft_lab *lab, const char *folder), const char *folder)
{
  g_auto (GStrv) names = weft_lab_names ();

  assert_true (g_strv_length (names) >= 10);
  for (unsigned i = 0; names[i]; i++) {
    g_autoptr (weft_lab) lab = load (names[i]);
    g_autofree char *number = g_strdup_printf ("%u", i + 1);
    g_autoptr (weft_lab) same = load (number);
    assert_string_equal (lab->name, same->name);
    each (lab, folder);
  }
}

static void
check_hand_answers (const weft_lab *lab, const char *folder)
{
  g_autofree char *path = g_strdup_printf (WEFT_SOURCE_DIR "/tests/data/labs/%s.txt", lab->name);
  g_autofree struct weft_lab_mark *mark = check (lab, path);

  (void) folder;
  for (guint i = 0; i < lab->question->len; i++)
    if (mark[i].verdict != WEFT_LAB_RIGHT)
      fail_msg ("%s, question %u: verdict %d, %s", lab->name, i + 1, mark[i].verdict,
                mark[i].look ? mark[i].look : "no answer");
}

static void
answers_by_hand_are_right (void **state)
{
  (void) state;
  for_labs (check_hand_answers, NULL);
}

/* Whether a text has the first three digits of a number, wherever its point is. */
static gboolean
tells (const char *look, double value)
{
  g_autofree char *digits = g_strdup_printf ("%.2e", value);
  g_autofree char *shown = g_strdup_printf ("%c.%c%c", digits[0], digits[2], digits[3]);

  return strstr (look, shown) != NULL;
}

/* Answers that are a third too large. */
static void
check_wrong_answers (const weft_lab *lab, const char *folder)
{
  g_autoptr (GString) text = g_string_new ("[" WEFT_LAB_ANSWERS "]\n");
  g_autofree char *path = g_build_filename (folder, lab->name, NULL);

  for (unsigned i = 1; i <= lab->question->len; i++) {
    double value;
    assert_true (weft_lab_value (lab, i, &value, NULL));
    g_string_append_printf (text, "%u = %.17g\n", i, 1.3456 * value);
  }
  assert_true (g_file_set_contents (path, text->str, -1, NULL));
  g_autofree struct weft_lab_mark *mark = check (lab, path);
  for (guint i = 0; i < lab->question->len; i++) {
    double value;
    assert_true (weft_lab_value (lab, i + 1, &value, NULL));
    assert_int_equal (mark[i].verdict, WEFT_LAB_WRONG);
    assert_true (strlen (mark[i].look) > 15);
    if (tells (mark[i].look, value))
      fail_msg ("%s, question %u: the hint has the answer: %s", lab->name, i + 1, mark[i].look);
  }
}

static void
a_wrong_answer_says_what_to_look_at_and_not_the_number (void **state)
{
  for_labs (check_wrong_answers, *state);
}

/* Every mistake of a question is wrong, and its value leads to its own text. */
static void
check_mistakes (const weft_lab *lab, const char *folder)
{
  g_autofree char *path = g_build_filename (folder, "mistake", NULL);

  for (guint i = 0; i < lab->question->len; i++) {
    const struct weft_lab_question *q = &g_array_index (lab->question, struct weft_lab_question, i);
    for (guint k = 0; k < q->mistake->len; k++) {
      const struct weft_conf_entry *entry = q->mistake->pdata[k];
      const char *text = strstr (entry->value, " : ");
      assert_non_null (text);
      g_autofree char *expression = g_strndup (entry->value, (gsize) (text - entry->value));
      struct weft_lab_question other = *q;
      other.value = expression;
      g_autoptr (GArray) one = g_array_new (FALSE, FALSE, sizeof other);
      weft_lab view = *lab;
      g_array_append_val (one, other);
      view.question = one;
      double value;
      assert_true (weft_lab_value (&view, 1, &value, NULL));
      g_autofree char *answers =
          g_strdup_printf ("[" WEFT_LAB_ANSWERS "]\n%u = %.17g\n", i + 1, value);
      assert_true (g_file_set_contents (path, answers, -1, NULL));
      g_autofree struct weft_lab_mark *mark = check (lab, path);
      if (mark[i].verdict != WEFT_LAB_WRONG || strcmp (mark[i].look, text + 3))
        fail_msg ("%s, question %u, %s: verdict %d", lab->name, i + 1, entry->key, mark[i].verdict);
    }
  }
}

static void
every_mistake_has_its_own_hint (void **state)
{
  for_labs (check_mistakes, *state);
}

/* --------------------------------------------------------------------------- pages */

/* The page shows how to get its questions. tests/cli/test_figures.c draws the figures of all
 * pages. */
static void
check_page (const weft_lab *lab, const char *folder)
{
  g_autofree char *path = g_strdup_printf (WEFT_SOURCE_DIR "/docs/labs/%s.md", lab->name);
  g_autofree char *sheet = g_strdup_printf ("./weft lab %s > answers.txt", lab->name);
  g_autofree char *page = NULL;

  (void) folder;
  assert_true (g_file_get_contents (path, &page, NULL, NULL));
  assert_non_null (strstr (page, sheet));
}

static void
every_page_shows_how_to_get_its_questions (void **state)
{
  (void) state;
  for_labs (check_page, NULL);
}

/* -------------------------------------------------------------------------- errors */

static void
assert_refused (const char *folder, const char *answers, const char *words)
{
  g_autoptr (weft_lab) lab = load ("ring");
  g_autofree char *path = g_build_filename (folder, "wrong", NULL);
  g_autoptr (GError) error = NULL;

  assert_true (g_file_set_contents (path, answers, -1, NULL));
  assert_null (weft_lab_check (lab, path, &error));
  if (!strstr (error->message, words))
    fail_msg ("%s: found \"%s\", wanted \"%s\"", answers, error->message, words);
}

static void
wrong_files_are_refused_with_their_line (void **state)
{
  g_autoptr (GError) error = NULL;

  assert_refused (*state, "[answers]\n99 = 1\n", "wanted [answers] 1..7");
  assert_refused (*state, "[answer]\n1 = 1\n", "wrong:2: found [answer] 1");
  assert_refused (*state, "[answers]\n1 = many\n", "wrong:2");
  assert_refused (*state, "[answers]\n1 = 3 s\n", "wrong:2");
  assert_null (weft_lab_load ("rign", &error));
  assert_non_null (strstr (error->message, "ring"));
  g_clear_error (&error);
  assert_null (weft_lab_load ("99", &error));
  assert_non_null (strstr (error->message, "wanted 1.."));
}

/* A lab of one's own. */
static void
assert_no_lab (const char *folder, const char *text, const char *words)
{
  g_autofree char *path = g_build_filename (folder, "own.ini", NULL);
  g_autoptr (GError) error = NULL;

  assert_true (g_file_set_contents (path, text, -1, NULL));
  assert_null (weft_lab_load (path, &error));
  if (!strstr (error->message, words))
    fail_msg ("%s: found \"%s\", wanted \"%s\"", text, error->message, words);
}

#define HEAD "[lab]\ntitle = Own\nminutes = 5\n"
#define ONE "[question 1]\nask = Six?\nvalue = 2 * 3\nunit =\nwithin = 0\nlook = Count.\n"

static void
labs_of_ones_own_are_checked (void **state)
{
  g_autofree char *path = g_build_filename (*state, "good.ini", NULL);
  double value;

  assert_true (g_file_set_contents (path, HEAD ONE, -1, NULL));
  g_autoptr (weft_lab) lab = load (path);
  assert_true (weft_lab_value (lab, 1, &value, NULL) && value == 6);
  assert_no_lab (*state, HEAD, "found no [question 1]");
  assert_no_lab (*state, ONE, "[lab] has no title");
  assert_no_lab (*state, "[lab]\ntitle = Own\nminutes = many\n" ONE, "minutes = many");
  assert_no_lab (*state, HEAD "[jobs a]\nflags = -\n" ONE, "own.ini:5: found section [jobs a]");
  assert_no_lab (*state, HEAD ONE "hint = x\n", "own.ini:10: found hint in [question 1]");
}

/* An expression names a job or a number that does not exist. */
static void
expressions_without_a_value_are_errors (void **state)
{
  static const char *const wrong[][2] = { { "none.iteration.time_s", "job none" },
                                          { "2 +", "has no value" } };
  g_autofree char *path = g_build_filename (*state, "own.ini", NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (wrong); i++) {
    g_autofree char *text = g_strdup_printf (
        HEAD "[question 1]\nask = ?\nvalue = %s\nunit =\nwithin = 0\nlook = Look.\n", wrong[i][0]);
    g_autoptr (GError) error = NULL;
    double value;
    assert_true (g_file_set_contents (path, text, -1, NULL));
    g_autoptr (weft_lab) lab = load (path);
    assert_false (weft_lab_value (lab, 1, &value, &error));
    assert_non_null (strstr (error->message, wrong[i][1]));
  }
}

static void
empty_answers_are_no_answers (void **state)
{
  g_autoptr (weft_lab) lab = load ("1");
  g_autofree char *path = g_build_filename (*state, "empty", NULL);

  assert_true (g_file_set_contents (path, "[answers]\n1 =\n3 = 14\n", -1, NULL));
  g_autofree struct weft_lab_mark *mark = check (lab, path);
  assert_int_equal (mark[0].verdict, WEFT_LAB_NONE);
  assert_int_equal (mark[1].verdict, WEFT_LAB_NONE);
  assert_int_equal (mark[2].verdict, WEFT_LAB_RIGHT);
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (answers_by_hand_are_right),
  IN_FOLDER (a_wrong_answer_says_what_to_look_at_and_not_the_number),
  IN_FOLDER (every_mistake_has_its_own_hint),
  cmocka_unit_test (every_page_shows_how_to_get_its_questions),
  IN_FOLDER (wrong_files_are_refused_with_their_line),
  IN_FOLDER (labs_of_ones_own_are_checked),
  IN_FOLDER (expressions_without_a_value_are_errors),
  IN_FOLDER (empty_answers_are_no_answers),
};

WEFT_TESTS (tests)
