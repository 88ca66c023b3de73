#include "tests/attack/surface.h"
#include "cli/cli.h"
#include "core/cluster/cluster.h"
#include "core/job/aliases.h"
#include "tests/attack/attack.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define PAGE_SECONDS 60

/* ------------------------------------------------------------------------ pages */

static void
flag_clear (void *data)
{
  struct surface_flag *flag = data;

  g_free (flag->name);
  g_free (flag->value);
}

/* Reads the flags of a command from the lines of --help that begin with "  --name VALUE  ". Leaves
 * out --update, which writes into the bundled files. */
static void
read_flags (struct surface_command *c, const char *page)
{
  g_autoptr (GRegex) line =
      g_regex_new ("^  (--[a-z0-9-]+)(?: (\\S+))?(?:  |$)", G_REGEX_MULTILINE, 0, NULL);
  g_autoptr (GMatchInfo) match = NULL;

  for (g_regex_match (line, page, 0, &match); g_match_info_matches (match);
       g_match_info_next (match, NULL)) {
    struct surface_flag flag = { g_match_info_fetch (match, 1), g_match_info_fetch (match, 2) };
    if (flag.value && !*flag.value)
      g_clear_pointer (&flag.value, g_free);
    if (g_str_equal (flag.name, "--update"))
      flag_clear (&flag);
    else
      g_array_append_val (c->flag, flag);
  }
}

static struct surface_command
read_command (const char *dir, const char *name)
{
  struct surface_command c = { .name = name,
                               .flag = g_array_new (FALSE, TRUE, sizeof (struct surface_flag)) };
  struct surface_flag common[] = { { g_strdup ("--json"), NULL }, { g_strdup ("--help"), NULL } };
  struct attack_run run = attack_words (dir, PAGE_SECONDS, "%s --help", name);

  assert_int_equal (run.status, 0);
  g_array_set_clear_func (c.flag, flag_clear);
  g_array_append_vals (c.flag, common, G_N_ELEMENTS (common));
  c.job = strstr (run.out, "JOB is an .ini file") != NULL;
  read_flags (&c, run.out);
  attack_run_clear (&run);
  return c;
}

surface *
surface_new (const char *dir)
{
#define NAME(id, ...) #id,
  static const char *const names[] = { WEFT_CLI_COMMAND_LIST (NAME) };
#undef NAME
  surface *s = g_new0 (surface, 1);

  s->command = g_array_new (FALSE, FALSE, sizeof (struct surface_command));
  attack_folder_fill (dir);
  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    struct surface_command c = read_command (dir, names[i]);
    g_array_append_val (s->command, c);
  }
  return s;
}

void
surface_free (surface *s)
{
  for (guint i = 0; i < s->command->len; i++)
    g_array_unref (g_array_index (s->command, struct surface_command, i).flag);
  g_array_unref (s->command);
  g_free (s);
}

/* ----------------------------------------------------------------------- values */

/* Draws a whole number: inside the range, mostly near its lower end, or one step outside the
 * range. */
static int64_t
draw_int (GRand *rand, const struct weft_field *field)
{
  double lo = field->lo ? g_ascii_strtod (field->lo, NULL) : 0;
  double hi = field->hi ? g_ascii_strtod (field->hi, NULL) : 1 << 20;

  switch (g_rand_int_range (rand, 0, 24)) {
  case 0:
    return (int64_t) lo - 1;
  case 1:
    return (int64_t) hi;
  case 2:
    return (int64_t) hi + (hi < 9e18);
  case 3:
    return (int64_t) (lo + exp (g_rand_double (rand) * log1p (hi - lo)) - 1);
  default:
    return (int64_t) (lo + exp (g_rand_double (rand) * log1p (MIN (hi - lo, 16))) - 0.5);
  }
}

static double
draw_real (GRand *rand, const struct weft_field *field)
{
  double lo = field->lo ? g_ascii_strtod (field->lo, NULL) : -1;
  double hi = field->hi ? g_ascii_strtod (field->hi, NULL) : 1e9;
  double def = g_ascii_strtod (field->def, NULL);

  switch (g_rand_int_range (rand, 0, 8)) {
  case 0:
    return lo;
  case 1:
    return hi;
  case 2:
    return nextafter (hi, INFINITY);
  case 3:
    return nextafter (lo, -INFINITY);
  case 4:
    return def;
  default:
    return lo + (MIN (hi, lo + 4) - lo) * g_rand_double (rand);
  }
}

