#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/made/own.h"
#include "tests/made/trained_cases.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/* CMocka requires the headers above before its own. */

#include <cmocka.h>

#define ZERO1 "use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
#define FSDP "use_megatron_fsdp=true "
#define LINEAR "cross_entropy_loss_fusion=true cross_entropy_fusion_impl=linear "
#define GPT2 TRAINED_GPT2
#define LLAMA TRAINED_LLAMA
#define UNFUSED GPT2 "attention_backend=unfused "
#define LATENT                                                                                     \
  LLAMA "kv_lora_rank=12 q_lora_rank=8 qk_head_dim=4 qk_pos_emb_head_dim=8 v_head_dim=6 "          \
        "num_query_groups=4 "
#define EXPERTS TRAINED_EXPERTS
/* fp8 matmuls on tensor cores require dimensions that are multiples of 16. */
#define TRAINED_FP8 "precision=fp8 seq_length=16 max_position_embeddings=16 "

const struct trained_case trained_cases[] = {
  { LLAMA, "gpus=2 " },
  { GPT2, "gpus=4 overlap_grad_reduce=true bucket_size=3000 " },
  { GPT2, "gpus=2 " ZERO1 },
  { LLAMA, "gpus=4 " ZERO1 "bucket_size=3000 " },
  { LLAMA, "gpus=2 " FSDP "zero_dp_strategy=3 " },
  { GPT2, "gpus=4 " FSDP "zero_dp_strategy=2 " },
  { LLAMA, "gpus=2 distributed_config=fsdp2 " },
  { GPT2, "gpus=4 distributed_config=fsdp2 dp_replicate_size=2 " },
  { GPT2, "gpus=2 tensor_model_parallel_size=2 " },
  { LLAMA, "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true tp_comm_overlap=true " },
  { GPT2, "gpus=4 tensor_model_parallel_size=4 sequence_parallel=true " },
  { GPT2, "gpus=2 pipeline_model_parallel_size=2 " },
  { LLAMA, "gpus=4 pipeline_model_parallel_size=2 " ZERO1 },
  { LLAMA, "num_layers=4 gpus=4 pipeline_model_parallel_size=4 pipeline_schedule=zb-h1 " },
  { GPT2, "num_layers=4 gpus=2 pipeline_model_parallel_size=2 "
          "virtual_pipeline_model_parallel_size=2 batch_p2p_comm=false overlap_p2p_comm=true " },
  { GPT2, "gpus=4 context_parallel_size=4 cp_comm_type=a2a " },
  { GPT2, "gpus=2 context_parallel_size=2 cp_comm_type=all_gather " },
  { LLAMA, "gpus=4 context_parallel_size=2 cp_comm_type=p2p tensor_model_parallel_size=2 " },
  { LLAMA, "gpus=2 micro_batch_size=2 cross_entropy_chunks=4 " LINEAR },
  { GPT2, "gpus=2 tensor_model_parallel_size=2 cross_entropy_chunks=2 " LINEAR },
  { LATENT, "gpus=2 tensor_model_parallel_size=2 " },
  { EXPERTS, "gpus=2 expert_model_parallel_size=2 moe_load_imbalance=64 " },
  { UNFUSED, "gpus=2 tensor_model_parallel_size=2 " },
};
const uint32_t trained_n_cases = G_N_ELEMENTS (trained_cases);

enum { FIRST_FP8 = 3 };
#define FP8_BOUND { .loss = 1e-3, .norm = 2e-2, .gradient = 2e-1, .whole = 5e-2 }

/* Tolerances for another order of additions. In fp32, a sum of n terms changes by less than n
 * 2^-24, and no sum of these jobs has more than a few hundred terms. In bf16 and fp16, tensors
 * between kernels are rounded by up to 2^-9 and 2^-12 of their value, a dozen times from the first
 * layer to the last. */
