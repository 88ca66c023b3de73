/* What would be better: weft plan with jobs and configurations of other software (--from,
 * --improve, --for, --output), and the critical path of weft explain. */
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <stdlib.h>
#include <string.h>

/* A Megatron-LM script for 8 GPUs with a needlessly slow strategy. */
static const char script[] =
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 2048 "
    "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --ffn-hidden-size 5632 "
    "--disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0 "
    "--hidden-dropout 0 --tokenizer-type NullTokenizer --vocab-size 32000 --bf16 "
    "--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 4 "
    "--num-layers-per-virtual-pipeline-stage 2 --pipeline-model-parallel-size 2 "
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1\n";

#define IMPROVE "train.sh --from megatron-lm --topology dgx-h100 --improve --finalists 2 "

/* Runs weft in the folder of the test, with its script. */
static struct answer
answer_in (const char *folder, const char *words)
{
  g_autofree char *path = g_build_filename (folder, "train.sh", NULL);
  g_auto (GStrv) parts = g_strsplit (words, "train.sh", 2);
  g_autofree char *whole = g_strjoinv (path, parts);

  assert_true (g_file_set_contents (path, script, -1, NULL));
  return weft_test_answer (whole);
}

static JsonObject *
document (JsonParser *parser, const struct answer *a)
{
  assert_int_equal (a->status, 0);
  assert_true (json_parser_load_from_data (parser, a->out, -1, NULL));
  return json_node_get_object (json_parser_get_root (parser));
}

static double
step_time (JsonObject *result)
{
  JsonObject *iteration = json_object_get_object_member (result, "iteration");

  return json_object_get_double_member (iteration, "time_s");
}

/* The job as it is has the step time of weft sim, and the best strategy is faster. */
static void
an_improved_script_is_predicted_as_it_is_and_beaten (void **state)
{
  g_autoptr (JsonParser) plan = json_parser_new (), sim = json_parser_new ();
  struct answer a = answer_in (*state, "plan " IMPROVE "--json");
  struct answer b = answer_in (*state, "sim train.sh --from megatron-lm --topology dgx-h100 "
                                       "--json");
  JsonObject *root = document (plan, &a), *given = json_object_get_object_member (root, "given");
  JsonArray *best = json_object_get_array_member (root, "best");
  double as_it_is = step_time (given);
  JsonObject *strategy = json_object_get_object_member (given, "strategy");

  assert_true (json_object_get_boolean_member (given, "fits"));
  assert_int_equal (json_object_get_int_member (strategy, "virtual_pipeline_model_parallel_size"),
                    2);
  assert_float_equal (as_it_is, step_time (document (sim, &b)), 1e-9 * as_it_is);
  assert_true (step_time (json_array_get_object_element (best, 0)) < 0.7 * as_it_is);
  weft_test_answer_free (&a);
  weft_test_answer_free (&b);
}

static void
the_text_names_what_changes_and_flags_stay_fixed (void **state)
{
  struct answer a = answer_in (*state, "plan " IMPROVE "--recompute-granularity full "
                                       "--recompute-method uniform --recompute-num-layers 1");

  assert_int_equal (a.status, 0);
  assert_non_null (strstr (a.out, "the job as it is: "));
  assert_non_null (strstr (a.out, " times as fast as the job as it is: "));
  assert_non_null (strstr (a.out, "tensor_model_parallel_size 4 -> "));
  assert_null (strstr (a.out, "recompute_granularity full -> "));
  weft_test_answer_free (&a);
}

/* The first strategy needs a setting that the software does not have. The command must write a
 * strategy that imports, with the predicted time of a row of the table. */
static void
a_strategy_is_written_that_the_software_can_express (void **state)
{
  static const char *const software[] = { "megatron-lm", "torchtitan" };
  static const char *const jobs[] = {
    "train.sh --from megatron-lm --improve",
    "--model llama3-8b --rotary-scaling llama3 --rotary-scaling-factor 8 --stack torchtitan "
    "--gpus 32 --global-batch-size 64",
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (software); i++) {
    g_autoptr (JsonParser) plan = json_parser_new (), sim = json_parser_new ();
    g_autofree char *file = g_build_filename (*state, software[i], NULL);
    g_autofree char *words = g_strdup_printf (
        "plan %s --topology dgx-h100 --finalists 3 --for %s --output %s --json", jobs[i],
        software[i], file);
    g_autofree char *again = g_strdup_printf (
        "sim %s --from %s --topology dgx-h100 --gpus %s --stack %s --json", file, software[i],
        i ? "32" : "8", i ? "torchtitan" : "megatron-core-0.13");
    struct answer a = answer_in (*state, words), b = weft_test_answer (again);
    JsonArray *best = json_object_get_array_member (document (plan, &a), "best");
    double written = step_time (document (sim, &b));
    gboolean found = FALSE;
    for (unsigned k = 0; k < json_array_get_length (best); k++) {
      double row = step_time (json_array_get_object_element (best, k));
      found |= written > row * (1 - 1e-9) && written < row * (1 + 1e-9);
    }
    assert_true (found);
    weft_test_answer_free (&a);
    weft_test_answer_free (&b);
  }
}

