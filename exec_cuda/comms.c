/* Communicators of ranks with a GPU each: one of all, and cut off it one for each group that ops of some
 * role talk in; transfers to the stage before have one of their own where they have a lane of their own.
 *
 * All ranks of this process are opened by one thread, as one launch. */
#include "core/base/error.h"
#include "exec_cuda/machine.h"

static weft_cuda_comm **
place_of (struct cuda_rank *r, enum weft_group_kind kind, gboolean back)
{
  return back ? &r->comm_back : &r->comm[kind];
}

/* Transfers between stages are no group's op, but travel in that of the stages. */
static enum weft_group_kind
group_of (const struct weft_op *row)
{
  return weft_op_info[row->kind].class == WEFT_CLASS_P2P ? WEFT_GROUP_PP : row->group;
}

weft_cuda_comm *
cuda_comm_of (const struct cuda_rank *r, const struct weft_op *row)
{
  return row->lane == WEFT_LANE_PP_BACK ? r->comm_back : r->comm[group_of (row)];
}

static gboolean
role_talks (const weft_program *p, enum weft_group_kind kind, gboolean back)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (weft_op_is_comm (p->op[op].kind) && group_of (&p->op[op]) == kind &&
        (p->op[op].lane == WEFT_LANE_PP_BACK) == back)
      return TRUE;
  return FALSE;
}

/* Alone in a group nobody does. */
static gboolean
anybody_talks (const struct cuda_machine *m, enum weft_group_kind kind, gboolean back)
{
  if (weft_mesh_group_size (&m->base.plan->mesh, kind) == 1)
    return FALSE;
  for (uint32_t role = 0; role < m->base.plan->n_roles; role++)
    if (role_talks (m->base.plan->role[role], kind, back))
      return TRUE;
  return FALSE;
}

static gboolean
keep (struct cuda_machine *m, weft_cuda_comm *comm)
{
  if (comm)
    g_ptr_array_add (m->comm, comm);
  return TRUE;
}

static gboolean
choose (struct cuda_rank *r, GError **error)
{
  return cuda_ok (r->m, CUDA_CALL (r->m, choose, r->device), error, "rank %u: GPU %u", r->rank,
                  r->device);
}

static gboolean
open_world (struct cuda_machine *m, GError **error)
{
  struct weft_cuda_id id;

  if (!cuda_ok (m, CUDA_CALL (m, comm_id, &id), error, "a communicator of all ranks"))
    return FALSE;
  for (uint32_t row = 0; row < m->n; row++) {
    struct cuda_rank *r = &m->rank[row];
    struct weft_cuda_member member = { .id = &id, .n = m->n, .rank = r->rank };
    if (!choose (r, error) ||
        !cuda_ok (m, CUDA_CALL (m, comm_open, &member, &r->comm[WEFT_GROUP_WORLD]), error,
                  "rank %u: a communicator of all ranks", r->rank))
      return FALSE;
    keep (m, r->comm[WEFT_GROUP_WORLD]);
  }
  return TRUE;
}

/* Ranks of one group have one color: that of its first. */
static gboolean
split_rank (struct cuda_rank *r, enum weft_group_kind kind, gboolean back, GError **error)
{
  struct weft_group group = weft_mesh_group (&r->m->base.plan->mesh, r->rank, kind);
  gboolean talks = role_talks (r->p, kind, back);
  struct weft_cuda_member member = { .n = weft_group_size (&group),
                                     .rank = talks ? weft_group_index (&group, r->rank) : 0 };
  weft_cuda_comm **out = place_of (r, kind, back);

  return choose (r, error) &&
         cuda_ok (r->m,
                  CUDA_CALL (r->m, comm_split, r->comm[WEFT_GROUP_WORLD],
                             talks ? (int) group.first : -1, &member, out),
                  error, "rank %u: a communicator for %s", r->rank, weft_group_word (kind)) &&
         keep (r->m, *out);
}

static gboolean
split_world (struct cuda_machine *m, enum weft_group_kind kind, gboolean back, GError **error)
{
  for (uint32_t row = 0; row < m->n; row++)
    if (!split_rank (&m->rank[row], kind, back, error))
      return FALSE;
  return TRUE;
}

static gboolean
uses_window (const struct cuda_rank *r, uint32_t op)
{
  for (uint32_t u = r->p->op[op].uses; u < r->p->op[op + 1].uses; u++)
    if (r->p->uses[u].buf != WEFT_NO_BUF &&
        r->p->buf[weft_buf_owner (r->p, r->p->uses[u].buf)].pool == WEFT_POOL_SYMMETRIC)
      return TRUE;
  return FALSE;
}

