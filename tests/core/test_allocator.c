/* Memory of software with a caching allocator. Each test turns on one mechanism of
 * core/plan/allocator.c and compares the bytes in use with the size of the tensors that this
 * mechanism adds. */
#include "core/plan/allocator.h"
#include "core/report/report.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>

/* The job of these tests: llama-nano with a large vocabulary, so that logits and embedding are the
 * largest tensors. */
#define JOB                                                                                        \
  "model=llama-nano num_layers=2 vocab_size=32768 topology=dgx-h100 precision=bf16 "               \
  "global_batch_size=8 live_memory=1 allocator_block=1 copies_gradients=1 "

static struct weft_allocated
run (const char *words, const char *more)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s%s", words, more);
  return weft_allocator_run (&plan->job, plan->role[0]);
}

static void
blocks_in_use_are_live_buffers (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "gpus=1");
  g_autoptr (weft_plan) coarse = weft_test_plan (JOB "gpus=1 allocator_block=2097152");
  struct weft_allocated exact = weft_allocator_run (&plan->job, plan->role[0]);

  (void) state;
  assert_true (exact.peak == (double) plan->memory[0].live[WEFT_POOL_DEVICE]);
  assert_int_equal (exact.op, plan->memory[0].peak_op[WEFT_POOL_DEVICE]);
  assert_true (fmod (weft_allocator_run (&coarse->job, coarse->role[0]).peak, 2097152) == 0);
  assert_true (weft_allocator_run (&coarse->job, coarse->role[0]).peak > exact.peak);
}

static void
cached_blocks_fill_no_more_than_the_gpu (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "gpus=1 cached_share=0.5");
  struct weft_allocated a = weft_allocator_run (&plan->job, plan->role[0]);
  double libraries = (double) weft_plan_reserved_bytes (plan, 0);
  double left = plan->job.cluster.f.gpu_memory - libraries;

  (void) state;
  assert_true (a.peak > a.permanent);
  assert_true (weft_allocator_reserved (&plan->job, plan->role[0], &a, libraries) ==
               a.peak + (a.peak - a.permanent) / 2);
  a.shared = left - 1 - a.permanent;
  a.peak = left - 1;
  assert_true (weft_allocator_reserved (&plan->job, plan->role[0], &a, libraries) == left);
  a.peak = left + 1;
  assert_true (weft_allocator_reserved (&plan->job, plan->role[0], &a, libraries) == left + 1);
}

/* Returns the number of elements of the weight matrices of all layers, counting each shape once. */
static double
distinct_elements (const weft_program *p)
{
  double sum = 0;

  for (uint32_t i = 0; i < p->n_param; i++) {
    gboolean seen = p->param[i].layer == WEFT_NO_LAYER || p->param[i].columns == 1;
    for (uint32_t j = 0; j < i; j++)
      seen |= p->param[j].layer != WEFT_NO_LAYER && p->param[j].rows == p->param[i].rows &&
              p->param[j].columns == p->param[i].columns;
    sum += seen ? 0 : (double) (p->param[i].rows * p->param[i].columns);
  }
  return sum;
}

static void
dummy_gradients_are_kept_once_a_shape (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "gpus=1");
  const char *fused = "gpus=1 gradient_accumulation_fusion=true dummy_weight_gradients=1";
  double bytes = 2 * distinct_elements (plan->role[0]);

  (void) state;
  assert_true (bytes > 0);
  assert_true (run (JOB, fused).permanent - run (JOB, "gpus=1").permanent == bytes);
  assert_true (run (JOB, "gpus=1 dummy_weight_gradients=1").permanent ==
               run (JOB, "gpus=1").permanent);
}

static void
an_embedding_gradient_is_dense (void **state)
{
  /* Sequences of 8 tokens have small activations, so the peak of memory is where the gradient of
   * the embedding is alive. */
  const char *words = JOB "seq_length=8 max_position_embeddings=8 gpus=1 "
                          "gradient_accumulation_fusion=true ";
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  double table = 32768.0 * (double) plan->job.model.hidden_size;
  struct weft_allocated dense = run (words, "dense_embedding_gradient=1");

  (void) state;
  assert_true (dense.peak - run (words, "").peak > 0.5 * 2 * table);
  assert_int_equal (plan->role[0]->op[dense.op].kind, WEFT_OP_EMBED_BWD);
}

