#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/executors.h"
#include "cli/launch.h"
#include "cli/outputs.h"
#include "cli/executor_options.h"
#include "cli/progress.h"
#include "core/base/error.h"
#include "core/job/finetune.h"
#include "core/report/report.h"
#include "core/exec/timeline_file.h"
#include "core/report/trace.h"
#include "core/base/units.h"
#include "core/base/wrap.h"
#include "train/checkpoint.h"
#include "train/memory_check.h"
#include "train/tokens.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Exit status of a run that a signal stopped and that the user can resume: EX_TEMPFAIL of
 * sysexits.h. */
#define EXIT_INTERRUPTED 75

static const char examples[] =
    "  weft train --model gpt2-nano --data README.md --steps 50\n"
    "  weft train --model gpt2-nano --gpus 4 --pipeline-model-parallel-size 2 \\\n"
    "      --global-batch-size 8 --data README.md --save checkpoints --save-interval 20\n"
    "  weft train job.ini --data README.md --load checkpoints --steps 200 --json\n";

/* Flags that take a number: id, flag, type, default, least, most, help. Default "none": the value
 * is computed if the flag is not given. */
#define NUMBER_LIST(X)                                                                             \
  X (STEPS, "steps", INT, "100", "1", "1e12", "optimizer steps in total, resumed ones included")   \
  X (SEED, "seed", INT, "1234", "0", "9007199254740992", "seed of weights and data order")         \
  X (LR, "lr", REAL, "none", "0", "10", "peak learning rate; none: as in published runs")          \
  X (MIN_LR, "min-lr", REAL, "none", "0", "10",                                                    \
     "final learning rate of the cosine; none: a tenth of the peak")                               \
  X (WARMUP, "warmup", INT, "10", "0", "1e12", "steps of linear learning rate warmup")             \
  X (DECAY_STEPS, "decay-steps", INT, "none", "1", "1e12",                                         \
     "step at which the cosine ends; none: after 20 tokens per parameter")                         \
  X (WEIGHT_DECAY, "weight-decay", REAL, "0.1", "0", "10", "decoupled weight decay of matrices")   \
  X (BETA1, "beta1", REAL, "0.9", "0", "0.999999", "Adam: first moment")                           \
  X (BETA2, "beta2", REAL, "0.95", "0", "0.999999", "Adam: second moment")                         \
  X (EPSILON, "epsilon", REAL, "1e-8", "1e-30", "1", "Adam: added to the denominator")             \
  X (SAVE_INTERVAL, "save-interval", INT, "none", "1", "1e12", "steps between checkpoints")        \
  X (KEEP, "keep", INT, "2", "0", "1000000", "number of newest checkpoints to keep; 0: all")       \
  X (EVAL_INTERVAL, "eval-interval", INT, "none", "1", "1e12", "steps between evaluations")        \
  X (EVAL_BATCHES, "eval-batches", INT, "10", "1", "1e9", "most batches per evaluation")           \
  X (EVAL_SHARE, "eval-share", REAL, "none", "0", "0.9",                                           \
     "last share of the data, kept for evaluation; none: 0.1 with --eval-interval, else 0")        \
  X (PATIENCE, "patience", REAL, "300", "0.1", "1e6",                                              \
     "seconds that processes wait for each other at start-up, with --launcher")
#define NUMBER_ID(id, ...) id,
enum number { NUMBER_LIST (NUMBER_ID) N_NUMBER };

#define NUMBER_FIELD(id, flag, kind, def_, lo_, hi_, doc_)                                         \
  { .name = flag,                                                                                  \
    .type = WEFT_TYPE_##kind,                                                                      \
    .def = def_,                                                                                   \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .unit = "",                                                                                    \
    .doc = doc_ },
static const struct weft_field numbers[] = { NUMBER_LIST (NUMBER_FIELD) };

/* Flags of the command that are not settings of the job. */
struct train_ask {
  const char *number[N_NUMBER]; /* text of each number as typed; NULL: the flag was not given */
  union weft_value value[N_NUMBER];
  const char *data, *tokens_from, *executor, *ranks_per_process, *launcher, *trace, *timeline;
  const weft_cli_options *own; /* options that only one executor has */
  gboolean in_order;
  struct weft_trainer_options options;
};

