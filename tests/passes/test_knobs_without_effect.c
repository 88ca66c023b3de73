/* Knobs of the data-parallel classes whose row in `weft knobs` says "affects: none". An accepted
 * value leaves the program unchanged; the rule that the row names refuses other values. */
#include "core/job/job.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

#define JOB "model=gpt2-nano topology=dgx-h100 gpus=4 global_batch_size=8 "
#define FSDP2 JOB "distributed_config=fsdp2 "

static const struct weft_field *
knob (const char *name)
{
  int row = weft_table_find (&weft_strategy_table, name);

  if (row < 0)
    fail_msg ("no knob %s", name);
  return &weft_strategy_table.field[row];
}

static char *
program_of (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  return weft_program_print (plan->role[0]);
}

static void
what_is_accepted_without_effect_leaves_the_program_alone (void **state)
{
  static const struct {
    const char *job, *name, *value;
  } accepted[] = {
    { FSDP2, "mp_policy", "bf16_fp32" },
    { FSDP2, "mp_policy_param_dtype", "bf16" },
    { FSDP2, "mp_policy_cast_forward_inputs", "true" },
    { FSDP2, "backend", "nccl" },
    { JOB, "dp_size", "4" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (accepted); i++) {
    g_autofree char *words =
        g_strdup_printf ("%s%s=%s", accepted[i].job, accepted[i].name, accepted[i].value);
    g_autofree char *with = program_of (words), *without = program_of (accepted[i].job);
    assert_true (g_str_has_prefix (knob (accepted[i].name)->affects, "none: "));
    assert_string_equal (with, without);
  }
}

static void
what_is_refused_is_refused_by_the_rule_of_its_row (void **state)
{
  static const struct {
    const char *job, *name, *value, *rule;
  } refused[] = {
    { JOB, "sequence_parallel", "true", "sequence_parallel" },
    { FSDP2, "enable_async_tensor_parallel", "true", "async_tensor_parallel" },
    { JOB "use_megatron_fsdp=true ", "tp_plan", "columns", "tp_plan" },
    { FSDP2, "mp_policy_param_dtype", "fp32", "mp_param_dtype" },
    { FSDP2 "mp_policy_output_dtype=fp32 ", "mp_policy_cast_forward_inputs", "false", "mp_inputs" },
    { JOB, "backend", "gloo", "backend" },
    { JOB, "dp_size", "3", "dp_size" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (refused); i++) {
    g_autofree char *words =
        g_strdup_printf ("%s%s=%s", refused[i].job, refused[i].name, refused[i].value);
    g_autofree char *start = g_strdup_printf ("rule %s: ", refused[i].rule);
    g_autoptr (GError) error = NULL;
    struct weft_job job;
    assert_non_null (knob (refused[i].name));
    if (weft_test_job (words, &job, &error) || !g_str_has_prefix (error->message, start))
      fail_msg ("%s: %s", words, error ? error->message : "builds");
  }
}

/* Some rows of `weft knobs` are functions or objects of the upstream classes and not settings. Such
 * a row must say what replaces it in Weft. */
static void
methods_say_what_stands_for_them (void **state)
{
  static const char *const methods[] = { "config", "module", "data_parallel_group", "post_init",
                                         "to_dict" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (methods); i++)
    assert_true (g_str_has_prefix (knob (methods[i])->affects, "none: "));
}

/* Every knob of the data-parallel classes must have an effect or be refused by a rule; none may be
 * marked "not built yet". */
static void
no_knob_of_data_parallelism_waits_to_be_built (void **state)
{
  static const char *const classes[] = { "DistributedDataParallelConfig",
                                         "DistributedDataParallel",
                                         "finalize_model_grads",
                                         "DistributedConfig",
                                         "FSDP2Config",
                                         "MegatronFSDPConfig",
                                         "DDPConfig" };

  (void) state;
  for (unsigned i = 0; i < weft_strategy_table.n; i++) {
    g_auto (GStrv) source = g_strsplit (weft_strategy_table.field[i].source, " ", -1);
    for (unsigned c = 0; c < G_N_ELEMENTS (classes); c++)
      if (g_strv_contains ((const char *const *) source, classes[c]) &&
          weft_field_is_pending (&weft_strategy_table.field[i]))
        fail_msg ("%s of %s is not built yet", weft_strategy_table.field[i].name, classes[c]);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (what_is_accepted_without_effect_leaves_the_program_alone),
  cmocka_unit_test (what_is_refused_is_refused_by_the_rule_of_its_row),
  cmocka_unit_test (methods_say_what_stands_for_them),
  cmocka_unit_test (no_knob_of_data_parallelism_waits_to_be_built),
};

WEFT_TESTS (tests)
