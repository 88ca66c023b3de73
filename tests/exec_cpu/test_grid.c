/* Combinations of all axes of parallelism: a random sample of the grid is run with real numbers.
 * Losses, norms, gradients, weights and moments must be bitwise equal to those of a run on one
 * rank.
 *
 *   ./weft test grid
 *
 * The sample is drawn with a fixed seed among the jobs that the rules allow. WEFT_GRID_JOBS sets
 * the number of jobs. Without `./weft test --long` those do not run whose choices other jobs have
 * had often enough. */
#include "core/base/sanitize.h"
#include "tests/made/random_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <stdlib.h>
#include <string.h>

#define JOBS (WEFT_THREAD_SANITIZER ? 20 : WEFT_ADDRESS_SANITIZER ? 60 : 300)
/* number of jobs with a choice of an axis from which on further jobs do not run because of it */
#define ENOUGH weft_tests_cases (5, JOBS)
#define MOST_RANKS 16
#define STEPS 2
#define MOST_WORDS 12

#define EXPERTS                                                                                    \
  "model=mixtral-nano num_layers=8 hidden_size=32 num_attention_heads=8 num_query_groups=4 "       \
  "kv_channels=8 ffn_hidden_size=64 moe_ffn_hidden_size=32 vocab_size=96 seq_length=16 "           \
  "max_position_embeddings=16"

/* Small models, with eight layers, which allow eight pipeline stages. The widths that tensor
 * parallel ranks share are multiples of eight, because canonical order cuts a sum over such a width
 * into eight equal parts (kernels/leaves.h). `more`: settings for jobs of several ranks only. */
static const struct {
  const char *words, *more;
} models[] = {
  { "precision=fp32 model=llama-nano num_layers=8 hidden_size=32 num_attention_heads=8 "
    "num_query_groups=4 "
    "kv_channels=8 ffn_hidden_size=64 vocab_size=96 seq_length=16 max_position_embeddings=16",
    "" },
  { "precision=fp32 model=gpt2-nano num_layers=8 hidden_size=32 num_attention_heads=4 "
    "num_query_groups=4 "
    "kv_channels=8 ffn_hidden_size=64 vocab_size=96 seq_length=16 max_position_embeddings=16",
    "" },
  { "precision=fp32 moe_apply_probs_on_input=true " EXPERTS, "" },
  { "precision=bf16 moe_shared_expert_intermediate_size=32 moe_shared_expert_gate=true "
    "moe_router_score_function=sigmoid moe_router_enable_expert_bias=true " EXPERTS,
    " overlap_moe_expert_parallel_comm=true" },
  { "precision=fp32 model=llama-nano num_layers=8 hidden_size=32 num_attention_heads=8 "
    "num_query_groups=2 kv_channels=8 ffn_hidden_size=64 vocab_size=96 seq_length=16 "
    "max_position_embeddings=16 mtp_num_layers=2",
    "" },
  { "precision=fp32 model=llama-nano num_layers=8 hidden_size=32 num_attention_heads=8 "
    "num_query_groups=8 q_lora_rank=16 kv_lora_rank=16 qk_head_dim=4 qk_pos_emb_head_dim=4 "
    "v_head_dim=6 ffn_hidden_size=64 vocab_size=96 seq_length=16 max_position_embeddings=16",
    "" },
  { "precision=fp32 model=deepseek-nano hidden_size=32 ffn_hidden_size=64 moe_ffn_hidden_size=32 "
    "vocab_size=96 seq_length=16 max_position_embeddings=16",
    "" },
};

/* Jobs without data parallelism have half the sequences, that is as many microbatches as those with
 * two replicas. */
static const char *const batches[] = { " topology=cpu micro_batch_size=1 global_batch_size=16",
                                       " topology=cpu micro_batch_size=1 global_batch_size=8" };

#define LINEAR "cross_entropy_loss_fusion=true cross_entropy_fusion_impl=linear"

/* One row per axis of the grid of strategies, with the values of the axis. A job has one value of
 * each axis. */