/* --------------------------------------------------------------------- reading */

static gboolean
is_given (const struct train_ask *ask, enum number n)
{
  return ask->value[n].i != WEFT_NONE;
}

static uint64_t
whole (const struct train_ask *ask, enum number n)
{
  return is_given (ask, n) ? (uint64_t) ask->value[n].i : 0;
}

static double
real_or (const struct train_ask *ask, enum number n, double otherwise)
{
  return is_given (ask, n) ? ask->value[n].r : otherwise;
}

static gboolean
read_numbers (struct train_ask *ask, GError **error)
{
  for (unsigned i = 0; i < N_NUMBER; i++) {
    const char *text = ask->number[i] ? ask->number[i] : numbers[i].def;
    if (weft_field_parse (&numbers[i], text, &ask->value[i], error))
      continue;
    g_prefix_error (error, "--");
    return FALSE;
  }
  return TRUE;
}

struct output {
  const char *flag, *path;
  enum {
    A_FOLDER,
    A_FILE,
    A_RENAMED_FILE
  /* kind of output. A_FILE is written in place, A_RENAMED_FILE is written under a temporary name
   * and then renamed */
  } kind;
};

static gboolean
check_folder (const struct output *o, const char *folder, GError **error)
{
  if (!g_file_test (folder, G_FILE_TEST_IS_DIR))
    return weft_bad_input (error, "--%s %s: %s is not a folder", o->flag, o->path,
                           folder);
  return access (folder, W_OK | X_OK) == 0 ||
         weft_bad_input (error, "--%s %s: cannot write in %s: %s", o->flag,
                         o->path, folder, g_strerror (errno));
}

/* Checks that a folder can be created: checks its nearest parent that exists. Folders of
 * checkpoints are created only when they are needed. */
static gboolean
check_new_folder (const struct output *o, GError **error)
{
  g_autofree char *at = g_strdup (o->path);

  while (!g_file_test (at, G_FILE_TEST_EXISTS)) {
    char *above = g_path_get_dirname (at);
    g_free (at);
    at = above;
  }
  return check_folder (o, at, error);
}

/* Checks that a file can be written. If the file exists and is written in place, the permissions of
 * its folder do not matter. */
static gboolean
check_file (const struct output *o, GError **error)
{
  g_autofree char *folder = g_path_get_dirname (o->path);
  gboolean exists = g_file_test (o->path, G_FILE_TEST_EXISTS);
  gboolean is_special = exists && !g_file_test (o->path, G_FILE_TEST_IS_REGULAR);

  if (g_file_test (o->path, G_FILE_TEST_IS_DIR))
    return weft_bad_input (error, "--%s %s: is a folder (expected a file)", o->flag,
                           o->path);
  if (is_special && o->kind == A_RENAMED_FILE)
    return weft_bad_input (error, "--%s %s: is a device or a pipe (expected a regular file)",
                           o->flag, o->path);
  if (!exists || o->kind == A_RENAMED_FILE)
    return check_folder (o, folder, error);
  return access (o->path, W_OK) == 0 ||
         weft_bad_input (error, "--%s %s: cannot be written: %s", o->flag, o->path,
                         g_strerror (errno));
}

/* Checks the paths of all outputs before the first step. */
static gboolean
check_outputs (const struct train_ask *ask, GError **error)
{
  const struct output outputs[] = {
    { "save", ask->options.save, A_FOLDER },
    { "export-safetensors", ask->options.export_safetensors, A_RENAMED_FILE },
    { "export-adapter", ask->options.export_adapter, A_FOLDER },
    { "dump-gradients", ask->options.dump_gradients, A_RENAMED_FILE },
    { "trace", ask->trace, A_FILE },
    { "timeline", ask->timeline, A_FILE },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (outputs); i++) {
    const struct output *o = &outputs[i];
    if (!o->path)
      continue;
    if (!*o->path)
      return weft_bad_input (error, "--%s: empty name (expected a %s)", o->flag,
                             o->kind == A_FOLDER ? "folder" : "file");
    if (!(o->kind == A_FOLDER ? check_new_folder (o, error) : check_file (o, error)))
      return FALSE;
  }
  return TRUE;
}

