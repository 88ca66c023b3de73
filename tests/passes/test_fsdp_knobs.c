/* Knobs of Megatron-FSDP besides its levels: how gradients are averaged, which weights are updated,
 * which modules are units, and how weights are initialised. */
#include "core/job/unit_modules.h"
#include "tests/made/questions.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define LAYERS 6
#define MICROS 3
#define MODEL                                                                                      \
  "num_layers=6 hidden_size=16 num_attention_heads=2 kv_channels=8 ffn_hidden_size=24 "            \
  "vocab_size=64 seq_length=16 activation=swiglu normalization=rmsnorm "                           \
  "share_embeddings_and_output_weights=false use_megatron_fsdp=true "
#define FOUR MODEL "topology=dgx-h100 gpus=4 global_batch_size=12 "
#define UNITS                                                                                      \
  FOUR "average_in_collective=true zero_dp_strategy=3 suggested_communication_unit_size=1 "
#define REAL MODEL "topology=cpu gpus=4 global_batch_size=8 "

/* --------------------------------------------------------------- questions */

static uint32_t
count_named (const weft_program *p, const char *word, uint32_t k)
{
  g_autofree char *name = g_strdup_printf ("%s %u", word, k);
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    n += g_str_equal (p->name[p->op[op].name], name);
  return n;
}

static const struct weft_param *
param_named (const weft_program *p, const char *name, uint32_t layer)
{
  for (uint32_t i = 0; i < p->n_param; i++)
    if (p->param[i].layer == layer && g_str_equal (p->name[p->param[i].name], name))
      return &p->param[i];
  fail_msg ("no %s", name);
  return NULL;
}

static uint32_t
bucket_of (const weft_program *p, const char *name, uint32_t layer)
{
  return param_named (p, name, layer)->bucket;
}

/* --------------------------------------------- gradient_reduce_div_fusion */

struct division {
  uint32_t scales, fused, sums;
};

static struct division
division (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan (FOUR "zero_dp_strategy=2 %s", words);
  const weft_program *p = plan->role[0];
  struct division found = { count_kind (p, WEFT_OP_SCALE), 0, 0 };

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_REDUCE_SCATTER) {
      found.fused += p->op[op].reduce == WEFT_REDUCE_PREMUL;
      found.sums += p->op[op].reduce == WEFT_REDUCE_SUM;
      assert_int_equal (weft_op_shape (p, op)->dim[1],
                        p->op[op].reduce == WEFT_REDUCE_PREMUL ? 4 : 0);
    }
  return found;
}

static void
gradient_reduce_div_fusion_divides_in_the_collective (void **state)
{
  struct division fused = division ("precision=fp32");
  struct division apart = division ("precision=fp32 gradient_reduce_div_fusion=false");

  (void) state;
  assert_int_equal (fused.scales + fused.sums, 0);
  assert_true (fused.fused > 0);
  assert_int_equal (apart.fused, 0);
  assert_int_equal (apart.sums, fused.fused);
  /* Without gradient_reduce_div_fusion, one kernel divides the gradients before each collective. */
  assert_int_equal (apart.scales, fused.fused);
}

static void
gradient_reduce_div_fusion_leaves_bf16_gradients_to_a_kernel (void **state)
{
  struct division narrow = division ("precision=bf16 grad_reduce_in_fp32=false");
  struct division wide = division ("precision=bf16 grad_reduce_in_fp32=true");
  struct division average = division ("precision=fp32 average_in_collective=true");

  (void) state;
  assert_true (narrow.fused == 0 && narrow.scales == narrow.sums && narrow.sums > 0);
  assert_true (wide.scales == 0 && wide.fused > 0);
  assert_int_equal (average.scales + average.fused + average.sums, 0);
}

/* With gradient_reduce_div_fusion, the collective divides gradients; without it, a kernel does. In
 * both cases each gradient is divided before the sum, so the bits are equal. */
