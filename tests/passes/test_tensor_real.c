/* Real steps with tensor and sequence parallelism: in canonical order the results are bitwise equal
 * to those of one rank, in fast order they are close; and checkpoints that other strategies resume
 * from. */
#include "core/base/sanitize.h"
#include "tests/runner/folder.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define STEPS 2
#define SANITIZED (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER)
#define STRIDE (SANITIZED ? 5 : 1)

#define GPT2 "model=gpt2-nano seq_length=16 global_batch_size=4"
#define LLAMA "model=llama-nano seq_length=16 global_batch_size=4"
#define SMALL                                                                                      \
  " hidden_size=32 num_attention_heads=8 num_query_groups=4 kv_channels=8 ffn_hidden_size=96"
#define SP " sequence_parallel=true "
#define TP2 "tensor_model_parallel_size=2 "
#define TP4 "tensor_model_parallel_size=4 "

/* In canonical order a sum over the vocabulary is cut into eight equal parts. A vocabulary of 260
 * is padded to a multiple of eight. With a vocabulary of 97, some parts have only a few tokens. */
static const char *const models[] = {
  GPT2 SMALL " num_layers=4 add_qkv_bias=true",
  LLAMA SMALL " num_layers=4 share_embeddings_and_output_weights=true qk_layernorm=true",
  GPT2 SMALL
  " num_layers=2 vocab_size=97 share_embeddings_and_output_weights=false qk_layernorm=true",
  LLAMA SMALL " num_layers=2 add_bias_linear=true add_qkv_bias=true",
};
static const char *const nanos[] = { GPT2, LLAMA };

static const char *const precisions[] = {
  "precision=fp32",
  "precision=bf16",
  "precision=bf16 grad_reduce_in_fp32=true",
  "precision=fp32 enable_autocast=true autocast_dtype=bf16",
};

static const char *const strategies[] = {
  "gpus=2 " TP2,
  "gpus=4 " TP4,
  "gpus=2 " TP2 SP,
  "gpus=4 " TP4 SP,
  "gpus=2 micro_batch_size=4 " TP2 SP,
  "gpus=4 " TP2 SP "overlap_grad_reduce=true bucket_size=20000",
  "gpus=4 " TP2 "use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
  "bucket_size=10000",
  "gpus=8 " TP4 SP "use_distributed_optimizer=true overlap_grad_reduce=true",
  "gpus=8 " TP2 SP "use_distributed_optimizer=true num_distributed_optimizer_instances=2",
  "gpus=4 " TP2 "pipeline_model_parallel_size=2",
  "gpus=8 " TP2 SP "pipeline_model_parallel_size=2 use_distributed_optimizer=true",
  "gpus=8 " TP4 SP "pipeline_model_parallel_size=2 pipeline_schedule=gpipe",
  "gpus=2 " TP2 SP "recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
  "gpus=2 " TP2 "recompute_granularity=full recompute_method=block recompute_num_layers=1",
  "gpus=2 " TP2 SP "recompute_granularity=selective recompute_modules=mlp,layernorm",
  "gpus=4 " TP4 "recompute_granularity=selective recompute_modules=core_attn,layernorm",
  "gpus=4 " TP2 "use_megatron_fsdp=true zero_dp_strategy=0",
  "gpus=4 " TP2 SP "use_megatron_fsdp=true zero_dp_strategy=2 bucket_size=20000",
  "gpus=4 " TP2 SP "use_megatron_fsdp=true zero_dp_strategy=3",
  "gpus=8 " TP4 "use_megatron_fsdp=true zero_dp_strategy=3 fsdp_double_buffer=true",
  "gpus=8 " TP2 SP
  "use_megatron_fsdp=true zero_dp_strategy=3 num_distributed_optimizer_instances=2",
  "gpus=2 " TP2 SP "delay_wgrad_compute=true enable_compile=true",
  "gpus=2 " TP2 "calculate_per_token_loss=true cross_entropy_loss_fusion=true",
  "gpus=4 " TP2 SP "average_in_collective=true check_for_nan_in_grad=true",
  "gpus=4 " TP2 SP "optimizer_cpu_offload=true optimizer_offload_fraction=0.4",
  "gpus=4 " TP4 SP "cpu_offloading=true cpu_offloading_num_layers=1 cross_entropy_loss_fusion=true",
};

