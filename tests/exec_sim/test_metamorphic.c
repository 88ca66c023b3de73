/* Random jobs on two machines: more bandwidth, more FLOP/s or less latency must not make a step
 * longer, recompute must not make it shorter, and a simulation with contention must not be shorter
 * than the formulas without. */
#include "exec_sim/exec_sim.h"
#include "core/base/mix.h"
#include "core/job/job.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <stdlib.h>
#include <string.h>

/* Number of random jobs. WEFT_TEST_JOBS=N sets another number, WEFT_TEST_SEED=S another seed. */
enum { JOBS = 40 };

#define F(name) offsetof (struct weft_cluster, f.name)
static const struct better {
  const char *name;
  size_t field[12]; /* fields of the cluster that are multiplied by `factor`; 0 ends the list */
  double factor;
} better[] = {
  { "NIC bandwidth x 2", { F (node_nic_bandwidth) }, 2 },
  { "NIC bandwidth x 1.1", { F (node_nic_bandwidth) }, 1.1 },
  { "bandwidth in the node x 2", { F (node_intra_bandwidth) }, 2 },
  { "bandwidth of torus links x 2", { F (fabric_link_bandwidth) }, 2 },
  { "memory bandwidth x 2", { F (gpu_memory_bandwidth) }, 2 },
  { "host link x 2", { F (gpu_host_link) }, 2 },
  { "host memory bandwidth x 2", { F (node_host_bandwidth) }, 2 },
  { "FLOP/s x 2", { F (gpu_bf16), F (gpu_fp8), F (gpu_fp32) }, 2 },
  { "latency / 2",
    { F (fabric_latency), F (node_intra_latency), F (fabric_hop_latency),
      F (node_intra_latency_ll), F (node_intra_latency_ll128), F (node_nvls_latency),
      F (fabric_latency_ll), F (fabric_latency_ll128), F (fabric_post_latency),
      F (fabric_floor_latency) },
    0.5 },
  { "latency of LL / 2", { F (node_intra_latency_ll), F (fabric_latency_ll) }, 0.5 },
  { "rates of LL and of switches x 2",
    { F (node_ll_bandwidth), F (node_ll128_bandwidth), F (fabric_ll_bandwidth),
      F (node_nvls_bandwidth) },
    2 },
  { "latency of spines / 2", { F (fabric_spine_latency) }, 0.5 },
};

/* Divides the bandwidths of the cluster, because the models of these tests are so small that on
 * fast links only latencies would matter. */
static void
slow_links (struct weft_job *job)
{
  static const size_t field[] = { F (node_nic_bandwidth), F (node_intra_bandwidth),
                                  F (fabric_link_bandwidth), F (gpu_host_link),
                                  F (node_host_bandwidth) };

  for (unsigned i = 0; i < G_N_ELEMENTS (field); i++)
    *(double *) (void *) ((char *) &job->cluster + field[i]) *= 1e-3;
}

struct step {
  double seconds;
  /* TRUE: links or SMs were shared, so a transfer or kernel took longer than it takes alone */
  gboolean contended;
  /* Hash of the addresses of all buffers. A memory plan with other addresses may make ops wait for
   * memory. */
  uint64_t places;
};

static uint64_t
hash_places (const weft_plan *plan)
{
  uint64_t hash = WEFT_HASH_BEGIN;

  for (uint32_t role = 0; role < plan->n_roles; role++)
    for (uint32_t b = 0; b < plan->role[role]->n_buf; b++)
      for (unsigned byte = 0; byte < 8; byte++)
        hash = weft_hash_byte (hash, (uint8_t) (plan->role[role]->buf[b].offset >> 8 * byte));
  return hash;
}

static struct step
run (const struct weft_job *job, const struct weft_exec_ops *ops)
{
  const struct weft_exec_options options = { 0 };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) plan = weft_plan_new (job, &error);
  g_autoptr (weft_timeline) t = plan ? weft_exec_run (ops, plan, &options, &error) : NULL;

  if (!t)
    fail_msg ("%s", error->message);
  return (struct step){ t->seconds, t->contended, hash_places (plan) };
}

