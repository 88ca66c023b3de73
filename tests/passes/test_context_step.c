/* Context parallelism: results of steps with real numbers, bytes that ranks send, and jobs that are
 * refused. */
#include "core/base/sanitize.h"
#include "exec_cpu/exec_cpu.h"
#include "exec_sim/exec_sim.h"
#include "tests/made/own.h"
#include "tests/made/random_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define STEPS 2

#define SMALL                                                                                      \
  " seq_length=16 global_batch_size=4 hidden_size=32 num_attention_heads=8 num_query_groups=4 "    \
  "kv_channels=8 ffn_hidden_size=96 num_layers=4 "
static const char *const models[] = { "model=gpt2-nano" SMALL,
                                      "model=llama-nano qk_layernorm=true" SMALL };

static const char *const kinds[] = {
  "context_parallel_size=2 cp_comm_type=p2p gpus=2",
  "context_parallel_size=4 cp_comm_type=p2p gpus=4",
  "context_parallel_size=2 cp_comm_type=all_gather gpus=2",
  "context_parallel_size=4 cp_comm_type=all_gather gpus=4",
  "context_parallel_size=2 cp_comm_type=a2a gpus=2",
  "context_parallel_size=4 cp_comm_type=a2a gpus=4",
  "context_parallel_size=4 cp_comm_type=a2a+p2p hierarchical_context_parallel_sizes=2,2 gpus=4",
  "context_parallel_size=2 cp_comm_type=a2a+p2p hierarchical_context_parallel_sizes=1,2 gpus=2",
};

static char *
words_of (const char *model, const char *strategy, const char *more)
{
  return g_strdup_printf ("topology=cpu %s %s %s micro_batch_size=1", model, strategy, more);
}

static struct real_result
run_words (const char *model, const char *strategy, const char *more, struct real_run run)
{
  g_autofree char *words = words_of (model, strategy, more);

  run.words = words;
  run.steps = STEPS;
  return weft_test_run (&run);
}

static void
check (const char *words, const struct real_result *one, struct real_run run)
{
  run.words = words;
  run.steps = STEPS;
  run.poison = TRUE;
  weft_test_check_run (&run, one);
}

static void
every_kind_has_the_bits_of_one_rank (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    struct real_result one = run_words (models[m], "gpus=1", "", (struct real_run){ 0 });
    for (unsigned k = 0; k < G_N_ELEMENTS (kinds); k++) {
      g_autofree char *words = words_of (models[m], kinds[k], "");
      check (words, &one, (struct real_run){ 0 });
    }
  }
}

/* Other parallel axes, data-parallel strategies and recompute. The test combines each with every
 * cp_comm_type on two context parallel ranks. */
static const char *const around[] = {
  "gpus=4",
  "gpus=4 pipeline_model_parallel_size=2",
  "gpus=8 pipeline_model_parallel_size=2 use_distributed_optimizer=true overlap_grad_reduce=true "
  "bucket_size=10000 overlap_param_gather=true",
  "gpus=2 recompute_granularity=full recompute_method=uniform recompute_num_layers=2",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3",
  "gpus=2 global_batch_size=1 use_distributed_optimizer=true",
  "gpus=4 tensor_model_parallel_size=2",
  "gpus=4 tensor_model_parallel_size=2 sequence_parallel=true",
};
static const char *const two_ranks[] = {
  "context_parallel_size=2 cp_comm_type=p2p",
  "context_parallel_size=2 cp_comm_type=all_gather",
  "context_parallel_size=2 cp_comm_type=a2a",
};

static void
whatever_stands_around_the_bits_are_those_of_one_rank (void **state)
{
  static const char *const types[] = { "precision=fp32", "precision=bf16 grad_reduce_in_fp32=true",
                                       "precision=bf16" };
  unsigned n = 0;

  (void) state;
  for (unsigned a = 0; a < G_N_ELEMENTS (around); a++) {
    gboolean single = strstr (around[a], "global_batch_size=1 ") != NULL;
    const char *model = models[a % G_N_ELEMENTS (models)], *type = types[a % G_N_ELEMENTS (types)];
    g_autofree char *alone =
        g_strconcat ("gpus=1 ", type, single ? " global_batch_size=1" : "", NULL);
    struct real_result one = run_words (model, alone, "", (struct real_run){ 0 });
    for (unsigned k = 0; k < G_N_ELEMENTS (two_ranks); k++) {
      g_autofree char *strategy = g_strjoin (" ", around[a], two_ranks[k], NULL);
      g_autofree char *words = words_of (model, strategy, type);
      uint32_t threads = n++ % 4 ? 1 : 2;
      check (words, &one, (struct real_run){ .threads = threads, .stress = n % 3 ? 0 : n });
    }
  }
}

