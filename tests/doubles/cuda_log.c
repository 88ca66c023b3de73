#include "tests/doubles/cuda_log.h"
#include "kernels/bind.h"
#include <string.h>

#define NONE G_MAXUINT32

const struct recorded_call *
cuda_log_call (const cuda_log *log, uint32_t i)
{
  return recorded_call_at (log->device, log->first + i);
}

static const weft_program *
program_of (const cuda_log *log, uint32_t row)
{
  return log->x->plan->role[log->x->actors->role[row]];
}

uint32_t
cuda_log_stream (const cuda_log *log, const struct recorded_call *c)
{
  return GPOINTER_TO_UINT (g_hash_table_lookup (log->stream, c->stream)) - 1;
}

char *
cuda_log_name (const cuda_log *log, uint32_t row, uint32_t op)
{
  if (op == WEFT_NO_OP)
    return g_strdup_printf ("rank %u, the step", row);
  g_autofree char *label = weft_op_label (program_of (log, row), op);
  return g_strdup_printf ("rank %u op %u (%s)", row, op, label);
}

/* ------------------------------------------------------------------------- clocks */

static void
find_streams (cuda_log *log)
{
  for (uint32_t i = 0; i < log->n; i++) {
    const struct recorded_thing *stream = cuda_log_call (log, i)->stream;
    if (stream && !g_hash_table_contains (log->stream, stream))
      g_hash_table_insert (log->stream, (void *) (uintptr_t) stream,
                           GUINT_TO_POINTER (++log->n_stream));
  }
}

static void
merge (uint32_t *into, const uint32_t *from, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++)
    into[i] = MAX (into[i], from[i]);
}

static void
add_work (cuda_log *log, const struct recorded_call *c, uint32_t *clock)
{
  uint32_t s = cuda_log_stream (log, c);
  struct cuda_work work = {
    c->kind, c->row, c->op, s, clock[s], c->at, g_memdup2 (clock, log->n_stream * sizeof *clock)
  };

  clock[s]++;
  g_array_append_val (log->work, work);
  if (c->op == WEFT_NO_OP)
    return;
  if (log->first_work[c->row][c->op] == NONE)
    log->first_work[c->row][c->op] = log->work->len - 1;
  log->last_work[c->row][c->op] = log->work->len - 1;
}

/* Replays the recorded calls with one vector clock per stream. Entry s of a clock: how many work
 * items of stream s end before the next work item of the clock's stream starts. */
static void
run_clocks (cuda_log *log)
{
  g_autofree uint32_t *clock = g_new0 (uint32_t, (size_t) log->n_stream * log->n_stream + 1);
  g_autoptr (GHashTable) event = g_hash_table_new_full (NULL, NULL, NULL, g_free);
  g_autofree const uint32_t **end = g_new0 (const uint32_t *, log->x->actors->n);
  size_t n = log->n_stream;

  for (uint32_t i = 0; i < log->n; i++) {
    const struct recorded_call *c = cuda_log_call (log, i);
    if (!c->stream)
      continue;
    uint32_t *mine = clock + cuda_log_stream (log, c) * n;
    const uint32_t *known;
    if (c->kind == RECORDED_record) {
      end[log->shared ? 0 : c->row] = known = g_memdup2 (mine, n * sizeof *mine);
      g_hash_table_insert (event, (void *) (uintptr_t) c->thing, (void *) (uintptr_t) known);
    } else if (c->kind == RECORDED_wait && (known = g_hash_table_lookup (event, c->thing)))
      merge (mine, known, (uint32_t) n);
    else if (recorded_is_work (c->kind))
      add_work (log, c, mine);
  }
  for (uint32_t row = 0; row < log->x->actors->n; row++)
    if (end[row])
      merge (log->tail, end[row], log->n_stream);
}

/* ------------------------------------------------------------------------ workers */

/* The communication ops of one rank, in order: one list per group for collectives, and one list per
 * direction for sends and for receives. */
struct meetings {
  GArray *op[WEFT_N_GROUP + 4];
};

