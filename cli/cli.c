#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/completion.h"
#include "cli/software.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/file.h"
#include "core/base/output.h"
#include "core/base/suggest.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* -------------------------------------------------------------------- commands */

#define COMMAND_ROW(id, what, how) { #id, what, how, weft_cli_##id },
static const struct command {
  const char *name, *doc, *example;
  int (*run) (int argc, char **argv);
} commands[] = { WEFT_CLI_COMMAND_LIST (COMMAND_ROW) };

static const char *
name_at (const void *table, unsigned i)
{
  return ((const struct command *) table)[i].name;
}

static const struct command *
find_command (const char *name)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (commands); i++)
    if (strcmp (commands[i].name, name) == 0)
      return &commands[i];
  return NULL;
}

static int
print_commands (void)
{
  printf ("usage: weft COMMAND [JOB] [flags]\n\n"
          "Weft plans, simulates and runs one training step of a large transformer.\n\n");
  for (unsigned i = 0; i < G_N_ELEMENTS (commands); i++)
    printf ("  %-12s %s\n", commands[i].name, commands[i].doc);
  printf ("\nexamples:\n");
  for (unsigned i = 0; i < G_N_ELEMENTS (commands); i++)
    printf ("  %s\n", commands[i].example);
  printf ("\n`weft COMMAND --help` shows the flags of a command.\n"
          "Exit status: 0 done, 1 run-time error, 2 usage or bad input, 3 the answer is no (does\n"
          "not fit), 4 no feasible strategy.\n");
  return 0;
}

static int
unknown_command (const char *name)
{
  g_autoptr (GError) error = NULL;
  const char *near = weft_suggest (name, name_at, commands, G_N_ELEMENTS (commands));

  if (*name == '-')
    weft_bad_input (&error, "expected a command before flag \"%s\"; see weft --help",
                    name);
  else if (near)
    weft_bad_input (&error, "unknown command \"%s\"; did you mean %s?", name, near);
  else
    weft_bad_input (&error, "unknown command \"%s\"; see weft --help", name);
  return weft_cli_fail (error);
}

static int
help_about (char *name)
{
  const struct command *command = find_command (name);
  char *argv[] = { name, (char[]){ "--help" }, NULL };

  return command ? command->run (2, argv) : unknown_command (name);
}

static int
run_words (int argc, char **argv)
{
  static const char *const help[] = { "help", "--help", "-h", NULL };
  static const char *const version[] = { "version", "--version", NULL };

  if (argc < 2)
    return print_commands ();
  if (g_strv_contains (help, argv[1]))
    return argc > 2 ? help_about (argv[2]) : print_commands ();
  if (g_strv_contains (version, argv[1])) {
    printf ("weft %s\n", weft_cli_version ());
    return 0;
  }
  const struct command *command = find_command (argv[1]);
  return command ? command->run (argc - 1, argv + 1) : unknown_command (argv[1]);
}

/* Runs the command line and returns the exit status. The status is also an error if stdout could
 * not be written, which may be detected only when the last bytes are written. */
int
weft_cli_run (int argc, char **argv)
{
  /* a write beyond the size limit of files is then an error of write() instead of a signal that
   * ends the process */
  signal (SIGXFSZ, SIG_IGN);
  weft_output_guard_inputs ();
  int status = run_words (argc, argv);

  if (fflush (stdout) == 0 && !ferror (stdout))
    return status;
  fprintf (stderr, "weft: stdout: %s\n", g_strerror (errno));
  return status ? status : 1;
}

/* ------------------------------------------------------------------- arguments */

struct reader {
  const struct weft_cli_page *page;
  weft_cli_input *input;
  struct weft_words words;
  weft_settings *flags; /* settings from flags; they are added after the settings of the job file */
};

static gboolean
set_own (struct reader *r, const struct weft_cli_flag *own, const struct weft_flag *flag,
         GError **error)
{
  if (own->value) {
    const char *value = weft_flag_value (&r->words, flag, own->value, error);
    g_autofree char *both = value && own->joins && *own->text
                                ? g_strconcat (*own->text, ",", value, NULL)
                                : NULL;
    *own->text = both ? g_intern_string (both) : value;
    return value != NULL;
  }
  *own->on = TRUE;
  return weft_flag_takes_none (flag, error);
}