/* Adds the paths of all files of a folder. */
static void
add_files (GPtrArray *paths, const char *folder)
{
  g_autoptr (GDir) listing = g_dir_open (folder, 0, NULL);
  const char *name;

  while (listing && (name = g_dir_read_name (listing)))
    g_ptr_array_add (paths, g_build_filename (folder, name, NULL));
}

/* Lists the files that the run will read, except checkpoints; NULL after the last. An index of
 * weights (.json) stands for all files of its folder. */
static GPtrArray *
files_to_read (const struct weft_trainer_options *o)
{
  GPtrArray *paths = g_ptr_array_new_with_free_func (g_free);
  g_auto (GStrv) data = weft_tokens_files (o->data);
  g_autofree char *folder = o->init_safetensors ? g_path_get_dirname (o->init_safetensors) : NULL;

  for (unsigned i = 0; data[i]; i++)
    g_ptr_array_add (paths, g_strdup (data[i]));
  if (o->init_safetensors)
    g_ptr_array_add (paths, g_strdup (o->init_safetensors));
  if (o->init_safetensors && g_file_test (o->init_safetensors, G_FILE_TEST_IS_DIR))
    add_files (paths, o->init_safetensors);
  else if (folder && g_str_has_suffix (o->init_safetensors, ".json"))
    add_files (paths, folder);
  g_ptr_array_add (paths, NULL);
  return paths;
}

/* Refuses an output that is also an input: a file that was already read, a file that the run will
 * read, or a file of a checkpoint. */
static gboolean
check_inputs (const struct train_ask *ask, GError **error)
{
  const struct weft_trainer_options *o = &ask->options;
  const struct weft_cli_output outputs[] = { { "export-safetensors", o->export_safetensors },
                                             { "dump-gradients", o->dump_gradients },
                                             { "trace", ask->trace },
                                             { "timeline", ask->timeline } };
  g_autoptr (GPtrArray) inputs = files_to_read (o);

  for (unsigned i = 0; i < G_N_ELEMENTS (outputs); i++)
    if (outputs[i].path && weft_checkpoint_has (outputs[i].path))
      return weft_bad_input (error, "--%s %s: is a file of a checkpoint (expected another file)",
                             outputs[i].flag, outputs[i].path);
  return weft_cli_check_outputs (outputs, G_N_ELEMENTS (outputs),
                                 (const char *const *) inputs->pdata, error);
}

static gboolean
read_data (struct train_ask *ask, GError **error)
{
  struct weft_trainer_options *o = &ask->options;

  if (ask->data && ask->tokens_from && strcmp (ask->data, ask->tokens_from) != 0)
    return weft_bad_input (error, "--data %s and --tokens-from %s exclude each other",
                           ask->data, ask->tokens_from);
  o->data = ask->data ? ask->data : ask->tokens_from;
  if (!o->data)
    return weft_bad_input (error, "--data FILE is missing (text, or tokens of nanoGPT, llm.c or "
                                  "Megatron)");
  if (is_given (ask, SAVE_INTERVAL) && !o->save)
    return weft_bad_input (error, "--save-interval needs --save DIR");
  return TRUE;
}

/* Checks that the files of --load and --init-safetensors can be read, before planning takes time.
 * If both flags are given, the trainer reports the error. */
static gboolean
check_sources (const struct train_ask *ask, GError **error)
{
  const char *const sources[][2] = { { "load", ask->options.load },
                                     { "init-safetensors", ask->options.init_safetensors },
                                     { "init-adapter", ask->options.init_adapter } };

  if (sources[0][1] && sources[1][1])
    return TRUE;
  for (unsigned i = 0; i < G_N_ELEMENTS (sources); i++)
    if (sources[i][1] && access (sources[i][1], R_OK))
      return weft_bad_input (error, "--%s %s: cannot be opened: %s", sources[i][0], sources[i][1],
                             g_strerror (errno));
  return TRUE;
}

/* Checks that the token file can be opened with the vocabulary of the model. This check comes
 * before planning, because planning takes longer. */
static gboolean
check_data (const struct train_ask *ask, const struct weft_job *job, GError **error)
{
  g_autoptr (weft_tokens) tokens =
      weft_tokens_open (ask->options.data, job->model.vocab_size, error);

  return tokens != NULL;
}

