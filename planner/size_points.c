#include "planner/size_points.h"
#include "core/base/error.h"
#include "core/report/report.h"
#include <math.h>

#define HOUR 3600.0
#define DAY 86400.0

/* The first size to search is chosen as if this share of the printed FLOP/s were reached. */
#define FIRST_GUESS 0.4

/* The search doubles the number of GPUs only while each doubling makes the run faster by at least
 * this factor. */
#define LEAST_GAIN 1.05

/* ------------------------------------------------------------------------ sizes */

uint32_t
weft_size_round (const struct weft_cluster *c, uint32_t gpus)
{
  uint32_t node = (uint32_t) c->f.node_gpus;

  return gpus <= node ? gpus : (gpus + node - 1) / node * node;
}

uint32_t
weft_size_double (const struct weft_cluster *c, uint32_t gpus)
{
  uint32_t node = (uint32_t) c->f.node_gpus;

  return gpus < node && 2 * gpus > node ? node : weft_size_round (c, 2 * gpus);
}

uint32_t
weft_size_limit (const struct weft_cluster *c, uint32_t most)
{
  uint64_t all = (uint64_t) c->f.node_gpus * (uint64_t) c->f.fabric_max_nodes;

  return (uint32_t) MIN (all, most);
}

int64_t
weft_size_batch (double tokens, int64_t seq_length, uint32_t gpus)
{
  double wanted = fmax (1, tokens / (double) seq_length);
  int64_t unit = gpus;

  while (unit % 2 == 0)
    unit /= 2;
  while ((double) (8 * unit) <= wanted)
    unit *= 2;
  return (int64_t) fmax (1, rint (wanted / (double) unit)) * unit;
}

gboolean
weft_size_resize (struct weft_job *job, uint32_t gpus, double batch_tokens, GError **error)
{
  if (!weft_cluster_resize (&job->cluster, gpus, 0, error))
    return FALSE;
  if (!job->train_set[WEFT_TRAIN_global_batch_size])
    job->train.global_batch_size = weft_size_batch (batch_tokens, job->model.seq_length, gpus);
  return TRUE;
}

void
weft_size_add (weft_size *size, unsigned topology, uint32_t gpus,
               const struct weft_size_options *options)
{
  struct weft_job job = size->topology[topology].job;
  struct weft_size_point point = { .topology = topology,
                                   .gpus = weft_size_round (&job.cluster, gpus) };
  g_autoptr (GError) error = NULL;

  for (unsigned i = 0; i < size->point->len; i++) {
    const struct weft_size_point *p = weft_size_at (size->point, i);
    if (p->topology == topology && p->gpus == point.gpus)
      return;
  }
  if (weft_size_resize (&job, point.gpus, options->batch_tokens, &error))
    point.batch = job.train.global_batch_size;
  else {
    point.found.fate = WEFT_SIZE_REFUSED;
    g_strlcpy (point.found.why, error->message, sizeof point.found.why);
  }
  g_array_append_val (size->point, point);
}

gboolean
weft_size_point_job (const weft_size *size, struct weft_size_point *point, gboolean fixed,
                     struct weft_job *job)
{
  g_autoptr (GError) error = NULL;

  *job = size->topology[point->topology].job;
  if (!weft_cluster_resize (&job->cluster, point->gpus, 0, &error)) {
    point->found.fate = WEFT_SIZE_REFUSED;
    g_strlcpy (point->found.why, error->message, sizeof point->found.why);
    return FALSE;
  }
  job->train.global_batch_size = point->batch;
  job->train_set[WEFT_TRAIN_global_batch_size] = TRUE;
  if (!fixed)
    return TRUE;
  *job = weft_space_job (job, &point->found.choice);
#define AXIS(table, field, values, wide) SET_##table (field)
#define SET_KNOB(field) job->knob_set[WEFT_KNOB_##field] = TRUE;
#define SET_TRAIN(field) job->train_set[WEFT_TRAIN_##field] = TRUE;
#include "planner/axes.def"
#undef AXIS
#undef SET_KNOB
#undef SET_TRAIN
  return TRUE;
}

/* ------------------------------------------------------------------------ the next sizes */

/* The sizes of a topology that were searched so far. */
struct known {
  const struct weft_size_point *largest; /* the largest of all sizes; NULL: no size was searched */
  const struct weft_size_point *before;  /* the second largest size */
  const struct weft_size_point *hit;     /* the smallest size that meets the deadline */
  const struct weft_size_point *miss;    /* the largest size that is smaller than `hit` */
  uint32_t n;
};

static gboolean
meets (const struct weft_size_point *p, double days)
{
  return p->found.fate == WEFT_SIZE_FOUND && p->days <= days;
}