const struct weft_cli_flag *
weft_cli_flag_at (const struct weft_cli_page *page, unsigned i)
{
  if (i < page->n_flags)
    return &page->flags[i];
  return i - page->n_flags < page->n_more ? &page->more[i - page->n_flags] : NULL;
}

gboolean
weft_cli_reads_software (const struct weft_cli_page *page)
{
  return page->job && !page->foreign;
}

/* Flags that are not in the list of the command. */
enum { N_COMMON = 3 };

/* Lists the flags that every command has, and --from for a command whose operand is a job. Returns
 * their number. */
static unsigned
list_common (const struct reader *r, struct weft_cli_flag out[N_COMMON])
{
  out[0] = (struct weft_cli_flag){ .name = "json", .on = &r->input->json };
  out[1] = (struct weft_cli_flag){ .name = "help", .on = &r->input->help };
  out[2] = (struct weft_cli_flag){ .name = "from", .value = "SOFTWARE", .text = &r->input->from };
  return weft_cli_reads_software (r->page) ? N_COMMON : N_COMMON - 1;
}

static gboolean
unknown_flag (const struct reader *r, const struct weft_flag *flag, GError **error)
{
  g_autoptr (GPtrArray) names = g_ptr_array_new ();
  struct weft_cli_flag common[N_COMMON];
  unsigned n_common = list_common (r, common);
  const struct weft_cli_flag *own;

  for (unsigned i = 0; (own = weft_cli_flag_at (r->page, i)); i++)
    g_ptr_array_add (names, (char *) own->name);
  for (unsigned i = 0; i < n_common; i++)
    g_ptr_array_add (names, (char *) common[i].name);
  g_ptr_array_add (names, NULL);
  const char *near = weft_suggest_strv (flag->name, (const char *const *) names->pdata);
  if (near)
    return weft_bad_input (error, "unknown flag %s; did you mean --%s?", flag->whole, near);
  if (r->page->job)
    return weft_job_unknown_flag (flag->name, error);
  return weft_bad_input (error, "unknown flag %s", flag->whole);
}

static gboolean
read_flag (struct reader *r, const struct weft_flag *flag, GError **error)
{
  struct weft_cli_flag common[N_COMMON];
  unsigned n_common = list_common (r, common);
  const struct weft_cli_flag *own;
  GError *wrong = NULL;

  for (unsigned i = 0; i < n_common; i++)
    if (weft_same_name (common[i].name, flag->name))
      return set_own (r, &common[i], flag, error);
  for (unsigned i = 0; (own = weft_cli_flag_at (r->page, i)); i++)
    if (weft_same_name (own->name, flag->name) ||
        (own->old && weft_same_name (own->old, flag->name)))
      return set_own (r, own, flag, error);
  if (r->page->job && weft_flag_set (&r->words, flag, r->flags, &wrong))
    return TRUE;
  if (!wrong)
    return unknown_flag (r, flag, error);
  g_propagate_error (error, wrong);
  return FALSE;
}

static gboolean
read_operand (struct reader *r, const char *word, GError **error)
{
  if (*word == '-' && !weft_file_is_stdin (word))
    return weft_bad_input (error, "unknown flag %s: flags begin with two dashes", word);
  if (r->page->lists && strchr (word, '=')) {
    if (!r->input->lists)
      r->input->lists = g_ptr_array_new ();
    g_ptr_array_add (r->input->lists, (char *) word);
    return TRUE;
  }
  if (!r->input->operand)
    r->input->operand = word;
  else if (!r->page->two)
    return weft_bad_input (error, "unexpected \"%s\" after \"%s\": expected at most one %s",
                           word, r->input->operand, r->page->job ? "job file" : "name");
  else if (r->input->second)
    return weft_bad_input (error, "unexpected \"%s\" after \"%s\" and \"%s\": expected two files",
                           word, r->input->operand, r->input->second);
  else if (weft_file_is_stdin (word) && weft_file_is_stdin (r->input->operand))
    return weft_bad_input (error, "found - twice: standard input can be read once");
  else
    r->input->second = word;
  return TRUE;
}

