/* cross_entropy_fusion_impl = linear: the kernels and buffers of a chunk of head and loss, and that
 * training gives the bits of unchunked logits. */
#include "core/job/loss.h"
#include "tests/made/questions.h"
#include "tests/made/random_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <string.h>

#define STEPS 2
#define LINEAR "cross_entropy_loss_fusion=true cross_entropy_fusion_impl=linear "

/* ------------------------------------------------------------------------ the program */

#define SMALL                                                                                      \
  "topology=hgx-h200 model=llama-nano num_layers=2 hidden_size=64 vocab_size=1024 seq_length=32 "  \
  "precision=bf16 gpus=1 micro_batch_size=4 global_batch_size=8 "

/* Lists the kernels of head and loss of a microbatch, in order, as "matmul F, xent_grad F, ...".
 * The caller frees the text. */
static char *
head_of (const weft_program *p, uint32_t micro)
{
  GString *text = g_string_new (NULL);

  for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_GPU]; i++) {
    uint32_t op = p->lane_ops[WEFT_LANE_GPU][i];
    if (p->op[op].micro == micro && (is_named (p, op, "head") || is_named (p, op, "loss")))
      g_string_append_printf (text, "%s%s %s", text->len ? ", " : "", weft_op_words[p->op[op].kind],
                              weft_phase_words[p->op[op].phase]);
  }
  return g_string_free (text, FALSE);
}

static void
a_chunk_is_four_kernels_and_reads_its_logits_once (void **state)
{
  static const char chunk[] = "matmul F, xent_grad F, matmul_dgrad B, matmul_wgrad B";
  g_autoptr (weft_program) two = built (SMALL LINEAR "cross_entropy_chunks=2", 0),
                           plain = built (SMALL, 0), apart = built (SMALL "fused_loss=0", 0);
  g_autofree char *found = head_of (two, 1), *whole = head_of (plain, 1),
                  *parts = head_of (apart, 1);
  g_autofree char *wanted = g_strconcat (chunk, ", ", chunk, NULL);

  (void) state;
  assert_string_equal (found, wanted);
  assert_string_equal (whole, chunk);
  assert_string_equal (parts, "matmul F, xent F, xent_bwd B, matmul_dgrad B, matmul_wgrad B");
}

static uint64_t
largest (const weft_program *p, const char *name)
{
  uint64_t most = 0;

  for (uint32_t i = 0; i < p->n_buf; i++)
    if (p->buf[i].base == WEFT_NO_BUF && g_str_equal (p->name[p->buf[i].name], name))
      most = MAX (most, p->buf[i].bytes);
  return most;
}

/* Returns the largest number of bytes on the device that are live at once. */
static uint64_t
peak_of (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  return weft_plan_peak_bytes (plan, 0);
}

/* Memory peaks while the logits are alive. With four chunks only a quarter of the logits is alive
 * at once, so the peak falls by three quarters of their bytes. */
static void
the_peak_falls_by_the_logits_of_other_chunks (void **state)
{
#define WIDE SMALL "vocab_size=32768 num_layers=1 global_batch_size=4 reduction_order=fast "
  uint64_t whole = peak_of (WIDE), one = peak_of (WIDE LINEAR),
           four = peak_of (WIDE LINEAR "cross_entropy_chunks=4");
  uint64_t logits = 2ull * 4 * 32 * 32768;
  g_autoptr (weft_program) p = built (WIDE LINEAR "cross_entropy_chunks=4", 0);

  (void) state;
  assert_int_equal (largest (p, "logits"), logits / 4);
  assert_true (one <= whole);
  assert_true (whole - four > logits * 3 / 4 - (1 << 20) &&
               whole - four <= logits * 3 / 4 + (1 << 20));
}

/* Number of tokens of a chunk, as in arXiv 2410.10989: all tokens divided by (vocabulary / hidden
 * size) and rounded to a power of two, but at least as many as matmuls need to stay efficient. */
