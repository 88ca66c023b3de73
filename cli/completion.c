#include "cli/completion.h"
#include "cli/ask.h"
#include "core/base/error.h"
#include "core/base/sheet.h"
#include "core/job/aliases.h"
#include "core/job/sections.h"
#include "interop/target.h"
#include "planner/site.h"
#include <stdio.h>
#include <string.h>

enum weft_cli_form weft_cli_form = WEFT_CLI_FORM_TEXT;

#define COMMAND_ROW(id, what, how) { #id, what, weft_cli_##id },
static const struct {
  const char *name, *doc;
  int (*run) (int argc, char **argv);
} commands[] = { WEFT_CLI_COMMAND_LIST (COMMAND_ROW) };

/* -------------------------------------------------------------------------- man */

/* Text for a man page: backslashes, dashes and a dot at the beginning of a line are escaped. */
static void
print_roff (const char *text)
{
  gboolean begins = TRUE;

  for (; *text; begins = *text++ == '\n')
    if (*text == '\\')
      printf ("\\e");
    else
      printf ("%s%s%c", begins && (*text == '.' || *text == '\'') ? "\\&" : "",
              *text == '-' ? "\\" : "", *text);
}

static void
print_man_page (const struct weft_cli_page *page, const char *job)
{
  const struct weft_cli_flag *flag;

  printf (".fi\n.PP\n");
  print_roff (page->usage);
  printf ("\n.PP\n");
  print_roff (page->doc);
  printf ("\n");
  for (unsigned i = 0; (flag = weft_cli_flag_at (page, i)); i++) {
    printf (".TP\n.B \\-\\-");
    print_roff (flag->name);
    if (flag->value) {
      printf (" ");
      print_roff (flag->value);
    }
    printf ("\n");
    print_roff (flag->doc);
    printf ("\n");
  }
  if (job) {
    printf (".PP\n");
    print_roff (job);
    printf ("\n");
  }
  printf (".PP\nExamples:\n.nf\n");
  print_roff (page->examples);
  printf (".fi\n");
}

/* Runs a command with the flag --help, which prints the page of the command in the form
 * weft_cli_form. */
static void
print_help_of (unsigned i)
{
  char *argv[] = { (char *) commands[i].name, (char[]){ "--help" }, NULL };

  commands[i].run (2, argv);
}

/* Prints the man page of a command. For a command without struct weft_cli_page, prints the text of
 * its help. */
static void
print_man (void)
{
  weft_cli_form = WEFT_CLI_FORM_MAN;
  printf (".TH WEFT 1 \"\" \"weft %s\"\n.SH NAME\n"
          "weft \\- plan, simulate and run one training step of a large transformer\n"
          ".SH SYNOPSIS\n.B weft\nCOMMAND [JOB] [flags]\n.SH COMMANDS\n",
          weft_cli_version ());
  for (unsigned i = 0; i < G_N_ELEMENTS (commands); i++) {
    printf (".SS weft %s\n", commands[i].name);
    print_roff (commands[i].doc);
    printf (".\n.nf\n");
    print_help_of (i);
    printf (".fi\n");
  }
  printf (".SH EXIT STATUS\n0 done, 1 run\\-time error, 2 usage or bad input, 3 the answer is no,\n"
          "4 no feasible strategy.\n");
}

/* ------------------------------------------------------------------------ flags */

static void
print_flag (const char *name)
{
  g_autofree char *dashed = g_strdelimit (g_strdup (name), "_", '-');

  printf (" --%s", dashed);
}

static void
print_table_flags (const struct weft_table *table)
{
  for (unsigned i = 0; i < table->n; i++)
    if (table->field[i].type != WEFT_TYPE_METHOD)
      print_flag (table->field[i].name);
}

static void
print_job_flags (void)
{
  for (unsigned i = 0; i < WEFT_N_PART_KEY; i++)
    print_flag (weft_part_keys[i].flag);
  for (unsigned i = 0; i < WEFT_N_SECTION; i++)
    print_table_flags (weft_sections[i].table);
  for (unsigned i = 0; i < weft_n_aliases; i++)
    if (!weft_aliases[i].ignored && strcmp (weft_aliases[i].name, WEFT_LAYERS_PER_CHUNK) != 0)
      print_flag (weft_aliases[i].name);
}

