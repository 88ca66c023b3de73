/* cli.h - the list of commands, the parser of their arguments, output and exit status.
 *
 * A command is one row of the list and one function.  The function reads the arguments with
 * weft_cli_begin(), prints its result to stdout and everything else to stderr, and returns an exit
 * status (core/base/error.h). */
#pragma once
#include "core/exec/exec.h"
#include "core/job/flags.h"
#include "core/job/job.h"
#include <json-glib/json-glib.h>

/*  name       what it does
 *             an example, for `weft help` */
#define WEFT_CLI_COMMAND_LIST(X)                                                                   \
  X (sim, "predict one training step: time, throughput, overlap, memory",                          \
     "weft sim --model llama3-8b --topology dgx-h100 --nodes 4")                                   \
  X (train, "train a model, with every rank of the job on this machine",                           \
     "weft train --model gpt2-nano --data README.md --steps 20")                                   \
  X (measure, "time kernels and collectives of this machine for weft sim --cost-table",            \
     "weft measure --model gpt2-nano --gpus 2")                                                    \
  X (plan, "search the best strategies for a model on a cluster",                                  \
     "weft plan --model llama3-8b --topology dgx-h100 --nodes 4 --global-batch-size 256")          \
  X (size, "which cluster, how many days and how much money for so many tokens",                  \
     "weft size --model llama3-8b --topology dgx-h100 --tokens 1T --sizes 64")                     \
  X (compare, "compare two jobs or timelines, or a prediction with a measured profile",            \
     "weft compare predicted.json measured.json")                                                  \
  X (sweep, "predict a job with several values of its settings; what it is sensitive to",          \
     "weft sweep --model llama3-8b --topology dgx-h100 --nodes 4 tp=1,2,4 pp=1,2")                 \
  X (memory, "show what fills the memory of each stage, and what makes it fit",                    \
     "weft memory --model llama2-7b --topology dgx-h100")                                          \
  X (explain, "show the numbers behind a prediction, formula by formula",                          \
     "weft explain --model llama3-8b --topology dgx-h100")                                         \
  X (program, "print the program of a stage, or the pipeline schedule",                            \
     "weft program --model gpt2-nano --topology dgx-h100 --gpus 2 --role 0")                       \
  X (export, "write a job as the configuration of other software",                                 \
     "weft export --model llama3-8b --topology dgx-h100 --for megatron-lm")                        \
  X (import, "read the configuration of other software as a job",                                  \
     "weft import train.sh --from megatron-lm --topology dgx-h100")                                \
  X (lab, "exercises with a checker: collectives, ZeRO, pipelines, overlap, memory",               \
     "weft lab ring")                                                                              \
  X (validate, "predict published measurements and print the errors",                              \
     "weft validate --source mosaic --tier A")                                                     \
  X (fit, "fit constants of topologies and stacks to measured steps",                              \
     "weft fit --source megreadme --rounds 0")                                                     \
  X (knobs, "list the knobs: type, default, range, source, effect", "weft knobs bucket_size")      \
  X (rules, "list the rules that the settings of a job must fulfil", "weft rules world")           \
  X (models, "list the bundled models, or show the fields of one", "weft models llama3-8b")        \
  X (topologies, "list the bundled clusters, with the source of every number",                     \
     "weft topologies dgx-h100")                                                                   \
  X (stacks, "list the software stacks that can be predicted", "weft stacks megatron-core")       \
  X (completion, "print the completion for bash or zsh, or the page for man",                      \
     "weft completion bash")

#define WEFT_CLI_DECLARE(name, doc, example) int weft_cli_##name (int argc, char **argv);
WEFT_CLI_COMMAND_LIST (WEFT_CLI_DECLARE)
#undef WEFT_CLI_DECLARE

/* The main function of `weft`: finds the command, runs it and returns the exit status. */
int weft_cli_run (int argc, char **argv);

/* ------------------------------------------------------------------- arguments */

/* A flag of one command. A flag without a value sets *on to TRUE; a flag with a value sets
 * *text. */
