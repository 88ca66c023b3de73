/* Tensor parallelism with fewer key-value groups than ranks: what ranks gather, and that the
 * results are those of one rank. */
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <string.h>

#define STEPS 3
#define LLAMA                                                                                      \
  "topology=cpu model=llama-nano num_layers=3 seq_length=16 precision=fp32 global_batch_size=4 "   \
  "num_attention_heads=8 kv_channels=8 "
#define FAST LLAMA "reduction_order=fast "

static uint64_t
all_of (const weft_program *p, enum weft_op_kind kind, const char *name)
{
  uint64_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && is_named (p, op, name))
      n += elements (p, op);
  return n;
}

static const struct weft_param *
qkv_of (const weft_program *p)
{
  for (uint32_t i = 0; i < p->n_param; i++)
    if (g_str_equal (p->name[p->param[i].name], "qkv.weight"))
      return &p->param[i];
  return NULL;
}

/* Four ranks share two key-value groups. The rows of the qkv matrix are split evenly over the
 * ranks, so that no row is stored twice. Forward all-gathers the qkv output of all ranks, and
 * backward reduce-scatters its gradient. Two ranks with one group each gather nothing. */
static void
ranks_gather_what_the_map_makes (void **state)
{
  const uint64_t made = (8 + 2 * 2) * 8, tokens = 16;
  g_autoptr (weft_program)
      p = built (FAST "num_query_groups=2 gpus=4 tensor_model_parallel_size=4", 0),
      own = built (FAST "num_query_groups=2 gpus=2 tensor_model_parallel_size=2", 0);

  (void) state;
  assert_int_equal (qkv_of (p)->rows, made / 4);
  assert_int_equal (qkv_of (p)->tail, 2 * 8 / 4);
  assert_int_equal (qkv_of (p)->whole_rows, made);
  assert_int_equal (all_of (p, WEFT_OP_ALL_GATHER, "qkv_heads"), 3 * 4 * tokens * made);
  assert_int_equal (all_of (p, WEFT_OP_REDUCE_SCATTER, "dqkv_heads"), 3 * 4 * tokens * made);
  assert_int_equal (count_kind (own, WEFT_OP_TAKE_HEADS), 0);
}

/* In canonical order, both ranks that share a key-value group compute the attention of the whole
 * group (4 heads). Then the gradients of qkv need no reduction; the gradient of the attention
 * output is all-gathered instead. */
static void
ranks_attend_to_their_whole_group_in_canonical_order (void **state)
{
  const uint64_t tokens = 16;
  g_autoptr (weft_program) p =
      built (LLAMA "num_query_groups=2 gpus=4 tensor_model_parallel_size=4", 0);

  (void) state;
  assert_int_equal (all_of (p, WEFT_OP_REDUCE_SCATTER, "dqkv_heads"), 0);
  assert_int_equal (all_of (p, WEFT_OP_ALL_GATHER, "o_heads"), 3 * 4 * tokens * 8 * 8);
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_ATTENTION || p->op[op].kind == WEFT_OP_ATTENTION_BWD) {
      assert_int_equal (weft_op_shape (p, op)->dim[2], 4);
      assert_int_equal (weft_op_shape (p, op)->dim[3], 1);
    }
}

static const char *const models[] = {
  "num_query_groups=1 ",
  "num_query_groups=2 add_qkv_bias=true qk_layernorm=true ",
  "num_query_groups=4 attention_backend=unfused attention_dropout=0.1 "
  "position_embedding_type=learned ",
};
static const char *const strategies[] = {
  "gpus=4 tensor_model_parallel_size=4",
  "gpus=8 tensor_model_parallel_size=8 sequence_parallel=true",
  "gpus=8 tensor_model_parallel_size=4 sequence_parallel=true use_distributed_optimizer=true",
  "gpus=8 tensor_model_parallel_size=8 recompute_granularity=full recompute_method=uniform "
  "recompute_num_layers=1",
  "gpus=8 tensor_model_parallel_size=4 context_parallel_size=2",
  "gpus=8 tensor_model_parallel_size=8 delay_wgrad_compute=true use_megatron_fsdp=true",
};

typedef gboolean compare (const struct real_result *a, const struct real_result *b, uint32_t steps);

static void
train_as_one (const char *order, compare *holds)
{
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    g_autofree char *alone = g_strconcat (order, models[m], "gpus=1", NULL);
    struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = STEPS });
    for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++) {
      g_autofree char *words = g_strconcat (order, models[m], strategies[s], NULL);
      if (strstr (words, "unfused") && strstr (words, "context_parallel"))
        continue;
      struct real_result many =
          weft_test_run (&(struct real_run){ .words = words, .steps = STEPS, .poison = TRUE });
      if (!holds (&many, &one, STEPS))
        fail_msg ("%s: loss %.9g norm %.9g, of one rank %.9g %.9g", words, many.loss[STEPS - 1],
                  many.norm[STEPS - 1], one.loss[STEPS - 1], one.norm[STEPS - 1]);
    }
  }
}

static void
ranks_that_share_a_group_have_the_bits_of_one (void **state)
{
  (void) state;
  train_as_one (LLAMA, weft_test_same_bits);
}

static void
ranks_that_share_a_group_train_as_one_in_fast_order (void **state)
{
  (void) state;
  train_as_one (FAST, weft_test_is_near);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (ranks_gather_what_the_map_makes),
  cmocka_unit_test (ranks_attend_to_their_whole_group_in_canonical_order),
  cmocka_unit_test (ranks_that_share_a_group_have_the_bits_of_one),
  cmocka_unit_test (ranks_that_share_a_group_train_as_one_in_fast_order),
};

WEFT_TESTS (tests)