void
weft_cli_print_form (const struct weft_cli_page *page, const char *job)
{
  const struct weft_cli_flag *flag;

  if (weft_cli_form == WEFT_CLI_FORM_MAN) {
    print_man_page (page, job);
    return;
  }
  for (unsigned i = 0; (flag = weft_cli_flag_at (page, i)); i++)
    print_flag (flag->name);
  if (weft_cli_reads_software (page))
    print_flag ("from");
  if (job)
    print_job_flags ();
}

/* ----------------------------------------------------------------------- shells */

static void
print_names (const char *flag, char **names)
{
  g_autofree char *all = g_strjoinv (" ", names);

  printf ("    --%s) COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); return ;;\n", flag, all);
}

/* Prints the flags of a command as one case of the shell function for completion. The commands that
 * list knobs, rules or bundled files have only the flags --json and --help. */
static void
print_flags_of (unsigned i)
{
  printf ("    %s) flags=\"--json --help", commands[i].name);
  print_help_of (i);
  printf ("\" ;;\n");
}

static void
print_bash (void)
{
  g_auto (GStrv) models = weft_model_names (), stacks = weft_sheet_names (&weft_stack_sheet),
                 topologies = weft_sheet_names (&weft_cluster_sheet),
                 sites = weft_data_names (WEFT_SITE_FOLDER, WEFT_SHEET_SUFFIX);
  g_autofree char *targets = weft_target_names (" ", FALSE);
  g_auto (GStrv) software = g_strsplit (targets, " ", -1);

  weft_cli_form = WEFT_CLI_FORM_FLAGS;
  printf ("_weft() {\n  local cur=${COMP_WORDS[COMP_CWORD]} flags=\n"
          "  if ((COMP_CWORD == 1)); then\n    COMPREPLY=($(compgen -W \"help");
  for (unsigned i = 0; i < G_N_ELEMENTS (commands); i++)
    printf (" %s", commands[i].name);
  printf ("\" -- \"$cur\"))\n    return\n  fi\n  case ${COMP_WORDS[COMP_CWORD - 1]} in\n");
  print_names ("model", models);
  print_names ("topology", topologies);
  print_names ("topologies", topologies);
  print_names ("stack", stacks);
  print_names ("site", sites);
  print_names ("from", software);
  print_names ("for", software);
  printf ("  esac\n  case ${COMP_WORDS[1]} in\n");
  for (unsigned i = 0; i < G_N_ELEMENTS (commands); i++)
    print_flags_of (i);
  printf ("  esac\n  if [[ $cur == -* ]]; then\n"
          "    COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
          "  else\n    COMPREPLY=($(compgen -f -- \"$cur\"))\n  fi\n}\n"
          "complete -o filenames -F _weft weft\n");
}

static void
print_zsh (void)
{
  printf ("#compdef weft\nautoload -U +X bashcompinit && bashcompinit\n");
  print_bash ();
}

/* --------------------------------------------------------------------- command */

static const struct form {
  const char *name;
  void (*print) (void);
} forms[] = { { "bash", print_bash }, { "zsh", print_zsh }, { "man", print_man } };

static int
print_usage (void)
{
  if (weft_cli_form == WEFT_CLI_FORM_FLAGS)
    return 0;
  printf ("usage: weft completion bash|zsh|man\n\n"
          "Prints the completion of commands, flags and bundled names for a shell, or the page\n"
          "for man.  cmake --install installs all three.\n\n"
          "examples:\n  source <(weft completion bash)\n  weft completion man > weft.1\n");
  return 0;
}

int
weft_cli_completion (int argc, char **argv)
{
  struct weft_cli_ask ask;
  g_autoptr (GError) error = NULL;

  if (!weft_cli_ask (argc, argv, FALSE, &ask, &error))
    return weft_cli_fail (error);
  if (ask.help)
    return print_usage ();
  for (unsigned i = 0; i < G_N_ELEMENTS (forms); i++)
    if (ask.name && strcmp (forms[i].name, ask.name) == 0) {
      forms[i].print ();
      return 0;
    }
  weft_bad_input (&error, "completion: found \"%s\", wanted bash, zsh or man",
                  ask.name ? ask.name : "nothing");
  return weft_cli_fail (error);
}
