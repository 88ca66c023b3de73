#include "train/comm_bench.h"
#include <string.h>

/* A communication op of one role. All roles sort their ops in the same order, so that peers never
 * deadlock. */
struct comm_op {
  uint8_t kind, group;
  int8_t peer;
  struct weft_shape shape;
};

/* ----------------------------------------------------------------------- order */

static gboolean
is_collective (const struct comm_op *l)
{
  return weft_op_info[l->kind].class == WEFT_CLASS_COLLECTIVE;
}

static gboolean
goes_back (const struct comm_op *l)
{
  return l->kind == WEFT_OP_SEND ? l->peer < 0 : l->kind == WEFT_OP_RECV && l->peer > 0;
}

static gboolean
is_host_copy (const struct comm_op *l)
{
  return weft_op_info[l->kind].class == WEFT_CLASS_COPY;
}

/* Point-to-point ops come before collectives. Point-to-point ops are sorted by shape, then by
 * direction; a stage receives before it sends, so that data moves from stage to stage. */
static gint
compare_ops (gconstpointer a, gconstpointer b)
{
  const struct comm_op *x = a, *y = b;
  int64_t one[] = { is_collective (x), is_collective (x) ? x->kind : 0, x->group };
  int64_t two[] = { is_collective (y), is_collective (y) ? y->kind : 0, y->group };

  for (unsigned i = 0; i < G_N_ELEMENTS (one); i++)
    if (one[i] != two[i])
      return one[i] < two[i] ? -1 : 1;
  int shape = memcmp (&x->shape, &y->shape, sizeof x->shape);
  if (shape)
    return shape;
  int back = goes_back (x) - goes_back (y);
  return back ? back : (x->kind == WEFT_OP_SEND) - (y->kind == WEFT_OP_SEND);
}

/* --------------------------------------------------------------------- program */

static uint64_t
bytes_of (const struct comm_op *l)
{
  return (uint64_t) weft_op_info[l->kind].bytes (&l->shape);
}

/* Makes the buffer of all ops. Exact integer sums use a separate buffer that stays zero: other
 * values would grow with every repeat of an all-reduce in place and overflow. */
static uint32_t
make_buffer (weft_builder *b, const GArray *ops, gboolean exact)
{
  struct weft_buf row = { .bytes = sizeof (int64_t),
                          .base = WEFT_NO_BUF,
                          .name = weft_build_name (b, exact ? "words" : "data"),
                          .layer = WEFT_NO_LAYER,
                          .micro = WEFT_NO_MICRO,
                          .kind = WEFT_BUF_COMMUNICATION,
                          .pool = WEFT_POOL_DEVICE,
                          .dtype = exact ? WEFT_INT64 : WEFT_FP32,
                          .permanent = TRUE };

  for (guint i = 0; i < ops->len; i++) {
    const struct comm_op *l = &g_array_index (ops, struct comm_op, i);
    if ((l->shape.dtype == WEFT_INT64) == exact)
      row.bytes = MAX (row.bytes, bytes_of (l));
  }
  return weft_build_buf (b, &row);
}

/* Whether an op has separate input and output buffers: all-to-all and context-parallel shift. */
static gboolean
is_exchange (const struct comm_op *l)
{
  return l->kind == WEFT_OP_ALL_TO_ALL || l->kind == WEFT_OP_SHIFT;
}

/* Makes the second buffer of host copies (`copies`) or of out-of-place ops, as large as the largest
 * op. WEFT_NO_BUF: there is no such op. */
static uint32_t
make_second_buffer (weft_builder *b, const GArray *ops, gboolean copies)
{
  struct weft_buf row = { .base = WEFT_NO_BUF,
                          .name = weft_build_name (b, copies ? "host" : "second"),
                          .layer = WEFT_NO_LAYER,
                          .micro = WEFT_NO_MICRO,
                          .kind = WEFT_BUF_COMMUNICATION,
                          .pool = copies ? WEFT_POOL_HOST : WEFT_POOL_DEVICE,
                          .dtype = WEFT_FP32,
                          .permanent = TRUE };

  for (guint i = 0; i < ops->len; i++) {
    const struct comm_op *l = &g_array_index (ops, struct comm_op, i);
    if (copies ? is_host_copy (l) : is_exchange (l))
      row.bytes = MAX (row.bytes, bytes_of (l));
  }
  return row.bytes ? weft_build_buf (b, &row) : WEFT_NO_BUF;
}

/* Buffers that an op accesses: a view of the data buffer, and a view of the second buffer
 * (WEFT_NO_BUF: none). */
struct buffers {
  uint32_t data, second;
};

