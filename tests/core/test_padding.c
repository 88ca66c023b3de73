/* Bytes that the memory plan loses between buffers, in jobs whose buffers are hard to pack:
 * bench/bench_padding.c has the distribution over random large jobs. */
#include "core/job/flags.h"
#include "core/plan/plan.h"
#include "tests/runner/runner.h"

/* Jobs of one model, and the largest padding of a stage, in percent of the bytes in use. */
static const struct {
  const char *words;
  double most;
} jobs[] = {
  { "pipeline_model_parallel_size=4 pipeline_schedule=zb-v", 0.7 },
  { "virtual_pipeline_model_parallel_size=4 pipeline_model_parallel_size=4 overlap_p2p_comm=true "
    "batch_p2p_comm=false",
    0.7 },
  { "pipeline_model_parallel_size=4 use_distributed_optimizer=true overlap_grad_reduce=true", 1.3 },
  { "pipeline_model_parallel_size=4 pipeline_schedule=gpipe recompute_granularity=full "
    "recompute_method=uniform recompute_num_layers=1",
    0.5 },
  { "pipeline_model_parallel_size=2 distributed_config=fsdp2", 0.7 },
  { "distributed_config=megatron_fsdp data_parallel_sharding_strategy=optim_grads_params", 0.5 },
};

static void
little_memory_is_lost_between_buffers (void **state)
{
  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (jobs); i++) {
    g_autofree char *words =
        g_strconcat ("model=llama3-8b topology=dgx-h100 gpus=16 tensor_model_parallel_size=2 "
                     "global_batch_size=32 ",
                     jobs[i].words, NULL);
    g_autoptr (weft_settings) settings = weft_settings_new ();
    struct weft_job job;
    assert_true (weft_flags_words (words, settings, NULL));
    assert_true (weft_job_build (settings, &job, NULL));
    g_autoptr (weft_plan) plan = weft_plan_new_draft (&job, WEFT_PLAN_PLACED, NULL, NULL);
    for (uint32_t role = 0; role < plan->n_roles; role++) {
      const struct weft_memory *m = &plan->memory[role];
      double used = (double) m->used[WEFT_POOL_DEVICE];
      assert_true (m->used[WEFT_POOL_DEVICE] >= m->live[WEFT_POOL_DEVICE]);
      if ((double) m->planned[WEFT_POOL_DEVICE] > (1 + jobs[i].most / 100) * used)
        fail_msg ("%s: stage %u loses %.2f %%", words, role,
                  100 * ((double) m->planned[WEFT_POOL_DEVICE] / used - 1));
    }
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (little_memory_is_lost_between_buffers),
};

WEFT_TESTS (tests)