static const struct precision {
  const char *words;
  struct trained_bound bound;
  gboolean dense; /* TRUE: the model with experts is not run in this precision, to save time */
} precisions[] = {
  { "precision=fp32 ", { .loss = 1e-6, .norm = 1e-6, .gradient = 1e-5 } },
  { "precision=bf16 ", { .loss = 1e-3, .norm = 1e-2, .gradient = 1e-1 }, TRUE },
  { "precision=fp16 grad_reduce_in_fp32=true ",
    { .loss = 1e-4, .norm = 1e-3, .gradient = 1e-2 },
    TRUE },
  /* Rounding can change an fp8 value to its neighbour, an eighth of its value away, and so all
   * later values. In one case, a bf16 element that was added in another order changed one fp8
   * value, and then one in a hundred fp8 values of the step. One element of the gradient of an
   * expert with few tokens then differed by a third of the root mean square; all gradients together
   * differed by 0.6 % of their length. Each kernel alone gives the fp8 values of the CPU
   * (cuda_fp8.c). */
  [FIRST_FP8] = { TRAINED_FP8 "fp8_recipe=delayed ", FP8_BOUND },
  { TRAINED_FP8 "fp8_recipe=tensorwise ", FP8_BOUND },
  { TRAINED_FP8 "fp8_recipe=blockwise ", FP8_BOUND },
  { TRAINED_FP8 "fp8_recipe=mxfp8 ", FP8_BOUND },
};

char *
trained_words (const struct trained_case *c)
{
  return g_strconcat (c->model, precisions[0].words, c->words, NULL);
}

struct weft_exec_options
trained_shared (const char *words)
{
  const char *gpus = strstr (words, "gpus=");

  return (struct weft_exec_options){ .own = made_own (&weft_exec_cuda, "ranks-per-gpu=%d",
                                                      gpus ? atoi (gpus + strlen ("gpus=")) : 1) };
}

static trained *
train (const struct weft_gpu_calls *calls, const char *words, gboolean graph)
{
  struct weft_exec_options how = trained_shared (words);

  made_own_add (&how.own, &weft_exec_cuda, "graph=%d", graph);
  return trained_new (calls, words, &how);
}

static const char *const models[] = { GPT2, LLAMA, EXPERTS };

/* The list of jobs on one rank has every pair of a precision and a model. Returns the precision of
 * pair `number` and sets *model. Returns NULL after the last pair. */
static const struct precision *
alone (uint32_t number, const char **model)
{
  uint32_t n = 0;

  for (unsigned i = 0; i < G_N_ELEMENTS (models) * G_N_ELEMENTS (precisions); i++) {
    const struct precision *p = &precisions[i / G_N_ELEMENTS (models)];
    *model = models[i % G_N_ELEMENTS (models)];
    if ((!p->dense || !strstr (*model, "mixtral")) && n++ == number)
      return p;
  }
  return NULL;
}

/* Whether the job has experts in fp8. Such jobs have fewer experts and sequences (FEW), to save
 * time. Their tolerance is larger, because each expert has few tokens. */
static gboolean
is_few (const char *model, const struct precision *p)
{
  return strstr (model, "mixtral") && strstr (p->words, "precision=fp8");
}

#define FEW "num_moe_experts=2 global_batch_size=2"
enum { FEW_TOKENS = 2 /* allowed factor of gradient errors */ };

char *
trained_alone_words (uint32_t number)
{
  const char *model;
  const struct precision *p = alone (number, &model);

  return p ? g_strconcat (model, p->words, is_few (model, p) ? FEW : "", NULL) : NULL;
}

gboolean
trained_as_on_the_cpu (const struct weft_gpu_calls *calls, uint32_t number)
{
  const char *model;
  const struct precision *p = alone (number, &model);
  g_autofree char *words = trained_alone_words (number);
  g_autoptr (trained) cpu = trained_new (NULL, words, NULL);
  g_autoptr (trained) device = train (calls, words, FALSE);
  struct trained_bound bound = p->bound;

  bound.gradient *= is_few (model, p) ? FEW_TOKENS : 1;
  if (device)
    trained_assert_near (device, cpu, bound, words);
  return device != NULL;
}

/* A run on one rank, which many cases are compared with: its results are kept. */
static const trained *
train_alone (const struct weft_gpu_calls *calls, const char *words)
{
  static GHashTable *known;

  if (!known)
    known = g_hash_table_new (g_str_hash, g_str_equal);
  if (!g_hash_table_contains (known, words))
    g_hash_table_insert (known, g_strdup (words), train (calls, words, FALSE));
  return g_hash_table_lookup (known, words);
}