static uint32_t
list_of (const struct weft_op *row)
{
  if (weft_op_info[row->kind].class == WEFT_CLASS_COLLECTIVE)
    return row->group;
  return WEFT_N_GROUP + 2 * (row->kind == WEFT_OP_RECV) + (row->peer < 0);
}

static struct meetings *
list_meetings (const cuda_log *log)
{
  struct meetings *all = g_new0 (struct meetings, log->x->actors->n);

  for (uint32_t row = 0; row < log->x->actors->n; row++) {
    const weft_program *p = program_of (log, row);
    for (uint32_t i = 0; i < WEFT_N_GROUP + 4; i++)
      all[row].op[i] = g_array_new (FALSE, FALSE, sizeof (uint32_t));
    for (uint32_t op = 0; op < p->n_op; op++)
      if (weft_op_is_comm (p->op[op].kind))
        g_array_append_val (all[row].op[list_of (&p->op[op])], op);
  }
  return all;
}

/* Finds the rank and op whose calls do the work of a communication op. If ranks share a GPU, this
 * is the first member of the group (collective) or the receiver (transfer). */
static void
find_worker (const cuda_log *log, const struct meetings *all, uint32_t row, uint32_t list,
             uint32_t k)
{
  const struct weft_mesh *mesh = &log->x->plan->mesh;
  uint32_t op = g_array_index (all[row].op[list], uint32_t, k), other = row, its = list;

  if (list < WEFT_N_GROUP) {
    struct weft_group g = weft_mesh_group (mesh, row, list);
    other = weft_group_rank (&g, 0);
  } else if (list < WEFT_N_GROUP + 2) {
    gboolean back = (list - WEFT_N_GROUP) % 2;
    other = weft_mesh_beside (mesh, row, back ? -1 : 1);
    its = WEFT_N_GROUP + 2 + !back;
  }
  log->worker_row[row][op] = other;
  log->worker_op[row][op] = g_array_index (all[other].op[its], uint32_t, k);
}

static void
find_workers (cuda_log *log)
{
  uint32_t rows = log->x->actors->n;
  struct meetings *all = list_meetings (log);

  log->worker_row = g_new (uint32_t *, rows);
  log->worker_op = g_new (uint32_t *, rows);
  for (uint32_t row = 0; row < rows; row++) {
    uint32_t n = program_of (log, row)->n_op;
    log->worker_row[row] = g_new (uint32_t, n + 1);
    log->worker_op[row] = g_new (uint32_t, n + 1);
    for (uint32_t op = 0; op < n; op++) {
      log->worker_row[row][op] = row;
      log->worker_op[row][op] = op;
    }
    for (uint32_t list = 0; list < WEFT_N_GROUP + 4 && log->shared; list++)
      for (uint32_t k = 0; k < all[row].op[list]->len; k++)
        find_worker (log, all, row, list, k);
  }
  for (uint32_t row = 0; row < rows; row++)
    for (uint32_t list = 0; list < WEFT_N_GROUP + 4; list++)
      g_array_unref (all[row].op[list]);
  g_free (all);
}

static void
clear_work (void *work)
{
  g_free (((struct cuda_work *) work)->before);
}

cuda_log *
cuda_log_new (const recorded_cuda *device, weft_exec *x, gboolean shared, uint32_t first,
              uint32_t n)
{
  cuda_log *log = g_new0 (cuda_log, 1);
  uint32_t rows = x->actors->n;

  *log = (cuda_log){ .device = device, .x = x, .shared = shared, .first = first, .n = n };
  log->stream = g_hash_table_new (NULL, NULL);
  log->work = g_array_new (FALSE, FALSE, sizeof (struct cuda_work));
  g_array_set_clear_func (log->work, clear_work);
  log->first_work = g_new (uint32_t *, rows);
  log->last_work = g_new (uint32_t *, rows);
  log->base = g_malloc0_n (rows, sizeof *log->base);
  log->mailbox = g_new0 (uint8_t *, rows);
  log->mailbox_bytes = g_new0 (uint64_t, rows);
  for (uint32_t row = 0; row < rows; row++) {
    size_t bytes = (program_of (log, row)->n_op + 1) * sizeof (uint32_t);
    log->first_work[row] = g_malloc (bytes);
    log->last_work[row] = g_malloc (bytes);
    memset (log->first_work[row], 0xff, bytes);
    memset (log->last_work[row], 0xff, bytes);
  }
  find_streams (log);
  log->tail = g_new0 (uint32_t, log->n_stream + 1);
  run_clocks (log);
  find_workers (log);
  return log;
}

