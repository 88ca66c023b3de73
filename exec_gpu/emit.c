/* Appends the calls of one launch to a call list: the waits for other streams, the ops, and an
 * event if another launch waits for this one. */
#include "exec_gpu/emit.h"
#include "core/base/error.h"
#include "exec_gpu/collectives.h"
#include "exec_gpu/counted.h"
#include "exec_gpu/order.h"
#include "exec_gpu/script.h"

static uint32_t
op_of (struct gpu_rank_unit at)
{
  return at.u == &at.r->end ? WEFT_NO_OP : gpu_unit_op (at.r, at.u, 0);
}

static void
emit_event (struct gpu_rank_unit at, enum gpu_call_kind kind, weft_gpu_event *event)
{
  gpu_script_call (at, op_of (at), kind)->event = event;
}

static void
emit_waits (struct gpu_rank_unit at)
{
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
    if (at.u->wait[lane])
      emit_event (at, GPU_WAIT, gpu_unit_at (at.r, lane, at.u->wait[lane] - 1)->event);
  if (at.u->wait[GPU_START])
    emit_event (at, GPU_WAIT, gpu_script_of (at.r->m, at.r)->start);
}

static gboolean
emit_new_record (struct gpu_rank_unit at, weft_gpu_event **event, GError **error)
{
  if (!gpu_event_open (at.r, FALSE, event, error))
    return FALSE;
  emit_event (at, GPU_RECORD, *event);
  return TRUE;
}

static gboolean
emit_record (struct gpu_rank_unit at, GError **error)
{
  return !at.u->awaited || emit_new_record (at, &at.u->event, error);
}

/* If times are measured by events: appends a timed event at the begin or the end of a launch. */
static gboolean
emit_stamp (struct gpu_rank_unit at, weft_gpu_event **event, GError **error)
{
  if (!at.r->m->options.times || at.r->m->traced)
    return TRUE;
  if (!gpu_event_open (at.r, TRUE, event, error))
    return FALSE;
  emit_event (at, GPU_STAMP, *event);
  return TRUE;
}

static void
keep_stamps (struct gpu_rank_unit at, weft_gpu_event *begin, weft_gpu_event *end)
{
  for (uint32_t i = 0; i < at.u->n && (end || at.r->m->traced); i++) {
    struct gpu_stamp stamp = { at.r->row, gpu_unit_op (at.r, at.u, i), at.r->m->n_unit, begin,
                               end };
    g_array_append_val (at.r->m->stamp, stamp);
  }
}

static void
keep_unit (struct gpu_rank_unit at, weft_gpu_event *begin, weft_gpu_event *end)
{
  keep_stamps (at, begin, end);
  at.r->m->n_unit++;
}

/* -------------------------------------------------------------------- local units */

static void
keep_kernel (void *user, const struct weft_kernel *k)
{
  const struct gpu_rank *r = user;

  g_array_append_val (gpu_script_of (r->m, r)->kernel, *k);
}

/* Adds a kernel that runs on the CPU to the call list. The kernel reads the control block in host
 * memory, not the copy on the device. */
static void
keep_host (void *user, const struct weft_kernel *k)
{
  const struct gpu_rank *r = user;
  struct gpu_host_work work = { *k, r->team };

  work.kernel.control = r->m->options.control;
  g_array_append_val (gpu_script_of (r->m, r)->host, work);
}

static void
emit_kernels (struct gpu_rank_unit at, uint32_t op)
{
  struct gpu_script *s = gpu_script_of (at.r->m, at.r);
  gboolean host = at.u->lane == WEFT_LANE_HOST;
  GArray *kernels = host ? s->host : s->kernel;
  uint32_t first = kernels->len;

  weft_bind_kernels (&at.r->bind, op, host ? keep_host : keep_kernel, at.r);
  if (kernels->len == first)
    return;
  struct gpu_call *call = gpu_script_call (at, op, host ? GPU_HOST : GPU_KERNEL);
  call->at = first;
  call->n = kernels->len - first;
}