/* Models in which some layers attend only to a window or a chunk of the keys, or have no positions.
 * For these models, too, a step with context parallelism must be bitwise equal to a step on one
 * rank. */
static void
layers_that_see_less_are_shared_out_alike (void **state)
{
  static const struct {
    const char *model, *strategy;
  } table[] = {
    { "sliding_window=5 window_attn_skip_freq=2", "gpus=2 cp_comm_type=all_gather" },
    { "sliding_window=5 no_rope_freq=3", "gpus=2 cp_comm_type=a2a" },
    { "attention_chunk_size=4 window_attn_skip_freq=2 no_rope_freq=2", "gpus=2 cp_comm_type=a2a" },
    { "sliding_window=9", "gpus=4 cp_comm_type=all_gather use_distributed_optimizer=true" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (table); i++) {
    struct real_result all = run_words (models[1], "gpus=1", "", (struct real_run){ 0 });
    struct real_result one =
        run_words (models[1], "gpus=1", table[i].model, (struct real_run){ 0 });
    g_autofree char *more = g_strconcat ("context_parallel_size=2 ", table[i].model, NULL);
    g_autofree char *words = words_of (models[1], table[i].strategy, more);
    assert_true (one.loss[0] != all.loss[0]);
    check (words, &one, (struct real_run){ 0 });
  }
}

static void
experts_of_shared_sequences_have_the_bits_of_one_rank (void **state)
{
  static const char experts[] = "num_moe_experts=4 moe_router_topk=2 moe_ffn_hidden_size=16 "
                                "add_bias_linear=false";

  (void) state;
  struct real_result one = run_words (models[1], "gpus=1", experts, (struct real_run){ 0 });
  for (unsigned k = 0; k < G_N_ELEMENTS (kinds); k += 3) {
    g_autofree char *words = words_of (models[1], kinds[k], experts);
    check (words, &one, (struct real_run){ 0 });
  }
}

static gboolean
is_near (double a, double b)
{
  return fabs (a - b) <= 1e-6 * fabs (b);
}

static void
in_fast_order_every_kind_is_near_one_rank (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    struct real_result one =
        run_words (models[m], "gpus=1", "reduction_order=fast", (struct real_run){ 0 });
    for (unsigned k = 0; k < G_N_ELEMENTS (kinds); k++) {
      struct real_result other = run_words (models[m], kinds[k], "reduction_order=fast",
                                            (struct real_run){ .poison = TRUE });
      for (unsigned i = 0; i < STEPS; i++)
        if (!is_near (other.loss[i], one.loss[i]) || !is_near (other.norm[i], one.norm[i]))
          fail_msg ("%s: loss %.9g, of one rank %.9g; norm %.9g and %.9g", kinds[k], other.loss[i],
                    one.loss[i], other.norm[i], one.norm[i]);
    }
  }
}

/* ------------------------------------------------------------------- ops and bytes */

/* The job of these tests: two layers with 12 heads and 4 key-value groups of width 16, in bf16;
 * microbatches of two sequences of 64 tokens; 8 GPUs per node. Q: bytes of one rank's queries; KV:
 * bytes of its keys and values. */
#define SIZES                                                                                      \
  "topology=dgx-h100 num_layers=2 hidden_size=192 num_attention_heads=12 num_query_groups=4 "      \
  "kv_channels=16 ffn_hidden_size=64 vocab_size=100 seq_length=64 micro_batch_size=2 "             \
  "precision=bf16 "
enum { CP = 4, TOKENS = 2 * 64 / CP, Q = TOKENS * 12 * 16 * 2, KV = 2 * TOKENS * 4 * 16 * 2 };

/* Returns the bytes that a rank sends for context parallelism in one pass (forward or backward) of
 * layer 1. */
static double
sent (const char *kind, enum weft_phase phase)
{
  g_autoptr (weft_plan) plan = weft_test_plan (
      SIZES "gpus=4 global_batch_size=2 context_parallel_size=4 cp_comm_type=%s", kind);
  const weft_program *p = plan->role[0];
  double bytes = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_op *row = &p->op[op];
    if (row->lane != WEFT_LANE_CP || row->layer != 1 || row->phase != phase)
      continue;
    struct weft_group group = weft_mesh_group (&plan->mesh, 0, row->group);
    double whole = weft_op_bytes (p, op), n = weft_group_size (&group);
    bytes += row->kind == WEFT_OP_SHIFT ? whole : whole * (n - 1) / n;
  }
  return bytes;
}

/* The traffic of a layer for context parallelism over c ranks, as in Transformer Engine. p2p: a
 * ring sends KV c - 1 times; in backward it also sends the gradient of KV. all_gather: each rank
 * gathers the KV of all other ranks in both passes, and backward reduce-scatters the gradients.
 * a2a: the all-to-all sends (c - 1) / c of Q, KV and the output, and in backward of their
 * gradients. */