void
cuda_log_free (cuda_log *log)
{
  for (uint32_t row = 0; row < log->x->actors->n; row++) {
    g_free (log->first_work[row]);
    g_free (log->last_work[row]);
    g_free (log->worker_row[row]);
    g_free (log->worker_op[row]);
  }
  g_free (log->worker_row);
  g_free (log->worker_op);
  g_free (log->tail);
  g_free (log->first_work);
  g_free (log->last_work);
  g_free (log->base);
  g_free (log->mailbox);
  g_free (log->mailbox_bytes);
  g_array_unref (log->work);
  g_hash_table_unref (log->stream);
  g_free (log);
}

/* ------------------------------------------------------------------------- arenas */

/* Whether an arena is outside the memory plan: control data, scratch, or the buffer into which
 * REDUCE_SCATTER_V receives its terms (only if every rank has its own GPU). The first two are
 * small. */
static gboolean
is_beside (const cuda_log *log, const struct recorded_arena *a, uint32_t row)
{
  return a->pool == WEFT_POOL_DEVICE && (a->bytes <= 4096 || (!log->shared && a->device == row));
}

char *
cuda_log_arenas (cuda_log *log)
{
  const GArray *arenas = log->device->arena;
  uint32_t next = 0;

  for (uint32_t row = 0; row < log->x->actors->n; row++) {
    const struct weft_memory *memory = &log->x->plan->memory[log->x->actors->role[row]];
    for (int pool = 0; pool < WEFT_N_POOL; pool++) {
      if (memory->planned[pool] == 0)
        continue;
      const struct recorded_arena *a = &g_array_index (arenas, struct recorded_arena, next);
      if (next++ >= arenas->len || a->pool != (enum weft_pool) pool ||
          a->bytes != memory->planned[pool] || a->device != (log->shared ? 0 : row))
        return g_strdup_printf ("rank %u: no arena of the planned %" G_GUINT64_FORMAT
                                " bytes for pool %s",
                                row, memory->planned[pool], weft_pool_words[pool]);
      log->base[row][pool] = a->at;
    }
    const struct recorded_arena *mail = &g_array_index (arenas, struct recorded_arena, next++);
    if (next > arenas->len || mail->pool != WEFT_POOL_HOST)
      return g_strdup_printf ("rank %u: no mailbox", row);
    log->mailbox[row] = mail->at;
    log->mailbox_bytes[row] = mail->bytes;
    while (next < arenas->len &&
           is_beside (log, &g_array_index (arenas, struct recorded_arena, next), row))
      next++;
  }
  return next == arenas->len ? NULL : g_strdup ("an arena that nobody planned");
}

/* --------------------------------------------------------------------------- ops */

static uint8_t *
address_of (const cuda_log *log, uint32_t row, uint32_t buf)
{
  const weft_program *p = program_of (log, row);
  return log->base[row][p->buf[weft_buf_owner (p, buf)].pool] + weft_buf_address (p, buf);
}

/* Whether the bytes [at, at + bytes) belong to an operand of an op. */
static gboolean
is_operand (const cuda_log *log, uint32_t row, uint32_t op, const void *at, uint64_t bytes)
{
  const weft_program *p = program_of (log, row);

  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++) {
    uint32_t buf = p->uses[u].buf;
    if (buf == WEFT_NO_BUF)
      continue;
    const uint8_t *first = address_of (log, row, buf), *byte = at;
    if (byte >= first && byte + bytes <= first + p->buf[buf].bytes)
      return TRUE;
  }
  return FALSE;
}

