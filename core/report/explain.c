#include "core/report/explain.h"
#include "core/job/finetune.h"
#include "core/plan/activations.h"
#include "core/base/units.h"
#include <math.h>
#include <string.h>

struct page {
  const weft_report *report;
  const weft_plan *plan;
  const struct weft_job *job;
  const weft_program *p;
  weft_explain *out;
  enum weft_explain_topic topic;
};

/* ------------------------------------------------------------------------ rows */

static struct weft_explain_row *
add (struct page *g, const char *what, double value, const char *unit, char *formula)
{
  GArray *rows = g->out->section[g->topic].row;
  struct weft_explain_row row = {
    .what = g_strdup (what), .formula = formula, .value = value, .unit = unit
  };

  g_array_append_val (rows, row);
  return &g_array_index (rows, struct weft_explain_row, rows->len - 1);
}

static void
add_sum (struct page *g, const char *what, double value, const char *unit, char *formula)
{
  add (g, what, value, unit, formula)->sum = TRUE;
}

static void
clear_row (gpointer row)
{
  g_free (((struct weft_explain_row *) row)->what);
  g_free (((struct weft_explain_row *) row)->formula);
}

/* Formats a number with a decimal prefix: "8.03 G", "1.02 ms". The caller frees the text. */
static char *
human (double value, const char *unit)
{
  return g_strchomp (weft_units_human (value, unit));
}

static const char *
name_of (const struct page *g, uint16_t name)
{
  return g->p->name[name];
}

/* ----------------------------------------------------------------------- batch */

static void
explain_batch (struct page *g)
{
  const struct weft_job *job = g->job;
  const struct weft_mesh *m = &g->plan->mesh;
  int64_t batch = job->train.global_batch_size, micro = job->train.micro_batch_size,
          s = job->model.seq_length;

  add (g, "replicas", m->dp, "",
       g_strdup_printf ("%u GPUs / (tensor %u x pipeline %u x context %u)", m->n_ranks, m->tp,
                        m->pp, m->cp));
  add (g, "microbatches", weft_job_microbatches (job), "",
       g_strdup_printf ("%" G_GINT64_FORMAT " sequences / (%u replicas x %" G_GINT64_FORMAT
                        " sequences)",
                        batch, m->dp, micro));
  add (g, "tokens of a microbatch", (double) micro * s / m->cp, "",
       g_strdup_printf ("%" G_GINT64_FORMAT " x %" G_GINT64_FORMAT " / context %u", micro, s,
                        m->cp));
  add (g, "tokens of a step", (double) batch * s, "",
       g_strdup_printf ("%" G_GINT64_FORMAT " x %" G_GINT64_FORMAT, batch, s));
}

/* ------------------------------------------------------------------ parameters */

static double
size_of (const struct weft_param *param)
{
  return (double) param->rows * param->columns;
}

static uint32_t
first_layer (const struct page *g)
{
  uint32_t first = WEFT_NO_LAYER;

  for (uint32_t i = 0; i < g->p->n_param; i++)
    first = MIN (first, g->p->param[i].layer);
  return first;
}

static uint32_t
n_layers (const struct page *g)
{
  uint32_t n = 0, layer = WEFT_NO_LAYER;

  for (uint32_t i = 0; i < g->p->n_param; i++) {
    n += g->p->param[i].layer != WEFT_NO_LAYER && g->p->param[i].layer != layer;
    layer = g->p->param[i].layer;
  }
  return n;
}

static double
add_tensors (struct page *g, uint32_t layer)
{
  double sum = 0;

  for (uint32_t i = 0; i < g->p->n_param; i++) {
    const struct weft_param *param = &g->p->param[i];
    if (param->layer != layer)
      continue;
    sum += size_of (param);
    add (g, name_of (g, param->name), size_of (param), "",
         param->columns > 1 ? g_strdup_printf ("%" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT,
                                               param->rows, param->columns)
                            : g_strdup_printf ("%" G_GUINT64_FORMAT, param->rows));
  }
  return sum;
}

/* Number of elements of all parameters of the stage, or only of those that are trained. */
static double
stage_parameters (const struct page *g, gboolean frozen_too)
{
  double sum = 0;

  for (uint32_t i = 0; i < g->p->n_param; i++)
    sum += frozen_too || !g->p->param[i].frozen ? size_of (&g->p->param[i]) : 0;
  return sum;
}

