#include "planner/goodput.h"
#include "core/base/mix.h"
#include <math.h>
#include <stdlib.h>

#define HOUR 3600.0

#define FAILING_WORD(id, word, field, units) word,
const char *const weft_failing_words[] = { WEFT_FAILING_LIST (FAILING_WORD) NULL };

/* ------------------------------------------------------------------------ the cluster */

/* The bandwidth of all nodes together to the storage, in bytes/s; NaN: not known. */
static double
storage_rate (const struct weft_cluster *c, const union weft_site_fields *site)
{
  return fmin (c->n_nodes * site->node_storage_bandwidth, site->storage_bandwidth);
}

/* Seconds in which a GPU copies its part of a checkpoint to host memory. All GPUs copy equal
 * parts. */
static double
copy_seconds (const struct weft_cluster *c, double bytes)
{
  return bytes / c->n_gpus / c->f.gpu_host_link;
}

struct weft_failures
weft_failures_of (const struct weft_job *job, const union weft_site_fields *site, double step)
{
  const struct weft_cluster *c = &job->cluster;
  double bytes = site->checkpoint_parameter_bytes * (double) weft_model_parameters (&job->model);
  double bandwidth = storage_rate (c, site), write = isnan (bandwidth) ? 0 : bytes / bandwidth;
  struct weft_failures f = {
#define PART(id, word, field, units)                                                               \
  .part[id] = isnan (site->field) ? INFINITY : site->field * HOUR / (units),
    WEFT_FAILING_LIST (PART)
#undef PART
        .bytes = bytes,
    .bandwidth = bandwidth,
    .write = write,
    .stop = site->checkpoint_async ? fmin (write, copy_seconds (c, bytes)) : write,
    .repair = site->repair_hours * HOUR,
    .step = step,
    .spares = (uint32_t) lround (site->spares * c->n_nodes),
  };
  double rate = 0;

  for (unsigned i = 0; i < WEFT_N_FAILING; i++)
    rate += 1 / f.part[i];
  f.mtbf = 1 / rate;
  f.restart = site->detection + site->restart + write;
  return f;
}

/* ------------------------------------------------------------------------ closed forms */

/* Erlang's loss formula: the probability that all servers are busy, computed by recursion over the
 * number of servers. */
static double
erlang_b (uint32_t servers, double load)
{
  double b = 1;

  for (uint32_t n = 1; n <= servers && b > 0; n++)
    b = load * b / (n + load * b);
  return b;
}

static double
daly_interval (double stop, double mtbf)
{
  double x = stop / (2 * mtbf);

  return stop < 2 * mtbf ? sqrt (2 * stop * mtbf) * (1 + sqrt (x) / 3 + x / 9) - stop : mtbf;
}

/* Seconds that each failure costs in addition to the training since the last checkpoint: the
 * restart, and the part of the writing during which training has continued (goodput.h). */
static double
recovery (const struct weft_failures *f)
{
  return f->restart + f->write - f->stop;
}

struct weft_goodput
weft_goodput_of (const struct weft_failures *f)
{
  struct weft_goodput g = {
    .young = INFINITY, .daly = INFINITY, .interval = INFINITY, .steps = INFINITY, .goodput = 1
  };

  if (isinf (f->mtbf))
    return g;
  g.young = sqrt (2 * f->stop * f->mtbf);
  g.daly = daly_interval (f->stop, f->mtbf);
  g.steps = fmax (fmax (1, rint (g.daly / f->step)), ceil ((f->write - f->stop) / f->step));
  g.interval = g.steps * f->step;
  double cycle = g.interval + f->stop;
  double seconds = f->mtbf * exp (recovery (f) / f->mtbf) * expm1 (cycle / f->mtbf);
  g.waits = erlang_b (f->spares + 1, f->repair / f->mtbf);
  g.goodput = (1 - g.waits) * g.interval / seconds;
  g.checkpoints = (1 - g.waits) * f->stop / seconds;
  g.failures = 1 - g.goodput - g.checkpoints - g.waits;
  return g;
}

/* ------------------------------------------------------------------------ simulated runs */

struct run {
  const struct weft_failures *failures;
  double interval;
  uint64_t *random;
  double *done;          /* ring buffer of spares + 1 times at which repairs end */
  uint32_t first, count; /* first element and number of elements of the ring buffer */
};

/* Draws a time from the exponential distribution with mean `mean`. */
static double
exponential (uint64_t *random, double mean)
{
  *random += WEFT_MIX_STEP;
  return -mean * log1p (-(double) (weft_mix_bits (*random) >> 11) * 0x1p-53);
}

/* Starts the repair of a node at time `now`. Returns the time at which the job has all its nodes
 * again. */
static double
repair (struct run *r, double now)
{
  uint32_t places = r->failures->spares + 1;

  for (; r->count && r->done[r->first] <= now; r->count--)
    r->first = (r->first + 1) % places;
  r->done[(r->first + r->count) % places] = now + r->failures->repair;
  r->count++;
  return r->count < places ? now : fmax (now, r->done[r->first]);
}

/* Simulates one training run with failures. Returns the seconds that it takes to do `work` seconds
 * of training. */
static double
run_once (struct run *r, double work)
{
  const struct weft_failures *f = r->failures;
  double cycle = r->interval + f->stop, now = 0, lead = 0;

  r->first = r->count = 0;
  for (;;) {
    double end = lead + work + ceil (work / r->interval) * f->stop;
    double next = exponential (r->random, f->mtbf);
    if (next >= end)
      return now + end;
    if (next > lead)
      work -= floor ((next - lead) / cycle) * r->interval;
    now = repair (r, now + next);
    lead = recovery (f);
  }
}

static int
compare (const void *a, const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;

  return (x > y) - (x < y);
}

struct weft_percentiles
weft_goodput_simulate (const struct weft_failures *f, const struct weft_goodput *g, double work,
                       uint64_t seed)
{
  double mean = work / g->goodput, failures = mean / f->mtbf;
  uint32_t n = (uint32_t) fmin (WEFT_GOODPUT_TRIALS, WEFT_GOODPUT_FAILURES / fmax (1, failures));

  if (isinf (f->mtbf) || n == 0)
    return (struct weft_percentiles){ mean, mean, mean, mean };
  g_autofree double *done = g_new (double, f->spares + 1), *seconds = g_new (double, n);
  uint64_t random = weft_mix (seed);
  struct run run = { .failures = f, .interval = g->interval, .random = &random, .done = done };
  double sum = 0;
  for (uint32_t i = 0; i < n; i++)
    sum += seconds[i] = run_once (&run, work);
  qsort (seconds, n, sizeof *seconds, compare);
  return (struct weft_percentiles){ seconds[n / 10], seconds[n / 2], seconds[n - 1 - n / 10],
                                    sum / n };
}
