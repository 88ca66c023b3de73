/* What tensor and sequence parallelism add to a program: the collectives of each layer and of
 * embedding and head, with their bytes and their order among kernels, the weights of a rank, and
 * the activations that it keeps for backward. */
#include "tests/made/questions.h"
#include "tests/runner/runner.h"
#include <string.h>

#define MODEL                                                                                      \
  "num_layers=3 hidden_size=64 num_attention_heads=8 num_query_groups=4 kv_channels=8 "            \
  "ffn_hidden_size=96 vocab_size=1000 seq_length=32 activation=swiglu normalization=rmsnorm "
#define TINY MODEL "topology=dgx-h100 precision=bf16 global_batch_size=2 micro_batch_size=2 "
#define TOKENS 64
#define HIDDEN 64
#define A (2.0 * TOKENS * HIDDEN) /* A: bytes of an activation as wide as the residual stream */
#define TP4 "gpus=4 tensor_model_parallel_size=4 "
#define SP TP4 "sequence_parallel=true "

/* Lists the collectives of the tensor parallel group in a layer and phase, in order, as "all_reduce
 * 8192 qkv, ..." (8192: bytes of the whole tensor). The caller frees the text. */
static char *
collectives (const weft_program *p, uint32_t layer, enum weft_phase phase)
{
  GString *text = g_string_new (NULL);

  for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_TP]; i++) {
    uint32_t op = p->lane_ops[WEFT_LANE_TP][i];
    if (p->op[op].layer == layer && p->op[op].phase == phase)
      g_string_append_printf (text, "%s%s %.0f %s", text->len ? ", " : "",
                              weft_op_words[p->op[op].kind], weft_op_bytes (p, op),
                              p->name[p->op[op].name]);
  }
  return g_string_free (text, FALSE);
}

static void
expect (const char *words, uint32_t layer, enum weft_phase phase, const char *wanted)
{
  g_autoptr (weft_program) p = built (words, 0);
  g_autofree char *found = collectives (p, layer, phase);

  if (strcmp (found, wanted))
    fail_msg ("%s, phase %s: found \"%s\", wanted \"%s\"", words, weft_phase_words[phase], found,
              wanted);
}

/* without sequence_parallel, a layer has 2 all-reduces in forward and 2 in backward */
static void
a_layer_reduces_twice_each_way (void **state)
{
  (void) state;
  expect (TINY TP4, 1, WEFT_PHASE_FORWARD, "all_reduce 8192 proj, all_reduce 8192 fc2");
  expect (TINY TP4, 1, WEFT_PHASE_BACKWARD, "all_reduce 8192 fc1, all_reduce 8192 qkv");
}

/* with sequence_parallel, a layer has 2 all-gathers and 2 reduce-scatters in forward, and 4 and 2
 * in backward */
static void
sequence_parallel_gathers_and_scatters (void **state)
{
  (void) state;
  expect (TINY SP, 1, WEFT_PHASE_FORWARD,
          "all_gather 8192 qkv, reduce_scatter 8192 proj, all_gather 8192 fc1, "
          "reduce_scatter 8192 fc2");
  expect (TINY SP, 1, WEFT_PHASE_BACKWARD,
          "all_gather 8192 fc2, all_gather 8192 fc1, reduce_scatter 8192 fc1, "
          "all_gather 8192 proj, all_gather 8192 qkv, reduce_scatter 8192 qkv");
}

/* Full recompute repeats the collectives of the forward pass; recompute of attention repeats none;
 * recompute of the MLP repeats the all-gather of fc1. */
static void
recompute_repeats_collectives_of_what_it_runs (void **state)
{
  static const char full[] =
      TINY SP "recompute_granularity=full recompute_method=uniform recompute_num_layers=1";

  (void) state;
  expect (full, 1, WEFT_PHASE_RECOMPUTE,
          "all_gather 8192 qkv, reduce_scatter 8192 proj, all_gather 8192 fc1, "
          "reduce_scatter 8192 fc2");
  expect (TINY SP "recompute_granularity=selective recompute_modules=core_attn", 1,
          WEFT_PHASE_RECOMPUTE, "");
  expect (TINY SP "recompute_granularity=selective recompute_modules=mlp", 1, WEFT_PHASE_RECOMPUTE,
          "all_gather 8192 fc1");
}

/* Tensor parallel collectives of embedding, head and loss. An fp32 number for each of 64 tokens
 * makes 256 bytes. */
