#include "planner/segments.h"
#include "core/job/pipeline.h"
#include "core/program/segment.h"
#include "planner/shorten.h"
#include <math.h>
#include <string.h>

/* -------------------------------------------------------------------------- cache */

/* The settings that change the kernels of a layer. */
struct key {
  int64_t tensor, sequence, tensor_overlap, context, expert_tensor, expert, replicate, micro_batch;
  int64_t precision, recompute, modules, splits;
};

struct weft_segment_cache {
  GHashTable *known;   /* struct key -> struct weft_segments */
  GHashTable *flights; /* struct weft_grid_spec -> struct weft_flights, or NULL */
  GHashTable *ends;    /* struct job_key -> struct weft_ends */
  GHashTable *replays; /* struct job_key -> array of double, or NULL */
  GHashTable *paths;   /* struct job_key -> struct weft_paths, or NULL */
  weft_placements *placements;
};

static guint
hash (gconstpointer key)
{
  const int64_t *at = key;
  guint sum = 0;

  for (size_t i = 0; i < sizeof (struct key) / sizeof *at; i++)
    sum = sum * 31 + (guint) at[i];
  return sum;
}

static gboolean
equal (gconstpointer a, gconstpointer b)
{
  return memcmp (a, b, sizeof (struct key)) == 0;
}

/* The settings of a job; for replays those of a family (space.h): without the knobs of replicas. */
struct job_key {
  union weft_strategy strategy;
  int64_t micro_batch, precision;
};

static guint
hash_job (gconstpointer key)
{
  const struct job_key *job = key;
  guint sum = (guint) job->micro_batch;

  for (unsigned i = 0; i < WEFT_N_KNOB; i++)
    sum = sum * 31 + (guint) job->strategy.at[i].i;
  return sum;
}

static gboolean
equal_jobs (gconstpointer a, gconstpointer b)
{
  return memcmp (a, b, sizeof (struct job_key)) == 0;
}

static struct job_key
key_of (const struct weft_job *job)
{
  return (struct job_key){ .strategy = job->strategy,
                           .micro_batch = job->train.micro_batch_size,
                           .precision = job->train.precision };
}

static struct job_key
replay_key_of (const struct weft_job *job)
{
  struct job_key key = key_of (job);

  for (unsigned i = 0; i < WEFT_N_KNOB; i++)
    if (weft_knob_traits[i].of_replicas)
      key.strategy.at[i] = weft_strategy_defaults ()->at[i];
  return key;
}

static guint
hash_spec (gconstpointer spec)
{
  const uint32_t *at = spec;
  guint sum = 0;

  for (size_t i = 0; i < sizeof (struct weft_grid_spec) / sizeof *at; i++)
    sum = sum * 31 + at[i];
  return sum;
}

static gboolean
equal_specs (gconstpointer a, gconstpointer b)
{
  return memcmp (a, b, sizeof (struct weft_grid_spec)) == 0;
}

void
weft_segments_free (struct weft_segments *known)
{
  g_clear_pointer (&known->plan, weft_plan_free);
  g_free (known->segment);
  g_free (known);
}

weft_segment_cache *
weft_segment_cache_new (void)
{
  weft_segment_cache *cache = g_new0 (weft_segment_cache, 1);

  cache->placements = weft_placements_new ();
  cache->known = g_hash_table_new_full (hash, equal, g_free, (GDestroyNotify) weft_segments_free);
  cache->flights =
      g_hash_table_new_full (hash_spec, equal_specs, g_free, (GDestroyNotify) weft_flights_free);
  cache->ends = g_hash_table_new_full (hash_job, equal_jobs, g_free, g_free);
  cache->replays = g_hash_table_new_full (hash_job, equal_jobs, g_free, g_free);
  cache->paths = g_hash_table_new_full (hash_job, equal_jobs, g_free, g_free);
  return cache;
}

