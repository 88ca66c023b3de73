/* Changes that save memory (planner/memory_changes.def): each saves memory of some job, leaves the
 * job's model and global batch as they are, and its flags build the changed job. The changes that
 * weft_memory_fix_find() proposes fit, keep what must be kept, and are ordered by step time. */
#include "core/plan/plan.h"
#include "planner/memory_fix.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

/* Wide layers, so that the memory of libraries is small beside that of the model, but few of
 * them. */
#define SMALL "model=llama2-7b num-layers=4 topology=dgx-h100 gpus=8 "
#define EXPERTS "model=mixtral-8x7b num-layers=2 seq-length=2048 topology=dgx-h100 gpus=8 "

/* Jobs on which the changes are tried, and the changes that must save memory of the job. */
static const struct {
  const char *words;
  enum weft_change saving[8];
  unsigned n;
} jobs[] = {
  { SMALL "global-batch-size=64 micro-batch-size=4",
    { WEFT_CHANGE_distributed_optimizer, WEFT_CHANGE_fsdp_gradients, WEFT_CHANGE_fsdp_weights,
      WEFT_CHANGE_chunked_head, WEFT_CHANGE_micro_batch, WEFT_CHANGE_recompute_modules,
      WEFT_CHANGE_recompute_layers, WEFT_CHANGE_optimizer_offload },
    8 },
  { SMALL "global-batch-size=64 micro-batch-size=4 attention-backend=unfused",
    { WEFT_CHANGE_pipeline, WEFT_CHANGE_tensor, WEFT_CHANGE_activation_offload,
      WEFT_CHANGE_flash_attention },
    4 },
  { SMALL "global-batch-size=64 use-distributed-optimizer=true grad-reduce-in-fp32=true",
    { WEFT_CHANGE_narrow_gradients },
    1 },
  { SMALL "global-batch-size=64 micro-batch-size=4 tensor-model-parallel-size=2",
    { WEFT_CHANGE_sequence_parallel },
    1 },
  { SMALL "global-batch-size=64 micro-batch-size=4 pipeline-model-parallel-size=4 "
          "pipeline-schedule=gpipe",
    { WEFT_CHANGE_schedule },
    1 },
  { SMALL "global-batch-size=64 micro-batch-size=4 pipeline-model-parallel-size=4 "
          "cross-entropy-loss-fusion=true cross-entropy-fusion-impl=linear "
          "recompute-granularity=full recompute-method=uniform recompute-num-layers=1",
    { WEFT_CHANGE_pipeline_outputs },
    1 },
  { SMALL "global-batch-size=8 seq-length=8192", { WEFT_CHANGE_context }, 1 },
  { SMALL "global-batch-size=8 distributed-config=ddp", { WEFT_CHANGE_fsdp2 }, 1 },
  { SMALL "global-batch-size=8 distributed-config=fsdp2",
    { WEFT_CHANGE_fsdp2_offload, WEFT_CHANGE_narrow_gradients },
    2 },
  { SMALL "global-batch-size=8 use-megatron-fsdp=true "
          "data-parallel-sharding-strategy=optim_grads_params",
    { WEFT_CHANGE_no_master_weights },
    1 },
  { EXPERTS "global-batch-size=8", { WEFT_CHANGE_expert }, 1 },
};

static struct weft_job
job_of (const char *words)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  if (!weft_test_job (words, &job, &error))
    fail_msg ("%s; in %s", error->message, words);
  return job;
}

static double
bytes_of (const struct weft_job *job)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) plan = weft_plan_new (job, &error);

  if (!plan)
    fail_msg ("%s", error->message);
  return (double) weft_plan_worst_bytes (plan);
}

/* Whether the strategy, the batch and the precision of two jobs are the same. */
static gboolean
is_same (const struct weft_job *a, const struct weft_job *b)
{
  return memcmp (&a->strategy, &b->strategy, sizeof a->strategy) == 0 &&
         memcmp (&a->train, &b->train, sizeof a->train) == 0;
}

/* The least memory of all variants of a change that satisfy the rules. */
static double
least_bytes (const struct weft_job *job, enum weft_change change)
{
  double least = INFINITY;
  struct weft_job changed = *job;

  for (unsigned v = 0; weft_change_make (change, v, &changed); v++) {
    if (!is_same (job, &changed) && weft_job_check (&changed, NULL))
      least = fmin (least, bytes_of (&changed));
    changed = *job;
  }
  return least;
}

