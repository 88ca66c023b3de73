/* Communicators of ranks with a GPU each: one of all ranks, from which one is split for each group
 * in which ops of some role communicate.
 *
 * Operations of one communicator run in the order in which they are enqueued, on any streams.
 * Therefore each communicator is used on one stream only.  Transfers that are part of a launch use
 * the communicator of all stages.  Transfers that are posted by themselves may overtake each other;
 * for them, two neighbouring stages have one communicator for each direction.
 *
 * One thread opens the communicators of all ranks of this process, in one group.  The calls return
 * at once; the thread then waits until the communicators are ready, a time limit has passed, or
 * another process has ended. */
#include "exec_gpu/comms.h"
#include "core/base/error.h"
#include "exec_gpu/comm.h"
#include "exec_gpu/watchdog.h"
#include "launch/rendezvous.h"
#include <string.h>

static gboolean
role_talks (const struct gpu_machine *m, const weft_program *p, enum weft_group_kind kind)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (weft_op_is_comm (p->op[op].kind) && p->op[op].group == kind &&
        !gpu_comm_is_pair (m, &p->op[op]))
      return TRUE;
  return FALSE;
}

/* Whether ops of some pipeline stage use a communicator of this kind of group. A group of one rank
 * needs no communicator. */
static gboolean
anybody_talks (const struct gpu_machine *m, enum weft_group_kind kind)
{
  if (weft_mesh_group_size (&m->base.plan->mesh, kind) == 1)
    return FALSE;
  for (uint32_t role = 0; role < m->base.plan->n_roles; role++)
    if (role_talks (m, m->base.plan->role[role], kind))
      return TRUE;
  return FALSE;
}

static gboolean
keep (struct gpu_machine *m, weft_gpu_comm *comm)
{
  if (comm)
    g_ptr_array_add (m->comm, comm);
  return TRUE;
}

/* Number of SMs that the communicator of a group requests: the largest number that the plan assigns
 * to any op of the group; 0 if the plan assigns none. The ops of all stages count, because all
 * members of a communicator must request the same number. */
static uint32_t
sms_of (const struct gpu_rank *r, enum weft_group_kind kind)
{
  const weft_plan *plan = r->m->base.plan;
  struct weft_group group = weft_mesh_group (&plan->mesh, r->rank, kind);
  struct weft_coll_shape shape;
  uint32_t most = 0;

  weft_coll_shape_outline (&shape, &plan->fabric, &group);
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    const weft_program *p = plan->role[role];
    for (uint32_t op = 0; op < p->n_op; op++)
      if (weft_op_is_comm (p->op[op].kind) && p->op[op].group == kind)
        most = MAX (most, weft_plan_sms (plan, p, op, &shape));
  }
  return most;
}

/* The id of the world communicator: the first process creates it and sends it to the others. */
static gboolean
find_id (struct gpu_machine *m, struct weft_gpu_id *id, GError **error)
{
  static const char key[] = "the id of a communicator of all ranks";
  struct weft_rendezvous *peers = m->options.peers;

  if (m->first == 0 && !gpu_ok (m, GPU_CALL (m, comm_id, id), error, "a communicator of all ranks"))
    return FALSE;
  if (!peers)
    return TRUE;
  g_autoptr (GBytes) mine = m->first == 0 ? g_bytes_new (id, sizeof *id) : NULL;
  if (mine)
    return weft_rendezvous_set (peers, key, mine, error);
  g_autoptr (GBytes) theirs = weft_rendezvous_get (peers, key, error);
  if (theirs && g_bytes_get_size (theirs) != sizeof *id)
    return weft_run_error (error, "%s: found %" G_GSIZE_FORMAT " bytes, wanted %" G_GSIZE_FORMAT,
                           key, g_bytes_get_size (theirs), sizeof *id);
  if (theirs)
    memcpy (id, g_bytes_get_data (theirs, NULL), sizeof *id);
  return theirs != NULL;
}