static uint32_t
view_of (weft_builder *b, uint32_t buffer, const struct comm_op *l)
{
  uint32_t view = weft_build_view (b, buffer, 0, bytes_of (l), "view");

  weft_build_buf_at (b, view)->dtype = l->shape.dtype;
  return view;
}

static enum weft_lane
lane_of (const struct comm_op *l)
{
  if (is_host_copy (l))
    return weft_op_enters_device (l->kind) ? WEFT_LANE_H2D : WEFT_LANE_D2H;
  return is_collective (l) ? weft_group_lane (l->group) : WEFT_LANE_PP;
}

static void
use_two_buffers (weft_builder *b, const struct comm_op *l, const struct buffers *v)
{
  gboolean in = is_host_copy (l) && weft_op_enters_device (l->kind);

  weft_build_use (b, in ? v->second : v->data, TRUE, FALSE);
  weft_build_use (b, in ? v->data : v->second, FALSE, TRUE);
}

/* Emits one op. A collective in place writes the buffer that it reads. */
static void
emit (weft_builder *b, const struct comm_op *l, const struct buffers *v, uint32_t time,
      uint32_t *last)
{
  gboolean sends = l->kind == WEFT_OP_SEND;
  const struct weft_op row = { .kind = l->kind,
                               .lane = lane_of (l),
                               .group = l->group,
                               .layer = WEFT_NO_LAYER,
                               .micro = (uint16_t) time,
                               .name = weft_build_name (b, "comm"),
                               .phase = WEFT_PHASE_REDUCE,
                               .peer = l->peer };
  uint32_t op = weft_build_op (b, &row, &l->shape);

  if (*last != WEFT_NO_OP)
    weft_build_dep (b, *last);
  *last = op;
  if (v->second != WEFT_NO_BUF) {
    use_two_buffers (b, l, v);
    return;
  }
  if (l->kind == WEFT_OP_ALL_GATHER || l->kind == WEFT_OP_REDUCE_SCATTER)
    weft_build_use (b, v->data, TRUE, l->kind == WEFT_OP_REDUCE_SCATTER);
  weft_build_use (b, v->data, sends || is_collective (l), !sends);
}

static weft_program *
build_role (uint32_t role, uint32_t n_roles, GArray *ops)
{
  g_autoptr (weft_builder) b = weft_builder_new (role, n_roles);
  const uint32_t data[] = { make_buffer (b, ops, FALSE), make_buffer (b, ops, TRUE) };
  const uint32_t host = make_second_buffer (b, ops, TRUE),
                 second = make_second_buffer (b, ops, FALSE);
  uint32_t last = WEFT_NO_OP;

  g_array_sort (ops, compare_ops);
  for (guint i = 0; i < ops->len; i++) {
    const struct comm_op *l = &g_array_index (ops, struct comm_op, i);
    uint32_t from = data[l->shape.dtype == WEFT_INT64];
    const struct buffers v = { view_of (b, from, l), is_host_copy (l)  ? view_of (b, host, l)
                                                     : is_exchange (l) ? view_of (b, second, l)
                                                                       : WEFT_NO_BUF };
    for (uint32_t time = 0; time < WEFT_COMM_BENCH_REPEATS; time++)
      emit (b, l, &v, time, &last);
  }
  return weft_builder_freeze (b);
}

/* ------------------------------------------------------------------------ plan */

/* Makes a plan from lists of communication ops: ops[role] has the ops of pipeline stage `role`.
 * Cluster and settings come from the job. */
static weft_plan *
make_plan (const struct weft_job *job, struct weft_mesh mesh, GPtrArray *ops, GError **error)
{
  g_autoptr (weft_plan) plan = g_new0 (weft_plan, 1);

  plan->job = *job;
  plan->mesh = mesh;
  if (!weft_cluster_resize (&plan->job.cluster, mesh.n_ranks, 0, error))
    return NULL;
  plan->fabric = weft_fabric_make (&plan->job.cluster);
  plan->n_roles = mesh.pp;
  plan->role = g_new0 (weft_program *, mesh.pp);
  plan->memory = g_new0 (struct weft_memory, mesh.pp);
  plan->seconds = g_new0 (double *, mesh.pp);
  for (uint32_t role = 0; role < mesh.pp; role++) {
    plan->role[role] = build_role (role, mesh.pp, ops->pdata[role]);
    plan->seconds[role] = g_new0 (double, plan->role[role]->n_op + 1);
    weft_memory_plan (plan->role[role], NULL, G_MAXUINT64, &plan->memory[role]);
  }
  if (!weft_plan_check (plan, error))
    return NULL;
  return g_steal_pointer (&plan);
}

static GPtrArray *
empty_lists (uint32_t n_roles)
{
  GPtrArray *ops = g_ptr_array_new_with_free_func ((GDestroyNotify) g_array_unref);

  for (uint32_t role = 0; role < n_roles; role++)
    g_ptr_array_add (ops, g_array_new (FALSE, TRUE, sizeof (struct comm_op)));
  return ops;
}