static gboolean
is_state (const struct weft_buf *b)
{
  return b->permanent && b->base == WEFT_NO_BUF && b->pool != WEFT_POOL_HOST &&
         (b->kind == WEFT_BUF_WEIGHTS || b->kind == WEFT_BUF_GRADIENTS ||
          b->kind == WEFT_BUF_OPTIMIZER);
}

static double
elements_of (const struct weft_buf *b)
{
  return (double) b->bytes / weft_dtype_bytes (b->dtype);
}

static gboolean
is_named (const struct page *g, const struct weft_buf *b, const char *name)
{
  return is_state (b) && g_str_equal (g->p->name[b->name], name);
}

/* Number of elements of the flat buffers before sharding. Only gradient buffers are counted,
 * because every trained weight has a gradient. */
static double
padded_parameters (const struct page *g)
{
  double sum = 0;

  for (uint32_t i = 0; i < g->p->n_buf; i++) {
    const struct weft_buf *b = &g->p->buf[i];
    if (is_named (g, b, "gradients") || is_named (g, b, "fp8 gradients"))
      sum += elements_of (b) * (b->slice ? weft_mesh_group_size (&g->plan->mesh, b->slice) : 1);
  }
  return sum;
}

static void
explain_parameters (struct page *g)
{
  uint32_t layers = n_layers (g);
  double layer = add_tensors (g, first_layer (g)), total = stage_parameters (g, TRUE),
         trained = stage_parameters (g, FALSE), padded = padded_parameters (g);
  g_autofree char *one = human (layer, ""), *rest = human (total - layers * layer, "");

  add_sum (g, "one layer", layer, "", g_strdup ("sum of its tensors"));
  add_tensors (g, WEFT_NO_LAYER);
  add_sum (g, "this stage", total, "",
           g_strdup_printf ("%u layers x %s + %s at the ends", layers, one, rest));
  if (trained < total)
    add_sum (g, "trained", trained, "", g_strdup ("the others are frozen"));
  add (g, "with padding", padded, "",
       g_strdup_printf ("buckets of %u equal slices, +%.0f",
                        weft_mesh_group_size (&g->plan->mesh, WEFT_GROUP_DP), padded - trained));
}

/* ----------------------------------------------------------------------- state */

/* Number of ranks that share a buffer; 1: not sharded. For optimizer state, the result is the
 * number for the first moment, which every parameter has. */
static double
sharers (const struct page *g, const struct weft_buf *b)
{
  if (b->kind != WEFT_BUF_OPTIMIZER)
    return b->slice ? weft_mesh_group_size (&g->plan->mesh, b->slice) : 1;
  double all = padded_parameters (g);
  for (uint32_t i = 0; i < g->p->n_buf; i++) {
    double own = elements_of (&g->p->buf[i]), n = round (all / own);
    if (is_named (g, &g->p->buf[i], "exp_avg") && n * own == all)
      return n;
  }
  return 1;
}

static char *
state_formula (const struct page *g, const struct weft_buf *b)
{
  double shared = sharers (g, b);
  g_autofree char *n = human (shared * elements_of (b), "");
  uint32_t size = weft_dtype_bytes (b->dtype);

  if (shared > 1)
    return g_strdup_printf ("%s, %u B x %s / %.0f: sharded", weft_dtype_words[b->dtype], size,
                            n, shared);
  return g_strdup_printf ("%s, %u B x %s: not sharded", weft_dtype_words[b->dtype], size, n);
}

static double
state_bytes (const struct weft_memory *memory)
{
  const uint64_t *kind = memory->permanent[WEFT_POOL_DEVICE];
  return kind[WEFT_BUF_WEIGHTS] + kind[WEFT_BUF_GRADIENTS] + kind[WEFT_BUF_OPTIMIZER];
}

static void
explain_state (struct page *g)
{
  double sum = state_bytes (&g->plan->memory[g->out->role]);

  for (uint32_t i = 0; i < g->p->n_buf; i++) {
    const struct weft_buf *b = &g->p->buf[i];
    if (is_state (b))
      add (g, name_of (g, b->name), b->bytes, "B", state_formula (g, b));
  }
  add_sum (g, "model state", sum, "B",
           g_strdup_printf ("%.4g B per parameter", sum / stage_parameters (g, TRUE)));
}

/* Makes the plan of the job with another sharding level of Megatron-FSDP and one microbatch. NULL
 * if a rule refuses this job. The caller frees the plan. */