static char *
draw_text (GRand *rand)
{
  static const char *const texts[] = {
    "mlp",        "core_attn,layernorm", "2,2",     "4,1",   "Et|tL",
    "moe",        "Et|(t|)*3,L",         "head,x",  "layer", ",,",
    "Et*8|t*9|L", "gpt2-nano",           "dgx-h100"
  };
  return g_strdup (texts[g_rand_int_range (rand, 0, G_N_ELEMENTS (texts))]);
}

char *
surface_value (GRand *rand, const struct weft_field *field)
{
  if (attack_one_in (rand, 8))
    return g_strdup (attack_absurd (rand));
  if (field->type == WEFT_TYPE_INT)
    return g_strdup_printf ("%" G_GINT64_FORMAT, draw_int (rand, field));
  if (field->type == WEFT_TYPE_REAL)
    return g_strdup_printf ("%.17g", draw_real (rand, field));
  if (field->type == WEFT_TYPE_BOOL)
    return g_strdup (attack_one_in (rand, 2) ? "true" : "false");
  if (field->type != WEFT_TYPE_WORD)
    return draw_text (rand);
  guint n = g_strv_length ((char **) field->words);
  return g_strdup (field->words[g_rand_int_range (rand, 0, (gint32) n)]);
}

/* Draws a value for a flag that is no setting of a job, such as FILE or SECONDS. `name` is the
 * word for the value on the help page. */
static char *
draw_own_value (GRand *rand, const char *name)
{
  static const char *const files[] = { "data.txt",  "job.ini",     "new",
                                       "sub/new",   "no/such",     "sub",
                                       "/dev/null", "new.json.gz", "/dev/full" };
  static const char *const numbers[] = { "1", "2", "3", "7", "0", "16", "0.5", "1e-3" };

  if (attack_one_in (rand, 8))
    return g_strdup (attack_absurd (rand));
  if (strchr (name, '|')) {
    g_auto (GStrv) words = g_strsplit (name, "|", -1);
    return g_strdup (words[g_rand_int_range (rand, 0, (gint32) g_strv_length (words))]);
  }
  if (strstr (name, "FILE") || strstr (name, "DIR"))
    return g_strdup (files[g_rand_int_range (rand, 0, G_N_ELEMENTS (files))]);
  return g_strdup (numbers[g_rand_int_range (rand, 0, G_N_ELEMENTS (numbers))]);
}

/* ------------------------------------------------------------------------ lines */

static void add (GPtrArray *words, const char *format, ...) G_GNUC_PRINTF (2, 3);

static void
add (GPtrArray *words, const char *format, ...)
{
  va_list args;

  va_start (args, format);
  g_ptr_array_add (words, g_strdup_vprintf (format, args));
  va_end (args);
}

/* Appends a flag and its value, as one word or as two words. */
static void
add_pair (GPtrArray *words, GRand *rand, const char *flag, const char *value)
{
  if (attack_one_in (rand, 3)) {
    add (words, "%s", flag);
    add (words, "%s", value);
  } else {
    add (words, "%s=%s", flag, value);
  }
}

static void
add_field (GPtrArray *words, GRand *rand)
{
  const struct weft_table *const tables[] = { &weft_strategy_table, &weft_strategy_table,
                                              &weft_strategy_table, &weft_train_table,
                                              &weft_model_table,    &weft_cluster_table,
                                              &weft_stack_table };
  const struct weft_table *table = tables[g_rand_int_range (rand, 0, G_N_ELEMENTS (tables))];
  const struct weft_field *field = &table->field[g_rand_int_range (rand, 0, (gint32) table->n)];
  g_autofree char *dashed = g_strdelimit (g_strdup (field->name), "_", '-');
  g_autofree char *value = surface_value (rand, field);
  g_autofree char *flag = g_strconcat ("--", dashed, NULL);

  if (field->type == WEFT_TYPE_BOOL && !attack_one_in (rand, 4))
    add (words, "--%s%s", attack_one_in (rand, 4) ? "no-" : "", dashed);
  else
    add_pair (words, rand, flag, value);
}