static void
a_layer_sends_what_its_kind_has_to (void **state)
{
  static const struct {
    const char *kind;
    double forward, backward;
  } table[] = {
    { "p2p", (CP - 1) * KV, (CP - 1) * (KV + KV) },
    { "all_gather", (CP - 1) * KV, (CP - 1) * (KV + KV) },
    { "a2a", (Q + KV + Q) * (CP - 1) / CP, (Q + KV + Q) * (CP - 1) / CP },
    { "a2a+p2p hierarchical_context_parallel_sizes=2,2", (Q + KV + Q) / 2 + KV,
      (Q + KV + Q) / 2 + KV + KV },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (table); i++) {
    assert_float_equal (sent (table[i].kind, WEFT_PHASE_FORWARD), table[i].forward, 0);
    assert_float_equal (sent (table[i].kind, WEFT_PHASE_BACKWARD), table[i].backward, 0);
  }
}

static double
attention_flops (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan (SIZES "global_batch_size=2 %s", words);
  const weft_program *p = plan->role[0];
  double flops = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (g_str_has_prefix (weft_op_info[p->op[op].kind].word, "attention"))
      flops += weft_op_flops (p, op);
  return flops;
}

static void
every_kind_shares_out_attention_evenly (void **state)
{
  double whole = attention_flops ("gpus=1");

  (void) state;
  for (unsigned k = 0; k < G_N_ELEMENTS (kinds); k++) {
    uint32_t ranks = strstr (kinds[k], "gpus=4") ? 4 : 2;
    assert_float_equal (attention_flops (kinds[k]) * ranks, whole, whole * 1e-12);
  }
}

/* Attention FLOPs of causal sequences of 64 tokens. A query attends to 32 keys on average. The
 * average is 14 keys with a sliding window of 16, and 8 keys with attention chunks of 16. Forward
 * takes 4 FLOPs per key, head and element of the width, backward twice as many. */
static void
layers_that_see_less_compute_less (void **state)
{
  static const struct {
    const char *words;
    double keys; /* attended keys per query, summed over both layers */
  } table[] = {
    { "gpus=1", 64 },
    { "gpus=1 sliding_window=16", 28 },
    { "gpus=1 sliding_window=16 window_attn_skip_freq=2", 46 },
    { "gpus=1 attention_chunk_size=16", 16 },
    { "gpus=1 sliding_window=64", 64 },
    { "gpus=2 context_parallel_size=2 cp_comm_type=all_gather sliding_window=16", 14 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (table); i++)
    assert_float_equal (attention_flops (table[i].words), 2.0 * 64 * 12 * 16 * 12 * table[i].keys,
                        1);
}

static uint32_t
find (const weft_program *p, enum weft_op_kind kind, const char *name, uint32_t from)
{
  for (uint32_t op = from; op < p->n_op; op++)
    if (p->op[op].kind == kind && strcmp (p->name[p->op[op].name], name) == 0)
      return op;
  return WEFT_NO_OP;
}

/* In a ring, a rank computes attention to one piece of keys while it sends this piece on. Attention
 * to the next piece waits for the transfer. */
static void
a_ring_computes_while_keys_travel (void **state)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan (SIZES "gpus=4 global_batch_size=2 context_parallel_size=4");
  const weft_program *p = plan->role[0];
  g_autofree uint32_t *before = weft_program_order (p);
  uint32_t shift = 0, part = 0;

  (void) state;
  for (int step = 0; step + 1 < CP; step++) {
    shift = find (p, WEFT_OP_SHIFT, "kv", shift + 1);
    part = find (p, WEFT_OP_ATTENTION_PART, "attention", part + 1);
    assert_int_equal (p->op[part].peer, -step);
    assert_false (weft_ordered (p, before, shift, part));
    assert_false (weft_ordered (p, before, part, shift));
    assert_true (
        weft_ordered (p, before, shift, find (p, WEFT_OP_ATTENTION_PART, "attention", part + 1)));
  }
}

/* In backward, the ring sends in the opposite direction. Gradients of keys follow one step behind
 * the keys, so from the second step on both are sent in one launch. */
static void
gradients_of_keys_travel_one_step_behind (void **state)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan (SIZES "gpus=4 global_batch_size=2 context_parallel_size=4 num_layers=1");
  const weft_program *p = plan->role[0];
  uint32_t n[2] = { 0 };

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_op *row = &p->op[op];
    gboolean gradient = row->kind == WEFT_OP_SHIFT && strcmp (p->name[row->name], "dkv") == 0;
    if (row->kind != WEFT_OP_SHIFT || row->phase != WEFT_PHASE_BACKWARD)
      continue;
    assert_int_equal (row->peer, -1);
    assert_int_equal (row->flags & WEFT_OP_GROUPED,
                      gradient && n[1] + 2 < CP ? WEFT_OP_GROUPED : 0);
    n[gradient]++;
  }
  assert_int_equal (n[0], CP - 1);
  assert_int_equal (n[1], CP - 1);
}