static void
the_loss_copies_logits_unless_it_is_fused (void **state)
{
  const char *fused = "gpus=1 loss_logit_bytes=8 cross_entropy_loss_fusion=true "
                      "cross_entropy_fusion_impl=te";
  const char *half4 = "gpus=2 tensor_model_parallel_size=2 loss_logit_bytes=4";
  const char *half8 = "gpus=2 tensor_model_parallel_size=2 loss_logit_bytes=8";
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "gpus=1");
  double logits = 32768.0 * (double) plan->job.model.seq_length;

  (void) state;
  /* With 4 or more bytes per copied logit, the loss is where memory peaks. */
  assert_true (run (JOB, "gpus=1 loss_logit_bytes=8").peak -
                   run (JOB, "gpus=1 loss_logit_bytes=4").peak == 4 * logits);
  assert_true (run (JOB, half8).peak - run (JOB, half4).peak == 2 * logits);
  assert_true (run (JOB, fused).peak == run (JOB, "gpus=1").peak);
}

static void
gradients_in_two_precisions (void **state)
{
  const char *narrow = "gpus=2 use_distributed_optimizer=true ";
  const char *wide = "gpus=2 grad_reduce_in_fp32=true ";
  g_autofree char *freed = g_strconcat (narrow, "permanent_fp32_gradients=0", NULL);
  g_autofree char *kept = g_strconcat (wide, "keeps_narrow_gradients=1", NULL);
  g_autoptr (weft_plan) plan = weft_test_plan ("%s%s", JOB, wide);
  double gradients = 0;

  (void) state;
  for (uint32_t i = 0; i < plan->role[0]->n_buf; i++) {
    const struct weft_buf *b = &plan->role[0]->buf[i];
    if (b->kind == WEFT_BUF_GRADIENTS && b->permanent && b->base == WEFT_NO_BUF)
      gradients += (double) b->bytes;
  }
  /* Gradients in bf16 with use_distributed_optimizer: the optimizer has an fp32 copy of the
   * gradients, which is sharded over the two ranks. */
  assert_true (fabs (run (JOB, narrow).permanent - run (JOB, freed).permanent - gradients / 2) <
               1e-3 * gradients);
  assert_true (run (JOB, kept).permanent - run (JOB, wide).permanent == gradients / 2);
}

static void
converted_weights_are_in_use_for_one_op (void **state)
{
  const char *words = "model=llama-nano num_layers=8 topology=dgx-h100 precision=fp8 gpus=2 "
                      "distributed_config=fsdp2 live_memory=1 allocator_block=1 ";

  (void) state;
  assert_true (run (words, "fp8_weight_lifetime=0").peak < run (words, "").peak);
}

/* Returns the bytes that the allocator reserves on a GPU without other memory in use. */
static double
reserved (const char *words, const char *more)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s%s", words, more);
  struct weft_allocated a = weft_allocator_run (&plan->job, plan->role[0]);

  return weft_allocator_reserved (&plan->job, plan->role[0], &a, 0);
}

/* Returns the number of elements that one rank of the job updates. */
static double
updated_elements (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s%s", JOB, words);
  const weft_program *p = plan->role[0];
  double sum = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_ADAM)
      sum += (double) weft_op_shape (p, op)->dim[0];
  return sum;
}

/* With flat_update the live bytes of a ZeRO-1 update stay the same, but the allocator reserves a
 * block for each flat tensor, beside the blocks of the layers. */