/* Appends an alias (a short name of a setting, aliases.h), in most cases with a plausible value. */
static void
add_alias (GPtrArray *words, GRand *rand)
{
  const struct weft_alias *alias =
      &weft_aliases[g_rand_int_range (rand, 0, (gint32) weft_n_aliases)];
  g_autofree char *flag = g_strconcat ("--", alias->name, NULL);
  g_autofree char *number = g_strdup_printf ("%d", 1 << g_rand_int_range (rand, 0, 5));

  if (alias->values == WEFT_ALIAS_FLAG && !attack_one_in (rand, 8))
    add (words, "%s", flag);
  else
    add_pair (words, rand, flag, attack_one_in (rand, 4) ? attack_absurd (rand) : number);
}

static void
add_own (GPtrArray *words, GRand *rand, const struct surface_command *c)
{
  const struct surface_flag *flag = &g_array_index (
      c->flag, struct surface_flag, g_rand_int_range (rand, 0, (gint32) c->flag->len));

  if (!flag->value) {
    add (words, "%s", flag->name);
    return;
  }
  g_autofree char *value = draw_own_value (rand, flag->value);
  add_pair (words, rand, flag->name, value);
}

/* Whether a command searches strategies. */
static gboolean
searches (const struct surface_command *c)
{
  return g_str_equal (c->name, "plan") || g_str_equal (c->name, "size");
}

/* Adds --model with a small model. Commands that neither train, search nor measure sometimes get
 * a model of any size. */
static void
add_model (GPtrArray *words, GRand *rand, const struct surface_command *c)
{
  g_auto (GStrv) names = weft_data_names ("models", ".json");
  const char *name = names[g_rand_int_range (rand, 0, (gint32) g_strv_length (names))];
  gboolean large = strcmp (c->name, "train") && !searches (c) &&
                   strcmp (c->name, "measure") && attack_one_in (rand, 4);

  while (!large && !g_str_has_suffix (name, "-nano"))
    name = names[g_rand_int_range (rand, 0, (gint32) g_strv_length (names))];
  add (words, "--model");
  add (words, "%s", name);
}

/* Appends the topology, the number of GPUs and sometimes the global batch size. Commands that
 * compute real numbers (train, measure) get at most 16 GPUs, because all ranks share the memory
 * of this machine. */
static void
add_cluster (GPtrArray *words, GRand *rand, const struct surface_command *c)
{
  g_auto (GStrv) names = weft_data_names ("topologies", ".ini");

  add (words, "--topology");
  add (words, "%s", names[g_rand_int_range (rand, 0, (gint32) g_strv_length (names))]);
  if (attack_one_in (rand, 2) && strcmp (c->name, "train") && strcmp (c->name, "measure"))
    add (words, "--nodes=%d", g_rand_int_range (rand, 1, 5));
  else
    add (words, "--gpus=%d", 1 << g_rand_int_range (rand, 0, 5));
  if (attack_one_in (rand, 2))
    add (words, "--global-batch-size=%d", 1 << g_rand_int_range (rand, 0, 7));
}

/* Appends a random job of random_job.h as flags. */
static void
add_random_job (GPtrArray *words, GRand *rand)
{
  g_autofree char *job = weft_random_job (rand);
  g_auto (GStrv) settings = g_strsplit (job, " ", -1);

  for (char **s = settings; *s; s++)
    if (**s)
      add (words, "--%s", *s);
}

/* Appends a job file of tests/bad/. Each of these files breaks one rule of jobs; its other
 * settings are legal. */
static void
add_bad_file (GPtrArray *words, GRand *rand)
{
  /* paths of the job files, relative to the source folder */
  g_auto (GStrv) names = weft_data_names ("tests/bad", ".ini");

  add (words, WEFT_SOURCE_DIR "/tests/bad/%s.ini",
       names[g_rand_int_range (rand, 0, (gint32) g_strv_length (names))]);
}