static void
the_ends_reduce_words_and_the_loss (void **state)
{
  (void) state;
  expect (TINY TP4, WEFT_NO_LAYER, WEFT_PHASE_FORWARD,
          "all_reduce 8192 embedding, all_reduce 256 largest_logit, all_reduce 256 target_logit, "
          "all_reduce 256 sum_exp");
  expect (TINY TP4, WEFT_NO_LAYER, WEFT_PHASE_BACKWARD, "all_reduce 8192 head");
  expect (TINY SP "cross_entropy_loss_fusion=true", WEFT_NO_LAYER, WEFT_PHASE_FORWARD,
          "reduce_scatter 8192 embedding, all_gather 8192 head, all_reduce 256 largest_logit, "
          "all_reduce 512 loss_parts");
  expect (TINY SP "cross_entropy_loss_fusion=true cross_entropy_fusion_impl=te", WEFT_NO_LAYER,
          WEFT_PHASE_FORWARD,
          "reduce_scatter 8192 embedding, all_gather 8192 head, all_gather 3072 loss_parts");
  expect (TINY SP, WEFT_NO_LAYER, WEFT_PHASE_BACKWARD,
          "all_gather 8192 head, reduce_scatter 8192 head, all_gather 8192 embedding");
  expect (TINY SP "position_embedding_type=learned", WEFT_NO_LAYER, WEFT_PHASE_FORWARD,
          "all_reduce 8192 embedding, all_gather 8192 head, all_reduce 256 largest_logit, "
          "all_reduce 256 target_logit, all_reduce 256 sum_exp");
}

/* Returns the op of layer 1 with this kind, phase and name. The test fails if there is none. */
static uint32_t
find (const weft_program *p, enum weft_op_kind kind, enum weft_phase phase, const char *name)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && p->op[op].layer == 1 && p->op[op].phase == phase &&
        is_named (p, op, name))
      return op;
  fail_msg ("no %s %s", weft_op_words[kind], name);
  return WEFT_NO_OP;
}

/* Whether neither of two ops depends on the other, so that both may run at once. */
static gboolean
run_beside (const weft_program *p, uint32_t a, uint32_t b)
{
  return !comes_after (p, a, b) && !comes_after (p, b, a);
}

static void
input_gradients_are_reduced_beside_weight_gradients (void **state)
{
  g_autoptr (weft_program) p = built (TINY TP4, 0);
  g_autoptr (weft_program) q = built (TINY SP, 0);
  enum weft_phase B = WEFT_PHASE_BACKWARD;

  (void) state;
  for (int i = 0; i < 2; i++) {
    const char *map = i ? "qkv" : "fc1", *norm = i ? "norm1" : "norm2";
    uint32_t reduce = find (p, WEFT_OP_ALL_REDUCE, B, map);
    assert_true (comes_after (p, find (p, WEFT_OP_MATMUL_DGRAD, B, map), reduce));
    assert_true (run_beside (p, find (p, WEFT_OP_MATMUL_WGRAD, B, map), reduce));
    assert_true (comes_after (p, reduce, find (p, WEFT_OP_NORM_BWD, B, norm)));

    uint32_t gather = find (q, WEFT_OP_ALL_GATHER, B, map);
    uint32_t scatter = find (q, WEFT_OP_REDUCE_SCATTER, B, map);
    assert_true (run_beside (q, find (q, WEFT_OP_MATMUL_DGRAD, B, map), gather));
    assert_true (comes_after (q, gather, find (q, WEFT_OP_MATMUL_WGRAD, B, map)));
    assert_true (comes_after (q, find (q, WEFT_OP_MATMUL_DGRAD, B, map), scatter));
    assert_true (run_beside (q, find (q, WEFT_OP_MATMUL_WGRAD, B, map), scatter));
  }
}

/* Software without this overlap reduces an input gradient when the weight gradient is computed, and
 * backward goes on after the reduction. */
