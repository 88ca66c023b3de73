/* Padding benchmark: bytes that the memory planner loses between buffers, over random large jobs.
 * Padding: the planned bytes of both GPU memory pools, divided by the largest sum of bytes that are
 * in use at the same time (weft_memory.used), minus 1. Above program order: the same with the bytes
 * that are live if ops run in program order, where transfers never run behind kernels.
 *
 * bench_padding [JOBS] [SEED]
 *
 * Prints the distribution over the worst roles of all jobs, and the jobs with the most padding. */
#include "core/base/error.h"
#include "core/job/flags.h"
#include "core/plan/plan.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct role {
  /* used: largest sum of the bytes of buffers that are in use at the same time; lost: planned bytes
   * minus used; padding: lost / used; behind: planned / live bytes in program order - 1 */
  double padding, lost, used, behind;
  char *words;
};

static const char *
pick (GRand *rand, const char *const *words, uint32_t n)
{
  return words[g_rand_int_range (rand, 0, (gint) n)];
}
#define PICK(rand, ...)                                                                            \
  pick (rand, (const char *const[]){ __VA_ARGS__ },                                                \
        G_N_ELEMENTS (((const char *const[]){ __VA_ARGS__ })))

/* Returns the words of a random job. Many such jobs break a rule of core/rules.def; the caller
 * skips these jobs. */
static char *
draw (GRand *rand)
{
  return g_strdup_printf (
      "model=%s topology=dgx-h100 gpus=%s tensor_model_parallel_size=%s "
      "pipeline_model_parallel_size=%s micro_batch_size=%s global_batch_size=%s "
      "sequence_parallel=%s %s %s %s %s precision=%s",
      PICK (rand, "llama3-8b", "llama3-70b", "gpt3-175b", "gpt-neox-20b", "llama2-13b",
            "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "llama3.1-405b", "qwen3-32b"),
      PICK (rand, "16", "32", "64", "128", "256"), PICK (rand, "1", "2", "4", "8"),
      PICK (rand, "1", "2", "4", "8", "16"), PICK (rand, "1", "1", "2", "4"),
      PICK (rand, "128", "256", "512"), PICK (rand, "true", "false"),
      PICK (rand, "", "virtual_pipeline_model_parallel_size=2",
            "virtual_pipeline_model_parallel_size=4 overlap_p2p_comm=true batch_p2p_comm=false",
            "pipeline_schedule=zb-h1", "pipeline_schedule=zb-v", "pipeline_schedule=zb-v",
            "pipeline_schedule=gpipe"),
      PICK (rand, "use_distributed_optimizer=true overlap_grad_reduce=true", "",
            "use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true",
            "distributed_config=fsdp2", "distributed_config=fsdp2",
            "distributed_config=megatron_fsdp data_parallel_sharding_strategy=optim_grads_params"),
      PICK (rand, "", "", "recompute_granularity=selective", "activation_checkpointing=true",
            "recompute_granularity=full recompute_method=uniform recompute_num_layers=1"),
      PICK (rand, "", "expert_model_parallel_size=8", "gradient_accumulation_fusion=true",
            "context_parallel_size=2", "grad_reduce_in_fp32=true"),
      PICK (rand, "bf16", "bf16", "fp8"));
}

static double
on_gpu (const uint64_t bytes[WEFT_N_POOL])
{
  return (double) bytes[WEFT_POOL_DEVICE] + (double) bytes[WEFT_POOL_SYMMETRIC];
}

static void
add_roles (GArray *roles, const weft_plan *plan, const char *words)
{
  struct role worst = { .padding = -1 };

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    const struct weft_memory *m = &plan->memory[role];
    double used = on_gpu (m->used), planned = on_gpu (m->planned);
    if (planned / used - 1 > worst.padding)
      worst = (struct role){ planned / used - 1, planned - used, used,
                             planned / on_gpu (m->live) - 1, NULL };
  }
  if (worst.used > weft_plan_capacity (&plan->job))
    return;
  worst.words = g_strdup (words);
  g_array_append_val (roles, worst);
}

/* Plans the job and appends the figures of its roles to `roles`. Skips a job that is illegal, has
 * more than 32 microbatches, or whose live bytes exceed the memory of the GPU. */
static void
plan_job (GArray *roles, const char *words)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  if (!weft_flags_words (words, settings, &error) || !weft_job_build (settings, &job, &error))
    return;
  if (weft_job_microbatches (&job) > 32)
    return;
  g_autoptr (weft_plan) plan = weft_plan_new_draft (&job, WEFT_PLAN_PLACED, NULL, &error);
  if (plan)
    add_roles (roles, plan, words);
}

static gint
by_padding (gconstpointer a, gconstpointer b)
{
  double x = ((const struct role *) a)->padding, y = ((const struct role *) b)->padding;
  return x < y ? -1 : x > y;
}

static void
print (GArray *roles, double seconds)
{
  double sum = 0, lost = 0, used = 0, behind = 0;
  guint above = 0;

  g_array_sort (roles, by_padding);
  for (guint i = 0; i < roles->len; i++) {
    const struct role *r = &g_array_index (roles, struct role, i);
    sum += r->padding;
    lost += r->lost;
    used += r->used;
    behind += r->behind;
    above += r->padding > 0.01;
  }
  printf ("%u jobs, %.1f s: padding of the worst role of a job, %% of the bytes in use\n",
          roles->len, seconds);
  printf ("above the bytes of program order: mean %.2f\n", 100 * behind / roles->len);
  printf ("mean %.2f  of the sum %.2f  median %.2f  p90 %.2f  p99 %.2f  worst %.2f  above 1 %%: "
          "%.0f %% of jobs\n",
          100 * sum / roles->len, 100 * lost / used,
          100 * g_array_index (roles, struct role, roles->len / 2).padding,
          100 * g_array_index (roles, struct role, roles->len * 9 / 10).padding,
          100 * g_array_index (roles, struct role, roles->len * 99 / 100).padding,
          100 * g_array_index (roles, struct role, roles->len - 1).padding,
          100.0 * above / roles->len);
  for (guint i = roles->len - MIN (roles->len, 12); i < roles->len; i++) {
    const struct role *r = &g_array_index (roles, struct role, i);
    printf ("%6.2f %%  %6.2f GiB  %s\n", 100 * r->padding, r->lost / (1 << 30), r->words);
  }
}

int
main (int argc, char **argv)
{
  guint n = argc > 1 ? (guint) strtoul (argv[1], NULL, 10) : 500;
  g_autoptr (GRand) rand = g_rand_new_with_seed (argc > 2 ? (guint32) atoi (argv[2]) : 20261123);
  g_autoptr (GArray) roles = g_array_new (FALSE, TRUE, sizeof (struct role));
  gint64 begin = g_get_monotonic_time ();

  while (roles->len < n) {
    g_autofree char *words = draw (rand);
    plan_job (roles, words);
  }
  print (roles, (double) (g_get_monotonic_time () - begin) * 1e-6);
  for (guint i = 0; i < roles->len; i++)
    g_free (g_array_index (roles, struct role, i).words);
  return 0;
}
