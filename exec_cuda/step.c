/* A step: the calls of the scores, made one after the other, or captured once into a graph and
 * replayed.
 *
 * Nothing is allocated and nothing waits for a GPU until the step is drained.  Ranks with a GPU
 * each have a thread of the host each, so that the calls of eight of them do not wait in one
 * line. */
#include "core/base/error.h"
#include "exec_cuda/machine.h"
#include "kernels/team.h"
#include <string.h>

#define NAN_BYTE 0xff /* floats of such bytes are not numbers, an int32 is no token */

/* ---------------------------------------------------------------------- one call */

static void
run_host (void *data)
{
  const struct cuda_host_work *work = data;

  weft_team_run (work->team, &work->kernel);
}

static const char *
play_host (const struct cuda_score *s, const struct cuda_call *c)
{
  const char *said = NULL;

  for (uint32_t i = 0; i < c->n && !said; i++)
    said = CUDA_CALL (s->m, host, run_host,
                      &g_array_index (s->host, struct cuda_host_work, c->at + i), c->stream);
  return said;
}

static const char *
make_call (const struct cuda_score *s, const struct cuda_call *c)
{
  struct cuda_machine *m = s->m;
  const struct cuda_rank *r = &m->rank[c->row];

  switch ((enum cuda_call_kind) c->kind) {
  case CUDA_RECORD:
    return CUDA_CALL (m, record, c->event, c->stream);
  case CUDA_STAMP:
    return CUDA_CALL (m, stamp, c->event, c->stream);
  case CUDA_WAIT:
    return CUDA_CALL (m, wait, c->stream, c->event);
  case CUDA_COPY:
    return CUDA_CALL (m, copy, &g_array_index (s->copy, struct weft_cuda_copy, c->at), c->stream);
  case CUDA_FILL:
    return CUDA_CALL (m, fill, g_array_index (s->copy, struct weft_cuda_copy, c->at).to, NAN_BYTE,
                      g_array_index (s->copy, struct weft_cuda_copy, c->at).bytes, c->stream);
  case CUDA_KERNEL:
    return CUDA_CALL (m, kernel, &g_array_index (s->kernel, struct weft_kernel, c->at), c->n,
                      &r->scratch[c->lane], c->stream);
  case CUDA_HOST:
    return play_host (s, c);
  case CUDA_JOIN:
    return CUDA_CALL (m, join, g_ptr_array_index (s->join, c->at), c->stream);
  case CUDA_EXCHANGE:
    return CUDA_CALL (m, exchange, g_ptr_array_index (s->exchange, c->at), c->stream);
  case CUDA_GROUP_START:
    return CUDA_CALL (m, group_start);
  case CUDA_GROUP_END:
    return CUDA_CALL (m, group_end);
  case CUDA_COLLECTIVE:
    return CUDA_CALL (m, collective,
                      &g_array_index (s->collective, struct weft_cuda_collective, c->at),
                      c->stream);
  case CUDA_SEND:
    return CUDA_CALL (m, send, &g_array_index (s->transfer, struct weft_cuda_transfer, c->at),
                      c->stream);
  case CUDA_RECV:
    return CUDA_CALL (m, recv, &g_array_index (s->transfer, struct weft_cuda_transfer, c->at),
                      c->stream);
  case CUDA_MARK:
    return CUDA_CALL (m, mark, cuda_progress (r, c->lane), c->n, c->stream);
  case CUDA_COUNTED:
    return cuda_counted_send (s, c);
  case CUDA_TOTAL:
    return cuda_counted_sum (s, c);
  case CUDA_READ: /* no call: play_call() waits */
  case CUDA_N_CALL:
    break;
  }
  g_assert_not_reached ();
}

/* Events keep their places in an evaluation; what follows from gradients is not done. */
static gboolean
is_skipped (const struct cuda_score *s, const struct cuda_call *c)
{
  gboolean orders = c->kind == CUDA_RECORD || c->kind == CUDA_WAIT || c->kind == CUDA_STAMP ||
                    c->kind == CUDA_GROUP_START || c->kind == CUDA_GROUP_END ||
                    c->kind == CUDA_MARK;

  return !orders && c->op != WEFT_NO_OP && cuda_skips (&s->m->rank[c->row], c->op);
}

/* Calls of the step as a whole come first, and last: when all others have been made. */
static gboolean
is_due (const struct cuda_score *s, uint32_t i)
{
  const struct cuda_call *c = &g_array_index (s->call, struct cuda_call, i);

  if (s->played[i])
    return FALSE;
  if (c->op != WEFT_NO_OP)
    return s->m->rank[c->row].issued[c->op];
  return i == s->n_played;
}

static weft_cuda_comm *
comm_of (const struct cuda_score *s, const struct cuda_call *c)
{
  if (c->kind == CUDA_COLLECTIVE)
    return g_array_index (s->collective, struct weft_cuda_collective, c->at).comm;
  if (c->kind == CUDA_SEND || c->kind == CUDA_RECV)
    return g_array_index (s->transfer, struct weft_cuda_transfer, c->at).comm;
  if (c->kind == CUDA_COUNTED)
    return ((const struct cuda_counted *) g_ptr_array_index (s->counted, c->at))->comm;
  return NULL;
}