static gboolean
is_mail (const cuda_log *log, uint32_t row, const void *at, uint64_t bytes)
{
  const uint8_t *byte = at;
  return byte >= log->mailbox[row] && byte + bytes <= log->mailbox[row] + log->mailbox_bytes[row];
}

struct wanted {
  const cuda_log *log;
  const struct recorded_kernel *found;
  uint32_t row, op, n;
  gboolean wrong;
};

static gboolean
has_operands (const struct weft_kernel *a, const struct weft_kernel *b)
{
  for (uint32_t i = 0; i < WEFT_MOST_OPERANDS; i++) {
    const struct weft_operand *x = &a->operand[i], *y = &b->operand[i];
    if (x->data != y->data || x->n != y->n || x->dtype != y->dtype ||
        x->accumulate != y->accumulate)
      return FALSE;
  }
  return TRUE;
}

/* Compares a recorded kernel call with the one that kernels/bind.h makes for the recorded arenas.
 * Every operand must lie inside a buffer of the op. */
static void
compare_kernel (void *user, const struct weft_kernel *k)
{
  struct wanted *w = user;
  const struct weft_kernel *found = w->found && w->n < w->found->n ? &w->found->k[w->n] : NULL;

  w->n++;
  w->wrong |= !found || found->kind != k->kind || found->decay != k->decay ||
              memcmp (found->shape.dim, k->shape.dim, sizeof k->shape.dim) ||
              !has_operands (found, k);
  for (uint32_t i = 0; i < WEFT_MOST_OPERANDS && !w->wrong; i++)
    w->wrong |= found->operand[i].data && found->kind != WEFT_OP_AMAX &&
                found->kind != WEFT_OP_QUANTISE &&
                !is_operand (w->log, w->row, w->op, found->operand[i].data,
                             found->operand[i].n * weft_dtype_bytes (found->operand[i].dtype));
}

static const struct cuda_work *
work_at (const cuda_log *log, uint32_t i)
{
  return &g_array_index (log->work, struct cuda_work, i);
}

static uint32_t
n_works (const cuda_log *log, uint32_t row, uint32_t op)
{
  uint32_t n = 0, first = log->first_work[row][op];

  for (uint32_t i = first; first != NONE && i <= log->last_work[row][op]; i++)
    n += work_at (log, i)->row == row && work_at (log, i)->op == op;
  return n;
}

/* Compares the kernels of an op with the recorded work. On the device all kernels of an op are one
 * work item; on the host each kernel is a work item. */
static gboolean
check_kernels (const cuda_log *log, weft_bind *bind, uint32_t row, uint32_t op)
{
  const weft_program *p = program_of (log, row);
  struct wanted w = { .log = log, .row = row, .op = op };
  uint32_t first = log->first_work[row][op], n = n_works (log, row, op);

  if (n > 0)
    w.found =
        &g_array_index (log->device->kernel, struct recorded_kernel, work_at (log, first)->at);
  weft_bind_kernels (bind, op, compare_kernel, &w);
  if (w.n == 0)
    return n == 0;
  if (p->op[op].lane == WEFT_LANE_HOST)
    return n == w.n && work_at (log, first)->kind == RECORDED_host;
  return n == 1 && work_at (log, first)->kind == RECORDED_kernel && w.n == w.found->n && !w.wrong;
}

