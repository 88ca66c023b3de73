/* Sends and receives between the passes of a pipeline schedule, in Megatron-Core's non-interleaved
 * order (schedules.py forward_backward_pipelining_without_interleaving). Between a forward (F) or
 * backward (B) pass and the next pass of a rank:
 *
 *   F then F:  send_forward, then recv_forward
 *   F then B:  {send_forward, recv_backward} as one exchange with the next stage
 *   B then F:  {send_backward, recv_forward} as one exchange with the previous stage
 *   B then B:  send_backward, then recv_backward
 *
 * An exchange waits for all kernels enqueued so far (c10d ProcessGroupNCCL). With batch_p2p_comm
 * the next kernel waits for the whole exchange. */
#include "core/passes/pipeline/posting.h"

static uint64_t
payload (const struct weft_step *s)
{
  return s->rows * s->model->hidden_size;
}

static gboolean
is_forward (const struct weft_cell *cell)
{
  return cell->phase == WEFT_PHASE_FORWARD;
}

/* Returns the direction to the rank that holds the next stage (`after` TRUE) or the previous stage
 * (FALSE): +1, -1, or 0 if this rank holds that stage or there is none. If the stages form a ring
 * over the ranks, a microbatch always moves in one direction. Otherwise (V-shaped schedules) the
 * direction reverses at the first and the last rank. */
static int
side_of (const struct weft_step *s, const struct weft_cell *cell, gboolean after)
{
  uint32_t rank = s->role, chunk = cell->chunk;

  if (!(after ? weft_grid_next : weft_grid_prev) (s->grid, &rank, &chunk) || rank == s->role)
    return 0;
  if (weft_grid_is_ring (s->grid))
    return after ? 1 : -1;
  return rank > s->role ? 1 : -1;
}

int
weft_exchange_target (const struct weft_step *s, const struct weft_cell *cell)
{
  return side_of (s, cell, is_forward (cell));
}

int
weft_exchange_source (const struct weft_step *s, const struct weft_cell *cell)
{
  return side_of (s, cell, !is_forward (cell));
}

/* Whether all sends and receives of an exchange are one launch. With use_ring_exchange_p2p one call
 * of the library executes all of them. */
static gboolean
is_grouped (const struct weft_step *s)
{
  return s->pipeline->posting.how == WEFT_POST_GROUP &&
         (s->strategy->batch_p2p_comm || s->strategy->use_ring_exchange_p2p);
}

/* Returns the lane (stream) of a send or receive. A grouped exchange uses the first stream.
 * Separate launches use two streams: even ranks send on the first stream and receive on the second;
 * odd ranks receive on the first stream and send on the second. */
static enum weft_lane
lane_of (const struct weft_step *s, enum weft_op_kind kind)
{
  return is_grouped (s) || (kind == WEFT_OP_SEND) == (s->role % 2 == 0) ? WEFT_LANE_PP
                                                                        : WEFT_LANE_PP_BACK;
}

static void
queue (struct weft_step *s, struct weft_transfer transfer)
{
  g_array_append_val (s->pipeline->posting.queue, transfer);
}

/* Appends one send or receive of `buf`. Returns the op. */
static uint32_t
post (struct weft_step *s, const struct weft_transfer *t, struct weft_op row,
      struct weft_shape shape, uint32_t buf)
{
  const struct weft_use use = { .buf = buf,
                                .read = t->kind == WEFT_OP_SEND,
                                .write = t->kind == WEFT_OP_RECV };
  uint32_t enqueued = weft_build_last (s->b, WEFT_LANE_GPU);
  struct weft_op at = s->at;

  row.kind = t->kind;
  row.peer = t->peer;
  s->at.micro = t->cell.micro;
  s->at.chunk = t->cell.chunk;
  s->at.phase = is_forward (&t->cell) ? WEFT_PHASE_FORWARD : WEFT_PHASE_BACKWARD;
  uint32_t op = weft_emit_on (s, row.lane, row, shape, &use, 1);
  weft_build_dep (s->b, enqueued);
  weft_wait_for_host (s);
  weft_wait_for_exchange (s);
  s->at = at;
  return op;
}

static void
post_tensor (struct weft_step *s, const struct weft_transfer *t, gboolean joins)
{
  gboolean sends = t->kind == WEFT_OP_SEND;
  g_autofree char *name =
      g_strconcat (sends ? "send_" : "recv_", is_forward (&t->cell) ? "forward" : "backward", NULL);
  struct weft_op row = { .lane = lane_of (s, t->kind),
                         .group = WEFT_GROUP_PP,
                         .flags = joins && is_grouped (s) ? WEFT_OP_GROUPED : 0,
                         .name = weft_build_name (s->b, name) };
  uint32_t op = post (s, t, row, WEFT_SHAPE (s->pipeline->dtype, payload (s)), t->buf);

  s->pipeline->posting.newest[row.lane == WEFT_LANE_PP_BACK] = op;
  if (sends)
    s->pipeline->posting.sent = op;
}