void
weft_segment_cache_free (weft_segment_cache *cache)
{
  g_hash_table_unref (cache->known);
  g_hash_table_unref (cache->flights);
  g_hash_table_unref (cache->ends);
  g_hash_table_unref (cache->replays);
  g_hash_table_unref (cache->paths);
  weft_placements_free (cache->placements);
  g_free (cache);
}

weft_placements *
weft_segment_cache_placements (weft_segment_cache *cache)
{
  return cache->placements;
}

uint32_t
weft_segment_cache_plans (const weft_segment_cache *cache)
{
  return g_hash_table_size (cache->known) + g_hash_table_size (cache->ends) +
         g_hash_table_size (cache->paths);
}

/* Keeps what was measured under a key; `known` is one of the tables of the cache. */
static void
keep (GHashTable *known, struct job_key key, gpointer measured)
{
  g_hash_table_insert (known, g_memdup2 (&key, sizeof key), measured);
}

const struct weft_flights *
weft_segment_cache_flights (weft_segment_cache *cache, const struct weft_grid_spec *spec)
{
  gpointer known;

  if (g_hash_table_lookup_extended (cache->flights, spec, NULL, &known))
    return known;
  struct weft_flights *flights = weft_flights_new (spec);
  g_hash_table_insert (cache->flights, g_memdup2 (spec, sizeof *spec), flights);
  return flights;
}

gboolean
weft_segment_cache_replay (weft_segment_cache *cache, const struct weft_job *job,
                           const double **end)
{
  const struct job_key key = replay_key_of (job);
  gpointer known = NULL;
  gboolean found = g_hash_table_lookup_extended (cache->replays, &key, NULL, &known);

  *end = known;
  return found;
}

const double *
weft_segment_cache_keep_replay (weft_segment_cache *cache, const struct weft_job *job, double *end)
{
  keep (cache->replays, replay_key_of (job), end);
  return end;
}

const struct weft_ends *
weft_segment_cache_ends (weft_segment_cache *cache, const struct weft_job *job)
{
  struct weft_job one;

  if (!weft_ends_job (job, &one))
    return NULL;
  const struct job_key key = key_of (&one);
  struct weft_ends *ends = g_hash_table_lookup (cache->ends, &key);
  if (!ends) {
    ends = weft_ends_measure (&one, cache->placements);
    keep (cache->ends, key, ends);
  }
  return ends->n > 0 ? ends : NULL;
}

gboolean
weft_segment_cache_has_ends (const weft_segment_cache *cache, const struct weft_job *one)
{
  const struct job_key key = key_of (one);

  return g_hash_table_contains (cache->ends, &key);
}

void
weft_segment_cache_keep_ends (weft_segment_cache *cache, const struct weft_job *one,
                              struct weft_ends *ends)
{
  keep (cache->ends, key_of (one), ends);
}

const struct weft_paths *
weft_segment_cache_paths (weft_segment_cache *cache, const struct weft_job *few)
{
  const struct job_key key = key_of (few);
  gpointer known;

  if (g_hash_table_lookup_extended (cache->paths, &key, NULL, &known))
    return known;
  struct weft_paths *paths = weft_paths_of_job (few, cache->placements);
  keep (cache->paths, key, paths);
  return paths;
}

gboolean
weft_segment_cache_has_paths (const weft_segment_cache *cache, const struct weft_job *few)
{
  const struct job_key key = key_of (few);

  return g_hash_table_contains (cache->paths, &key);
}

void
weft_segment_cache_keep_paths (weft_segment_cache *cache, const struct weft_job *few,
                               struct weft_paths *paths)
{
  keep (cache->paths, key_of (few), paths);
}

/* The segment of an op. Layer l is segment l + 1; an op without a layer belongs to the first
 * segment if no layer was seen before, and to the last segment otherwise. */
