/* Expert parallelism under every data-parallel strategy: what each rank keeps, gathers and reduces,
 * how many bytes that is, and that the results are bitwise equal to those of one rank. */
#include "core/base/sanitize.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/made/own.h"
#include "tests/runner/folder.h"
#include "tests/made/questions.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "train/checkpoint.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define STEPS 2
#define STRIDE (WEFT_THREAD_SANITIZER ? 9 : WEFT_ADDRESS_SANITIZER ? 5 : 1)

/* ------------------------------------------------------------------------ real steps */

#define SMALL                                                                                      \
  "model=mixtral-nano num_layers=4 hidden_size=32 num_attention_heads=4 num_query_groups=2 "       \
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
#define TP "tensor_model_parallel_size=2 sequence_parallel=true "
#define CP "context_parallel_size=2 "
#define WHOLE "expert_tensor_parallel_size=1 "
#define FSDP2 "distributed_config=fsdp2 "
#define CHUNKS "virtual_pipeline_model_parallel_size=2 batch_p2p_comm=false overlap_p2p_comm=true "
#define TENSOR "tensor_model_parallel_size=2 sequence_parallel=true "
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
  EP (2) "gpus=8 " FSDP2 "pipeline_model_parallel_size=2 " CHUNKS,
  EP (4) "gpus=8 " FSDP2 "pipeline_model_parallel_size=2 defer_fsdp_grad_sync=false " CHUNKS,
  EP (2) "gpus=8 " UNITS (optim_grads_params) "pipeline_model_parallel_size=2 " CHUNKS,
  EP (2) "gpus=8 " UNITS (optim_grads_params) TENSOR "expert_tensor_parallel_size=1",
  EP (2) "gpus=8 " UNITS (optim_grads) TENSOR,
  EP (2) "gpus=8 " FSDP2 TENSOR "expert_tensor_parallel_size=1",
  EP (2) "gpus=4 " UNITS (optim_grads_params) "context_parallel_size=2",
  EP (4) "gpus=8 " FSDP2 "context_parallel_size=2",
  EP (2) "gpus=8 " FSDP2 "pipeline_model_parallel_size=2 pipeline_schedule=zb-h1",
  EP (4) "gpus=8 " FSDP2 "pipeline_model_parallel_size=2 pipeline_schedule=zb-v",
  EP (2) "gpus=4 " FSDP2 "recompute_granularity=full recompute_method=uniform "
         "recompute_num_layers=2 delay_wgrad_compute=true",
  TP EP (2) "gpus=8 " UNITS (optim),
  TP EP (2) "gpus=4 " UNITS (optim_grads_params),
  TP EP (4) WHOLE "gpus=8 " UNITS (optim_grads_params),
  TP EP (2) WHOLE "gpus=4 " UNITS (optim_grads) "overlap_grad_reduce=true bucket_size=3000",
  TP EP (2) "gpus=8 " FSDP2,
  TP EP (4) WHOLE "gpus=8 " FSDP2 "defer_fsdp_grad_sync=false",
  EP (2) CP "gpus=4 " UNITS (optim_grads_params),
  EP (4) CP "gpus=8 " UNITS (optim_grads),
  EP (4) CP "gpus=4 " FSDP2,
  TP WHOLE "gpus=4 " UNITS (optim_grads_params),
  TP WHOLE "gpus=4 " FSDP2,
  TP WHOLE CP "gpus=8 " FSDP2 "defer_fsdp_grad_sync=false",
  TP WHOLE "gpus=8 " UNITS (optim_grads) INSTANCES (2),
};

/* Returns the setting for the run on one rank with which `strategy` is compared: fp32 gradients if
 * weights are bf16. FSDP2 needs no such setting, because it has its own reduce dtype. */
static const char *
in_fp32 (const char *precision, const char *strategy)
{
  gboolean other = strstr (precision, "bf16") && !strstr (strategy, "fsdp2");
  return other ? "grad_reduce_in_fp32=true" : "";
}