/* What follows a launch on its streams may be given to them when the launch has been. */
static gboolean
await_launch (struct cuda_score *s, uint32_t end, GError **error)
{
  struct cuda_vigil vigil = { .what = "a step", .seconds = s->m->options.deadline };

  for (uint32_t i = end; i-- > 0;) {
    const struct cuda_call *c = &g_array_index (s->call, struct cuda_call, i);
    weft_cuda_comm *comm = comm_of (s, c);
    if (c->kind == CUDA_GROUP_START)
      return TRUE;
    if (comm && !cuda_vigil_comm (s->m, &vigil, comm, error))
      return FALSE;
  }
  return TRUE;
}

static gboolean
wait_for (struct cuda_machine *m, weft_cuda_event *event, gboolean closely, GError **error)
{
  struct cuda_vigil vigil = { .what = "a step",
                              .seconds = m->options.deadline,
                              .closely = closely };
  return cuda_vigil_event (m, &vigil, event, error);
}

static gboolean
play_call (struct cuda_score *s, const struct cuda_call *c, GError **error)
{
  const struct cuda_rank *r = &s->m->rank[c->row];

  if (is_skipped (s, c))
    return TRUE;
  const char *said = CUDA_CALL (s->m, about, c->row, c->op);
  if (!said && c->kind == CUDA_READ)
    return wait_for (s->m, c->event, TRUE, error);
  if (!said && !(said = make_call (s, c)))
    return TRUE;
  g_autofree char *label =
      c->op == WEFT_NO_OP ? g_strdup ("the step") : weft_op_label (r->p, c->op);
  return cuda_ok (s->m, said, error, "rank %u: %s: %s", r->rank, label, cuda_call_words[c->kind]);
}

/* A group in which something has failed is ended all the same: whatever this thread told NCCL later,
 * to abort above all, would wait for its end. */
static gboolean
stop (struct cuda_score *s, gboolean in_group)
{
  if (in_group)
    CUDA_CALL (s->m, group_end);
  return FALSE;
}

static gboolean
play_calls (struct cuda_score *s, GError **error)
{
  gboolean in_group = FALSE;

  for (uint32_t i = 0; i < s->call->len; i++) {
    if (!is_due (s, i))
      continue;
    const struct cuda_call *c = &g_array_index (s->call, struct cuda_call, i);
    in_group = in_group && c->kind != CUDA_GROUP_END;
    if (!play_call (s, c, error) || (c->kind == CUDA_GROUP_END && !await_launch (s, i, error)))
      return stop (s, in_group);
    in_group = in_group || c->kind == CUDA_GROUP_START;
    s->played[i] = TRUE;
    s->n_played++;
  }
  return TRUE;
}

/* ------------------------------------------------------------------------ graphs */

static weft_cuda_stream *
first_stream (const struct cuda_score *s)
{
  return s->m->rank[s->row].stream[WEFT_LANE_GPU];
}

static gboolean
is_whole (const struct cuda_score *s)
{
  if (s->n_played > 0)
    return FALSE;
  for (uint32_t i = 0; i < s->call->len; i++) {
    const struct cuda_call *c = &g_array_index (s->call, struct cuda_call, i);
    if (c->op != WEFT_NO_OP && !s->m->rank[c->row].issued[c->op])
      return FALSE;
  }
  return TRUE;
}

/* The first step is played, because libraries load and connect when they are first used, which
 * cannot be captured; evaluations always are. */
static gboolean
wants_graph (const struct cuda_score *s)
{
  const struct weft_control *control = s->m->options.control;

  return s->m->options.graph && s->m->steps > 1 && !(control && control->forward_only) &&
         is_whole (s);
}

static gboolean
capture (struct cuda_score *s, GError **error)
{
  weft_cuda_stream *stream = first_stream (s);

  if (!cuda_ok (s->m, CUDA_CALL (s->m, capture_start, stream), error, "the graph of a step"))
    return FALSE;
  gboolean ok = play_calls (s, error);
  const char *said = CUDA_CALL (s->m, capture_end, stream, &s->graph);
  return ok && cuda_ok (s->m, said, error, "the graph of a step");
}

static gboolean
replay (struct cuda_score *s, GError **error)
{
  if (!s->graph && !capture (s, error))
    return FALSE;
  s->n_played = s->call->len;
  return cuda_ok (s->m, CUDA_CALL (s->m, graph_run, s->graph, first_stream (s)), error,
                  "the graph of a step");
}

static gboolean
play (struct cuda_score *s, GError **error)
{
  struct cuda_rank *first = &s->m->rank[s->row];

  if (s->n_played == s->call->len)
    return TRUE;
  if (!cuda_choose (first, error) || !(wants_graph (s) ? replay : play_calls) (s, error))
    return FALSE;
  return s->n_played < s->call->len ||
         cuda_ok (s->m, CUDA_CALL (s->m, record, first->tail, first_stream (s)), error,
                  "rank %u: the end of a step", first->rank);
}