struct count {
  unsigned steps, anomalies, wrong;
};

/* Transfers that share links can make a step longer on a better machine: a transfer that starts
 * earlier takes a share of a link from a more urgent transfer (R. L. Graham, "Bounds on
 * multiprocessing timing anomalies", 1969). Buffers that the memory plan of the better machine
 * places elsewhere can have the same effect, and so can NCCL, which chooses the protocol by the
 * constants of its own tuning model: on links a thousand times slower, half the latency moves an
 * all-reduce of 8 kB from LL128 to Simple, and a step of such all-reduces takes 5 % longer. Such
 * steps are only counted; they must be rare and only slightly longer. */
static void
compare (const char *change, struct step before, struct step after, const char *words,
         struct count *n)
{
  double more = after.seconds / before.seconds - 1;

  n->steps++;
  if (more <= 1e-9)
    return;
  if ((before.contended || after.contended || before.places != after.places) && more < 0.06) {
    n->anomalies++;
    return;
  }
  print_error ("%s: %.9g s become %.9g s (%+.3f %%): %s\n", change, before.seconds, after.seconds,
               100 * more, words);
  n->wrong++;
}

static void
check (const char *words, const struct weft_job *job, struct count *n)
{
  struct step before = run (job, &weft_exec_sim), clock = run (job, &weft_exec_clock);

  if (clock.seconds > before.seconds * (1 + 1e-9)) {
    print_error ("clock %.9g s, sim %.9g s: %s\n", clock.seconds, before.seconds, words);
    n->wrong++;
  }
  for (unsigned i = 0; i < G_N_ELEMENTS (better); i++) {
    struct weft_job other = *job;
    for (unsigned k = 0; k < G_N_ELEMENTS (better[i].field) && better[i].field[k]; k++)
      *(double *) (void *) ((char *) &other.cluster + better[i].field[k]) *= better[i].factor;
    compare (better[i].name, before, run (&other, &weft_exec_sim), words, n);
  }
}

/* Checks that full recompute, which adds kernels to a step and removes none, does not make the step
 * shorter. Jobs that offload activations are left out, because recomputed activations are not
 * copied. */
static void
check_recompute (const char *words, gboolean slow, struct count *n)
{
  g_autofree char *more = g_strconcat (
      words, " recompute_granularity=full recompute_method=uniform recompute_num_layers=1", NULL);
  struct weft_job job = { 0 }, recomputing = { 0 };

  if (strstr (words, "recompute") || strstr (words, "offload") ||
      !weft_test_job (words, &job, NULL) || !weft_test_job (more, &recomputing, NULL))
    return;
  if (slow) {
    slow_links (&job);
    slow_links (&recomputing);
  }
  compare ("recompute none against full", run (&recomputing, &weft_exec_sim),
           run (&job, &weft_exec_sim), more, n);
}

static unsigned
asked (const char *name, unsigned otherwise)
{
  const char *text = g_getenv (name);

  return text ? (unsigned) strtoul (text, NULL, 10) : otherwise;
}

static void
a_better_machine_is_never_slower (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (asked ("WEFT_TEST_SEED", 20));
  unsigned jobs = asked ("WEFT_TEST_JOBS", JOBS);
  struct count n = { 0 };

  (void) state;
  for (unsigned i = 0; i < jobs;) {
    g_autofree char *words = weft_random_job (rand);
    gboolean slow = i % 2;
    struct weft_job job = { 0 };
    if (!weft_test_job (words, &job, NULL))
      continue;
    i++;
    if (slow)
      slow_links (&job);
    check (words, &job, &n);
    check_recompute (words, slow, &n);
  }
  print_message ("%u comparisons, %u anomalies of shared links\n", n.steps, n.anomalies);
  assert_int_equal (n.wrong, 0);
  assert_true (n.anomalies * 50 <= n.steps);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_better_machine_is_never_slower),
};

WEFT_TESTS (tests, .seconds = 5)