gboolean
trained_as_one_rank (const struct weft_gpu_calls *calls, uint32_t number)
{
  const struct trained_case *c = &trained_cases[number];
  const char *deep = strstr (c->words, "num_layers=4") ? "num_layers=4" : "";
  g_autofree char *words = trained_words (c),
                  *alone = g_strconcat (c->model, precisions[0].words, deep, NULL);
  g_autoptr (trained) many = train (calls, words, FALSE);

  if (!many)
    return FALSE;
  trained_assert_near (many, train_alone (calls, alone), precisions[0].bound, words);
  return TRUE;
}

/* ----------------------------------------------------------------- wide enough for warpgroups */

#define ONE_LAYER                                                                                  \
  "topology=cpu reduction_order=fast num_layers=1 hidden_size=32 ffn_hidden_size=32 vocab_size=96 "
#define TOKENS(n, most) "seq_length=" #n " max_position_embeddings=" #n " " most
#define ONE "micro_batch_size=1 global_batch_size=1 "
#define TWO "micro_batch_size=2 global_batch_size=2 "
#define WIDE                                                                                       \
  "model=llama-nano " ONE_LAYER "num_attention_heads=2 num_query_groups=1 kv_channels=64 "
#define WIDEST "kv_channels=128 num_attention_heads=1 "
#define LATENTS                                                                                    \
  "model=llama-nano " ONE_LAYER "num_attention_heads=1 num_query_groups=1 kv_lora_rank=16 "
/* more experts than rows, so that some experts have no rows */
#define ROUTED                                                                                     \
  "model=mixtral-nano " ONE_LAYER "num_attention_heads=2 num_query_groups=1 kv_channels=8 "        \
  "num_moe_experts=6 moe_router_topk=1 moe_load_imbalance=6 "
#define SIXTEEN "precision=bf16 "
#define FP16 "precision=fp16 grad_reduce_in_fp32=true "
#define PARTS "gpus=2 context_parallel_size=2 "

const struct trained_wide trained_wide[] = {
  { WIDE SIXTEEN TOKENS (20, TWO), TRAINED_ATTENTION },
  /* sequences of several tiles of queries and keys; the sliding window excludes whole tiles */
  { WIDE FP16 "num_attention_heads=1 sliding_window=70 " TOKENS (150, ONE), TRAINED_ATTENTION },
  { WIDE SIXTEEN WIDEST TOKENS (40, ONE), TRAINED_ATTENTION },
  { WIDE SIXTEEN "kv_channels=72 " TOKENS (8, ONE), TRAINED_ATTENTION },
  { WIDE SIXTEEN PARTS "cp_comm_type=p2p num_attention_heads=1 " TOKENS (32, ONE),
    TRAINED_ATTENTION },
  { WIDE FP16 PARTS "cp_comm_type=all_gather num_query_groups=2 " TOKENS (24, ONE),
    TRAINED_ATTENTION },
  { LATENTS SIXTEEN "qk_head_dim=48 qk_pos_emb_head_dim=16 v_head_dim=64 " TOKENS (16, ONE),
    TRAINED_ATTENTION },
  { ROUTED SIXTEEN "hidden_size=80 moe_ffn_hidden_size=72 " TOKENS (12, ONE), TRAINED_PRODUCTS },
  { ROUTED FP16
    "gpus=2 expert_model_parallel_size=2 moe_ffn_hidden_size=24 global_batch_size=2 " TOKENS (
        8, "micro_batch_size=1 "),
    TRAINED_PRODUCTS },
  { ROUTED "precision=fp8 fp8_recipe=delayed moe_ffn_hidden_size=32 " TOKENS (16, ONE),
    TRAINED_CODES },
  { ROUTED
    "precision=fp8 fp8_recipe=tensorwise fp8_format=e4m3 moe_ffn_hidden_size=80 " TOKENS (16, ONE),
    TRAINED_CODES },
  { ROUTED
    "precision=fp8 fp8_recipe=blockwise hidden_size=144 moe_ffn_hidden_size=32 " TOKENS (16, ONE),
    TRAINED_CODES },
  { WIDE SIXTEEN "fused_swiglu=1 " TOKENS (24, TWO), TRAINED_ATTENTION | TRAINED_GATE },
  /* Jobs that miss one condition of the wgmma kernels each, and must run on other kernels. */
  { WIDE "precision=fp32 fused_swiglu=1 " TOKENS (8, ONE), 0 },
  { WIDE SIXTEEN "kv_channels=60 " TOKENS (8, ONE), 0 },
  { LATENTS SIXTEEN "qk_head_dim=128 qk_pos_emb_head_dim=64 v_head_dim=128 " TOKENS (8, ONE), 0 },
  { ROUTED SIXTEEN "hidden_size=36 " TOKENS (8, ONE), 0 },
  { ROUTED "precision=fp8 fp8_recipe=mxfp8 moe_ffn_hidden_size=32 " TOKENS (32, ONE), 0 },
};
const uint32_t trained_n_wide = G_N_ELEMENTS (trained_wide);

