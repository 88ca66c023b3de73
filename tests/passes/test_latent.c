/* Multi-latent attention: kernels against references and finite differences, values narrower than
 * keys, and that training on several ranks gives bit for bit the results of one rank. */
#include "core/base/sanitize.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define N_TRIAL 40
#define MOST 4

/* A kernel call with random operands: `value` in fp64 for the reference, the operands of `k` in the
 * dtype of the kernel. */
struct call {
  union weft_model model;
  struct weft_kernel k;
  uint32_t n;
  double *value[MOST];
};

static uint64_t
up_to (GRand *rand, uint64_t most)
{
  return 1 + g_rand_int (rand) % most;
}

static void
open_call (GRand *rand, struct call *c, enum weft_op_kind kind)
{
  gboolean joins = kind == WEFT_OP_LATENT_JOIN || kind == WEFT_OP_LATENT_JOIN_BWD;

  *c = (struct call){ .k = { .kind = kind, .model = &c->model }, .n = joins ? 4 : 3 };
  weft_table_defaults (&weft_model_table, c->model.at);
  c->model.seq_length = (int64_t) up_to (rand, 7);
  const uint64_t split[] = { (uint64_t) c->model.seq_length * up_to (rand, 3), up_to (rand, 20),
                             2 * up_to (rand, 6) };
  const uint64_t join[] = { split[0], up_to (rand, 4), up_to (rand, 9), 2 * up_to (rand, 6),
                            up_to (rand, 9) };
  memcpy (c->k.shape.dim, joins ? join : split, joins ? sizeof join : sizeof split);
  /* The rotary part of the keys is shared by all heads, so its gradient is a sum over heads. In
   * canonical order this sum is a tree over weft_chunks (heads) groups of heads (kernels/leaves.h);
   * in fast order (0) it is a single sum. */
  if (kind == WEFT_OP_LATENT_JOIN_BWD)
    c->k.shape.dim[5] = weft_chunks (join[1]) * (join[0] % 2);
  /* joins == 0: the rank is the second of two tensor parallel ranks, and computes its own half of
   * the tokens. */
  if (!joins) {
    c->k.tp = (struct weft_place){ 1, 2 };
    c->k.shape.dim[3] = 2 * (split[0] % 2);
  }
  for (uint32_t o = 0; o < c->n; o++) {
    struct weft_operand *of = &c->k.operand[o];
    of->n = weft_kernels[kind].extent (&c->k, o);
    c->value[o] = g_new (double, of->n);
    of->data = g_new0 (double, of->n);
    for (uint64_t i = 0; i < of->n; i++)
      c->value[o][i] = (double) (float) g_rand_double_range (rand, -2, 2);
  }
}

static void
close_call (struct call *c)
{
  for (uint32_t o = 0; o < c->n; o++) {
    g_free (c->value[o]);
    g_free (c->k.operand[o].data);
  }
}

static void
run_reference (struct call *c)
{
  for (uint32_t o = 0; o < c->n; o++)
    memcpy (c->k.operand[o].data, c->value[o], c->k.operand[o].n * sizeof (double));
  weft_kernels[c->k.kind].reference (&c->k);
}

static void
run_cpu (struct call *c, enum weft_dtype dtype, uint32_t parts)
{
  for (uint32_t o = 0; o < c->n; o++) {
    struct weft_operand *of = &c->k.operand[o];
    of->dtype = dtype;
    for (uint64_t i = 0; i < of->n; i++) {
      float value = (float) c->value[o][i];
      weft_store (of->data, dtype, i, 1, &value);
    }
  }
  for (uint32_t part = parts; part-- > 0;)
    weft_kernels[c->k.kind].cpu (&c->k, part, parts);
}

static const enum weft_op_kind kinds[] = { WEFT_OP_LATENT_SPLIT, WEFT_OP_LATENT_SPLIT_BWD,
                                           WEFT_OP_LATENT_JOIN, WEFT_OP_LATENT_JOIN_BWD };

/* Returns the index of the first output operand of an op. All operands after it are outputs too. */
static uint32_t
first_output (enum weft_op_kind kind)
{
  return kind == WEFT_OP_LATENT_SPLIT || kind == WEFT_OP_LATENT_JOIN_BWD ? 1
         : kind == WEFT_OP_LATENT_SPLIT_BWD                              ? 2
                                                                         : 3;
}