static void
chunks_are_as_many_as_the_products_bear (void **state)
{
#define H200 "topology=hgx-h200 gpus=1 precision=bf16 "
  static const struct {
    const char *words;
    uint64_t tokens;
  } jobs[] = {
    { H200 "model=gpt2 micro_batch_size=64 global_batch_size=64", 4096 },
    { H200 "model=gpt2 micro_batch_size=1 global_batch_size=1", 1024 },
    { H200 "model=llama3-8b num_layers=2 micro_batch_size=2 global_batch_size=2", 4096 },
    { H200 "model=gpt2 vocab_size=768 micro_batch_size=64 global_batch_size=64", 65536 },
    { H200 "model=gpt2 micro_batch_size=64 global_batch_size=64 cross_entropy_chunks=64", 1024 },
    { "topology=cpu gpus=1 model=gpt2 micro_batch_size=64 global_batch_size=64", 4096 },
    { "topology=cpu gpus=1 model=gpt2 seq_length=16384 max_position_embeddings=16384", 2048 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    struct weft_job job;
    g_autofree char *words = g_strconcat (LINEAR, jobs[i].words, NULL);
    assert_true (weft_test_job (words, &job, NULL));
    assert_int_equal (weft_job_loss_tokens (&job), jobs[i].tokens);
  }
}

/* Ranks that share the vocabulary reduce the largest logit and the sums of the loss in each chunk.
 * With sequence parallelism, they all-gather the input of the head only once per microbatch. */
static void
ranks_that_share_the_vocabulary_meet_in_each_chunk (void **state)
{
  g_autoptr (weft_program) p = built (
      SMALL LINEAR "gpus=4 tensor_model_parallel_size=4 sequence_parallel=true num_query_groups=4 "
                   "cross_entropy_chunks=4",
      0);
  uint32_t n_max = 0, n_parts = 0, n_gather = 0, n_scatter = 0;

  (void) state;
  for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_TP]; i++) {
    uint32_t op = p->lane_ops[WEFT_LANE_TP][i];
    n_max += is_named (p, op, "largest_logit") && elements (p, op) == 32;
    n_parts += is_named (p, op, "loss_parts") && elements (p, op) == 2 * 32;
    n_gather += is_named (p, op, "head") && p->op[op].kind == WEFT_OP_ALL_GATHER;
    n_scatter += is_named (p, op, "head") && p->op[op].kind == WEFT_OP_REDUCE_SCATTER;
  }
  assert_int_equal (n_max, 2 * 4);
  assert_int_equal (n_parts, 2 * 4);
  assert_int_equal (n_gather, 2);
  assert_int_equal (n_scatter, 2);
}

static uint32_t
last_named (const weft_program *p, enum weft_op_kind kind, const char *name)
{
  for (uint32_t op = p->n_op; op-- > 0;)
    if (p->op[op].kind == kind && is_named (p, op, name))
      return op;
  fail_msg ("no %s %s", weft_op_words[kind], name);
  return WEFT_NO_OP;
}

/* The gradients of the head are reduced after its last chunk, and do not wait for the backward pass
 * of the layers. */
static void
the_bucket_of_the_head_waits_for_its_last_chunk (void **state)
{
  g_autoptr (weft_program) p =
      built (SMALL LINEAR "gpus=2 micro_batch_size=2 overlap_grad_reduce=true bucket_size=1000 "
                          "cross_entropy_chunks=4",
             0);
  uint32_t wgrad = last_named (p, WEFT_OP_MATMUL_WGRAD, "head"),
           reduced = last_named (p, WEFT_OP_ALL_REDUCE, "bucket 0"),
           layer = last_named (p, WEFT_OP_MATMUL_DGRAD, "fc2");

  (void) state;
  assert_true (elements (p, reduced) >= 1024 * 64);
  assert_true (comes_after (p, wgrad, reduced));
  assert_false (comes_after (p, layer, reduced));
}

/* With Megatron-FSDP, the first unit of the backward pass is gathered while the head and the loss
 * run. */
