/* Search benchmark: candidates of `weft plan` that one core checks, bounds, times and simulates in
 * a second, and how these rates change with the GPUs of the cluster and the microbatches of a step.
 *
 * bench_search               prints the rates for GPT-3 175B
 * bench_search memory [N [SEED]]
 *                            compares the live bytes and the clock times that a search computes for
 *                            N random candidates, from short steps, with those of the plans of
 *                            whole steps, and prints candidates that differ [5000 20261124]
 * bench_search brute [N]     searches five spaces, and simulates N random candidates of them, of
 *                            which none may be faster than the answer of its search [3000]
 * bench_search bounds [N]    compares the lower bounds of N random candidates with the clock times
 *                            and planned memory of their whole steps [5000]
 * bench_search large [I]     searches five large spaces (only number I), and prints seconds and
 *                            memory
 *
 * Levels:
 *   rules      makes the job of a candidate and checks its rules
 *   flops      lower bound from FLOPs
 *   passes     lower bounds of time and memory from layers; includes the measurement of the layers
 *   schedule   lower bound from a replay of the schedule
 *   ends       like schedule, with the work before the first and after the last pass
 *   program    clock time of programs without buffer addresses
 *   clock      clock time and memory
 *   simulated  clock time, memory and simulation of proved plans */
#include "core/base/error.h"
#include "core/job/flags.h"
#include "planner/bound.h"
#include "planner/planner.h"
#include "planner/space.h"
#include "planner/trials.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* Number of candidates on which each level is measured; rules and FLOPs: all candidates. */
enum { MOST_BOUNDED = 400, MOST_TRIED = 8 };

/* The whole space, without limits. */
static const struct weft_space_ranges whole_space = { .whole = TRUE };

static double
processor_seconds (void)
{
  return (double) clock () / CLOCKS_PER_SEC;
}

/* Makes a job from words. Does not check the rules of the job, because the search sets further
 * knobs. */
static gboolean
assemble (const char *words, struct weft_job *job)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autoptr (GError) error = NULL;

  if (weft_flags_words (words, settings, &error) && weft_job_assemble (settings, job, &error))
    return TRUE;
  fprintf (stderr, "%s: %s\n", words, error->message);
  return FALSE;
}

/* ------------------------------------------------------------------------- rates */

struct sample {
  const struct weft_job *job;
  GArray *space;
  GArray *legal; /* numbers of the legal candidates in `space` */
  weft_segment_cache *cache;
};

static struct weft_job
candidate (const struct sample *s, guint i, guint n)
{
  guint at = (guint) ((guint64) i * s->legal->len / n);

  return weft_space_job (
      s->job, &g_array_index (s->space, struct weft_choice, g_array_index (s->legal, guint, at)));
}

static void
check_rules (struct sample *s)
{
  for (guint i = 0; i < s->space->len; i++) {
    struct weft_job job = weft_space_job (s->job, &g_array_index (s->space, struct weft_choice, i));
    if (weft_job_check (&job, NULL))
      g_array_append_val (s->legal, i);
  }
}

static void
bound_flops (struct sample *s, const struct weft_job *job)
{
  (void) s;
  weft_bound_flops (job);
}

static void
bound_passes (struct sample *s, const struct weft_job *job)
{
  weft_bound_passes (s->cache, job);
}

static void
bound_ends (struct sample *s, const struct weft_job *job)
{
  weft_bound_ends (s->cache, job);
}

static void
bound_schedule (struct sample *s, const struct weft_job *job)
{
  weft_bound_schedule (s->cache, job);
}

static void
try_job (struct sample *s, const struct weft_job *job, enum weft_trial_depth depth)
{
  struct weft_trials how = { .placements = weft_segment_cache_placements (s->cache),
                             .n_workers = 1 };
  struct weft_trial trial = { .job = *job, .depth = depth };

  weft_trials_run (&how, &trial, 1, NULL);
  weft_trial_clear (&trial);
}

static void
try_program (struct sample *s, const struct weft_job *job)
{
  try_job (s, job, WEFT_TRIAL_BOUND);
}

static void
try_clock (struct sample *s, const struct weft_job *job)
{
  try_job (s, job, WEFT_TRIAL_CLOCK);
}

static void
try_simulated (struct sample *s, const struct weft_job *job)
{
  try_job (s, job, WEFT_TRIAL_SIMULATED);
}

