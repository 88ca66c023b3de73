#include "exec_cpu/exec_cpu.h"
#include "core/base/error.h"
#include "exec_cpu/arena.h"
#include "exec_cpu/collectives.h"
#include "exec_cpu/lanes.h"
#include "exec_cpu/machine.h"
#include "kernels/team.h"
#include <string.h>

/* ------------------------------------------------------------------ communicators */

static struct cpu_comm *
find_comm (struct cpu_machine *m, GHashTable *known, uint32_t rank, enum weft_group_kind kind)
{
  struct weft_group group = weft_mesh_group (&m->base.plan->mesh, rank, kind);
  uint64_t key = (uint64_t) kind << 32 | group.first;
  struct cpu_comm *c = g_hash_table_lookup (known, &key);

  if (!c) {
    c = &m->comm[m->n_comm++];
    c->group = group;
    c->n = weft_group_size (&group);
    c->post = g_new0 (struct cpu_post, c->n);
    g_hash_table_insert (known, g_memdup2 (&key, sizeof key), c);
  }
  return c;
}

static struct cpu_moves *
make_moves (const weft_plan *plan, const struct weft_op *row, const struct weft_group *group)
{
  struct cpu_moves *moves = g_new0 (struct cpu_moves, 1);
  gboolean canonical = plan->job.train.reduction_order == WEFT_ORDER_CANONICAL;
  const weft_algo *data = weft_algorithms_find (plan->algorithms, group, row->kind);

  moves->n = weft_group_size (group);
  moves->n_pieces = data ? data->n_chunks : moves->n;
  moves->n_slots = data ? data->n_slots : 0;
  moves->list = data ? weft_coll_data_moves (row, data)
                     : weft_coll_moves (row, moves->n,
                                        canonical ? WEFT_COLL_CANONICAL : WEFT_COLL_QUICKEST);
  for (uint32_t i = 0; i < moves->list->len; i++)
    moves->n_rounds =
        MAX (moves->n_rounds, g_array_index (moves->list, struct weft_move, i).round + 1);
  return moves;
}

static void
index_moves (struct cpu_moves *moves)
{
  uint32_t cells = moves->n_rounds * moves->n;

  moves->first = g_new0 (uint32_t, cells + 1);
  for (uint32_t i = 0; i < moves->list->len; i++) {
    const struct weft_move *move = &g_array_index (moves->list, struct weft_move, i);
    moves->first[move->round * moves->n + move->to + 1]++;
  }
  for (uint32_t c = 0; c < cells; c++)
    moves->first[c + 1] += moves->first[c];
}

/* Computes the moves of a collective of a communicator, and the room for messages that it needs. */
static void
add_moves (struct cpu_machine *m, const weft_program *p, uint32_t op, struct cpu_comm *c)
{
  const struct weft_op *row = &p->op[op];
  uint64_t key = cpu_moves_key (row, c->n);
  struct cpu_moves *moves = g_hash_table_lookup (m->moves, &key);

  if (!moves) {
    moves = make_moves (m->base.plan, row, &c->group);
    index_moves (moves);
    g_hash_table_insert (m->moves, g_memdup2 (&key, sizeof key), moves);
  }
  uint64_t bytes = moves->n_slots * cpu_moves_slot_bytes (moves, weft_op_shape (p, op));
  c->slot_bytes = MAX (c->slot_bytes, bytes);
}

static void
open_slots (struct cpu_comm *c)
{
  if (c->slot_bytes == 0)
    return;
  c->slots = g_new (uint8_t *, c->n);
  for (uint32_t i = 0; i < c->n; i++)
    c->slots[i] = g_malloc (c->slot_bytes);
}

static void
close_comm (struct cpu_comm *c)
{
  for (uint32_t i = 0; c->slots && i < c->n; i++)
    g_free (c->slots[i]);
  g_free (c->slots);
  g_free (c->post);
}

/* Opens the communicators, and computes the moves (point-to-point copies) of all collectives. */
static void
open_collectives (struct cpu_machine *m)
{
  g_autoptr (GHashTable) known = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, NULL);

  m->moves =
      g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, (GDestroyNotify) cpu_moves_free);
  m->comm = g_new0 (struct cpu_comm, (size_t) m->n * WEFT_N_GROUP);
  m->channel = g_new0 (struct cpu_channel, 2 * (size_t) m->n);
  for (uint32_t i = 0; i < m->n; i++) {
    struct cpu_rank *r = &m->rank[i];
    for (uint32_t op = 0; op < r->p->n_op; op++) {
      const struct weft_op *row = &r->p->op[op];
      if (weft_op_info[row->kind].class != WEFT_CLASS_COLLECTIVE)
        continue;
      if (!r->comm[row->group])
        r->comm[row->group] = find_comm (m, known, r->rank, row->group);
      add_moves (m, r->p, op, r->comm[row->group]);
    }
  }
  for (uint32_t i = 0; i < m->n_comm; i++)
    open_slots (&m->comm[i]);
}