/* ----------------------------------------------------------------------- threads */

static void *
player_main (void *data)
{
  struct cuda_score *s = data;
  struct cuda_machine *m = s->m;
  uint64_t round = 0;

  pthread_mutex_lock (&m->lock);
  for (;;) {
    while (m->round == round && !m->closing)
      pthread_cond_wait (&m->changed, &m->lock);
    if (m->closing)
      break;
    round = m->round;
    pthread_mutex_unlock (&m->lock);
    s->failed = !play (s, &s->error);
    pthread_mutex_lock (&m->lock);
    if (s->failed && !m->blame)
      m->blame = s;
    if (--m->n_busy == 0)
      pthread_cond_broadcast (&m->changed);
  }
  pthread_mutex_unlock (&m->lock);
  return NULL;
}

static gboolean
play_threads (struct cuda_machine *m, GError **error)
{
  pthread_mutex_lock (&m->lock);
  m->n_busy = m->n_score;
  m->round++;
  pthread_cond_broadcast (&m->changed);
  while (m->n_busy)
    pthread_cond_wait (&m->changed, &m->lock);
  pthread_mutex_unlock (&m->lock);
  if (m->blame)
    g_propagate_error (error, g_steal_pointer (&m->blame->error));
  for (uint32_t i = 0; i < m->n_score; i++)
    g_clear_error (&m->score[i].error);
  return !m->blame;
}

/* -------------------------------------------------------------------------- steps */

static gboolean
open_score (struct cuda_score *s, GError **error)
{
  struct cuda_machine *m = s->m;

  s->played = g_new0 (uint8_t, s->call->len + 1);
  if (!cuda_event_open (&m->rank[s->row], m->options.times || m->options.total,
                        &m->rank[s->row].tail, error))
    return FALSE;
  if (m->n_score == 1)
    return TRUE;
  int failed = pthread_create (&s->thread, NULL, player_main, s);
  s->has_thread = !failed;
  return !failed || weft_run_error (error, "rank %u: no thread for it: %s", m->rank[s->row].rank,
                                    g_strerror (failed));
}

gboolean
cuda_step_open (struct cuda_machine *m, GError **error)
{
  for (uint32_t i = 0; i < m->n_score; i++)
    if (!open_score (&m->score[i], error))
      return FALSE;
  return TRUE;
}

void
cuda_step_close (struct cuda_machine *m)
{
  pthread_mutex_lock (&m->lock);
  m->closing = TRUE;
  pthread_cond_broadcast (&m->changed);
  pthread_mutex_unlock (&m->lock);
  for (uint32_t i = 0; i < m->n_score; i++) {
    struct cuda_score *s = &m->score[i];
    if (s->has_thread)
      pthread_join (s->thread, NULL);
    if (s->graph)
      CUDA_CALL (m, graph_close, s->graph);
    g_free (s->played);
  }
}

static void
begin (struct cuda_machine *m)
{
  m->begun = TRUE;
  m->steps++;
  m->since = g_get_monotonic_time ();
  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    cuda_arena_fill (&m->rank[row]);
  cuda_traced_forget (m);
  for (uint32_t i = 0; i < m->n_score; i++) {
    memset (m->score[i].played, 0, m->score[i].call->len);
    m->score[i].n_played = 0;
  }
}

gboolean
cuda_step_run (struct cuda_machine *m, GError **error)
{
  if (m->broken)
    return weft_run_error (error, "an earlier step has failed: it can only be closed");
  if (!m->begun)
    begin (m);
  gboolean ok = m->n_score > 1 ? play_threads (m, error) : play (&m->score[0], error);
  m->broken = !ok;
  return ok;
}

/* A step that ended early has no end to wait for. */
static gboolean
finish (struct cuda_machine *m, GError **error)
{
  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++) {
      struct cuda_rank *r = &m->rank[row];
      if (r->stream[lane] && !cuda_ok (m, CUDA_CALL (m, finish, r->stream[lane]), error,
                                       "rank %u: lane %s", r->rank, weft_lane_words[lane]))
        return FALSE;
    }
  return TRUE;
}

static gboolean
wait_for_scores (struct cuda_machine *m, GError **error)
{
  for (uint32_t i = 0; i < m->n_score; i++)
    if (m->score[i].n_played < m->score[i].call->len)
      return finish (m, error);
  for (uint32_t i = 0; i < m->n_score; i++)
    if (!wait_for (m, m->rank[m->score[i].row].tail, FALSE, error))
      return FALSE;
  return TRUE;
}

gboolean
cuda_step_wait (struct cuda_machine *m, GError **error)
{
  gboolean ok = wait_for_scores (m, error);

  m->begun = FALSE;
  m->broken = m->broken || !ok;
  return ok;
}
