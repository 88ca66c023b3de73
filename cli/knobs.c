#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/completion.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/word_docs.h"
#include "core/job/aliases.h"
#include "core/job/strategy.h"
#include "core/schedule/schedule.h"
#include <stdio.h>
#include <string.h>

static const struct weft_table *const table = &weft_strategy_table;

/* Whether a knob is listed under a class. TRUE: the class is the first word of the knob's
 * source. */
static gboolean
is_listed_under (const struct weft_field *knob, const char *class)
{
  size_t length = strcspn (knob->source, " ");
  return strlen (class) == length && strncmp (knob->source, class, length) == 0;
}

/* The names of all classes that have knobs, in the order of the table. The caller unrefs the
 * array. */
static GPtrArray *
classes (void)
{
  GPtrArray *all = g_ptr_array_new_with_free_func (g_free);

  for (unsigned i = 0; i < table->n; i++) {
    const struct weft_field *knob = &table->field[i];
    unsigned k = 0;
    while (k < all->len && !is_listed_under (knob, g_ptr_array_index (all, k)))
      k++;
    if (k == all->len)
      g_ptr_array_add (all, g_strndup (knob->source, strcspn (knob->source, " ")));
  }
  return all;
}

typedef void (*print_knob) (const struct weft_field *knob);

static void
for_each_of (const char *class, print_knob print)
{
  for (unsigned i = 0; i < table->n; i++)
    if (is_listed_under (&table->field[i], class))
      print (&table->field[i]);
}

/* The reason why a knob has no effect: the text after "none: " in `affects`. NULL for other
 * knobs. */
static const char *
reason_of (const struct weft_field *knob)
{
  return g_str_has_prefix (knob->affects, "none: ") ? knob->affects + strlen ("none: ") : NULL;
}

static const char *
effect_of (const struct weft_field *knob)
{
  return reason_of (knob) ? "none" : knob->affects;
}

static const char *
default_of (const struct weft_field *knob)
{
  return knob->type == WEFT_TYPE_METHOD ? "-" : knob->def;
}

static void
print_row (const struct weft_field *knob)
{
  int used = printf ("  %-37s %-9s %-19s ", knob->name, default_of (knob), effect_of (knob));
  weft_cli_print_rest (knob->doc, used, weft_cli_columns ());
}

static void
print_class (gpointer class, gpointer unused)
{
  (void) unused;
  printf ("\n%s\n", (const char *) class);
  for_each_of (class, print_row);
}

static void
print_alias (const struct weft_alias *alias)
{
  g_autofree char *text = weft_alias_text (alias);
  int used = printf ("  %-37s ", alias->name);

  weft_cli_print_rest (text, used, weft_cli_columns ());
}

/* Prints the flags that are other names: first those that set a knob, then those without effect. */
static void
print_aliases (void)
{
  printf ("\nshort forms, and flags of Megatron-LM command lines\n");
  for (unsigned i = 0; i < weft_n_aliases; i++)
    if (!weft_aliases[i].ignored)
      print_alias (&weft_aliases[i]);
  printf ("\naccepted without effect\n");
  for (unsigned i = 0; i < weft_n_aliases; i++)
    if (weft_aliases[i].ignored)
      print_alias (&weft_aliases[i]);
}

static void
print_list (void)
{
  g_autoptr (GPtrArray) all = classes ();

  printf ("  %-37s %-9s %-19s %s\n", "knob", "default", "affects", "");
  g_ptr_array_foreach (all, print_class, NULL);
  print_aliases ();
  printf ("\nEach knob is a flag: --tensor-model-parallel-size 8.  `weft knobs NAME` shows\n"
          "the range and the sources of a knob.\n");
}

enum { TEXT_COLUMN = 11 };

static void
print_line (const char *head, const char *text)
{
  if (!*text)
    return;
  printf ("  %-8s ", head);
  weft_cli_print_wrapped (text, TEXT_COLUMN, weft_cli_columns ());
}

/* The description of the i-th word that a knob accepts. Words of schedules are described in
 * weft_schedules[]. */
static const char *
doc_of_word (const struct weft_field *knob, unsigned i)
{
  return knob->words == weft_schedule_words ? weft_schedules[i].doc
                                            : weft_word_doc (knob->words, i);
}