static const char *const axes[][MOST_WORDS] = {
  { "tensor_model_parallel_size=1", "tensor_model_parallel_size=1", "tensor_model_parallel_size=2",
    "tensor_model_parallel_size=2 sequence_parallel=true", "tensor_model_parallel_size=4",
    "tensor_model_parallel_size=4 sequence_parallel=true" },
  { "context_parallel_size=1", "context_parallel_size=1",
    "context_parallel_size=2 cp_comm_type=p2p", "context_parallel_size=2 cp_comm_type=all_gather",
    "context_parallel_size=2 cp_comm_type=a2a", "context_parallel_size=4 cp_comm_type=p2p",
    "context_parallel_size=4 cp_comm_type=all_gather", "context_parallel_size=4 cp_comm_type=a2a",
    "context_parallel_size=4 cp_comm_type=a2a+p2p hierarchical_context_parallel_sizes=2,2" },
  { "pipeline_model_parallel_size=1", "pipeline_model_parallel_size=2",
    "pipeline_model_parallel_size=4" },
  { "pipeline_schedule=1f1b", "pipeline_schedule=gpipe",
    "virtual_pipeline_model_parallel_size=2 batch_p2p_comm=false overlap_p2p_comm=true",
    "pipeline_schedule=zb-h1", "pipeline_schedule=zb-h2", "pipeline_schedule=zb-v",
    "pipeline_schedule=v-half", "pipeline_schedule=v-min", "pipeline_schedule=dualpipe",
    "pipeline_schedule=dualpipev" },
  { "expert_model_parallel_size=1", "expert_model_parallel_size=2", "expert_model_parallel_size=4",
    "expert_tensor_parallel_size=1", "expert_tensor_parallel_size=2",
    "expert_model_parallel_size=2 expert_tensor_parallel_size=1",
    "expert_model_parallel_size=4 expert_tensor_parallel_size=1" },
  { "overlap_grad_reduce=false", "overlap_grad_reduce=true bucket_size=3000",
    "use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true",
    "use_megatron_fsdp=true data_parallel_sharding_strategy=optim",
    "use_megatron_fsdp=true data_parallel_sharding_strategy=optim_grads",
    "use_megatron_fsdp=true data_parallel_sharding_strategy=optim_grads_params",
    "distributed_config=fsdp2", "distributed_config=ddp" },
  { "recompute_granularity=none", "recompute_granularity=none",
    "recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
    "recompute_granularity=full recompute_method=block recompute_num_layers=1",
    "recompute_granularity=selective recompute_modules=mlp",
    "recompute_granularity=selective recompute_modules=layernorm",
    "recompute_granularity=selective recompute_modules=moe",
    "recompute_granularity=selective recompute_modules=moe_act,layernorm" },
  { "cross_entropy_loss_fusion=false", "cross_entropy_loss_fusion=true", LINEAR,
    LINEAR " cross_entropy_chunks=8", LINEAR " cross_entropy_chunks=4",
    LINEAR " cross_entropy_chunks=2" },
};

static uint32_t
choices (unsigned axis)
{
  uint32_t n = 0;

  while (n < MOST_WORDS && axes[axis][n])
    n++;
  return n;
}

static int64_t
ranks_of (const struct weft_job *job, int64_t replicas)
{
  const union weft_strategy *k = &job->strategy;

  return k->tensor_model_parallel_size * k->context_parallel_size *
         k->pipeline_model_parallel_size * replicas;
}

/* Draws a job of the grid, whose batch is batches[*batch]. The number of GPUs is the product of the
 * parallel sizes, so the drawn words are first parsed as a job with one GPU. */