static gboolean
check_copies (const cuda_log *log, uint32_t row, uint32_t op)
{
  const weft_program *p = program_of (log, row);
  enum weft_op_kind kind = p->op[op].kind;
  uint32_t uses = 0;
  gboolean mail = weft_op_info[kind].mailbox;
  uint64_t bytes = 0, wanted = 0;

  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses && mail; u++)
    if (p->uses[u].buf != WEFT_NO_BUF) {
      wanted += p->buf[p->uses[u].buf].bytes;
      uses++;
    }
  if (!mail)
    wanted = weft_op_shape (p, op)->dim[0] * weft_dtype_bytes (weft_op_shape (p, op)->dtype);
  if (n_works (log, row, op) != (mail ? uses : 1))
    return FALSE;
  for (uint32_t i = log->first_work[row][op]; i <= log->last_work[row][op]; i++) {
    const struct cuda_work *w = work_at (log, i);
    if (w->row != row || w->op != op)
      continue;
    const struct weft_gpu_copy *c =
        &g_array_index (log->device->copy, struct weft_gpu_copy, w->at);
    const void *here = kind == WEFT_OP_COPY_IN ? c->to : c->from;
    const void *there = kind == WEFT_OP_COPY_IN ? c->from : c->to;
    gboolean in = weft_op_enters_device (kind);
    if (c->way != (in ? WEFT_GPU_TO_DEVICE : WEFT_GPU_TO_HOST) ||
        !is_operand (log, row, op, here, c->bytes) ||
        !(mail ? is_mail (log, row, there, c->bytes) : is_operand (log, row, op, there, c->bytes)))
      return FALSE;
    bytes += c->bytes;
  }
  return bytes == wanted;
}

/* Checks a collective with row counts (op kinds ..._V). It must consist of sends and receives of
 * the counted rows. REDUCE_SCATTER_V receives into memory outside its operands, and then sums the
 * rows. */
static gboolean
check_counted (const cuda_log *log, uint32_t row, uint32_t op)
{
  gboolean sums = program_of (log, row)->op[op].kind == WEFT_OP_REDUCE_SCATTER_V;

  for (uint32_t i = log->first_work[row][op]; i != NONE && i <= log->last_work[row][op]; i++) {
    const struct cuda_work *w = work_at (log, i);
    if (w->row != row || w->op != op || w->kind == RECORDED_join)
      continue;
    const struct weft_gpu_transfer *t =
        &g_array_index (log->device->transfer, struct weft_gpu_transfer, w->at);
    if ((w->kind != RECORDED_send && w->kind != RECORDED_recv) || t->n == 0 ||
        (!(sums && w->kind == RECORDED_recv) &&
         !is_operand (log, row, op, t->data, t->n * weft_dtype_bytes (t->dtype))))
      return FALSE;
  }
  return TRUE;
}

/* Checks the calls of a communication op if every rank has its own GPU: a shift is two calls (send
 * and receive), every other op is one call. */
static gboolean
check_launched (const cuda_log *log, uint32_t row, uint32_t op)
{
  const weft_program *p = program_of (log, row);
  enum weft_op_kind kind = p->op[op].kind;
  uint32_t first = log->first_work[row][op], n = n_works (log, row, op);

  if (weft_mesh_group_size (&log->x->plan->mesh, p->op[op].group) == 1)
    return n == 0 || work_at (log, first)->kind == RECORDED_copy;
  if (kind != weft_op_even (kind))
    return check_counted (log, row, op);
  if (n != (kind == WEFT_OP_SHIFT ? 2 : 1))
    return FALSE;
  const struct cuda_work *w = work_at (log, first);
  if (w->kind == RECORDED_collective) {
    const struct weft_gpu_collective *c =
        &g_array_index (log->device->collective, struct weft_gpu_collective, w->at);
    uint64_t bytes = c->n * weft_dtype_bytes (c->dtype);
    return c->kind == kind && is_operand (log, row, op, c->from, bytes) &&
           is_operand (log, row, op, c->to, bytes);
  }
  const struct weft_gpu_transfer *t =
      &g_array_index (log->device->transfer, struct weft_gpu_transfer, w->at);
  return w->kind == (kind == WEFT_OP_RECV ? RECORDED_recv : RECORDED_send) &&
         is_operand (log, row, op, t->data, t->n * weft_dtype_bytes (t->dtype));
}

static gboolean
check_op (const cuda_log *log, weft_bind *bind, uint32_t row, uint32_t op)
{
  enum weft_op_class class = weft_op_info[program_of (log, row)->op[op].kind].class;

  if (class == WEFT_CLASS_COMPUTE)
    return check_kernels (log, bind, row, op);
  if (class == WEFT_CLASS_COPY)
    return check_copies (log, row, op);
  return log->shared || check_launched (log, row, op);
}