static void
emit_copy (struct gpu_rank_unit at, uint32_t op, const struct weft_gpu_copy *copy)
{
  GArray *copies = gpu_script_of (at.r->m, at.r)->copy;

  if (copy->bytes == 0)
    return;
  g_array_append_val (copies, *copy);
  gpu_script_call (at, op, GPU_COPY)->at = copies->len - 1;
}

/* Appends copies between buffers of the GPU and the mailbox in host memory: tokens to the GPU,
 * results to the host. */
static void
emit_mail (struct gpu_rank_unit at, uint32_t op)
{
  const struct gpu_rank *r = at.r;
  gboolean in = r->p->op[op].kind == WEFT_OP_COPY_IN;
  uint8_t *slot = r->mailbox + r->slot[op];

  for (uint32_t i = 0; i < r->p->op[op + 1].uses - r->p->op[op].uses; i++) {
    uint64_t bytes = gpu_mail_bytes (r, op, i);
    void *here = bytes ? weft_bind_at (&r->bind, weft_bind_use (&r->bind, op, i)->buf) : NULL;
    struct weft_gpu_copy copy = { in ? WEFT_GPU_TO_DEVICE : WEFT_GPU_TO_HOST, in ? here : slot,
                                  in ? slot : here, bytes };
    emit_copy (at, op, &copy);
    slot += gpu_slot_bytes (bytes);
  }
}

static void
emit_across (struct gpu_rank_unit at, uint32_t op)
{
  struct weft_operand from, to;
  gboolean in = weft_op_enters_device (at.r->p->op[op].kind);

  weft_bind_copy (&at.r->bind, op, &from, &to);
  struct weft_gpu_copy copy = { in ? WEFT_GPU_TO_DEVICE : WEFT_GPU_TO_HOST, to.data, from.data,
                                to.n * weft_dtype_bytes (to.dtype) };
  emit_copy (at, op, &copy);
}

/* Appends the calls of op i of a launch that needs no other rank. A collective is then over a group
 * of one rank, and needs at most a copy. */
static void
emit_op (struct gpu_rank_unit at, uint32_t i)
{
  uint32_t op = gpu_unit_op (at.r, at.u, i);
  enum weft_op_kind kind = at.r->p->op[op].kind;

  if (weft_op_info[kind].class == WEFT_CLASS_COMPUTE)
    emit_kernels (at, op);
  else if (weft_op_info[kind].class == WEFT_CLASS_COLLECTIVE)
    gpu_collective_shared (&at, 1, i);
  else if (weft_op_info[kind].mailbox)
    emit_mail (at, op);
  else
    emit_across (at, op);
}

gboolean
gpu_emit_local (struct gpu_rank_unit at, GError **error)
{
  weft_gpu_event *begin = NULL, *end = NULL;

  emit_waits (at);
  if (!emit_stamp (at, &begin, error))
    return FALSE;
  for (uint32_t i = 0; i < at.u->n; i++)
    emit_op (at, i);
  if (!emit_stamp (at, &end, error))
    return FALSE;
  keep_unit (at, begin, end);
  return emit_record (at, error);
}

/* ------------------------------------------------------------ ranks with a GPU each */

/* Appends the calls of a launch that uses communicators; all its ops are in one group of the
 * collective library. */
gboolean
gpu_emit_launch (struct gpu_rank_unit at, GError **error)
{
  weft_gpu_event *begin = NULL, *end = NULL;

  emit_waits (at);
  if (at.u->counts_unit)
    emit_event (at, GPU_READ, gpu_unit_at (at.r, WEFT_LANE_D2H, at.u->counts_unit - 1)->event);
  if (!emit_stamp (at, &begin, error))
    return FALSE;
  gpu_script_call (at, op_of (at), GPU_GROUP_START);
  for (uint32_t i = 0; i < at.u->n; i++)
    if (!gpu_collective_library (at, gpu_unit_op (at.r, at.u, i), error))
      return FALSE;
  gpu_script_call (at, op_of (at), GPU_GROUP_END);
  for (uint32_t i = 0; i < at.u->n; i++)
    gpu_counted_end (at, gpu_unit_op (at.r, at.u, i));
  struct gpu_call *mark = gpu_script_call (at, op_of (at), GPU_MARK);
  mark->n = at.u->index + 1;
  if (!emit_stamp (at, &end, error))
    return FALSE;
  keep_unit (at, begin, end);
  return emit_record (at, error);
}

