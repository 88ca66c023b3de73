/* Ops that multiply each row by one number: the routing weight (moe_weigh) or, for shared experts,
 * the logistic function of a logit (shared gate). The tests compare the kernels with references and
 * finite differences, and check the bytes that programs keep and move. Training on several ranks
 * must give bit for bit the results of training on one rank. */
#include "core/base/sanitize.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define N_TRIAL 60
#define STEPS 2

/* --------------------------------------------------------------------------- kernels */

enum array { X, BY, DY, Y, DX, DBY, N_ARRAY };

/* Operands of a gating op (a product of rows with one number each) and of its backward op. Only the
 * first `used` of `rows` rows contain tokens; the other rows are padding. */
struct gate {
  gboolean logistic;
  uint64_t rows, used, columns;
  int64_t counts[3];
  enum weft_dtype dtype;
  double *value[N_ARRAY]; /* inputs and results in fp64, for the reference */
  void *stored[N_ARRAY];
};

static uint64_t
extent (const struct gate *g, enum array a)
{
  return g->rows * (a == BY || a == DBY ? 1 : g->columns);
}

static void
gate_open (GRand *rand, struct gate *g, gboolean logistic, enum weft_dtype dtype)
{
  *g = (struct gate){ .logistic = logistic, .dtype = dtype };
  g->columns = (uint64_t) g_rand_int_range (rand, 1, 1200);
  for (int i = 0; i < 3; i++)
    g->used += (uint64_t) (g->counts[i] = g_rand_int_range (rand, 0, 20));
  g->rows = g->used + (logistic ? 0 : 3);
  for (int a = 0; a < N_ARRAY; a++) {
    uint64_t n = extent (g, a);
    g->value[a] = g_new0 (double, n + 1);
    g->stored[a] = g_new0 (double, n + 1);
    for (uint64_t i = 0; i < n; i++) {
      float drawn = (float) g_rand_double_range (rand, -2, 2), room;
      weft_store (g->stored[a], dtype, i, 1, &drawn);
      g->value[a][i] = (double) *weft_floats (g->stored[a], dtype, i, 1, &room);
    }
  }
}

static void
gate_close (struct gate *g)
{
  for (int a = 0; a < N_ARRAY; a++) {
    g_free (g->value[a]);
    g_free (g->stored[a]);
  }
}

static void
gate_run (struct gate *g, gboolean backward, gboolean reference, uint32_t parts)
{
  static const enum weft_op_kind kinds[2][2] = { { WEFT_OP_MOE_WEIGH, WEFT_OP_MOE_WEIGH_BWD },
                                                 { WEFT_OP_GATE, WEFT_OP_GATE_BWD } };
  static const int forward_of[] = { X, BY, Y }, backward_of[] = { X, BY, DY, DX, DBY };
  struct weft_kernel k = { .kind = kinds[g->logistic][backward],
                           .shape = { .dim = { g->rows, g->columns, 3 } } };
  uint32_t next = 0;

  for (unsigned i = 0; i < (backward ? 5 : 3); i++) {
    int a = backward ? backward_of[i] : forward_of[i];
    if (i == 2 && !g->logistic)
      k.operand[next++] = (struct weft_operand){ .data = g->counts, .n = 3, .dtype = WEFT_INT64 };
    k.operand[next++] = (struct weft_operand){
      .data = reference ? (void *) g->value[a] : g->stored[a], .n = extent (g, a), .dtype = g->dtype
    };
  }
  if (reference)
    weft_kernels[k.kind].reference (&k);
  for (uint32_t part = parts; !reference && part-- > 0;)
    weft_kernels[k.kind].cpu (&k, part, parts);
}

static void
compare (const struct gate *g, enum array a, double tolerance)
{
  uint64_t n = extent (g, a) / MAX (1, g->rows) * g->used;
  double scale = 1;

  for (uint64_t i = 0; i < n; i++)
    scale = fmax (scale, fabs (g->value[a][i]));
  for (uint64_t i = 0; i < n; i++) {
    float room, found = *weft_floats (g->stored[a], g->dtype, i, 1, &room);
    if (!(fabs ((double) found - g->value[a][i]) <= tolerance * scale))
      fail_msg ("array %d, element %" PRIu64 ": found %.9g, wanted %.9g", a, i, (double) found,
                g->value[a][i]);
  }
}

static void
gates_do_what_their_references_do (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (1);

  (void) state;
  for (int trial = 0; trial < N_TRIAL; trial++) {
    struct gate g;
    gboolean bf16 = trial % 3 == 0;
    gate_open (rand, &g, trial % 2, bf16 ? WEFT_BF16 : WEFT_FP32);
    for (int way = 0; way < 2; way++) {
      gate_run (&g, way, TRUE, 1);
      gate_run (&g, way, FALSE, 1 + (uint32_t) trial % 5);
    }
    compare (&g, Y, bf16 ? 8e-3 : 1e-6);
    compare (&g, DX, bf16 ? 8e-3 : 1e-6);
    compare (&g, DBY, bf16 ? 8e-3 : 1e-5);
    gate_close (&g);
  }
}

