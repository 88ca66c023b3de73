/* The commands as a shell runs them: exit status, the stream that a message is written to, and its
 * text. */
#define _GNU_SOURCE /* posix_openpt */
#include "cli/cli.h"
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void
accepted (const char *words, const char *part)
{
  struct answer a = weft_test_answer (words);

  if (a.status != 0 || !strstr (a.out, part))
    fail_msg ("weft %s: status %d\n%s%s\nwanted \"%s\"", words, a.status, a.out, a.err, part);
  weft_test_answer_free (&a);
}

#define NANO "--model gpt2-nano --topology dgx-h100 "

static JsonNode *
document (const char *words, int status)
{
  struct answer a = weft_test_answer (words);
  g_autoptr (GError) error = NULL;
  JsonNode *root = json_from_string (a.out, &error);

  if (!root || a.status != status)
    fail_msg ("weft %s: status %d, %s\n%s", words, a.status, error ? error->message : "", a.err);
  weft_test_answer_free (&a);
  return root;
}

static double
number (JsonNode *root, const char *section, const char *name)
{
  JsonObject *part = json_object_get_object_member (json_node_get_object (root), section);
  return json_object_get_double_member (part, name);
}

/* ------------------------------------------------------------------------- help */

static void
without_a_command_the_commands_are_listed (void **state)
{
  (void) state;
  accepted ("", "usage: weft COMMAND");
  accepted ("--help", "topologies");
  accepted ("--version", "weft 0.1.0");
  if (g_file_test (WEFT_SOURCE_DIR "/.git", G_FILE_TEST_EXISTS))
    accepted ("--version", "weft 0.1.0 (commit ");
}

/* ------------------------------------------------------------------------- programs */

/* `weft program --read FILE` reads a program that `weft program` printed, checks it, and prints
 * it again. Both texts are equal except for comments. */
static void
a_printed_program_is_read_checked_and_printed_again (void **state)
{
  g_autofree char *path = g_build_filename (g_get_tmp_dir (), "weft-read-XXXXXX", NULL);
  g_autofree char *words = NULL, *text = NULL;

  (void) state;
  g_close (g_mkstemp (path), NULL);
  struct answer first = weft_test_answer ("program " NANO
                                          "--gpus 2 --pipeline-model-parallel-size 2 --role 1");
  assert_true (g_file_set_contents (path, first.out, -1, NULL));
  words = g_strdup_printf ("program --read %s", path);
  struct answer again = weft_test_answer (words);
  assert_int_equal (again.status, 0);
  const char *body = first.out;
  while (*body == '#')
    body = strchr (body, '\n') + 1;
  assert_string_equal (again.out, body);

  char *end = strstr (again.out, "\nend");
  assert_non_null (end);
  text = g_strdup_printf ("%.*s\nnonsense\nend\n", (int) (end - again.out), again.out);
  assert_true (g_file_set_contents (path, text, -1, NULL));
  struct answer broken = weft_test_answer (words);
  g_autofree char *place = g_strdup_printf ("weft: %s:", path);
  assert_int_equal (broken.status, 2);
  assert_non_null (strstr (broken.err, place));
  weft_test_answer_free (&first);
  weft_test_answer_free (&again);
  weft_test_answer_free (&broken);
  g_unlink (path);
}

static void
reading_a_program_takes_no_job_and_no_schedule (void **state)
{
  static const char *const wrong[][2] = {
    { "program --read x.txt --schedule", "found --read and --schedule, wanted one of them" },
    { "program --read x.txt --role 1", "found --read and --role, wanted one of them" },
    { "program --read x.txt --model gpt2", "found --read and a job, wanted one of them" },
    { "program --read no-such-file.txt", "no-such-file.txt" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (wrong); i++) {
    struct answer a = weft_test_answer (wrong[i][0]);
    if (a.status != 2 || !strstr (a.err, wrong[i][1]))
      fail_msg ("weft %s: status %d, %s", wrong[i][0], a.status, a.err);
    weft_test_answer_free (&a);
  }
}

#define NAME(id, doc, example) #id,
static const char *const commands[] = { WEFT_CLI_COMMAND_LIST (NAME) };

static void
every_command_has_help_with_examples (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (commands); i++) {
    g_autofree char *usage = g_strdup_printf ("usage: weft %s", commands[i]);
    g_autofree char *flag = g_strdup_printf ("%s --help", commands[i]);
    g_autofree char *word = g_strdup_printf ("help %s", commands[i]);
    accepted (flag, usage);
    accepted (flag, "\nexamples:\n");
    accepted (word, usage);
  }
  /* --flops-convention sets which attention FLOPs count in MFU */
  accepted ("sim --help", "--flops-convention full");
}

#define EXAMPLE(id, doc, example) example,
static const char *const examples[] = { WEFT_CLI_COMMAND_LIST (EXAMPLE) };