static void
the_best_strategy_is_written_as_a_job (void **state)
{
  g_autoptr (JsonParser) plan = json_parser_new (), sim = json_parser_new ();
  g_autofree char *file = g_build_filename (*state, "best.ini", NULL);
  g_autofree char *words = g_strdup_printf ("plan " IMPROVE "--json --output %s", file);
  g_autofree char *again = g_strdup_printf ("sim %s --json", file);
  struct answer a = answer_in (*state, words), b = weft_test_answer (again);
  JsonArray *best = json_object_get_array_member (document (plan, &a), "best");
  double first = step_time (json_array_get_object_element (best, 0));

  assert_float_equal (first, step_time (document (sim, &b)), 1e-9 * first);
  weft_test_answer_free (&a);
  weft_test_answer_free (&b);
}

/* weft explain --critical-path, as text and as JSON. */
static void
the_critical_path_has_the_step_of_the_simulation (void **state)
{
#define STAGES                                                                                     \
  "--model llama-nano --topology dgx-h100 --gpus 4 --pipeline-model-parallel-size 2 "              \
  "--global-batch-size 16 "
  g_autoptr (JsonParser) path = json_parser_new (), sim = json_parser_new ();
  struct answer text = weft_test_answer ("explain --critical-path " STAGES);
  struct answer a = weft_test_answer ("explain --critical-path --json " STAGES);
  struct answer b = weft_test_answer ("sim --json " STAGES);
  JsonObject *root = document (path, &a);
  double step = json_object_get_double_member (root, "step_s");
  JsonArray *ops = json_object_get_array_member (root, "path");
  unsigned last = json_array_get_length (ops) - 1;

  (void) state;
  assert_float_equal (step, step_time (document (sim, &b)), 1e-6 * step);
  assert_float_equal (json_object_get_double_member (json_array_get_object_element (ops, last),
                                                     "end_s"),
                      step, 1e-9 * step);
  assert_non_null (strstr (text.out, "critical path: "));
  assert_non_null (strstr (text.out, "by stage: stage 0 "));
  assert_non_null (strstr (text.out, "\n  pp send "));
  weft_test_answer_free (&text);
  weft_test_answer_free (&a);
  weft_test_answer_free (&b);
}

static void
wishes_that_make_no_sense_are_refused (void **state)
{
  static const char *const bad[][2] = {
    { "plan --topology dgx-h100 --model gpt2-nano --improve", "found no JOB, wanted the job" },
    { "plan --topology dgx-h100 --model gpt2-nano --for torchtitan", "found no --output, wanted" },
    { "plan --topology dgx-h100 --model gpt2-nano --for torchtitam --output x",
      "did you mean torchtitan?" },
    { "sim --from megatron-lm --topology dgx-h100", "found no file, wanted a configuration" },
    { "sim README.md --from megatron --topology dgx-h100", "did you mean megatron-lm?" },
    { "sim --form megatron-lm", "unknown flag --form; did you mean --from?" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++)
    weft_test_refused (bad[i][0], 2, bad[i][1]);
}

/* Each row says in which part of the step the strategy loses most time. Without overlap of the
 * reduction of gradients this part is data parallel communication; with recompute of all layers,
 * recompute. */
static void
the_text_names_why_a_strategy_is_slower (void **state)
{
  struct answer a = weft_test_answer (
      "plan --model llama3-8b --topology dgx-h100 --nodes 4 --global-batch-size 256 "
      "--tensor-model-parallel-size 1 --context-parallel-size 1 --pipeline-model-parallel-size 1 "
      "--use-megatron-fsdp=false --micro-batch-size 1 --finalists 4");

  (void) state;
  assert_int_equal (a.status, 0);
  assert_non_null (strstr (a.out, ": exposed dp communication +"));
  assert_non_null (strstr (a.out, ": recompute +"));
  weft_test_answer_free (&a);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (an_improved_script_is_predicted_as_it_is_and_beaten,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (the_text_names_what_changes_and_flags_stay_fixed,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (a_strategy_is_written_that_the_software_can_express,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (the_best_strategy_is_written_as_a_job, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test (the_critical_path_has_the_step_of_the_simulation),
  cmocka_unit_test (the_text_names_why_a_strategy_is_slower),
  cmocka_unit_test (wishes_that_make_no_sense_are_refused),
};

WEFT_TESTS (tests, .seconds = 8)