char *
cuda_log_ops (const cuda_log *log)
{
  for (uint32_t row = 0; row < log->x->actors->n; row++) {
    g_auto (weft_bind) bind = { 0 };
    weft_bind_init (&bind, log->x->plan, log->x->actors->rank[row]);
    memcpy (bind.arena, log->base[row], sizeof bind.arena);
    for (uint32_t op = 0; op < program_of (log, row)->n_op; op++) {
      if (check_op (log, &bind, row, op))
        continue;
      g_autofree char *name = cuda_log_name (log, row, op);
      return g_strdup_printf ("%s: %u works, not those of the op", name, n_works (log, row, op));
    }
  }
  return NULL;
}

/* ------------------------------------------------------------------------- order */

/* Finds the first and the last work item of an op. Returns FALSE if the op has none. */
static gboolean
works_of (const cuda_log *log, uint32_t row, uint32_t op, const struct cuda_work **first,
          const struct cuda_work **last)
{
  uint32_t worker = log->worker_row[row][op], its = log->worker_op[row][op];

  if (log->first_work[worker][its] == NONE)
    return FALSE;
  *first = work_at (log, log->first_work[worker][its]);
  *last = work_at (log, log->last_work[worker][its]);
  return TRUE;
}

static gboolean
comes_after (const struct cuda_work *then, const struct cuda_work *first)
{
  return then->before[first->stream] > first->seq;
}

/* Checks that an op runs after its predecessors in the plan. `before`: for each lane, the number of
 * ops of the lane that precede the op. Ops of a lane are ordered, so on each lane only the last
 * predecessor with a work item is checked. */
static char *
check_before (const cuda_log *log, uint32_t row, uint32_t op, const uint32_t *before)
{
  const weft_program *p = program_of (log, row);
  const struct cuda_work *mine, *last, *first, *its_last;

  if (!works_of (log, row, op, &mine, &last))
    return NULL;
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++) {
    uint32_t k = before[(size_t) op * WEFT_N_LANE + lane];
    while (k > 0 && !works_of (log, row, p->lane_ops[lane][k - 1], &first, &its_last))
      k--;
    /* Ops of one launch start together, so the plan's order between them needs no check. */
    if (k == 0 || its_last == last || comes_after (mine, its_last) ||
        (p->op[op].lane == lane && p->op[op].flags & WEFT_OP_GROUPED))
      continue;
    g_autofree char *a = cuda_log_name (log, row, p->lane_ops[lane][k - 1]),
                    *b = cuda_log_name (log, row, op);
    return g_strdup_printf ("%s is not ordered before %s", a, b);
  }
  return NULL;
}

static char *
check_tail (const cuda_log *log)
{
  for (uint32_t i = 0; i < log->work->len; i++) {
    const struct cuda_work *w = work_at (log, i);
    if (log->tail[w->stream] > w->seq)
      continue;
    g_autofree char *name = cuda_log_name (log, w->row, w->op);
    return g_strdup_printf ("the step ends before %s", name);
  }
  return NULL;
}

char *
cuda_log_order (const cuda_log *log)
{
  for (uint32_t row = 0; row < log->x->actors->n; row++) {
    const weft_program *p = program_of (log, row);
    g_autofree uint32_t *before = weft_program_order (p);
    for (uint32_t op = 0; op < p->n_op; op++) {
      char *wrong = check_before (log, row, op, before);
      if (wrong)
        return wrong;
    }
  }
  return check_tail (log);
}

static gboolean
has_work (const cuda_log *log, const struct recorded_call *c)
{
  return c->op == WEFT_NO_OP || log->last_work[c->row][c->op] != NONE;
}

gboolean
cuda_log_orders_work (const cuda_log *log, uint32_t wait)
{
  const struct recorded_call *last = recorded_call_at (log->device, wait);

  for (uint32_t i = wait; i-- > log->first;) {
    const struct recorded_call *c = recorded_call_at (log->device, i);
    if (c->kind == RECORDED_record && c->thing == last->thing)
      return has_work (log, c) && has_work (log, last);
  }
  return TRUE;
}

/* ------------------------------------------------------------------------- waits */