static const struct {
  const char *name;
  void (*run) (struct sample *s, const struct weft_job *job);
  guint most;
} levels[] = {
  { "flops", bound_flops, G_MAXUINT },          { "passes", bound_passes, MOST_BOUNDED },
  { "schedule", bound_schedule, MOST_BOUNDED }, { "ends", bound_ends, MOST_BOUNDED },
  { "program", try_program, MOST_TRIED },       { "clock", try_clock, MOST_TRIED },
  { "simulated", try_simulated, MOST_TRIED },
};

/* Prints the candidates per second of processor time at all levels, for one size of cluster and
 * step. */
static void
print_row (uint32_t nodes, uint32_t batch)
{
  g_autofree char *words = g_strdup_printf ("model=gpt3-175b topology=dgx-h100 nodes=%u "
                                            "global_batch_size=%u seq_length=2048",
                                            nodes, batch);
  struct weft_job job;

  if (!assemble (words, &job))
    return;
  struct sample s = { .job = &job,
                      .space = weft_space_enumerate_within (&job, &whole_space),
                      .legal = g_array_new (FALSE, FALSE, sizeof (guint)),
                      .cache = weft_segment_cache_new () };
  double begin = processor_seconds ();
  check_rules (&s);
  printf ("%8u %6u %8u %9.0f", 8 * nodes, batch, s.legal->len,
          s.space->len / (processor_seconds () - begin));
  for (unsigned level = 0; level < G_N_ELEMENTS (levels); level++) {
    guint n = MIN (levels[level].most, s.legal->len);
    begin = processor_seconds ();
    for (guint i = 0; i < n; i++) {
      struct weft_job one = candidate (&s, i, n);
      levels[level].run (&s, &one);
    }
    double rate = n / (processor_seconds () - begin);
    printf (" %9.*f", rate < 100, rate);
    fflush (stdout);
  }
  printf ("\n");
  weft_segment_cache_free (s.cache);
  g_array_unref (s.legal);
  g_array_unref (s.space);
}

static void
print_rates (void)
{
  static const uint32_t rows[][2] = { { 32, 1536 },  { 128, 384 },  { 128, 1536 },
                                      { 128, 6144 }, { 512, 1536 }, { 2048, 1536 } };

  printf ("%8s %6s %8s %9s", "GPUs", "batch", "legal", "rules");
  for (unsigned level = 0; level < G_N_ELEMENTS (levels); level++)
    printf (" %9s", levels[level].name);
  printf ("\n");
  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++)
    print_row (rows[i][0], rows[i][1]);
}

/* ------------------------------------------------------------------------ memory */

/* Returns the words of a random search: a small model on a few GPUs, so that whole steps are
 * quick. */
static char *
draw (GRand *rand)
{
  static const char *const models[] = { "llama-nano", "gpt2-nano", "qwen3moe-nano",
                                        "deepseek-nano" };
  static const char *const gpus[] = { "4", "8", "16" }, *const batches[] = { "16", "32", "64" };

  return g_strdup_printf ("model=%s topology=dgx-h100 gpus=%s global_batch_size=%s",
                          models[g_rand_int_range (rand, 0, G_N_ELEMENTS (models))],
                          gpus[g_rand_int_range (rand, 0, G_N_ELEMENTS (gpus))],
                          batches[g_rand_int_range (rand, 0, G_N_ELEMENTS (batches))]);
}

/* Upper ends of the classes into which differences of clock times are counted, relative to the
 * clock time of the whole step. */
static const double classes[] = { 1e-9, 1e-4, 1e-3, 1e-2, INFINITY };

/* What short steps said about the whole steps of random candidates. */
struct comparison {
  guint n, n_long,
      n_agree; /* candidates: all; long enough to be shortened; with equal live bytes */
  guint
      by_class[G_N_ELEMENTS (classes)]; /* long candidates by the difference of their clock time */
  double lowest, highest;               /* the extreme differences */
};

static double
clock_seconds (const weft_plan *plan)
{
  const union weft_clock_options own = { { .roles = TRUE } };
  const struct weft_exec_options exec = { .own = weft_own_options_of (weft_exec_clock.options,
                                                                      own.at) };
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &exec, NULL);

  return t ? t->seconds : NAN;
}

static void
print_difference (const struct weft_job *job, double bytes, double seconds)
{
  g_autofree char *text = weft_job_print (job);

  printf ("live bytes differ by %.0f, clock time by %.2g:\n%s\n", bytes, seconds, text);
}

static void
count_difference (struct comparison *c, double off)
{
  guint class = 0;

  while (fabs (off) > classes[class])
    class ++;
  c->by_class[class]++;
  c->lowest = fmin (c->lowest, off);
  c->highest = fmax (c->highest, off);
}

