#include "core/report/report.h"
#include <string.h>
#include <math.h>

/* ------------------------------------------------------------------- intervals */

struct span {
  double from, to;
};

static GArray *
spans_new (void)
{
  return g_array_new (FALSE, FALSE, sizeof (struct span));
}

static int
by_start (const void *a, const void *b)
{
  const struct span *x = a, *y = b;
  return (x->from > y->from) - (x->from < y->from);
}

/* Sorts intervals, then merges intervals that touch or overlap. */
static void
merge (GArray *spans)
{
  unsigned kept = 0;
  struct span *s = (struct span *) (void *) spans->data;

  g_array_sort (spans, by_start);
  for (unsigned i = 0; i < spans->len; i++)
    if (kept && s[i].from <= s[kept - 1].to)
      s[kept - 1].to = fmax (s[kept - 1].to, s[i].to);
    else
      s[kept++] = s[i];
  g_array_set_size (spans, kept);
}

/* The times, sorted and merged, in which the timed ops of one lane of one row run. The caller frees
 * the array. */
static GArray *
lane_spans (const weft_timeline *t, const weft_program *p, uint32_t row, enum weft_lane lane)
{
  GArray *spans = spans_new ();

  for (uint32_t i = 0; i < p->lane_n[lane]; i++) {
    uint32_t op = p->lane_ops[lane][i];
    struct span span = { t->begin[row][op], t->end[row][op] };
    if (span.to > span.from)
      g_array_append_val (spans, span);
  }
  merge (spans);
  return spans;
}

static double
covered (const GArray *spans)
{
  double sum = 0;

  for (unsigned i = 0; i < spans->len; i++) {
    const struct span *s = &g_array_index (spans, struct span, i);
    sum += s->to - s->from;
  }
  return sum;
}

/* Seconds that are covered by both of two lists of merged intervals. */
static double
common (const GArray *a, const GArray *b)
{
  double sum = 0;

  for (unsigned i = 0, j = 0; i < a->len && j < b->len;) {
    const struct span *x = &g_array_index (a, struct span, i),
                      *y = &g_array_index (b, struct span, j);
    sum += fmax (0, fmin (x->to, y->to) - fmax (x->from, y->from));
    if (x->to < y->to)
      i++;
    else
      j++;
  }
  return sum;
}

/* --------------------------------------------------------------------- overlap */

static double
ratio (double part, double whole)
{
  return whole > 0 ? part / whole : 0;
}

static double
lane_bytes (const weft_program *p, enum weft_lane lane)
{
  double bytes = 0;

  for (uint32_t i = 0; i < p->lane_n[lane]; i++)
    bytes += weft_op_bytes (p, p->lane_ops[lane][i]);
  return bytes;
}

/* Adds one row of the timeline to the report. `weight` is the number of ranks that the row
 * represents, as a fraction of all ranks. */
static void
add_row (weft_report *r, uint32_t row, double weight)
{
  const weft_timeline *t = r->timeline;
  const weft_program *p = r->plan->role[t->role[row]];
  g_autoptr (GArray) compute = lane_spans (t, p, row, WEFT_LANE_GPU);
  g_autoptr (GArray) all = spans_new ();

  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    if (!weft_report_is_axis (lane) || !p->lane_n[lane])
      continue;
    g_autoptr (GArray) spans = lane_spans (t, p, row, lane);
    double busy = covered (spans);
    r->axis[lane].busy_s += weight * busy;
    r->axis[lane].exposed_s += weight * (busy - common (spans, compute));
    r->axis[lane].bytes += weight * lane_bytes (p, lane);
    g_array_append_vals (all, spans->data, spans->len);
  }
  merge (all);
  double communication = covered (all);
  r->overlap.compute_s += weight * covered (compute);
  if (t->launch_wait)
    r->overlap.launch_wait_s += weight * t->launch_wait[row];
  r->overlap.communication_s += weight * communication;
  r->overlap.exposed_communication_s += weight * (communication - common (all, compute));
}

/* Adds all rows of the timeline to the report. Every role has the same number of ranks, so all
 * observed roles have equal weight. The weight of a role is divided equally among its rows. */
