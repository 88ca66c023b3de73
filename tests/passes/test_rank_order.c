/* Stages inside replicas (use_tp_pp_dp_mapping) with real numbers: the results are bitwise equal to
 * those of one rank, and a run that was saved in one order of the ranks continues in the other. */
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"

#define STEPS 2
#define INSIDE "use_tp_pp_dp_mapping=true "
#define PP2 "pipeline_model_parallel_size=2 "
#define TP2 "tensor_model_parallel_size=2 sequence_parallel=true "
#define SMALL                                                                                      \
  " seq_length=16 global_batch_size=8 num_layers=4 hidden_size=32 num_attention_heads=4 "          \
  "num_query_groups=2 kv_channels=8 ffn_hidden_size=48"

static const char dense[] = "model=gpt2-nano" SMALL;
static const char experts[] = "model=mixtral-nano moe_ffn_hidden_size=24" SMALL;

static const char *const of_dense[] = {
  "gpus=4 " PP2,
  "gpus=8 " PP2 "use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=3000",
  "gpus=8 " PP2 TP2 "use_distributed_optimizer=true overlap_param_gather=true "
  "overlap_grad_reduce=true",
  "gpus=8 " PP2 "context_parallel_size=2 use_distributed_optimizer=true",
  "gpus=8 " PP2 "num_distributed_optimizer_instances=2 use_distributed_optimizer=true",
  "gpus=8 " PP2 "virtual_pipeline_model_parallel_size=2 batch_p2p_comm=false overlap_p2p_comm=true",
  "gpus=4 " PP2 "pipeline_schedule=dualpipe use_distributed_optimizer=true",
  "gpus=8 pipeline_model_parallel_size=4 pipeline_schedule=zb-h1",
  "gpus=8 " PP2 "use_megatron_fsdp=true zero_dp_strategy=3 num_distributed_optimizer_instances=2 "
  "outer_dp_sharding_strategy=optim",
  "gpus=16 " PP2 "context_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=2 "
  "num_distributed_optimizer_instances=2",
  "gpus=8 " PP2 "distributed_config=fsdp2 dp_replicate_size=2",
};

static const char *const of_experts[] = {
  "gpus=8 " PP2 TP2 "use_distributed_optimizer=true",
  "gpus=8 " PP2 TP2 "expert_tensor_parallel_size=1 expert_model_parallel_size=2 "
  "use_distributed_optimizer=true overlap_grad_reduce=true",
  "gpus=8 " PP2 "context_parallel_size=2 expert_model_parallel_size=2",
};

static void
check_all (const char *model, const char *const *row, unsigned n)
{
  struct real_result one =
      weft_test_run_words (model, "", "gpus=1", (struct real_run){ .steps = STEPS });

  for (unsigned i = 0; i < n; i++) {
    g_autofree char *words = weft_test_cpu_words (model, INSIDE, row[i]);
    weft_test_check_run (&(struct real_run){ .words = words, .steps = STEPS, .poison = TRUE },
                         &one);
  }
}

static void
stages_inside_give_the_bits_of_one_rank (void **state)
{
  (void) state;
  check_all (dense, of_dense, G_N_ELEMENTS (of_dense));
  check_all (experts, of_experts, G_N_ELEMENTS (of_experts));
}

/* Runs a step with the first words, saves a checkpoint, and runs the second step with the other
 * words. Returns a hash of all weights and moments. */
static uint64_t
go_on (const char *dir, const char *from, const char *to)
{
  g_autofree char *first = weft_test_cpu_words (dense, "", from);
  g_autofree char *second = weft_test_cpu_words (dense, "", to);

  return real_job_go_on (dir, first, second, 1);
}

static void
a_checkpoint_goes_on_in_the_other_order (void **folder)
{
  static const char *const some[] = {
    PP2 TP2 "gpus=8 use_distributed_optimizer=true",
    PP2 "gpus=8 use_megatron_fsdp=true zero_dp_strategy=3 num_distributed_optimizer_instances=2",
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (some); i++) {
    g_autofree char *dir = g_strdup_printf ("%s/%u", (char *) *folder, i);
    g_autofree char *inside = g_strconcat (INSIDE, some[i], NULL);
    uint64_t whole = go_on (dir, "gpus=1", "gpus=1");
    assert_true (go_on (dir, inside, some[i]) == whole);
    assert_true (go_on (dir, some[i], inside) == whole);
    assert_true (go_on (dir, inside, "gpus=1") == whole);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (stages_inside_give_the_bits_of_one_rank),
  cmocka_unit_test_setup_teardown (a_checkpoint_goes_on_in_the_other_order, weft_test_folder_make,
                                   weft_test_folder_remove),
};

WEFT_TESTS (tests)