/* Reads the flags for the chosen executor; refuses flags that this executor does not have. */
static gboolean
read_executor (struct train_ask *ask, const struct weft_exec_ops *ops, GError **error)
{
  const uint32_t processes = WEFT_EXEC_PROCESSES;

  if (!weft_cli_options_read (ask->own, ops, &ask->options.exec.own, error))
    return FALSE;
  if (!ask->number[PATIENCE] || weft_cli_has_flags (ops, &processes))
    return TRUE;
  g_autofree char *others =
      weft_cli_executors_with (weft_cli_real_executors (), weft_cli_has_flags, &processes);
  return weft_bad_input (error,
                         "--patience: not available with executor %s (expected --executor %s)",
                         ops->name, others);
}

/* ------------------------------------------------------------------------- job */

static gboolean
fill_rates (struct train_ask *ask, const struct weft_job *job, GError **error)
{
  struct weft_trainer_options *o = &ask->options;
  uint64_t parameters = weft_model_parameters (&job->model);
  uint64_t tokens = (uint64_t) (job->train.global_batch_size * job->model.seq_length);

  o->lr = real_or (ask, LR, weft_trainer_default_lr (parameters));
  o->min_lr = real_or (ask, MIN_LR, 0.1 * o->lr);
  o->warmup = whole (ask, WARMUP);
  o->decay_steps = is_given (ask, DECAY_STEPS)
                       ? whole (ask, DECAY_STEPS)
                       : weft_trainer_default_decay_steps (parameters, tokens);
  return o->min_lr <= o->lr ||
         weft_bad_input (error, "--min-lr: found %g, wanted at most the learning rate, %g",
                         o->min_lr, o->lr);
}

static void
fill_options (struct train_ask *ask)
{
  struct weft_trainer_options *o = &ask->options;

  o->steps = whole (ask, STEPS);
  o->seed = whole (ask, SEED);
  o->seed_given = ask->number[SEED] != NULL;
  o->beta1 = ask->value[BETA1].r;
  o->beta2 = ask->value[BETA2].r;
  o->epsilon = ask->value[EPSILON].r;
  o->weight_decay = ask->value[WEIGHT_DECAY].r;
  o->save_interval = whole (ask, SAVE_INTERVAL);
  o->keep = (uint32_t) whole (ask, KEEP);
  o->eval_interval = whole (ask, EVAL_INTERVAL);
  o->eval_batches = whole (ask, EVAL_BATCHES);
  o->eval_share = real_or (ask, EVAL_SHARE, o->eval_interval ? 0.1 : 0);
  o->shuffle = !ask->in_order;
  o->exec.times = ask->trace || ask->timeline;
}

/* --------------------------------------------------------------------- running */

/* Every line of the header begins with this text. */
#define PREFIX "weft: "

static void
print_header (const weft_plan *plan, const struct weft_exec_ops *ops, const struct train_ask *ask)
{
  const struct weft_job *job = &plan->job;
  const struct weft_trainer_options *o = &ask->options;
  g_autofree char *parameters =
      weft_units_human ((double) weft_model_parameters (&job->model), " parameters");
  g_autoptr (GString) text = g_string_new (NULL);

  weft_report_print_job (job, text);
  if (!weft_cluster_is_cpu (&job->cluster) && ops->flags & WEFT_EXEC_HOST)
    g_string_append_printf (text,
                            "ranks run on threads of this machine: the times are not those of %s\n",
                            g_quark_to_string (job->cluster.topology));
  g_string_append_printf (
      text, "%s, %s%s; planned", parameters, weft_precision_words[job->train.precision],
      weft_cluster_is_cpu (&job->cluster) && !job->train_set[WEFT_TRAIN_precision] &&
              job->train.precision == WEFT_FP32
          ? " (the default here: --precision bf16 is emulated)"
          : "");
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    g_autofree char *bytes = weft_units_human ((double) weft_plan_arena_bytes (plan, role), "B");
    g_string_append_printf (text, "%s %s", role ? "," : "", bytes);
  }
  g_string_append_printf (text, " per rank%s\n", plan->n_roles > 1 ? " of each stage" : "");
  g_string_append_printf (text,
                          "learning rate %.3g after %" G_GUINT64_FORMAT
                          " steps, down to %.3g at step %" G_GUINT64_FORMAT "\n",
                          o->lr, o->warmup, o->min_lr, o->decay_steps);
  g_autofree char *fitting = weft_wrap_lines (
      g_strchomp (text->str), weft_cli_columns_of (STDERR_FILENO) - (int) strlen (PREFIX));
  g_auto (GStrv) lines = g_strsplit (fitting, "\n", -1);
  for (unsigned i = 0; lines[i]; i++)
    fprintf (stderr, PREFIX "%s\n", lines[i]);
}