static weft_plan *
plan_at_level (const struct page *g, int level)
{
  struct weft_job job = *g->job;

  job.strategy.distributed_config = WEFT_MEGATRON_FSDP;
  job.strategy.use_megatron_fsdp = TRUE;
  job.strategy.use_distributed_optimizer = FALSE;
  job.strategy.fsdp_double_buffer = FALSE;
  job.strategy.overlap_param_gather = FALSE;
  job.strategy.zero_dp_strategy = job.strategy.data_parallel_sharding_strategy = level;
  job.knob_set[WEFT_KNOB_zero_dp_strategy] = TRUE;
  job.train.global_batch_size = job.train.micro_batch_size * weft_job_dp (&job);
  weft_job_derive (&job);
  return weft_job_check (&job, NULL) ? weft_plan_new (&job, NULL) : NULL;
}

static void
explain_levels (struct page *g)
{
  for (int level = 0; level < 4 && g->plan->mesh.dp > 1; level++) {
    g_autoptr (weft_plan) plan = plan_at_level (g, level);
    if (!plan)
      continue;
    const struct weft_memory *memory = &plan->memory[g->out->role];
    const uint64_t *kind = memory->permanent[WEFT_POOL_DEVICE];
    double n = stage_parameters (g, TRUE);
    g_autofree char *what = g_strdup_printf ("ZeRO-%d %s", level, weft_sharding_words[level]);
    add (g, what, state_bytes (memory), "B",
         g_strdup_printf ("weights %.3g + gradients %.3g + optimizer %.3g B per parameter",
                          kind[WEFT_BUF_WEIGHTS] / n, kind[WEFT_BUF_GRADIENTS] / n,
                          kind[WEFT_BUF_OPTIMIZER] / n));
  }
}

/* ------------------------------------------------------------------- transfers */

/* Returns the bytes that cross the slowest link of a collective. Sets *capacity to the capacity of
 * this link, in bytes/s. */
static double
slowest_link (const struct weft_coll_shape *shape, const struct weft_traffic *t, double *capacity)
{
  gboolean shift = g_str_equal (t->algorithm, "shift");
  const struct weft_load *loads = shift ? shape->next : shape->load;
  double bytes = 0, seconds = -1;

  /* An algorithm that is data moves other bytes in each round. */
  if (t->data)
    return fmax (t->bytes[WEFT_WAY_LOCAL], t->bytes[WEFT_WAY_REMOTE]);
  for (uint32_t i = 0; i < (shift ? shape->n_next : shape->n_load); i++) {
    double crossing = weft_coll_link_bytes (&loads[i], t);
    if (crossing / loads[i].capacity > seconds) {
      seconds = crossing / loads[i].capacity;
      bytes = crossing;
      *capacity = loads[i].capacity;
    }
  }
  return bytes;
}

/* The number of steps of a collective on each axis of the fabric, as text such as "7+3". The caller
 * frees the text. */
static char *
steps_text (const struct weft_fabric *f, const struct weft_traffic *t)
{
  GString *text = g_string_new (NULL);

  for (uint32_t axis = 0; axis < f->ops->n_axis; axis++)
    g_string_append_printf (text, "%s%u", axis ? "+" : "", t->steps[axis]);
  return g_string_free (text, FALSE);
}

/* The algorithm of a collective as text, with its protocol if that is not Simple. The caller frees
 * the text. */
static char *
algorithm_text (const struct weft_traffic *t)
{
  if (t->protocol == WEFT_PROTOCOL_SIMPLE)
    return g_strdup (t->algorithm);
  return g_strdup_printf ("%s (%s)", t->algorithm, weft_protocol_words[t->protocol]);
}

static char *
collective_formula (const struct page *g, uint32_t op)
{
  uint32_t rank = g->out->role * weft_mesh_stage_size (&g->plan->mesh);
  struct weft_group group = weft_mesh_group (&g->plan->mesh, rank, g->p->op[op].group);
  struct weft_coll_shape shape;
  double capacity = 1;

  if (g->p->op[op].flags & WEFT_OP_GROUPED)
    return g_strdup ("more bytes in the previous launch");

  weft_coll_shape_init (&shape, &g->plan->fabric, &group);
  struct weft_traffic t =
      weft_plan_traffic (g->plan, &shape, g->p->op[op].kind, weft_op_shape (g->p, op));
  double bytes = slowest_link (&shape, &t, &capacity);
  double busy = t.seconds - t.latency;
  g_autofree char *latency = human (t.latency, "s"), *link = human (bytes, "B"),
                  *rate = human (busy > 0 ? bytes / busy : capacity, "B/s");
  g_autofree char *name = algorithm_text (&t);
  uint32_t n = shape.n, sms = weft_plan_sms (g->plan, g->p, op, &shape);
  weft_coll_shape_release (&shape);
  g_autofree char *steps = steps_text (&g->plan->fabric, &t);
  if (bytes == 0)
    return g_strdup_printf ("%s of %u, %s steps, %u SMs: %s", name, n, steps, sms, latency);
  return g_strdup_printf ("%s of %u, %s steps, %u SMs: %s + %s / %s", name, n, steps, sms,
                          latency, link, rate);
}