static void
a_fused_division_gives_the_bits_of_one_apart (void **state)
{
  static const char *const words[] = {
    REAL "zero_dp_strategy=3 reduction_order=fast precision=fp32",
    REAL "zero_dp_strategy=1 reduction_order=fast precision=fp32",
    REAL "zero_dp_strategy=2 reduction_order=fast precision=fp32 "
         "num_distributed_optimizer_instances=2",
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (words); i++) {
    g_autofree char *apart = g_strconcat (words[i], " gradient_reduce_div_fusion=false", NULL);
    struct real_result a =
        weft_test_run (&(struct real_run){ .words = words[i], .steps = 2, .poison = TRUE });
    struct real_result b = weft_test_run (&(struct real_run){ .words = apart, .steps = 2 });
    assert_true (weft_test_same_bits (&a, &b, 2));
  }
}

static void
in_canonical_order_there_is_nothing_to_fuse (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (REAL "zero_dp_strategy=2");

  (void) state;
  for (uint32_t op = 0; op < plan->role[0]->n_op; op++)
    assert_true (plan->role[0]->op[op].reduce != WEFT_REDUCE_PREMUL);
  assert_int_equal (count_kind (plan->role[0], WEFT_OP_SCALE), 0);
}

/* -------------------------------------------------- preserve_fp32_weights */

static void
preserve_fp32_weights_off_updates_what_kernels_read (void **state)
{
  (void) state;
  for (int on = 0; on < 2; on++) {
    g_autoptr (weft_plan) plan = weft_test_plan (
        FOUR "zero_dp_strategy=3 precision=bf16 preserve_fp32_weights=%s", on ? "true" : "false");
    const weft_program *p = plan->role[0];
    for (uint32_t op = 0; op < p->n_op; op++)
      if (p->op[op].kind == WEFT_OP_ADAM) {
        const struct weft_use *use = &p->uses[p->op[op].uses];
        assert_int_equal (p->buf[use[0].buf].dtype, WEFT_BF16);
        assert_int_equal (use[3].buf == WEFT_NO_BUF, !on);
        /* bytes per element that Adam reads and writes: bf16 gradient 2, both moments 16, then
         * master weight 8 and bf16 weight 2, or bf16 weight 4 if there is no master */
        assert_true (weft_op_bytes (p, op) ==
                     weft_op_shape (p, op)->dim[0] * (on ? 2 + 16 + 8 + 2 : 2 + 16 + 4));
      }
  }
}

/* preserve_fp32_weights = false: Adam updates bf16 weights directly. The results differ from those
 * with fp32 masters, but are the same on any number of ranks. */
static void
weights_that_are_updated_themselves_are_those_of_one_rank (void **state)
{
  static const char *const strategies[] = {
    "gpus=2 zero_dp_strategy=1",
    "gpus=4 zero_dp_strategy=2",
    "gpus=4 zero_dp_strategy=3 pipeline_model_parallel_size=2",
    "gpus=8 zero_dp_strategy=3 num_distributed_optimizer_instances=2 "
    "outer_dp_sharding_strategy=optim",
  };

  (void) state;
  for (int fp32 = 0; fp32 < 2; fp32++) {
    const char *precision = fp32 ? "precision=bf16 grad_reduce_in_fp32=true" : "precision=bf16";
    g_autofree char *alone =
        g_strdup_printf (REAL "preserve_fp32_weights=false gpus=1 %s", precision);
    g_autofree char *kept = g_strdup_printf (REAL "gpus=1 %s", precision);
    struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = 3 });
    struct real_result with = weft_test_run (&(struct real_run){ .words = kept, .steps = 3 });
    assert_true (isfinite (one.loss[2]) && one.loss[2] < one.loss[0]);
    assert_false (weft_test_same_bits (&one, &with, 3));
    for (unsigned i = 0; i < G_N_ELEMENTS (strategies); i++) {
      g_autofree char *words =
          g_strdup_printf (REAL "preserve_fp32_weights=false %s %s", precision, strategies[i]);
      weft_test_check_bits (words, 3, &one, i);
    }
  }
}

/* --------------------------------------------- megatron_fsdp_unit_modules */

static char *
program_of (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  return weft_program_print (plan->role[0]);
}

static void
assert_same_program (const char *words, const char *others)
{
  g_autofree char *a = program_of (words), *b = program_of (others);
  assert_string_equal (a, b);
}

