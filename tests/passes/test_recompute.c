/* Selective recompute and activation_checkpointing: which kernels run twice, and which activations
 * stay alive from a forward pass to its backward pass. */
#include "core/plan/activations.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

#define LAYERS 4
#define MODEL                                                                                      \
  "num_layers=4 hidden_size=64 num_attention_heads=4 ffn_hidden_size=256 vocab_size=512 "          \
  "seq_length=64 topology=dgx-h100 precision=bf16 gpus=2 global_batch_size=4 "                     \
  "fused_add_norm=0 fused_gelu=0 "
#define SELECTIVE MODEL "recompute_granularity=selective "
#define TOKENS 64
#define X (2 * TOKENS * 64) /* X: bytes of an activation as wide as the residual stream */
#define U (2 * TOKENS * 256)

/* Lists the names of the recomputed kernels of a layer and microbatch, in order, such as "norm2 fc1
 * gelu". The caller frees the text. */
static char *
again (const weft_program *p, uint32_t layer, uint32_t micro)
{
  GString *names = g_string_new (NULL);

  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_op *row = &p->op[op];
    gboolean flagged = (row->flags & WEFT_OP_RECOMPUTE) != 0;
    if (row->lane != WEFT_LANE_GPU || row->layer != layer || row->micro != micro)
      continue;
    assert_int_equal (flagged, row->phase == WEFT_PHASE_RECOMPUTE);
    if (flagged)
      g_string_append_printf (names, "%s%s", names->len ? " " : "", p->name[row->name]);
  }
  return g_string_free (names, FALSE);
}

static void
check (const char *words, const char *wanted_again, uint64_t wanted_kept)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  const weft_program *p = plan->role[0];

  for (uint32_t layer = 0; layer < LAYERS; layer++)
    for (uint32_t micro = 0; micro < 2; micro++) {
      g_autofree char *found = again (p, layer, micro);
      assert_string_equal (found, wanted_again);
      /* The output of the last layer is kept for the final norm, and counts as an activation of
       * that layer. */
      assert_true (weft_activations_kept (p, layer, micro) == (double) wanted_kept);
    }
}

/* Activations that a layer keeps without recompute: norm1, qkv (3 X), attention output,
 * log-sum-exp, residual sum, norm2, fc1, activation, and the layer's output, which is the input of
 * the next layer. */
#define LSE (4 * TOKENS * 4)
#define ALL (X + 3 * X + X + LSE + X + X + U + U + X)

static void
recompute_modules_say_what_is_run_again_and_no_longer_kept (void **state)
{
  (void) state;
  check (MODEL, "", ALL);
  check (SELECTIVE, "", ALL);
  check (SELECTIVE "recompute_modules=core_attn", "", ALL);
  check (SELECTIVE "recompute_modules=mlp", "norm2 fc1 gelu", ALL - X - 2 * U);
  check (SELECTIVE "recompute_modules=layernorm", "norm2 norm1", ALL - 2 * X);
  check (SELECTIVE "recompute_modules=mlp,layernorm", "norm2 fc1 gelu norm1", ALL - 2 * X - 2 * U);
}

/* A layer of experts: two of E = 4 experts of width 96 per token, and a shared expert of width 32.
 * One rank has all experts, so the kernels that reorder rows for other ranks are absent. */
#define EXPERTS                                                                                    \
  SELECTIVE "num_moe_experts=4 moe_router_topk=2 moe_ffn_hidden_size=96 activation=swiglu "        \
            "moe_shared_expert_intermediate_size=32 recompute_modules="
#define ROWS (2 * TOKENS * 2)
/* router scores in fp32; for each token the chosen experts and row numbers; row counts of the
 * experts */
#define ROUTED (4 * TOKENS * 4 + 2 * 4 * TOKENS * 2 + 8 * 4)
/* one row per token and chosen expert, of 64 elements, with its routing weight */
#define TAKEN (ROWS * (64 + 1))
#define SHARED (2 * TOKENS * 3 * 32)
#define MIXED (ALL - 2 * U + ROUTED + TAKEN + ROWS * 3 * 96 + SHARED)