static const struct real_sweep sweep = {
  .models = models,
  .n_models = G_N_ELEMENTS (models),
  .precisions = precisions,
  .n_precisions = G_N_ELEMENTS (precisions),
  .strategies = strategies,
  .n_strategies = G_N_ELEMENTS (strategies),
  .steps = STEPS,
  .stride = STRIDE,
  .more = in_fp32,
};

static void
experts_have_the_bits_of_one_rank_under_every_strategy (void **state)
{
  (void) state;
  weft_test_check_sweep (&sweep);
}

static void
fast_order_is_close_to_canonical (void **state)
{
  struct real_result one =
      weft_test_run_words (models[1], precisions[0], "gpus=1", (struct real_run){ .steps = STEPS });

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s += STRIDE) {
    g_autofree char *strategy = g_strconcat (strategies[s], " reduction_order=fast", NULL);
    struct real_result fast = weft_test_run_words (models[1], precisions[0], strategy,
                                                   (struct real_run){ .steps = STEPS });
    if (!weft_test_is_near (&fast, &one, STEPS))
      fail_msg ("%s: loss %.9g and %.9g, norm %.9g and %.9g", strategy, fast.loss[1], one.loss[1],
                fast.norm[1], one.norm[1]);
  }
}

/* ----------------------------------------------------------------------- checkpoints */

static const char *const kept_apart[] = {
  EP (2) "gpus=4 " UNITS (optim_grads_params),
  EP (4) "gpus=4 " FSDP2,
  EP (2) "gpus=8 " UNITS (optim_grads_params) INSTANCES (2) "outer_dp_sharding_strategy=optim",
  EP (2) "gpus=8 " FSDP2 "dp_replicate_size=2",
  EP (4) "gpus=4 " UNITS (optim_grads),
  EP (2) "gpus=8 use_distributed_optimizer=true " INSTANCES (2),
  EP (2) "gpus=8 " UNITS (optim_grads_params) "pipeline_model_parallel_size=2",
  EP (2) "gpus=4 " FSDP2 "defer_fsdp_grad_sync=false",
  "gpus=1",
};

static real_job *
open_job (const char *strategy)
{
  g_autofree char *words =
      g_strdup_printf ("topology=cpu precision=fp32 %s %s", models[1], strategy);
  const struct weft_exec_options how = { .own = made_own (&weft_exec_cpu, "poison") };

  return real_job_open (words, &how);
}

static void
load (real_job *job, const char *dir)
{
  g_autofree char *passed_over = NULL;
  g_autoptr (GError) error = NULL;
  struct weft_progress progress;

  weft_state_init (job->state, 7);
  if (!weft_checkpoint_load (job->state, &job->plan->job, dir, &progress, &passed_over, &error))
    fail_msg ("%s", error->message);
  assert_null (passed_over);
  job->control.step = progress.step;
}

/* Every strategy resumes from a checkpoint that the previous strategy has written. */
static void
checkpoints_resume_into_and_out_of_every_strategy (void **folder)
{
  g_autoptr (real_job) whole = open_job ("gpus=1");

  weft_state_init (whole->state, 5);
  real_job_step (whole);
  for (unsigned i = 0; i < G_N_ELEMENTS (kept_apart); i++) {
    g_autoptr (real_job) next = open_job (kept_apart[i]);
    g_autofree char *name = g_strdup_printf ("%u", i);
    g_autofree char *dir = g_build_filename (*folder, name, NULL);
    g_autofree char *before = g_strdup_printf ("%s/%d", (char *) *folder, (int) i - 1);
    if (i == 0)
      real_job_save (whole, before);
    load (next, before);
    double loss = real_job_step (next)->loss;
    assert_true (loss == real_job_step (whole)->loss);
    for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++) {
      const char *other = real_other_tensor (whole->state, next->state, kind);
      if (other)
        fail_msg ("%s: %s of %s", kept_apart[i], weft_state_kind_words[kind], other);
    }
    real_job_save (next, dir);
  }
}