static uint32_t
segment_of (const struct weft_segments *known, uint16_t layer, gboolean layers_seen)
{
  if (layer != WEFT_NO_LAYER)
    return MIN (layer + 1u, known->n - 1);
  return layers_seen ? known->n - 1 : 0;
}

/* Whether an op belongs to a pass. Weight gradients outside a cell of their own
 * (delay_wgrad_compute) belong to no pass. */
static gboolean
is_of (const struct weft_op *row, int pass)
{
  static const uint32_t phases[WEFT_N_SEGMENT_PASS] = {
    [WEFT_SEGMENT_FORWARD] = 1u << WEFT_PHASE_FORWARD,
    [WEFT_SEGMENT_BACKWARD] =
        1u << WEFT_PHASE_BACKWARD | 1u << WEFT_PHASE_INPUT_GRAD | 1u << WEFT_PHASE_RECOMPUTE,
    [WEFT_SEGMENT_WEIGHT] = 1u << WEFT_PHASE_WEIGHT_GRAD,
  };

  return row->micro != WEFT_NO_MICRO && (phases[pass] >> row->phase & 1);
}

/* ----------------------------------------------------------------------------- time */

/* Sets start[] to the first kernel of each segment of a pass, in program order, and start[n] to the
 * end of the last segment. The last segment may be empty: under PyTorch the backward pass of the
 * embedding belongs to layer 0. Returns FALSE if the kernels of the segments are not contiguous. */
static gboolean
find_starts (const weft_program *p, const struct weft_segments *known, int pass, uint32_t *start)
{
  uint32_t end = 0, n = known->n;
  int64_t at = -1; /* number of segments begun, minus 1 */

  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].lane != WEFT_LANE_GPU || !is_of (&p->op[op], pass))
      continue;
    gboolean seen = pass == WEFT_SEGMENT_FORWARD ? at > 0 : at + 1 >= (int64_t) n - 1;
    uint32_t segment =
        segment_of (known, p->op[op].layer, pass == WEFT_SEGMENT_FORWARD ? seen : !seen);
    uint32_t place = pass == WEFT_SEGMENT_FORWARD ? segment : n - 1 - segment;
    if ((int64_t) place == at + 1)
      start[++at] = op;
    else if ((int64_t) place != at)
      return FALSE;
    end = op + 1;
  }
  start[n - 1] = at + 2 == (int64_t) n ? end : start[n - 1];
  start[n] = end;
  return at + 2 >= (int64_t) n;
}

/* Whether an op reads or writes the gradient of a weight. A collective on it may run once in a step
 * or in every microbatch: tensor parallel ranks add their parts of the gradient of a norm. */
static gboolean
touches_gradient (const weft_program *p, uint32_t op)
{
  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++) {
    uint32_t buf = p->uses[u].buf;
    if (buf != WEFT_NO_BUF && p->buf[weft_buf_owner (p, buf)].kind == WEFT_BUF_GRADIENTS)
      return TRUE;
  }
  return FALSE;
}

static double
duration (const weft_program *p, uint32_t op, double seconds, int pass)
{
  const struct weft_op *row = &p->op[op];
  gboolean counted = row->lane == WEFT_LANE_GPU
                         ? weft_op_info[row->kind].in_bound && !(row->flags & WEFT_OP_FUSED)
                         : !(row->flags & WEFT_OP_GROUPED) && !touches_gradient (p, op);
  return counted && is_of (row, pass) ? seconds : 0;
}

/* Start time of an op: the later of `lane_end` and the end of its dependencies in [from, op). */
static double
begin_of (const weft_program *p, uint32_t op, uint32_t from, const double *end, double lane_end)
{
  double begin = lane_end;

  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    if (p->deps[d] >= from)
      begin = fmax (begin, end[p->deps[d] - from]);
  return begin;
}

/* Whether an op is a matrix product. Matrix products do not change at the ends of a stage, but
 * residual sums and norms may be fused or not. */