static void
software_without_the_overlap_reduces_input_gradients_later (void **state)
{
  static const char *const layouts[] = { TINY TP4, TINY SP };
  static const enum weft_op_kind reductions[] = { WEFT_OP_ALL_REDUCE, WEFT_OP_REDUCE_SCATTER };
  enum weft_phase B = WEFT_PHASE_BACKWARD;

  (void) state;
  for (int i = 0; i < 4; i++) {
    const char *map = i / 2 ? "qkv" : "fc1", *norm = i / 2 ? "norm1" : "norm2";
    g_autofree char *words = g_strconcat (layouts[i % 2], "reduces_beside_wgrad=0", NULL);
    g_autoptr (weft_program) p = built (words, 0);
    uint32_t reduce = find (p, reductions[i % 2], B, map);
    assert_true (comes_after (p, find (p, WEFT_OP_MATMUL_WGRAD, B, map), reduce));
    assert_true (comes_after (p, reduce, find (p, WEFT_OP_NORM_BWD, B, norm)));
  }
}

/* Collectives of tp_comm_overlap have buffers of their own, so they overlap in all software. */
static void
bulk_overlap_does_not_ask_the_software (void **state)
{
  g_autoptr (weft_program) p =
      built (TINY SP "tp_comm_overlap=true tp_comm_overlap_rs_dgrad=false reduces_beside_wgrad=0",
             0);
  enum weft_phase B = WEFT_PHASE_BACKWARD;

  (void) state;
  assert_true (run_beside (p, find (p, WEFT_OP_MATMUL_WGRAD, B, "qkv"),
                           find (p, WEFT_OP_REDUCE_SCATTER, B, "qkv")));
}

/* ---------------------------------------------------------------------------- tensors */

static const struct weft_param *
param (const weft_program *p, const char *name)
{
  for (uint32_t i = 0; i < p->n_param; i++)
    if (g_str_equal (p->name[p->param[i].name], name))
      return &p->param[i];
  fail_msg ("no %s", name);
  return NULL;
}

static void
expect_part (const weft_program *p, const char *name, uint64_t rows, uint64_t columns,
             uint64_t whole_rows, uint64_t whole_columns)
{
  const struct weft_param *found = param (p, name);

  if (found->rows != rows || found->columns != columns || found->whole_rows != whole_rows ||
      found->whole_columns != whole_columns)
    fail_msg ("%s: found %u x %u of %u x %u", name, (unsigned) found->rows,
              (unsigned) found->columns, (unsigned) found->whole_rows,
              (unsigned) found->whole_columns);
}

static void
a_rank_holds_a_fourth_of_every_matrix (void **state)
{
  g_autoptr (weft_program) p = built (TINY TP4 "add_qkv_bias=true add_bias_linear=true", 0);

  (void) state;
  expect_part (p, "qkv.weight", 32, 64, 128, 64);
  expect_part (p, "qkv.bias", 32, 1, 128, 1);
  expect_part (p, "proj.weight", 64, 16, 64, 64);
  expect_part (p, "proj.bias", 64, 1, 64, 1);
  expect_part (p, "fc1.weight", 48, 64, 192, 64);
  expect_part (p, "fc2.weight", 64, 24, 64, 96);
  expect_part (p, "norm1.weight", 64, 1, 64, 1);
  /* the vocabulary of 1000 is padded to 1024, a multiple of 128 * 4 ranks, and split over the
   * ranks */
  expect_part (p, "embedding.weight", 256, 64, 1000, 64);
}

static void
a_vocabulary_is_padded_as_asked (void **state)
{
  g_autoptr (weft_program) p = built (TINY TP4 "make_vocab_size_divisible_by=10", 0);
  g_autoptr (weft_program) one = built (TINY "gpus=1 make_vocab_size_divisible_by=300", 0);
  g_autoptr (weft_program) plain = built (TINY "gpus=1", 0);
  g_autoptr (weft_program) order = built (TINY TP4 "reduction_order=canonical vocab_size=1001", 0);

  (void) state;
  expect_part (p, "head.weight", 250, 64, 1000, 64);
  expect_part (one, "head.weight", 1200, 64, 1000, 64);
  expect_part (plain, "head.weight", 1000, 64, 1000, 64);
  expect_part (order, "head.weight", 252, 64, 1001, 64);
}

/* With sequence_parallel, norms read only part of the tokens, so their gradients are summed over
 * tensor parallel ranks, in one launch per step: two norms in each of three layers, and the final
 * norm. Without sequence_parallel, only the gradients of q and k norms (whose heads are split) are
 * summed. */
