/* Jobs: files and flags are parsed into one struct, which is printed as text; and each rule that
 * refuses a job. */
#include "core/base/error.h"
#include "core/job/job.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char tiny[] =
    "[model]\nnum_layers = 6\nhidden_size = 64\nnum_attention_heads = 8\n"
    "vocab_size = 256\nseq_length = 128\n[cluster]\ntopology = cpu\ngpus = 4\n";

/* Writes a temporary file with this text. Returns its path; the caller removes the file and frees
 * the path. */
static char *
write_job (const char *text)
{
  char *path;
  int fd = g_file_open_tmp ("weft-job-XXXXXX.ini", &path, NULL);

  assert_true (fd >= 0);
  g_close (fd, NULL);
  assert_true (g_file_set_contents (path, text, -1, NULL));
  return path;
}

/* Builds a job from a job file (`text`) and `flags`: "--num-layers", "8", ..., ended by NULL. */
static gboolean
build (const char *text, const char *const *flags, struct weft_job *job, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autofree char *path = write_job (text);
  const char *section, *key;
  gboolean boolean;

  gboolean ok = weft_settings_add_file (settings, path, error);
  for (unsigned i = 0; flags && flags[i]; i += 2) {
    assert_true (weft_job_flag (flags[i] + 2, &section, &key, &boolean));
    weft_settings_add (settings, section, key, flags[i + 1], flags[i]);
  }
  ok = ok && weft_job_build (settings, job, error);
  g_unlink (path);
  return ok;
}

static void
built (const char *text, const char *const *flags, struct weft_job *job)
{
  g_autoptr (GError) error = NULL;
  if (!build (text, flags, job, &error))
    fail_msg ("%s\n%s", error->message, text);
}

/* Asserts that the job file `text` with `flags` is refused, with a message that ends in `end`. */
static void
refused (const char *text, const char *const *flags, const char *end)
{
  struct weft_job job;
  g_autoptr (GError) error = NULL;

  if (build (text, flags, &job, &error))
    fail_msg ("not refused:\n%s", text);
  if (!g_str_has_suffix (error->message, end))
    fail_msg ("found \"%s\"\nwanted \"%s\"", error->message, end);
  assert_int_equal (weft_error_exit_status (error), 2);
}

static void
refused_more (const char *more, const char *end)
{
  g_autofree char *text = g_strconcat (tiny, more, NULL);
  refused (text, NULL, end);
}

static gboolean
has_prefix (const GPtrArray *texts, const char *start)
{
  for (unsigned i = 0; i < texts->len; i++)
    if (g_str_has_prefix (g_ptr_array_index (texts, i), start))
      return TRUE;
  return FALSE;
}

static void
every_rule_has_a_job_that_breaks_it (void **state)
{
  (void) state;
  for (unsigned i = 0; i < weft_n_rules; i++) {
    g_autofree char *file =
        g_strconcat (WEFT_SOURCE_DIR "/tests/bad/", weft_rules[i].name, ".ini", NULL);
    g_autofree char *start = g_strdup_printf ("rule %s: ", weft_rules[i].name);
    g_autoptr (weft_settings) settings = weft_settings_new ();
    g_autoptr (GError) error = NULL;
    struct weft_job job;

    if (!weft_settings_add_file (settings, file, &error))
      fail_msg ("%s", error->message);
    gboolean ok = weft_job_build (settings, &job, &error);
    if (ok != weft_rules[i].warning || (!ok && !g_str_has_prefix (error->message, start)))
      fail_msg ("%s: %s", file, ok ? "builds" : error->message);
    if (!ok)
      continue;
    g_autoptr (GPtrArray) warnings = weft_job_warnings (&job);
    if (!has_prefix (warnings, start + strlen ("rule ")))
      fail_msg ("%s: %u warnings, none of them its own", file, warnings->len);
  }
}

static void
a_rule_says_what_it_found (void **state)
{
  (void) state;
  refused_more ("[strategy]\npp_size = 3\n",
                "rule world: gpus = 4, tensor * pipeline * context = 3: "
                "tensor * pipeline * context must divide the number of GPUs");
  refused_more (
      "[train]\nprecision = fp8\n\n[strategy]\nenable_autocast = true\n",
      "rule precision: precision = fp8: supported precisions are bf16, fp16 and fp32, and "
      "fp8 without autocast on the CPU and on GPUs that have fp8");
}