static void
the_last_layer_is_gathered_beside_the_head (void **state)
{
  g_autoptr (weft_program) p =
      built (SMALL LINEAR "gpus=2 micro_batch_size=2 global_batch_size=4 use_megatron_fsdp=true "
                          "data_parallel_sharding_strategy=optim_grads_params "
                          "megatron_fsdp_unit_modules=layer,head cross_entropy_chunks=2 "
                          "suggested_communication_unit_size=100000",
             0);
  uint32_t first = WEFT_NO_OP, n_ahead = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++)
    if (first == WEFT_NO_OP && p->op[op].kind == WEFT_OP_XENT_GRAD)
      first = op;
  for (uint32_t op = 0; op < first; op++)
    n_ahead += p->op[op].kind == WEFT_OP_ALL_GATHER && p->op[op].phase == WEFT_PHASE_BACKWARD;
  assert_true (n_ahead > 0);
}

/* ------------------------------------------------------------------------- real steps */

#define NANO                                                                                       \
  "num_layers=4 hidden_size=32 num_attention_heads=4 num_query_groups=4 kv_channels=8 "            \
  "ffn_hidden_size=64 vocab_size=96 seq_length=16 max_position_embeddings=16 "                     \
  "global_batch_size=16 "
#define LLAMA "topology=cpu model=llama-nano " NANO
#define GPT2 "topology=cpu model=gpt2-nano " NANO

static void
check_bits (const char *model, const char *const *strategies, unsigned n)
{
  g_autofree char *alone = g_strconcat (model, "gpus=1", NULL);
  struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = STEPS });

  assert_true (one.loss[1] < one.loss[0]);
  for (unsigned i = 0; i < n; i++) {
    g_autofree char *words = g_strconcat (model, LINEAR, strategies[i], NULL);
    weft_test_check_bits (words, STEPS, &one, i);
  }
}

static void
chunks_give_the_bits_of_whole_logits (void **state)
{
  static const char *const strategies[] = {
    "gpus=1",
    "gpus=1 micro_batch_size=4 cross_entropy_chunks=2",
    "gpus=1 micro_batch_size=4 cross_entropy_chunks=4",
    "gpus=1 micro_batch_size=2 cross_entropy_chunks=16",
    "gpus=2 cross_entropy_chunks=8 gradient_accumulation_fusion=true overlap_grad_reduce=true",
    "gpus=2 cross_entropy_chunks=8 calculate_per_token_loss=true",
    "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true cross_entropy_chunks=8",
    "gpus=4 tensor_model_parallel_size=4 micro_batch_size=4 cross_entropy_chunks=4",
    "gpus=2 context_parallel_size=2 cross_entropy_chunks=4",
    "gpus=4 context_parallel_size=4 cp_comm_type=all_gather cross_entropy_chunks=2",
    "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=gpipe cross_entropy_chunks=8",
    "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1 cross_entropy_chunks=8",
    "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=dualpipe cross_entropy_chunks=8",
    "gpus=2 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=2 "
    "batch_p2p_comm=false overlap_p2p_comm=true cross_entropy_chunks=8",
    "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3 micro_batch_size=2 cross_entropy_chunks=2",
    "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3 pipeline_model_parallel_size=2 "
    "pipeline_schedule=gpipe megatron_fsdp_unit_modules=layer,embedding,head "
    "cross_entropy_chunks=8",
    "gpus=2 use_megatron_fsdp=true zero_dp_strategy=2 micro_batch_size=2 cross_entropy_chunks=16",
    "gpus=2 distributed_config=fsdp2 cross_entropy_chunks=8",
    "gpus=2 distributed_config=ddp micro_batch_size=2 cross_entropy_chunks=2",
    "gpus=1 recompute_granularity=full recompute_method=uniform recompute_num_layers=1 "
    "cross_entropy_chunks=8",
  };

  (void) state;
  check_bits (LLAMA "precision=fp32 ", strategies, G_N_ELEMENTS (strategies));
  check_bits (GPT2 "precision=fp32 ", strategies, G_N_ELEMENTS (strategies));
}

/* Multi-token prediction has several heads with one weight. One matmul computes the contribution of
 * chunk k of all heads to the gradient of this weight, as one term of the canonical sum over
 * chunks. */