static char *
transfer_formula (const struct page *g, uint32_t op)
{
  uint32_t rank = g->out->role * weft_mesh_stage_size (&g->plan->mesh);
  uint32_t peer = weft_mesh_beside (&g->plan->mesh, rank, g->p->op[op].peer);
  gboolean sends = g->p->op[op].kind == WEFT_OP_SEND;
  struct weft_traffic t = weft_plan_transfer (g->plan, sends ? rank : peer, sends ? peer : rank,
                                              weft_op_shape (g->p, op));
  g_autofree char *latency = human (t.latency, "s"), *bytes = human (t.bytes[0], "B"),
                  *rate = human (t.bytes[0] / (t.seconds - t.latency), "B/s");

  return g_strdup_printf ("%s: %s + %s / %s", t.algorithm, latency, bytes, rate);
}

static char *
copy_formula (const struct page *g, uint32_t op)
{
  double gap = g->job->stack.kernel_gap, seconds = g->plan->seconds[g->out->role][op] - gap;
  g_autofree char *latency = human (gap, "s"), *bytes = human (weft_op_bytes (g->p, op), "B"),
                  *rate = human (weft_op_bytes (g->p, op) / seconds, "B/s");

  return g_strdup_printf ("%s + %s / %s", latency, bytes, rate);
}

static gboolean
same_transfer (const struct weft_op *a, const struct weft_op *b)
{
  return a->kind == b->kind && a->group == b->group && a->shape == b->shape && a->peer == b->peer &&
         a->flags == b->flags;
}

static gboolean
is_transfer (const weft_program *p, uint32_t op)
{
  return weft_op_info[p->op[op].kind].class != WEFT_CLASS_COMPUTE;
}

static char *
any_transfer_formula (const struct page *g, uint32_t op)
{
  switch (weft_op_info[g->p->op[op].kind].class) {
  case WEFT_CLASS_COLLECTIVE:
    return collective_formula (g, op);
  case WEFT_CLASS_P2P:
    return transfer_formula (g, op);
  default:
    return copy_formula (g, op);
  }
}

static void
add_transfer (struct page *g, uint32_t op)
{
  const struct weft_op *row = &g->p->op[op];
  g_autofree char *size = human (weft_op_bytes (g->p, op), "B");
  g_autofree char *what =
      g_strdup_printf ("%s %s %s", weft_lane_words[row->lane], weft_op_info[row->kind].word, size);

  add (g, what, g->plan->seconds[g->out->role][op], "s", any_transfer_formula (g, op))->count = 1;
}

/* Adds to the page one row for all ops of the same kind, size, group and peer. */
static void
explain_transfers (struct page *g)
{
  GArray *rows = g->out->section[g->topic].row;
  /* [row]: the first op that the row contains */
  g_autofree uint32_t *first = g_new (uint32_t, g->p->n_op + 1);
  double sum = 0;
  uint32_t n = 0;

  for (uint32_t op = 0; op < g->p->n_op; op++) {
    guint i = 0;
    if (!is_transfer (g->p, op))
      continue;
    sum += g->plan->seconds[g->out->role][op];
    n++;
    while (i < rows->len && !same_transfer (&g->p->op[first[i]], &g->p->op[op]))
      i++;
    first[i] = i < rows->len ? first[i] : op;
    if (i < rows->len)
      g_array_index (rows, struct weft_explain_row, i).count++;
    else
      add_transfer (g, op);
  }
  add_sum (g, "all transfers", sum, "s", g_strdup_printf ("%u ops, each without contention", n));
}

/* --------------------------------------------------------------------- kernels */

static char *
dimensions (enum weft_op_kind kind, const struct weft_shape *shape)
{
  g_auto (GStrv) name = g_strsplit (weft_op_info[kind].dims, " ", -1);
  GString *text = g_string_new (NULL);

  for (uint32_t i = 0; name[i] && i < G_N_ELEMENTS (shape->dim); i++)
    if (i == 0 || shape->dim[i])
      g_string_append_printf (text, "%s%s %" G_GUINT64_FORMAT, i ? " " : "", name[i],
                              shape->dim[i]);
  return g_string_free (text, FALSE);
}