/* Prints each word that a knob accepts as its value, with the description of the word. */
static void
print_words (const struct weft_field *knob)
{
  int width = 0;

  for (unsigned i = 0; knob->words[i]; i++)
    width = MAX (width, (int) strlen (knob->words[i]));
  for (unsigned i = 0; knob->words[i]; i++) {
    const char *doc = doc_of_word (knob, i);
    if (doc)
      printf ("%*s%-*s  %s\n", TEXT_COLUMN, "", width, knob->words[i], doc);
  }
}

/* The other names of a knob, separated by blanks. The caller frees the text. */
static char *
aliases_of (const struct weft_field *knob)
{
  g_autoptr (GString) names = g_string_new (knob->aliases);

  for (unsigned i = 0; i < weft_n_aliases; i++)
    if (strcmp (weft_aliases[i].sets, knob->name) == 0)
      g_string_append_printf (names, "%s%s", names->len ? " " : "", weft_aliases[i].name);
  return g_string_free (g_steal_pointer (&names), FALSE);
}

static void
print_one (const struct weft_field *knob)
{
  g_autofree char *aliases = aliases_of (knob);
  g_autofree char *range = weft_field_range (knob);

  printf ("%s\n  ", knob->name);
  weft_cli_print_wrapped (knob->doc, 2, weft_cli_columns ());
  printf ("\n");
  print_line ("type", weft_type_word (knob->type));
  print_line ("default", default_of (knob));
  print_line ("range", range);
  if (knob->type == WEFT_TYPE_WORD)
    print_words (knob);
  print_line ("affects", effect_of (knob));
  if (reason_of (knob))
    print_line ("because", reason_of (knob));
  print_line ("source", knob->source);
  print_line ("aliases", aliases);
}

static void
build_words (JsonBuilder *builder, const char *member, const char *text)
{
  g_auto (GStrv) words = g_strsplit (text, " ", -1);

  weft_json_array (builder, member);
  for (unsigned i = 0; words[i]; i++)
    json_builder_add_string_value (builder, words[i]);
  json_builder_end_array (builder);
}

/* Adds the effects of a knob to JSON, one array element for each word. "not yet" is one element. */
static void
build_affects (JsonBuilder *builder, const struct weft_field *knob)
{
  if (!weft_field_is_pending (knob)) {
    build_words (builder, "affects", effect_of (knob));
    return;
  }
  weft_json_array (builder, "affects");
  json_builder_add_string_value (builder, knob->affects);
  json_builder_end_array (builder);
}

static void
build_knob (JsonBuilder *builder, const struct weft_field *knob)
{
  g_autofree char *aliases = aliases_of (knob);
  g_autofree char *range = weft_field_range (knob);

  json_builder_begin_object (builder);
  weft_json_text (builder, "name", knob->name);
  weft_json_text (builder, "type", weft_type_word (knob->type));
  weft_json_text (builder, "default", knob->def);
  weft_json_text (builder, "range", range);
  build_words (builder, "source", knob->source);
  build_affects (builder, knob);
  if (reason_of (knob))
    weft_json_text (builder, "reason", reason_of (knob));
  weft_json_text (builder, "doc", knob->doc);
  build_words (builder, "aliases", aliases);
  json_builder_end_object (builder);
}

/* Prints the knob in row `only`, or all knobs if `only` is negative. */
static void
print_json (int only)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();

  json_builder_begin_array (builder);
  for (unsigned i = 0; i < table->n; i++)
    if (only < 0 || (unsigned) only == i)
      build_knob (builder, &table->field[i]);
  json_builder_end_array (builder);
  weft_cli_print_json (builder);
}

/* Replaces every vertical bar of a text by `with`, because a bar would end a cell of a Markdown
 * table. The caller frees the text. */
static char *
without_bars (const char *text, const char *with)
{
  g_auto (GStrv) parts = g_strsplit (text, "|", -1);
  return g_strjoinv (with, parts);
}

static void
print_markdown_row (const struct weft_field *knob)
{
  g_autofree char *range = weft_field_range (knob);
  g_autofree char *set = without_bars (range, ", "), *doc = without_bars (knob->doc, "\\|");
  const char *reason = reason_of (knob);

  printf ("| `%s` | %s | %s | %s | %s%s%s | %s |\n", knob->name, weft_type_word (knob->type),
          default_of (knob), set, effect_of (knob), reason ? ": " : "", reason ? reason : "",
          doc);
}