static void
a_plain_job_has_no_warnings (void **state)
{
  (void) state;
  struct weft_job job;

  built (tiny, NULL, &job);
  g_autoptr (GPtrArray) warnings = weft_job_warnings (&job);
  assert_int_equal (warnings->len, 0);
}

static void
a_deprecated_flag_is_accepted_with_a_warning (void **state)
{
  (void) state;
  static const char *const flags[] = { "--moe-extended-tp", "true", NULL };
  struct weft_job job;

  built (tiny, flags, &job);
  g_autoptr (GPtrArray) warnings = weft_job_warnings (&job);
  assert_int_equal (warnings->len, 1);
  assert_true (
      g_str_has_prefix (g_ptr_array_index (warnings, 0), "moe_extended_tp has no effect: "));
}

static void
what_is_not_said_follows (void **state)
{
  (void) state;
  static const char *const big[] = { "--micro-batch-size", "4", "--pp-size", "2", NULL };
  static const char *const h100[] = { "--topology", "dgx-h100", NULL };
  struct weft_job job;

  built (tiny, big, &job);
  assert_int_equal (weft_job_dp (&job), 2);
  assert_int_equal (job.train.global_batch_size, 8);
  assert_int_equal (weft_job_microbatches (&job), 1);
  assert_int_equal (job.train.reduction_order, WEFT_ORDER_CANONICAL);
  assert_int_equal (job.train.precision, WEFT_FP32);
  assert_int_equal (job.model.ffn_hidden_size, 256);
  assert_int_equal (job.model.max_position_embeddings, 128);
  assert_false (job.train_set[WEFT_TRAIN_global_batch_size]);
  assert_true (job.knob_set[WEFT_KNOB_pipeline_model_parallel_size]);
  built (tiny, h100, &job);
  assert_int_equal (job.train.reduction_order, WEFT_ORDER_FAST);
  assert_int_equal (job.train.precision, WEFT_BF16);
}

static void
precision_flags_set_the_precision (void **state)
{
  (void) state;
  static const char *const bf16[] = { "--bf16", "true", NULL };
  static const char *const fp32[] = { "--precision", "fp32", NULL };
  static const char *const fp16[] = { "--fp16", "true", NULL };
  struct weft_job job;

  built (tiny, bf16, &job);
  assert_int_equal (job.train.precision, WEFT_BF16);
  built (tiny, fp32, &job);
  assert_int_equal (job.train.precision, WEFT_FP32);
  built (tiny, fp16, &job);
  assert_int_equal (job.train.precision, WEFT_FP16);
}

static void
flags_override_the_file_and_the_later_flag_wins (void **state)
{
  (void) state;
  static const char *const flags[] = {
    "--num-layers", "4", "--num-layers", "2", "--nodes", "1", "--topology", "dgx-h100", NULL
  };
  struct weft_job job;

  built (tiny, flags, &job);
  assert_int_equal (job.model.num_layers, 2);
  assert_int_equal (job.cluster.n_gpus, 8);
  assert_string_equal (g_quark_to_string (job.cluster.topology), "dgx-h100");
}

static void
two_sizes_from_one_place_must_agree (void **state)
{
  (void) state;
  static const char *const agree[] = { "--topology", "dgx-h100", "--nodes", "2",
                                       "--gpus",     "16",       NULL };
  static const char *const differ[] = { "--topology", "dgx-h100", "--nodes", "2",
                                        "--gpus",     "24",       NULL };
  struct weft_job job;
  g_autoptr (GError) error = NULL;

  built (tiny, agree, &job);
  assert_int_equal (job.cluster.n_gpus, 16);
  assert_false (build (tiny, differ, &job, &error));
  assert_true (g_str_has_prefix (error->message, "--gpus: gpus: found 24, wanted 16"));
}

