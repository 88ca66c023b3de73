/* goodput.h - how much of the time a job trains when its machines fail.
 *
 * Failures come at random with a constant rate, and any failure stops the whole job. The job goes
 * on from its last checkpoint after a restart; if more nodes are in repair than there are spare
 * nodes, the job waits first. With M the mean time between failures, D the time for which a
 * checkpoint stops training, R the time of a restart, T the interval of training between two
 * checkpoints:
 *
 *   interval    Young 1974 ("A First Order Approximation to the Optimum Checkpoint Interval"):
 *               T = sqrt (2 D M). Daly 2006 ("A higher order estimate of the optimum checkpoint
 *               interval for restart dumps", equation 37):
 *               T = sqrt (2 D M) (1 + sqrt (D / 2M) / 3 + (D / 2M) / 9) - D, if D < 2M; else M
 *   time        Daly 2006, equation 20: T of training take M exp (R/M) (exp ((T + D) / M) - 1)
 *   repairs     The nodes in repair are the busy servers of a loss system with S + 1 servers for S
 *               spares: the job waits in the state in which all are busy, and a job that waits has
 *               no failures. Its share of time is Erlang's formula B (S + 1, repair / M), which
 *               holds for every distribution of repair times.
 *
 * An asynchronous checkpoint stops training for the copy to host memory only, but it is of use only
 * when it is written. A failure therefore also loses the training during the rest of the writing,
 * which is added to R; and the interval is at least as long as the writing. */
#pragma once
#include "core/job/job.h"
#include "planner/site.h"

/* What can fail, and its mean time between failures in site.def: X (ID, word, field, number of
 * units in a cluster `c`) */
#define WEFT_FAILING_LIST(X)                                                                       \
  X (WEFT_GPU_FAILS, "GPU", gpu_mtbf_hours, c->n_gpus)                                             \
  X (WEFT_NIC_FAILS, "NIC", nic_mtbf_hours, c->n_nodes * (double) c->f.node_nics)                  \
  X (WEFT_NODE_FAILS, "node", node_mtbf_hours, c->n_nodes)
#define WEFT_FAILING_ID(id, word, field, units) id,
enum weft_failing { WEFT_FAILING_LIST (WEFT_FAILING_ID) WEFT_N_FAILING };
#undef WEFT_FAILING_ID
extern const char *const weft_failing_words[];

/* The failures of a cluster. All times are in seconds. */
struct weft_failures {
  /* mean time between failures of the whole cluster; INFINITY: nothing fails */
  double mtbf;
  double part[WEFT_N_FAILING]; /* mean time between failures of the parts of one class */
  /* bytes of a checkpoint; bandwidth to the storage in bytes/s, NaN: not known */
  double bytes, bandwidth;
  double write;            /* time to write a checkpoint to the storage */
  double stop;             /* D, the time for which a checkpoint stops training */
  double restart;          /* time to detect a failure, restart the job and read the checkpoint */
  double repair;           /* time from the failure of a node until it works again */
  double step;             /* seconds of a training step */
  uint32_t spares;         /* number of spare nodes */
};

/* How often the cluster of a job fails at a site, and how long each failure takes. */
struct weft_failures weft_failures_of (const struct weft_job *job,
                                       const union weft_site_fields *site, double step);

struct weft_goodput {
  /* interval between checkpoints by the formulas of Young and Daly, seconds; INFINITY: nothing
   * fails */
  double young, daly;
  /* Daly's interval, rounded to whole steps, and at least as long as writing a checkpoint takes */
  double interval;
  double steps;        /* steps of training in an interval */
  double checkpoints;  /* fraction of the time in which checkpoints stop training */
  double waits;        /* fraction of the time in which the job waits for a repair */
  double failures;     /* fraction of the time that failures lose: repeated training and restarts */
  /* fraction of the time that is training that counts: 1 minus the three fractions above */
  double goodput;
};
struct weft_goodput weft_goodput_of (const struct weft_failures *failures);

/* Seconds that a run needs for `work` seconds of training, at percentiles of WEFT_GOODPUT_TRIALS
 * simulated runs. If these runs together would have more than WEFT_GOODPUT_FAILURES failures, fewer
 * runs are simulated. If a single run has more failures than that, its time varies by less than 0.1
 * %, and all percentiles are the mean. */
#define WEFT_GOODPUT_TRIALS 1000
#define WEFT_GOODPUT_FAILURES 1e7
struct weft_percentiles {
  double p10, p50, p90, mean;
};
struct weft_percentiles weft_goodput_simulate (const struct weft_failures *failures,
                                               const struct weft_goodput *goodput, double work,
                                               uint64_t seed);