/* variable_seq_lengths: before each tensor its three sizes are sent, in one launch over the group
 * of all ranks. The host waits for the whole device before the host reads the received sizes
 * (Megatron-Core p2p_communication.py, _communicate_shapes). */
static void
post_shapes (struct weft_step *s)
{
  struct weft_op row = { .lane = WEFT_LANE_WORLD,
                         .group = WEFT_GROUP_WORLD,
                         .name = weft_build_name (s->b, "shape") };
  struct weft_op read = { .kind = WEFT_OP_COPY_OUT, .name = weft_build_name (s->b, "shapes") };
  uint32_t got = s->pipeline->shape;

  for (guint i = 0; i < s->pipeline->posting.queue->len; i++) {
    const struct weft_transfer *t =
        &g_array_index (s->pipeline->posting.queue, struct weft_transfer, i);
    uint32_t buf = s->pipeline->shape;
    if (t->kind == WEFT_OP_RECV)
      buf = got = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_INT64, 3, "shape");
    row.flags = i ? WEFT_OP_GROUPED : 0;
    post (s, t, row, WEFT_SHAPE (WEFT_INT64, 3), buf);
    weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_PP));
    weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_PP_BACK));
  }
  uint32_t sizes =
      weft_emit_on (s, WEFT_LANE_D2H, read, WEFT_SHAPE (WEFT_INT64, 3), WEFT_USES (WEFT_R (got)));
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    if (lane != WEFT_LANE_D2H)
      weft_build_dep (s->b, weft_build_last (s->b, lane));
  weft_host_waits_for (s, sizes);
}

/* Converts a tensor from or to the dtype of pipeline transfers. Returns the new buffer, or `from`
 * if its dtype is already `dtype`. */
static uint32_t
convert (struct weft_step *s, uint32_t from, enum weft_dtype dtype, const struct weft_cell *cell)
{
  struct weft_op at = s->at;
  const enum weft_dtype was = weft_build_buf_at (s->b, from)->dtype;
  struct weft_shape shape = WEFT_SHAPE (was, payload (s));

  if (was == dtype)
    return from;
  s->at = (struct weft_op){
    .layer = WEFT_NO_LAYER, .micro = cell->micro, .chunk = cell->chunk, .phase = cell->phase
  };
  shape.out_dtype = dtype;
  uint32_t to = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, dtype, payload (s), "converted");
  weft_emit (s, WEFT_OP_CAST, "pipeline_dtype", shape, WEFT_USES (WEFT_R (from), WEFT_W (to)));
  s->at = at;
  return to;
}

static uint32_t *
passed (const struct weft_step *s, const struct weft_cell *cell)
{
  uint32_t *all = is_forward (cell) ? s->pipeline->output : s->pipeline->input_grad;
  return &all[cell->micro * s->n_chunks + cell->chunk];
}

void
weft_exchange_begin (struct weft_step *s, enum weft_post how)
{
  s->pipeline->posting.how = how;
  s->pipeline->posting.sent = WEFT_NO_OP;
  for (uint32_t i = 0; i < WEFT_N_EXCHANGE; i++)
    s->pipeline->posting.newest[i] = WEFT_NO_OP;
  g_array_set_size (s->pipeline->posting.queue, 0);
}

void
weft_exchange_send (struct weft_step *s, const struct weft_cell *done)
{
  int peer = weft_exchange_target (s, done);

  if (peer)
    queue (s, (struct weft_transfer){ WEFT_OP_SEND, peer,
                                      convert (s, *passed (s, done), s->pipeline->dtype, done),
                                      *done });
}

void
weft_exchange_receive (struct weft_step *s, const struct weft_cell *next)
{
  int peer = weft_exchange_source (s, next);

  if (!peer)
    return;
  uint32_t buf = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->pipeline->dtype, payload (s),
                                   is_forward (next) ? "input" : "dresidual");
  weft_build_buf_at (s->b, buf)->micro = next->micro;
  queue (s, (struct weft_transfer){ WEFT_OP_RECV, peer, buf, *next });
  *passed (s, next) = buf;
}

uint32_t
weft_exchange_end (struct weft_step *s)
{
  if (s->strategy->variable_seq_lengths && s->pipeline->posting.queue->len)
    post_shapes (s);
  for (guint i = 0; i < s->pipeline->posting.queue->len; i++)
    post_tensor (s, &g_array_index (s->pipeline->posting.queue, struct weft_transfer, i), i > 0);
  for (uint32_t i = 0; i < WEFT_N_EXCHANGE && s->pipeline->posting.how != WEFT_POST_ASIDE; i++)
    if (s->pipeline->posting.newest[i] != WEFT_NO_OP)
      weft_set_exchange (s, i, s->pipeline->posting.newest[i]);
  return s->pipeline->posting.sent;
}