static void
every_error_names_where_it_stands (void **state)
{
  (void) state;
  static const char *const flags[] = { "--micro-batch-size", "0", NULL };
  static const char *const bytes[] = { "--gpu-name", "a\xff", NULL };
  static const char *const line[] = { "--gpu-name", "a\nb", NULL };

  refused_more ("[train]\nmicro_batch_size = x\n",
                ".ini:11: [train] micro_batch_size: found \"x\", wanted 1..65536 (sequences of one "
                "forward pass on one data-parallel rank)");
  refused_more ("[stratgy]\na = 1\n",
                ".ini:11: [stratgy] unknown section; did you mean [strategy]?");
  refused_more ("[strategy]\noverlap_grad_reducee = 1\n",
                ".ini:11: [strategy] unknown key \"overlap_grad_reducee\"; did you mean "
                "overlap_grad_reduce?");
  refused_more ("[train]\nnum_layers = 1\n",
                ".ini:11: [train] unknown key \"num_layers\"; it belongs in [model]");
  refused_more ("[train]\nmodel = gpt2\n",
                ".ini:11: [train] unknown key \"model\"; it belongs in [model] as config");
  refused_more ("[model]\nmodel = gpt2\n",
                ".ini:11: [model] unknown key \"model\"; did you mean config?");
  refused_more ("topolgy = cpu\n",
                ".ini:10: [cluster] unknown key \"topolgy\"; did you mean topology?");
  refused_more ("[strategy]\nforward = 1\n",
                ".ini:11: [strategy] forward is a method, not a setting");
  refused (tiny, flags,
           "--micro-batch-size: micro_batch_size: found \"0\", wanted 1..65536 (sequences of one "
           "forward pass on one data-parallel rank)");
  refused (tiny, bytes, "--gpu-name: gpu_name: found bytes that are not UTF-8, wanted text");
  refused (tiny, line,
           "--gpu-name: gpu_name: found control character 0x0a, wanted one line of text");
}

static void
a_missing_part_says_how_to_give_it (void **state)
{
  (void) state;
  struct weft_job job;
  g_autoptr (GError) error = NULL;
  g_autoptr (GError) other = NULL;

  assert_false (build ("[cluster]\ntopology = cpu\n", NULL, &job, &error));
  assert_true (g_str_has_prefix (error->message,
                                 "no model: give [model] config = NAME, or --model NAME; "
                                 "for example "));
  assert_false (build ("[model]\nnum_layers = 6\nhidden_size = 64\nnum_attention_heads = 8\n"
                       "vocab_size = 256\n",
                       NULL, &job, &other));
  assert_true (g_str_has_prefix (other->message, "no cluster: give [cluster] topology = NAME, or "
                                                 "--topology NAME; for example cpu, dgx-a100"));
}

static void
every_field_of_every_table_is_a_flag (void **state)
{
  (void) state;
  static const struct {
    const char *section;
    const struct weft_table *table;
  } parts[] = { { "model", &weft_model_table },
                { "cluster", &weft_cluster_table },
                { "train", &weft_train_table },
                { "stack", &weft_stack_table },
                { "strategy", &weft_strategy_table } };
  const char *section, *key;
  gboolean boolean;

  for (unsigned p = 0; p < G_N_ELEMENTS (parts); p++)
    for (unsigned i = 0; i < parts[p].table->n; i++) {
      const struct weft_field *field = &parts[p].table->field[i];
      g_autofree char *flag = g_strdelimit (g_strdup (field->name), "_", '-');
      gboolean found = weft_job_flag (flag, &section, &key, &boolean);
      if (field->type == WEFT_TYPE_METHOD || (p == 3 && strcmp (flag, "name") == 0))
        continue;
      if (!found || strcmp (section, parts[p].section) != 0 || strcmp (key, field->name) != 0)
        fail_msg ("--%s of [%s] is not its own flag", flag, parts[p].section);
      assert_int_equal (boolean, field->type == WEFT_TYPE_BOOL);
    }
}

static void
parts_have_flags_and_methods_have_none (void **state)
{
  (void) state;
  static const char *const rows[][3] = { { "model", "model", "config" },
                                         { "config", "model", "config" },
                                         { "topology", "cluster", "topology" },
                                         { "nodes", "cluster", "nodes" },
                                         { "gpus", "cluster", "gpus" },
                                         { "stack", "stack", "name" },
                                         { "tp-size", "strategy", "tensor_model_parallel_size" } };
  const char *section, *key;
  gboolean boolean;

  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
    assert_true (weft_job_flag (rows[i][0], &section, &key, &boolean));
    assert_string_equal (section, rows[i][1]);
    assert_string_equal (key, rows[i][2]);
    assert_false (boolean);
  }
  assert_false (weft_job_flag ("no-sync", &section, &key, &boolean));
  assert_false (weft_job_flag ("module", &section, &key, &boolean));
}