static gboolean
read_word (struct reader *r, GError **error)
{
  const char *word = r->words.word[r->words.at];

  if (strcmp (word, "-h") == 0)
    word = "--help";
  if (!g_str_has_prefix (word, "--"))
    return read_operand (r, word, error);
  struct weft_flag flag = weft_flag_split (word);
  gboolean ok = read_flag (r, &flag, error);
  g_free (flag.whole);
  return ok;
}

/* Prints the flags that were accepted without effect, such as flags of Megatron-LM about data and
 * logs. */
static void
note_ignored (const weft_settings *settings)
{
  g_autofree char *names = g_strjoinv (" --", (char **) weft_settings_ignored (settings));

  g_strdelimit (names, "_", '-');
  if (*names)
    fprintf (stderr, "weft: note: no effect, see `weft knobs NAME`: --%s\n", names);
}

/* Reads the operand: a job file, or with --from a configuration of other software. */
static gboolean
read_job_file (struct reader *r, GError **error)
{
  weft_cli_input *input = r->input;

  if (!input->operand)
    return !input->from ||
           weft_bad_input (error, "--from %s: found no file, wanted a configuration to read",
                           input->from);
  if (!input->from)
    return weft_flags_file (input->operand, input->settings, error);
  g_autoptr (weft_interop_result) result =
      weft_cli_software_read (input->from, input->operand, r->flags, FALSE, error);
  if (!result)
    return FALSE;
  weft_cli_software_note_read (result);
  weft_settings_take (input->settings, result->settings);
  return TRUE;
}

/* Collects the settings of the job. The settings of the job file come first, so that flags override
 * them. */
static gboolean
collect (struct reader *r, GError **error)
{
  if (!r->page->job || r->input->help)
    return TRUE;
  r->input->settings = weft_settings_new ();
  if (r->page->topology)
    weft_settings_add (r->input->settings, "cluster", "topology", r->page->topology, "--topology");
  if (!r->page->foreign && !read_job_file (r, error))
    return FALSE;
  r->input->n_from_file = weft_settings_count (r->input->settings);
  weft_settings_take (r->input->settings, r->flags);
  note_ignored (r->input->settings);
  return TRUE;
}

gboolean
weft_cli_read (const struct weft_cli_page *page, int argc, char **argv, weft_cli_input *input,
               GError **error)
{
  g_autoptr (weft_settings) flags = weft_settings_new ();
  struct reader r = { .page = page,
                      .input = input,
                      .words = { .n = argc, .word = (const char *const *) argv },
                      .flags = flags };

  *input = (weft_cli_input){ 0 };
  for (r.words.at = 1; r.words.at < argc; r.words.at++)
    if (!read_word (&r, error))
      return FALSE;
  return collect (&r, error);
}

void
weft_cli_input_clear (weft_cli_input *input)
{
  g_clear_pointer (&input->settings, weft_settings_free);
  g_clear_pointer (&input->lists, g_ptr_array_unref);
}

/* A flag as text for --help: "--name VALUE", or "--name" for a flag without a value. The caller
 * frees the text. */
static char *
flag_text (const struct weft_cli_flag *flag)
{
  return flag->value ? g_strdup_printf ("--%s %s", flag->name, flag->value)
                     : g_strdup_printf ("--%s", flag->name);
}

static const char about_jobs[] =
    "JOB is an .ini file, or - for standard input; with --from SOFTWARE it is a configuration of "
    "other software (weft import).  Flags override it; without a file they "
    "describe the whole job.  Every knob (weft knobs) and every field of model, cluster, training "
    "and stack is a flag: --model, --topology, --nodes or --gpus, --stack, --micro-batch-size, "
    "--tensor-model-parallel-size ...  A boolean takes no value; --no-NAME clears it.  Short forms "
    "(--tp 8) and flags of Megatron-LM command lines (--swiglu) are accepted; weft knobs lists "
    "them at its end.";

static const char about_overrides[] =
    "Every setting of a job is a flag too (--topology, --nodes or --gpus, --vocab-size ...) and "
    "overrides what the file says.";

