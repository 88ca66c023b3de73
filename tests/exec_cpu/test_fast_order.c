/* Settings that are refused in canonical order, and how far fast order with these settings is from
 * one rank: the table of docs/numerics.md. */
#include "tests/made/random_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <string.h>

#define STEPS 2
#define LLAMA                                                                                      \
  "topology=cpu precision=fp32 model=llama-nano num_layers=2 hidden_size=48 "                      \
  "num_attention_heads=6 num_query_groups=6 kv_channels=8 ffn_hidden_size=96 vocab_size=96 "       \
  "seq_length=16 max_position_embeddings=16 global_batch_size=6 "
#define EXPERTS                                                                                    \
  "topology=cpu precision=fp32 model=mixtral-nano num_layers=2 hidden_size=32 "                    \
  "num_attention_heads=8 num_query_groups=4 kv_channels=8 ffn_hidden_size=64 vocab_size=96 "       \
  "seq_length=16 max_position_embeddings=16 num_moe_experts=6 moe_ffn_hidden_size=48 "

static const struct {
  const char *rule, *model, *words;
} refused[] = {
  { "canonical_order", LLAMA, "gpus=2" },
  { "canonical_average", LLAMA, "gpus=3 average_in_collective=true" },
  { "canonical_tensor", LLAMA, "gpus=3 tensor_model_parallel_size=3" },
  { "canonical_vocab", LLAMA,
    "gpus=2 tensor_model_parallel_size=2 make_vocab_size_divisible_by=64" },
  { "context_canonical", LLAMA, "gpus=2 context_parallel_size=2 micro_batch_size=2" },
  { "instances_order", LLAMA "global_batch_size=12 ",
    "gpus=6 use_distributed_optimizer=true num_distributed_optimizer_instances=2" },
  { "replicate_order", LLAMA "global_batch_size=12 ",
    "gpus=6 distributed_config=fsdp2 dp_replicate_size=2" },
  { "copies_order", LLAMA, "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=dualpipe" },
  { "experts_order", EXPERTS "global_batch_size=6 ", "gpus=3 expert_model_parallel_size=3" },
  { "experts_leaves", EXPERTS "global_batch_size=16 ", "gpus=16 expert_tensor_parallel_size=16" },
  { "linear_order", LLAMA,
    "gpus=1 cross_entropy_loss_fusion=true cross_entropy_fusion_impl=linear "
    "cross_entropy_chunks=2" },
  { "pad_to_leaves", EXPERTS "global_batch_size=4 moe_expert_capacity_factor=6 ",
    "gpus=16 tensor_model_parallel_size=8 sequence_parallel=true context_parallel_size=2 "
    "moe_pad_expert_input_to_capacity=true" },
};

static struct real_result
run (const char *model, const char *order, const char *words)
{
  g_autofree char *all = g_strconcat (model, order, words, NULL);
  return weft_test_run (&(struct real_run){ .words = all, .steps = STEPS, .poison = TRUE });
}

static void
what_canonical_order_refuses_is_near_one_rank_in_fast_order (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (refused); i++) {
    g_autofree char *words = g_strconcat (refused[i].model, refused[i].words, NULL),
                    *rule = g_strdup_printf ("rule %s:", refused[i].rule);
    g_autoptr (GError) error = NULL;
    struct weft_job job;
    if (weft_test_job (words, &job, &error) || !g_str_has_prefix (error->message, rule))
      fail_msg ("%s %s", rule, error ? error->message : "nothing refuses this");
    struct real_result one = run (refused[i].model, "reduction_order=fast ", "gpus=1");
    struct real_result many = run (refused[i].model, "reduction_order=fast ", refused[i].words);
    if (!weft_test_is_near (&many, &one, STEPS))
      fail_msg ("%s: loss %.9g %.9g norm %.9g, of one rank %.9g %.9g %.9g", words, many.loss[0],
                many.loss[1], many.norm[0], one.loss[0], one.loss[1], one.norm[0]);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (what_canonical_order_refuses_is_near_one_rank_in_fast_order),
};

WEFT_TESTS (tests)