static void
flat_tensors_of_the_update_have_their_own_blocks (void **state)
{
  const char *words = "gpus=2 use_distributed_optimizer=true permanent_fp32_gradients=0 "
                      "update_bytes=8 ";
  g_autofree char *flat = g_strconcat (words, "flat_update=1 ", NULL);
  g_autofree char *copied = g_strconcat (flat, "flat_gradient_bytes=2", NULL);
  struct weft_allocated a = run (JOB, words), b = run (JOB, flat);
  double shard = updated_elements (words);

  (void) state;
  assert_true (shard > 0 && a.flat == 0);
  assert_true (b.peak == a.peak && b.permanent == a.permanent);
  assert_true (fabs (b.flat - (4 + 8) * shard) < 1e-3 * b.flat);
  assert_true (reserved (JOB, words) == a.peak);
  assert_true (reserved (JOB, flat) == b.permanent + b.shared + b.flat);
  assert_true (reserved (JOB, flat) > a.peak);
  assert_true (fabs (run (JOB, copied).flat - (2 + 4 + 8) * shard) < 1e-3 * b.flat);
}

static void
buckets_copy_gradients_for_their_reduction (void **state)
{
  const char *wide = "gpus=2 grad_reduce_in_fp32=true keeps_narrow_gradients=1 flat_update=1 ";
  g_autofree char *tensor = g_strconcat (wide, "reduction_copy_elements=1000", NULL);
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "gpus=1");
  double all = updated_elements ("gpus=1");

  (void) state;
  assert_true (run (JOB, "gpus=1 flat_update=1").flat == 0);
  assert_true (run (JOB, "gpus=1 flat_update=1 reduction_copy_elements=1000").flat == 2000);
  assert_true (run (JOB, "gpus=1 flat_update=1 reduction_copy_elements=1e12").flat == 2 * all);
  /* The embedding is the largest tensor. */
  assert_true (run (JOB, tensor).flat == 4 * 32768.0 * (double) plan->job.model.hidden_size);
}

/* With flat_update = 2 the norm converts the embedding, which is the largest tensor, to fp64 in the
 * block that later has the fp32 gradients; gradients in bf16 are not in use during the update. */
static void
deepspeed_frees_gradients_and_takes_the_norm_in_fp64 (void **state)
{
  const char *flat = "gpus=2 use_distributed_optimizer=true permanent_fp32_gradients=0 "
                     "flat_update=1";
  const char *deepspeed = "gpus=2 use_distributed_optimizer=true permanent_fp32_gradients=0 "
                          "flat_update=2";
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "gpus=1");
  double table = 32768.0 * (double) plan->job.model.hidden_size;
  double shard = updated_elements (deepspeed), all = updated_elements ("gpus=1");

  (void) state;
  assert_true (shard > table && 8 * table > 4 * shard);
  assert_true (fabs (run (JOB, deepspeed).flat - run (JOB, flat).flat - (8 * table - 4 * shard)) <
               1e-3 * table);
  /* the block of the norm also has room for a flat copy in 16 bits, but not for twice as much */
  g_autofree char *copied = g_strconcat (deepspeed, " flat_gradient_bytes=2", NULL);
  g_autofree char *wider = g_strconcat (deepspeed, " flat_gradient_bytes=8", NULL);
  assert_true (8 * table < 8 * shard);
  assert_true (run (JOB, copied).flat == run (JOB, deepspeed).flat);
  assert_true (fabs (run (JOB, wider).flat - run (JOB, deepspeed).flat - 8 * shard) < 1e-3 * shard);
  assert_true (fabs (run (JOB, flat).permanent - run (JOB, deepspeed).permanent - 2 * all) <
               1e-3 * all);
}

static void
renewed_gradients_have_two_sets_of_blocks (void **state)
{
  const char *wide = "gpus=2 grad_reduce_in_fp32=true flat_update=1 ";
  g_autofree char *renewed = g_strconcat (wide, "keeps_narrow_gradients=2 ", NULL);
  g_autofree char *copied = g_strconcat (renewed, "reduction_copy_elements=1000", NULL);
  g_autofree char *whole = g_strconcat (renewed, "use_distributed_optimizer=true ", NULL);
  g_autofree char *replayed = g_strconcat (whole, "optimizer_groups=2", NULL);
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "gpus=1");
  double all = updated_elements ("gpus=1");

  (void) state;
  assert_true (run (JOB, renewed).permanent == run (JOB, wide).permanent);
  assert_true (run (JOB, renewed).flat == 2 * 2 * all);
  /* A replay finds out whether new gradients fit into the old blocks. Buckets that ranks share are
   * padded. */
  double once = run (JOB, whole).flat - run (JOB, replayed).flat;
  assert_true (once >= 2 * all && once < 2.002 * all);
  /* The embedding is the largest tensor that is converted to fp32. */
  assert_true (run (JOB, copied).flat - run (JOB, renewed).flat ==
               4 * 32768.0 * (double) plan->job.model.hidden_size);
}