static gboolean
open_window (struct cuda_rank *r, weft_cuda_comm *comm, GError **error)
{
  struct cuda_window window = { .comm = comm };
  uint64_t bytes = r->m->base.plan->memory[r->p->role].planned[WEFT_POOL_SYMMETRIC];

  for (uint32_t i = 0; i < r->m->window->len; i++)
    if (g_array_index (r->m->window, struct cuda_window, i).comm == comm)
      return TRUE;
  if (!choose (r, error) ||
      !cuda_ok (r->m,
                CUDA_CALL (r->m, window_open, comm, r->bind.arena[WEFT_POOL_SYMMETRIC], bytes,
                           &window.window),
                error, "rank %u: a window of its symmetric memory", r->rank))
    return FALSE;
  g_array_append_val (r->m->window, window);
  return TRUE;
}

/* The symmetric pool, with every communicator that moves some of it. */
static gboolean
open_windows (struct cuda_machine *m, GError **error)
{
  for (uint32_t row = 0; row < m->n; row++) {
    struct cuda_rank *r = &m->rank[row];
    for (uint32_t op = 0; op < r->p->n_op; op++)
      if (cuda_comm_of (r, &r->p->op[op]) && uses_window (r, op) &&
          weft_op_info[r->p->op[op].kind].class == WEFT_CLASS_COLLECTIVE &&
          !open_window (r, cuda_comm_of (r, &r->p->op[op]), error))
        return FALSE;
  }
  return TRUE;
}

static gboolean
start (struct cuda_machine *m, GError **error)
{
  return cuda_ok (m, CUDA_CALL (m, group_start), error, "communicators");
}

/* After an error too: a group that was started is ended. */
static gboolean
end (struct cuda_machine *m, gboolean ok, GError **error)
{
  const char *said = CUDA_CALL (m, group_end);
  return ok && cuda_ok (m, said, error, "communicators");
}

gboolean
cuda_comms_open (struct cuda_machine *m, GError **error)
{
  if (m->shared || m->n == 1)
    return TRUE;
  if (!start (m, error) || !end (m, open_world (m, error), error))
    return FALSE;
  for (uint32_t i = 0; i < 2 * WEFT_N_GROUP; i++) {
    enum weft_group_kind kind = i / 2;
    gboolean back = i % 2;
    if (kind == WEFT_GROUP_WORLD || !anybody_talks (m, kind, back))
      continue;
    if (!start (m, error) || !end (m, split_world (m, kind, back, error), error))
      return FALSE;
  }
  return start (m, error) && end (m, open_windows (m, error), error);
}

gboolean
cuda_scaled_of (struct cuda_rank *r, weft_cuda_comm *comm, const struct weft_shape *shape, int *out,
                GError **error)
{
  struct cuda_scaled scaled = { .comm = comm, .dtype = shape->dtype, .divisor = shape->dim[1] };
  struct cuda_machine *m = r->m;

  for (uint32_t i = 0; i < m->scaled->len; i++) {
    const struct cuda_scaled *known = &g_array_index (m->scaled, struct cuda_scaled, i);
    if (known->comm == comm && known->dtype == scaled.dtype && known->divisor == scaled.divisor) {
      *out = known->scaled;
      return TRUE;
    }
  }
  if (!cuda_ok (m,
                CUDA_CALL (m, scaled_open, comm, shape->dtype, 1.0 / (double) shape->dim[1],
                           &scaled.scaled),
                error, "rank %u: a sum of what is divided by %" G_GUINT64_FORMAT, r->rank,
                scaled.divisor))
    return FALSE;
  g_array_append_val (m->scaled, scaled);
  *out = scaled.scaled;
  return TRUE;
}

gboolean
cuda_comms_look (struct cuda_machine *m, GError **error)
{
  for (uint32_t i = 0; i < m->comm->len; i++)
    if (!cuda_ok (m, CUDA_CALL (m, comm_error, g_ptr_array_index (m->comm, i)), error,
                  "a communicator"))
      return FALSE;
  return TRUE;
}

/* One that something has gone wrong with can only be aborted: to close it would wait for others. */
void
cuda_comms_close (struct cuda_machine *m)
{
  for (uint32_t i = 0; i < m->scaled->len; i++) {
    const struct cuda_scaled *scaled = &g_array_index (m->scaled, struct cuda_scaled, i);
    CUDA_CALL (m, scaled_close, scaled->comm, scaled->scaled);
  }
  for (uint32_t i = 0; i < m->window->len; i++) {
    const struct cuda_window *window = &g_array_index (m->window, struct cuda_window, i);
    CUDA_CALL (m, window_close, window->comm, window->window);
  }
  gboolean grouped = !m->broken && m->comm->len && !CUDA_CALL (m, group_start);
  for (uint32_t i = m->comm->len; i-- > 0;)
    if (m->broken)
      CUDA_CALL (m, comm_abort, g_ptr_array_index (m->comm, i));
    else
      CUDA_CALL (m, comm_close, g_ptr_array_index (m->comm, i));
  if (grouped)
    CUDA_CALL (m, group_end);
}
