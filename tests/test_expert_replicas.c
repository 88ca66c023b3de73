/* Experts that ranks share out, under every data-parallel strategy: who keeps, gathers and reduces them,
 * how many bytes that is, and that no bit depends on it. */
#include "core/base/sanitize.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/questions.h"
#include "tests/real_run.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define STEPS 2
#define STRIDE ((WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER) ? 4 : 1)

/* ------------------------------------------------------------------------ real steps */

#define SMALL                                                                                      \
  "model=mixtral-nano num_layers=4 hidden_size=32 num_attention_heads=4 num_query_groups=2 "         \
  "kv_channels=8 ffn_hidden_size=96 moe_ffn_hidden_size=24 seq_length=16 global_batch_size=16 "

static const char *const models[] = {
  SMALL,
  SMALL "moe_shared_expert_intermediate_size=40 moe_first_dense_layers=1 "
        "moe_router_score_function=sigmoid moe_router_topk=4",
};

static const char *const precisions[] = {
  "precision=fp32",
  "precision=bf16",
};

#define EP(n) "expert_model_parallel_size=" #n " "
#define UNITS(level) "use_megatron_fsdp=true data_parallel_sharding_strategy=" #level " "
#define FSDP2 "distributed_config=fsdp2 "
#define INSTANCES(n) "num_distributed_optimizer_instances=" #n " "

static const char *const strategies[] = {
  EP (2) "gpus=4 " UNITS (no_shard),
  EP (4) "gpus=8 " UNITS (no_shard) "overlap_grad_reduce=true bucket_size=3000",
  EP (2) "gpus=4 " UNITS (optim),
  EP (2) "gpus=8 " UNITS (optim) "overlap_grad_reduce=true overlap_param_gather=true "
         "bucket_size=3000 suggested_communication_unit_size=100",
  EP (4) "gpus=4 " UNITS (optim) "overlap_grad_reduce=true overlap_param_gather=true",
  EP (2) "gpus=4 " UNITS (optim_grads),
  EP (2) "gpus=8 " UNITS (optim_grads) "average_in_collective=true micro_batch_size=2",
  EP (4) "gpus=4 " UNITS (optim_grads),
  EP (2) "gpus=4 " UNITS (optim_grads_params),
  EP (4) "gpus=4 " UNITS (optim_grads_params),
  EP (4) "gpus=8 " UNITS (optim_grads_params) "suggested_communication_unit_size=1",
  EP (2) "gpus=4 " UNITS (optim_grads_params) "fsdp_double_buffer=true nccl_ub=true",
  EP (2) "gpus=8 " UNITS (optim_grads_params) "pipeline_model_parallel_size=2",
  EP (2) "gpus=4 " UNITS (optim_grads_params) "megatron_fsdp_unit_modules=attention,mlp",
  EP (2) "gpus=4 " UNITS (optim_grads_params) "recompute_granularity=full "
         "recompute_method=uniform recompute_num_layers=2",
  EP (2) "gpus=4 " UNITS (optim_grads_params) "optimizer_cpu_offload=true "
         "optimizer_offload_fraction=0.6",
  EP (2) "gpus=4 " UNITS (optim_grads_params) "calculate_per_token_loss=true",
  EP (2) "gpus=8 " UNITS (no_shard) INSTANCES (2),
  EP (2) "gpus=8 " UNITS (optim) INSTANCES (2),
  EP (2) "gpus=8 " UNITS (optim_grads) INSTANCES (2),
  EP (2) "gpus=8 " UNITS (optim_grads_params) INSTANCES (2),
  EP (2) "gpus=8 " UNITS (optim_grads_params) INSTANCES (2) "outer_dp_sharding_strategy=optim",
  EP (2) "gpus=8 use_distributed_optimizer=true " INSTANCES (2),
  EP (2) "gpus=8 use_distributed_optimizer=true overlap_grad_reduce=true "
         "overlap_param_gather=true bucket_size=3000 " INSTANCES (4),
  EP (2) "gpus=4 " FSDP2,
  EP (4) "gpus=4 " FSDP2,
  EP (2) "gpus=8 " FSDP2 "defer_fsdp_grad_sync=false",
  EP (4) "gpus=4 " FSDP2 "defer_fsdp_grad_sync=false",
  EP (2) "gpus=4 " FSDP2 "micro_batch_size=4",
  EP (2) "gpus=8 " FSDP2 "dp_replicate_size=2",
  EP (2) "gpus=8 " FSDP2 "dp_replicate_size=4 defer_fsdp_grad_sync=false",
  EP (2) "gpus=8 " FSDP2 "enable_fsdp2_prefetch=true fsdp2_forward_prefetch_depth=3",
  EP (2) "gpus=8 " FSDP2 "pipeline_model_parallel_size=2",
  EP (2) "gpus=4 " FSDP2 "recompute_granularity=full recompute_method=uniform "
         "recompute_num_layers=2 delay_wgrad_compute=true",
};

/* Where gradients are of another type in bf16 than weights: what one rank has without FSDP2. */
static const char *
in_fp32 (const char *precision, const char *strategy)
{
  gboolean other = strstr (precision, "bf16") && !strstr (strategy, "fsdp2");
  return other ? "grad_reduce_in_fp32=true" : "";
}

static struct real_result
run (const char *model, const char *precision, const char *strategy, struct real_run run)
{
  g_autofree char *words = g_strdup_printf ("topology=cpu %s %s %s %s", model, precision, strategy,
                                             in_fp32 (precision, strategy));

  run.words = words;
  run.steps = STEPS;
  return weft_test_run (&run);
}

static void
check_strategy (const char *model, const char *precision, const char *strategy,
                const struct real_result *one, unsigned seed)
{
  struct real_result other =
      run (model, precision, strategy,
           (struct real_run){ .poison = TRUE, .stress = seed % 3 ? 0 : 1 + seed });

  if (!weft_test_same_bits (one, &other, STEPS))
    fail_msg ("%s %s %s: loss %.17g, of one rank %.17g; norm %.17g and %.17g", model, precision,
              strategy, other.loss[1], one->loss[1], other.norm[0], one->norm[0]);
}

static void
experts_have_the_bits_of_one_rank_under_every_strategy (void **state)
{
  unsigned n = 0;

  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (precisions); p++) {
      struct real_result one =
          run (models[m], precisions[p], "gpus=1", (struct real_run){ .poison = TRUE });
      assert_true (isfinite (one.loss[1]) && one.loss[1] < one.loss[0]);
      for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++, n++)
        if (n % STRIDE == 0 && (m == 0 || p == s % 2))
          check_strategy (models[m], precisions[p], strategies[s], &one, n);
    }
}

static void
fast_order_is_close_to_canonical (void **state)
{
  struct real_result one = run (models[1], precisions[0], "gpus=1", (struct real_run){ 0 });

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++) {
    g_autofree char *strategy = g_strconcat (strategies[s], " reduction_order=fast", NULL);
    struct real_result fast = run (models[1], precisions[0], strategy, (struct real_run){ 0 });
    for (int step = 0; step < STEPS; step++)
      if (!(fabs (fast.loss[step] - one.loss[step]) < 1e-5 * one.loss[step]) ||
          !(fabs (fast.norm[step] - one.norm[step]) < 1e-4 * one.norm[step]))
        fail_msg ("%s: loss %.9g and %.9g, norm %.9g and %.9g", strategy, fast.loss[step],
                  one.loss[step], fast.norm[step], one.norm[step]);
  }
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (experts_have_the_bits_of_one_rank_under_every_strategy),
    cmocka_unit_test (fast_order_is_close_to_canonical),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