uint32_t
weft_exchange_take (struct weft_step *s, const struct weft_cell *cell)
{
  return convert (s, *passed (s, cell), s->dtype, cell);
}

void
weft_exchange_run_beside (struct weft_step *s, weft_kernels *beside)
{
  if (!weft_step_is_split (s))
    weft_run_beside_exchange (s, beside);
}

/* Whether the send of the last forward output and the receive of the first gradient are separate
 * exchanges. They are separate with variable_seq_lengths, if the warm-up contains all forward
 * passes. A single exchange would then deadlock: the neighbour receives the forward output long
 * before the neighbour sends a gradient, and each rank would wait for tensor sizes that the other
 * rank has not sent. */
static gboolean
turns_early (const struct weft_step *s, uint32_t i)
{
  const struct weft_schedule_row *row = weft_job_schedule (s->job);
  gboolean all = (row && row->in_flight == WEFT_IN_FLIGHT_ALL) ||
                 s->mesh->pp - 1 - s->role >= s->n_micro;

  return s->strategy->variable_seq_lengths && all && i == s->n_micro;
}

void
weft_exchange_in_order (struct weft_step *s, uint32_t i, weft_kernels *beside)
{
  const struct weft_cell *row = s->grid->cell[s->role];
  const struct weft_cell *done = i ? &row[i - 1] : NULL;
  const struct weft_cell *next = i < s->grid->n_cell[s->role] ? &row[i] : NULL;

  weft_exchange_begin (s, WEFT_POST_GROUP);
  if (done)
    weft_exchange_send (s, done);
  if (done && next && (done->phase == next->phase || turns_early (s, i))) {
    weft_exchange_end (s);
    weft_exchange_begin (s, WEFT_POST_GROUP);
  }
  if (next)
    weft_exchange_receive (s, next);
  weft_exchange_end (s);
  weft_exchange_run_beside (s, beside);
}

/* ------------------------------------------------------------------------ for other wings */

void
weft_pipeline_begin (struct weft_step *s)
{
  struct weft_pipeline *p = s->pipeline = g_new0 (struct weft_pipeline, 1);
  size_t n = (size_t) s->n_micro * s->n_chunks;

  p->dtype = s->strategy->pipeline_dtype == WEFT_NONE
                 ? s->dtype
                 : (enum weft_dtype) s->strategy->pipeline_dtype;
  p->output = g_new0 (uint32_t, n);
  p->input_grad = g_new0 (uint32_t, n);
  p->posting.queue = g_array_new (FALSE, FALSE, sizeof (struct weft_transfer));
}

void
weft_pipeline_buffers (struct weft_step *s)
{
  if (s->strategy->variable_seq_lengths && s->mesh->pp > 1)
    s->pipeline->shape = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_INT64, 3, "shape");
}

void
weft_pipeline_end (struct weft_step *s)
{
  g_array_unref (s->pipeline->posting.queue);
  g_free (s->pipeline->output);
  g_free (s->pipeline->input_grad);
  g_free (s->pipeline);
}

/* Whether the order of pipeline transfers is free, because no framework prescribes an order for
 * this schedule. FALSE for schedules of Megatron-Core. */
static gboolean
is_free (const struct weft_step *s)
{
  const struct weft_schedule_row *row = weft_job_schedule (s->job);

  return !row || row->exchange == WEFT_EXCHANGE_FREE;
}

gboolean
weft_pipeline_interleaves (const struct weft_step *s)
{
  return !is_free (s) && s->n_chunks > 1;
}

void
weft_exchange (struct weft_step *s, uint32_t i, weft_kernels *beside)
{
  (is_free (s)       ? weft_exchange_free
   : s->n_chunks > 1 ? weft_exchange_interleaved
                     : weft_exchange_in_order) (s, i, beside);
}

uint32_t
weft_exchange_output (const struct weft_step *s, const struct weft_cell *cell)
{
  return s->pipeline->output[cell->micro * s->n_chunks + cell->chunk];
}

/* Stores `x` as the output of a pass. If this rank also holds the next stage, `x` is also stored as
 * the input of the next stage's pass. */
void
weft_exchange_hand_over (struct weft_step *s, const struct weft_cell *cell, uint32_t x)
{
  struct weft_cell to = *cell;
  uint32_t rank = s->role, chunk = cell->chunk;

  *passed (s, cell) = x;
  if (!(is_forward (cell) ? weft_grid_next : weft_grid_prev) (s->grid, &rank, &chunk) ||
      rank != s->role)
    return;
  to.chunk = chunk;
  *passed (s, &to) = x;
}