/* ------------------------------------------------------------ ranks that share a GPU */

/* For ranks that share a GPU: the stream of the first member waits for the other members and
 * executes the collective. The streams of the other members then wait for the end of the
 * collective. */
gboolean
gpu_emit_collective (const struct gpu_rank_unit *member, uint32_t n, GError **error)
{
  weft_gpu_event *arrived, *done = NULL, *begin = NULL, *end = NULL;

  for (uint32_t i = 0; i < n; i++)
    emit_waits (member[i]);
  for (uint32_t i = 1; i < n; i++) {
    if (!emit_new_record (member[i], &arrived, error))
      return FALSE;
    emit_event (member[0], GPU_WAIT, arrived);
  }
  if (!emit_stamp (member[0], &begin, error))
    return FALSE;
  for (uint32_t i = 0; i < member[0].u->n; i++)
    gpu_collective_shared (member, n, i);
  if (!emit_stamp (member[0], &end, error))
    return FALSE;
  if ((n > 1 || member[0].u->awaited) && !emit_new_record (member[0], &done, error))
    return FALSE;
  for (uint32_t i = 0; i < n; i++) {
    member[i].u->event = done;
    keep_stamps (member[i], begin, end);
    if (i > 0)
      emit_event (member[i], GPU_WAIT, done);
  }
  member[0].r->m->n_unit++;
  return TRUE;
}

/* Finds the other end of a transfer: the launch of the peer that contains the matching send or
 * receive. *peer is set to the peer's op. */
static struct gpu_rank_unit
other_end (struct gpu_rank_unit at, uint32_t op, uint32_t *peer)
{
  uint32_t row = 0;
  gboolean found = gpu_transfer_peer (at.r, op, &row, peer);

  g_assert (found);
  struct gpu_rank *other = &at.r->m->rank[row];
  return (struct gpu_rank_unit){ other, &other->unit[other->unit_of[*peer]] };
}

static gboolean
is_kind (struct gpu_rank_unit at, uint32_t i, enum weft_op_kind kind)
{
  return at.r->p->op[gpu_unit_op (at.r, at.u, i)].kind == kind;
}

static gboolean
has (struct gpu_rank_unit at, enum weft_op_kind kind)
{
  for (uint32_t i = 0; i < at.u->n; i++)
    if (is_kind (at, i, kind))
      return TRUE;
  return FALSE;
}

/* Whether an earlier op of a launch has the same peer launch as op i. Only ops of `kind` are
 * compared; WEFT_N_OP: all ops. */
static gboolean
is_repeated (struct gpu_rank_unit at, uint32_t i, enum weft_op_kind kind)
{
  uint32_t peer;
  const struct gpu_unit *u = other_end (at, gpu_unit_op (at.r, at.u, i), &peer).u;

  for (uint32_t j = 0; j < i; j++)
    if ((kind == WEFT_N_OP || is_kind (at, j, kind)) &&
        other_end (at, gpu_unit_op (at.r, at.u, j), &peer).u == u)
      return TRUE;
  return FALSE;
}

/* Executes all receives of launch `to` whose sends are in launch `from`: waits for the event of the
 * sends, copies the data, and records an event for which the sender waits. */
static gboolean
emit_receives (struct gpu_rank_unit to, struct gpu_rank_unit from, GError **error)
{
  weft_gpu_event *taken = NULL;

  for (uint32_t i = 0; i < to.u->n; i++) {
    uint32_t op = gpu_unit_op (to.r, to.u, i), peer;
    if (!is_kind (to, i, WEFT_OP_RECV) || other_end (to, op, &peer).u != from.u)
      continue;
    if (!taken) {
      if (!gpu_event_open (to.r, FALSE, &taken, error))
        return FALSE;
      emit_event (to, GPU_WAIT, from.u->arrived);
    }
    uint32_t buf = weft_bind_use (&to.r->bind, op, 0)->buf;
    struct weft_gpu_copy copy = { WEFT_GPU_ON_DEVICE, weft_bind_at (&to.r->bind, buf),
                                  weft_bind_at (&from.r->bind,
                                                weft_bind_use (&from.r->bind, peer, 0)->buf),
                                  to.r->p->buf[buf].bytes };
    emit_copy (to, op, &copy);
    to.r->taken[op] = taken;
  }
  if (taken) {
    emit_event (to, GPU_RECORD, taken);
    to.u->event = taken;
  }
  return TRUE;
}