static char *
kernel_formula (const struct page *g, uint32_t op)
{
  const struct weft_shape *shape = weft_op_shape (g->p, op);
  struct weft_cost cost = weft_plan_cost (g->plan);
  struct weft_cost_parts c = weft_cost_split (&cost, g->p->op[op].kind, shape);
  g_autofree char *dims = dimensions (g->p->op[op].kind, shape), *gap = human (c.gap, "s"),
                  *flops = human (c.flops, "FLOP"), *rate = human (c.rate, "FLOP/s"),
                  *bytes = human (c.bytes, "B"), *band = human (c.bandwidth, "B/s");

  if (g->p->op[op].kind == WEFT_OP_RELEASE)
    return g_strdup ("no kernel");
  if (g->p->op[op].lane == WEFT_LANE_HOST && !weft_cluster_is_cpu (&g->job->cluster)) {
    g_autofree char *memory = human (g->job->cluster.f.node_host_bandwidth, "B/s");
    return g_strdup_printf ("%s: %s / %s of the host", dims, bytes, memory);
  }
  if (g->p->op[op].flags & WEFT_OP_FUSED)
    return g_strdup_printf ("%s: fused into the kernel before it; shared data moved once", dims);
  if (g->p->op[op].flags & WEFT_OP_PIECE)
    return g_strdup_printf ("%s: %s / (%s x tiles %.2f x depth %.2f); the next piece fills the "
                            "last wave",
                            dims, flops, rate, c.tiles, c.depth);
  if (g->p->op[op].kind == WEFT_OP_MATMUL_SWIGLU && !cost.table)
    return g_strdup_printf ("%s: a matmul, and swiglu of its result", dims);
  double bias = weft_cost_bias (&cost, g->p, op);
  if (c.gap + fmax (c.work, c.memory) + bias != g->plan->seconds[g->out->role][op])
    return g_strdup_printf ("%s: as measured (cost_table)", dims);
  if (c.memory >= c.work)
    return g_strdup_printf ("%s: %s + %s / %s%s%s", dims, gap, bytes, band, c.limit ? ", by " : "",
                            c.limit ? weft_limit_words[c.limit] : "");
  if (c.share > 0)
    return g_strdup_printf ("%s: %s + %s / (%s x %.*f)", dims, gap, flops, rate,
                            c.share < 0.1 ? 4 : 2, c.share);
  g_autofree char *sums = human (c.sums, "s");
  g_autofree char *split =
      c.splits > 1 ? g_strdup_printf (" + %s to add %.0f parts", sums, c.splits) : g_strdup ("");
  g_autofree char *bias_time = human (bias, "s");
  g_autofree char *bias_text =
      bias > 0 ? g_strdup_printf (" + %s for the bias", bias_time) : g_strdup ("");
  return g_strdup_printf ("%s: %s + %s / (%s x waves %.2f x tiles %.2f x depth %.2f)%s%s", dims,
                          gap, flops, rate, c.waves, c.tiles, c.depth, split, bias_text);
}

static void
explain_kernels (struct page *g)
{
  const double *seconds = g->plan->seconds[g->out->role];
  double layer = 0, all = 0;
  uint32_t n = 0;

  for (uint32_t op = 0; op < g->p->n_op; op++) {
    const struct weft_op *row = &g->p->op[op];
    if (is_transfer (g->p, op))
      continue;
    all += seconds[op];
    n++;
    if (row->layer != first_layer (g) || row->micro != 0)
      continue;
    g_autofree char *what = g_strdup_printf ("%s %s %s", weft_phase_words[row->phase],
                                             weft_op_info[row->kind].word, name_of (g, row->name));
    layer += seconds[op];
    add (g, what, seconds[op], "s", kernel_formula (g, op));
  }
  add_sum (g, "layer and microbatch", layer, "s", g_strdup ("forward and backward"));
  add_sum (g, "all kernels", all, "s",
           g_strdup_printf ("%u ops of the step, each without contention", n));
}

/* --------------------------------------------------------------------- offload */

/* Seconds and bytes of the ops of one lane and phase in the first microbatch. `layer` selects the
 * ops of one layer; WEFT_NO_LAYER: ops of all layers. */
