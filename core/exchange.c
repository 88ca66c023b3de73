/* Sends and receives between the cells of the pipeline grid, in Megatron-Core's non-interleaved
 * order (schedules.py forward_backward_pipelining_without_interleaving):
 *
 *   F then F:  send_forward, then recv_forward
 *   F then B:  {send_forward, recv_backward} as one exchange with the next stage
 *   B then F:  {send_backward, recv_forward} as one exchange with the stage before
 *   B then B:  send_backward, then recv_backward
 *
 * An exchange waits for everything enqueued on the compute stream so far (c10d ProcessGroupNCCL),
 * and batch_p2p_comm waits for every exchange at once: the next kernel depends on it. */
#include "core/step.h"

static uint64_t
payload (const struct weft_step *s)
{
  return s->rows * s->model->hidden_size;
}

static void
transfer (struct weft_step *s, const char *name, enum weft_op_kind kind, int peer, uint32_t buf,
          const struct weft_cell *cell)
{
  struct weft_op row = { .kind = kind,
                         .group = WEFT_GROUP_PP,
                         .peer = peer,
                         .flags = s->at.flags,
                         .name = weft_build_name (s->b, name) };
  struct weft_op at = s->at;
  uint32_t enqueued = weft_build_last (s->b, WEFT_LANE_GPU);

  s->at.micro = cell->micro;
  s->at.phase = cell->phase;
  s->exchange =
      weft_emit_on (s, WEFT_LANE_PP, row, WEFT_SHAPE (s->p2p_dtype, payload (s)),
                    &(const struct weft_use){
                        .buf = buf, .read = kind == WEFT_OP_SEND, .write = kind == WEFT_OP_RECV },
                    1);
  weft_build_dep (s->b, enqueued);
  weft_build_dep (s->b, s->synced);
  s->at = at;
}

/* A tensor as a kernel made it or takes it, and as it travels. */
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

static gboolean
send (struct weft_step *s, const struct weft_cell *done)
{
  gboolean forward = done->phase == WEFT_PHASE_FORWARD;

  if (forward ? weft_step_is_last (s) : weft_step_is_first (s))
    return FALSE;
  uint32_t buf = forward ? s->output[done->micro] : s->input_grad[done->micro];
  transfer (s, forward ? "send_forward" : "send_backward", WEFT_OP_SEND, forward ? 1 : -1,
            convert (s, buf, s->p2p_dtype, done), done);
  return TRUE;
}

/* Returns the received buffer, or WEFT_NO_BUF where the pipeline ends. */
static uint32_t
receive (struct weft_step *s, const struct weft_cell *next)
{
  gboolean forward = next->phase == WEFT_PHASE_FORWARD;

  if (forward ? weft_step_is_first (s) : weft_step_is_last (s))
    return WEFT_NO_BUF;
  uint32_t buf = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->p2p_dtype, payload (s),
                                   forward ? "input" : "dresidual");
  weft_build_buf_at (s->b, buf)->micro = next->micro;
  transfer (s, forward ? "recv_forward" : "recv_backward", WEFT_OP_RECV, forward ? -1 : 1, buf,
            next);
  return buf;
}

/* Kernels that were put off are enqueued behind the exchange and wait for none of it. */
static void
run_delayed (struct weft_step *s)
{
  uint32_t exchange = s->exchange;

  s->exchange = WEFT_NO_OP;
  weft_layer_delayed (s);
  s->exchange = exchange;
}

void
weft_exchange (struct weft_step *s, const struct weft_cell *done, const struct weft_cell *next)
{
  gboolean sent = done && send (s, done);
  uint32_t got = WEFT_NO_BUF;

  if (next) {
    s->at.flags = sent && done->phase != next->phase ? WEFT_OP_GROUPED : 0;
    got = receive (s, next);
    s->at.flags = 0;
  }
  run_delayed (s);
  if (got != WEFT_NO_BUF)
    (next->phase == WEFT_PHASE_FORWARD ? s->output : s->input_grad)[next->micro] =
        convert (s, got, s->dtype, next);
}