static void
print_markdown_class (gpointer class, gpointer unused)
{
  (void) unused;
  printf ("\n## %s\n\n| knob | type | default | range | affects | what it is |\n"
          "|---|---|---|---|---|---|\n",
          (const char *) class);
  for_each_of (class, print_markdown_row);
}

static void
print_markdown_aliases (void)
{
  printf ("\n## Short forms, and flags of Megatron-LM command lines\n\n"
          "Rows of `core/aliases.def`.  A flag without effect is accepted with a note, so that a\n"
          "command line of Megatron-LM can be given whole.  Model fields that it does not set\n"
          "have Weft's defaults, which are not always Megatron-LM's.\n\n");
  for (unsigned i = 0; i < weft_n_aliases; i++) {
    g_autofree char *text = weft_alias_text (&weft_aliases[i]);
    g_autofree char *flag = g_strdelimit (g_strdup (weft_aliases[i].name), "_", '-');
    printf ("- `--%s`: %s\n", flag, text);
  }
}

static void
print_markdown (void)
{
  g_autoptr (GPtrArray) all = classes ();

  printf ("# Knobs\n\nPrinted by `weft knobs --markdown` from `core/strategy.def`; a test compares "
          "the two.\n\n"
          "Every knob is a key of section `[strategy]` of a job file, and a flag\n"
          "(`--tensor-model-parallel-size 8`; a boolean takes no value, `--no-...` clears it).\n"
          "*affects* says what the knob changes: the program, its memory, the cost of its ops.\n"
          "A method is an entry of the public interface and cannot be set.  A knob of several\n"
          "classes is listed under the first.  \"upstream\" is the software of the class.\n");
  g_ptr_array_foreach (all, print_markdown_class, NULL);
  print_markdown_aliases ();
}

static int
print_help (void)
{
  if (weft_cli_form == WEFT_CLI_FORM_FLAGS)
    return 0;
  printf ("usage: weft knobs [NAME] [--json | --markdown]\n\n"
          "Lists the knobs of a strategy, or shows one: type, default, range, source and what it\n"
          "affects.\n\n"
          "examples:\n  weft knobs\n  weft knobs bucket_size\n  weft knobs --json\n");
  return 0;
}

static void
print_one_alias (const struct weft_alias *alias)
{
  g_autofree char *text = weft_alias_text (alias);

  printf ("%s\n", alias->name);
  print_line (alias->ignored ? "affects" : "sets", text);
}

/* Sets the error for a name that is not a knob. The error says so if the name is a setting of
 * another section than [strategy]. */
static gboolean
unknown_knob (const char *name, GError **error)
{
  const char *section, *key;
  gboolean boolean;

  if (!weft_job_flag (name, &section, &key, &boolean))
    return weft_table_unknown (table, name, error);
  int row = weft_table_find (&weft_train_table, key);
  const char *doc = row < 0 ? NULL : weft_train_table.field[row].doc;
  return weft_bad_input (error, "unknown knob \"%s\"; it is a setting of section [%s]%s%s", name,
                         section, doc ? ": " : "", doc ? doc : "");
}

int
weft_cli_knobs (int argc, char **argv)
{
  struct weft_cli_ask ask;
  g_autoptr (GError) error = NULL;

  if (!weft_cli_ask (argc, argv, TRUE, &ask, &error))
    return weft_cli_fail (error);
  if (ask.help)
    return print_help ();
  if (ask.markdown && (ask.json || ask.name)) {
    weft_bad_input (&error, "--markdown and %s exclude each other: the page has all knobs",
                    ask.json ? "--json" : ask.name);
    return weft_cli_fail (error);
  }
  const struct weft_alias *alias = ask.name ? weft_alias_find (ask.name) : NULL;
  int row = ask.name ? weft_table_find (table, alias ? alias->sets : ask.name) : -1;
  if (alias && row < 0 && !ask.json) {
    print_one_alias (alias);
    return 0;
  }
  if (ask.name && row < 0) {
    unknown_knob (ask.name, &error);
    return weft_cli_fail (error);
  }
  if (ask.json)
    print_json (row);
  else if (ask.markdown)
    print_markdown ();
  else if (ask.name)
    print_one (&table->field[row]);
  else
    print_list ();
  return 0;
}