static gboolean
is_product (const weft_program *p, uint32_t op)
{
  return weft_op_flops (p, op) > 0 && !(p->op[op].flags & WEFT_OP_FUSED);
}

/* Measures the times of the segment with ops [from, to). The pass ends before op `stop`. */
static void
measure_way (const weft_program *p, const double *seconds, int pass, uint32_t from, uint32_t to,
             uint32_t stop, struct weft_segment_cost *segment)
{
  g_autofree double *end = g_new (double, to - from + 1);
  double lane_end[WEFT_N_LANE], last = 0;
  gboolean again = TRUE; /* no kernel but recompute has begun */

  if (from == to)
    return;
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    lane_end[lane] = lane == WEFT_LANE_GPU ? 0 : -INFINITY;
  for (uint32_t op = from; op < to; op++) {
    double *at = &lane_end[p->op[op].lane];
    end[op - from] = -INFINITY; /* no path from the first kernel reaches the op */
    if (!weft_lane_traits[p->op[op].lane].in_layer)
      continue;
    *at = begin_of (p, op, from, end, *at);
    double begin = *at, took = duration (p, op, seconds[op], pass);
    if (pass == WEFT_SEGMENT_BACKWARD && again && p->op[op].lane == WEFT_LANE_GPU && took > 0 &&
        p->op[op].phase != WEFT_PHASE_RECOMPUTE) {
      segment->early = begin;
      again = FALSE;
    }
    *at += took;
    end[op - from] = *at;
    segment->kernels[pass] += p->op[op].lane == WEFT_LANE_GPU ? took : 0;
    if (p->op[op].lane == WEFT_LANE_GPU && is_of (&p->op[op], pass))
      last = is_product (p, op) ? *at : begin;
  }
  segment->way[pass] =
      to == stop ? lane_end[WEFT_LANE_GPU] : begin_of (p, to, from, end, lane_end[WEFT_LANE_GPU]);
  segment->first[pass] = is_product (p, from) ? 0 : duration (p, from, seconds[from], pass);
  segment->last[pass] = segment->way[pass] - last;
}

static gboolean
measure_ways (const weft_program *p, const double *seconds, gboolean splits,
              struct weft_segments *known)
{
  g_autofree uint32_t *start = g_new (uint32_t, known->n + 1);
  const int n_pass = splits ? WEFT_N_SEGMENT_PASS : WEFT_SEGMENT_WEIGHT;

  for (int pass = 0; pass < n_pass; pass++) {
    if (!find_starts (p, known, pass, start))
      return FALSE;
    for (uint32_t i = 0; i < known->n; i++)
      measure_way (p, seconds, pass, start[i], start[i + 1], start[known->n],
                   &known->segment[pass == WEFT_SEGMENT_FORWARD ? i : known->n - 1 - i]);
  }
  return TRUE;
}

/* ---------------------------------------------------------------------------- bytes */

/* Whether a buffer holds activations that the pass `from` creates and the pass `to` uses last. */
static gboolean
is_kept (const weft_program *p, const struct weft_buf *b, int from, int to)
{
  return b->base == WEFT_NO_BUF && !b->permanent && b->kind == WEFT_BUF_ACTIVATIONS &&
         b->pool == WEFT_POOL_DEVICE && b->micro != WEFT_NO_MICRO && b->first != WEFT_NO_OP &&
         is_of (&p->op[b->first], from) && is_of (&p->op[b->last], to);
}

/* Adds up the activations that each segment keeps. The output of a layer that the next layer keeps
 * as its input counts as `handed`: at a stage boundary the next layer keeps a received copy
 * instead. */
