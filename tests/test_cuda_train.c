/* Training on the CUDA executor with numbers, where there is no GPU: its calls are made by a device
 * that computes with the emulated kernels. */
#include "tests/computing_cuda.h"
#include "tests/trained.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define SIZES                                                                                      \
  "topology=cpu reduction_order=fast num_layers=2 hidden_size=32 num_attention_heads=4 "           \
  "kv_channels=8 ffn_hidden_size=64 vocab_size=96 seq_length=8 max_position_embeddings=8 "         \
  "micro_batch_size=1 global_batch_size=4 "
#define GPT2 "model=gpt2-nano num_query_groups=4 " SIZES
#define LLAMA "model=llama-nano num_query_groups=2 " SIZES
#define FP32 "precision=fp32 "

/* Sums of fp32 in other orders: n terms of like size differ by less than n times 2^-24, and no sum
 * here has more than some thousands.  What was seen is a tenth of these. */
static const struct trained_bound fp32 = { .loss = 1e-6, .norm = 1e-5, .gradient = 3e-5 };

struct strategy {
  const char *model, *words;
};

static struct weft_exec_options
all_on_one (const char *words)
{
  const char *gpus = strstr (words, "gpus=");
  return (struct weft_exec_options){ .ranks_per_gpu = gpus ? (uint32_t) atoi (gpus + 5) : 1 };
}

static trained *
train (uint32_t seed, const char *words, struct weft_exec_options how)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (seed);
  trained *t = trained_new (&d->calls, words, &how);

  assert_int_equal (d->n_open, 0);
  if (!t)
    print_message ("left out, a kernel is missing: %s\n", words);
  return t;
}

/* ------------------------------------------------------------------ against the CPU */

static void
losses_are_those_of_the_cpu (void **state)
{
  static const char *const models[] = { GPT2 FP32, LLAMA FP32 };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (models); i++) {
    g_autoptr (trained) cpu = trained_new (NULL, models[i], NULL);
    g_autoptr (trained) device = train (0, models[i], (struct weft_exec_options){ 0 });
    trained_assert_near (device, cpu, fp32, models[i]);
  }
}

#define ZERO1 "use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
static const struct strategy strategies[] = {
  { LLAMA, "gpus=2 " },
  { GPT2, "gpus=4 overlap_grad_reduce=true bucket_size=3000 " },
  { GPT2, "gpus=2 " ZERO1 },
  { LLAMA, "gpus=4 " ZERO1 "bucket_size=3000 " },
  { LLAMA, "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3 " },
  { GPT2, "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3 " },
  { GPT2, "gpus=2 use_megatron_fsdp=true zero_dp_strategy=2 " },
  { LLAMA, "gpus=2 distributed_config=fsdp2 " },
  { GPT2, "gpus=4 distributed_config=fsdp2 dp_replicate_size=2 " },
  { GPT2, "gpus=2 tensor_model_parallel_size=2 " },
  { LLAMA, "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true " },
  { GPT2, "gpus=4 tensor_model_parallel_size=4 sequence_parallel=true " },
  { LLAMA, "gpus=4 tensor_model_parallel_size=2 sequence_parallel=true tp_comm_overlap=true " },
  { GPT2, "gpus=2 pipeline_model_parallel_size=2 " },
  { LLAMA, "gpus=4 pipeline_model_parallel_size=2 " ZERO1 },
  { LLAMA, "num_layers=4 gpus=4 pipeline_model_parallel_size=4 " },
  { GPT2, "num_layers=4 gpus=2 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=2 "
          "batch_p2p_comm=false overlap_p2p_comm=true " },
  { LLAMA, "num_layers=4 gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1 " },
  { LLAMA, "gpus=2 context_parallel_size=2 cp_comm_type=a2a " },
  { GPT2, "gpus=2 context_parallel_size=2 cp_comm_type=all_gather " },
  { LLAMA, "gpus=2 context_parallel_size=2 cp_comm_type=p2p " },
  { GPT2, "gpus=4 context_parallel_size=4 cp_comm_type=a2a " },
};

static void
ranks_that_share_a_gpu_are_one_rank (void **state)
{
  g_autoptr (trained) gpt2 = train (0, GPT2 FP32, (struct weft_exec_options){ 0 });
  g_autoptr (trained) llama = train (0, LLAMA FP32, (struct weft_exec_options){ 0 });

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (strategies); i++) {
    const struct strategy *s = &strategies[i];
    gboolean deep = strstr (s->words, "num_layers=4") != NULL;
    g_autofree char *words = g_strconcat (s->model, FP32, s->words, NULL),
                    *alone = g_strconcat (s->model, FP32, "num_layers=4", NULL);
    g_autoptr (trained) many = train (0, words, all_on_one (words));
    g_autoptr (trained) one = deep ? train (0, alone, (struct weft_exec_options){ 0 }) : NULL;
    if (many)
      trained_assert_near (many, deep ? one : g_str_equal (s->model, GPT2) ? gpt2 : llama, fp32,
                           words);
  }
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (losses_are_those_of_the_cpu),
    cmocka_unit_test (ranks_that_share_a_gpu_are_one_rank),
  };

  return cmocka_run_group_tests (tests, NULL, NULL);
}