static void
every_change_saves_memory_of_a_job (void **state)
{
  gboolean saves[WEFT_N_CHANGE] = { FALSE };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    struct weft_job job = job_of (jobs[i].words);
    double before = bytes_of (&job);
    for (unsigned k = 0; k < jobs[i].n; k++) {
      enum weft_change change = jobs[i].saving[k];
      if (!(least_bytes (&job, change) < before))
        fail_msg ("%s saves nothing: %g of %g bytes; in %s", weft_changes[change].name,
                  least_bytes (&job, change), before, jobs[i].words);
      saves[change] = TRUE;
    }
  }
  for (unsigned change = 0; change < WEFT_N_CHANGE; change++)
    if (!saves[change])
      fail_msg ("no job is here of which %s saves memory", weft_changes[change].name);
}

/* The flags "--a b", "--c" and "--no-d" as words "a=b", "c=true" and "d=false". */
static void
append_words (GString *words, const GPtrArray *flags)
{
  for (unsigned i = 0; i < flags->len; i++) {
    const char *word = (const char *) flags->pdata[i] + strlen ("--"), *blank = strchr (word, ' ');
    if (blank)
      g_string_append_printf (words, " %.*s=%s", (int) (blank - word), word, blank + 1);
    else if (g_str_has_prefix (word, "no-"))
      g_string_append_printf (words, " %s=false", word + strlen ("no-"));
    else
      g_string_append_printf (words, " %s=true", word);
  }
}

static void
check_flags (const char *words, const struct weft_job *job, const struct weft_job *changed)
{
  g_autoptr (GPtrArray) flags = weft_change_flags (job, changed);
  g_autoptr (GString) all = g_string_new (words);

  append_words (all, flags);
  struct weft_job again = job_of (all->str);
  if (!is_same (changed, &again))
    fail_msg ("%s builds another job", all->str);
  assert_int_equal (again.train.global_batch_size, job->train.global_batch_size);
  assert_memory_equal (&again.model, &job->model, sizeof job->model);
}

/* Also without a global batch in the command line, where another number of replicas would otherwise
 * give another batch. */
static void
the_flags_of_a_change_build_the_changed_job (void **state)
{
  unsigned checked = 0;

  (void) state;
  for (unsigned i = 0; i <= G_N_ELEMENTS (jobs); i++) {
    const char *words = i < G_N_ELEMENTS (jobs) ? jobs[i].words : SMALL;
    struct weft_job job = job_of (words), changed = job;
    for (unsigned change = 0; change < WEFT_N_CHANGE; change++)
      for (unsigned v = 0; changed = job, weft_change_make (change, v, &changed); v++) {
        if (!weft_job_check (&changed, NULL))
          continue;
        check_flags (words, &job, &changed);
        checked++;
      }
  }
  assert_true (checked > 100);
}

/* Changes that add numbers in another precision say so; smaller microbatches do, if the model has
 * experts. */
static void
changes_of_numerics_are_said (void **state)
{
  struct weft_job dense = job_of (SMALL), experts = job_of (EXPERTS);

  (void) state;
  assert_null (weft_change_numerics (WEFT_CHANGE_micro_batch, &dense));
  assert_non_null (weft_change_numerics (WEFT_CHANGE_micro_batch, &experts));
  assert_non_null (weft_change_numerics (WEFT_CHANGE_narrow_gradients, &dense));
  assert_non_null (weft_change_numerics (WEFT_CHANGE_no_master_weights, &dense));
  assert_null (weft_change_numerics (WEFT_CHANGE_recompute_layers, &experts));
}

/* -------------------------------------------------------------------- proposals */

static weft_memory_fixes *
find (const struct weft_job *job, const struct weft_memory_fix_options *options)
{
  g_autoptr (GError) error = NULL;
  weft_memory_fixes *fixes = weft_memory_fix_find (job, options, &error);

  if (!fixes)
    fail_msg ("%s", error->message);
  return fixes;
}

static void
check_fix (const struct weft_memory_fix *fix, const struct weft_job *job, double limit)
{
  assert_true (weft_job_check (&fix->job, NULL));
  assert_true (fix->bytes == bytes_of (&fix->job) && fix->bytes <= limit);
  assert_true (fix->seconds >= fix->clock * (1 - 1e-9));
  assert_int_equal (fix->job.train.global_batch_size, job->train.global_batch_size);
}

/* Limits between the memory of the job and little of it: every proposal fits, single changes come
 * first, and each number of changes is ordered by time. A change that fits alone is in no pair. */
static void
proposals_fit_and_are_ordered_by_time (void **state)
{
  struct weft_job job = job_of (SMALL "global-batch-size=64 micro-batch-size=4");
  const double parts[] = { 0.95, 0.9, 0.8 };
  unsigned proposals = 0, pairs = 0;

  (void) state;
  for (unsigned k = 0; k < G_N_ELEMENTS (parts); k++) {
    struct weft_memory_fix_options options = { .limit = parts[k] * bytes_of (&job),
                                               .n_workers = 1 };
    g_autoptr (weft_memory_fixes) fixes = find (&job, &options);
    assert_false (fixes->given_fits);
    for (uint32_t i = 0; i < fixes->n; i++) {
      const struct weft_memory_fix *fix = &fixes->fix[i];
      check_fix (fix, &job, options.limit);
      assert_true (i == 0 || fix[-1].n < fix->n ||
                   (fix[-1].n == fix->n && fix[-1].seconds <= fix->seconds));
      pairs += fix->n == 2;
    }
    proposals += fixes->n;
    assert_true (fixes->fitting >= fixes->n);
  }
  assert_true (proposals > 10 && pairs > 0);
}