static void
a_mistyped_flag_is_corrected (void **state)
{
  (void) state;
  static const char *const rows[][2] = {
    { "--tensor-model-paralel-size",
      "unknown flag --tensor-model-paralel-size; did you mean --tensor-model-parallel-size?" },
    { "no-overlap-grad-reduc",
      "unknown flag --no-overlap-grad-reduc; did you mean --no-overlap-grad-reduce?" },
    { "--topolgy", "unknown flag --topolgy; did you mean --topology?" },
    { "--zzzzzzzzzzzz", "unknown flag --zzzzzzzzzzzz" },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
    g_autoptr (GError) error = NULL;
    assert_false (weft_job_unknown_flag (rows[i][0], &error));
    assert_string_equal (error->message, rows[i][1]);
  }
}

static void
assert_same (const struct weft_job *a, const struct weft_job *b, const char *text)
{
  if (memcmp (&a->model, &b->model, sizeof a->model) != 0)
    fail_msg ("the model differs:\n%s", text);
  if (memcmp (&a->cluster, &b->cluster, sizeof a->cluster) != 0)
    fail_msg ("the cluster differs:\n%s", text);
  if (memcmp (&a->train, &b->train, sizeof a->train) != 0)
    fail_msg ("the training differs:\n%s", text);
  if (memcmp (&a->stack, &b->stack, sizeof a->stack) != 0)
    fail_msg ("the stack differs:\n%s", text);
  if (memcmp (&a->strategy, &b->strategy, sizeof a->strategy) != 0)
    fail_msg ("the strategy differs:\n%s", text);
  assert_memory_equal (a->knob_set, b->knob_set, sizeof a->knob_set);
  assert_memory_equal (a->train_set, b->train_set, sizeof a->train_set);
}

static void
print_and_build_again (const struct weft_job *job)
{
  g_autofree char *text = weft_job_print (job);
  struct weft_job again;

  built (text, NULL, &again);
  assert_same (job, &again, text);
  g_autofree char *second = weft_job_print (&again);
  assert_string_equal (text, second);
}

/* Flags that can be combined freely, each with its values. A flag is given with probability 1/3. */
static const char *const choices[][4] = {
  { "--topology", "dgx-h100", "gb200-nvl72", "cpu" },
  { "--gpus", "2", "4", "8" },
  { "--seq-length", "64", "100", "4096" },
  { "--max-position-embeddings", "128", "8192", "77" },
  { "--normalization", "rmsnorm", "layernorm", "RMSNorm" },
  { "--norm-epsilon", "1e-6", "0.1234567890123", "0" },
  { "--gpu-name", "#1 of a kind", " blanks ", "back\\slash # hash" },
  { "--gpu-memory", "80GB", "80GiB", "1234567890123.4" },
  { "--fabric-latency", "3us", "0.3333333333333333", "0" },
  { "--stack", "weft", "megatron-core", "Megatron.Core" },
  { "--kernel-gap", "1.7us", "0", "1" },
  { "--micro-batch-size", "1", "2", "4" },
  { "--global-batch-size", "32", "64", "32" },
  { "--precision", "bf16", "fp32", "bf16" },
  { "--clip-grad", "0", "0.3", "1" },
  { "--reduction-order", "fast", "canonical", "none" },
  { "--pp-size", "1", "2", "2" },
  { "--pipeline-schedule", "gpipe", "1f1b", "gpipe" },
  { "--use-distributed-optimizer", "true", "true", "false" },
  { "--overlap-grad-reduce", "true", "false", "true" },
  { "--bucket-size", "40e6", "1", "none" },
  { "--grad-reduce-in-fp32", "true", "false", "yes" },
  { "--deallocate-pipeline-outputs", "true", "false", "on" },
  { "--batch-p2p-sync", "true", "true", "1" },
  { "--pipeline-dtype", "fp32", "bf16", "none" },
};