static void
layers_are_units_where_nothing_is_said_and_swallow_their_halves (void **state)
{
  (void) state;
  assert_same_program (UNITS, UNITS "megatron_fsdp_unit_modules=layer");
  assert_same_program (UNITS, UNITS "megatron_fsdp_unit_modules=TransformerLayer");
  assert_same_program (UNITS, UNITS "megatron_fsdp_unit_modules=mlp,layer,attention");
}

static void
halves_of_layers_are_gathered_and_reduced_apart (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (UNITS "megatron_fsdp_unit_modules=attention,mlp");
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (n_buckets (p), 2 * LAYERS + 2);
  for (uint32_t l = 0; l < LAYERS; l++) {
    uint32_t first = bucket_of (p, "norm1.weight", l), second = bucket_of (p, "norm2.weight", l);
    assert_int_equal (bucket_of (p, "proj.weight", l), first);
    assert_int_equal (bucket_of (p, "fc2.weight", l), second);
    assert_int_equal (second, first + 1);
    for (uint32_t k = first; k <= second; k++) {
      assert_int_equal (count_named (p, "gather", k), 2 * MICROS);
      assert_int_equal (count_named (p, "bucket", k), MICROS);
    }
  }
}

/* Checks that the weights of multi-latent attention are in the unit of attention. Selective
 * recompute runs a module again while its unit is gathered for backward, so no unit is gathered a
 * third time. */
static void
check_latent_units (const char *recompute)
{
  static const char *const latent[] = { "q_down.weight", "q_latent_norm.weight",
                                        "q_up.weight",   "kv_down.weight",
                                        "kv_up.weight",  "kv_latent_norm.weight" };
  g_autoptr (weft_plan) plan =
      weft_test_plan (UNITS "megatron_fsdp_unit_modules=attention,mlp position_embedding_type=rope "
                            "kv_lora_rank=8 q_lora_rank=8 qk_head_dim=8 qk_pos_emb_head_dim=4 "
                            "v_head_dim=8 kv_channels=12 num_query_groups=2 %s",
                      recompute);
  const weft_program *p = plan->role[0];

  assert_int_equal (n_buckets (p), 2 * LAYERS + 2);
  for (uint32_t l = 0; l < LAYERS; l++) {
    uint32_t first = bucket_of (p, "norm1.weight", l);
    for (unsigned i = 0; i < G_N_ELEMENTS (latent); i++)
      assert_int_equal (bucket_of (p, latent[i], l), first);
    assert_int_equal (bucket_of (p, "norm2.weight", l), first + 1);
    for (uint32_t k = first; k <= first + 1; k++)
      assert_int_equal (count_named (p, "gather", k), 2 * MICROS);
  }
}

static void
latent_weights_are_in_the_unit_of_attention (void **state)
{
  (void) state;
  check_latent_units ("");
  check_latent_units ("recompute_granularity=selective recompute_modules=mla_up_proj");
  check_latent_units ("recompute_granularity=selective recompute_modules=mlp");
}

/* Returns the largest number of gathered bytes that are alive at once. Without prefetch these
 * belong to one unit and to all parameters outside units. */
static uint64_t
most_gathered (const char *modules)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan (UNITS "vocab_size=50 megatron_fsdp_unit_modules=%s", modules);
  const weft_program *p = plan->role[0];
  uint64_t most = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    uint64_t alive = 0;
    for (uint32_t b = 0; b < p->n_buf; b++)
      if (p->buf[b].kind == WEFT_BUF_GATHERED && p->buf[b].base == WEFT_NO_BUF &&
          p->buf[b].first <= op && p->buf[b].last >= op)
        alive += p->buf[b].bytes;
    most = MAX (most, alive);
  }
  return most;
}

static void
smaller_units_need_less_memory_at_a_time (void **state)
{
  uint64_t layer = most_gathered ("layer"), halves = most_gathered ("attention,mlp"),
           ends = most_gathered ("attention,mlp,embedding,head"), second = most_gathered ("mlp");

  (void) state;
  assert_true (halves < layer);
  assert_true (ends < halves);
  /* With mlp as the only unit, attention weights are in no unit and stay gathered until the step
   * ends. */
  assert_true (second > layer);
}