static gboolean
open_world (struct gpu_machine *m, const struct weft_gpu_id *id, GError **error)
{
  for (uint32_t row = m->first; row < m->first + m->n_here; row++) {
    struct gpu_rank *r = &m->rank[row];
    struct weft_gpu_member member = {
      .id = id, .n = m->n, .rank = r->rank, .most_ctas = sms_of (r, WEFT_GROUP_WORLD)
    };
    if (!gpu_choose (r, error) ||
        !gpu_ok (m, GPU_CALL (m, comm_open, &member, &r->comm[WEFT_GROUP_WORLD]), error,
                 "rank %u: a communicator of all ranks", r->rank))
      return FALSE;
    keep (m, r->comm[WEFT_GROUP_WORLD]);
  }
  return TRUE;
}

static gboolean
split (struct gpu_rank *r, int color, const struct weft_gpu_member *member, weft_gpu_comm **out,
       GError **error)
{
  return gpu_choose (r, error) &&
         gpu_ok (r->m, GPU_CALL (r->m, comm_split, r->comm[WEFT_GROUP_WORLD], color, member, out),
                 error, "rank %u: a communicator of some ranks", r->rank) &&
         keep (r->m, *out);
}

/* Creates the communicator of a rank's group by a split of the communicator of all ranks. The color
 * of a group is its first rank. */
static gboolean
split_group (struct gpu_rank *r, enum weft_group_kind kind, GError **error)
{
  struct weft_group group = weft_mesh_group (&r->m->base.plan->mesh, r->rank, kind);
  gboolean talks = role_talks (r->m, r->p, kind);
  struct weft_gpu_member member = { .n = weft_group_size (&group),
                                    .rank = talks ? weft_group_index (&group, r->rank) : 0,
                                    .most_ctas = talks ? sms_of (r, kind) : 0 };

  return split (r, talks ? (int) group.first : -1, &member, &r->comm[kind], error);
}

/* In which of three rounds the communicator between a stage and the next one is opened. A rank has
 * two neighbouring stages but can have only one color in a split. Round 0 opens the pairs whose
 * earlier stage is even; round 1 those whose earlier stage is odd; round 2 the pair of the last and
 * the first stage. */
static uint32_t
turn_of (const struct weft_mesh *mesh, uint32_t earlier)
{
  uint32_t stage = weft_mesh_stage (mesh, earlier);
  return stage == mesh->pp - 1 ? 2 : stage % 2;
}

static gboolean
split_pair (struct gpu_rank *r, uint32_t turn, gboolean back, GError **error)
{
  const struct weft_mesh *mesh = &r->m->base.plan->mesh;
  uint32_t next = weft_mesh_beside (mesh, r->rank, 1),
           previous = weft_mesh_beside (mesh, r->rank, -1);
  gboolean earlier = next != WEFT_NO_RANK && turn_of (mesh, r->rank) == turn;
  gboolean later = previous != WEFT_NO_RANK && turn_of (mesh, previous) == turn;
  struct weft_gpu_member member = { .n = 2,
                                    .rank = !earlier,
                                    .most_ctas = sms_of (r, WEFT_GROUP_PP) };
  weft_gpu_comm *none = NULL;

  return split (r,
                earlier ? (int) r->rank
                : later ? (int) previous
                        : -1,
                &member,
                earlier ? &r->pair[0][back]
                : later ? &r->pair[1][back]
                        : &none,
                error);
}

static gboolean
split_groups (struct gpu_machine *m, enum weft_group_kind kind, GError **error)
{
  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    if (!split_group (&m->rank[row], kind, error))
      return FALSE;
  return TRUE;
}

static gboolean
split_pairs (struct gpu_machine *m, uint32_t turn, gboolean back, GError **error)
{
  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    if (!split_pair (&m->rank[row], turn, back, error))
      return FALSE;
  return TRUE;
}

static gboolean
uses_window (const struct gpu_rank *r, uint32_t op)
{
  for (uint32_t u = r->p->op[op].uses; u < r->p->op[op + 1].uses; u++)
    if (r->p->uses[u].buf != WEFT_NO_BUF &&
        r->p->buf[weft_buf_owner (r->p, r->p->uses[u].buf)].pool == WEFT_POOL_SYMMETRIC)
      return TRUE;
  return FALSE;
}