int
weft_cli_help (const struct weft_cli_page *page)
{
  const char *about = page->foreign ? about_overrides : page->job ? about_jobs : NULL;
  const struct weft_cli_flag *flag;
  int columns = weft_cli_columns ();
  size_t width = 0;

  if (weft_cli_form != WEFT_CLI_FORM_TEXT) {
    weft_cli_print_form (page, about);
    return 0;
  }
  printf ("usage: %s\n\n", page->usage);
  weft_cli_print_wrapped (page->doc, 0, columns);
  if (weft_cli_flag_at (page, 0))
    printf ("\n");
  for (unsigned i = 0; (flag = weft_cli_flag_at (page, i)); i++) {
    g_autofree char *left = flag_text (flag);
    width = MAX (width, strlen (left));
  }
  for (unsigned i = 0; (flag = weft_cli_flag_at (page, i)); i++) {
    g_autofree char *left = flag_text (flag);
    printf ("  %-*s  ", (int) width, left);
    weft_cli_print_wrapped (flag->doc, (int) width + 4, columns);
  }
  if (about) {
    printf ("\n");
    weft_cli_print_wrapped (about, 0, columns);
  }
  printf ("\nexamples:\n%s", page->examples);
  return 0;
}

int
weft_cli_begin (const struct weft_cli_page *page, int argc, char **argv, weft_cli_input *input)
{
  g_autoptr (GError) error = NULL;

  if (!weft_cli_read (page, argc, argv, input, &error))
    return weft_cli_fail (error);
  return input->help ? weft_cli_help (page) : WEFT_CLI_GO_ON;
}

gboolean
weft_cli_job (const weft_cli_input *input, struct weft_job *job, GError **error)
{
  if (!weft_job_build (input->settings, job, error))
    return FALSE;
  weft_cli_warn (job);
  return TRUE;
}

void
weft_cli_warn (const struct weft_job *job)
{
  g_autoptr (GPtrArray) warnings = weft_job_warnings (job);
  for (unsigned i = 0; i < warnings->len; i++)
    fprintf (stderr, "weft: note: %s\n", (const char *) warnings->pdata[i]);
}

gboolean
weft_cli_number (const char *flag, const char *what, const char *text, int64_t lo,
                 int64_t *number, GError **error)
{
  gint64 value;

  if (!g_ascii_string_to_signed (text, 10, lo, INT32_MAX, &value, NULL))
    return weft_bad_input (
        error, "--%s: found \"%s\", wanted %s, a whole number from %" G_GINT64_FORMAT, flag, text,
        what, lo);
  *number = value;
  return TRUE;
}

gboolean
weft_cli_field (const struct weft_field *field, const char *text, union weft_value *value,
                GError **error)
{
  g_autofree char *number = g_strdup (text ? text : field->def);
  size_t length = strlen (number);

  if (length > 1 && number[length - 1] == 'B')
    number[length - 1] = 'G';
  if (weft_field_parse (field, number, value, NULL))
    return TRUE;
  g_autofree char *range = weft_field_range (field), *what = weft_field_counts (field);
  return weft_bad_input (error, "--%s: found \"%s\", wanted %s%s", field->name, text, range, what);
}

/* ---------------------------------------------------------------------- output */

/* Prints an error to stderr. The middle of a very long message is omitted, because the message may
 * quote a very long name. */
int
weft_cli_fail (const GError *error)
{
  const size_t most = 2000, part = 600, length = strlen (error->message);

  if (length <= most)
    fprintf (stderr, "weft: %s\n", error->message);
  else
    fprintf (stderr, "weft: %.*s ... %s\n", (int) part, error->message,
             error->message + length - part);
  return weft_error_exit_status (error);
}

gboolean
weft_cli_write (const char *path, const char *text, GError **error)
{
  weft_output *output = weft_output_open (path, error);

  if (!output)
    return FALSE;
  fputs (text, weft_output_stream (output)); /* weft_output_close() reports errors of this write */
  return weft_output_close (output, error);
}

void
weft_cli_print_json (JsonBuilder *builder)
{
  g_autoptr (JsonNode) root = json_builder_get_root (builder);
  g_autofree char *text = weft_json_print (root, TRUE);

  printf ("%s\n", text);
}

gboolean
weft_cli_has_colour (void)
{
  const char *no = g_getenv ("NO_COLOR");
  return isatty (STDOUT_FILENO) && !(no && *no);
}