static void
kernels_of_latents_do_what_their_references_do (void **state)
{
  GRand *rand = g_rand_new_with_seed (1);

  (void) state;
  for (int trial = 0; trial < N_TRIAL * 4; trial++) {
    struct call c;
    enum weft_dtype dtype = trial % 3 ? WEFT_FP32 : WEFT_BF16;
    open_call (rand, &c, kinds[trial % 4]);
    run_reference (&c);
    double *wanted[MOST];
    for (uint32_t o = 0; o < c.n; o++)
      wanted[o] = g_memdup2 (c.k.operand[o].data, c.k.operand[o].n * sizeof (double));
    run_cpu (&c, dtype, 1 + (uint32_t) trial % 3);
    for (uint32_t o = first_output (c.k.kind); o < c.n; o++)
      for (uint64_t i = 0; i < c.k.operand[o].n; i++) {
        float room, found = *weft_floats (c.k.operand[o].data, dtype, i, 1, &room);
        double allowed = dtype == WEFT_FP32 ? 1e-5 : 0.06;
        if (!(fabs ((double) found - wanted[o][i]) <= allowed))
          fail_msg ("%s operand %u [%" PRIu64 "]: found %g, wanted %g", weft_op_info[c.k.kind].word,
                    o, i, (double) found, wanted[o][i]);
      }
    for (uint32_t o = 0; o < c.n; o++)
      g_free (wanted[o]);
    close_call (&c);
  }
  g_rand_free (rand);
}

/* These ops are linear, so backward must be the transpose of forward: <dy, A x> = <A' dy, x>. */
static void
backward_of_latents_is_the_transposed_of_forward (void **state)
{
  GRand *rand = g_rand_new_with_seed (2);

  (void) state;
  for (int trial = 0; trial < N_TRIAL; trial++) {
    struct call f;
    gboolean joins = trial % 2;
    open_call (rand, &f, joins ? WEFT_OP_LATENT_JOIN : WEFT_OP_LATENT_SPLIT);
    struct call b = f;
    double left = 0, right = 0;
    uint32_t outputs = joins ? 1 : 2, inputs = joins ? 3 : 1;
    b.k.kind = joins ? WEFT_OP_LATENT_JOIN_BWD : WEFT_OP_LATENT_SPLIT_BWD;
    b.k.model = &b.model;
    for (uint32_t o = 0; o < b.n; o++) {
      b.k.operand[o] = f.k.operand[(o + inputs) % f.n];
      b.value[o] = f.value[(o + inputs) % f.n];
      b.k.operand[o].data = g_new0 (double, b.k.operand[o].n);
    }
    run_reference (&f);
    run_reference (&b);
    for (uint32_t o = 0; o < outputs; o++)
      for (uint64_t i = 0; i < f.k.operand[inputs + o].n; i++)
        left += ((double *) f.k.operand[inputs + o].data)[i] * b.value[o][i];
    for (uint32_t o = 0; o < inputs; o++)
      for (uint64_t i = 0; i < f.k.operand[o].n; i++)
        right += f.value[o][i] * ((double *) b.k.operand[outputs + o].data)[i];
    assert_true (fabs (left - right) <= 1e-9 * (1 + fabs (left)));
    for (uint32_t o = 0; o < b.n; o++)
      g_free (b.k.operand[o].data);
    close_call (&f);
  }
  g_rand_free (rand);
}

/* --------------------------------------------------------------- narrow heads of values */

enum { HEADS = 3, WIDTH = 12, VALUE = 5, TOKENS = 2 * 9 };
enum { NARROW = HEADS * (2 * WIDTH + VALUE), WIDE = HEADS * 3 * WIDTH };

static struct weft_kernel
attention (enum weft_op_kind kind, uint64_t value, float *const data[5])
{
  static union weft_model model;
  uint64_t row = value ? NARROW : WIDE, o = HEADS * (value ? VALUE : WIDTH);
  const uint64_t n[2][5] = { { TOKENS * row, TOKENS * o, TOKENS * HEADS },
                             { TOKENS * row, TOKENS * o, TOKENS * HEADS, TOKENS * o,
                               TOKENS * row } };
  struct weft_kernel k = { .kind = kind,
                           .shape = { .dim = { 2, 9, HEADS, HEADS, WIDTH, 0, value } },
                           .canonical = TRUE,
                           .model = &model };

  weft_table_defaults (&weft_model_table, model.at);
  model.seq_length = 9;
  for (int i = 0; i < 5; i++)
    k.operand[i] =
        (struct weft_operand){ .data = data[i], .n = n[kind == WEFT_OP_ATTENTION_BWD][i] };
  return k;
}