static void
what_is_outside_units_is_gathered_once (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (UNITS "megatron_fsdp_unit_modules=mlp");
  const weft_program *p = plan->role[0];

  (void) state;
  for (uint32_t l = 0; l < LAYERS; l++) {
    assert_int_equal (count_named (p, "gather", bucket_of (p, "qkv.weight", l)), 1);
    assert_int_equal (count_named (p, "gather", bucket_of (p, "fc1.weight", l)), 2 * MICROS);
  }
}

static void
ends_that_are_units_come_and_go_with_their_passes (void **state)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan (UNITS "megatron_fsdp_unit_modules=layer,embedding,head");
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (count_named (p, "gather", bucket_of (p, "embedding.weight", WEFT_NO_LAYER)),
                    2 * MICROS);
  assert_int_equal (count_named (p, "gather", bucket_of (p, "head.weight", WEFT_NO_LAYER)),
                    2 * MICROS);
}

static void
units_may_be_named_by_their_classes (void **state)
{
  union weft_model llama = { .family = (int64_t) g_quark_from_static_string ("llama") };
  union weft_model gpt2 = { .family = (int64_t) g_quark_from_static_string ("gpt2") };
  g_autofree char *unknown = NULL;

  (void) state;
#define PATH "transformers.models.llama.modeling_llama."
  assert_int_equal (weft_unit_modules (PATH "LlamaDecoderLayer", &llama, NULL),
                    1u << WEFT_UNIT_LAYER);
  assert_int_equal (weft_unit_modules ("LlamaAttention " PATH "LlamaMLP", &llama, NULL),
                    1u << WEFT_UNIT_ATTENTION | 1u << WEFT_UNIT_MLP);
  assert_int_equal (weft_unit_modules ("GPT2Block", &gpt2, NULL), 1u << WEFT_UNIT_LAYER);
  assert_int_equal (weft_unit_modules ("none", &gpt2, NULL), 0);
  assert_int_equal (weft_unit_modules ("mlp," PATH "LlamaDecoderLayer", &gpt2, &unknown),
                    1u << WEFT_UNIT_MLP);
  assert_string_equal (unknown, PATH "LlamaDecoderLayer");
}

static void
a_module_that_is_not_there_is_refused_with_what_is (void **state)
{
  struct weft_job job;
  g_autoptr (GError) error = NULL;

  (void) state;
  assert_false (weft_test_job (UNITS "megatron_fsdp_unit_modules=atention", &job, &error));
  assert_true (g_str_has_prefix (error->message, "rule unit_modules: "));
  assert_non_null (strstr (error->message, "found atention, did you mean attention?"));
  assert_non_null (strstr (error->message, "layer, attention, mlp, embedding, head"));
}

/* megatron_fsdp_unit_modules decides which parameters are gathered together. The results must keep
 * every bit. */
static void
every_set_of_units_gives_the_bits_of_one_rank (void **state)
{
  static const char *const sets[] = {
    "attention,mlp",
    "mlp,embedding",
    "attention,mlp,embedding,head fsdp_double_buffer=true",
    "layer,embedding,head pipeline_model_parallel_size=2",
    "attention,head recompute_granularity=full recompute_method=uniform recompute_num_layers=2",
    "attention,mlp,embedding,head num_distributed_optimizer_instances=2 "
    "outer_dp_sharding_strategy=optim gpus=8",
  };

  (void) state;
  for (int tied = 0; tied < 2; tied++) {
    const char *head = tied ? "share_embeddings_and_output_weights=true" : "";
    g_autofree char *alone = g_strdup_printf (REAL "gpus=1 %s", head);
    struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = 2 });
    for (unsigned i = 0; i < G_N_ELEMENTS (sets); i++) {
      g_auto (GStrv) part = g_strsplit (sets[i], " ", 2);
      g_autofree char *words =
          g_strdup_printf (REAL "%s zero_dp_strategy=3 megatron_fsdp_unit_modules=%s %s", head,
                           part[0], part[1] ? part[1] : "");
      weft_test_check_bits (words, 2, &one, i);
    }
  }
}

/* --------------------------------------------- init_fsdp_with_meta_device */

static uint64_t
init_bytes (uint32_t gpus, const char *more)
{
  g_autoptr (weft_plan) plan = weft_test_plan (
      MODEL "topology=dgx-h100 precision=fp32 zero_dp_strategy=3 gpus=%u %s", gpus, more);
  return weft_plan_init_bytes (plan, 0);
}