static void
modules_of_experts_are_run_again (void **state)
{
  static const char layer[] = "router route sort dispatch dispatch_prob expert_fc1 expert_act "
                              "expert_fc2 shared_fc1 swiglu shared_fc2 combine shared";
  g_autofree char *normed = g_strconcat ("norm2 ", layer, " norm1", NULL);

  (void) state;
  check (EXPERTS "core_attn", "", MIXED);
  check (EXPERTS "moe_act", "expert_act", MIXED - ROWS * 96);
  check (EXPERTS "shared_experts", "shared_fc1 swiglu shared_fc2", MIXED - SHARED);
  check (EXPERTS "moe_act,shared_experts,layernorm",
         "expert_act norm2 shared_fc1 swiglu shared_fc2 norm1", MIXED - ROWS * 96 - SHARED - 2 * X);
  check (EXPERTS "moe", layer, ALL - 2 * U);
  check (EXPERTS "moe,moe_act,shared_experts", layer, ALL - 2 * U);
  check (EXPERTS "moe,layernorm", normed, ALL - 2 * U - 2 * X);
}

/* Latent attention: 4 heads; keys have width 24 + 8 (without and with positions), values 16;
 * latents of width 48 (queries) and 32 (keys and values). */
#define LATENT                                                                                     \
  SELECTIVE "q_lora_rank=48 kv_lora_rank=32 qk_head_dim=24 qk_pos_emb_head_dim=8 v_head_dim=16 "   \
            "kv_channels=32 position_embedding_type=rope recompute_modules="
#define QKV (2 * TOKENS * 4 * (2 * 32 + 16))
#define LATENTS (2 * TOKENS * (2 * 48 + 2 * 32))

static void
projections_of_latents_are_run_again (void **state)
{
  const uint64_t kept = ALL - 3 * X + QKV + LATENTS;

  (void) state;
  check (LATENT "core_attn", "", kept);
  check (LATENT "mla_up_proj", "q_up kv_up qkv_join", kept - QKV + 2 * TOKENS * 8);
  check (LATENT "mla_up_proj,layernorm", "norm2 norm1 q_up kv_up qkv_join",
         kept - QKV + 2 * TOKENS * 8 - 2 * X);
}

/* Unfused attention keeps the probabilities (SQUARE bytes), which softmax writes over the
 * scores. */
#define SQUARE (2 * TOKENS * TOKENS * 4)
#define UNFUSED "attention_backend=unfused "

static void
core_attention_is_run_again_where_its_probabilities_would_be_kept (void **state)
{
  const uint64_t plain = ALL - LSE;

  (void) state;
  check (MODEL UNFUSED, "", plain + SQUARE);
  check (SELECTIVE UNFUSED, "scores softmax", plain);
  check (MODEL UNFUSED "attention_dropout=0.1", "", plain + 2 * SQUARE + SQUARE / 2);
  check (SELECTIVE UNFUSED "attention_dropout=0.1", "scores softmax dropout", plain);
  check (SELECTIVE UNFUSED "recompute_modules=core_attn,mlp", "norm2 fc1 gelu scores softmax",
         plain - X - 2 * U);
  /* hidden_dropout keeps two masks, after attention and after the MLP, of X / 2 bytes each */
  check (MODEL "hidden_dropout=0.1", "", ALL + X);
}

/* Returns which microbatches recompute a layer: r for recomputed or a dot, for each microbatch,
 * such as "..rr..rr". The caller frees the text. */
static char *
run_again (const weft_program *p, uint32_t layer, uint32_t n_micro)
{
  GString *marks = g_string_new (NULL);

  for (uint32_t micro = 0; micro < n_micro; micro++) {
    g_autofree char *names = again (p, layer, micro);
    g_string_append_c (marks, *names ? 'r' : '.');
  }
  return g_string_free (marks, FALSE);
}