/* The replay of one rank's calls, as if it were alone. A wait for an event of another rank counts
 * as a work item of the waiting stream. Calls of other ranks are ignored. */
struct alone {
  const cuda_log *log;
  /* n: number of streams + 1. The last column of a clock stands for the begin of the step. */
  uint32_t row, n;
  uint32_t *clock; /* vector clocks of all streams: [stream][column] */
  /* event -> copy of the stream's clock at the record of the event; only events of this rank */
  GHashTable *event;
  const struct recorded_thing *start;
  /* [stream]: clocks of the waits that came after the last call of another kind on the stream */
  GPtrArray **pending;
  /* [stream]: the wait calls (struct recorded_call) whose clocks are in `pending` */
  GPtrArray **about;
  GHashTable *waited; /* events that a stream or a host has waited for */
};

static gboolean
covers (const uint32_t *a, const uint32_t *b, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++)
    if (a[i] < b[i])
      return FALSE;
  return TRUE;
}

/* Checks consecutive waits of a stream. Each wait must be necessary: the stream must not already be
 * ordered after the event, by its own order or by the other waits. */
static char *
flush (struct alone *a, uint32_t s)
{
  uint32_t *mine = a->clock + (size_t) s * a->n;
  GPtrArray *pending = a->pending[s];

  for (uint32_t i = 0; i < pending->len; i++) {
    g_autofree uint32_t *rest = g_memdup2 (mine, a->n * sizeof *mine);
    for (uint32_t j = 0; j < pending->len; j++)
      if (j != i)
        merge (rest, g_ptr_array_index (pending, j), a->n);
    if (!covers (rest, g_ptr_array_index (pending, i), a->n))
      continue;
    const struct recorded_call *c = g_ptr_array_index (a->about[s], i);
    g_autofree char *name = cuda_log_name (a->log, c->row, c->op);
    return g_strdup_printf ("%s: wait %u of %u is superfluous", name, i + 1, pending->len);
  }
  for (uint32_t i = 0; i < pending->len; i++)
    merge (mine, g_ptr_array_index (pending, i), a->n);
  g_ptr_array_set_size (pending, 0);
  g_ptr_array_set_size (a->about[s], 0);
  return NULL;
}

static char *
look_at_wait (struct alone *a, const struct recorded_call *c, uint32_t s)
{
  uint32_t *known = g_hash_table_lookup (a->event, c->thing);
  uint32_t *mine = a->clock + (size_t) s * a->n;

  g_hash_table_add (a->waited, (void *) (uintptr_t) c->thing);
  if (known) {
    g_ptr_array_add (a->pending[s], known);
    g_ptr_array_add (a->about[s], (void *) (uintptr_t) c);
    return NULL;
  }
  char *wrong = flush (a, s);
  mine[s]++; /* a wait for another rank counts as a work item */
  g_hash_table_insert (a->event, (void *) (uintptr_t) c->thing,
                       g_memdup2 (mine, a->n * sizeof *mine));
  return wrong;
}

static char *
look_at_call (struct alone *a, const struct recorded_call *c)
{
  uint32_t s = cuda_log_stream (a->log, c);
  uint32_t *mine = a->clock + (size_t) s * a->n;

  if (c->kind == RECORDED_wait)
    return look_at_wait (a, c, s);
  char *wrong = flush (a, s);
  if (c->kind == RECORDED_record)
    g_hash_table_insert (a->event, (void *) (uintptr_t) c->thing,
                         g_memdup2 (mine, a->n * sizeof *mine));
  else
    mine[s]++;
  return wrong;
}

static char *
look_at_row (struct alone *a)
{
  char *wrong = NULL;

  for (uint32_t i = 0; i < a->log->n && !wrong; i++) {
    const struct recorded_call *c = cuda_log_call (a->log, i);
    gboolean start = !a->start && c->kind == RECORDED_record && c->op == WEFT_NO_OP &&
                     (a->log->shared || c->row == a->row);
    if (start)
      a->start = c->thing;
    /* If all ranks share a GPU, the first rank's event record begins the step of every rank. */
    if (start && c->row != a->row) {
      uint32_t *known = g_new0 (uint32_t, a->n);
      known[a->n - 1] = 1;
      g_hash_table_insert (a->event, (void *) (uintptr_t) c->thing, known);
    }
    if (c->stream && c->row == a->row)
      wrong = look_at_call (a, c);
  }
  return wrong;
}