static void
add_rows (weft_report *r)
{
  const weft_timeline *t = r->timeline;
  g_autofree uint32_t *rows = g_new0 (uint32_t, r->plan->n_roles);
  uint32_t watched = 0;

  for (uint32_t row = 0; row < t->n; row++)
    watched += rows[t->role[row]]++ == 0;
  for (uint32_t row = 0; row < t->n; row++)
    add_row (r, row, 1.0 / rows[t->role[row]] / watched);
}

static void
fill_overlap (weft_report *r)
{
  struct weft_report_overlap *o = &r->overlap;

  add_rows (r);
  o->overlap_fraction = ratio (o->communication_s - o->exposed_communication_s, o->communication_s);
  double idle = r->timeline->seconds - o->compute_s - o->exposed_communication_s;
  /* A difference this small is a rounding error of long sums, and no idle time. */
  o->bubble_s = idle > 1e-12 * r->timeline->seconds ? idle : 0;
  o->bubble_fraction = ratio (o->bubble_s, r->timeline->seconds);
}

/* ------------------------------------------------------------------- iteration */

double
weft_report_printed_peak (const struct weft_job *job)
{
  const union weft_cluster_fields *f = &job->cluster.f;
  const double peak[] = { [WEFT_FP32] = f->gpu_fp32_spec,
                          [WEFT_BF16] = f->gpu_bf16_spec,
                          [WEFT_FP16] = f->gpu_bf16_spec,
                          [WEFT_FP8] = f->gpu_fp8_spec };
  return peak[weft_job_linear_dtype (job)];
}

static double
program_flops (const weft_program *p)
{
  double flops = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    flops += weft_op_flops (p, op);
  return flops;
}

static void
fill_iteration (weft_report *r)
{
  const struct weft_job *job = &r->plan->job;
  struct weft_report_iteration *it = &r->iteration;
  double seconds = r->timeline->seconds, gpus = r->plan->mesh.n_ranks, hardware = 0;
  double tokens = (double) job->train.global_batch_size * job->model.seq_length;

  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    hardware += program_flops (r->plan->role[role]) / r->plan->n_roles;
  it->time_s = seconds;
  it->tokens_per_s = ratio (tokens, seconds);
  it->tokens_per_s_per_gpu = ratio (it->tokens_per_s, gpus);
  it->model_tflops_per_gpu =
      it->tokens_per_s_per_gpu * weft_job_flops_per_token (job) * 1e-12;
  it->hardware_tflops_per_gpu = ratio (hardware, seconds) * 1e-12;
  it->mfu = ratio (it->model_tflops_per_gpu * 1e12, weft_report_printed_peak (job));
  it->hfu = ratio (it->hardware_tflops_per_gpu * 1e12, weft_report_printed_peak (job));
}

/* ---------------------------------------------------------------------- memory */

/* Bytes of the buffers that are alive at the peak of an arena, by kind of buffer. */
static void
fill_arena (const struct weft_memory *m, struct weft_report_role *row)
{
  row->peak_op = m->peak_op[WEFT_POOL_DEVICE];
  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    for (int kind = 0; kind < WEFT_N_BUF_KIND && pool != WEFT_POOL_HOST; kind++)
      row->by_kind[kind] += m->at_peak[pool][kind];
}

/* Bytes in use at the peak of software without an arena, by kind of buffer. */
static void
fill_allocated (const struct weft_allocated *allocated, struct weft_report_role *row)
{
  row->peak_op = allocated->op;
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    row->by_kind[kind] = (uint64_t) allocated->at_peak[kind];
}

static void
fill_role (weft_report *r, uint32_t role)
{
  const struct weft_memory *m = &r->plan->memory[role];
  struct weft_report_role *row = &r->role[role];

  row->host_bytes = m->planned[WEFT_POOL_HOST];
  memcpy (row->host_by_kind, m->at_peak[WEFT_POOL_HOST], sizeof row->host_by_kind);
  row->registered_bytes = m->planned[WEFT_POOL_SYMMETRIC];
  row->reserved_bytes = weft_plan_reserved_bytes (r->plan, role);
  row->cached_bytes = weft_plan_cached_bytes (r->plan, role);
  if (r->plan->allocated)
    fill_allocated (&r->plan->allocated[role], row);
  else
    fill_arena (m, row);
  row->peak_label = weft_op_label (r->plan->role[role], row->peak_op);
  row->init_bytes = weft_plan_init_bytes (r->plan, role);
  row->planned_bytes = weft_plan_used_bytes (r->plan, role);
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    row->live_bytes += row->by_kind[kind];
  row->padding = row->planned_bytes - row->live_bytes;
  row->peak_bytes = row->planned_bytes + row->reserved_bytes;
  weft_memory_stalls_init (&row->stalls, r->plan, role, r->timeline);
}

