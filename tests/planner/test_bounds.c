/* The search compared with an exhaustive search: both find the same strategies, and no lower
 * bound rules out the best one. */
#include "planner/bound.h"
#include "planner/planner.h"
#include "planner/space.h"
#include "planner/trials.h"
#include "tests/made/open_job.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

static weft_search *
search_with (const struct weft_job *job, const struct weft_space_ranges *ranges,
             gboolean exhaustive)
{
  struct weft_search_options options = {
    .ranges = ranges, .finalists = 4, .near_miss = TRUE, .exhaustive = exhaustive
  };
  return weft_search_run (job, &options, NULL);
}

/* Asserts that no lower bound of a job exceeds its clock time, and that the lower bound of memory
 * does not exceed `bytes`. */
static void
bounds_hold (weft_segment_cache *cache, const struct weft_job *job, double clock, double bytes)
{
  struct weft_bound bound = weft_bound_passes (cache, job);
  double lanes = weft_bound_lanes (cache, job), schedule = weft_bound_schedule (cache, job),
         ends = weft_bound_ends (cache, job);

  if (fmax (fmax (bound.seconds, lanes), fmax (schedule, ends)) <= clock && bound.bytes <= bytes)
    return;
  g_autofree char *text = weft_job_print (job);
  fail_msg ("at least %.9g s (passes), %.9g s (lanes), %.9g s (schedule), %.9g s (ends) and %.0f "
            "bytes, but %.9g s and %.0f: %s",
            bound.seconds, lanes, schedule, ends, bound.bytes, clock, bytes, text);
}

static void
all_bounds_hold (const struct weft_job *job, const weft_search *all)
{
  g_autoptr (weft_segment_cache) cache = weft_segment_cache_new ();

  for (uint32_t i = 0; i < all->n_listed; i++) {
    const struct weft_candidate *c = &all->candidate[i];
    struct weft_job one = weft_space_job (job, &c->choice);
    if (c->fate != WEFT_FATE_RULE)
      bounds_hold (cache, &one, c->clock, (double) c->bytes);
  }
}

/* Checks the bounds of a job against the program of its whole step. Returns the clock time. */
static double
whole_step_holds (weft_segment_cache *cache, const struct weft_job *job)
{
  struct weft_trials how = { .placements = weft_segment_cache_placements (cache),
                             .n_workers = 1,
                             .whole = TRUE };
  struct weft_trial trial = { .job = *job, .depth = WEFT_TRIAL_CLOCK };

  assert_true (weft_trials_run (&how, &trial, 1, NULL));
  assert_null (trial.error);
  bounds_hold (cache, job, trial.seconds, trial.bytes);
  weft_trial_clear (&trial);
  return trial.seconds;
}

/* Checks the bounds of `n` random candidates. */
static void
some_bounds_hold (const struct weft_job *job, GRand *rand, uint32_t n)
{
  g_autoptr (weft_segment_cache) cache = weft_segment_cache_new ();
  const struct weft_space_ranges whole = { .whole = TRUE };
  g_autoptr (GArray) space = weft_space_enumerate_within (job, &whole);

  for (uint32_t done = 0; done < n;) {
    guint at = (guint) g_rand_int_range (rand, 0, (gint) space->len);
    struct weft_job one = weft_space_job (job, &g_array_index (space, struct weft_choice, at));
    if (!weft_job_check (&one, NULL))
      continue;
    whole_step_holds (cache, &one);
    done++;
  }
}

/* Bounds that were too high. Recompute begins before the gradient of the next stage arrives, also
 * if the measured program, which has replicas, copies gathered weights first; earlier stages then
 * have less to do after this gradient. Weight gradients of
 * whole backward passes fill waits for tensor parallel collectives. */
static void
early_recompute_and_filled_waits_are_not_counted (void **state)
{
  static const struct {
    const char *stages, *micro_batch, *more[4];
  } jobs[] = {
    { "4", "8", { "distributed-config", "fsdp2", "pipeline-schedule", "zb-v" } },
    { "4", "4", { "overlap-grad-reduce", "true", "pipeline-schedule", "breadth-first" } },
    { "2", "2", { "tensor-model-parallel-size", "2", "pipeline-schedule", "dualpipe" } },
    { "2", "2", { "tensor-model-parallel-size", "2", "pipeline-schedule", "dualpipev" } },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    const char *words[] = { "model",
                            "gpt2-nano",
                            "topology",
                            "dgx-h100",
                            "gpus",
                            "4",
                            "pipeline-model-parallel-size",
                            jobs[i].stages,
                            "micro-batch-size",
                            jobs[i].micro_batch,
                            "global-batch-size",
                            "16",
                            "recompute-granularity",
                            "full",
                            "recompute-method",
                            "uniform",
                            "recompute-num-layers",
                            "1",
                            jobs[i].more[0],
                            jobs[i].more[1],
                            jobs[i].more[2],
                            jobs[i].more[3],
                            NULL };
    struct weft_job job = open_job (words);
    g_autoptr (weft_segment_cache) cache = weft_segment_cache_new ();
    assert_true (weft_job_check (&job, NULL));
    whole_step_holds (cache, &job);
  }
}