/* Whether all members of a group belong to one stage. They then run the same program, which fulfils
 * NCCL's conditions for windows: equal sizes, equal offsets, and the same order of opening. Members
 * of several stages may violate them. */
static gboolean
is_of_one_stage (const struct gpu_rank *r, enum weft_group_kind kind)
{
  const struct weft_mesh *mesh = &r->m->base.plan->mesh;
  struct weft_group group = weft_mesh_group (mesh, r->rank, kind);

  for (uint32_t i = 0; i < weft_group_size (&group); i++)
    if (weft_mesh_stage (mesh, weft_group_rank (&group, i)) != weft_mesh_stage (mesh, r->rank))
      return FALSE;
  return TRUE;
}

static gboolean
open_window (struct gpu_rank *r, weft_gpu_comm *comm, GError **error)
{
  struct gpu_window window = { .comm = comm };
  uint64_t bytes = r->m->base.plan->memory[r->p->role].planned[WEFT_POOL_SYMMETRIC];

  for (uint32_t i = 0; i < r->m->window->len; i++)
    if (g_array_index (r->m->window, struct gpu_window, i).comm == comm)
      return TRUE;
  if (!gpu_choose (r, error) ||
      !gpu_ok (r->m,
               GPU_CALL (r->m, window_open, comm, r->bind.arena[WEFT_POOL_SYMMETRIC], bytes,
                         !r->m->base.plan->job.strategy.disable_symmetric_registration,
                         &window.window),
               error, "rank %u: a window of its symmetric memory", r->rank))
    return FALSE;
  g_array_append_val (r->m->window, window);
  return TRUE;
}

/* Registers the symmetric pool with every communicator that uses buffers of the pool. */
static gboolean
open_windows (struct gpu_machine *m, GError **error)
{
  /* Without symmetric registration, each member registers its memory independently, so members may
   * belong to different stages. */
  gboolean any = m->base.plan->job.strategy.disable_symmetric_registration;

  for (uint32_t row = m->first; row < m->first + m->n_here; row++) {
    struct gpu_rank *r = &m->rank[row];
    for (uint32_t op = 0; op < r->p->n_op; op++)
      if (gpu_comm_of (r, &r->p->op[op]) && uses_window (r, op) &&
          weft_op_info[r->p->op[op].kind].class == WEFT_CLASS_COLLECTIVE &&
          (any || is_of_one_stage (r, r->p->op[op].group)) &&
          !open_window (r, gpu_comm_of (r, &r->p->op[op]), error))
        return FALSE;
  }
  return TRUE;
}

static gboolean
start (struct gpu_machine *m, GError **error)
{
  return gpu_ok (m, GPU_CALL (m, group_start), error, "communicators");
}

/* Time limit in seconds for opening or closing communicators: the time limit of the rendezvous. A
 * single process has no rendezvous and uses the deadline of a step. */
static double
patience (const struct gpu_machine *m)
{
  return m->options.peers ? weft_rendezvous_place (m->options.peers)->seconds : m->base.deadline;
}

static gboolean
settle (struct gpu_machine *m, GError **error)
{
  struct gpu_watchdog watchdog = { .what = "opening or closing communicators",
                                   .seconds = patience (m) };

  m->since = g_get_monotonic_time ();
  for (uint32_t i = 0; i < m->comm->len; i++)
    if (!gpu_watchdog_wait_comm (m, &watchdog, g_ptr_array_index (m->comm, i), error))
      return FALSE;
  return TRUE;
}

/* Ends a group of calls, even after an error in it (`ok` FALSE). Then waits until all communicators
 * are ready. */
static gboolean
end (struct gpu_machine *m, gboolean ok, GError **error)
{
  const char *said = GPU_CALL (m, group_end);
  return ok && gpu_ok (m, said, error, "communicators") && settle (m, error);
}

static gboolean
has_apart (const struct gpu_machine *m)
{
  for (uint32_t role = 0; role < m->base.plan->n_roles; role++)
    if (m->base.plan->role[role]->lane_n[WEFT_LANE_PP_BACK])
      return TRUE;
  return FALSE;
}