const struct weft_report_part weft_report_parts[WEFT_N_REPORT_PART] = {
#define PART(id, word, doc, mark, ink, look) [id] = { word, mark, ink, look },
  WEFT_BUF_KIND_LIST (PART)
#undef PART
  [WEFT_REPORT_PADDING] = { "padding", '-', WEFT_INK_GREY, 8 },
  [WEFT_REPORT_RESERVED] = { "reserved", 'r', WEFT_INK_RED, 5 },
};

uint64_t
weft_report_part_bytes (const struct weft_report_role *role, int part)
{
  if (part == WEFT_REPORT_PADDING)
    return role->padding;
  return part == WEFT_REPORT_RESERVED ? role->reserved_bytes : role->by_kind[part];
}

static void
fill_memory (weft_report *r)
{
  r->capacity_bytes = (uint64_t) weft_plan_capacity (&r->plan->job);
  r->peak_bytes = weft_plan_worst_bytes (r->plan);
  r->host_capacity_bytes = (uint64_t) r->plan->job.cluster.f.node_host_memory;
  r->host_bytes = weft_plan_host_bytes (r->plan);
  r->fits = weft_plan_fits (r->plan);
  r->n_roles = r->plan->n_roles;
  r->role = g_new0 (struct weft_report_role, r->n_roles);
  for (uint32_t role = 0; role < r->plan->n_roles; role++)
    fill_role (r, role);
}

weft_report *
weft_report_new (const weft_plan *plan, const weft_timeline *timeline)
{
  weft_report *r = g_new0 (weft_report, 1);

  r->plan = plan;
  r->timeline = timeline;
  fill_memory (r);
  if (!timeline)
    return r;
  fill_iteration (r);
  fill_overlap (r);
  return r;
}

static double
bytes_of_kind (const weft_program *p, enum weft_op_kind kind, uint64_t *n)
{
  double bytes = 0;

  *n = 0;
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind) {
      bytes += weft_op_bytes (p, op);
      ++*n;
    }
  return bytes;
}

void
weft_report_add_startup (weft_report *r, const weft_plan *startup, const weft_timeline *timeline)
{
  struct weft_report_startup *s = &r->startup;

  for (uint32_t role = 0; role < startup->n_roles; role++) {
    uint64_t n, copies;
    double bytes = bytes_of_kind (startup->role[role], WEFT_OP_BROADCAST, &n);
    s->broadcasts = MAX (s->broadcasts, n);
    s->bytes = MAX (s->bytes, (uint64_t) bytes);
    bytes = bytes_of_kind (startup->role[role], WEFT_OP_FILL, &n);
    double copied = bytes_of_kind (startup->role[role], WEFT_OP_FROM_HOST, &copies);
    s->fills = MAX (s->fills, n);
    s->fill_bytes = MAX (s->fill_bytes, (uint64_t) (copies ? copied : bytes));
  }
  for (uint32_t row = 0; row < timeline->n; row++) {
    const weft_program *p = startup->role[timeline->role[row]];
    for (uint32_t op = 0; op < p->n_op; op++)
      if (p->op[op].kind != WEFT_OP_BROADCAST)
        s->initialisation_s = fmax (s->initialisation_s, timeline->end[row][op]);
  }
  s->broadcast_params_s = s->broadcasts ? timeline->seconds - s->initialisation_s : 0;
}

void
weft_report_free (weft_report *r)
{
  for (uint32_t role = 0; role < r->n_roles; role++) {
    weft_memory_stalls_clear (&r->role[role].stalls);
    g_free (r->role[role].peak_label);
  }
  g_free (r->role);
  g_free (r);
}