static char *
look_at_waits (const cuda_log *log, uint32_t row, GHashTable *waited)
{
  struct alone a = { .log = log, .row = row, .n = log->n_stream + 1, .waited = waited };

  a.clock = g_new0 (uint32_t, (size_t) a.n * a.n);
  a.event = g_hash_table_new_full (NULL, NULL, NULL, g_free);
  a.pending = g_new0 (GPtrArray *, a.n);
  a.about = g_new0 (GPtrArray *, a.n);
  for (uint32_t s = 0; s < a.n; s++) {
    a.pending[s] = g_ptr_array_new ();
    a.about[s] = g_ptr_array_new ();
  }
  char *wrong = look_at_row (&a);
  for (uint32_t s = 0; s < a.n; s++) {
    g_ptr_array_unref (a.pending[s]);
    g_ptr_array_unref (a.about[s]);
  }
  g_free (a.pending);
  g_free (a.about);
  g_free (a.clock);
  g_hash_table_unref (a.event);
  return wrong;
}

/* Checks that every record of an event has a wait, except the record at the end of the step (one
 * per GPU). */
static char *
look_at_records (const cuda_log *log, GHashTable *waited)
{
  uint32_t idle = 0;

  for (uint32_t i = 0; i < log->n; i++)
    /* At a query of an event, the host waits for row counts. */
    if (cuda_log_call (log, i)->kind == RECORDED_query)
      g_hash_table_add (waited, (void *) (uintptr_t) cuda_log_call (log, i)->thing);
  for (uint32_t i = 0; i < log->n; i++) {
    const struct recorded_call *c = cuda_log_call (log, i);
    idle +=
        c->kind == RECORDED_record && !c->thing->flag && !g_hash_table_contains (waited, c->thing);
  }
  uint32_t wanted = log->shared ? 1 : log->x->actors->n;
  return idle == wanted ? NULL
                        : g_strdup_printf ("nobody waits for %u events, wanted %u", idle, wanted);
}

char *
cuda_log_waits (const cuda_log *log)
{
  g_autoptr (GHashTable) waited = g_hash_table_new (NULL, NULL);

  for (uint32_t row = 0; row < log->x->actors->n; row++) {
    char *wrong = look_at_waits (log, row, waited);
    if (wrong)
      return wrong;
  }
  return look_at_records (log, waited);
}

/* Whether a call queries an event for an op with row counts. Only for these ops does the host wait
 * inside a step. */
static gboolean
may_look (const cuda_log *log, const struct recorded_call *c)
{
  if (c->kind != RECORDED_query || c->op == WEFT_NO_OP)
    return FALSE;
  enum weft_op_kind kind = program_of (log, c->row)->op[c->op].kind;
  return kind != weft_op_even (kind);
}

char *
cuda_log_quiet (const cuda_log *log)
{
  for (uint32_t i = 0; i < log->n; i++) {
    const struct recorded_call *c = cuda_log_call (log, i);
    if (!recorded_is_work (c->kind) && c->kind != RECORDED_record && c->kind != RECORDED_wait &&
        c->kind != RECORDED_choose && c->kind != RECORDED_mark && c->kind != RECORDED_group_start &&
        c->kind != RECORDED_group_end && c->kind != RECORDED_comm_ready && !may_look (log, c))
      return g_strdup_printf ("%s inside a step", recorded_words[c->kind]);
    /* A call may use only streams and events of the GPU that the calling thread has chosen. */
    if (c->stream && (c->device != c->stream->device ||
                      (c->kind == RECORDED_record && c->thing->device != c->device))) {
      g_autofree char *name = cuda_log_name (log, c->row, c->op);
      return g_strdup_printf ("%s: %s is of another GPU", name, recorded_words[c->kind]);
    }
  }
  return NULL;
}