static void
measure_kept (const weft_program *p, struct weft_segments *known)
{
  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    if (b->first == WEFT_NO_OP || p->op[b->first].layer == WEFT_NO_LAYER)
      continue;
    struct weft_segment_cost *at = &known->segment[segment_of (known, p->op[b->first].layer, TRUE)];
    gboolean own = p->op[b->last].layer == p->op[b->first].layer;
    double bytes = (double) b->bytes;
    if (is_kept (p, b, WEFT_SEGMENT_FORWARD, WEFT_SEGMENT_BACKWARD))
      *(own ? &at->own[WEFT_LIFE_BACKWARD] : &at->handed[WEFT_LIFE_BACKWARD]) += bytes;
    else if (is_kept (p, b, WEFT_SEGMENT_FORWARD, WEFT_SEGMENT_WEIGHT))
      *(own ? &at->own[WEFT_LIFE_WEIGHT] : &at->handed[WEFT_LIFE_WEIGHT]) += bytes;
    else if (is_kept (p, b, WEFT_SEGMENT_BACKWARD, WEFT_SEGMENT_WEIGHT))
      *(own ? &at->late : &at->late_handed) += bytes;
  }
}

/* Whether the software has the bytes of a buffer in use as long as the program does. */
static gboolean
is_held (const struct weft_job *job, const weft_program *p, const struct weft_buf *b)
{
  return !job->stack.live_memory || weft_allocator_holds (job, p, b);
}

/* Bytes of optimizer state of an element of a parameter: the mean over all parameters of the
 * stage. */
static double
mean_optimizer_bytes (const struct weft_job *job, const weft_program *p)
{
  double bytes = 0, elements = 0;

  for (uint32_t i = 0; i < p->n_buf; i++)
    if (p->buf[i].base == WEFT_NO_BUF && p->buf[i].kind == WEFT_BUF_OPTIMIZER &&
        p->buf[i].pool != WEFT_POOL_HOST && is_held (job, p, &p->buf[i]))
      bytes += (double) p->buf[i].bytes;
  for (uint32_t i = 0; i < p->n_param; i++)
    elements += p->param[i].frozen ? 0 : (double) (p->param[i].rows * p->param[i].columns);
  return elements > 0 ? bytes / elements : 0;
}

/* The optimizer state of a stage: its slices, and the mean bytes of an element. */
struct optimizer_state {
  struct weft_slice *slice;
  uint32_t n;
  double mean;
};

/* Bytes of optimizer state of an element of a parameter. The update rules of some optimizers keep
 * other state for matrices of layers or for small tensors. */
static double
optimizer_bytes (const struct weft_job *job, const weft_program *p, const struct optimizer_state *o,
                 const struct weft_param *param)
{
  const struct weft_slice *slice = o->slice;

  for (uint32_t i = 0; job->train.optimizer != WEFT_ADAM && i < o->n; i++) {
    const uint32_t state[] = { slice[i].master, slice[i].m, slice[i].v, slice[i].m_scale,
                               slice[i].v_scale };
    double bytes = 0;
    if (param->start < slice[i].first || param->start >= slice[i].first + slice[i].n)
      continue;
    for (unsigned k = 0; k < G_N_ELEMENTS (state); k++)
      bytes += state[k] == WEFT_NO_BUF ? 0 : (double) p->buf[state[k]].bytes;
    return bytes / (double) slice[i].n;
  }
  return o->mean;
}

static double
bytes_of (const struct weft_job *job, const weft_program *p, uint32_t buf)
{
  const struct weft_buf *owner = buf == WEFT_NO_BUF ? NULL : &p->buf[weft_buf_owner (p, buf)];

  return !owner || owner->pool == WEFT_POOL_HOST || !is_held (job, p, owner)
             ? 0
             : (double) p->buf[buf].bytes;
}

