#include "core/report/op_facts.h"
#include "core/base/units.h"
#include "core/program/formula.h"
#include <math.h>
#include <string.h>

/* One op of one role. */
struct one {
  const weft_plan *plan;
  const weft_program *p;
  uint32_t role;
};

static char *
human (double value, const char *unit)
{
  return g_strchomp (weft_units_human (value, unit));
}

/* ------------------------------------------------------------ seconds of a transfer */

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
collective_formula (const struct one *g, uint32_t op)
{
  uint32_t rank = weft_mesh_stage_rank (&g->plan->mesh, g->role, 0);
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
transfer_formula (const struct one *g, uint32_t op)
{
  uint32_t rank = weft_mesh_stage_rank (&g->plan->mesh, g->role, 0);
  uint32_t peer = weft_mesh_beside (&g->plan->mesh, rank, g->p->op[op].peer);
  gboolean sends = g->p->op[op].kind == WEFT_OP_SEND;
  struct weft_traffic t = weft_plan_transfer (g->plan, sends ? rank : peer, sends ? peer : rank,
                                              weft_op_shape (g->p, op));
  g_autofree char *latency = human (t.latency, "s"), *bytes = human (t.bytes[0], "B"),
                  *rate = human (t.bytes[0] / (t.seconds - t.latency), "B/s");

  return g_strdup_printf ("%s: %s + %s / %s", t.algorithm, latency, bytes, rate);
}

static char *
copy_formula (const struct one *g, uint32_t op)
{
  double gap = g->plan->job.stack.kernel_gap, seconds = g->plan->seconds[g->role][op] - gap;
  g_autofree char *latency = human (gap, "s"), *bytes = human (weft_op_bytes (g->p, op), "B"),
                  *rate = human (weft_op_bytes (g->p, op) / seconds, "B/s");

  return g_strdup_printf ("%s + %s / %s", latency, bytes, rate);
}

/* -------------------------------------------------------------- seconds of a kernel */

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
kernel_formula (const struct one *g, uint32_t op)
{
  const struct weft_shape *shape = weft_op_shape (g->p, op);
  struct weft_cost cost = weft_plan_cost_on (g->plan, g->plan->kind ? g->plan->kind[g->role] : 0);
  struct weft_cost_parts c = weft_cost_split (&cost, g->p->op[op].kind, shape);
  g_autofree char *dims = dimensions (g->p->op[op].kind, shape), *gap = human (c.gap, "s"),
                  *flops = human (c.flops, "FLOP"), *rate = human (c.rate, "FLOP/s"),
                  *bytes = human (c.bytes, "B"), *band = human (c.bandwidth, "B/s");

  if (g->p->op[op].kind == WEFT_OP_RELEASE)
    return g_strdup ("no kernel");
  if (g->p->op[op].lane == WEFT_LANE_HOST && !weft_cluster_is_cpu (&g->plan->job.cluster)) {
    g_autofree char *memory = human (g->plan->job.cluster.f.node_host_bandwidth, "B/s");
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
  if (c.gap + fmax (c.work, c.memory) + bias != g->plan->seconds[g->role][op])
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

char *
weft_op_seconds_text (const weft_plan *plan, uint32_t role, uint32_t op)
{
  const struct one one = { plan, plan->role[role], role };

  switch (weft_op_info[one.p->op[op].kind].class) {
  case WEFT_CLASS_COMPUTE:
    return kernel_formula (&one, op);
  case WEFT_CLASS_COLLECTIVE:
    return collective_formula (&one, op);
  case WEFT_CLASS_P2P:
    return transfer_formula (&one, op);
  default:
    return copy_formula (&one, op);
  }
}

/* --------------------------------------------------------------------------- facts */

static void
add (weft_op_facts *facts, const char *what, char *text, const char *doc)
{
  const struct weft_op_fact fact = { what, text, doc };

  g_array_append_val (facts->fact, fact);
}

/* Adds an amount and the expression that gives it. */
static void
add_amount (weft_op_facts *facts, const char *what, char *formula, double value, const char *unit)
{
  g_autofree char *amount = human (value, unit), *expression = formula;

  add (facts, what, g_strdup_printf ("%s = %s", expression, amount), NULL);
}

/* The buffers of an op, "x read, 67.1 MB of activations", by the names of its operands. */
static void
add_buffers (const struct one *g, uint32_t op, weft_op_facts *facts)
{
  const struct weft_op *row = &g->p->op[op];
  g_auto (GStrv) operand = g_strsplit (weft_op_info[row->kind].operands, " ", -1);
  g_autoptr (GString) text = g_string_new (NULL);

  for (uint32_t i = 0; row->uses + i < row[1].uses; i++) {
    const struct weft_use *use = &g->p->uses[row->uses + i];
    if (use->buf == WEFT_NO_BUF || i >= g_strv_length (operand))
      continue;
    const struct weft_buf *buf = &g->p->buf[use->buf];
    g_autofree char *bytes = human ((double) buf->bytes, "B");
    g_string_append_printf (text, "%s%.*s: %s %s, %s of %s", text->len ? "; " : "",
                            (int) strcspn (operand[i], ":"), operand[i], g->p->name[buf->name],
                            !use->write  ? "read"
                            : !use->read ? "written"
                                         : "read and written",
                            bytes, weft_buf_kind_words[buf->kind]);
  }
  if (text->len)
    add (facts, "buffers", g_string_free (g_steal_pointer (&text), FALSE), NULL);
}

static void
add_field (weft_op_facts *facts, const struct weft_sheet *sheet, unsigned row)
{
  if (facts->n_field < WEFT_OP_FACT_FIELDS)
    facts->field[facts->n_field++] = (struct weft_cost_field){ sheet, row };
}

static void
add_kernel (const struct one *g, uint32_t op, weft_op_facts *facts)
{
  const struct weft_op *row = &g->p->op[op];
  struct weft_cost cost = weft_plan_cost_on (g->plan, g->plan->kind ? g->plan->kind[g->role] : 0);

  if (row->lane == WEFT_LANE_HOST && !weft_cluster_is_cpu (&g->plan->job.cluster)) {
    add_field (facts, &weft_cluster_sheet, WEFT_CLUSTER_node_host_bandwidth);
    return;
  }
  facts->n_field = weft_cost_fields (&cost, row->kind, weft_op_shape (g->p, op), facts->field);
}

/* The fields of the links that a group of ranks uses, by how many of its members share a node. */
static void
add_links (const struct one *g, uint32_t n_nodes, gboolean within, weft_op_facts *facts)
{
  const struct weft_sheet *sheet = &weft_cluster_sheet;

  if (g->plan->fabric.ops->style == WEFT_FABRIC_GRID) {
    add_field (facts, sheet, WEFT_CLUSTER_fabric_link_bandwidth);
    add_field (facts, sheet, WEFT_CLUSTER_fabric_hop_latency);
    return;
  }
  if (within) {
    add_field (facts, sheet, WEFT_CLUSTER_node_intra_bandwidth);
    add_field (facts, sheet, WEFT_CLUSTER_node_intra_latency);
  }
  if (n_nodes > 1) {
    add_field (facts, sheet, WEFT_CLUSTER_node_nic_bandwidth);
    add_field (facts, sheet, WEFT_CLUSTER_fabric_latency);
  }
}

static void
add_collective (const struct one *g, uint32_t op, weft_op_facts *facts)
{
  const struct weft_op *row = &g->p->op[op];
  uint32_t rank = weft_mesh_stage_rank (&g->plan->mesh, g->role, 0);
  struct weft_group group = weft_mesh_group (&g->plan->mesh, rank, row->group);
  struct weft_coll_shape shape;
  const char *share = weft_coll_ring_text (row->kind);

  weft_coll_shape_outline (&shape, &g->plan->fabric, &group);
  gboolean grid = shape.style == WEFT_FABRIC_GRID;
  add (facts, "group", g_strdup_printf ("%s of %u ranks", weft_group_word (row->group), shape.n),
       NULL);
  if (share && shape.n > 1)
    add (facts, "in a ring a rank sends",
         g_strdup_printf ("%s of the full tensor, n = %u: %.4g", share, shape.n,
                          weft_coll_ring_share (row->kind, shape.n)),
         "Patarasuk and Yuan 2009; bus bandwidth of nccl-tests");
  add_links (g, grid ? 1 : shape.side[WEFT_WAY_REMOTE], grid || shape.side[WEFT_WAY_LOCAL] > 1,
             facts);
  add_field (facts, &weft_stack_sheet, WEFT_STACK_collective_base_latency);
}

static void
add_transfer (const struct one *g, uint32_t op, weft_op_facts *facts)
{
  uint32_t rank = weft_mesh_stage_rank (&g->plan->mesh, g->role, 0);
  uint32_t peer = weft_mesh_beside (&g->plan->mesh, rank, g->p->op[op].peer);
  const struct weft_fabric *f = &g->plan->fabric;
  gboolean same = f->ops->node (f, rank) == f->ops->node (f, peer);

  add (facts, "peer", g_strdup_printf ("rank %u, seen from rank %u", peer, rank), NULL);
  add_links (g, same ? 1 : 2, same, facts);
}

/* The source of a class of ops: that of its section in explain.h. */
static const char *
source_of (enum weft_op_class class)
{
#define SOURCE(id, key, title, source) [WEFT_EXPLAIN_##id] = source,
  static const char *const sources[] = { WEFT_EXPLAIN_LIST (SOURCE) };
#undef SOURCE

  return sources[class == WEFT_CLASS_COMPUTE ? WEFT_EXPLAIN_KERNELS : WEFT_EXPLAIN_TRANSFERS];
}

static void
add_class (const struct one *g, uint32_t op, weft_op_facts *facts)
{
  switch (weft_op_info[g->p->op[op].kind].class) {
  case WEFT_CLASS_COMPUTE:
    add_kernel (g, op, facts);
    return;
  case WEFT_CLASS_COLLECTIVE:
    add_collective (g, op, facts);
    return;
  case WEFT_CLASS_P2P:
    add_transfer (g, op, facts);
    return;
  default:
    add_field (facts, &weft_cluster_sheet, WEFT_CLUSTER_gpu_host_link);
    add_field (facts, &weft_stack_sheet, WEFT_STACK_kernel_gap);
  }
}

static void
clear_fact (gpointer fact)
{
  g_free (((struct weft_op_fact *) fact)->text);
}

weft_op_facts *
weft_op_facts_new (const weft_plan *plan, uint32_t role, uint32_t op)
{
  const struct one one = { plan, plan->role[role], role };
  const struct weft_op *row = &one.p->op[op];
  const struct weft_op_info *info = &weft_op_info[row->kind];
  const struct weft_shape *shape = weft_op_shape (one.p, op);
  weft_op_facts *facts = g_new0 (weft_op_facts, 1);
  gboolean kernel = info->class == WEFT_CLASS_COMPUTE;

  facts->fact = g_array_new (FALSE, FALSE, sizeof (struct weft_op_fact));
  g_array_set_clear_func (facts->fact, clear_fact);
  facts->source = source_of (info->class);
  if (weft_op_flops (one.p, op) > 0)
    add_amount (facts, "FLOPs", weft_op_formula_flops (row->kind, shape),
                weft_op_flops (one.p, op), "FLOP");
  add_amount (facts, kernel ? "bytes" : "payload", weft_op_formula_bytes (row->kind, shape),
              weft_op_bytes (one.p, op), "B");
  add (facts, "they count", g_strdup (info->formula->doc), "core/costs.def");
  add (facts, "time alone", weft_op_seconds_text (plan, role, op), facts->source);
  add_class (&one, op, facts);
  add_buffers (&one, op, facts);
  return facts;
}

void
weft_op_facts_free (weft_op_facts *facts)
{
  g_array_unref (facts->fact);
  g_free (facts);
}