/* -------------------------------------------------------------- public builders */

static void
add_once (GArray *ops, const struct comm_op *l)
{
  for (guint i = 0; i < ops->len; i++)
    if (memcmp (&g_array_index (ops, struct comm_op, i), l, sizeof *l) == 0)
      return;
  g_array_append_vals (ops, l, 1);
}

weft_plan *
weft_comm_bench_of_plan (const weft_plan *plan, GError **error)
{
  g_autoptr (GPtrArray) ops = empty_lists (plan->n_roles);

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    const weft_program *p = plan->role[role];
    for (uint32_t op = 0; op < p->n_op; op++) {
      struct comm_op l;
      memset (&l, 0, sizeof l); /* sets the padding to 0, because memcmp() compares it */
      l.kind = p->op[op].kind;
      l.group = p->op[op].group;
      l.peer = p->op[op].peer;
      l.shape = *weft_op_shape (p, op);
      if (weft_op_is_comm (l.kind))
        add_once (ops->pdata[role], &l);
    }
  }
  return make_plan (&plan->job, plan->mesh, ops, error);
}

#define LEAST_BYTES (UINT64_C (1) << 10)
#define MOST_BYTES (UINT64_C (1) << 26)
#define GRID_RATIO 4

static void
add_sizes (GArray *ops, enum weft_op_kind kind, enum weft_group_kind group, int peer)
{
  for (uint64_t bytes = LEAST_BYTES; bytes <= MOST_BYTES; bytes *= GRID_RATIO) {
    const struct comm_op l = { .kind = kind,
                               .group = group,
                               .peer = (int8_t) peer,
                               .shape = { .dim = { bytes / weft_dtype_bytes (WEFT_FP32) },
                                          .dtype = WEFT_FP32,
                                          .out_dtype = WEFT_FP32 } };
    g_array_append_val (ops, l);
  }
}

weft_plan *
weft_comm_bench_of_group (const struct weft_job *job, uint32_t ranks, GError **error)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_ALL_REDUCE, WEFT_OP_REDUCE_SCATTER,
                                             WEFT_OP_ALL_GATHER, WEFT_OP_ALL_TO_ALL };
  g_autoptr (GPtrArray) ops = empty_lists (1);

  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++)
    add_sizes (ops->pdata[0], kinds[i], WEFT_GROUP_DP, 0);
  return make_plan (job, weft_mesh_make (1, 1, ranks, 1), ops, error);
}

weft_plan *
weft_comm_bench_of_stages (const struct weft_job *job, GError **error)
{
  g_autoptr (GPtrArray) ops = empty_lists (2);

  for (int role = 0; role < 2; role++) {
    int peer = role ? -1 : 1;
    add_sizes (ops->pdata[role], WEFT_OP_SEND, WEFT_GROUP_PP, peer);
    add_sizes (ops->pdata[role], WEFT_OP_RECV, WEFT_GROUP_PP, peer);
  }
  return make_plan (job, weft_mesh_make (1, 1, 1, 2), ops, error);
}

weft_plan *
weft_comm_bench_of_host (const struct weft_job *job, GError **error)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_FROM_HOST, WEFT_OP_TO_HOST };
  static const enum weft_dtype dtypes[] = { WEFT_FP32, WEFT_BF16 };
  g_autoptr (GPtrArray) ops = empty_lists (1);

  for (unsigned i = 0; i < 4; i++)
    for (uint64_t bytes = LEAST_BYTES; bytes <= MOST_BYTES; bytes *= GRID_RATIO) {
      enum weft_dtype dtype = dtypes[i / 2];
      const struct comm_op l = {
        .kind = kinds[i % 2],
        .shape = { .dim = { bytes / weft_dtype_bytes (dtype) }, .dtype = dtype, .out_dtype = dtype }
      };
      g_array_append_val (ops->pdata[0], l);
    }
  return make_plan (job, weft_mesh_make (1, 1, 1, 1), ops, error);
}

void
weft_comm_bench_fill (weft_exec *x)
{
  for (uint32_t row = 0; row < x->actors->n; row++) {
    const struct weft_buf *data = &x->plan->role[x->actors->role[row]]->buf[0];
    g_autoptr (GRand) rand = g_rand_new_with_seed (row + 1);
    g_autofree float *value = g_new (float, data->bytes / sizeof (float) + 1);

    for (uint64_t i = 0; i < data->bytes / sizeof *value; i++)
      value[i] = (float) g_rand_double_range (rand, -1, 1);
    x->ops->write (x, row, 0, 0, data->bytes, value);
  }
}