static void
measure_state (const weft_plan *plan, const weft_program *p, struct weft_segments *known)
{
  const struct weft_job *job = &plan->job;
  struct optimizer_state o = { .mean = mean_optimizer_bytes (job, p) };
  gboolean layers_seen = FALSE;

  o.slice = weft_slices (p, &plan->mesh, 0, &o.n);
  for (uint32_t i = 0; i < p->n_param; i++) {
    const struct weft_param *param = &p->param[i];
    layers_seen = layers_seen || param->layer != WEFT_NO_LAYER;
    uint32_t at = segment_of (known, param->layer, layers_seen);
    double *state =
        known->segment[at].state[param->block > 0 ? WEFT_FAMILY_EXPERT : WEFT_FAMILY_DENSE];
    state[WEFT_STATE_WEIGHTS] += bytes_of (job, p, param->weight);
    state[WEFT_STATE_GRADIENTS] += bytes_of (job, p, param->grad);
    if (!param->frozen)
      state[WEFT_STATE_OPTIMIZER] +=
          optimizer_bytes (job, p, &o, param) * (double) (param->rows * param->columns);
  }
  g_free (o.slice);
}

/* ---------------------------------------------------------------------- one stage */

/* The job with one microbatch and one stage. Unless the job uses PyTorch's wrappers, also without
 * data-parallel sharding. All schedules that split the backward pass have the same kernels in a
 * cell; ZB-H1 is one of those that exist for one stage. Activations stay on the GPU. */
static struct weft_job
one_microbatch (const struct weft_job *job)
{
  struct weft_job one = *job;
  const union weft_strategy *defaults = weft_strategy_defaults ();

  for (unsigned i = 0; i < WEFT_N_KNOB; i++)
    if (weft_knob_traits[i].of_stages ||
        (weft_knob_traits[i].of_replicas && !weft_job_is_torch (job)))
      one.strategy.at[i] = defaults->at[i];
  if (weft_job_splits_backward (job))
    one.strategy.pipeline_schedule = WEFT_SCHEDULE_ZB_H1;
  one.strategy.cpu_offloading = FALSE;
  one.strategy.cpu_offloading_num_layers = 0;
  return weft_shorten_to (&one, 1);
}

/* ---------------------------------------------------------------- a short model */

/* The layer of a model with `n` layers that has the kind and the neighbours of layer `layer`;
 * n: there is none. The first and the last layer stand for themselves. */
static int64_t
find_twin (const union weft_model *m, int64_t layer, int64_t n)
{
  int64_t last = m->num_layers - 1, at = 1;

  if (layer == 0)
    return 0;
  if (layer == last)
    return weft_model_layers_are_alike (m, n - 1, last) &&
                   weft_model_layers_are_alike (m, n - 2, last - 1)
               ? n - 1
               : n;
  while (at < n - 1 && !(weft_model_layers_are_alike (m, at - 1, layer - 1) &&
                         weft_model_layers_are_alike (m, at, layer) &&
                         weft_model_layers_are_alike (m, at + 1, layer + 1)))
    at++;
  return at < n - 1 ? at : n;
}

/* For each layer of `m`, sets twin[layer] to a layer of the model with `n` layers that is of the
 * same kind, between neighbours of the same kinds. Returns FALSE if the model with `n` layers has
 * no such layer for some layer of `m`. */
static gboolean
find_twins (const union weft_model *m, int64_t n, int64_t *twin)
{
  for (int64_t layer = 0; layer < m->num_layers; layer++)
    if ((twin[layer] = find_twin (m, layer, n)) == n)
      return FALSE;
  return TRUE;
}

/* Largest number of layers of a short model: kinds of layers repeat after fewer layers. */
enum { MOST_SHORT = 64 };

/* The number of layers of the shortest model in which find_twins() finds a layer for each layer of
 * `m`. Sets twin[] as find_twins() does. */
static int64_t
shortest_model (const union weft_model *m, int64_t *twin)
{
  for (int64_t n = 3; n < MIN (m->num_layers, MOST_SHORT); n++)
    if (find_twins (m, n, twin))
      return n;
  for (int64_t layer = 0; layer < m->num_layers; layer++)
    twin[layer] = layer;
  return m->num_layers;
}

/* Sets the seconds of conversions of weights to 0 if the software converts weights once in a step:
 * the other microbatches are quicker than the measured one. */