/* Creates a folder with the files that the examples name, and changes into the folder. Returns its
 * path. */
static char *
enter_examples (void)
{
  static const char *const files[] = { "predicted.json", "measured.json" };
  char *folder = g_dir_make_tmp ("weft-cli-XXXXXX", NULL);

  assert_int_equal (g_chdir (folder), 0);
  assert_int_equal (symlink (WEFT_SOURCE_DIR "/README.md", "README.md"), 0);
  assert_int_equal (symlink (WEFT_SOURCE_DIR "/docs/fp8_loss.csv", "losses.csv"), 0);
  assert_true (g_file_set_contents ("train.sh",
                                    "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 "
                                    "--num-attention-heads 8 --seq-length 128 --micro-batch-size 1 "
                                    "--max-position-embeddings 128",
                                    -1, NULL));
  for (unsigned i = 0; i < G_N_ELEMENTS (files); i++) {
    g_autofree char *words = g_strdup_printf ("sim " NANO "--timeline %s", files[i]);
    accepted (words, "step time");
  }
  return folder;
}

static void
leave_examples (char *folder, const char *before)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  const char *name;

  while ((name = g_dir_read_name (dir)))
    g_unlink (name);
  assert_int_equal (g_chdir (before), 0);
  g_rmdir (folder);
  g_free (folder);
}

/* Help pages have lines of at most 100 columns even where stdout is not a terminal. */
static void
help_pages_are_at_most_100_columns_wide (void **state)
{
  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (commands); i++) {
    g_autofree char *words = g_strdup_printf ("%s --help", commands[i]);
    struct answer a = weft_test_answer (words);
    g_auto (GStrv) lines = g_strsplit (a.out, "\n", -1);
    for (char **line = lines; *line; line++)
      if (strlen (*line) > 100)
        fail_msg ("weft %s: a line of %zu columns: %s", words, strlen (*line), *line);
    weft_test_answer_free (&a);
  }
}

static void
a_knob_with_words_explains_each_of_them (void **state)
{
  (void) state;
  accepted ("knobs recompute_granularity", "full       keep only the input of a block of layers\n");
  accepted ("knobs pipeline-schedule", "zb-h2          zero bubbles; twice the memory of 1f1b\n");
}

static void
other_spellings_are_listed_and_explained (void **state)
{
  (void) state;
  accepted ("knobs", "untie_embeddings_and_output_weights   share_embeddings_and_output_weights =");
  accepted ("knobs tp", "tensor_model_parallel_size\n");
  accepted ("knobs ddp-bucket-size", "aliases  ddp_bucket_size");
  accepted ("knobs swiglu", "sets     activation = swiglu");
  accepted ("knobs train-iters", "no effect: weft train has --steps");
}

static void
the_examples_of_the_list_work (void **state)
{
  g_autofree char *before = g_get_current_dir ();
  char *folder = enter_examples ();

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (examples); i++) {
    struct answer a = weft_test_answer (examples[i] + strlen ("weft "));
    if ((a.status != 0 && a.status != 3) || !*a.out)
      fail_msg ("%s: status %d\n%s", examples[i], a.status, a.err);
    weft_test_answer_free (&a);
  }
  leave_examples (folder, before);
}

/* -------------------------------------------------------------------- bad input */