/* Returns element c of heads that are as wide as the keys, read from heads of the narrower value
 * width. Returns NaN for a column that the narrower heads do not have. */
static float
wide_at (const float *narrow, uint64_t row, uint64_t from, uint64_t c)
{
  return c % WIDTH < VALUE ? narrow[row + from + c / WIDTH * VALUE + c % WIDTH] : NAN;
}

static void
narrow_values_are_wide_ones_that_end_with_zeros (void **state)
{
  static float qkv[TOKENS * NARROW], o[TOKENS * HEADS * VALUE], lse[TOKENS * HEADS],
      d[TOKENS * HEADS * VALUE], dqkv[TOKENS * NARROW];
  static float wqkv[TOKENS * WIDE], wo[TOKENS * HEADS * WIDTH], wlse[TOKENS * HEADS],
      wd[TOKENS * HEADS * WIDTH], wdqkv[TOKENS * WIDE];
  enum { KEYS = 2 * HEADS * WIDTH };
  GRand *rand = g_rand_new_with_seed (3);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (qkv); i++)
    qkv[i] = (float) g_rand_double_range (rand, -1, 1);
  for (unsigned i = 0; i < G_N_ELEMENTS (d); i++)
    d[i] = (float) g_rand_double_range (rand, -1, 1);
  for (uint64_t t = 0; t < TOKENS; t++)
    for (uint64_t c = 0; c < WIDE; c++) {
      float value = c < KEYS ? qkv[t * NARROW + c] : wide_at (qkv, t * NARROW, KEYS, c - KEYS);
      wqkv[t * WIDE + c] = isnan (value) ? 0 : value;
      if (c < HEADS * WIDTH) {
        float g = wide_at (d, t * HEADS * VALUE, 0, c);
        wd[t * HEADS * WIDTH + c] = isnan (g) ? 0 : g;
      }
    }
  float *const narrow[] = { qkv, o, lse, d, dqkv }, *const wide[] = { wqkv, wo, wlse, wd, wdqkv };
  struct weft_kernel a = attention (WEFT_OP_ATTENTION, VALUE, narrow),
                     b = attention (WEFT_OP_ATTENTION, 0, wide);
  weft_cpu_attention (&a, 0, 1);
  weft_cpu_attention (&b, 0, 1);
  a = attention (WEFT_OP_ATTENTION_BWD, VALUE, narrow);
  b = attention (WEFT_OP_ATTENTION_BWD, 0, wide);
  weft_cpu_attention_bwd (&a, 0, 1);
  weft_cpu_attention_bwd (&b, 0, 1);
  for (uint64_t t = 0; t < TOKENS; t++) {
    for (uint64_t c = 0; c < HEADS * WIDTH; c++)
      if (c % WIDTH < VALUE)
        assert_true (wide_at (o, t * HEADS * VALUE, 0, c) == wo[t * HEADS * WIDTH + c]);
    for (uint64_t c = 0; c < WIDE; c++)
      if (c < KEYS || c % WIDTH < VALUE)
        assert_true (
            (c < KEYS ? dqkv[t * NARROW + c] : wide_at (dqkv, t * NARROW, KEYS, c - KEYS)) ==
            wdqkv[t * WIDE + c]);
  }
  assert_memory_equal (lse, wlse, sizeof lse);
  g_rand_free (rand);
}

/* Attention multiplies queries with keys (width 12) and probabilities with values. With values of
 * width 5 instead of 12, the FLOPs of the second product must fall accordingly. */
static void
narrow_values_cost_less (void **state)
{
  const struct weft_shape narrow = { .dim = { 1, 64, 2, 2, 12, 0, 5 } };
  const struct weft_shape wide = { .dim = { 1, 64, 2, 2, 12 } };

  (void) state;
  double of_wide = weft_op_info[WEFT_OP_ATTENTION].flops (&wide);
  assert_true (fabs (weft_op_info[WEFT_OP_ATTENTION].flops (&narrow) - of_wide * 17 / 24) < 1e-6);
}