static void
random_jobs_print_and_build_back (void **state)
{
  (void) state;
  g_autoptr (GRand) random = g_rand_new_with_seed (20261121);
  unsigned n = 0;

  for (int i = 0; i < 300; i++) {
    const char *flags[2 * G_N_ELEMENTS (choices) + 1];
    unsigned k = 0;
    struct weft_job job;

    for (unsigned c = 0; c < G_N_ELEMENTS (choices); c++)
      if (g_rand_int_range (random, 0, 3) == 0) {
        flags[k++] = choices[c][0];
        flags[k++] = choices[c][g_rand_int_range (random, 1, 4)];
      }
    flags[k] = NULL;
    if (!build (tiny, flags, &job, NULL))
      continue;
    print_and_build_again (&job);
    n++;
  }
  assert_true (n > 200);
}

static void
bundled_models_print_by_name (void **state)
{
  (void) state;
  g_auto (GStrv) names = weft_model_names ();
  unsigned n = 0;

  for (unsigned i = 0; names[i]; i++) {
    const char *const flags[] = { "--model", names[i], "--seq-length", "64", NULL };
    struct weft_job job;

    if (!build ("[cluster]\ntopology = cpu\n", flags, &job, NULL))
      continue;
    print_and_build_again (&job);
    n++;
  }
  assert_true (n > 5);
}

/* The search sets fields of a job that the user has not given. A printed job must contain these
 * fields too, so that reading it gives the same job. */
static void
a_planned_job_keeps_what_was_not_given (void **state)
{
  (void) state;
  struct weft_job job, again;

  built (tiny, NULL, &job);
  job.train.micro_batch_size = 2;
  job.train.global_batch_size = 32;
  job.strategy.pipeline_model_parallel_size = 2;
  g_autofree char *text = weft_job_print (&job);
  built (text, NULL, &again);
  assert_memory_equal (&job.train, &again.train, sizeof job.train);
  assert_memory_equal (&job.strategy, &again.strategy, sizeof job.strategy);
}

static void
keys_of_a_config_that_nothing_reads_are_told (void **state)
{
  const char *json = "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,"
                     "\"num_attention_heads\":4,\"intermediate_size\":128,\"vocab_size\":256,"
                     "\"max_position_embeddings\":128,\"frobnicate\":3}";
  g_autofree char *path = NULL;
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autoptr (GError) error = NULL;
  struct weft_job job;
  int file = g_file_open_tmp ("weft-XXXXXX.json", &path, NULL);

  (void) state;
  assert_true (file >= 0 && g_file_set_contents (path, json, -1, NULL));
  close (file);
  weft_settings_add (settings, "model", "config", path, "test");
  weft_settings_add (settings, "cluster", "topology", "cpu", "test");
  weft_settings_add (settings, "cluster", "gpus", "1", "test");
  assert_true (weft_job_build (settings, &job, &error));
  remove (path);
  g_autoptr (GPtrArray) warnings = weft_job_warnings (&job);
  assert_int_equal (warnings->len, 1);
  assert_string_equal (warnings->pdata[0], "model config: unknown keys were ignored: frobnicate");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_rule_has_a_job_that_breaks_it),
  cmocka_unit_test (a_rule_says_what_it_found),
  cmocka_unit_test (a_plain_job_has_no_warnings),
  cmocka_unit_test (a_deprecated_flag_is_accepted_with_a_warning),
  cmocka_unit_test (what_is_not_said_follows),
  cmocka_unit_test (precision_flags_set_the_precision),
  cmocka_unit_test (flags_override_the_file_and_the_later_flag_wins),
  cmocka_unit_test (two_sizes_from_one_place_must_agree),
  cmocka_unit_test (every_error_names_where_it_stands),
  cmocka_unit_test (a_missing_part_says_how_to_give_it),
  cmocka_unit_test (every_field_of_every_table_is_a_flag),
  cmocka_unit_test (parts_have_flags_and_methods_have_none),
  cmocka_unit_test (a_mistyped_flag_is_corrected),
  cmocka_unit_test (random_jobs_print_and_build_back),
  cmocka_unit_test (bundled_models_print_by_name),
  cmocka_unit_test (a_planned_job_keeps_what_was_not_given),
  cmocka_unit_test (keys_of_a_config_that_nothing_reads_are_told),
};

WEFT_TESTS (tests)