static void
bad_input_ends_with_2_and_names_what_was_found (void **state)
{
  static const char *const cases[][2] = {
    { "simm", "unknown command \"simm\"; did you mean sim?" },
    { "help memroy", "did you mean memory?" },
    { "--model gpt2", "expected a command before flag" },
    { "sim nowhere.ini", "nowhere.ini: no such file" },
    { "sim /", "/: is a folder" },
    { "sim a.ini b.ini", "unexpected \"b.ini\" after \"a.ini\": expected at most one job file" },
    { "sim", "--model NAME" },
    { "sim --modle gpt2", "unknown flag --modle; did you mean --model?" },
    { "sim --trase x", "unknown flag --trase; did you mean --trace?" },
    { "knobs reduction-order", "it is a setting of section [train]: order of summation" },
    { "knobs num_layers", "it is a setting of section [model]" },
    { "knobs --jsn", "unknown flag --jsn; did you mean --json?" },
    { "sim -x", "flags begin with two dashes" },
    { "sim --model", "--model: wanted a value" },
    { "sim --model --json", "--model: wanted a value" },
    { "sim --json=1", "--json: found \"1\", wanted no value" },
    { "sim " NANO "--executor abacus", "--executor: found \"abacus\", wanted sim or clock" },
    { "sim " NANO "--trace t.json --trace-ranks no", "--trace-ranks: found \"no\"" },
    { "sim " NANO "--gpus 8 --pipeline-model-parallel-size 3", "rule world: " },
    { "memory " NANO "--micro-batch-size 0", "--micro-batch-size: " },
    { "sim " NANO "--no-micro-batch-size", "unknown flag --no-micro-batch-size" },
    { "topologies --markdown", "unknown flag --markdown" },
    { "models a b", "expected at most one name" },
    { "export " NANO, "export needs --for SOFTWARE" },
    { "export " NANO "--for megatron-lmm", "did you mean megatron-lm?" },
    { "export " NANO "--for excel", "unknown software \"excel\"; known are megatron-lm" },
    { "import --from megatron-lm", "import needs FILE and --from SOFTWARE" },
    { "import none.sh --from megatron-lm --topology dgx-h100", "none.sh: No such file" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++)
    weft_test_refused (cases[i][0], 2, cases[i][1]);
}

static void
a_file_that_cannot_be_written_ends_with_1 (void **state)
{
  (void) state;
  weft_test_refused ("sim " NANO "--executor clock --trace /nonexistent/t.json", 1,
                     "/nonexistent/t.json: ");
}

/* ------------------------------------------------------------------------- jobs */

static char *
write_job (const char *text)
{
  char *path;
  int fd = g_file_open_tmp ("weft-cli-XXXXXX.ini", &path, NULL);

  assert_true (fd >= 0);
  g_close (fd, NULL);
  assert_true (g_file_set_contents (path, text, -1, NULL));
  return path;
}

static void
flags_override_the_file_wherever_they_stand (void **state)
{
  g_autofree char *path = write_job ("[model]\nconfig = gpt2-nano\n[cluster]\ntopology = dgx-h100\n"
                                     "[train]\nmicro_batch_size = 4\n");
  const char *const orders[] = { "sim %s --executor clock --micro-batch-size 2 --json",
                                 "sim --executor=clock --micro_batch_size=2 --json %s" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (orders); i++) {
    g_auto (GStrv) parts = g_strsplit (orders[i], "%s", 2);
    g_autofree char *words = g_strjoinv (path, parts);
    g_autoptr (JsonNode) root = document (words, 0);
    JsonObject *job = json_object_get_object_member (json_node_get_object (root), "job");
    assert_int_equal (json_object_get_int_member (json_object_get_object_member (job, "train"),
                                                  "micro_batch_size"),
                      2);
  }
  g_unlink (path);
}

/* Runs a command line in a shell, with the path of weft as $WEFT. The caller frees the answer. */
static struct answer
shell (const char *line)
{
  const char *argv[] = { "/bin/sh", "-c", line, NULL };
  g_auto (GStrv) environment = g_environ_setenv (g_get_environ (), "WEFT", WEFT_BINARY, TRUE);
  struct answer a;

  assert_true (g_spawn_sync (NULL, (char **) argv, environment, G_SPAWN_DEFAULT, NULL, NULL, &a.out,
                             &a.err, &a.status, NULL));
  a.status = WIFEXITED (a.status) ? WEXITSTATUS (a.status) : -1;
  return a;
}

static void
a_dash_is_a_job_on_standard_input (void **state)
{
  struct answer good = shell ("printf '[model]\nconfig = gpt2-nano\n[cluster]\ntopology = cpu\n' |"
                              " $WEFT sim - --gpus 2");
  struct answer bad = shell ("printf '[model]\nconfg = gpt2-nano\n' | $WEFT sim -");

  (void) state;
  assert_int_equal (good.status, 0);
  assert_non_null (strstr (good.out, "gpt2-nano on 2 x CPU thread"));
  assert_int_equal (bad.status, 2);
  assert_non_null (strstr (bad.err, "weft: stdin:2: [model] unknown key \"confg\""));
  weft_test_answer_free (&good);
  weft_test_answer_free (&bad);
}

/* Completes word `at` of a command line as bash does with weft's completion. The caller frees the
 * completed words. */
static struct answer
complete (const char *words, int at)
{
  g_autofree char *line = g_strdup_printf (
      "exec bash -c '. <($WEFT completion bash); COMP_WORDS=(weft %s) COMP_CWORD=%d; _weft; "
      "echo ${COMPREPLY[@]}'",
      words, at);
  return shell (line);
}

static void
bash_completes_commands_flags_and_names (void **state)
{
  static const struct {
    const char *words;
    int at;
    const char *wanted;
  } lines[] = {
    { "topo", 1, "topologies\n" },
    { "sim --trace-r", 2, "--trace-ranks\n" },
    { "plan --pipeline-model-parallel-s", 2, "--pipeline-model-parallel-size\n" },
    { "train --untie", 2, "--untie-embeddings-and-output-weights\n" },
    { "sim --topology dgx-h", 3, "dgx-h100\n" },
    { "memory --model gpt2-na", 3, "gpt2-nano\n" },
    { "validate --ti", 2, "--tier\n" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (lines); i++) {
    struct answer a = complete (lines[i].words, lines[i].at);
    if (strcmp (a.out, lines[i].wanted) != 0)
      fail_msg ("%s: \"%s\" %s, wanted \"%s\"", lines[i].words, a.out, a.err, lines[i].wanted);
    weft_test_answer_free (&a);
  }
  accepted ("completion zsh", "#compdef weft\n");
  weft_test_refused ("completion fish", 2, "found \"fish\", wanted bash, zsh or man");
  weft_test_refused ("completion", 2, "found \"nothing\"");
}

static void
the_page_for_man_has_every_command_and_its_flags (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (commands); i++) {
    g_autofree char *head = g_strdup_printf (".SS weft %s\n", commands[i]);
    accepted ("completion man", head);
  }
  accepted ("completion man", ".TP\n.B \\-\\-trace\\-ranks N\n");
  accepted ("completion man", "\\-\\-nodes 4 \\-\\-global\\-batch\\-size 64 \\e\n");
}

static void
no_clears_a_boolean_and_the_last_flag_counts (void **state)
{
  g_autoptr (JsonNode) root =
      document ("memory " NANO "--use-distributed-optimizer "
                "--no-use-distributed-optimizer --overlap-grad-reduce --json",
                0);
  JsonObject *job = json_object_get_object_member (json_node_get_object (root), "job");
  JsonObject *strategy = json_object_get_object_member (job, "strategy");

  (void) state;
  assert_false (json_object_get_boolean_member (strategy, "use_distributed_optimizer"));
  assert_true (json_object_get_boolean_member (strategy, "overlap_grad_reduce"));
}

static void
notes_about_a_job_go_to_stderr (void **state)
{
  struct answer a = weft_test_answer ("memory " NANO "--bucket-size 1000 --json");

  (void) state;
  assert_int_equal (a.status, 0);
  assert_non_null (strstr (a.err, "weft: note: bucket_size_unused: "));
  assert_int_equal (*a.out, '{');
  weft_test_answer_free (&a);
}

/* `weft plan` starts its search from a job with 2 sequences per step and 8 replicas, which gives 0
 * microbatches per replica. The note few_microbatches is for jobs that a user wrote, so the search
 * must not print it for its starting point. */
static void
a_search_does_not_speak_of_no_microbatches (void **state)
{
  struct answer a = weft_test_answer ("plan " NANO "--gpus 8 --global-batch-size 2 --pp 2");

  (void) state;
  assert_int_equal (a.status, 0);
  assert_null (strstr (a.err, "few_microbatches"));
  weft_test_answer_free (&a);
}

/* ----------------------------------------------------------------------- answers */

/* The convention for MFU decides which pairs of query and key count. With sequences of 128 tokens,
 * a query has 128 pairs (full) or 64.5 pairs on average (causal). */
static void
mfu_counts_attention_by_the_convention_asked_for (void **state)
{
  g_autoptr (JsonNode) causal = document ("sim " NANO "--json", 0),
                       full = document ("sim " NANO "--flops-convention full --json", 0),
                       models = document ("models gpt2-nano --json", 0);
  JsonObject *model = json_node_get_object (models);
  double ratio = (double) json_object_get_int_member (model, "flops_per_token_palm") /
                 (double) json_object_get_int_member (model, "flops_per_token_causal");

  (void) state;
  assert_true (ratio > 1.01);
  assert_float_equal (number (full, "iteration", "mfu"),
                      number (causal, "iteration", "mfu") * ratio, 1e-6);
  assert_float_equal (number (full, "iteration", "hfu"), number (causal, "iteration", "hfu"), 0);
  accepted ("sim " NANO, "(causal attention)");
  accepted ("sim " NANO "--flops-convention full", "(full attention)");
  accepted ("explain " NANO "--flops-convention full", "attention (flops_convention = full)");
  weft_test_refused ("sim " NANO "--flops-convention half", 2, "wanted causal|full");
}

/* On one GPU no two transfers share a link, so `clock` and `sim` predict the same time. */
static void
both_executors_agree_where_nothing_contends (void **state)
{
  g_autoptr (JsonNode) clock = document ("sim " NANO "--gpus 1 --executor clock --json", 0);
  g_autoptr (JsonNode) sim = document ("sim " NANO "--gpus 1 --executor sim --json", 0);
  double a = number (clock, "iteration", "time_s"), b = number (sim, "iteration", "time_s");

  (void) state;
  assert_true (a > 0 && b > a * (1 - 1e-9) && b < a * (1 + 1e-9));
}

/* Returns the step time in seconds, from the rows of weft explain. */
static double
explained_step (const char *words)
{
  g_autoptr (JsonNode) root = document (words, 0);
  JsonArray *sections =
      json_object_get_array_member (json_node_get_object (root), "sections");

  for (unsigned i = 0; i < json_array_get_length (sections); i++) {
    JsonArray *rows =
        json_object_get_array_member (json_array_get_object_element (sections, i), "rows");
    for (unsigned j = 0; j < json_array_get_length (rows); j++) {
      JsonObject *row = json_array_get_object_element (rows, j);
      if (strcmp (json_object_get_string_member (row, "what"), "step") == 0)
        return json_object_get_double_member (row, "value");
    }
  }
  fail_msg ("weft %s: no row \"step\"", words);
  return 0;
}

/* Every command that predicts a step time accepts --graph (CUDA graphs), like weft sim. */
static void
all_that_predict_know_graphs (void **state)
{
#define BOUND "--model gpt2-nano --topology dgx-h100 --stack megatron-core --gpus 1 "
#define COUNTED                                                                                    \
  "--model mixtral-nano --topology dgx-h100 --gpus 2 --expert-model-parallel-size 2 "              \
  "--reduction-order fast"
  g_autofree char *path = write_job ("[model]\nconfig = gpt2-nano\n[cluster]\ntopology = dgx-h100\n"
                                     "gpus = 1\n[stack]\nname = megatron-core\n");
  static const char *const refused[] = { "sim", "explain", "plan" };
  g_autofree char *both = g_strdup_printf ("compare %s %s --graph --json", path, path);
  g_autoptr (JsonNode) sim = document ("sim " BOUND "--json", 0),
                       graph = document ("sim " BOUND "--graph --json", 0),
                       compared = document (both, 0);
  double plain = number (sim, "iteration", "time_s"), s = number (graph, "iteration", "time_s");

  (void) state;
  assert_true (s < 0.9 * plain);
  assert_true (number (compared, "a", "time_s") == s && number (compared, "b", "time_s") == s);
  assert_true (explained_step ("explain " BOUND "--graph --json") == s);
  accepted ("plan " BOUND "--graph --finalists 1", " --graph\n");
  for (size_t i = 0; i < G_N_ELEMENTS (refused); i++) {
    g_autofree char *words = g_strdup_printf ("%s " COUNTED " --graph", refused[i]);
    weft_test_refused (words, 2, "--graph: all_to_all_v");
  }
  g_unlink (path);
}

static void
what_does_not_fit_is_printed_and_ends_with_3 (void **state)
{
  const char *const words = "--model llama2-13b --topology dgx-h100 --executor clock --json";
  g_autofree char *line = g_strdup_printf ("sim %s", words);
  g_autoptr (JsonNode) root = document (line, 3);
  JsonObject *memory = json_object_get_object_member (json_node_get_object (root), "memory");

  (void) state;
  assert_false (json_object_get_boolean_member (memory, "fits"));
  assert_true (json_object_get_int_member (memory, "peak_bytes") >
               json_object_get_int_member (memory, "capacity_bytes"));
}

/* weft sim, memory and explain report memory waits (docs/glossary.md), and do not mention them
 * on a GPU with enough memory. */
static void
waits_for_memory_are_told (void **state)
{
  static const char *const job =
      "--model llama3.1-405b --num-layers 8 --topology dgx-h100 --nodes 64 --global-batch-size 512 "
      "--seq-length 8192 --tensor-model-parallel-size 8 --sequence-parallel --use-megatron-fsdp "
      "--data-parallel-sharding-strategy optim_grads_params --gpu-memory";
  static const struct {
    const char *command, *text;
  } pages[] = { { "sim", " ops wait for memory, " },
                { "memory", " ops wait for memory, " },
                { "explain", "stalled by dp reduce_scatter" } };
  g_autofree char *words = g_strdup_printf ("sim %s 12e9 --executor clock --json", job);
  g_autoptr (JsonNode) root = document (words, 0);
  JsonObject *memory = json_object_get_object_member (json_node_get_object (root), "memory");
  JsonArray *roles = json_object_get_array_member (memory, "roles");
  JsonObject *role = json_array_get_object_element (roles, 0),
             *waits = json_object_get_object_member (role, "waits");

  (void) state;
  assert_true (json_object_get_int_member (waits, "ops") > 0);
  assert_true (json_object_get_double_member (waits, "held_s") > 0);
  assert_true (json_array_get_length (json_object_get_array_member (waits, "for")) > 0);
  for (size_t i = 0; i < 2 * G_N_ELEMENTS (pages); i++) {
    gboolean full = i < G_N_ELEMENTS (pages);
    g_autofree char *line = g_strdup_printf ("%s %s %s", pages[i % G_N_ELEMENTS (pages)].command,
                                             job, full ? "12e9" : "80e9");
    struct answer a = weft_test_answer (line);
    assert_int_equal (a.status, 0);
    assert_int_equal (strstr (a.out, pages[i % G_N_ELEMENTS (pages)].text) != NULL, full);
    weft_test_answer_free (&a);
  }
}

/* If a job does not fit in memory, `weft memory` suggests flags. With these flags the job fits. */
static void
the_change_it_names_fits (void **state)
{
  const char *const words = "memory --model llama2-13b --topology dgx-h100 --json";
  g_autoptr (JsonNode) root = document (words, 3);
  JsonObject *change = json_object_get_object_member (json_node_get_object (root), "change");
  JsonArray *flags = json_object_get_array_member (change, "flags");
  g_autoptr (GString) again = g_string_new (words);

  (void) state;
  assert_true (json_array_get_length (flags) > 0);
  for (unsigned i = 0; i < json_array_get_length (flags); i++)
    g_string_append_printf (again, " %s", json_array_get_string_element (flags, i));
  g_autoptr (JsonNode) fitting = document (again->str, 0);
  JsonObject *memory = json_object_get_object_member (json_node_get_object (fitting), "memory");
  assert_int_equal (json_object_get_int_member (memory, "peak_bytes"),
                    json_object_get_int_member (change, "peak_bytes"));
}

static void
a_trace_is_written_beside_the_answer (void **state)
{
  g_autofree char *folder = g_dir_make_tmp ("weft-cli-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "t.json", NULL);
  g_autofree char *words = g_strdup_printf ("sim " NANO "--executor clock --trace %s", path);
  g_autofree char *text = NULL;

  (void) state;
  accepted (words, "step time");
  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  assert_true (g_str_has_prefix (text, "{\"schemaVersion\":1"));
  g_unlink (path);
  g_rmdir (folder);
}

static void
the_page_is_whole_in_itself_and_well_formed (void **state)
{
  static const char *const elsewhere[] = { "http", "src=", "url(", "<link", "import(" };
  static const GMarkupParser parser = { 0 };
  g_autofree char *folder = g_dir_make_tmp ("weft-cli-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "r.html", NULL);
  g_autofree char *words =
      g_strdup_printf ("sim " NANO "--pipeline-model-parallel-size 2 --global-batch-size 8 "
                       "--executor clock --html %s",
                       path);
  g_autofree char *text = NULL;

  (void) state;
  accepted (words, "step time");
  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  for (unsigned i = 0; i < G_N_ELEMENTS (elsewhere); i++)
    assert_null (strstr (text, elsewhere[i]));
  const char *svg = strstr (text, "<svg"), *end = strstr (text, "</svg>");
  assert_true (svg && end && strstr (svg, "stage 1</text>"));
  g_autoptr (GMarkupParseContext) context = g_markup_parse_context_new (&parser, 0, NULL, NULL);
  assert_true (g_markup_parse_context_parse (context, svg, end - svg + strlen ("</svg>"), NULL));
  assert_true (g_markup_parse_context_end_parse (context, NULL));
  g_unlink (path);
  g_rmdir (folder);
}

/* ------------------------------------------------------------------------ colour */

/* Opens a pseudo terminal; skips the test on a machine without any, such as a bare chroot. */
static int
open_terminal (void)
{
  int terminal = posix_openpt (O_RDWR | O_NOCTTY);

  if (terminal < 0 || grantpt (terminal) != 0 || unlockpt (terminal) != 0) {
    print_message ("skipped: this machine has no pseudo terminals\n");
    skip ();
  }
  return terminal;
}

/* Returns what `weft memory` writes to a terminal. The caller frees it. */
static char *
on_terminal (const char *no_color)
{
  const char *argv[] = { WEFT_BINARY,  "memory",   "--model", "gpt2-nano",
                         "--topology", "dgx-h100", NULL };
  g_auto (GStrv) env = g_environ_unsetenv (g_get_environ (), "NO_COLOR");
  int terminal = open_terminal ();
  GString *out = g_string_new (NULL);
  char part[4096];
  ssize_t n;

  int slave = open (ptsname (terminal), O_RDWR | O_NOCTTY);
  if (no_color)
    env = g_environ_setenv (env, "NO_COLOR", no_color, TRUE);
  assert_true (g_spawn_async_with_fds (NULL, (char **) argv, env, G_SPAWN_DEFAULT, NULL, NULL, NULL,
                                       -1, slave, -1, NULL));
  close (slave);
  while ((n = read (terminal, part, sizeof part)) > 0)
    g_string_append_len (out, part, n);
  close (terminal);
  return g_string_free (out, FALSE);
}

static void
colour_is_for_terminals_and_no_color_forbids_it (void **state)
{
  g_autofree char *coloured = on_terminal (NULL), *plain = on_terminal ("1"),
                  *empty = on_terminal ("");
  struct answer piped = weft_test_answer ("memory " NANO);

  (void) state;
  assert_non_null (strchr (coloured, '\033'));
  assert_null (strchr (plain, '\033'));
  assert_non_null (strstr (plain, "fits"));
  assert_non_null (strchr (empty, '\033'));
  assert_null (strchr (piped.out, '\033'));
  weft_test_answer_free (&piped);
}

/* Error messages quote words of the command line. Here these words contain bytes that are not
 * UTF-8, an escape sequence of terminals, and U+009B, which begins an escape sequence too. A
 * message must contain none of these characters. */
static void
words_are_quoted_without_control_characters (void **state)
{
  (void) state;
  weft_test_refused ("sim --mod\xff" "el\x1b[31m=3", 2, "unknown flag --mod\\xffel\\x1b[31m");
  weft_test_refused ("sim --a\xc2\x9b=3", 2, "--a\\xc2\\x9b");
  weft_test_refused ("frob\x01", 2, "frob\\x01");
}

/* ------------------------------------------------------------------------ width */

#define JOB_32 "--model llama3-8b --topology dgx-h100 --nodes 4 --global-batch-size 64"

/* Fails if a command prints a line that is wider than 80 columns. */
static void
assert_narrow (const char *words)
{
  struct answer a = weft_test_answer (words);
  g_auto (GStrv) line = g_strsplit (a.out, "\n", -1);

  assert_true (g_strv_length (line) > 5);
  for (unsigned i = 0; line[i]; i++)
    if (g_utf8_strlen (g_strchomp (line[i]), -1) > 80)
      fail_msg ("weft %s: %s", words, line[i]);
  weft_test_answer_free (&a);
}

static void
lists_and_pages_fit_80_columns (void **state)
{
  static const char *const narrow[] = { "topologies",       "topologies dgx-h100", "stacks",
                                          "stacks weft",      "models",
                                          "models llama3-8b", "knobs",               "rules",
                                          "explain " JOB_32 };

  (void) state;
  assert_true (g_setenv ("COLUMNS", "80", TRUE));
  for (unsigned i = 0; i < G_N_ELEMENTS (narrow); i++)
    assert_narrow (narrow[i]);
  g_unsetenv ("COLUMNS");
}

#define STAGES JOB_32 " --pipeline-model-parallel-size 4"

static void
answers_fit_80_columns (void **state)
{
  static const char *const narrow[] = { "sim " STAGES,
                                        "sim " JOB_32 " --use-torch-fsdp2",
                                        "memory " STAGES,
                                        "memory " JOB_32 " --use-torch-fsdp2",
                                        "memory --model llama3-70b --topology dgx-h100",
                                        "program " JOB_32,
                                        "program " STAGES " --schedule" };

  (void) state;
  assert_true (g_setenv ("COLUMNS", "80", TRUE));
  for (unsigned i = 0; i < G_N_ELEMENTS (narrow); i++)
    assert_narrow (narrow[i]);
  g_unsetenv ("COLUMNS");
}

/* `weft compare` prints lines of at most 80 columns, for two jobs whose programs differ and for two
 * jobs with the same program. */
static void
a_comparison_fits_80_columns (void **state)
{
#define JOB_FILE                                                                                   \
  "[model]\nconfig = llama3-8b\n[cluster]\ntopology = dgx-h100\n"                                  \
  "[train]\nglobal_batch_size = 16\n[strategy]\n"
  static const char *const name[] = { "one.ini", "two.ini", "three.ini" };
  static const char *const text[] = { JOB_FILE, JOB_FILE "pipeline_model_parallel_size = 2\n",
                                      JOB_FILE "overlap_grad_reduce = true\n" };
  char *path[3];

  for (unsigned i = 0; i < 3; i++) {
    path[i] = g_build_filename (*state, name[i], NULL);
    assert_true (g_file_set_contents (path[i], text[i], -1, NULL));
  }
  assert_true (g_setenv ("COLUMNS", "80", TRUE));
  for (unsigned i = 1; i < 3; i++) {
    g_autofree char *words = g_strdup_printf ("compare %s %s", path[0], path[i]);
    assert_narrow (words);
  }
  g_unsetenv ("COLUMNS");
  for (unsigned i = 0; i < 3; i++)
    g_free (path[i]);
}

/* `weft train` writes its header to stderr, in lines of at most 80 columns. */
static void
the_header_of_a_run_fits_80_columns (void **state)
{
  (void) state;
  assert_true (g_setenv ("COLUMNS", "80", TRUE));
  struct answer a = weft_test_answer ("train --model llama-nano --data " WEFT_SOURCE_DIR
                                      "/LICENSE --steps 1");
  g_auto (GStrv) line = g_strsplit (a.err, "\n", -1);

  g_unsetenv ("COLUMNS");
  assert_int_equal (a.status, 0);
  assert_non_null (strstr (a.err, "learning rate"));
  for (unsigned i = 0; line[i]; i++)
    if (g_utf8_strlen (line[i], -1) > 80)
      fail_msg ("weft train: %s", line[i]);
  weft_test_answer_free (&a);
}

/* `weft program` wraps its rows on a terminal of 64 columns. `weft program --read` reads the
 * wrapped text as the same program as the unwrapped text. */
static void
a_wrapped_program_is_read_as_the_same (void **state)
{
  g_autofree char *path = g_build_filename (*state, "program", NULL);
  g_autofree char *read = g_strdup_printf ("program --read %s", path);
  struct answer whole = weft_test_answer ("program --model llama-nano --topology dgx-h100");

  assert_true (g_setenv ("COLUMNS", "64", TRUE));
  struct answer narrow = weft_test_answer ("program --model llama-nano --topology dgx-h100");
  g_unsetenv ("COLUMNS");
  assert_non_null (strstr (narrow.out, " \\\n"));
  assert_true (g_file_set_contents (path, narrow.out, -1, NULL));
  struct answer again = weft_test_answer (read);
  assert_int_equal (again.status, 0);
  assert_non_null (strstr (whole.out, again.out));
  weft_test_answer_free (&whole);
  weft_test_answer_free (&narrow);
  weft_test_answer_free (&again);
}

/* A SimGrid platform is a network; the other numbers are those of the topology that it names. */
static void
a_platform_names_its_topology (void **state)
{
  g_autofree char *path = g_build_filename (g_get_tmp_dir (), "weft-net.xml", NULL);
  g_autofree char *words = g_strconcat ("topologies ", path, NULL);

  (void) state;
  assert_true (g_file_set_contents (
      path,
      "<platform version='4.1'><zone id='z' routing='Full'><prop id='topology' value='dgx-h100'/>"
      "<host id='a' speed='1Gf'/><host id='b' speed='1Gf'/><link id='l' bandwidth='25GBps' "
      "latency='5us'/><route src='a' dst='b'><link_ctn id='l'/></route></zone></platform>", -1,
      NULL));
  struct answer a = weft_test_answer (words);
  g_unlink (path);
  assert_int_equal (a.status, 0);
  assert_non_null (strstr (a.out, "hosts: 2; links: 1, of 25 GB/s\n"));
  assert_non_null (strstr (a.out, "`weft topologies dgx-h100`"));
  weft_test_answer_free (&a);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_printed_program_is_read_checked_and_printed_again),
  cmocka_unit_test (reading_a_program_takes_no_job_and_no_schedule),
  cmocka_unit_test (without_a_command_the_commands_are_listed),
  cmocka_unit_test (every_command_has_help_with_examples),
  cmocka_unit_test (help_pages_are_at_most_100_columns_wide),
  cmocka_unit_test (a_knob_with_words_explains_each_of_them),
  cmocka_unit_test (other_spellings_are_listed_and_explained),
  cmocka_unit_test (the_examples_of_the_list_work),
  cmocka_unit_test (bad_input_ends_with_2_and_names_what_was_found),
  cmocka_unit_test (a_file_that_cannot_be_written_ends_with_1),
  cmocka_unit_test (flags_override_the_file_wherever_they_stand),
  cmocka_unit_test (bash_completes_commands_flags_and_names),
  cmocka_unit_test (the_page_for_man_has_every_command_and_its_flags),
  cmocka_unit_test (a_dash_is_a_job_on_standard_input),
  cmocka_unit_test (no_clears_a_boolean_and_the_last_flag_counts),
  cmocka_unit_test (notes_about_a_job_go_to_stderr),
  cmocka_unit_test (a_search_does_not_speak_of_no_microbatches),
  cmocka_unit_test (mfu_counts_attention_by_the_convention_asked_for),
  cmocka_unit_test (both_executors_agree_where_nothing_contends),
  cmocka_unit_test (what_does_not_fit_is_printed_and_ends_with_3),
  cmocka_unit_test (waits_for_memory_are_told),
  cmocka_unit_test (all_that_predict_know_graphs),
  cmocka_unit_test (the_change_it_names_fits),
  cmocka_unit_test (a_trace_is_written_beside_the_answer),
  cmocka_unit_test (the_page_is_whole_in_itself_and_well_formed),
  cmocka_unit_test (colour_is_for_terminals_and_no_color_forbids_it),
  cmocka_unit_test (words_are_quoted_without_control_characters),
  cmocka_unit_test (lists_and_pages_fit_80_columns),
  cmocka_unit_test (answers_fit_80_columns),
  cmocka_unit_test_setup_teardown (a_comparison_fits_80_columns, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test (the_header_of_a_run_fits_80_columns),
  cmocka_unit_test_setup_teardown (a_wrapped_program_is_read_as_the_same, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test (a_platform_names_its_topology),
};

WEFT_TESTS (tests, .seconds = 27)