/* ----------------------------------------------------------------------- first transfers
 *
 * NCCL connects two members when they first send to each other; inside this call, the host of the
 * first member waits for the other member.  Hosts that post transfers one by one, each in the order
 * of its own schedule, could therefore wait for each other in a ring.  Before the first step, every
 * pair that will communicate exchanges a byte in both directions, all pairs in one launch. */

struct pair {
  struct gpu_rank *r;
  weft_gpu_comm *comm;
  uint32_t peer;
  weft_gpu_event *event; /* recorded on the stream after both bytes were exchanged */
};

static gboolean
knows (const GArray *pairs, const struct pair *pair)
{
  for (guint i = 0; i < pairs->len; i++) {
    const struct pair *known = &g_array_index (pairs, struct pair, i);
    if (known->r == pair->r && known->comm == pair->comm && known->peer == pair->peer)
      return TRUE;
  }
  return FALSE;
}

static gboolean
find_pairs (struct gpu_rank *r, GArray *pairs, GError **error)
{
  for (uint32_t op = 0; op < r->p->n_op; op++) {
    const struct weft_op *row = &r->p->op[op];
    struct pair pair = { .r = r };
    if (weft_op_info[row->kind].class != WEFT_CLASS_P2P)
      continue;
    pair.comm = gpu_comm_of (r, row);
    pair.peer = pair.comm ? gpu_comm_peer (r, row) : 0;
    if (!pair.comm || knows (pairs, &pair))
      continue;
    if (!gpu_event_open (r, FALSE, &pair.event, error))
      return FALSE;
    g_array_append_val (pairs, pair);
  }
  return TRUE;
}

/* Connects two stages: sends a byte to the peer and receives one from it. The bytes are in the
 * control block, whose contents matter only during a step. */
static gboolean
exchange_byte (const struct pair *pair, uint32_t i, GError **error)
{
  struct gpu_rank *r = pair->r;
  uint8_t *byte = r->control;
  struct weft_gpu_transfer out = { pair->comm, byte, 1, WEFT_UINT8, pair->peer }, in = out;

  in.data = byte + 1 + i % (sizeof (struct weft_control) - 1);
  return gpu_choose (r, error) &&
         gpu_ok (r->m, GPU_CALL (r->m, about, r->row, WEFT_NO_OP), error, "rank %u", r->rank) &&
         gpu_ok (r->m, GPU_CALL (r->m, send, &out, r->stream[WEFT_LANE_GPU]), error,
                 "rank %u: the first transfer", r->rank) &&
         gpu_ok (r->m, GPU_CALL (r->m, recv, &in, r->stream[WEFT_LANE_GPU]), error,
                 "rank %u: the first transfer", r->rank);
}

static gboolean
exchange_bytes (const GArray *pairs, GError **error)
{
  for (guint i = 0; i < pairs->len; i++)
    if (!exchange_byte (&g_array_index (pairs, struct pair, i), i, error))
      return FALSE;
  return TRUE;
}

static gboolean
await_pairs (struct gpu_machine *m, const GArray *pairs, GError **error)
{
  struct gpu_watchdog watchdog = { .what = "connecting stages", .seconds = patience (m) };

  for (guint i = 0; i < pairs->len; i++) {
    const struct pair *pair = &g_array_index (pairs, struct pair, i);
    if (!gpu_choose (pair->r, error) ||
        !gpu_ok (m, GPU_CALL (m, record, pair->event, pair->r->stream[WEFT_LANE_GPU]), error,
                 "rank %u: the first transfer", pair->r->rank))
      return FALSE;
  }
  for (guint i = 0; i < pairs->len; i++)
    if (!gpu_watchdog_wait_event (m, &watchdog, g_array_index (pairs, struct pair, i).event, error))
      return FALSE;
  return TRUE;
}

static gboolean
connect_pairs (struct gpu_machine *m, GError **error)
{
  g_autoptr (GArray) pairs = g_array_new (FALSE, FALSE, sizeof (struct pair));

  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    if (!find_pairs (&m->rank[row], pairs, error))
      return FALSE;
  return pairs->len == 0 || (start (m, error) && end (m, exchange_bytes (pairs, error), error) &&
                             await_pairs (m, pairs, error));
}