/* ------------------------------------------------------------------------ real steps */

#define STEPS 2
#define MODEL "topology=cpu model=deepseek-nano mtp_num_layers=0 seq_length=16 global_batch_size=8 "
#define EP(n) "expert_model_parallel_size=" #n " "

static const char *const strategies[] = {
  EP (2) "gpus=2",
  EP (4) "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=20000",
  EP (2) "gpus=4 pipeline_model_parallel_size=2 recompute_granularity=full "
         "recompute_method=uniform recompute_num_layers=1",
  "gpus=2 micro_batch_size=2 delay_wgrad_compute=true",
  "gpus=2 recompute_granularity=selective recompute_modules=layernorm,mlp",
  "gpus=2 recompute_granularity=selective recompute_modules=mla_up_proj",
  EP (2) "gpus=4 recompute_granularity=selective "
         "recompute_modules=mla_up_proj,layernorm,moe_act,shared_experts",
  "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3",
  "gpus=4 distributed_config=fsdp2 micro_batch_size=2",
  "gpus=2 cpu_offloading=true cpu_offloading_num_layers=3",
  "gpus=2 context_parallel_size=2",
  "gpus=4 context_parallel_size=2 cp_comm_type=a2a use_distributed_optimizer=true",
};

/* Each of two ranks holds half of the tokens. A rank must rotate keys by the positions of its own
 * tokens, so that the result is that of one rank with all tokens. */
static void
tokens_of_a_rank_are_turned_where_they_stand (void **state)
{
  enum { ROWS = 8, RANK = 3, ROPE = 4, ALL = RANK + ROPE };
  static float x[ROWS * ALL], latent[ROWS * RANK], whole[ROWS * ROPE], half[ROWS / 2 * ROPE];
  union weft_model model;
  struct weft_kernel k = { .kind = WEFT_OP_LATENT_SPLIT, .model = &model };

  (void) state;
  weft_table_defaults (&weft_model_table, model.at);
  model.seq_length = ROWS;
  for (unsigned i = 0; i < G_N_ELEMENTS (x); i++)
    x[i] = (float) (i % 5);
  k.shape = (struct weft_shape){ .dim = { ROWS, RANK, ROPE } };
  k.operand[0] = (struct weft_operand){ .data = x, .n = ROWS * ALL };
  k.operand[1] = (struct weft_operand){ .data = latent, .n = ROWS * RANK };
  k.operand[2] = (struct weft_operand){ .data = whole, .n = ROWS * ROPE };
  weft_cpu_latent_split (&k, 0, 1);
  for (uint32_t r = 0; r < 2; r++) {
    k.tp = (struct weft_place){ r, 2 };
    k.shape = (struct weft_shape){ .dim = { ROWS / 2, RANK, ROPE, 2 } };
    k.operand[0].data = x + r * ROWS / 2 * ALL;
    k.operand[2].data = half;
    weft_cpu_latent_split (&k, 0, 1);
    assert_memory_equal (half, whole + r * ROWS / 2 * ROPE, sizeof half);
  }
}

