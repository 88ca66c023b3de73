/* Random legal jobs trained on the CUDA executor, on a device that computes, and on the CPU: the same
 * losses, norms and gradients.
 *
 *   test_cuda_random [SEED [JOBS]]      other jobs, or fewer of them */
#include "core/base/sanitize.h"
#include "tests/computing_cuda.h"
#include "tests/emulated_cuda.h"
#include "tests/random_job.h"
#include "tests/trained.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SEED 2026
#define JOBS (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER ? 2 : 12)
#define MOST_RANKS 8
#define MOST_PARAMETERS 40000
#define MOST_WORK                                                                                  \
  1000 /* tokens of a batch, times layers, times heads: threads of kernels take long */
#define MOST_TILES 6 /* of sequences, times layers, times heads, by warpgroups: whole tiles */

/* What was added in another order, and in 16 bits rounded in between (trained_cases.c). */
static const struct trained_bound bounds[] = {
  [WEFT_FP32] = { .loss = 1e-5, .norm = 1e-4, .gradient = 1e-3 },
  [WEFT_BF16] = { .loss = 1e-3, .norm = 1e-2, .gradient = 0.3 },
  [WEFT_FP16] = { .loss = 1e-3, .norm = 1e-2, .gradient = 0.3 },
  /* the code beside: an eighth */
  [WEFT_FP8] = { .loss = 3e-3, .norm = 5e-2, .gradient = 0.6, .whole = 0.1 },
};

/* Where a head has eight times as many terms, a few more of its codes are the ones beside: with or without
 * warpgroups one element of a job was 1.25 away, and all gradients together 3 % of their length. */
#define WIDE_GRADIENT 3

static int64_t
work_of (const struct weft_job *job)
{
  return job->train.global_batch_size * job->model.seq_length * job->model.num_layers *
         job->model.num_attention_heads;
}

/* Whether rows go between ranks by counts. */
static gboolean
is_counted (const char *words)
{
  return strstr (words, "num_moe_experts=") && !strstr (words, "moe_pad") &&
         (!strstr (words, "expert_model_parallel_size=1") ||
          strstr (words, "tensor_model_parallel_size="));
}

#define ATTENTION "warpgroup_forward"
#define WIDE_HEADS " hidden_size=32 kv_channels=64"
#define WIDE_LATENTS " hidden_size=32 qk_head_dim=48 qk_pos_emb_head_dim=16 v_head_dim=64"
#define WIDE_EXPERTS " moe_ffn_hidden_size=64"

static uint64_t
launches_of_experts (void)
{
  return emulated_launches ("warpgroup_tiles") + emulated_launches ("warpgroup_codes");
}

/* Two jobs of four have heads and experts that products of warpgroups take, and a device that has those. */
static gboolean
is_wide (uint32_t number)
{
  return number % 4 >= 2;
}

static int64_t
tiles_of (const struct weft_job *job)
{
  return work_of (job) / job->model.seq_length * ((job->model.seq_length + 127) / 128);
}

static gboolean
is_small (const struct weft_job *job, gboolean wide)
{
  return job->cluster.n_gpus <= MOST_RANKS && work_of (job) <= MOST_WORK &&
         weft_model_parameters (&job->model) <= (wide ? 3 : 1) * MOST_PARAMETERS &&
         (!wide || (job->train.precision != WEFT_FP32 && tiles_of (job) <= MOST_TILES));
}

/* Clusters do not matter to numbers. */
static char *
draw (GRand *rand, struct weft_job *job, gboolean counted, gboolean wide)
{
  for (;;) {
    g_autofree char *plain = weft_random_job (rand);
    const char *heads = strstr (plain, "kv_lora_rank=") ? WIDE_LATENTS : WIDE_HEADS;
    const char *experts = strstr (plain, "num_moe_experts=") ? WIDE_EXPERTS : "";
    if ((counted && !is_counted (plain)) || (wide && strstr (plain, "attention_backend=unfused")))
      continue;
    g_autofree char *words =
        g_strconcat (plain, " moe_load_imbalance=64 reduction_order=fast", wide ? heads : "",
                     wide ? experts : "", NULL);

    if (weft_test_job (words, job, NULL) && is_small (job, wide))
      return g_steal_pointer (&words);
  }
}

/* Products of warpgroups are on the way of a wide job's attention and experts. */
static void
assert_wide (const struct weft_job *job, uint64_t attention, uint64_t experts, const char *words)
{
  if (emulated_launches (ATTENTION) == attention)
    fail_msg ("%s: attention is not by warpgroups", words);
  if (job->model.num_moe_experts > 0 && launches_of_experts () == experts)
    fail_msg ("%s: experts are not by warpgroups", words);
}

/* FALSE: the device cannot, for want of a kernel or by what NCCL has not. */
static gboolean
runs_as_on_the_cpu (const char *words, const struct weft_job *job, uint32_t number)
{
  gboolean own = number % 2;
  struct weft_exec_options how = { .ranks_per_gpu = own ? 1 : job->cluster.n_gpus,
                                   .graph = number % 3 == 0 };
  g_autoptr (computing_cuda) d = computing_cuda_new (number);
  uint64_t attention = emulated_launches (ATTENTION), experts = launches_of_experts ();

  d->warpgroups = is_wide (number);
  g_autoptr (trained) device = trained_new (&d->calls, words, &how);
  assert_int_equal (d->n_open, 0);
  if (!device)
    return FALSE;
  if (d->warpgroups)
    assert_wide (job, attention, experts, words);
  g_autoptr (trained) cpu = trained_new (NULL, words, NULL);
  struct trained_bound bound = bounds[weft_job_linear_dtype (job)];
  bound.gradient *= is_wide (number) && bound.whole > 0 ? WIDE_GRADIENT : 1;
  trained_assert_near (device, cpu, bound, words);
  return TRUE;
}

struct drawn {
  uint32_t seed, jobs;
};

static void
train_jobs (const struct drawn *drawn, gboolean counted)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (drawn->seed + counted);
  uint32_t left = drawn->jobs, lacking = 0;

  for (uint32_t i = 0; left; i++) {
    struct weft_job job;
    g_autofree char *words = draw (rand, &job, counted, is_wide (i));
    gboolean ran = runs_as_on_the_cpu (words, &job, i);
    left -= ran;
    lacking += !ran;
  }
  print_message ("%u jobs, besides %u that the device lacks something for\n", drawn->jobs, lacking);
}

static void
random_jobs_train_as_on_the_cpu (void **state)
{
  train_jobs (*state, FALSE);
}

/* Every other job with a GPU for each rank. */
static void
random_jobs_whose_rows_go_by_counts_train_as_on_the_cpu (void **state)
{
  struct drawn drawn = *(const struct drawn *) *state;

  drawn.jobs = (drawn.jobs + 3) / 4;
  train_jobs (&drawn, TRUE);
}

int
main (int argc, char **argv)
{
  struct drawn drawn = { argc > 1 ? (uint32_t) atoi (argv[1]) : SEED,
                         argc > 2 ? (uint32_t) atoi (argv[2]) : JOBS };
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_prestate (random_jobs_train_as_on_the_cpu, &drawn),
    cmocka_unit_test_prestate (random_jobs_whose_rows_go_by_counts_train_as_on_the_cpu, &drawn),
  };

  return cmocka_run_group_tests (tests, NULL, NULL);
}