struct weft_cli_flag {
  const char *name;  /* "trace" */
  /* what --help prints for the value, such as "FILE"; NULL: the flag has no value */
  const char *value;
  const char *doc;
  gboolean *on;
  const char **text;
  gboolean joins; /* TRUE: a repeated flag adds its value to *text, after a comma */
  const char *old; /* another name that older scripts use; NULL: none */
};

/* The arguments that a command accepts, and the texts of its page for --help. */
struct weft_cli_page {
  const char *usage, *doc, *examples;
  const struct weft_cli_flag *flags;
  unsigned n_flags;
  /* flags for the options of executors (cli/executor_options.h), listed after the others */
  const struct weft_cli_flag *more;
  unsigned n_more;
  gboolean job; /* TRUE: the operand is a job file, and every setting of a job is a flag */
  /* with `job`: TRUE: the operand is a file that the command itself reads, not a job file */
  gboolean foreign;
  gboolean two; /* TRUE: the command has a second operand */
  gboolean lists; /* TRUE: operands with a '=' are lists of values, KNOB=a,b,c */
  /* topology of the job if the user names none; NULL: the user must name one */
  const char *topology;
};

struct weft_cli_input {
  const char *operand;     /* the operand, JOB or NAME; NULL: not given */
  const char *second;      /* the second operand, for commands with `two` */
  GPtrArray *lists;        /* the operands KNOB=a,b,c, for commands with `lists`; NULL: none */
  const char *from;        /* the software whose configuration the operand is; NULL: none */
  gboolean json, help;     /* --json and --help, which every command has */
  weft_settings *settings; /* settings of the job; NULL if --help is given */
  unsigned n_from_file;    /* number of settings that the operand gives; those of flags follow */
};
void weft_cli_input_clear (struct weft_cli_input *input);
typedef struct weft_cli_input weft_cli_input;
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (weft_cli_input, weft_cli_input_clear)

/* Parses --flag value, --flag=value, and --flag or --no-flag for booleans.  Dashes and underscores
 * are equal.  Flags at any position override the job file.  The caller clears *input, even after an
 * error. */
gboolean weft_cli_read (const struct weft_cli_page *page, int argc, char **argv,
                        weft_cli_input *input, GError **error);

/* Whether a command has the flag --from, because its operand is a job. */
gboolean weft_cli_reads_software (const struct weft_cli_page *page);

/* Prints the page for --help. Returns the exit status 0. */
int weft_cli_help (const struct weft_cli_page *page);

/* Every command begins with this function, which parses the arguments, prints the page for --help,
 * and reports errors.  Returns WEFT_CLI_GO_ON, or the exit status of the command. */
#define WEFT_CLI_GO_ON (-1)
int weft_cli_begin (const struct weft_cli_page *page, int argc, char **argv,
                    weft_cli_input *input);

/* Builds the job from the parsed settings and prints its warnings to stderr. */
gboolean weft_cli_job (const weft_cli_input *input, struct weft_job *job, GError **error);

/* Prints the warnings of a job to stderr. */
void weft_cli_warn (const struct weft_job *job);

/* Parses the value of a flag as a whole number that is at least `lo`. `what` says in messages what
 * the number is: "a number of ranks", "a rank". */
gboolean weft_cli_number (const char *flag, const char *what, const char *text, int64_t lo,
                          int64_t *number,
                          GError **error);

/* ---------------------------------------------------------------------- output */

/* The version of Weft and the commit from which this binary was built: "0.1.0 (commit
 * 0123456789ab)". */
const char *weft_cli_version (void);

/* Prints the error to stderr. Returns the exit status for this error. */
int weft_cli_fail (const GError *error);

/* Prints a JSON document to stdout. */
void weft_cli_print_json (JsonBuilder *builder);

/* Writes a text to a file (core/base/output.h). */
gboolean weft_cli_write (const char *path, const char *text, GError **error);

/* Whether to print colours: stdout is a terminal and NO_COLOR is not set. */
gboolean weft_cli_has_colour (void);