/* num_microbatches_with_partial_activation_checkpoints = k: of each window of microbatches, the
 * first k are not recomputed. A window has as many microbatches as the stage keeps in flight: 4, 3,
 * 2 and 1. */
static void
some_microbatches_of_each_window_are_not_recomputed (void **state)
{
  static const char *const wanted[][4] = {
    { "rrrrrrrr", "rrrrrrrr", "rrrrrrrr", "rrrrrrrr" },
    { ".rrr.rrr", ".rr.rr.r", ".r.r.r.r", "........" },
    { "..rr..rr", "..r..r..", "........", "........" },
  };

  (void) state;
  for (uint32_t k = 0; k < G_N_ELEMENTS (wanted); k++) {
    g_autoptr (weft_plan) plan = weft_test_plan (
        MODEL "gpus=4 pipeline_model_parallel_size=4 global_batch_size=8 "
              "recompute_granularity=full recompute_method=uniform recompute_num_layers=1 "
              "num_microbatches_with_partial_activation_checkpoints=%u",
        k);
    for (uint32_t stage = 0; stage < 4; stage++) {
      g_autofree char *found = run_again (plan->role[stage], stage, 8);
      assert_string_equal (found, wanted[k][stage]);
    }
  }
}

/* With recompute_modules, partly recomputed microbatches recompute these modules. With virtual
 * stages, the window counts passes of all chunks: the first of four ranks with two chunks has
 * eleven passes in flight. Of its sixteen forward passes, numbers 0, 1, 11 and 12 are partly
 * recomputed: microbatches 0, 1 and 7 of the first chunk and 4 of the second. */
static void
partly_recomputed_microbatches_have_modules_and_chunks (void **state)
{
  static const char *const wanted[2] = { "pprrrrrp", "rrrrprrr" };
  g_autoptr (weft_plan) plan = weft_test_plan (
      MODEL "num_layers=8 gpus=4 pipeline_model_parallel_size=4 "
            "virtual_pipeline_model_parallel_size=2 global_batch_size=8 "
            "recompute_granularity=full recompute_method=uniform recompute_num_layers=1 "
            "recompute_modules=layernorm num_microbatches_with_partial_activation_checkpoints=2");

  (void) state;
  for (uint32_t chunk = 0; chunk < 2; chunk++)
    for (uint32_t micro = 0; micro < 8; micro++) {
      g_autofree char *found = again (plan->role[0], 4 * chunk, micro);
      gboolean partial = g_str_equal (found, "norm2 norm1");
      if (partial != (wanted[chunk][micro] == 'p'))
        fail_msg ("chunk %u, microbatch %u: %s", chunk, micro, found);
    }
}

static void
recompute_granularity_full_and_none_are_what_they_were (void **state)
{
  static const char whole[] =
      "norm1 qkv rope attention proj residual1 norm2 fc1 gelu fc2 residual2";

  (void) state;
  check (MODEL "recompute_granularity=full recompute_method=uniform recompute_num_layers=1", whole,
         X);
}

static void
activation_checkpointing_is_full_recompute_of_each_layer (void **state)
{
  g_autoptr (weft_plan) a = weft_test_plan (MODEL "activation_checkpointing=true");
  g_autoptr (weft_plan) b = weft_test_plan (
      MODEL "recompute_granularity=full recompute_method=uniform recompute_num_layers=1");
  g_autofree char *one = weft_program_print (a->role[0]), *other = weft_program_print (b->role[0]);

  (void) state;
  assert_string_equal (one, other);
}

/* With sharded weights, activation_checkpointing recomputes the MLP. The recomputation and the
 * backward pass use one gather, so the number of gathers stays the same. */