/* Compares the live bytes and the clock time that a trial extrapolates from short steps with those
 * of the plan of the whole step. */
static gboolean
compare_one (struct comparison *c, const struct weft_job *job)
{
  g_autoptr (weft_placements) placements = weft_placements_new ();
  g_autoptr (weft_plan) whole = weft_plan_new_draft (job, WEFT_PLAN_PLACED, placements, NULL);
  struct weft_trials how = { .placements = placements, .n_workers = 1 };
  struct weft_trial trial = { .job = *job, .depth = WEFT_TRIAL_CLOCK };

  if (!whole || !weft_trials_run (&how, &trial, 1, NULL))
    return FALSE;
  double bytes = trial.least - (double) weft_plan_least_bytes (whole), off = 0;
  if (trial.plans[WEFT_PLAN_PLACED] > 1) {
    off = trial.seconds / clock_seconds (whole) - 1;
    count_difference (c, off);
    c->n_long++;
  }
  c->n++;
  c->n_agree += bytes == 0;
  if (bytes != 0 || fabs (off) > 1e-2)
    print_difference (job, bytes, off);
  weft_trial_clear (&trial);
  return TRUE;
}

/* Draws candidates of one space and compares them, until `n` candidates were compared. */
static gboolean
compare_some (struct comparison *c, GRand *rand, guint n)
{
  g_autofree char *words = draw (rand);
  struct weft_job job;

  if (!assemble (words, &job))
    return FALSE;
  g_autoptr (GArray) space = weft_space_enumerate_within (&job, &whole_space);
  for (guint i = 0; i < 50 && c->n < n; i++) {
    guint at = (guint) g_rand_int_range (rand, 0, (gint) space->len);
    struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, at));
    if (weft_job_check (&one, NULL) && !compare_one (c, &one))
      return FALSE;
  }
  return TRUE;
}

static int
compare_memory (guint n, guint32 seed)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (seed);
  struct comparison c = { 0 };

  while (c.n < n)
    if (!compare_some (&c, rand, n))
      return 1;
  printf ("%u candidates, %u of them extrapolated from short steps: live bytes equal those of the "
          "whole step for %u\n",
          c.n, c.n_long, c.n_agree);
  printf ("clock times of the %u, relative to that of the whole step: %+.2g to %+.2g;", c.n_long,
          c.lowest, c.highest);
  for (guint i = 0; i < G_N_ELEMENTS (classes); i++)
    printf (" %u up to %g%s", c.by_class[i], classes[i], classes[i] < INFINITY ? "," : "\n");
  return c.n_agree < c.n;
}

/* ------------------------------------------------------------------- brute force */

/* Spaces whose steps are quick to simulate. */
static const char *const spaces[] = {
  "model=llama-nano topology=dgx-h100 gpus=8 global_batch_size=32",
  "model=gpt2-nano topology=l40s-pcie gpus=4 global_batch_size=16",
  "model=qwen3moe-nano topology=dgx-h100 gpus=4 global_batch_size=16",
  "model=deepseek-nano topology=dgx-a100 gpus=4 global_batch_size=16",
  "model=gpt2-large topology=dgx-a100 gpus=8 global_batch_size=64 micro_batch_size=2",
};

/* Most candidates that are simulated at a time. */
enum { BATCH = 64 };

/* Draws candidates until a batch has `n` legal ones. */
static void
draw_legal (const struct weft_job *job, const GArray *space, GRand *rand, guint n,
            struct weft_trial trial[BATCH])
{
  for (guint i = 0; i < n;) {
    guint at = (guint) g_rand_int_range (rand, 0, (gint) space->len);
    struct weft_job one = weft_space_job (job, &g_array_index (space, struct weft_choice, at));
    if (weft_job_check (&one, NULL))
      trial[i++] = (struct weft_trial){ .job = one, .depth = WEFT_TRIAL_SIMULATED };
  }
}

/* Simulates `n` random candidates. Returns the number of those that fit and are faster than `best`
 * seconds, and prints them. */
static guint
count_faster (const struct weft_job *job, const GArray *space, GRand *rand, guint n, double best)
{
  g_autoptr (weft_placements) placements = weft_placements_new ();
  struct weft_trials how = { .placements = placements };
  struct weft_trial trial[BATCH];
  guint n_faster = 0;

  for (guint done = 0; done < n; done += BATCH) {
    guint some = MIN (BATCH, n - done);
    draw_legal (job, space, rand, some, trial);
    weft_trials_run (&how, trial, some, NULL);
    for (guint i = 0; i < some; i++) {
      const weft_report *r = trial[i].report;
      if (r && r->fits && r->iteration.time_s < best * (1 - 1e-9)) {
        g_autofree char *text = weft_job_print (&trial[i].job);
        printf ("%.9g s is faster than %.9g s:\n%s\n", r->iteration.time_s, best, text);
        n_faster++;
      }
      weft_trial_clear (&trial[i]);
    }
  }
  weft_trials_end (&how);
  return n_faster;
}