gboolean
gpu_emit_post (struct gpu_rank_unit at, GError **error)
{
  uint32_t peer;

  emit_waits (at);
  if (!emit_stamp (at, &at.u->begin, error) ||
      (has (at, WEFT_OP_SEND) && !emit_new_record (at, &at.u->arrived, error)))
    return FALSE;
  for (uint32_t i = 0; i < at.u->n; i++) {
    struct gpu_rank_unit other = other_end (at, gpu_unit_op (at.r, at.u, i), &peer);
    if (other.u->posted && !is_repeated (at, i, WEFT_N_OP) &&
        (!emit_receives (at, other, error) || !emit_receives (other, at, error)))
      return FALSE;
  }
  at.u->posted = TRUE;
  return TRUE;
}

/* After a send, the sender's stream waits until the receiver has copied the data, because a later
 * op of the sender may overwrite the buffer. */
gboolean
gpu_emit_leave (struct gpu_rank_unit at, GError **error)
{
  weft_gpu_event *end = NULL;
  uint32_t peer;

  for (uint32_t i = 0; i < at.u->n; i++) {
    if (!is_kind (at, i, WEFT_OP_SEND) || is_repeated (at, i, WEFT_OP_SEND))
      continue;
    const struct gpu_rank *other = other_end (at, gpu_unit_op (at.r, at.u, i), &peer).r;
    emit_event (at, GPU_WAIT, other->taken[peer]);
  }
  if (!emit_stamp (at, &end, error))
    return FALSE;
  keep_unit (at, at.u->begin, end);
  return !has (at, WEFT_OP_SEND) || emit_record (at, error);
}

/* ------------------------------------------------------------------ the whole step */

static gboolean
waits_for_start (const struct gpu_rank *r)
{
  for (uint32_t i = 0; i < r->n_unit; i++)
    if (r->unit[i].wait[GPU_START])
      return TRUE;
  return r->end.wait[GPU_START] != 0;
}

static gboolean
plays (const struct gpu_script *s, const struct gpu_rank *r)
{
  return s->m->shared || r->row == s->row;
}

static gint
compare_places (gconstpointer a, gconstpointer b)
{
  const struct weft_gpu_copy *x = a, *y = b;

  return (x->to > y->to) - (x->to < y->to);
}

/* The permanent buffers of a pool, sorted by address. */
static GArray *
kept_places (const struct gpu_rank *r, int pool)
{
  GArray *kept = g_array_new (FALSE, TRUE, sizeof (struct weft_gpu_copy));

  for (uint32_t b = 0; b < r->p->n_buf; b++) {
    const struct weft_buf *buf = &r->p->buf[b];
    struct weft_gpu_copy place = { .bytes = buf->bytes };
    if (buf->base != WEFT_NO_BUF || !buf->permanent || buf->pool != pool || buf->bytes == 0)
      continue;
    place.to = weft_bind_at (&r->bind, b);
    g_array_append_val (kept, place);
  }
  g_array_sort (kept, compare_places);
  return kept;
}

/* Poison: fills device memory outside permanent buffers with NaN before a step, so that a read
 * before the first write of the step changes the results. */