/* Writes the trace and the timeline of the last step to files. `timeline` is NULL if no step was
 * run. */
static gboolean
write_files (const weft_plan *plan, const weft_timeline *timeline, const struct train_ask *ask,
             GError **error)
{
  if (!timeline)
    return TRUE;
  if (ask->trace && !weft_trace_write (plan, timeline, 0, ask->trace, error))
    return FALSE;
  return !ask->timeline || weft_timeline_save (plan, timeline, ask->timeline, error);
}

/* Whether this process prints: TRUE if it is the only process, or the process of rank 0. */
static gboolean
is_first (const struct train_ask *ask)
{
  struct weft_rendezvous *peers = ask->options.exec.peers;
  return !peers || weft_rendezvous_place (peers)->process == 0;
}

static int
train (const weft_plan *plan, const struct weft_exec_ops *ops, const struct train_ask *ask,
       gboolean json)
{
  struct weft_cli_progress progress;
  const struct weft_trainer_sink sink = weft_cli_progress_start (&progress, json);
  struct weft_trainer_result result;
  g_autoptr (GError) error = NULL;

  gboolean ok = weft_trainer_run (plan, ops, &ask->options, &sink, &result, &error);
  weft_cli_progress_pause (&progress);
  if (ok && is_first (ask) && (ok = write_files (plan, result.timeline, ask, &error)))
    weft_cli_progress_done (&progress, &result);
  int status = !ok ? weft_cli_fail (error) : result.interrupted ? EXIT_INTERRUPTED : 0;
  weft_trainer_result_clear (&result);
  return status;
}

/* Connects to the other processes, if there are any, and trains the job. */
static int
train_together (const weft_plan *plan, const weft_launch *launch, struct train_ask *ask,
                const struct weft_exec_ops *ops, gboolean json)
{
  g_autoptr (weft_rendezvous) peers = NULL;
  g_autoptr (GError) error = NULL;

  if (!weft_cli_launch_meet (launch, &plan->job, ask->value[PATIENCE].r, &peers, &error))
    return weft_cli_fail (error);
  ask->options.exec.peers = peers;
  if (is_first (ask))
    print_header (plan, ops, ask);
  return train (plan, ops, ask, json);
}

/* Files of adapters need a job with adapters. Files of whole models have no place for adapters, and
 * frozen weights have no gradients. */
static gboolean
check_adapters (const struct train_ask *ask, const struct weft_job *job, GError **error)
{
  const struct weft_trainer_options *o = &ask->options;
  const char *adapter = o->init_adapter     ? "--init-adapter"
                        : o->export_adapter ? "--export-adapter"
                                            : NULL;

  if (o->init_adapter && o->load)
    return weft_bad_input (error, "--init-adapter and --load exclude each other: a checkpoint has "
                                  "the adapters");
  if (adapter && job->train.lora_dim == 0)
    return weft_bad_input (error, "%s needs adapters: --lora-dim N", adapter);
  if (o->export_safetensors && job->train.lora_dim > 0)
    return weft_bad_input (error, "--export-safetensors writes models without adapters; a job with "
                                  "--lora-dim does not change them, and has --export-adapter DIR");
  return !o->dump_gradients || weft_job_frozen (job, NULL) == 0 ||
         weft_bad_input (error, "--dump-gradients writes the gradient of every weight; frozen "
                                "weights have none");
}