static struct known
known_of (const weft_size *size, unsigned topology, double days)
{
  struct known k = { 0 };

  for (unsigned i = 0; i < size->point->len; i++) {
    const struct weft_size_point *p = weft_size_at (size->point, i);
    if (p->topology != topology)
      continue;
    k.n++;
    if (!k.largest || p->gpus > k.largest->gpus) {
      k.before = k.largest;
      k.largest = p;
    } else if (!k.before || p->gpus > k.before->gpus)
      k.before = p;
    if (meets (p, days) && (!k.hit || p->gpus < k.hit->gpus))
      k.hit = p;
  }
  for (unsigned i = 0; k.hit && i < size->point->len; i++) {
    const struct weft_size_point *p = weft_size_at (size->point, i);
    if (p->topology == topology && p->gpus < k.hit->gpus && (!k.miss || p->gpus > k.miss->gpus))
      k.miss = p;
  }
  return k;
}

/* Returns the first number of GPUs to search. If each GPU reached the share FIRST_GUESS of its
 * printed FLOP/s, some number of GPUs would just meet the deadline. The result is the power of two
 * nearest to this number by ratio, counted in nodes, or in GPUs if one node suffices. The result is
 * at least the fewest GPUs on which a strategy fits, at most the limit, and rounded up to whole
 * nodes. */
static uint32_t
first_guess (const struct weft_size_topology *t, const struct weft_size_options *options)
{
  const struct weft_job *job = &t->job;
  double flops = options->tokens * weft_job_flops_per_token (job);
  double gpus = flops / (FIRST_GUESS * weft_report_printed_peak (job) * options->days * DAY);
  double most = weft_size_limit (&job->cluster, options->most_gpus), node = 1;

  if (gpus > (double) job->cluster.f.node_gpus)
    node = (double) job->cluster.f.node_gpus;
  gpus = node * exp2 (rint (log2 (gpus / node)));
  return weft_size_round (&job->cluster, (uint32_t) fmin (fmax (gpus, t->fewest), most));
}

/* Whether the interval between the largest size that misses the deadline and the smallest size that
 * meets it may be halved again. The interval is at first a doubling; it is halved `refinements`
 * times. */
static gboolean
is_wide (const struct known *k, uint32_t refinements)
{
  return (uint64_t) (k->hit->gpus - k->miss->gpus) << refinements > k->miss->gpus;
}

/* Whether a cluster larger than the largest so far may be faster. */
static gboolean
may_gain (const struct known *k)
{
  if (!k->before || k->largest->found.fate != WEFT_SIZE_FOUND ||
      k->before->found.fate != WEFT_SIZE_FOUND)
    return TRUE;
  return k->before->days > LEAST_GAIN * k->largest->days;
}

/* Adds a cluster size, unless it is below the fewest GPUs on which a strategy fits, or above the
 * limit. */
static void
add_within (weft_size *size, unsigned topology, uint32_t gpus,
            const struct weft_size_options *options)
{
  const struct weft_size_topology *t = &size->topology[topology];

  if (gpus >= t->fewest && gpus <= weft_size_limit (&t->job.cluster, options->most_gpus))
    weft_size_add (size, topology, gpus, options);
}

static void
propose_for_deadline (weft_size *size, unsigned topology, const struct weft_size_options *options)
{
  const struct weft_size_topology *t = &size->topology[topology];
  const struct weft_cluster *c = &t->job.cluster;
  const struct known k = known_of (size, topology, options->days);
  uint32_t next = 0;

  if (!k.n) {
    next = first_guess (t, options);
    add_within (size, topology, weft_size_double (c, next), options);
  } else if (!k.hit)
    next = may_gain (&k) ? weft_size_double (c, k.largest->gpus) : 0;
  else if (!k.miss)
    next = k.hit->gpus / 2;
  else if (is_wide (&k, options->refinements))
    next = k.miss->gpus + (k.hit->gpus - k.miss->gpus) / 2;
  add_within (size, topology, next, options);
}

/* Adds the default size of a topology. If no strategy fits on it, the search of this size reports
 * the reason. */
static void
propose_default (weft_size *size, unsigned topology, const struct weft_size_options *options)
{
  weft_size_add (size, topology, size->topology[topology].job.cluster.n_gpus, options);
}

static void
propose_doublings (weft_size *size, unsigned topology, const struct weft_size_options *options)
{
  const struct weft_size_topology *t = &size->topology[topology];
  uint32_t limit = weft_size_limit (&t->job.cluster, options->most_gpus);

  for (uint32_t gpus = t->fewest; gpus <= limit; gpus = weft_size_double (&t->job.cluster, gpus))
    weft_size_add (size, topology, gpus, options);
}

void
weft_size_propose (weft_size *size, unsigned topology, const struct weft_size_options *options)
{
  if (!size->topology[topology].fewest)
    propose_default (size, topology, options);
  else if (!isnan (options->days))
    propose_for_deadline (size, topology, options);
  else
    propose_doublings (size, topology, options);
}

/* ------------------------------------------------------------------------ results */