static double
sum_of (const struct page *g, enum weft_lane lane, enum weft_phase phase, uint32_t layer,
        double *bytes)
{
  double seconds = 0;

  *bytes = 0;
  for (uint32_t op = 0; op < g->p->n_op; op++) {
    const struct weft_op *row = &g->p->op[op];
    if (row->lane != lane || row->phase != phase || row->micro != 0 ||
        row->kind == WEFT_OP_COPY_IN || row->layer == WEFT_NO_LAYER ||
        (layer != WEFT_NO_LAYER && row->layer != layer))
      continue;
    seconds += g->plan->seconds[g->out->role][op];
    *bytes += weft_op_bytes (g->p, op);
  }
  return seconds;
}

/* Bytes/s between a GPU and host memory while all GPUs of the node copy at the same time. */
static double
host_rate (const struct page *g)
{
  const union weft_cluster_fields *c = &g->job->cluster.f;
  double gpus = MIN ((double) g->job->cluster.n_gpus, (double) c->node_gpus);

  return fmin (c->gpu_host_link / fmin (gpus, c->node_gpus_per_switch),
               c->node_host_bandwidth / gpus);
}

/* Adds the exposed time of copies in one direction. Copies can overlap with the kernels between the
 * end of the first layer and the begin of the last layer. */
static void
explain_direction (struct page *g, enum weft_lane lane, enum weft_phase phase, const char *what)
{
  uint32_t layers = g->job->model.num_layers, n = g->job->strategy.cpu_offloading_num_layers;
  double bytes, unused, kernels = sum_of (g, WEFT_LANE_GPU, phase, layers - 1, &unused);
  double room = (layers - 2) * kernels;
  sum_of (g, lane, phase, WEFT_NO_LAYER, &bytes);
  double copies = bytes / host_rate (g);
  g_autofree char *size = human (bytes / n, "B"), *rate = human (host_rate (g), "B/s"),
                  *took = human (copies, "s"), *layer = human (kernels, "s"),
                  *all = human (room, "s");

  add (g, what, fmax (0, copies - room), "s",
       g_strdup_printf ("%u x %s / %s = %s %s (%u - 2) x %s = %s: %s", n, size, rate, took,
                        copies <= room ? "<=" : ">", layers, layer, all,
                        copies <= room ? "overlapped" : "the rest is exposed"));
}

static void
explain_offload (struct page *g)
{
  const union weft_strategy *k = &g->job->strategy;

  if (!k->cpu_offloading || !k->cpu_offloading_activations || k->cpu_offloading_num_layers == 0 ||
      g->job->model.num_layers < 2)
    return;
  if (k->cpu_offloading_double_buffering)
    /* no formula for cpu_offloading_double_buffering, which copies in windows of several layers;
     * kernels wait for the copies at the end of each window */
    return;
  explain_direction (g, WEFT_LANE_D2H, WEFT_PHASE_FORWARD, "exposed to the host");
  explain_direction (g, WEFT_LANE_H2D, WEFT_PHASE_BACKWARD, "exposed from the host");
}

/* -------------------------------------------------------------------- the step */

static void
explain_pipeline (struct page *g)
{
  double p = g->plan->mesh.pp, m = weft_job_microbatches (g->job);
  const struct weft_report_overlap *o = &g->report->overlap;

  if (p == 1)
    return;
  add (g, "bubble over work", (p - 1) / m, "%",
       g_strdup_printf ("(p - 1) / m = (%.0f - 1) / %.0f", p, m));
  add (g, "bubble of the step", (p - 1) / (m + p - 1), "%",
       g_strdup_printf ("(p - 1) / (m + p - 1) = %.0f / %.0f", p - 1, m + p - 1));
  add (g, "simulated bubble", o->bubble_fraction, "%",
       g_strdup ("mean over GPUs: no kernel and no communication"));
}

/* How the model FLOPs of a token are counted, as text. The caller frees the text. */
static char *
flops_text (const struct weft_job *job)
{
  gboolean causal = job->train.flops_convention == WEFT_COUNT_CAUSAL;
  const char *word = weft_flops_convention_words[job->train.flops_convention];
  const struct weft_tuned_flops f = weft_job_tuned_flops (job, causal);
  g_autofree char *all = human (f.forward / 2, ""), *pairs = human (f.pairs, "FLOP"),
                  *inputs = human (f.inputs / 2, ""), *weights = human (f.weights / 2, ""),
                  *adapters = human (f.adapters / 6, "");

  if (weft_job_frozen (job, NULL) == 0)
    return g_strdup_printf ("6 x %s in matmuls + %s of attention (flops_convention = %s)", all,
                            pairs, word);
  return g_strdup_printf ("2 x %s forward + 2 x %s input gradients + 2 x %s trained + 6 x %s in "
                          "adapters + %s of attention (flops_convention = %s)",
                          all, inputs, weights, adapters, pairs, word);
}