/* The lower bound from paths knows that the last gradients are reduced after the last backward pass
 * has begun, that the first forward pass waits for gathered weights, and that a stage which only
 * embeds tokens has no input gradients. Without the first two it would be up to 6 % lower, without
 * the last there would be none. */
static void
paths_come_near_the_clock_time (void **state)
{
  static const struct {
    const char *more[8];
    double least; /* share of the clock time */
  } jobs[] = {
    { { "pipeline-schedule", "zb-h1", "num-layers", "8" }, 0.95 },
    { { "pipeline-schedule", "1f1b", "num-layers", "8" }, 0.93 },
    { { "pipeline-schedule", "dualpipev", "num-layers", "6",
        "account-for-embedding-in-pipeline-split", "true", "account-for-loss-in-pipeline-split",
        "true" },
      0.88 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    const char *words[32] = { "model",
                              "gpt3-175b",
                              "topology",
                              "dgx-h100",
                              "nodes",
                              "16",
                              "tensor-model-parallel-size",
                              "8",
                              "pipeline-model-parallel-size",
                              "4",
                              "global-batch-size",
                              "64",
                              "use-distributed-optimizer",
                              "true",
                              "overlap-grad-reduce",
                              "true",
                              "overlap-param-gather",
                              "true" };
    memcpy (&words[18], jobs[i].more, sizeof jobs[i].more);
    struct weft_job job = open_job (words);
    g_autoptr (weft_segment_cache) cache = weft_segment_cache_new ();
    assert_true (weft_job_check (&job, NULL));
    double clock = whole_step_holds (cache, &job);
    assert_true (weft_bound_lanes (cache, &job) > jobs[i].least * clock);
  }
}

/* Checks that the normal search, which builds programs only for candidates that no lower bound
 * rules out, finds the same answer as an exhaustive search. Checks each lower bound against the
 * results of the exhaustive search. Returns how many candidates the normal search rules out. */
static uint32_t
answers_agree (const struct weft_job *job, const struct weft_space_ranges *ranges)
{
  g_autoptr (weft_search) all = search_with (job, ranges, TRUE),
                          few = search_with (job, ranges, FALSE);
  uint32_t n = all->by_fate[WEFT_FATE_SIMULATED];

  all_bounds_hold (job, all);
  assert_int_equal (few->n, all->n);
  assert_int_equal (few->by_fate[WEFT_FATE_SIMULATED], n);
  for (uint32_t i = 0; i < n; i++) {
    const struct weft_candidate *x = &all->candidate[i], *y = &few->candidate[i];
    assert_memory_equal (&x->choice, &y->choice, sizeof x->choice);
    assert_true (x->seconds == y->seconds && x->clock == y->clock);
    assert_int_equal (x->bytes, y->bytes);
  }
  assert_true (all->gap == few->gap);
  assert_true (!all->miss == !few->miss);
  if (all->miss)
    assert_true (all->miss->clock == few->miss->clock && all->miss->bytes == few->miss->bytes);
  return few->by_fate[WEFT_FATE_PRUNED];
}

/* Sets the GPU memory to `share` of what the fastest strategy needs, so that only some strategies
 * fit. Library memory, which would exceed the memory of these small models, is set to 0. */
static void
tighten (struct weft_job *job, double share)
{
  struct weft_search_options options = { .finalists = 1 };

  job->stack.context_bytes = job->stack.workspace_bytes = job->stack.communicator_bytes = 0;
  g_autoptr (weft_search) search = weft_search_run (job, &options, NULL);
  job->cluster.f.gpu_memory = share * (double) search->candidate[0].bytes;
}

/* Limits axes to a few values, so that the space has few hundred strategies: 1f1b and one random
 * schedule, no recompute and one random kind, one random wrapper and one value of offload. */
static struct weft_space_ranges
few_values (GRand *rand)
{
  static const char *const kinds[] = { "none,selective", "none,full" }, *const fsdp[] = { "false",
                                                                                          "true" };
  struct weft_space_ranges ranges = { .whole = TRUE };
  g_autofree char *schedules =
      g_strdup_printf ("1f1b,%s", weft_schedule_words[g_rand_int_range (rand, 1, WEFT_N_SCHEDULE)]);

  assert_true (weft_space_limit (&ranges, "pipeline_schedule", schedules, NULL));
  assert_true (
      weft_space_limit (&ranges, "recompute_granularity", kinds[g_rand_int (rand) % 2], NULL));
  assert_true (weft_space_limit (&ranges, "use_megatron_fsdp", fsdp[g_rand_int (rand) % 2], NULL));
  assert_true (weft_space_limit (&ranges, "optimizer_cpu_offload", fsdp[0], NULL));
  return ranges;
}

/* Exhaustive searches of some small spaces, and random candidates of more. */
static void
bounds_change_no_answer (void **state)
{
  static const char *const models[] = { "llama-nano", "gpt2-nano", "qwen3moe-nano",
                                        "deepseek-nano" };
  static const char *const clusters[] = { "dgx-h100", "l40s-pcie", "dgx-a100" };
  static const char *const batches[] = { "8", "16" };
  static const char *const more[][2] = { { "tensor-model-parallel-size", "2" },
                                         { "virtual-pipeline-model-parallel-size", "2" },
                                         { "overlap-grad-reduce", "true" },
                                         { "context-parallel-size", "2" },
                                         { "recompute-granularity", "selective" },
                                         { "delay-wgrad-compute", "true" },
                                         { "precision", "fp8" },
                                         { "stack", "megatron-core" },
                                         { "grad-reduce-in-fp32", "true" },
                                         { "optimizer-cpu-offload", "true" },
                                         { "pipeline-schedule", "zb-h1" } };
  g_autoptr (GRand) rand = g_rand_new_with_seed (11);
  uint32_t pruned = 0;

  (void) state;
  for (uint32_t i = 0; i < G_N_ELEMENTS (more); i++) {
    const char *words[] = { "model",
                            models[g_rand_int_range (rand, 0, G_N_ELEMENTS (models))],
                            "topology",
                            clusters[g_rand_int_range (rand, 0, G_N_ELEMENTS (clusters))],
                            "gpus",
                            "4",
                            "global-batch-size",
                            batches[g_rand_int_range (rand, 0, G_N_ELEMENTS (batches))],
                            more[i][0],
                            more[i][1],
                            "micro-batch-size",
                            i % 2 ? "1" : "2",
                            NULL };
    struct weft_job job = open_job (words);
    some_bounds_hold (&job, rand, 20);
    if (i % 4)
      continue;
    tighten (&job, g_rand_double_range (rand, 0.6, 1.2));
    const struct weft_space_ranges ranges = few_values (rand);
    pruned += answers_agree (&job, &ranges);
  }
  assert_true (pruned > 100);
}

/* On nodes that hold a part of each pipeline in one order and of each stage in the other, the
 * bounds of both orders hold and choose the same strategies as an exhaustive search. */
static void
bounds_hold_in_both_orders_of_the_ranks (void **state)
{
  const char *words[] = { "model",
                          "gpt2-nano",
                          "topology",
                          "dgx-h100",
                          "gpus",
                          "8",
                          "node-gpus",
                          "4",
                          "node-nics",
                          "4",
                          "global-batch-size",
                          "16",
                          "micro-batch-size",
                          "1",
                          "pipeline-model-parallel-size",
                          "2",
                          NULL };
  struct weft_space_ranges ranges = { .whole = TRUE };
  struct weft_job job = open_job (words);
  g_autoptr (GRand) rand = g_rand_new_with_seed (12);

  (void) state;
  assert_true (weft_space_limit (&ranges, "pipeline_schedule", "1f1b", NULL));
  assert_true (weft_space_limit (&ranges, "recompute_granularity", "none", NULL));
  assert_true (weft_space_limit (&ranges, "use_megatron_fsdp", "false", NULL));
  assert_true (answers_agree (&job, &ranges) > 0);
  job.knob_set[WEFT_KNOB_use_tp_pp_dp_mapping] = job.strategy.use_tp_pp_dp_mapping = TRUE;
  some_bounds_hold (&job, rand, 20);
}

/* FSDP2 gathers weights inside each layer's pass, so lower bounds are computed from layers. Every
 * legal random job with FSDP2 has such a bound, and no simulated time is below it. */
static void
jobs_of_fsdp2_have_bounds_from_their_layers (void **state)
{
  static const char *const models[] = { "llama-nano", "gpt2-nano", "qwen3moe-nano" };
  static const char *const clusters[] = { "dgx-h100", "l40s-pcie", "dgx-a100" };
  static const char *const stacks[] = { "torchtitan", "llm-foundry", "weft" };
  static const char *const more[][2] = { { "gpus", "4" },
                                         { "context-parallel-size", "2" },
                                         { "pipeline-model-parallel-size", "2" },
                                         { "enable-fsdp2-prefetch", "true" },
                                         { "defer-fsdp-grad-sync", "true" },
                                         { "pipeline-schedule", "gpipe" } };
  g_autoptr (GRand) rand = g_rand_new_with_seed (23);

  (void) state;
  for (uint32_t i = 0; i < G_N_ELEMENTS (more); i++) {
    const char *const words[] = { "model",
                                  models[g_rand_int_range (rand, 0, G_N_ELEMENTS (models))],
                                  "topology",
                                  clusters[g_rand_int_range (rand, 0, G_N_ELEMENTS (clusters))],
                                  "stack",
                                  i < 4 ? stacks[i % 2 * 2] : stacks[0],
                                  "distributed-config",
                                  "fsdp2",
                                  "global-batch-size",
                                  i % 2 ? "16" : "8",
                                  "gpus",
                                  "4",
                                  more[i][0],
                                  more[i][1],
                                  NULL };
    struct weft_job job = open_job (words);
    g_autoptr (weft_segment_cache) cache = weft_segment_cache_new ();
    g_autoptr (GArray) space = weft_space_enumerate (&job);
    for (guint k = 0; k < space->len; k++) {
      struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, k));
      if (weft_job_check (&one, NULL) && weft_bound_passes (cache, &one).seconds <= 0)
        fail_msg ("job %u: strategy %u has no bound from its layers", i, k);
    }
    answers_agree (&job, NULL);
  }
}