struct weft_job
weft_size_job (const weft_size *size, const struct weft_size_point *point)
{
  struct weft_job job = size->topology[point->topology].job;

  weft_cluster_resize (&job.cluster, point->gpus, 0, NULL);
  job.train.global_batch_size = point->batch;
  return weft_space_job (&job, &point->found.choice);
}

/* Computes costs and energy. Only the GPUs of the job draw power, and only while they train or
 * repeat training. Spare nodes and waiting jobs are counted as if they were off. */
static void
settle_costs (struct weft_size_point *p, const struct weft_job *job,
              const union weft_site_fields *site)
{
  double nodes = job->cluster.n_nodes, gpus = job->cluster.n_gpus;
  double hours = p->seconds.mean / HOUR;

  p->paid_gpus = gpus * (nodes + p->failures.spares) / nodes;
  p->gpu_hours = p->paid_gpus * hours;
  p->kwh = gpus * site->gpu_power * 1e-3 * hours * (1 - p->goodput.waits) * site->pue;
  p->co2_kg = p->kwh * site->kwh_co2;
  p->cost =
      p->gpu_hours * site->gpu_hour_price + (site->kwh_price > 0 ? p->kwh * site->kwh_price : 0);
}

static void
settle (const weft_size *size, struct weft_size_point *p, const struct weft_size_options *options)
{
  const union weft_site_fields *site = &size->topology[p->topology].site;
  const struct weft_job job = weft_size_job (size, p);
  double step_tokens = (double) (p->batch * job.model.seq_length);

  p->failures = weft_failures_of (&job, site, p->found.step);
  p->goodput = weft_goodput_of (&p->failures);
  if (p->goodput.goodput < WEFT_SIZE_LEAST_GOODPUT) {
    p->found.fate = WEFT_SIZE_FAILING;
    return;
  }
  p->steps = ceil (options->tokens / step_tokens);
  double work = p->steps * p->found.step;
  p->seconds = weft_goodput_simulate (&p->failures, &p->goodput, work, options->seed);
  p->seconds.mean = work / p->goodput.goodput;
  p->days = p->seconds.mean / DAY;
  settle_costs (p, &job, site);
}

void
weft_size_settle (weft_size *size, GArray *points, const struct weft_size_options *options)
{
  for (unsigned i = 0; i < points->len; i++) {
    struct weft_size_point *p = &g_array_index (points, struct weft_size_point, i);
    if (p->found.fate == WEFT_SIZE_FOUND)
      settle (size, p, options);
  }
}

double
weft_size_price (const weft_size *size, const struct weft_size_point *p)
{
  return size->priced ? p->cost : p->gpu_hours;
}

static gboolean
is_beaten (const weft_size *size, const struct weft_size_point *p)
{
  for (unsigned i = 0; i < size->point->len; i++) {
    const struct weft_size_point *q = weft_size_at (size->point, i);
    double dp = weft_size_price (size, p), dq = weft_size_price (size, q);
    if (q->found.fate == WEFT_SIZE_FOUND && q->days <= p->days && dq <= dp &&
        (q->days < p->days || dq < dp))
      return TRUE;
  }
  return FALSE;
}

gboolean
weft_size_meets (const struct weft_size_point *p, const struct weft_size_options *options)
{
  return p->found.fate == WEFT_SIZE_FOUND && (isnan (options->days) || p->days <= options->days) &&
         (isnan (options->budget) || p->cost <= options->budget);
}

static gboolean
is_better (const weft_size *size, const struct weft_size_point *p, const struct weft_size_point *q,
           const struct weft_size_options *options)
{
  if (isnan (options->days) && !isnan (options->budget))
    return p->days < q->days;
  return weft_size_price (size, p) < weft_size_price (size, q);
}

static int
compare_points (gconstpointer a, gconstpointer b)
{
  const struct weft_size_point *x = a, *y = b;

  if (x->topology != y->topology)
    return x->topology < y->topology ? -1 : 1;
  return (x->gpus > y->gpus) - (x->gpus < y->gpus);
}

void
weft_size_finish (weft_size *size, const struct weft_size_options *options)
{
  g_array_sort (size->point, compare_points);
  size->priced = TRUE;
  for (unsigned i = 0; i < size->point->len; i++) {
    const struct weft_size_point *p = weft_size_at (size->point, i);
    size->priced &= p->found.fate != WEFT_SIZE_FOUND || !isnan (p->cost);
  }
  for (unsigned i = 0; i < size->point->len; i++) {
    struct weft_size_point *p = &g_array_index (size->point, struct weft_size_point, i);
    p->front = p->found.fate == WEFT_SIZE_FOUND && !is_beaten (size, p);
    if (weft_size_meets (p, options) &&
        (size->best < 0 ||
         is_better (size, p, weft_size_at (size->point, (unsigned) size->best), options)))
      size->best = (int) i;
  }
}