/* ------------------------------------------------------------------------- programs */

/* Two layers of eight experts on eight GPUs. With expert_model_parallel_size = 4, each expert is on
 * two ranks ("holders"). */
#define WORDS                                                                                      \
  "num_layers=2 hidden_size=64 num_attention_heads=4 ffn_hidden_size=128 vocab_size=256 "          \
  "seq_length=64 num_moe_experts=8 moe_router_topk=2 moe_ffn_hidden_size=96 activation=swiglu "    \
  "micro_batch_size=1 precision=bf16 topology=dgx-h100 gpus=8 global_batch_size=16 "
enum { E = 8, H = 64, F = 96, LAYERS = 2, MICROS = 2, D = 8, PADDING = 4096 };

static uint64_t
experts_of (uint32_t ranks)
{
  return LAYERS * (E / ranks) * 3 * F * H;
}

/* Returns the elements of all collectives of a kind over a group. */
static uint64_t
moved (const weft_program *p, enum weft_op_kind kind, enum weft_group_kind group)
{
  uint64_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && p->op[op].group == group &&
        p->op[op].lane == weft_group_lane (group) && !has_name (p, op, "tokens"))
      n += elements (p, op);
  return n;
}

static uint32_t
find (const weft_program *p, enum weft_op_kind kind, enum weft_group_kind group, uint32_t n)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && p->op[op].group == group && n-- == 0)
      return op;
  fail_msg ("no %s over %s", weft_op_words[kind], weft_group_word (group));
  return 0;
}

static uint32_t
named (const weft_program *p, enum weft_op_kind kind, const char *name, uint32_t n)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && has_name (p, op, name) && n-- == 0)
      return op;
  fail_msg ("no %s", name);
  return 0;
}

/* Returns the bytes of the permanent buffer with this name; 0 if the program has none. */
static uint64_t
kept (const weft_program *p, const char *name)
{
  uint64_t bytes = 0;

  for (uint32_t b = 0; b < p->n_buf; b++)
    if (p->buf[b].permanent && p->buf[b].base == WEFT_NO_BUF &&
        g_str_equal (p->name[p->buf[b].name], name))
      bytes += p->buf[b].bytes;
  return bytes;
}

/* What each sharding level does with expert parameters: whether the holders of an expert shard
 * weights, gradients and optimizer state among themselves (_cut), and how often they all-gather,
 * reduce-scatter and all-reduce per step. */
static const struct level {
  const char *words;
  uint32_t weights_cut, grads_cut, states_cut;
  uint64_t gathers, scatters, reductions;
} levels[] = {
  { UNITS (no_shard), 0, 0, 0, 0, 0, 1 },
  { UNITS (optim), 0, 0, 1, 1, 1, 0 },
  { UNITS (optim_grads), 0, 1, 1, 1, MICROS, 0 },
  { UNITS (optim_grads_params), 1, 1, 1, 2 * MICROS, MICROS, 0 },
  { "use_distributed_optimizer=true ", 0, 0, 1, 1, 1, 0 },
};

static void
levels_of_sharding_cut_experts_among_those_who_hold_them (void **state)
{
  const uint64_t n = experts_of (4), holders = 2;

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (levels); i++) {
    const struct level *l = &levels[i];
    g_autofree char *words = g_strconcat (WORDS EP (4), l->words, "grad_reduce_in_fp32=true", NULL);
    g_autoptr (weft_program) p = built (words, 0);
    g_autofree char *whole = g_strconcat (WORDS, l->words, "grad_reduce_in_fp32=true", NULL);
    g_autoptr (weft_program) all = built (whole, 0);
    assert_int_equal (moved (p, WEFT_OP_ALL_GATHER, WEFT_GROUP_EDP), l->gathers * n);
    assert_int_equal (moved (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_EDP), l->scatters * n);
    assert_int_equal (moved (p, WEFT_OP_ALL_REDUCE, WEFT_GROUP_EDP), l->reductions * n);
    assert_int_equal (kept (p, "expert weights"), 2 * n / (l->weights_cut ? holders : 1));
    assert_int_equal (kept (p, "expert gradients"), 4 * n / (l->grads_cut ? holders : 1));
    /* Parameters that do not belong to experts are sharded as without expert parallelism. */
    uint64_t dense = kept (all, "exp_avg") - 4 * experts_of (1) / (l->states_cut ? D : 1);
    uint64_t wanted = dense + 4 * n / (l->states_cut ? holders : 1);
    assert_in_range (kept (p, "exp_avg"), wanted - PADDING, wanted + PADDING);
    assert_int_equal (kept (p, "master"), kept (p, "exp_avg"));
  }
}