/* Lower bounds measure each kind of layer on a model with few layers. Times and bytes must be those
 * in the whole model, for every bundled model, with several kinds of recompute and wrappers. */
static void
a_short_model_measures_the_layers_of_the_whole (void **state)
{
  static const char *const more[][2] = { { "recompute-granularity", "none" },
                                         { "recompute-granularity", "full" },
                                         { "recompute-granularity", "selective" },
                                         { "distributed-config", "fsdp2" } };
  g_autofree char *folder = g_build_filename (WEFT_SOURCE_DIR, "models", NULL);
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  uint32_t measured = 0;

  (void) state;
  for (const char *name; (name = g_dir_read_name (dir));) {
    if (!g_str_has_suffix (name, ".json"))
      continue;
    g_autofree char *model = g_strndup (name, strlen (name) - strlen (".json"));
    for (unsigned i = 0; i < G_N_ELEMENTS (more); i++) {
      gboolean full = i == 1;
      const char *words[] = { "model",
                              model,
                              "topology",
                              "dgx-h100",
                              "gpus",
                              "8",
                              "global-batch-size",
                              "8",
                              "tensor-model-parallel-size",
                              "2",
                              more[i][0],
                              more[i][1],
                              full ? "recompute-method" : NULL,
                              "uniform",
                              "recompute-num-layers",
                              "1",
                              NULL };
      struct weft_job job = open_job (words);
      if (!weft_job_check (&job, NULL))
        continue;
      struct weft_segments *few = weft_segments_measure (&job, FALSE);
      struct weft_segments *all = weft_segments_measure (&job, TRUE);
      assert_int_equal (few->n, all->n);
      if (all->n > 0)
        assert_memory_equal (few->segment, all->segment, all->n * sizeof *all->segment);
      measured += all->n > 0;
      weft_segments_free (few);
      weft_segments_free (all);
    }
  }
  assert_true (measured > 40);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (bounds_change_no_answer),
  cmocka_unit_test (early_recompute_and_filled_waits_are_not_counted),
  cmocka_unit_test (paths_come_near_the_clock_time),
  cmocka_unit_test (bounds_hold_in_both_orders_of_the_ranks),
  cmocka_unit_test (jobs_of_fsdp2_have_bounds_from_their_layers),
  cmocka_unit_test (a_short_model_measures_the_layers_of_the_whole),
};

WEFT_TESTS (tests, .seconds = 30)