static void
shards_exist_in_two_precisions (void **state)
{
  const char *words = "gpus=2 distributed_config=fsdp2 flat_update=1 update_bytes=8";
  g_autofree char *copied = g_strconcat (words, " shard_copy_bytes=4", NULL);

  (void) state;
  assert_true (run (JOB, copied).permanent - run (JOB, words).permanent ==
               4 * updated_elements (words));
  assert_true (run (JOB, words).flat == 0);
}

/* Shards of weights, gradients and two moments are 2 B an element each instead of 4. */
static void
shards_may_be_narrow (void **state)
{
  const char *words = "gpus=2 distributed_config=fsdp2";
  g_autofree char *narrow = g_strconcat (words, " narrow_shards=1", NULL);

  (void) state;
  assert_true (run (JOB, words).permanent - run (JOB, narrow).permanent ==
               4 * 2 * updated_elements (words));
  assert_true (run (JOB, "gpus=2 narrow_shards=1").permanent == run (JOB, "gpus=2").permanent);
}

/* A stack whose software has a caching allocator instead of an arena. Plans and drafts of a search
 * must report the memory that the allocator takes. Ops never wait for memory, even if the arena
 * would exceed the GPU. */
static void
a_plan_counts_blocks_instead_of_an_arena (void **state)
{
  const char *words = JOB "gpus=1 loss_logit_bytes=8 cached_share=0.5 gpu_memory=1GB "
                          "context_bytes=0 workspace_bytes=0 communicator_bytes=0";
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (weft_plan) draft = weft_plan_new_draft (&plan->job, WEFT_PLAN_PLACED, NULL, NULL);
  g_autoptr (weft_report) report = weft_report_new (plan, NULL);
  const struct weft_report_role *role = &report->role[0];
  struct weft_allocated allocated = weft_allocator_run (&plan->job, plan->role[0]);
  uint64_t sum = 0;

  (void) state;
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    sum += role->by_kind[kind];
  assert_int_equal (role->peak_bytes, (uint64_t) allocated.peak);
  assert_int_equal (sum, role->peak_bytes);
  assert_int_equal (role->padding, 0);
  assert_int_equal (role->peak_op, allocated.op);
  assert_true (role->peak_bytes != weft_plan_arena_bytes (plan, 0));
  assert_int_equal (weft_plan_worst_bytes (draft), weft_plan_worst_bytes (plan));
  assert_int_equal (plan->memory[0].n_wait, 0);
  assert_int_equal (role->cached_bytes,
                    (uint64_t) weft_allocator_reserved (&plan->job, plan->role[0], &allocated, 0) -
                        role->peak_bytes);
}

/* Bytes of fp8 codes of the weights that the program converts in one microbatch. */
static double
converted_bytes (const weft_program *p)
{
  double bytes = 0;

  for (uint32_t i = 0; i < p->n_param; i++)
    if (p->param[i].layer != WEFT_NO_LAYER && p->param[i].columns > 1)
      bytes += (double) (p->param[i].rows * p->param[i].columns);
  return bytes;
}

/* With fp8_weight_lifetime = 2 the codes of all weights and their transposed copies exist during
 * the whole step, but not if weights are sharded. With fp8_weight_lifetime = 3 the bytes of 16-bit
 * weights hold the codes, so converted copies take no bytes. */