/* expert_model_parallel_size = 8: every expert is on one rank only, so no expert weights or
 * gradients are sharded, gathered or reduced. The gradients are still divided by the number of
 * replicas, because an expert receives the tokens of all replicas. */
static void
experts_of_one_holder_are_whole_and_meet_nobody (void **state)
{
  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (levels); i++) {
    g_autofree char *words = g_strconcat (WORDS EP (8), levels[i].words, NULL);
    g_autoptr (weft_program) p = built (words, 0);
    for (uint32_t op = 0; op < p->n_op; op++)
      assert_int_not_equal (p->op[op].group, WEFT_GROUP_EDP);
    assert_int_equal (kept (p, "expert weights"), 2 * experts_of (8));
    assert_int_equal (weft_op_shape (p, named (p, WEFT_OP_SCALE, "scale", 0))->dim[2], D);
  }
}

/* Expert gradients are divided by the number of replicas D: by a kernel, or inside the reduction.
 * With average_in_collective, the collective divides only by the number of ranks that hold the
 * expert, so a kernel divides by expert_model_parallel_size too. */
static void
gradients_of_experts_are_divided_by_all_replicas (void **state)
{
  g_autoptr (weft_program) fused =
      built (WORDS EP (4) UNITS (optim_grads) "grad_reduce_in_fp32=true", 0);
  g_autoptr (weft_program) average =
      built (WORDS EP (4) UNITS (optim_grads) "average_in_collective=true", 0);
  uint32_t scatter = find (fused, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_EDP, 0);

  (void) state;
  assert_int_equal (fused->op[scatter].reduce, WEFT_REDUCE_PREMUL);
  assert_int_equal (weft_op_shape (fused, scatter)->dim[1], D);
  assert_int_equal (count_kind (fused, WEFT_OP_SCALE), 0);
  scatter = find (average, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_EDP, 0);
  assert_int_equal (average->op[scatter].reduce, WEFT_REDUCE_AVG);
  for (uint32_t op = 0; op < average->n_op; op++)
    if (average->op[op].kind == WEFT_OP_SCALE) {
      assert_true (has_name (average, op, "scale_experts"));
      assert_int_equal (weft_op_shape (average, op)->dim[2], 4);
    }
}

/* The experts of a layer belong to the unit of the layer, which therefore has two gathers (experts,
 * and the rest of the layer). They follow each other, the first kernel of the layer waits for both,
 * and then the next unit is gathered. */
static void
a_unit_is_gathered_with_its_experts (void **state)
{
  g_autoptr (weft_program) p = built (WORDS EP (4) UNITS (optim_grads_params), 0);
  uint32_t experts = find (p, WEFT_OP_ALL_GATHER, WEFT_GROUP_EDP, 0);
  uint32_t norm = named (p, WEFT_OP_NORM, "norm1", 0);

  (void) state;
  assert_true (comes_after (p, experts, norm));
  assert_int_equal (p->op[experts - 1].kind, WEFT_OP_ALL_GATHER);
  assert_int_equal (p->op[experts - 1].group, WEFT_GROUP_DP);
  assert_int_equal (p->op[experts + 1].kind, WEFT_OP_ALL_GATHER);
  assert_int_equal (p->op[experts + 1].group, WEFT_GROUP_DP);
}