/* Strategies with tp_comm_overlap, whose matmuls are computed in pieces. */
#define OVERLAP SP "tp_comm_overlap=true "
static const char *const overlapped[] = {
  "gpus=2 " TP2 OVERLAP,
  "gpus=4 " TP4 OVERLAP,
  "gpus=4 " TP4 OVERLAP "tp_comm_overlap_rs_dgrad=true",
  "gpus=4 " TP4 SP "enable_async_tensor_parallel=true",
  "gpus=2 " TP2 OVERLAP "tp_comm_overlap_disable_qkv=true tp_comm_bulk_wgrad=false",
  "gpus=4 " TP4 OVERLAP "tp_comm_overlap_disable_fc1=true tp_comm_overlap_rs=false",
  "gpus=8 " TP4 OVERLAP "pipeline_model_parallel_size=2 use_distributed_optimizer=true "
  "overlap_grad_reduce=true tp_comm_bulk_dgrad=false",
  "gpus=4 " TP2 OVERLAP "use_megatron_fsdp=true zero_dp_strategy=3 tp_comm_overlap_rs_dgrad=true",
  "gpus=2 " TP2 OVERLAP "delay_wgrad_compute=true micro_batch_size=2",
  "gpus=4 " TP4 SP "enable_async_tensor_parallel=true recompute_granularity=full "
  "recompute_method=uniform recompute_num_layers=1",
  "gpus=2 " TP2 OVERLAP "recompute_granularity=selective recompute_modules=mlp,layernorm",
};

#define FSDP2 "distributed_config=fsdp2 "
static const char *const torch[] = {
  FSDP2 "gpus=4 " TP2,
  FSDP2 "gpus=4 " TP2 SP,
  FSDP2 "gpus=8 " TP2 SP "dp_replicate_size=2 defer_fsdp_grad_sync=false",
  FSDP2 "gpus=8 " TP4 SP "enable_fsdp2_prefetch=true",
  FSDP2 "gpus=8 " TP2 "pipeline_model_parallel_size=2",
  FSDP2 "gpus=4 " TP2 SP "offload_policy=cpu",
  FSDP2 "gpus=4 " TP2 SP "enable_async_tensor_parallel=true",
  "distributed_config=ddp gpus=4 " TP2,
  "distributed_config=ddp gpus=4 " TP4 "recompute_granularity=full recompute_method=uniform "
  "recompute_num_layers=1",
};

static void
check (const char *model, const char *more, const char *strategy, const struct real_result *one)
{
  g_autofree char *words = weft_test_cpu_words (model, more, strategy);

  weft_test_check_run (&(struct real_run){ .words = words, .steps = STEPS, .poison = TRUE }, one);
}

/* Compares every stride-th strategy of a table with one rank. Each call begins at the next row, so
 * that several calls together use all rows. */
static void
check_all (const char *model, const char *more, const char *const *row, unsigned n, unsigned stride)
{
  static unsigned first;
  struct real_result one =
      weft_test_run_words (model, more, "gpus=1", (struct real_run){ .steps = STEPS });

  for (unsigned s = first++ % stride; s < n; s += stride)
    check (model, more, row[s], &one);
}

static void
tensor_parallel_ranks_give_the_bits_of_one (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (precisions); p++)
      check_all (models[m], precisions[p], strategies, G_N_ELEMENTS (strategies),
                 STRIDE * (p ? 3 : 1));
  for (unsigned m = 0; m < G_N_ELEMENTS (nanos); m++)
    check_all (nanos[m], precisions[m], strategies, G_N_ELEMENTS (strategies), 5 * STRIDE);
}

static void
products_in_pieces_have_the_bits_of_the_whole (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < 2; p++)
      check_all (models[m], precisions[p], overlapped, G_N_ELEMENTS (overlapped), STRIDE);
}

static void
so_they_do_with_the_strategies_of_pytorch (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    check_all (models[m], "precision=fp32", torch, G_N_ELEMENTS (torch), STRIDE);
}

/* cross_entropy_fusion_impl = te: each rank subtracts the largest of its own logits. The loss
 * rounds differently from the native loss; the results of all ranks must be bitwise equal to those
 * of one rank with the same cross_entropy_fusion_impl. */
static void
a_loss_from_gathered_statistics_has_bits_of_its_own (void **state)
{
  static const char te[] = "cross_entropy_loss_fusion=true cross_entropy_fusion_impl=te";

  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    struct real_result plain =
        weft_test_run_words (models[m], "", "gpus=1", (struct real_run){ .steps = STEPS });
    struct real_result one =
        weft_test_run_words (models[m], te, "gpus=1", (struct real_run){ .steps = STEPS });
    assert_true (fabs (plain.loss[1] - one.loss[1]) < 1e-5 * plain.loss[1]);
    check (models[m], te, "gpus=2 " TP2, &one);
    check (models[m], te, "gpus=8 " TP4 SP "pipeline_model_parallel_size=2", &one);
  }
}

static void
random_interleavings_do_not_show (void **state)
{
  struct real_result one = weft_test_run_words (models[1], "precision=bf16", "gpus=1",
                                                (struct real_run){ .steps = STEPS });
  g_autofree char *words =
      weft_test_cpu_words (models[1], "precision=bf16",
                "gpus=8 " TP2 SP "pipeline_model_parallel_size=2 overlap_grad_reduce=true");

  (void) state;
  for (uint64_t seed = 1; seed <= (SANITIZED ? 2 : 10); seed++)
    weft_test_check_run (
        &(struct real_run){ .words = words, .steps = STEPS, .stress = seed, .poison = TRUE }, &one);
}

/* Fast order sums in an order that depends on the strategy. The losses must agree with those of one
 * rank to a millionth. */