static void
init_fsdp_with_meta_device_makes_one_unit_at_a_time (void **state)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan (MODEL "topology=dgx-h100 precision=fp32 zero_dp_strategy=3 gpus=8");
  const weft_program *p = plan->role[0];
  uint64_t all = 0, unit = 0, kept = plan->memory[0].permanent[WEFT_POOL_DEVICE][WEFT_BUF_WEIGHTS];

  (void) state;
  for (uint32_t i = 0; i < p->n_param; i++) {
    all += 4 * p->param[i].rows * p->param[i].columns;
    unit += p->param[i].layer == 0 ? 4 * p->param[i].rows * p->param[i].columns : 0;
  }
  assert_true (kept < all / 6);
  assert_int_equal (init_bytes (8, ""), kept + all);
  assert_int_equal (init_bytes (8, "init_fsdp_with_meta_device=true"), kept + unit);
  assert_true (init_bytes (2, "init_fsdp_with_meta_device=true") >
               init_bytes (8, "init_fsdp_with_meta_device=true"));
}

/* A test executor that counts the bytes written to each rank. */
struct counting {
  /* first member, so that a pointer to ops is a pointer to struct counting */
  struct weft_exec_ops ops;
  const struct weft_exec_ops *real;
  uint64_t written[8];
};

static void
count_write (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n, const void *in)
{
  struct counting *c = (struct counting *) (uintptr_t) x->ops;

  c->written[row] += n;
  c->real->write (x, row, buf, offset, n, in);
}

/* Initial weights depend only on the seed, the tensor and the position of the element. So each rank
 * computes only the weights of its own slices. */
static void
weights_are_drawn_into_the_slices_that_ranks_keep (void **state)
{
  g_autoptr (real_job) job =
      real_job_open (REAL "zero_dp_strategy=3 init_fsdp_with_meta_device=true", NULL);
  struct counting counting = { .ops = *job->x->ops, .real = job->x->ops };
  const weft_program *p = job->plan->role[0];
  uint64_t all = 0, sum = 0, most = 0;

  (void) state;
  counting.ops.write = count_write;
  job->x->ops = &counting.ops;
  weft_state_init (job->state, 1);
  job->x->ops = counting.real;
  for (uint32_t i = 0; i < p->n_param; i++)
    all += 4 * p->param[i].rows * p->param[i].columns;
  for (int rank = 0; rank < 4; rank++) {
    sum += counting.written[rank];
    most = MAX (most, counting.written[rank]);
  }
  /* each element is written twice: weight and master weight; moments are zero in new memory */
  assert_int_equal (sum, 2 * all);
  assert_true (most < all * 2 / 3);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (gradient_reduce_div_fusion_divides_in_the_collective),
  cmocka_unit_test (gradient_reduce_div_fusion_leaves_bf16_gradients_to_a_kernel),
  cmocka_unit_test (a_fused_division_gives_the_bits_of_one_apart),
  cmocka_unit_test (in_canonical_order_there_is_nothing_to_fuse),
  cmocka_unit_test (preserve_fp32_weights_off_updates_what_kernels_read),
  cmocka_unit_test (weights_that_are_updated_themselves_are_those_of_one_rank),
  cmocka_unit_test (layers_are_units_where_nothing_is_said_and_swallow_their_halves),
  cmocka_unit_test (halves_of_layers_are_gathered_and_reduced_apart),
  cmocka_unit_test (latent_weights_are_in_the_unit_of_attention),
  cmocka_unit_test (smaller_units_need_less_memory_at_a_time),
  cmocka_unit_test (what_is_outside_units_is_gathered_once),
  cmocka_unit_test (ends_that_are_units_come_and_go_with_their_passes),
  cmocka_unit_test (units_may_be_named_by_their_classes),
  cmocka_unit_test (a_module_that_is_not_there_is_refused_with_what_is),
  cmocka_unit_test (every_set_of_units_gives_the_bits_of_one_rank),
  cmocka_unit_test (init_fsdp_with_meta_device_makes_one_unit_at_a_time),
  cmocka_unit_test (weights_are_drawn_into_the_slices_that_ranks_keep),
};

WEFT_TESTS (tests)