static void
parts_have_the_bits_of_the_whole (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (2);

  (void) state;
  for (int trial = 0; trial < N_TRIAL; trial++) {
    struct gate g;
    gate_open (rand, &g, trial % 2, WEFT_BF16);
    for (int way = 0; way < 2; way++) {
      enum array of = way ? DBY : Y;
      gate_run (&g, way, FALSE, 1);
      g_autofree void *whole = g_memdup2 (g.stored[of], extent (&g, of) * 2);
      gate_run (&g, way, FALSE, 2 + (uint32_t) trial % 6);
      assert_memory_equal (whole, g.stored[of], extent (&g, of) * 2);
    }
    gate_close (&g);
  }
}

/* The loss for finite differences: the sum of Y * DY. Its gradient with respect to Y is DY. The
 * kernel's DX and DBY must therefore be the derivatives of this loss. */
static double
loss_of (struct gate *g)
{
  double sum = 0;

  gate_run (g, FALSE, TRUE, 1);
  for (uint64_t i = 0; i < g->used * g->columns; i++)
    sum += g->value[Y][i] * g->value[DY][i];
  return sum;
}

static void
check_slope (struct gate *g, enum array of, enum array gradient, uint64_t i)
{
  const double step = 1e-5;
  double *at = &g->value[of][i], value = *at;

  *at = value + step;
  double above = loss_of (g);
  *at = value - step;
  double below = loss_of (g);
  *at = value;
  double found = (above - below) / (2 * step), given = g->value[gradient][i];
  if (!(fabs (found - given) <= 1e-6 * fmax (1, fabs (given))))
    fail_msg ("gradient %.12g, slope %.12g", given, found);
}

static void
gradients_of_gates_are_slopes (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (3);

  (void) state;
  for (int trial = 0; trial < N_TRIAL; trial++) {
    struct gate g;
    gate_open (rand, &g, trial % 2, WEFT_FP32);
    gate_run (&g, TRUE, TRUE, 1);
    for (int draw = 0; draw < 5 && g.used; draw++) {
      uint64_t row = (uint64_t) g_rand_int_range (rand, 0, (gint32) g.used);
      check_slope (&g, BY, DBY, row);
      check_slope (&g, X, DX, row * g.columns);
    }
    gate_close (&g);
  }
}

/* ------------------------------------------------------------------------- programs */

#define MODEL                                                                                      \
  "num_layers=2 hidden_size=64 num_attention_heads=4 ffn_hidden_size=128 vocab_size=256 "          \
  "seq_length=64 num_moe_experts=8 moe_router_topk=1 moe_ffn_hidden_size=96 activation=swiglu "    \
  "moe_shared_expert_intermediate_size=32 precision=bf16 topology=dgx-h100 gpus=2 "                \
  "global_batch_size=4 "
#define GATE MODEL "moe_shared_expert_gate=true "
#define INPUT MODEL "moe_apply_probs_on_input=true "
enum { T = 64, H = 64 };

static uint32_t
find (const weft_program *p, enum weft_op_kind kind)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind)
      return op;
  fail_msg ("no %s", weft_op_words[kind]);
  return WEFT_NO_OP;
}

static uint32_t
operand (const weft_program *p, uint32_t op, uint32_t i)
{
  return p->uses[p->op[op].uses + i].buf;
}

static void
a_gate_of_shared_experts_weighs_what_they_make (void **state)
{
  g_autoptr (weft_program) p = built (GATE, 0);
  uint32_t gate = find (p, WEFT_OP_GATE), back = find (p, WEFT_OP_GATE_BWD), gates = 0;

  (void) state;
  for (uint32_t i = 0; i < p->n_param; i++)
    if (g_str_equal (p->name[p->param[i].name], "shared.gate.weight")) {
      assert_int_equal (p->param[i].rows * p->param[i].columns, H);
      gates++;
    }
  assert_int_equal (gates, 2);
  assert_int_equal (count_kind (p, WEFT_OP_GATE), 2 * 2); /* layers x microbatches */
  assert_true (weft_op_bytes (p, gate) == 2.0 * 2 * T * H);
  assert_true (weft_op_bytes (p, back) == 3.0 * 2 * T * H);
  /* The backward kernel reads the output of the shared experts and one logit per token, so both
   * must be kept. */
  assert_int_equal (p->buf[operand (p, gate, 0)].bytes, 2 * T * H);
  assert_int_equal (p->buf[operand (p, gate, 1)].bytes, 2 * T);
  for (uint32_t i = 0; i < 2; i++)
    assert_true (p->op[p->buf[operand (p, gate, i)].last].phase == WEFT_PHASE_BACKWARD);
}