static void
gradients_of_norms_are_joined_once_a_step (void **state)
{
  static const struct {
    const char *words;
    uint32_t n;
    uint64_t elements;
  } cases[] = { { TINY TP4, 0, 0 },
                { TINY SP, 7, 7 * HIDDEN },
                { TINY TP4 "qk_layernorm=true", 6, 6 * 8 },
                { TINY SP "qk_layernorm=true", 13, 7 * HIDDEN + 6 * 8 } };

  (void) state;
  for (unsigned c = 0; c < G_N_ELEMENTS (cases); c++) {
    g_autoptr (weft_program) p = built (cases[c].words, 0);
    uint32_t n = 0, launches = 0;
    uint64_t sum = 0;
    for (uint32_t op = 0; op < p->n_op; op++) {
      if (!is_named (p, op, "shared_gradient"))
        continue;
      assert_int_equal (p->op[op].phase, WEFT_PHASE_FINALIZE);
      launches += !(p->op[op].flags & WEFT_OP_GROUPED);
      sum += elements (p, op);
      n++;
    }
    assert_int_equal (n, cases[c].n);
    assert_int_equal (sum, cases[c].elements);
    assert_int_equal (launches, n > 0);
  }
}

/* -------------------------------------------------------------------------- activations */

/* Returns the bytes of activations that layer 1 keeps from forward to backward. */
static uint64_t
kept (const char *words)
{
  g_autoptr (weft_program) p = built (words, 0);
  uint32_t last = 0;
  uint64_t bytes = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].phase == WEFT_PHASE_FORWARD)
      last = op;
  for (uint32_t b = 0; b < p->n_buf; b++)
    if (p->buf[b].kind == WEFT_BUF_ACTIVATIONS && p->buf[b].layer == 1 && p->buf[b].first < last &&
        p->buf[b].last > last && p->buf[b].base == WEFT_NO_BUF)
      bytes += p->buf[b].bytes;
  return bytes;
}

/* x = s b h elements; SwiGLU of width f; flash attention. Inputs of the residual blocks, outputs of
 * norms and inputs of the column-parallel layers have 8 x bytes. They are whole on every rank
 * unless sequence_parallel splits them. All other activations are split over the ranks. */
static void
activations_of_a_layer_are_those_of_the_formulas (void **state)
{
  const uint64_t x = TOKENS * HIDDEN, f = 96, lse = 4 * 8 * TOKENS;
  const uint64_t heads = 2 * x + 2 * x + 4 * x / 2, mlp = 6 * x * f / HIDDEN;

  (void) state;
  assert_int_equal (kept (TINY "gpus=1"), 8 * x + heads + mlp + lse);
  assert_int_equal (kept (TINY TP4), 8 * x + (heads + mlp + lse) / 4);
  assert_int_equal (kept (TINY SP), (8 * x + heads + mlp + lse) / 4);
  assert_int_equal (kept (TINY SP "recompute_granularity=full recompute_method=uniform "
                                  "recompute_num_layers=1"),
                    2 * x / 4);
}

static void
stages_send_rows_of_the_residual_stream (void **state)
{
  (void) state;
  for (int sp = 0; sp < 2; sp++) {
    g_autofree char *words =
        g_strdup_printf (TINY "num_layers=2 gpus=8 tensor_model_parallel_size=4 "
                              "pipeline_model_parallel_size=2 sequence_parallel=%s",
                         sp ? "true" : "false");
    g_autoptr (weft_program) p = built (words, 0);
    for (uint32_t op = 0; op < p->n_op; op++)
      if (p->op[op].kind == WEFT_OP_SEND || p->op[op].kind == WEFT_OP_RECV)
        assert_int_equal (weft_op_bytes (p, op), sp ? A / 4 : A);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_layer_reduces_twice_each_way),
  cmocka_unit_test (sequence_parallel_gathers_and_scatters),
  cmocka_unit_test (recompute_repeats_collectives_of_what_it_runs),
  cmocka_unit_test (the_ends_reduce_words_and_the_loss),
  cmocka_unit_test (input_gradients_are_reduced_beside_weight_gradients),
  cmocka_unit_test (software_without_the_overlap_reduces_input_gradients_later),
  cmocka_unit_test (bulk_overlap_does_not_ask_the_software),
  cmocka_unit_test (a_rank_holds_a_fourth_of_every_matrix),
  cmocka_unit_test (a_vocabulary_is_padded_as_asked),
  cmocka_unit_test (gradients_of_norms_are_joined_once_a_step),
  cmocka_unit_test (activations_of_a_layer_are_those_of_the_formulas),
  cmocka_unit_test (stages_send_rows_of_the_residual_stream),
};

WEFT_TESTS (tests)