static const struct precision *
precision_of (const char *words)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (precisions); i++)
    if (strstr (words, precisions[i].words))
      return &precisions[i];
  return &precisions[FIRST_FP8]; /* all fp8 recipes have the tolerances of the first one */
}

gboolean
trained_wide_as_on_the_cpu (const struct weft_gpu_calls *calls, uint32_t number, gboolean graph)
{
  const char *words = trained_wide[number].words;
  g_autoptr (trained) device = train (calls, words, graph), cpu = NULL;
  struct trained_bound bound = precision_of (words)->bound;

  if (!device)
    return FALSE;
  cpu = trained_new (NULL, words, NULL);
  bound.gradient *= strstr (words, "precision=fp8") ? FEW_TOKENS : 1;
  trained_assert_near (device, cpu, bound, words);
  return TRUE;
}

static const char *const some[] = {
  GPT2 "precision=bf16 gpus=2 " ZERO1,
  LLAMA "precision=fp32 gpus=2 tensor_model_parallel_size=2 sequence_parallel=true",
  GPT2 TRAINED_FP8 "gpus=2 " ZERO1,
};

static void
assert_same (const struct weft_gpu_calls *calls, gboolean graph)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (some); i++) {
    g_autoptr (trained) one = train (calls, some[i], FALSE), other = train (calls, some[i], graph);
    trained_assert_same (other, one, some[i]);
  }
}

void
trained_twice (const struct weft_gpu_calls *calls)
{
  assert_same (calls, FALSE);
}

void
trained_in_graphs (const struct weft_gpu_calls *calls)
{
  assert_same (calls, TRUE);
}

const char *
trained_no_library (const struct weft_gpu_calls *calls)
{
  const struct weft_kernel k = { .kind = WEFT_OP_ATTENTION, .fused = TRUE };

  return calls->prepare
             ? calls->prepare (calls->self, &k, 1, &(struct weft_gpu_scratch){ 0 }, NULL)
             : NULL;
}

void
trained_fused (const struct weft_gpu_calls *calls)
{
#define FUSED                                                                                      \
  GPT2 "precision=bf16 kv_channels=64 seq_length=16 max_position_embeddings=16 "                   \
       "attention_backend=fused "
#define REPEATED FUSED "deterministic_mode=true"
  g_autoptr (trained) cpu = trained_new (NULL, FUSED, NULL);
  g_autoptr (trained) device = train (calls, FUSED, FALSE);
  g_autoptr (trained) once = train (calls, REPEATED, FALSE);
  g_autoptr (trained) again = train (calls, REPEATED, FALSE);
  g_autoptr (trained) graph = train (calls, REPEATED, TRUE);

  trained_assert_near (device, cpu, precisions[1].bound, FUSED);
  trained_assert_near (once, cpu, precisions[1].bound, REPEATED);
  trained_assert_same (again, once, REPEATED);
  trained_assert_same (graph, once, REPEATED);
}

static uint64_t
free_bytes (const struct weft_gpu_calls *calls)
{
  struct weft_gpu_device device;

  assert_null (calls->describe (calls->self, 0, &device));
  return device.free;
}

void
trained_memory (const struct weft_gpu_calls *calls, uint64_t *planned, uint64_t *gone)
{
  struct weft_exec_options how = trained_shared (some[0]);
  uint64_t before = free_bytes (calls);
  g_autoptr (GError) error = NULL;
  g_autoptr (real_job) job = real_job_try (calls, some[0], &how, &error);

  assert_non_null (job);
  *planned = 0;
  for (uint32_t row = 0; row < job->x->actors->n; row++) {
    const struct weft_memory *memory = &job->plan->memory[job->plan->mesh.pp > 1 ? row : 0];
    assert_int_equal (job->x->allocated[row],
                      memory->planned[WEFT_POOL_DEVICE] + memory->planned[WEFT_POOL_SYMMETRIC]);
    *planned += job->x->allocated[row];
  }
  *gone = before - free_bytes (calls);
}