static void
fast_order_is_within_a_millionth (void **state)
{
  static const char *const some[] = {
    "gpus=2 " TP2,
    "gpus=4 " TP4 SP,
    "gpus=4 " TP2 SP "use_distributed_optimizer=true",
    "gpus=4 " TP2 SP "use_megatron_fsdp=true zero_dp_strategy=3",
    "gpus=4 " TP2 SP "distributed_config=fsdp2",
    "gpus=8 " TP4 SP "pipeline_model_parallel_size=2 cross_entropy_loss_fusion=true",
    "gpus=2 " TP2 "cross_entropy_loss_fusion=true cross_entropy_fusion_impl=te",
    "gpus=4 " TP2 SP "optimizer_cpu_offload=true",
    "gpus=4 " TP4 OVERLAP "tp_comm_overlap_rs_dgrad=true",
    "gpus=4 " TP4 SP "enable_async_tensor_parallel=true",
    "gpus=2 make_vocab_size_divisible_by=64 " TP2,
    "gpus=1 make_vocab_size_divisible_by=100",
  };
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    struct real_result one = weft_test_run_words (models[m], "reduction_order=fast", "gpus=1",
                                                  (struct real_run){ .steps = STEPS });
    for (unsigned s = 0; s < G_N_ELEMENTS (some); s += STRIDE) {
      struct real_result other =
          weft_test_run_words (models[m], "reduction_order=fast", some[s],
                               (struct real_run){ .steps = STEPS, .poison = TRUE });
      if (!weft_test_is_near (&other, &one, STEPS))
        fail_msg ("%s %s: losses %.9g %.9g, of one rank %.9g %.9g; norm %.9g, %.9g", models[m],
                  some[s], other.loss[0], other.loss[1], one.loss[0], one.loss[1], other.norm[0],
                  one.norm[0]);
    }
  }
}

/* ------------------------------------------------------------------------- resumption */

static real_job *
open_job (const char *strategy)
{
  g_autofree char *words = g_strdup_printf ("topology=cpu %s %s", models[1], strategy);
  return real_job_open (words, NULL);
}

/* Runs two steps under strategy `from`, saves a checkpoint, and runs the third step under strategy
 * `to`. Returns a hash of all weights and moments. */
static uint64_t
go_on (const char *dir, const char *from, const char *to)
{
  g_autofree char *first = g_strdup_printf ("topology=cpu %s %s", models[1], from);
  g_autofree char *second = g_strdup_printf ("topology=cpu %s %s", models[1], to);

  return real_job_go_on (dir, first, second, 2);
}

static void
a_run_goes_on_with_another_number_of_tensor_parallel_ranks (void **state)
{
  static const char *const some[] = {
    "gpus=1",
    "gpus=2 precision=fp32 " TP2,
    "gpus=8 use_distributed_optimizer=true bucket_size=3000 " TP4 SP,
    "gpus=8 pipeline_model_parallel_size=2 use_distributed_optimizer=true " TP2 SP,
    "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3 " TP2,
    "gpus=4 distributed_config=fsdp2 " TP2 SP,
  };
  uint64_t one = go_on (*state, some[0], some[0]);

  for (unsigned s = 1; s < G_N_ELEMENTS (some); s++) {
    assert_true (go_on (*state, some[0], some[s]) == one);
    assert_true (go_on (*state, some[s], some[(s + 1) % G_N_ELEMENTS (some)]) == one);
  }
}

/* Ranks hold parts of each tensor. Together the parts must cover every element exactly once. */
static void
parts_of_a_tensor_are_all_of_it (void **state)
{
  g_autoptr (real_job) job = open_job ("gpus=4 use_distributed_optimizer=true " TP2);

  (void) state;
  for (uint32_t i = 0; i < weft_state_count (job->state); i++) {
    const struct weft_state_tensor *t = weft_state_at (job->state, i);
    uint64_t n = t->rows * t->columns;
    g_autofree uint8_t *seen = g_new0 (uint8_t, n);
    uint32_t n_runs;
    const struct weft_state_run *run = weft_state_runs (job->state, i, &n_runs);
    for (uint32_t r = 0; r < n_runs; r++)
      for (uint64_t line = 0; line < run[r].lines; line++)
        for (uint64_t e = 0; e < run[r].n; e++)
          assert_int_equal (seen[run[r].first + line * t->columns + e]++, 0);
    assert_null (memchr (seen, 0, n));
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (tensor_parallel_ranks_give_the_bits_of_one),
  cmocka_unit_test (products_in_pieces_have_the_bits_of_the_whole),
  cmocka_unit_test (so_they_do_with_the_strategies_of_pytorch),
  cmocka_unit_test (a_loss_from_gathered_statistics_has_bits_of_its_own),
  cmocka_unit_test (random_interleavings_do_not_show),
  cmocka_unit_test (fast_order_is_within_a_millionth),
  cmocka_unit_test_setup_teardown (a_run_goes_on_with_another_number_of_tensor_parallel_ranks,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test (parts_of_a_tensor_are_all_of_it),
};

WEFT_TESTS (tests, .seconds = 12)