static char *
draw (GRand *rand, unsigned model, unsigned *batch, uint32_t taken[G_N_ELEMENTS (axes)])
{
  g_autoptr (GString) words = g_string_new (models[model].words);
  static const int64_t replicas[] = { 1, 2, 4 };
  int64_t ranks = replicas[g_rand_int_range (rand, 0, 3)];

  *batch = ranks == 1;
  g_string_append (words, batches[*batch]);
  g_string_append (words, models[model].more);
  for (unsigned a = 0; a < G_N_ELEMENTS (axes); a++) {
    const char *size;
    taken[a] = (uint32_t) g_rand_int_range (rand, 0, (gint32) choices (a));
    g_string_append_printf (words, " %s", axes[a][taken[a]]);
    size = strstr (axes[a][taken[a]], "parallel_size=");
    if (size && a < 3)
      ranks *= atoi (size + strlen ("parallel_size="));
  }
  g_string_append_printf (words, " gpus=%d", (int) ranks);
  return ranks <= MOST_RANKS ? g_string_free (g_steal_pointer (&words), FALSE) : NULL;
}

static char *
draw_legal (GRand *rand, unsigned *model, unsigned *batch, uint32_t taken[G_N_ELEMENTS (axes)])
{
  *model = (unsigned) g_rand_int_range (rand, 0, G_N_ELEMENTS (models));
  for (;;) {
    struct weft_job job;
    g_autofree char *words = draw (rand, *model, batch, taken);
    if (words && weft_test_job (words, &job, NULL)) {
      g_assert (ranks_of (&job, weft_job_dp (&job)) == job.cluster.n_gpus);
      return g_steal_pointer (&words);
    }
  }
}

/* Counts the choices of a job, unless each is one that enough jobs have. */
static gboolean
counts (uint32_t seen[][MOST_WORDS], const uint32_t taken[])
{
  gboolean is_new = FALSE;

  for (unsigned a = 0; a < G_N_ELEMENTS (axes); a++)
    is_new = is_new || seen[a][taken[a]] < ENOUGH;
  for (unsigned a = 0; a < G_N_ELEMENTS (axes) && is_new; a++)
    seen[a][taken[a]]++;
  return is_new;
}

static void
every_sampled_combination_has_the_bits_of_one_rank (void **state)
{
  (void) state;
  g_autoptr (GRand) rand = g_rand_new_with_seed (2028);
  const char *asked = g_getenv ("WEFT_GRID_JOBS");
  uint32_t jobs = asked ? (uint32_t) atoi (asked) : JOBS,
           seen[G_N_ELEMENTS (axes)][MOST_WORDS] = { 0 };
  struct real_result one[G_N_ELEMENTS (models)][G_N_ELEMENTS (batches)];
  uint32_t wrong = 0, n_run = 0;

  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned b = 0; b < G_N_ELEMENTS (batches); b++) {
      g_autofree char *words = g_strconcat (models[m].words, batches[b], " gpus=1", NULL);
      one[m][b] = weft_test_run (&(struct real_run){ .words = words, .steps = STEPS });
    }
  for (uint32_t i = 0; i < jobs; i++) {
    unsigned model, batch;
    uint32_t taken[G_N_ELEMENTS (axes)];
    g_autofree char *words = draw_legal (rand, &model, &batch, taken);
    if (!counts (seen, taken))
      continue;
    struct real_result many = weft_test_run (
        &(struct real_run){ .words = words, .steps = STEPS, .poison = TRUE, .stress = i % 2 });
    n_run++;
    const struct real_result *alone = &one[model][batch];
    if (!weft_test_same_bits (alone, &many, STEPS)) {
      print_error ("%s: loss %.17g norm %.17g, of one rank %.17g and %.17g\n", words, many.loss[0],
                   many.norm[0], alone->loss[0], alone->norm[0]);
      wrong++;
    }
  }
  print_message ("%u of %u jobs ran\n", n_run, jobs);
  assert_int_equal (wrong, 0);
  for (unsigned a = 0; a < G_N_ELEMENTS (axes) && jobs >= 300; a++)
    for (uint32_t c = 0; c < choices (a); c++)
      if (seen[a][c] == 0)
        fail_msg ("no job has %s", axes[a][c]);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_sampled_combination_has_the_bits_of_one_rank),
};

WEFT_TESTS (tests, .seconds = 22)