static void
converted_weights_are_kept_for_a_step (void **state)
{
  const char *words = "model=llama-nano num_layers=8 topology=dgx-h100 precision=fp8 gpus=2 "
                      "global_batch_size=8 live_memory=1 allocator_block=1 own_kernels=0 ";
  const char *sharded = "distributed_config=fsdp2 ", *short_lived = "fp8_weight_lifetime=1";
  g_autofree char *fsdp2 = g_strconcat (words, sharded, NULL);
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);

  (void) state;
  double kept = run (words, "fp8_weight_lifetime=2").permanent;
  assert_true (kept - run (words, short_lived).permanent == 2 * converted_bytes (plan->role[0]));
  assert_true (run (words, "fp8_weight_lifetime=3").permanent ==
               run (words, short_lived).permanent);
  assert_true (run (words, "fp8_weight_lifetime=3").peak < run (words, short_lived).peak);
  assert_true (run (fsdp2, "fp8_weight_lifetime=2").peak == run (fsdp2, short_lived).peak);
}

/* Bytes of Adam's moments in a program. */
static double
moment_bytes (const weft_program *p)
{
  double bytes = 0;

  for (uint32_t i = 0; i < p->n_buf; i++)
    if (g_str_has_prefix (p->name[p->buf[i].name], "exp_avg") && p->buf[i].base == WEFT_NO_BUF)
      bytes += (double) p->buf[i].bytes;
  return bytes;
}

/* With late_moments the passes of the first step need less memory by Adam's moments, but its update
 * needs as much as that of every step. */
static void
the_first_update_allocates_moments (void **state)
{
  const char *early = JOB "gpus=1 loss_logit_bytes=8 ";
  g_autoptr (weft_plan) plan = weft_test_plan ("%slate_moments=1", early);
  g_autoptr (weft_plan) old = weft_test_plan ("%slate_moments=0", early);
  const weft_program *p = plan->role[0];
  struct weft_allocated first = weft_allocator_run_first (&plan->job, p),
                        later = weft_allocator_run (&plan->job, p);
  double moments = moment_bytes (p);

  (void) state;
  /* Beside the moments a few numbers, such as the gradient norm, are state of the optimizer. */
  assert_true (moments > 1e6);
  assert_true (fabs (later.permanent - first.permanent - moments) < 1e3);
  assert_int_not_equal (p->op[later.op].kind, WEFT_OP_ADAM);
  assert_true (later.peak > first.peak);
  assert_true (first.peak >= fmax (later.peak - moments - 1e3, later.permanent));
  assert_true (weft_allocator_run (&old->job, old->role[0]).peak == later.peak);
  assert_true (weft_allocator_run_first (&old->job, old->role[0]).peak == later.peak);
}

/* Weights that are stored in fp8 are made from copies of all fp32 weights, which exist at the end
 * of the update. Without moments in the passes, that is where the memory of this job peaks. */
static void
fp8_weights_are_made_from_copies_of_all_weights (void **state)
{
  const char *words = "model=llama-nano num_layers=8 topology=dgx-h100 precision=fp8 gpus=1 "
                      "seq_length=8 max_position_embeddings=8 global_batch_size=1 live_memory=1 "
                      "allocator_block=1 own_kernels=0 late_moments=1 ";
  g_autoptr (weft_plan) plan = weft_test_plan ("%sfp8_weight_lifetime=3", words);
  g_autoptr (weft_plan) copies =
      weft_test_plan ("%sfp8_weight_lifetime=3 fp8_copy_bytes=2", words);
  g_autoptr (weft_plan) kept = weft_test_plan ("%sfp8_weight_lifetime=2 fp8_copy_bytes=2", words);
  g_autoptr (weft_plan) none = weft_test_plan ("%sfp8_weight_lifetime=2", words);
  double more = weft_allocator_run_first (&copies->job, copies->role[0]).peak -
                weft_allocator_run_first (&plan->job, plan->role[0]).peak;

  (void) state;
  assert_true (fabs (more / (2 * converted_bytes (plan->role[0])) - 1) < 1e-3);
  assert_true (weft_allocator_run_first (&kept->job, kept->role[0]).peak ==
               weft_allocator_run_first (&none->job, none->role[0]).peak);
}

/* A job of DeepSpeed whose allocations are replayed. Elements of matrices on one rank of two
 * stages: 32768 x 1024 of the embedding, and 8 layers with 12 x 1024^2 each. */