static void
explain_step (struct page *g)
{
  const struct weft_report_iteration *it = &g->report->iteration;
  const struct weft_report_overlap *o = &g->report->overlap;
  const union weft_model *model = &g->job->model;
  double flops = weft_job_flops_per_token (g->job), peak = weft_report_printed_peak (g->job);
  g_autofree char *each = human (flops, "FLOP"), *printed = human (peak, "FLOP/s"),
                  *busy = human (o->communication_s, "s"), *work = human (o->compute_s, "s"),
                  *exposed = human (o->exposed_communication_s, "s"),
                  *idle = human (o->bubble_s, "s");

  add (g, "kernels", o->compute_s, "s", g_strdup ("mean over GPUs, with contention"));
  add (g, "exposed transfers", o->exposed_communication_s, "s",
       g_strdup_printf ("of %s, %.0f %% overlapped with kernels", busy, 100 * o->overlap_fraction));
  add (g, "idle", o->bubble_s, "s", g_strdup ("the rest"));
  add_sum (g, "step", it->time_s, "s", g_strdup_printf ("%s + %s + %s", work, exposed, idle));
  add (g, "tokens/s per GPU", it->tokens_per_s_per_gpu, "",
       g_strdup_printf ("%.0f tokens / step / %u GPUs",
                        (double) g->job->train.global_batch_size * model->seq_length,
                        g->plan->mesh.n_ranks));
  add (g, "model FLOP per token", flops, "FLOP", flops_text (g->job));
  add (
      g, "MFU", it->mfu, "%",
      g_strdup_printf ("%.0f tokens/s x %s / %s printed", it->tokens_per_s_per_gpu, each, printed));
}

/* ----------------------------------------------------------------- activations */

/* The first layer of the role; WEFT_NO_LAYER if the role has no layer. The activations of the first
 * layer include its output if another layer follows, because that layer stores it. */
static uint32_t
layer_within (const struct page *g)
{
  uint32_t first = WEFT_NO_LAYER;

  for (uint32_t op = 0; op < g->p->n_op; op++)
    if (g->p->op[op].layer != WEFT_NO_LAYER && g->p->op[op].phase == WEFT_PHASE_FORWARD)
      first = MIN (first, g->p->op[op].layer);
  return first;
}

static gboolean
is_megatron_case (const struct weft_job *job)
{
  return job->strategy.sequence_parallel && job->strategy.context_parallel_size == 1 &&
         weft_job_recompute (job).granularity == WEFT_RECOMPUTE_SELECTIVE;
}

static void
explain_activations (struct page *g)
{
  struct weft_kept kept[WEFT_MOST_ACTIVATIONS];
  uint32_t n = weft_activations_of_layer (g->job, kept), layer = layer_within (g);
  double sum = 0;

  if (n == 0 || layer == WEFT_NO_LAYER)
    return;
  for (uint32_t i = 0; i < n; i++) {
    add (g, kept[i].what, kept[i].bytes, "B", g_strdup (kept[i].formula));
    sum += kept[i].bytes;
  }
  add_sum (g, "by formula", sum, "B", g_strdup ("a layer without full recompute"));
  add (g, "in the program", weft_activations_kept (g->p, layer, 0), "B",
       g_strdup_printf ("layer %u, microbatch 0", layer));
  if (is_megatron_case (g->job))
    add (g, "Megatron-LM's estimate", weft_activations_megatron (g->job), "B",
         g_strdup ("first stage, all in flight: sbh (18 + 4 f/h) L / t, and the embedding's"));
}

/* ---------------------------------------------------------------------- memory */

/* The number of microbatches whose activations are alive at an op. */
static uint32_t
micros_alive (const weft_program *p, uint32_t op)
{
  g_autofree gboolean *alive = g_new0 (gboolean, WEFT_NO_MICRO + 1);
  uint32_t n = 0;

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    if (b->kind != WEFT_BUF_ACTIVATIONS || b->base != WEFT_NO_BUF || b->micro == WEFT_NO_MICRO ||
        b->first > op || b->last < op || alive[b->micro])
      continue;
    alive[b->micro] = TRUE;
    n++;
  }
  return n;
}