static void
activation_checkpointing_of_units_is_that_of_the_mlp (void **state)
{
  static const char units[] = MODEL "use_megatron_fsdp=true zero_dp_strategy=3 ";
  g_autoptr (weft_plan) plain = weft_test_plan ("%s", units);
  g_autoptr (weft_plan) plan = weft_test_plan ("%sactivation_checkpointing=true", units);
  uint32_t gathers[2] = { 0 };

  (void) state;
  for (int i = 0; i < 2; i++) {
    const weft_program *p = (i ? plan : plain)->role[0];
    for (uint32_t op = 0; op < p->n_op; op++)
      gathers[i] += p->op[op].kind == WEFT_OP_ALL_GATHER;
  }
  assert_int_equal (gathers[0], gathers[1]);
  g_autofree char *found = again (plan->role[0], 1, 0);
  assert_string_equal (found, "norm2 fc1 gelu");
}

/* No recompute, recompute of the MLP, full recompute: in this order, a job keeps less memory and
 * takes more time. */
static void
recompute_trades_memory_for_time (void **state)
{
  static const char wide[] =
      MODEL "hidden_size=2048 num_attention_heads=16 ffn_hidden_size=8192 seq_length=2048 ";
  g_autoptr (weft_plan) none = weft_test_plan ("%s", wide);
  g_autoptr (weft_plan) mlp =
      weft_test_plan ("%srecompute_granularity=selective recompute_modules=mlp", wide);
  g_autoptr (weft_plan) full = weft_test_plan ("%sactivation_checkpointing=true", wide);
  const weft_plan *plans[] = { none, mlp, full };
  double seconds[3];

  (void) state;
  for (int i = 0; i < 3; i++) {
    g_autoptr (weft_timeline) t = made_run (plans[i]);
    seconds[i] = t->seconds;
  }
  assert_true (seconds[0] < seconds[1] && seconds[1] < seconds[2]);
  assert_true (none->memory[0].live[WEFT_POOL_DEVICE] > mlp->memory[0].live[WEFT_POOL_DEVICE]);
  assert_true (mlp->memory[0].live[WEFT_POOL_DEVICE] > full->memory[0].live[WEFT_POOL_DEVICE]);
}

static void
recompute_of_experts_trades_memory_for_time (void **state)
{
  static const char *const modules[] = { "core_attn", "moe_act", "moe" };
  double seconds[3];
  uint64_t live[3];

  (void) state;
  for (int i = 0; i < 3; i++) {
    g_autoptr (weft_plan) plan = weft_test_plan (
        EXPERTS "%s hidden_size=2048 num_attention_heads=16 moe_ffn_hidden_size=1024 "
                "seq_length=2048 gpus=8 expert_model_parallel_size=2 global_batch_size=16",
        modules[i]);
    g_autoptr (weft_timeline) t = made_run (plan);
    seconds[i] = t->seconds;
    live[i] = plan->memory[0].live[WEFT_POOL_DEVICE];
  }
  assert_true (seconds[0] < seconds[1] && seconds[1] < seconds[2]);
  assert_true (live[0] > live[1] && live[1] > live[2]);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (recompute_modules_say_what_is_run_again_and_no_longer_kept),
  cmocka_unit_test (modules_of_experts_are_run_again),
  cmocka_unit_test (projections_of_latents_are_run_again),
  cmocka_unit_test (core_attention_is_run_again_where_its_probabilities_would_be_kept),
  cmocka_unit_test (some_microbatches_of_each_window_are_not_recomputed),
  cmocka_unit_test (partly_recomputed_microbatches_have_modules_and_chunks),
  cmocka_unit_test (recompute_granularity_full_and_none_are_what_they_were),
  cmocka_unit_test (activation_checkpointing_is_full_recompute_of_each_layer),
  cmocka_unit_test (activation_checkpointing_of_units_is_that_of_the_mlp),
  cmocka_unit_test (recompute_trades_memory_for_time),
  cmocka_unit_test (recompute_of_experts_trades_memory_for_time),
};

WEFT_TESTS (tests)