static void
kept_settings_stay (void **state)
{
  struct weft_job job = job_of (SMALL "global-batch-size=64 micro-batch-size=4");
  struct weft_memory_fix_options options = { .limit = 0.9 * bytes_of (&job), .n_workers = 1 };
  g_autoptr (weft_memory_fixes) open = find (&job, &options);
  gboolean changed = FALSE;

  (void) state;
  options.train_kept[WEFT_TRAIN_micro_batch_size] = TRUE;
  options.knob_kept[WEFT_KNOB_recompute_granularity] = TRUE;
  g_autoptr (weft_memory_fixes) kept = find (&job, &options);
  assert_true (kept->kept > 0 && open->kept == 0);
  for (uint32_t i = 0; i < open->n; i++)
    changed |= open->fix[i].job.train.micro_batch_size != 4;
  for (uint32_t i = 0; i < kept->n; i++) {
    assert_int_equal (kept->fix[i].job.train.micro_batch_size, 4);
    assert_int_equal (kept->fix[i].job.strategy.recompute_granularity, WEFT_RECOMPUTE_NONE);
  }
  assert_true (changed);
}

/* A pair of changes with lower bounds of memory that must not be mixed up: the bound of a job
 * without offload is above the memory of the job with offload. */
static void
a_pair_with_offload_is_found (void **state)
{
  struct weft_job job = job_of ("model=llama3-8b topology=dgx-h100 distributed-config=fsdp2");
  struct weft_memory_fix_options options = { .limit = 12e9 };
  gboolean found = FALSE;

  (void) state;
  g_autoptr (weft_memory_fixes) fixes = find (&job, &options);
  for (uint32_t i = 0; i < fixes->n; i++)
    found |= fixes->fix[i].job.strategy.offload_policy == WEFT_OFFLOAD_CPU &&
             fixes->fix[i].job.strategy.recompute_granularity == WEFT_RECOMPUTE_FULL;
  assert_true (found);
}

static void
a_job_that_fits_needs_no_change (void **state)
{
  struct weft_job job = job_of (SMALL);
  const struct weft_memory_fix_options options = { .limit = 80e9, .n_workers = 1 };

  (void) state;
  g_autoptr (weft_memory_fixes) fixes = find (&job, &options);
  assert_true (fixes->given_fits && fixes->n == 0);
  assert_true (fixes->given.seconds > 0);
}

/* No combination makes a job fit in a megabyte: all break a rule or are too large. */
static void
without_a_fix_nothing_is_proposed (void **state)
{
  struct weft_job job = job_of (SMALL);
  const struct weft_memory_fix_options options = { .limit = 1e6, .n_workers = 1 };

  (void) state;
  g_autoptr (weft_memory_fixes) fixes = find (&job, &options);
  assert_false (fixes->given_fits);
  assert_int_equal (fixes->n, 0);
  assert_int_equal (fixes->fitting, 0);
  assert_true (fixes->illegal > 0 && fixes->too_large > 0);
}

/* The variants of recompute_modules are a list by hand, because their order matters. */
static void
every_module_is_in_a_variant_of_recompute (void **state)
{
  const struct weft_job job = job_of (EXPERTS "global-batch-size=8 attention-backend=unfused");
  struct weft_job changed = job;
  uint32_t modules = 0;

  (void) state;
  for (unsigned v = 0; weft_change_make (WEFT_CHANGE_recompute_modules, v, &changed); v++) {
    g_autofree char *unknown = NULL;
    modules |= weft_job_modules (&changed, &unknown);
    assert_null (unknown);
    changed = job;
  }
  assert_int_equal (modules, (1u << WEFT_N_MODULE) - 1);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_change_saves_memory_of_a_job),
  cmocka_unit_test (every_module_is_in_a_variant_of_recompute),
  cmocka_unit_test (the_flags_of_a_change_build_the_changed_job),
  cmocka_unit_test (changes_of_numerics_are_said),
  cmocka_unit_test (proposals_fit_and_are_ordered_by_time),
  cmocka_unit_test (kept_settings_stay),
  cmocka_unit_test (a_pair_with_offload_is_found),
  cmocka_unit_test (a_job_that_fits_needs_no_change),
  cmocka_unit_test (without_a_fix_nothing_is_proposed),
};

WEFT_TESTS (tests)