/* Dense models with latent attention, under strategies that split heads and sequences. */
static void
latents_of_shared_heads_and_sequences_give_the_bits_of_one_rank (void **state)
{
#define DENSE                                                                                      \
  "topology=cpu model=llama-nano num_layers=4 seq_length=16 precision=fp32 global_batch_size=8 "   \
  "num_attention_heads=8 num_query_groups=8 kv_lora_rank=16 qk_head_dim=8 qk_pos_emb_head_dim=8 "
  static const char *const queries[] = { "q_lora_rank=32 v_head_dim=8 ",
                                         "q_lora_rank=0 v_head_dim=12 mtp_num_layers=1 " };
  static const char *const shared[] = {
    "gpus=2 tensor_model_parallel_size=2",
    "gpus=4 tensor_model_parallel_size=4 sequence_parallel=true micro_batch_size=2",
    "gpus=8 tensor_model_parallel_size=8 delay_wgrad_compute=true",
    "gpus=4 tensor_model_parallel_size=2 sequence_parallel=true use_megatron_fsdp=true "
    "zero_dp_strategy=3",
    "gpus=4 tensor_model_parallel_size=2 sequence_parallel=true pipeline_model_parallel_size=2 "
    "recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
    "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true recompute_granularity=selective "
    "recompute_modules=mla_up_proj",
    "gpus=2 context_parallel_size=2",
    "gpus=4 context_parallel_size=4 cp_comm_type=all_gather",
    "gpus=4 context_parallel_size=4 cp_comm_type=a2a recompute_granularity=selective "
    "recompute_modules=layernorm",
    "gpus=4 context_parallel_size=4 cp_comm_type=a2a+p2p hierarchical_context_parallel_sizes=2,2",
    "gpus=4 context_parallel_size=2 cp_comm_type=a2a tensor_model_parallel_size=2 "
    "sequence_parallel=true",
    "gpus=8 context_parallel_size=2 tensor_model_parallel_size=2 sequence_parallel=true "
    "use_distributed_optimizer=true overlap_grad_reduce=true",
  };

  (void) state;
  for (unsigned q = 0; q < G_N_ELEMENTS (queries); q++) {
    g_autofree char *alone = g_strconcat (DENSE, queries[q], "gpus=1", NULL);
    struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = STEPS });
    for (unsigned s = 0; s < G_N_ELEMENTS (shared); s++) {
      g_autofree char *words = g_strconcat (DENSE, queries[q], shared[s], NULL);
      weft_test_check_bits (words, STEPS, &one, s);
    }
  }
}

/* In fast order, the order of additions depends on the number of ranks: losses must be close to
 * those of one rank, but need not be equal. */
static void
latents_in_fast_order_come_near (void **state)
{
  static const char *const shared[] = {
    "gpus=4 tensor_model_parallel_size=4 sequence_parallel=true",
    "gpus=4 context_parallel_size=4 micro_batch_size=2",
    "gpus=4 context_parallel_size=2 cp_comm_type=all_gather tensor_model_parallel_size=2",
    "gpus=2 context_parallel_size=2 cp_comm_type=a2a sequence_parallel=false",
  };
  g_autofree char *alone =
      g_strconcat (DENSE, "q_lora_rank=32 v_head_dim=12 gpus=1 reduction_order=fast", NULL);
  struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = STEPS });

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (shared); s++) {
    g_autofree char *words =
        g_strconcat (DENSE, "q_lora_rank=32 v_head_dim=12 reduction_order=fast ", shared[s], NULL);
    struct real_result other =
        weft_test_run (&(struct real_run){ .words = words, .steps = STEPS, .poison = TRUE });
    if (!weft_test_is_near (&other, &one, STEPS))
      fail_msg ("%s: loss %.17g norm %.17g, of one rank %.17g %.17g", words, other.loss[1],
                other.norm[1], one.loss[1], one.norm[1]);
  }
}

static uint64_t
payload (const weft_program *p, enum weft_op_kind kind, const char *name)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && is_named (p, op, name))
      return elements (p, op);
  return 0;
}

/* With sequence_parallel, tensor parallel ranks all-gather the latents (1536 and 512 wide) and the
 * rotary part of the keys, instead of the residual stream of width 7168. Each rank computes down
 * projections and norms for its own tokens (Megatron-Core multi_latent_attention.py). */
static void
tensor_ranks_gather_latents (void **state)
{
#define V3                                                                                         \
  "model=deepseek-v3 mtp_num_layers=0 num_layers=1 moe_first_dense_layers=1 num_moe_experts=0 "    \
  "moe_router_topk=0 moe_shared_expert_intermediate_size=0 moe_router_enable_expert_bias=false "   \
  "moe_router_num_groups=0 moe_router_group_topk=0 seq_length=256 topology=dgx-h100 gpus=8 "       \
  "tensor_model_parallel_size=8 "
  g_autoptr (weft_program) plain = built (V3, 0),
                           scattered = built (V3 "sequence_parallel=true", 0);

  (void) state;
  assert_int_equal (payload (scattered, WEFT_OP_ALL_GATHER, "q_up"), 256 * 1536);
  assert_int_equal (payload (scattered, WEFT_OP_ALL_GATHER, "kv_up"), 256 * 512);
  assert_int_equal (payload (scattered, WEFT_OP_ALL_GATHER, "key_position"), 256 * 64);
  assert_int_equal (payload (scattered, WEFT_OP_REDUCE_SCATTER, "dkey_position"), 256 * 64);
  assert_int_equal (payload (plain, WEFT_OP_ALL_REDUCE, "q_up"), 256 * 1536);
  assert_int_equal (payload (plain, WEFT_OP_ALL_REDUCE, "kv_up"), 256 * 512);
  assert_int_equal (payload (plain, WEFT_OP_ALL_REDUCE, "dkey_position"), 256 * 64);
  assert_int_equal (payload (scattered, WEFT_OP_MATMUL, "q_down"), 256 / 8);
  assert_int_equal (payload (plain, WEFT_OP_MATMUL, "q_down"), 256);
}