static void
emit_poison (struct gpu_rank_unit at, struct gpu_rank *r)
{
  GArray *copies = gpu_script_of (r->m, r)->copy;

  for (int pool = 0; pool < WEFT_N_POOL; pool++) {
    uint8_t *from = r->bind.arena[pool];
    g_autoptr (GArray) kept = kept_places (r, pool);
    struct weft_gpu_copy end = { .to = from + r->m->base.plan->memory[r->p->role].planned[pool] };
    if (!from || pool == WEFT_POOL_HOST)
      continue;
    g_array_append_val (kept, end);
    for (uint32_t i = 0; i < kept->len; i++) {
      const struct weft_gpu_copy *next = &g_array_index (kept, struct weft_gpu_copy, i);
      struct weft_gpu_copy gap = { .to = from, .bytes = (uint64_t) ((uint8_t *) next->to - from) };
      from = (uint8_t *) next->to + next->bytes;
      if (gap.bytes == 0)
        continue;
      g_array_append_val (copies, gap);
      gpu_script_call (at, WEFT_NO_OP, GPU_FILL)->at = copies->len - 1;
    }
  }
}

/* Copies the control block, which the host has written into the mailbox, to the device. */
gboolean
gpu_emit_start (struct gpu_script *s, GError **error)
{
  struct gpu_rank *first = &s->m->rank[s->row];
  struct gpu_rank_unit at = { first, &first->end };
  const struct weft_gpu_copy copy = { WEFT_GPU_TO_DEVICE, first->control, first->mailbox,
                                      sizeof (struct weft_control) };
  gboolean timed = (s->m->options.times && !s->m->traced) || s->m->options.total, awaited = FALSE;

  for (uint32_t row = 0; row < s->m->n; row++)
    awaited = awaited || (plays (s, &s->m->rank[row]) && waits_for_start (&s->m->rank[row]));
  emit_copy (at, WEFT_NO_OP, &copy);
  for (uint32_t row = 0; row < s->m->n && s->m->own.poison; row++)
    if (plays (s, &s->m->rank[row]))
      emit_poison (at, &s->m->rank[row]);
  if (timed && !gpu_event_open (first, TRUE, &s->zero, error))
    return FALSE;
  if (timed)
    emit_event (at, GPU_STAMP, s->zero);
  return !awaited || emit_new_record (at, &s->start, error);
}

static gboolean
ends_with_wait (const struct gpu_script *s, const weft_gpu_stream *stream)
{
  for (uint32_t i = s->call->len; i-- > 0;)
    if (g_array_index (s->call, struct gpu_call, i).stream == stream)
      return g_array_index (s->call, struct gpu_call, i).kind == GPU_WAIT;
  return FALSE;
}

/* When a step is captured into a graph: makes lane gpu wait for every lane whose last call is a
 * wait. The step ends without waiting for such a lane, but capture requires that every captured
 * stream joins the first stream. */
static gboolean
emit_return (struct gpu_rank_unit at, GError **error)
{
  struct gpu_script *s = gpu_script_of (at.r->m, at.r);

  for (uint32_t lane = 0; lane < WEFT_N_LANE && at.r->m->own.graph; lane++) {
    struct gpu_unit there = { .lane = (uint8_t) lane };
    weft_gpu_event *back;
    if (lane == WEFT_LANE_GPU || !ends_with_wait (s, at.r->stream[lane]))
      continue;
    if (!gpu_event_open (at.r, FALSE, &back, error))
      return FALSE;
    gpu_script_call ((struct gpu_rank_unit){ at.r, &there }, WEFT_NO_OP, GPU_RECORD)->event = back;
    emit_event (at, GPU_WAIT, back);
  }
  return TRUE;
}

/* Ends the step: the stream on which the step began waits for all streams of all ranks. */
gboolean
gpu_emit_end (struct gpu_script *s, GError **error)
{
  struct gpu_rank *first = &s->m->rank[s->row];

  for (uint32_t row = s->m->n; row-- > 0;) {
    struct gpu_rank *r = &s->m->rank[row];
    struct gpu_rank_unit at = { r, &r->end };
    weft_gpu_event *end;
    if (!plays (s, r))
      continue;
    emit_waits (at);
    if (!emit_return (at, error))
      return FALSE;
    if (r == first)
      continue;
    if (!emit_new_record (at, &end, error))
      return FALSE;
    emit_event ((struct gpu_rank_unit){ first, &first->end }, GPU_WAIT, end);
  }
  return TRUE;
}
