#include "cli/ask.h"
#include "cli/cli.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/wrap.h"
#include "planner/lab.h"
#include <stdio.h>
#include <string.h>

enum { SHEET_COLUMNS = 80 }; /* width of a file of answers */

static const char *const verdict_words[] = {
  [WEFT_LAB_NONE] = "no answer", [WEFT_LAB_RIGHT] = "right", [WEFT_LAB_WRONG] = "not yet"
};

static const struct weft_lab_question *
question_at (const weft_lab *lab, unsigned i)
{
  return &g_array_index (lab->question, struct weft_lab_question, i);
}

/* --------------------------------------------------------------------------- lists */

static int
list_labs (gboolean json, GError **error)
{
  g_auto (GStrv) names = weft_lab_names ();
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_array (b);
  for (unsigned i = 0; names[i]; i++) {
    g_autoptr (weft_lab) lab = weft_lab_load (names[i], error);
    if (!lab)
      return weft_cli_fail (*error);
    json_builder_begin_object (b);
    weft_json_int (b, "lab", i + 1);
    weft_json_text (b, "name", lab->name);
    weft_json_text (b, "title", lab->title);
    weft_json_int (b, "minutes", lab->minutes);
    weft_json_int (b, "questions", lab->question->len);
    json_builder_end_object (b);
    if (!json)
      printf ("%2u  %-10s %2u min  %2u questions  %s\n", i + 1, lab->name, lab->minutes,
              lab->question->len, lab->title);
  }
  json_builder_end_array (b);
  if (json)
    weft_cli_print_json (b);
  else
    printf ("\nThe pages are docs/labs/NAME.md. weft lab NAME prints a file for the answers.\n");
  return 0;
}

/* Prints a text as comment lines. */
static void
print_comment (const char *text)
{
  g_autofree char *wrapped = weft_wrap_lines (text, SHEET_COLUMNS - 2);
  g_auto (GStrv) lines = g_strsplit (g_strchomp (wrapped), "\n", -1);

  for (char **at = lines; *at; at++)
    printf ("# %s\n", g_strstrip (*at));
}

static void
print_question (const struct weft_lab_question *q, unsigned number)
{
  printf ("\n");
  print_comment (q->ask);
  printf ("# %s%s, ", *q->unit ? "in " : "a plain number", q->unit);
  if (q->within > 0)
    printf ("within %g %%\n", 100 * q->within);
  else
    printf ("exactly\n");
  printf ("%u =\n", number);
}

/* Prints the questions as a file of answers that are still empty. */
static void
print_sheet (const weft_lab *lab)
{
  printf ("# %s, about %u minutes: docs/labs/%s.md\n"
          "# Write answers behind the signs of equality, as 12.5 GB, 3 ms, 0.25; then\n"
          "# weft lab %s --check FILE\n\n[" WEFT_LAB_ANSWERS "]\n",
          lab->title, lab->minutes, lab->name, lab->name);
  for (unsigned i = 0; i < lab->question->len; i++)
    print_question (question_at (lab, i), i + 1);
}

/* -------------------------------------------------------------------------- checks */

static void
add_mark (JsonBuilder *b, unsigned number, const struct weft_lab_mark *mark)
{
  json_builder_begin_object (b);
  weft_json_int (b, "question", number);
  weft_json_text (b, "verdict", verdict_words[mark->verdict]);
  if (mark->look)
    weft_json_text (b, "look", mark->look);
  json_builder_end_object (b);
}

static void
print_mark (unsigned number, const struct weft_lab_mark *mark)
{
  if (!mark->look) {
    printf ("%3u  %s\n", number, verdict_words[mark->verdict]);
    return;
  }
  int used = printf ("%3u  %-9s  ", number, verdict_words[mark->verdict]);
  weft_cli_print_beside (mark->look, used, weft_cli_columns ());
}

static int
check_answers (const weft_lab *lab, const char *path, gboolean json, GError **error)
{
  g_autofree struct weft_lab_mark *mark = weft_lab_check (lab, path, error);
  g_autoptr (JsonBuilder) b = json_builder_new ();
  unsigned right = 0, n = lab->question->len;

  if (!mark)
    return weft_cli_fail (*error);
  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.lab/1");
  weft_json_text (b, "lab", lab->name);
  weft_json_array (b, "marks");
  for (unsigned i = 0; i < n; i++) {
    right += mark[i].verdict == WEFT_LAB_RIGHT;
    add_mark (b, i + 1, &mark[i]);
    if (!json)
      print_mark (i + 1, &mark[i]);
  }
  json_builder_end_array (b);
  weft_json_int (b, "right", right);
  weft_json_int (b, "questions", n);
  json_builder_end_object (b);
  if (json)
    weft_cli_print_json (b);
  else
    printf ("%u of %u are right\n", right, n);
  return right == n ? 0 : 3;
}

int
weft_cli_lab (int argc, char **argv)
{
  const char *answers = NULL;
  const struct weft_cli_flag flags[] = {
    { .name = "check",
      .value = "FILE",
      .text = &answers,
      .doc = "check the answers in this file; status 0 if all are right, else 3" },
  };
  const struct weft_cli_page page = {
    .usage = "weft lab [NAME|NUMBER] [--check FILE] [--json]",
    .doc = "Exercises for a lecture or for oneself, 30 to 60 minutes each, on a laptop: docs/labs "
           "has a page for each. Without arguments, lists them. With a name or a number, prints "
           "the questions as a file into which answers are written. --check computes the right "
           "answers with Weft, says which answers are right, and for the others what to look at, "
           "not the number.",
    .examples = "  weft lab\n"
                "  weft lab ring > answers.txt\n"
                "  weft lab ring --check answers.txt\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
  };
  g_auto (weft_cli_input) input = { 0 };
  g_autoptr (GError) error = NULL;
  int status = weft_cli_begin (&page, argc, argv, &input);

  if (status != WEFT_CLI_GO_ON)
    return status;
  if (!input.operand && answers) {
    weft_bad_input (&error, "--check: found no lab, wanted weft lab NAME --check FILE");
    return weft_cli_fail (error);
  }
  if (!input.operand)
    return list_labs (input.json, &error);
  g_autoptr (weft_lab) lab = weft_lab_load (input.operand, &error);
  if (!lab)
    return weft_cli_fail (error);
  if (answers)
    return check_answers (lab, answers, input.json, &error);
  print_sheet (lab);
  return 0;
}