/* Two instances and expert_model_parallel_size = 2: each expert is on four ranks ("holders"), two
 * in each instance. Gradients are reduced over the two holders of an instance, then over the
 * instances. */
static void
instances_share_out_those_who_hold_the_same_experts (void **state)
{
  const uint64_t n = experts_of (2), holders = 2;
  static const char *const strategies_of[] = {
    "use_distributed_optimizer=true ",
    UNITS (optim),
    UNITS (optim_grads),
  };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (strategies_of); i++) {
    g_autofree char *words = g_strconcat (WORDS EP (2) INSTANCES (2), strategies_of[i], NULL);
    g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
    const weft_program *p = plan->role[0];
    uint32_t scatters = i == 2 ? MICROS : 1;
    enum weft_group_kind across = i == 0 ? WEFT_GROUP_INTER : WEFT_GROUP_OUTER;
    uint32_t scatter = find (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_EDP_INTRA, 0);
    assert_int_equal (weft_mesh_group_size (&plan->mesh, WEFT_GROUP_EDP_INTRA), holders);
    assert_int_equal (moved (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_EDP_INTRA), scatters * n);
    assert_int_equal (moved (p, WEFT_OP_ALL_GATHER, WEFT_GROUP_EDP_INTRA), n);
    uint64_t dense = moved (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_INTRA) / scatters / 4;
    assert_int_equal (moved (p, WEFT_OP_ALL_REDUCE, across), dense + n / holders);
    uint32_t sum = 0;
    while (p->op[sum].group != across || elements (p, sum) != n / holders)
      sum++;
    assert_true (comes_after (p, scatter, sum));
  }
}

/* Expert weights are sharded over the two holders of an instance. outer_dp_sharding_strategy =
 * optim shards the optimizer state once more over the two instances, so a rank holds a quarter. */
static void
outer_groups_cut_slices_of_experts_again (void **state)
{
  const uint64_t n = experts_of (2);
  g_autoptr (weft_program) p = built (
      WORDS EP (2) INSTANCES (2) UNITS (optim_grads_params) "outer_dp_sharding_strategy=optim", 0);
  uint64_t dense = moved (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_INTRA) / MICROS / 4;

  (void) state;
  assert_int_equal (kept (p, "expert weights"), 2 * n / 2);
  assert_int_equal (moved (p, WEFT_OP_ALL_GATHER, WEFT_GROUP_OUTER), dense + n / 2);
  assert_int_equal (moved (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_OUTER), dense + n / 2);
  assert_int_equal (kept (p, "exp_avg"), 4 * (dense / 2 + n / 4));
}

/* Ranks 1, 3, 5 and 7 hold the same experts. Of these ranks, those in one optimizer instance must
 * follow each other: the instance of rank 7 has ranks 5 and 7. */
static void
holders_of_one_instance_are_next_to_each_other (void **state)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan (WORDS EP (2) INSTANCES (2) "use_distributed_optimizer=true");
  struct weft_group intra = weft_mesh_group (&plan->mesh, 7, WEFT_GROUP_EDP_INTRA),
                    inter = weft_mesh_group (&plan->mesh, 7, WEFT_GROUP_INTER);

  (void) state;
  assert_int_equal (weft_group_rank (&intra, 0), 5);
  assert_int_equal (weft_group_rank (&intra, 1), 7);
  assert_int_equal (weft_group_rank (&inter, 0), 3);
  assert_int_equal (weft_group_rank (&inter, 1), 7);
}

/* FSDP2: the experts of a layer are a unit of their own inside the layer's unit. In forward they
 * are gathered after the rest of the layer; in backward they are reduced before it. The reduction
 * averages over the two ranks that hold an expert; one kernel divides by 4, which gives the mean
 * over eight replicas. */