static void
open_channels (struct cpu_machine *m)
{
  for (uint32_t i = 0; i < m->n; i++)
    for (uint32_t d = 0; d < 2; d++) {
      uint32_t peer = weft_mesh_beside (&m->base.plan->mesh, i, d ? -1 : 1);
      if (peer == WEFT_NO_RANK)
        continue;
      m->channel[2 * i + d].to = peer;
      m->rank[i].out[d] = &m->channel[2 * i + d];
      m->rank[i].in[d] = &m->channel[2 * peer + !d];
    }
}

/* ----------------------------------------------------------------------- contract */

static void
close_rank (struct cpu_machine *m, struct cpu_rank *r)
{
  weft_team_free (r->team);
  cpu_arena_close (r, &m->base.plan->memory[r->p->role]);
  g_free (r->waits);
  g_free (r->first_wait);
  g_free (r->end_wait);
  weft_bind_clear (&r->bind);
}

static void
end_threads (struct cpu_machine *m)
{
  pthread_mutex_lock (&m->lock);
  m->closing = TRUE;
  pthread_cond_broadcast (&m->work);
  pthread_mutex_unlock (&m->lock);
  for (uint32_t i = 0; i < m->n_thread; i++)
    pthread_join (m->thread[i], NULL);
  g_free (m->thread);
  g_free (m->ready);
}

static void
cpu_close (weft_exec *x)
{
  struct cpu_machine *m = (struct cpu_machine *) x;

  if (!m)
    return;
  end_threads (m);
  for (uint32_t i = 0; i < m->n; i++)
    close_rank (m, &m->rank[i]);
  for (uint32_t i = 0; i < m->n_comm; i++)
    close_comm (&m->comm[i]);
  g_clear_pointer (&m->moves, g_hash_table_unref);
  g_free (m->comm);
  g_free (m->channel);
  g_free (m->rank);
  g_free (m->base.metrics);
  g_free (m->base.allocated);
  g_free (m->base.allocated_host);
  weft_actors_free (m->base.actors);
  g_clear_pointer (&m->t, weft_timeline_free);
  pthread_mutex_destroy (&m->lock);
  pthread_cond_destroy (&m->work);
  pthread_cond_destroy (&m->quiet);
  g_free (m);
}

static void
init_rank (struct cpu_machine *m, uint32_t row)
{
  const weft_plan *plan = m->base.plan;
  struct cpu_rank *r = &m->rank[row];
  uint32_t rank = m->base.actors->rank[row];

  r->m = m;
  r->p = plan->role[m->base.actors->role[row]];
  r->row = row;
  r->rank = rank;
  weft_bind_init (&r->bind, plan, rank);
  r->bind.control = m->options.control;
  r->waits = g_new (uint32_t, r->p->op[r->p->n_op].deps + 1);
  r->first_wait = g_new0 (uint32_t, r->p->n_op + 1);
  r->end_wait = g_new0 (uint32_t, r->p->n_op + 1);
}

static gboolean
open_rank (struct cpu_machine *m, struct cpu_rank *r, GError **error)
{
  const struct weft_memory *memory = &m->base.plan->memory[r->p->role];

  if (!cpu_arena_open (r, memory, error))
    return FALSE;
  m->base.allocated[r->row] =
      memory->planned[WEFT_POOL_DEVICE] + memory->planned[WEFT_POOL_SYMMETRIC];
  m->base.allocated_host[r->row] = memory->planned[WEFT_POOL_HOST];
  if (m->own.threads > 1)
    r->team = weft_team_new ((uint32_t) m->own.threads, error);
  return m->own.threads <= 1 || r->team;
}

/* Starts one thread per processor, but at least two, so that ranks of a collective run on different
 * threads, and no more than ranks.  The threads sleep until the first step. */
static gboolean
start_threads (struct cpu_machine *m, GError **error)
{
  uint32_t n = MIN (m->n, MAX (2, g_get_num_processors ()));

  m->ready = g_new (uint32_t, m->n);
  for (m->thread = g_new (pthread_t, n); m->n_thread < n; m->n_thread++) {
    int failed = pthread_create (&m->thread[m->n_thread], NULL, cpu_thread_main, m);
    if (failed)
      return weft_run_error (error, "no thread %u of %u for the ranks: %s", m->n_thread + 1, n,
                             g_strerror (failed));
  }
  return TRUE;
}

static const struct weft_field fields[] = { WEFT_CPU_OPTION_LIST (WEFT_OPTION_FIELD) };
static const struct weft_table table = { "option of executor cpu", fields, G_N_ELEMENTS (fields) };

static struct cpu_machine *
make_machine (const weft_plan *plan, const struct weft_exec_options *options)
{
  struct cpu_machine *m = g_new0 (struct cpu_machine, 1);

  m->base.ops = &weft_exec_cpu;
  m->base.plan = plan;
  m->base.actors = weft_actors_new (&plan->fabric, &plan->mesh, FALSE);
  m->options = *options;
  weft_own_options_read (&options->own, &table, m->own.at);
  m->n = m->base.actors->n;
  m->rank = g_new0 (struct cpu_rank, m->n);
  m->base.metrics = g_new0 (struct weft_metrics, m->n);
  m->base.allocated = g_new0 (uint64_t, m->n);
  m->base.allocated_host = g_new0 (uint64_t, m->n);
  pthread_mutex_init (&m->lock, NULL);
  pthread_cond_init (&m->work, NULL);
  pthread_cond_init (&m->quiet, NULL);
  for (uint32_t i = 0; i < m->n; i++)
    init_rank (m, i);
  return m;
}