static int
run (const weft_cli_input *input, struct train_ask *ask)
{
  g_auto (weft_launch) launch = { 0 };
  g_autoptr (GError) error = NULL;
  const struct weft_exec_ops *ops = weft_cli_real_executor (ask->executor, &error);
  struct weft_job job;

  if (!ops || !read_numbers (ask, &error) || !read_data (ask, &error) ||
      !check_sources (ask, &error) || !check_outputs (ask, &error) ||
      !read_executor (ask, ops, &error) ||
      !weft_cli_launch (ask->launcher, ops, &launch, &error) ||
      (ops->load && !ops->load (&error)) || !weft_cli_job (input, &job, &error) ||
      !weft_cli_launch_check (&launch, ask->ranks_per_process, &job, &error) ||
      !check_adapters (ask, &job, &error) || !fill_rates (ask, &job, &error) ||
      !check_data (ask, &job, &error))
    return weft_cli_fail (error);
  fill_options (ask);
  g_autoptr (weft_plan) plan = weft_plan_new (&job, &error);
  if (!plan || !check_inputs (ask, &error) || !weft_memory_check (plan, ops, &error))
    return weft_cli_fail (error);
  return train_together (plan, &launch, ask, ops, input->json);
}

static const char doc[] =
    "Trains a model with real numbers.  The ranks of the job run on threads of this machine or, "
    "with an executor of GPUs (--executor cuda), on its GPUs or those of all machines on which "
    "torchrun, mpirun or srun start it.  The default topology is cpu, with precision fp32.  "
    "--json prints one line per step and a last one; everything else goes to stderr.\n"
    "SIGTERM, SIGINT or a closed pipe on stdout end the run after the current step, with a "
    "checkpoint if --save is given, and with status 75.  A job that needs more memory than there "
    "is ends with status 3.";

#define FILE_LIST(X)                                                                               \
  X ("data", "FILE", data, "tokens: text (bytes), nanoGPT or llm.c .bin, Megatron .idx or .bin")   \
  X ("tokens-from", "FILE", tokens_from, "the same as --data")                                     \
  X ("save", "DIR", options.save, "write checkpoints, at the end and every --save-interval steps") \
  X ("load", "DIR", options.load, "resume from a checkpoint, or from the newest one in a folder")  \
  X ("init-safetensors", "FILE", options.init_safetensors,                                         \
     "initial weights: a Hugging Face model")                                                      \
  X ("export-safetensors", "FILE", options.export_safetensors, "write the trained weights")        \
  X ("init-adapter", "DIR", options.init_adapter, "initial LoRA adapters: a folder of PEFT")       \
  X ("export-adapter", "DIR", options.export_adapter, "write the LoRA adapters as PEFT does")      \
  X ("dump-gradients", "FILE", options.dump_gradients, "write the gradients of the first step")    \
  X ("trace", "FILE", trace, "write the last step for Perfetto (.json or .json.gz)")               \
  X ("timeline", "FILE", timeline, "write the last step for weft compare (.json or .json.gz)")     \
  X ("executor", weft_cli_real_executor_names (), executor,                                        \
     "what runs the ops; auto is cpu [auto]")                                                      \
  X ("ranks-per-process", "N|all", ranks_per_process,                                              \
     "accepted for scripts; must agree with the launcher")                                         \
  X ("launcher", "WORD", launcher,                                                                 \
     "with GPUs, what starts several processes: auto, none, torchrun, openmpi, slurm or mpich "    \
     "[auto]")

int
weft_cli_train (int argc, char **argv)
{
  g_autoptr (weft_cli_options) own = weft_cli_options_new (weft_cli_real_executors ());
  struct train_ask ask = { .own = own };
#define NUMBER_FLAG(id, flag, kind, def_, lo_, hi_, doc_)                                          \
  { .name = flag, .value = "N", .text = &ask.number[id], .doc = doc_ " [" def_ "]" },
#define FILE_FLAG(flag, what, member, doc_)                                                        \
  { .name = flag, .value = what, .text = &ask.member, .doc = doc_ },
  const struct weft_cli_flag flags[] = {
    FILE_LIST (FILE_FLAG) NUMBER_LIST (NUMBER_FLAG){
        .name = "no-shuffle", .on = &ask.in_order, .doc = "read the data in file order" },
  };
  struct weft_cli_page page = {
    .usage = "weft train [JOB] --data FILE [flags] [--json]",
    .doc = doc,
    .examples = examples,
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
    .topology = "cpu",
  };
  page.more = weft_cli_options_flags (own, &page.n_more);
  g_auto (weft_cli_input) input = { 0 };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? run (&input, &ask) : status;
}