static void
predictions_go_chunk_by_chunk_too (void **state)
{
  static const char *const strategies[] = {
    "gpus=1 cross_entropy_chunks=8",
    "gpus=1 micro_batch_size=4 cross_entropy_chunks=2",
    "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true cross_entropy_chunks=8",
    "gpus=2 context_parallel_size=2 cross_entropy_chunks=4",
    "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=zb-v cross_entropy_chunks=8",
  };

  (void) state;
  check_bits (LLAMA "precision=fp32 mtp_num_layers=2 ", strategies, G_N_ELEMENTS (strategies));
}

/* chunked logits in bf16 and fp16, with gradients of 16 or 32 bits; fp16 jobs also scale the
 * loss */
static void
chunks_give_the_bits_of_whole_logits_in_sixteen_bits (void **state)
{
  static const char *const strategies[] = {
    "gpus=1 micro_batch_size=2 cross_entropy_chunks=16",
    "gpus=2 tensor_model_parallel_size=2 micro_batch_size=2 cross_entropy_chunks=2",
  };
  static const char *const types[] = { "precision=bf16 ",
                                       "precision=bf16 grad_reduce_in_fp32=true ",
                                       "precision=fp16 ",
                                       "precision=fp32 enable_autocast=true autocast_dtype=bf16 " };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (types); i++) {
    g_autofree char *model = g_strconcat (LLAMA, types[i], NULL);
    check_bits (model, strategies, G_N_ELEMENTS (strategies));
  }
}

static void
check_near (const char *model, const char *const *strategies, unsigned n)
{
  g_autofree char *alone = g_strconcat (model, "gpus=1", NULL);
  struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = STEPS });

  for (unsigned i = 0; i < n; i++) {
    g_autofree char *words = g_strconcat (model, LINEAR, strategies[i], NULL);
    struct real_result chunks =
        weft_test_run (&(struct real_run){ .words = words, .steps = STEPS, .poison = TRUE });
    if (!weft_test_is_near (&one, &chunks, STEPS))
      fail_msg ("%s: losses %.9g %.9g, wanted %.9g %.9g", words, chunks.loss[0], chunks.loss[1],
                one.loss[0], one.loss[1]);
  }
}

/* In fast order a job may cut head and loss into any number of chunks of tokens. The gradient of
 * the head is then summed chunk by chunk, so the results are near those of unchunked logits, but
 * not bitwise equal. */
static void
fast_order_adds_chunks_in_turn (void **state)
{
  static const char *const strategies[] = {
    "gpus=1 micro_batch_size=4 cross_entropy_chunks=4",
    "gpus=1 micro_batch_size=4 cross_entropy_chunks=32 gradient_accumulation_fusion=true",
    "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true cross_entropy_chunks=2",
    "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3 cross_entropy_chunks=4",
    "gpus=2 distributed_config=fsdp2 cross_entropy_chunks=16",
    "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1 cross_entropy_chunks=4",
  };
  static const char *const models[] = { LLAMA "precision=fp32 reduction_order=fast ",
                                        GPT2 "precision=fp32 reduction_order=fast " };
  static const char predicts[] = LLAMA "precision=fp32 reduction_order=fast mtp_num_layers=2 ";

  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    check_near (models[m], strategies, G_N_ELEMENTS (strategies));
  check_near (predicts, strategies, 3);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_chunk_is_four_kernels_and_reads_its_logits_once),
  cmocka_unit_test (the_peak_falls_by_the_logits_of_other_chunks),
  cmocka_unit_test (chunks_are_as_many_as_the_products_bear),
  cmocka_unit_test (ranks_that_share_the_vocabulary_meet_in_each_chunk),
  cmocka_unit_test (the_bucket_of_the_head_waits_for_its_last_chunk),
  cmocka_unit_test (the_last_layer_is_gathered_beside_the_head),
  cmocka_unit_test (chunks_give_the_bits_of_whole_logits),
  cmocka_unit_test (predictions_go_chunk_by_chunk_too),
  cmocka_unit_test (chunks_give_the_bits_of_whole_logits_in_sixteen_bits),
  cmocka_unit_test (fast_order_adds_chunks_in_turn),
};

WEFT_TESTS (tests)