static char *
part_formula (const struct page *g, int part, double bytes)
{
  const struct weft_report_role *role = &g->report->role[g->out->role];
  const struct weft_memory *memory = &g->plan->memory[g->out->role];
  double always = part < WEFT_N_BUF_KIND ? memory->permanent[WEFT_POOL_DEVICE][part] : 0;
  uint32_t micros = micros_alive (g->p, role->peak_op);
  g_autofree char *kept = human (always, "B");

  if (part == WEFT_REPORT_PADDING)
    return g_strdup ("lost between buffers");
  if (part == WEFT_REPORT_RESERVED)
    return g_strdup ("context, communicators, workspace of the stack");
  if (part == WEFT_BUF_ACTIVATIONS)
    return g_strdup_printf ("%u microbatch%s in flight", micros, micros == 1 ? "" : "es");
  if (always == bytes)
    return g_strdup ("during the whole step");
  return always > 0 ? g_strdup_printf ("%s during the whole step, the rest at this op", kept)
                    : g_strdup ("alive at this op");
}

/* Adds rows about the overlap that is lost because ops wait for memory. */
static void
explain_stalls (struct page *g)
{
  const struct weft_memory_stalls *stalls = &g->report->role[g->out->role].stalls;

  for (guint i = 0; stalls->cause && i < stalls->cause->len; i++) {
    const struct weft_memory_stall *w = &g_array_index (stalls->cause, struct weft_memory_stall, i);
    g_autofree char *what =
        g_strdup_printf ("stalled by %s %s", weft_lane_words[w->lane], weft_memory_stall_word (w));
    add (g, what, w->held_s, "s",
         g_strdup_printf ("%u ops wait for bytes that these use; the plan does not fit otherwise",
                          w->ops));
  }
  if (stalls->n_op)
    add_sum (g, "memory stalls", stalls->held_s, "s",
             g_strdup_printf ("%u ops wait for memory, %u of them kernels; lanes summed",
                              stalls->n_op, stalls->n_kernel));
}

static void
explain_memory (struct page *g)
{
  const struct weft_report_role *role = &g->report->role[g->out->role];
  g_autofree char *label = weft_op_label (g->p, role->peak_op);

  for (int part = 0; part < WEFT_N_REPORT_PART; part++) {
    double bytes = weft_report_part_bytes (role, part);
    if (bytes > 0)
      add (g, weft_report_parts[part].word, bytes, "B", part_formula (g, part, bytes));
  }
  add_sum (g, "peak", role->peak_bytes, "B", g_strdup_printf ("at %s", label));
  if (role->cached_bytes > 0)
    add (g, "cached", role->cached_bytes, "B",
         g_strdup ("freed blocks that the allocator keeps while there is room; not in the peak"));
  explain_stalls (g);
}

/* ------------------------------------------------------------------- the whole */

static void (*const topics[]) (struct page *g) = {
  explain_batch,     explain_parameters,  explain_state,   explain_levels,
  explain_transfers, explain_kernels,     explain_offload, explain_pipeline,
  explain_step,      explain_activations, explain_memory,
};
G_STATIC_ASSERT (G_N_ELEMENTS (topics) == WEFT_N_EXPLAIN);

weft_explain *
weft_explain_new (const weft_report *report, uint32_t role)
{
  static const struct weft_explain_section sections[] = {
#define WEFT_EXPLAIN_ROW(id, key, title, source) { key, title, source, NULL },
    WEFT_EXPLAIN_LIST (WEFT_EXPLAIN_ROW)
#undef WEFT_EXPLAIN_ROW
  };
  weft_explain *explain = g_new0 (weft_explain, 1);
  struct page g = { .report = report,
                    .plan = report->plan,
                    .job = &report->plan->job,
                    .p = report->plan->role[role],
                    .out = explain };

  explain->role = role;
  for (int topic = 0; topic < WEFT_N_EXPLAIN; topic++) {
    explain->section[topic] = sections[topic];
    explain->section[topic].row = g_array_new (FALSE, FALSE, sizeof (struct weft_explain_row));
    g_array_set_clear_func (explain->section[topic].row, clear_row);
    g.topic = topic;
    topics[topic](&g);
  }
  return explain;
}

void
weft_explain_free (weft_explain *explain)
{
  if (!explain)
    return;
  for (int topic = 0; topic < WEFT_N_EXPLAIN; topic++)
    g_array_unref (explain->section[topic].row);
  g_free (explain);
}