static int
compare_brute (guint n)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (20261128);
  guint n_faster = 0, share = n / G_N_ELEMENTS (spaces);

  for (unsigned i = 0; i < G_N_ELEMENTS (spaces); i++) {
    const struct weft_search_options options = { .ranges = &whole_space };
    struct weft_job job;
    if (!assemble (spaces[i], &job))
      return 1;
    g_autoptr (weft_search) search = weft_search_run (&job, &options, NULL);
    g_autoptr (GArray) space = weft_space_enumerate_within (&job, &whole_space);
    double best = search->candidate[0].seconds;
    guint faster = count_faster (&job, space, rand, share, best);
    printf ("%s: %u strategies, best %.6g s; of %u simulated ones %u are faster\n", spaces[i],
            space->len, best, share, faster);
    fflush (stdout);
    n_faster += faster;
  }
  return n_faster > 0;
}

/* ------------------------------------------------------------------------ bounds */

/* Returns the words of a random search: as those of draw(), on several clusters, and with wrappers
 * and schedules that a search of the whole space tries rarely or never. */
static char *
draw_rare (GRand *rand)
{
  static const char *const clusters[] = { "dgx-h100", "dgx-a100", "l40s-pcie" };
  static const char *const more[] = { "gpus=8",
                                      "use_megatron_fsdp=true",
                                      "pipeline_schedule=breadth-first",
                                      "distributed_config=fsdp2",
                                      "distributed_config=fsdp2 pipeline_schedule=zb-v",
                                      "distributed_config=fsdp2 pipeline_schedule=dualpipev",
                                      "pipeline_schedule=dualpipe tensor_model_parallel_size=2",
                                      "pipeline_schedule=dualpipev tensor_model_parallel_size=2" };
  g_autofree char *words = draw (rand);

  return g_strdup_printf ("%s topology=%s %s", words,
                          clusters[g_rand_int_range (rand, 0, G_N_ELEMENTS (clusters))],
                          more[g_rand_int_range (rand, 0, G_N_ELEMENTS (more))]);
}

/* Whether the lower bounds of a job hold for the clock time and the planned memory of its whole
 * step. Prints a job for which they do not. */
static gboolean
holds (weft_segment_cache *cache, const struct weft_job *job)
{
  struct weft_trials how = { .placements = weft_segment_cache_placements (cache),
                             .n_workers = 1,
                             .whole = TRUE };
  struct weft_trial trial = { .job = *job, .depth = WEFT_TRIAL_CLOCK };
  struct weft_bound bound = weft_bound_passes (cache, job);
  double schedule = weft_bound_schedule (cache, job), ends = weft_bound_ends (cache, job),
         lanes = weft_bound_lanes (cache, job);

  weft_trials_run (&how, &trial, 1, NULL);
  gboolean good = !trial.error &&
                  MAX (MAX (bound.seconds, schedule), MAX (ends, lanes)) <= trial.seconds &&
                  bound.bytes <= trial.bytes;
  if (!good) {
    g_autofree char *text = weft_job_print (job);
    printf ("passes %.4f, schedule %.4f, ends %.4f, lanes %.4f of the clock time, %.4f of the "
            "bytes:\n%s\n",
            bound.seconds / trial.seconds, schedule / trial.seconds, ends / trial.seconds,
            lanes / trial.seconds, bound.bytes / trial.bytes, text);
  }
  weft_trial_clear (&trial);
  return good;
}

static int
compare_bounds (guint n)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (20261129);
  guint n_good = 0;

  for (guint done = 0; done < n;) {
    g_autofree char *words = draw_rare (rand);
    struct weft_job job;
    if (!assemble (words, &job))
      return 1;
    g_autoptr (weft_segment_cache) cache = weft_segment_cache_new ();
    g_autoptr (GArray) space = weft_space_enumerate_within (&job, &whole_space);
    for (guint i = 0; i < 50 && done < n; i++) {
      guint at = (guint) g_rand_int_range (rand, 0, (gint) space->len);
      struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, at));
      if (!weft_job_check (&one, NULL))
        continue;
      n_good += holds (cache, &one);
      done++;
    }
  }
  printf ("%u candidates: the lower bounds hold for %u\n", n, n_good);
  return n_good < n;
}