static void
add_job (GPtrArray *words, GRand *rand, const struct surface_command *c)
{
  int kind = g_rand_int_range (rand, 0, 8);

  if (kind < 3)
    add_random_job (words, rand);
  else if (kind < 7) {
    add_model (words, rand, c);
    add_cluster (words, rand, c);
  } else if (attack_one_in (rand, 2))
    add_bad_file (words, rand);
  else
    add (words, "%s", "job.ini");
  for (int n = g_rand_int_range (rand, 0, 7); n > 0; n--)
    (attack_one_in (rand, 10) ? add_alias : add_field) (words, rand);
}

/* Appends an argument of a command that takes no job: a knob, an absurd word, a model, a job
 * file or nothing. */
static void
add_operand (GPtrArray *words, GRand *rand)
{
  const struct weft_table *table = &weft_strategy_table;

  switch (g_rand_int_range (rand, 0, 6)) {
  case 0:
    add (words, "%s", table->field[g_rand_int_range (rand, 0, (gint32) table->n)].name);
    break;
  case 1:
    add (words, "%s", attack_absurd (rand));
    break;
  case 2:
    add (words, "gpt2-nano");
    break;
  case 3:
    add (words, "job.ini");
    break;
  default:
    break;
  }
}

/* Draws a command. `weft measure` is drawn rarely, because a run of it takes long. */
static const struct surface_command *
draw_command (const surface *s, GRand *rand)
{
  const struct surface_command *c;

  do
    c = &g_array_index (s->command, struct surface_command,
                        g_rand_int_range (rand, 0, (gint32) s->command->len));
  while (g_str_equal (c->name, "measure") && !attack_one_in (rand, 20));
  return c;
}

/* Makes a typing error in a command line: removes a word, inserts an absurd word, repeats a word
 * at the end, or cuts a word to three characters. */
static void
spoil (GPtrArray *words, GRand *rand)
{
  guint at = (guint) g_rand_int_range (rand, 1, (gint32) words->len + 1);

  switch (g_rand_int_range (rand, 0, 4)) {
  case 0:
    if (at < words->len)
      g_ptr_array_remove_index (words, at);
    break;
  case 1:
    g_ptr_array_insert (words, (gint) at, g_strdup (attack_absurd (rand)));
    break;
  case 2:
    if (at < words->len)
      g_ptr_array_add (words, g_strdup (g_ptr_array_index (words, at)));
    break;
  default:
    if (at < words->len && strlen (g_ptr_array_index (words, at)) > 3)
      ((char *) g_ptr_array_index (words, at))[3] = '\0';
  }
}

char **
surface_line (const surface *s, GRand *rand)
{
  GPtrArray *words = g_ptr_array_new_with_free_func (g_free);
  const struct surface_command *c = draw_command (s, rand);

  add (words, "%s", c->name);
  /* `weft validate` gets only the rows of one source, because all published rows take minutes. */
  if (g_str_equal (c->name, "validate"))
    add (words, "--source=mosaic"), add (words, "--tier=A");
  if (c->job)
    add_job (words, rand, c);
  else
    for (int n = g_rand_int_range (rand, 0, 3); n > 0; n--)
      add_operand (words, rand);
  for (int n = g_rand_int_range (rand, 0, 3); n > 0; n--)
    add_own (words, rand, c);
  /* The flags that keep a fit short (rows of one source, no rounds) come last, because the last
   * value of a flag wins. */
  if (g_str_equal (c->name, "fit"))
    add (words, "--source=megreadme"), add (words, "--rounds=0");
  if (g_str_equal (c->name, "train") && !attack_one_in (rand, 8))
    add (words, "--data=data.txt"), add (words, "--steps=2");
  if (searches (c) && !attack_one_in (rand, 8))
    add (words, "--finalists=1");
  if (g_str_equal (c->name, "size"))
    add (words, "--most-gpus=16"), add (words, "--sizes=%d", 1 << g_rand_int_range (rand, 0, 5));
  if (attack_one_in (rand, 10))
    spoil (words, rand);
  g_ptr_array_add (words, NULL);
  return (char **) g_ptr_array_free (words, FALSE);
}