static void
moe_apply_probs_on_input_weighs_what_experts_take (void **state)
{
  g_autoptr (weft_program) p = built (INPUT, 0), plain = built (MODEL, 0);
  uint32_t weigh = find (p, WEFT_OP_MOE_WEIGH), act = find (p, WEFT_OP_MOE_ACT),
           back = find (p, WEFT_OP_MOE_ACT_BWD), first = find (p, WEFT_OP_MOE_MATMUL);

  (void) state;
  assert_int_equal (operand (p, act, 1), WEFT_NO_BUF);
  assert_int_equal (operand (p, back, 1), WEFT_NO_BUF);
  assert_int_equal (operand (p, back, 5), WEFT_NO_BUF);
  assert_int_not_equal (operand (plain, find (plain, WEFT_OP_MOE_ACT), 1), WEFT_NO_BUF);
  assert_int_equal (operand (p, first, 0), operand (p, weigh, 3));
  assert_true (weft_op_bytes (p, weigh) == 2.0 * 2 * T * H);
  assert_int_equal (count_kind (plain, WEFT_OP_MOE_WEIGH), 0);
}

static void
gates_run_again_with_what_they_weigh (void **state)
{
  static const struct {
    const char *words;
    uint32_t gates, weighs;
  } wanted[] = {
    { GATE "recompute_granularity=selective recompute_modules=shared_experts", 8, 0 },
    { GATE "recompute_granularity=selective recompute_modules=moe_act", 4, 0 },
    { GATE "moe_apply_probs_on_input=true recompute_granularity=selective recompute_modules=moe", 8,
      8 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (wanted); i++) {
    g_autoptr (weft_program) p = built (wanted[i].words, 0);
    assert_int_equal (count_kind (p, WEFT_OP_GATE), wanted[i].gates);
    assert_int_equal (count_kind (p, WEFT_OP_MOE_WEIGH), wanted[i].weighs);
  }
}

/* ------------------------------------------------------------------------ real steps */

#define SMALL                                                                                      \
  "topology=cpu model=mixtral-nano num_layers=4 hidden_size=32 num_attention_heads=4 "             \
  "num_query_groups=2 kv_channels=8 ffn_hidden_size=96 moe_ffn_hidden_size=24 seq_length=16 "      \
  "global_batch_size=8 moe_shared_expert_intermediate_size=40 "

static void
layers_with_gates_give_the_bits_of_one_rank (void **state)
{
  static const char *const models[] = {
    SMALL "precision=fp32 moe_shared_expert_gate=true moe_apply_probs_on_input=true",
    SMALL "precision=bf16 moe_shared_expert_gate=true moe_router_pre_softmax=true",
    SMALL "precision=bf16 moe_apply_probs_on_input=true moe_router_topk=1 "
          "moe_router_score_function=sigmoid grad_reduce_in_fp32=true",
  };
  static const char *const strategies[] = {
    "gpus=2 use_distributed_optimizer=true overlap_grad_reduce=true",
    "gpus=4 expert_model_parallel_size=4",
    "gpus=4 expert_model_parallel_size=2 pipeline_model_parallel_size=2 delay_wgrad_compute=true",
    "gpus=2 recompute_granularity=selective recompute_modules=moe,layernorm",
    "gpus=2 recompute_granularity=selective recompute_modules=shared_experts,moe_act",
    "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3",
    "gpus=2 cpu_offloading=true cpu_offloading_num_layers=2",
    "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1",
    "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true",
    "gpus=4 tensor_model_parallel_size=4 sequence_parallel=true recompute_granularity=selective "
    "recompute_modules=moe,layernorm",
    "gpus=8 tensor_model_parallel_size=2 sequence_parallel=true expert_model_parallel_size=2 "
    "context_parallel_size=2 delay_wgrad_compute=true",
    "gpus=4 tensor_model_parallel_size=2 sequence_parallel=true expert_model_parallel_size=2 "
    "cpu_offloading=true cpu_offloading_num_layers=2",
  };

  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    g_autofree char *alone = g_strconcat (models[m], " gpus=1", NULL);
    struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = STEPS });
    assert_true (one.loss[1] < one.loss[0]);
    for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++) {
      g_autofree char *words = g_strconcat (models[m], " ", strategies[s], NULL);
      weft_test_check_bits (words, STEPS, &one, s);
    }
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (gates_do_what_their_references_do),
  cmocka_unit_test (parts_have_the_bits_of_the_whole),
  cmocka_unit_test (gradients_of_gates_are_slopes),
  cmocka_unit_test (a_gate_of_shared_experts_weighs_what_they_make),
  cmocka_unit_test (moe_apply_probs_on_input_weighs_what_experts_take),
  cmocka_unit_test (gates_run_again_with_what_they_weigh),
  cmocka_unit_test (layers_with_gates_give_the_bits_of_one_rank),
};

WEFT_TESTS (tests)