gboolean
gpu_comms_open (struct gpu_machine *m, GError **error)
{
  struct weft_gpu_id id;

  if (m->shared || m->n == 1)
    return TRUE;
  m->apart = has_apart (m);
  if (!find_id (m, &id, error) || !start (m, error) || !end (m, open_world (m, &id, error), error))
    return FALSE;
  for (int kind = 0; kind < WEFT_N_GROUP; kind++)
    if (kind != WEFT_GROUP_WORLD && anybody_talks (m, kind) &&
        (!start (m, error) || !end (m, split_groups (m, kind, error), error)))
      return FALSE;
  for (uint32_t i = 0; i < 6 && m->apart; i++)
    if (!start (m, error) || !end (m, split_pairs (m, i / 2, i % 2, error), error))
      return FALSE;
  return start (m, error) && end (m, open_windows (m, error), error) && connect_pairs (m, error);
}

gboolean
gpu_comms_scaled (struct gpu_rank *r, weft_gpu_comm *comm, const struct weft_shape *shape, int *out,
                  GError **error)
{
  struct gpu_scaled scaled = { .comm = comm, .dtype = shape->dtype, .divisor = shape->dim[1] };
  struct gpu_machine *m = r->m;

  for (uint32_t i = 0; i < m->scaled->len; i++) {
    const struct gpu_scaled *known = &g_array_index (m->scaled, struct gpu_scaled, i);
    if (known->comm == comm && known->dtype == scaled.dtype && known->divisor == scaled.divisor) {
      *out = known->scaled;
      return TRUE;
    }
  }
  if (!gpu_ok (m,
               GPU_CALL (m, scaled_open, comm, shape->dtype, 1.0 / (double) shape->dim[1],
                         &scaled.scaled),
               error, "rank %u: a sum of values divided by %" G_GUINT64_FORMAT, r->rank,
               scaled.divisor))
    return FALSE;
  g_array_append_val (m->scaled, scaled);
  *out = scaled.scaled;
  return TRUE;
}

/* Finishes all communicators of this process in one group, split ones before their parents. */
static gboolean
finish (struct gpu_machine *m, GError **error)
{
  gboolean ok = TRUE;

  if (!start (m, error))
    return FALSE;
  for (uint32_t i = m->comm->len; ok && i-- > 0;)
    ok = gpu_ok (m, GPU_CALL (m, comm_finish, g_ptr_array_index (m->comm, i)), error,
                 "a communicator");
  return end (m, ok, error);
}

/* Closes the reduction objects and the memory windows that were registered with communicators.
 * `there` FALSE: the communicators have been aborted and no longer exist. */
static void
let_go (struct gpu_machine *m, gboolean there)
{
  for (uint32_t i = 0; i < m->scaled->len; i++) {
    const struct gpu_scaled *scaled = &g_array_index (m->scaled, struct gpu_scaled, i);
    GPU_CALL (m, scaled_close, there ? scaled->comm : NULL, scaled->scaled);
  }
  for (uint32_t i = 0; i < m->window->len; i++) {
    const struct gpu_window *window = &g_array_index (m->window, struct gpu_window, i);
    GPU_CALL (m, window_close, there ? window->comm : NULL, window->window);
  }
}

/* Aborts all communicators in one group: an abort waits for the work of its communicator, which may
 * be queued behind a hanging operation of another communicator (NCCL issue 1013). */
static void
abort_all (struct gpu_machine *m)
{
  gboolean started = m->comm->len && !GPU_CALL (m, group_start);

  for (uint32_t i = m->comm->len; i-- > 0;)
    GPU_CALL (m, comm_abort, g_ptr_array_index (m->comm, i));
  if (started)
    GPU_CALL (m, group_end);
}

/* After an error, communicators can only be aborted: finishing them would wait for other ranks. */
void
gpu_comms_close (struct gpu_machine *m)
{
  gboolean there = !m->broken;

  if (there)
    let_go (m, TRUE);
  if (!there || m->comm->len == 0 || !finish (m, NULL))
    abort_all (m);
  else
    for (uint32_t i = m->comm->len; i-- > 0;)
      GPU_CALL (m, comm_close, g_ptr_array_index (m->comm, i));
  if (!there)
    let_go (m, FALSE);
}