/* A ring needs two buffers of keys, whatever the number of ranks. Planned memory must be at most 1
 * % above the live memory. */
static void
a_ring_takes_no_more_memory_than_it_uses (void **state)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan (SIZES "gpus=8 global_batch_size=2 context_parallel_size=8 num_layers=12 "
                            "reduction_order=fast seq_length=1024");

  (void) state;
  assert_true (plan->memory[0].planned[WEFT_POOL_DEVICE] <
               plan->memory[0].live[WEFT_POOL_DEVICE] * 1.01);
}

/* cp_comm_type = a2a+p2p: four neighbouring ranks of a node split the heads by an all-to-all. Each
 * ring consists of the ranks with the same number in these groups. */
static void
two_levels_are_neighbours_and_a_ring_of_them (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (
      SIZES "gpus=16 global_batch_size=4 context_parallel_size=8 cp_comm_type=a2a+p2p "
            "hierarchical_context_parallel_sizes=4,2 reduction_order=fast");
  struct weft_group heads = weft_mesh_group (&plan->mesh, 6, WEFT_GROUP_CP_HEADS),
                    ring = weft_mesh_group (&plan->mesh, 6, WEFT_GROUP_CP_RING);

  (void) state;
  assert_int_equal (weft_group_size (&heads), 4);
  assert_int_equal (weft_group_rank (&heads, 0), 4);
  assert_int_equal (weft_group_rank (&heads, 3), 7);
  assert_int_equal (weft_group_size (&ring), 2);
  assert_int_equal (weft_group_rank (&ring, 0), 2);
  assert_int_equal (weft_group_rank (&ring, 1), 6);
}

/* Compares the activation memory of 2 or 4 context parallel ranks with that of one rank: it must
 * shrink with the rank's part of the sequence. In ring attention, a rank must not keep received
 * keys for the backward pass. */
static void
activations_shrink_with_the_part_of_a_sequence (void **state)
{
  (void) state;
  for (unsigned k = 0; k < 4; k += 2) {
    uint64_t kept[2];
    for (int many = 0; many < 2; many++) {
      g_autoptr (weft_plan) plan =
          weft_test_plan (SIZES "num_layers=8 global_batch_size=2 %s", many ? kinds[k] : "gpus=1");
      kept[many] = plan->memory[0].planned[WEFT_POOL_DEVICE];
      for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
        kept[many] -= plan->memory[0].permanent[WEFT_POOL_DEVICE][kind];
    }
    assert_true (kept[1] < kept[0] * 0.6);
  }
}

static void
a_simulation_of_ranks_that_stand_for_others_is_that_of_all (void **state)
{
  (void) state;
  for (unsigned k = 0; k < G_N_ELEMENTS (kinds); k++) {
    g_autoptr (weft_plan) plan =
        weft_test_plan (SIZES "global_batch_size=16 %s gpus=16 seq_length=1024", kinds[k]);
    g_autoptr (GError) error = NULL;
    struct weft_exec_options all = { .own = made_own (&weft_exec_sim, "unfolded") }, few = { 0 };
    g_autoptr (weft_timeline) a = weft_exec_run (&weft_exec_sim, plan, &all, &error);
    g_autoptr (weft_timeline) b = weft_exec_run (&weft_exec_sim, plan, &few, &error);
    assert_non_null (a);
    assert_non_null (b);
    assert_true (b->n < a->n);
    assert_float_equal (a->seconds, b->seconds, 1e-9 * a->seconds);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_kind_has_the_bits_of_one_rank),
  cmocka_unit_test (whatever_stands_around_the_bits_are_those_of_one_rank),
  cmocka_unit_test (layers_that_see_less_are_shared_out_alike),
  cmocka_unit_test (layers_that_see_less_compute_less),
  cmocka_unit_test (experts_of_shared_sequences_have_the_bits_of_one_rank),
  cmocka_unit_test (in_fast_order_every_kind_is_near_one_rank),
  cmocka_unit_test (a_layer_sends_what_its_kind_has_to),
  cmocka_unit_test (every_kind_shares_out_attention_evenly),
  cmocka_unit_test (a_ring_computes_while_keys_travel),
  cmocka_unit_test (gradients_of_keys_travel_one_step_behind),
  cmocka_unit_test (a_ring_takes_no_more_memory_than_it_uses),
  cmocka_unit_test (two_levels_are_neighbours_and_a_ring_of_them),
  cmocka_unit_test (activations_shrink_with_the_part_of_a_sequence),
  cmocka_unit_test (a_simulation_of_ranks_that_stand_for_others_is_that_of_all),
};

WEFT_TESTS (tests)