#define REPLAYED                                                                                   \
  "model=gpt2-nano num_layers=16 hidden_size=1024 ffn_hidden_size=4096 num_attention_heads=16 "    \
  "num_query_groups=16 kv_channels=64 vocab_size=32768 max_position_embeddings=128 "               \
  "seq_length=128 topology=dgx-h100 precision=fp16 gpus=8 global_batch_size=64 "                   \
  "micro_batch_size=1 pipeline_model_parallel_size=2 use_distributed_optimizer=true "              \
  "recompute_granularity=full recompute_method=uniform recompute_num_layers=1 live_memory=1 "      \
  "flat_update=2 late_moments=0 launch_blocking=1 optimizer_groups=2 "                             \
  "reduction_copy_elements=5e8 "

/* The replay reserves at least what is in use, and the flat tensors of two groups are smaller than
 * those of one, so that they fit into more of the free blocks. */
static void
deepspeed_reserves_blocks_by_group (void **state)
{
  (void) state;
  double one = reserved (REPLAYED, "optimizer_groups=1"), two = reserved (REPLAYED, "");

  assert_true (two >= run (REPLAYED, "").peak);
  assert_true (two < one);
  assert_true (reserved (REPLAYED, "optimizer_groups=0") != two);
}

/* If the host does not wait for kernels, each bucket of the gradients has a block of its own. */
static void
buckets_need_blocks_until_the_host_waits (void **state)
{
  const char *small = "reduction_copy_elements=2e7", *late = "reduction_copy_elements=2e7 "
                                                             "launch_blocking=0";

  (void) state;
  assert_true (reserved (REPLAYED, late) > reserved (REPLAYED, small) + 4e7);
}

/* More replicas update fewer elements each, which is 16 bytes of fp32 weights, moments and
 * gradients for each element. */
static void
replicas_reserve_less (void **state)
{
  double few = reserved (REPLAYED, ""), many = reserved (REPLAYED, "gpus=32");

  (void) state;
  assert_true (few - many > 12 * 134e6 * (1. / 4 - 1. / 16) * 0.8);
  assert_true (few - many < 18 * 134e6 * (1. / 4 - 1. / 16) * 1.2);
}

/* Once the pipeline is full, further microbatches take the same blocks. */
static void
longer_runs_reserve_the_same (void **state)
{
  (void) state;
  assert_true (reserved (REPLAYED, "global_batch_size=64") ==
               reserved (REPLAYED, "global_batch_size=256"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (deepspeed_reserves_blocks_by_group),
  cmocka_unit_test (buckets_need_blocks_until_the_host_waits),
  cmocka_unit_test (replicas_reserve_less),
  cmocka_unit_test (longer_runs_reserve_the_same),
  cmocka_unit_test (a_plan_counts_blocks_instead_of_an_arena),
  cmocka_unit_test (blocks_in_use_are_live_buffers),
  cmocka_unit_test (cached_blocks_fill_no_more_than_the_gpu),
  cmocka_unit_test (dummy_gradients_are_kept_once_a_shape),
  cmocka_unit_test (an_embedding_gradient_is_dense),
  cmocka_unit_test (the_loss_copies_logits_unless_it_is_fused),
  cmocka_unit_test (gradients_in_two_precisions),
  cmocka_unit_test (converted_weights_are_in_use_for_one_op),
  cmocka_unit_test (converted_weights_are_kept_for_a_step),
  cmocka_unit_test (flat_tensors_of_the_update_have_their_own_blocks),
  cmocka_unit_test (buckets_copy_gradients_for_their_reduction),
  cmocka_unit_test (deepspeed_frees_gradients_and_takes_the_norm_in_fp64),
  cmocka_unit_test (renewed_gradients_have_two_sets_of_blocks),
  cmocka_unit_test (shards_exist_in_two_precisions),
  cmocka_unit_test (shards_may_be_narrow),
  cmocka_unit_test (the_first_update_allocates_moments),
  cmocka_unit_test (fp8_weights_are_made_from_copies_of_all_weights),
};
WEFT_TESTS (tests)