static void
drop_conversions (const weft_plan *plan)
{
  struct weft_cost cost = weft_plan_cost (plan);

  for (uint32_t op = 0; op < plan->role[0]->n_op; op++)
    if (weft_cost_converts_kept (&cost, plan->role[0], op))
      plan->seconds[0][op] = 0;
}

static void
measure_plan (const struct weft_job *job, struct weft_segments *known)
{
  const weft_program *p = known->plan->role[0];
  known->n = (uint32_t) job->model.num_layers + 2;
  known->segment = g_new0 (struct weft_segment_cost, known->n);
  drop_conversions (known->plan);
  if (!measure_ways (p, known->plan->seconds[0], weft_job_splits_backward (job), known)) {
    known->n = 0;
    return;
  }
  measure_kept (p, known);
  if (!weft_job_is_torch (job))
    measure_state (known->plan, p, known);
}

/* Copies the segments of a short model to the layers that they stand for. */
static void
expand (struct weft_segments *known, int64_t layers, const int64_t *twin)
{
  struct weft_segment_cost *all = g_new (struct weft_segment_cost, layers + 2);

  all[0] = known->segment[0];
  for (int64_t i = 0; i < layers; i++)
    all[i + 1] = known->segment[twin[i] + 1];
  all[layers + 1] = known->segment[known->n - 1];
  g_free (known->segment);
  known->segment = all;
  known->n = (uint32_t) layers + 2;
}

/* Measures the segments of a job on a model with few layers, or, if `whole`, with all layers. Frees
 * the programs of the plan, because a search on a large cluster makes thousands of such plans. */
static void
look (const struct weft_job *job, gboolean whole, weft_placements *placements,
      struct weft_segments *known)
{
  struct weft_job one = one_microbatch (job);
  int64_t layers = job->model.num_layers;
  g_autofree int64_t *twin = g_new (int64_t, layers);
  int64_t few = shortest_model (&job->model, twin);

  one.model.num_layers = few;
  if (whole || !weft_job_check (&one, NULL))
    one.model.num_layers = layers;
  if (!weft_job_check (&one, NULL))
    return;
  known->plan = weft_plan_new_draft (&one, WEFT_PLAN_PRICED, placements, NULL);
  if (!known->plan)
    return;
  measure_plan (&one, known);
  weft_plan_drop_programs (known->plan);
  if (known->n > 0 && one.model.num_layers < layers)
    expand (known, layers, twin);
}

struct weft_segments *
weft_segments_measure (const struct weft_job *job, gboolean whole)
{
  g_autoptr (weft_placements) placements = weft_placements_new ();
  struct weft_segments *known = g_new0 (struct weft_segments, 1);

  look (job, whole, placements, known);
  return known;
}

const struct weft_segments *
weft_segment_cache_get (weft_segment_cache *cache, const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;
  const struct key key = { .tensor = k->tensor_model_parallel_size,
                           .sequence = k->sequence_parallel,
                           .tensor_overlap = k->tp_comm_overlap,
                           .context = k->context_parallel_size,
                           .expert_tensor = weft_job_expert_tp (job),
                           .expert = k->expert_model_parallel_size,
                           .replicate = k->dp_replicate_size,
                           .micro_batch = job->train.micro_batch_size,
                           .precision = job->train.precision,
                           .recompute = k->recompute_granularity,
                           .modules = k->recompute_granularity == WEFT_RECOMPUTE_SELECTIVE
                                          ? k->recompute_modules
                                          : 0,
                           .splits = weft_job_splits_backward (job) };
  struct weft_segments *known = g_hash_table_lookup (cache->known, &key);

  if (known)
    return known;
  known = g_new0 (struct weft_segments, 1);
  look (job, FALSE, cache->placements, known);
  g_hash_table_insert (cache->known, g_memdup2 (&key, sizeof key), known);
  return known;
}