static void
latent_attention_gives_the_bits_of_one_rank (void **state)
{
  static const char *const precisions[] = { "precision=fp32",
                                            "precision=bf16 grad_reduce_in_fp32=true" };
  static const char *const queries[] = { "q_lora_rank=32 v_head_dim=8",
                                         "q_lora_rank=0 v_head_dim=12 kv_lora_rank=24" };

  (void) state;
  for (int p = 0; p < 2; p++) {
    g_autofree char *model = g_strdup_printf (MODEL "%s %s", precisions[p], queries[p]);
    g_autofree char *alone = g_strdup_printf ("%s gpus=1", model);
    struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = STEPS });
    assert_true (one.loss[1] < one.loss[0]);
    for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++) {
      /* by default, FSDP2 reduces gradients in fp32 whatever the precision */
      gboolean reduces = p == 1 && strstr (strategies[s], "fsdp2");
      g_autofree char *words = g_strdup_printf ("%s %s%s", model, strategies[s],
                                                reduces ? " grad_reduce_in_fp32=false" : "");
      weft_test_check_bits (words, STEPS, &one, s);
    }
  }
}

/* The tensors of the published DeepSeek-V3 (arXiv 2412.19437, section 4.2; h = 7168). Queries: h to
 * 1536, then to 128 heads of 192. Keys and values: h to 512 + 64, and from 512 to 128 heads of 128
 * + 128. Output: 128 heads of 128 to h. */
static void
a_stage_of_deepseek_v3_has_its_published_tensors (void **state)
{
  static const struct {
    const char *name;
    uint64_t rows, columns;
  } wanted[] = {
    { "q_down.weight", 1536, 7168 },     { "q_up.weight", 128 * 192, 1536 },
    { "kv_down.weight", 576, 7168 },     { "kv_up.weight", 128 * 256, 512 },
    { "proj.weight", 7168, 16384 },      { "q_latent_norm.weight", 1536, 1 },
    { "router.weight", 256, 7168 },      { "experts.fc1.weight", 4 * 2 * 2048, 7168 },
    { "kv_latent_norm.weight", 512, 1 },
  };
  g_autoptr (weft_program) p =
      built ("model=deepseek-v3 mtp_num_layers=0 num_layers=4 seq_length=256 topology=dgx-h100 "
             "gpus=64 expert_model_parallel_size=64",
             0);

  (void) state;
  for (unsigned w = 0; w < G_N_ELEMENTS (wanted); w++) {
    gboolean found = FALSE;
    for (uint32_t i = 0; i < p->n_param; i++)
      if (g_str_equal (p->name[p->param[i].name], wanted[w].name)) {
        assert_int_equal (p->param[i].rows, wanted[w].rows);
        assert_int_equal (p->param[i].columns, wanted[w].columns);
        found = TRUE;
      }
    assert_true (found);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (kernels_of_latents_do_what_their_references_do),
  cmocka_unit_test (backward_of_latents_is_the_transposed_of_forward),
  cmocka_unit_test (narrow_values_are_wide_ones_that_end_with_zeros),
  cmocka_unit_test (narrow_values_cost_less),
  cmocka_unit_test (latent_attention_gives_the_bits_of_one_rank),
  cmocka_unit_test (tokens_of_a_rank_are_turned_where_they_stand),
  cmocka_unit_test (latents_of_shared_heads_and_sequences_give_the_bits_of_one_rank),
  cmocka_unit_test (latents_in_fast_order_come_near),
  cmocka_unit_test (tensor_ranks_gather_latents),
  cmocka_unit_test (a_stage_of_deepseek_v3_has_its_published_tensors),
};

WEFT_TESTS (tests, .seconds = 6)