static weft_exec *
cpu_open (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  struct cpu_machine *m = make_machine (plan, options);
  gboolean ok = weft_bind_check (plan, m->base.ops->name, error) &&
                weft_exec_check_size (plan, m->base.actors, error);

  for (uint32_t i = 0; ok && i < m->n; i++)
    ok = open_rank (m, &m->rank[i], error);
  if (ok) {
    open_collectives (m);
    open_channels (m);
  }
  m->base.fresh = !options->memory;
  ok = ok && (m->own.stress || start_threads (m, error));
  if (!ok) {
    cpu_close (&m->base);
    return NULL;
  }
  return &m->base;
}

static gboolean
cpu_wait (weft_exec *x, uint32_t row, enum weft_lane lane, uint32_t op, GError **error)
{
  struct cpu_rank *r = &((struct cpu_machine *) x)->rank[row];

  (void) lane, (void) error;
  r->waits[r->n_waits++] = op;
  return TRUE;
}

static gboolean
cpu_issue (weft_exec *x, uint32_t row, uint32_t op, GError **error)
{
  struct cpu_machine *m = (struct cpu_machine *) x;
  struct cpu_rank *r = &m->rank[row];
  struct cpu_lane *l = &r->lane[r->p->op[op].lane];

  (void) error;
  g_assert (r->p->lane_ops[r->p->op[op].lane][l->issued] == op);
  l->issued++;
  r->first_wait[op] = r->n_issued_waits;
  r->end_wait[op] = r->n_issued_waits = r->n_waits;
  m->issued = TRUE;
  return TRUE;
}

static void
start_step (struct cpu_machine *m)
{
  m->t = weft_timeline_new (m->base.plan, m->base.actors, m->base.ops->name);
  for (uint32_t i = 0; i < m->n; i++)
    cpu_arena_start (&m->rank[i]);
  m->start = cpu_clock ();
}

static gboolean
cpu_run (weft_exec *x, GError **error)
{
  struct cpu_machine *m = (struct cpu_machine *) x;

  if (!m->t)
    start_step (m);
  if (!m->issued)
    return TRUE;
  m->issued = FALSE;
  return cpu_run_issued (m, error);
}

static weft_timeline *
cpu_drain (weft_exec *x, GError **error)
{
  struct cpu_machine *m = (struct cpu_machine *) x;
  gboolean ok = cpu_run (x, error);
  g_autoptr (weft_timeline) t = g_steal_pointer (&m->t);

  t->wall_seconds = cpu_now (m);
  for (uint32_t i = 0; i < m->n; i++) {
    memset (m->rank[i].lane, 0, sizeof m->rank[i].lane);
    m->rank[i].n_waits = m->rank[i].n_issued_waits = 0;
  }
  if (!ok)
    return NULL;
  weft_timeline_finish (t, x->plan);
  return g_steal_pointer (&t);
}

static void
cpu_read (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n, void *out)
{
  memcpy (out, cpu_arena_at (&((struct cpu_machine *) x)->rank[row], buf) + offset, n);
}

static void
cpu_write (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n, const void *in)
{
  uint8_t *to = cpu_arena_at (&((struct cpu_machine *) x)->rank[row], buf) + offset;

  if (to != in)
    memcpy (to, in, n);
}

static void *
cpu_staging (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n)
{
  (void) n;
  return cpu_arena_at (&((struct cpu_machine *) x)->rank[row], buf) + offset;
}

static void *
cpu_at (weft_exec *x, uint32_t row, uint32_t buf)
{
  return cpu_arena_at (&((struct cpu_machine *) x)->rank[row], buf);
}

static char *
cpu_machine_name (void)
{
  g_autofree char *text = NULL;
  g_autoptr (GRegex) name = g_regex_new ("^model name\\s*:\\s*(.*)$", G_REGEX_MULTILINE, 0, NULL);
  g_autoptr (GMatchInfo) match = NULL;

  if (!g_file_get_contents ("/proc/cpuinfo", &text, NULL, NULL) ||
      !g_regex_match (name, text, 0, &match))
    return g_strdup ("an unknown processor");
  return g_match_info_fetch (match, 1);
}

const struct weft_exec_ops weft_exec_cpu = {
  .name = "cpu",
  .doc = "real numbers: ranks run on threads of this machine",
  .flags = WEFT_EXEC_TIMES | WEFT_EXEC_NUMBERS | WEFT_EXEC_HOST,
  .options = &table,
  .open = cpu_open,
  .wait = cpu_wait,
  .issue = cpu_issue,
  .run = cpu_run,
  .drain = cpu_drain,
  .close = cpu_close,
  .read = cpu_read,
  .write = cpu_write,
  .staging = cpu_staging,
  .at = cpu_at,
  .machine_name = cpu_machine_name,
};