static void
fsdp2_has_units_of_experts_inside_layers (void **state)
{
  const uint64_t n = experts_of (4);
  g_autoptr (weft_program) p = built (WORDS EP (4) FSDP2, 0);
  uint32_t first = find (p, WEFT_OP_ALL_GATHER, WEFT_GROUP_EDP, 0),
           scatter = find (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_EDP, 0),
           rest = find (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_DP, 0),
           scale = named (p, WEFT_OP_SCALE, "scale_experts", 0);

  (void) state;
  assert_int_equal (p->op[first].layer, 0);
  assert_true (named (p, WEFT_OP_MATMUL, "proj", 0) < first);
  assert_true (comes_after (p, first, named (p, WEFT_OP_MOE_MATMUL, "expert_fc1", 0)));
  /* The experts of the last layer stay gathered from forward to backward, so they are gathered once
   * per microbatch, those of the other layers twice. */
  assert_int_equal (moved (p, WEFT_OP_ALL_GATHER, WEFT_GROUP_EDP), MICROS * (n + n / LAYERS));
  assert_int_equal (moved (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_EDP), n);
  assert_int_equal (p->op[scatter].layer, LAYERS - 1);
  assert_int_equal (p->op[scatter].reduce, WEFT_REDUCE_AVG);
  assert_true (scatter < rest);
  assert_int_equal (kept (p, "expert weights"), 4 * n / 2);
  assert_int_equal (kept (p, "expert gradients"), 4 * n / 2);
  assert_int_equal (weft_op_shape (p, scale)->dim[0], n / LAYERS / 2);
  assert_int_equal (weft_op_shape (p, scale)->dim[2], 4);
  assert_int_equal (count_kind (p, WEFT_OP_SCALE), LAYERS);
}

/* dp_replicate_size = 2 replicates all parameters except those of experts. Experts are still
 * sharded over all four ranks that hold them, so the norm of their gradients is reduced over all
 * ranks. */
static void
dp_replicate_size_leaves_experts_cut_among_all_holders (void **state)
{
  const uint64_t n = experts_of (2);
  g_autoptr (weft_program) p = built (WORDS EP (2) FSDP2 "dp_replicate_size=2", 0);

  (void) state;
  assert_int_equal (kept (p, "expert weights"), 4 * n / 4);
  assert_int_equal (moved (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_EDP), n);
  assert_int_equal (p->op[named (p, WEFT_OP_ALL_REDUCE, "expert_grad_norm", 0)].group,
                    WEFT_GROUP_WORLD);
  assert_int_equal (p->op[named (p, WEFT_OP_ALL_REDUCE, "grad_norm", 0)].group,
                    WEFT_GROUP_INSTANCE);
}

static void
defer_fsdp_grad_sync_reduces_experts_once (void **state)
{
  g_autoptr (weft_program) p = built (WORDS EP (4) FSDP2 "defer_fsdp_grad_sync=false", 0);

  (void) state;
  assert_int_equal (moved (p, WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_EDP), MICROS * experts_of (4));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (experts_have_the_bits_of_one_rank_under_every_strategy),
  cmocka_unit_test (fast_order_is_close_to_canonical),
  cmocka_unit_test_setup_teardown (checkpoints_resume_into_and_out_of_every_strategy,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test (levels_of_sharding_cut_experts_among_those_who_hold_them),
  cmocka_unit_test (experts_of_one_holder_are_whole_and_meet_nobody),
  cmocka_unit_test (gradients_of_experts_are_divided_by_all_replicas),
  cmocka_unit_test (a_unit_is_gathered_with_its_experts),
  cmocka_unit_test (instances_share_out_those_who_hold_the_same_experts),
  cmocka_unit_test (outer_groups_cut_slices_of_experts_again),
  cmocka_unit_test (holders_of_one_instance_are_next_to_each_other),
  cmocka_unit_test (fsdp2_has_units_of_experts_inside_layers),
  cmocka_unit_test (dp_replicate_size_leaves_experts_cut_among_all_holders),
  cmocka_unit_test (defer_fsdp_grad_sync_reduces_experts_once),
};

WEFT_TESTS (tests, .seconds = 9)