/* ------------------------------------------------------------------ large spaces */

static const char *const large[] = {
  "model=gpt3-175b topology=dgx-h100 nodes=128 global_batch_size=1536",
  "model=llama3.1-405b seq_length=8192 topology=dgx-h100 nodes=64 global_batch_size=512",
  "model=llama3.1-405b seq_length=8192 topology=dgx-h100 nodes=2048 global_batch_size=2048",
  "model=deepseek-v3 seq_length=4096 topology=dgx-h100 nodes=1024 global_batch_size=15360",
  "model=megatron-1t topology=dgx-h100 nodes=12500 fabric_max_nodes=16384 global_batch_size=12500",
};

/* User and system seconds of this process and of its children that have ended. */
static double
all_seconds (void)
{
  double sum = 0;

  for (int i = 0; i < 2; i++) {
    struct rusage used;
    getrusage (i ? RUSAGE_CHILDREN : RUSAGE_SELF, &used);
    sum += (double) (used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double) (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  }
  return sum;
}

/* The largest resident size of this process or of a child so far, bytes. */
static double
peak_bytes (void)
{
  struct rusage own, children;

  getrusage (RUSAGE_SELF, &own);
  getrusage (RUSAGE_CHILDREN, &children);
  return 1024.0 * (double) MAX (own.ru_maxrss, children.ru_maxrss);
}

/* Prints the number of strategies of a space. */
static int
count_large (const char *words)
{
  struct weft_job job;
  double begin = processor_seconds ();

  if (!assemble (words, &job))
    return 1;
  g_autoptr (GArray) families = g_array_new (FALSE, FALSE, sizeof (struct weft_choice));
  weft_space_families (&job, &whole_space, NULL, 0, WEFT_SPACE_SCHEDULES, families);
  uint32_t n = weft_space_count (&job, &whole_space, NULL, 0);
  printf ("%s: %u families of schedules, %u strategies; %.2f s\n", words, families->len, n,
          processor_seconds () - begin);
  return 0;
}

/* Searches a space and prints the outcome and the number of plans by depth. */
static int
search_large (const char *words)
{
  const struct weft_search_options options = { .ranges = &whole_space, .near_miss = TRUE };
  struct weft_job job;
  double begin = all_seconds ();

  if (!assemble (words, &job))
    return 1;
  g_autoptr (weft_search) s = weft_search_run (&job, &options, NULL);
  printf ("%s\n  %u strategies, best %.6g s, gap %.2f %%, %u simulated; wall %.1f s, processor "
          "%.1f s, peak %.0f MB; plans: %u of layers, %u priced, %u placed, %u proved\n",
          words, s->n, s->candidate[0].seconds, 100 * s->gap, s->by_fate[WEFT_FATE_SIMULATED],
          s->wall_seconds, all_seconds () - begin, peak_bytes () * 1e-6, s->plans.of_layers,
          s->plans.by_depth[WEFT_PLAN_PRICED], s->plans.by_depth[WEFT_PLAN_PLACED],
          s->plans.by_depth[WEFT_PLAN_PROVED]);
  fflush (stdout);
  return 0;
}

static int
count_larges (void)
{
  int rc = 0;

  for (unsigned i = 0; i < G_N_ELEMENTS (large); i++)
    rc |= count_large (large[i]);
  return rc;
}

static int
search_larges (const char *number)
{
  int rc = 0;

  for (unsigned i = 0; i < G_N_ELEMENTS (large); i++)
    if (!number || strtoul (number, NULL, 10) == i + 1)
      rc |= search_large (large[i]);
  return rc;
}

int
main (int argc, char **argv)
{
  if (argc > 1 && strcmp (argv[1], "bounds") == 0)
    return compare_bounds (argc > 2 ? (guint) strtoul (argv[2], NULL, 10) : 5000);
  if (argc > 1 && strcmp (argv[1], "count") == 0)
    return count_larges ();
  if (argc > 1 && strcmp (argv[1], "large") == 0)
    return search_larges (argc > 2 ? argv[2] : NULL);
  if (argc > 1 && strcmp (argv[1], "memory") == 0)
    return compare_memory (argc > 2 ? (guint) strtoul (argv[2], NULL, 10) : 5000,
                           argc > 3 ? (guint32) strtoul (argv[3], NULL, 10) : 20261124);
  if (argc > 1 && strcmp (argv[1], "brute") == 0)
    return compare_brute (argc > 2 ? (guint) strtoul (argv[2], NULL, 10) : 3000);
  print_rates ();
  return 0;
}
