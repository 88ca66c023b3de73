/* A step makes the calls of the scripts, the lists of calls that machine.h describes, one after the
 * other, or replays the graph that was captured from these calls.
 *
 * A step allocates nothing.  The host does not wait for a GPU before the step is drained, except
 * for counts of rows.  Each rank with its own GPU has its own host thread, so that the calls of
 * several ranks do not delay each other. */
#include "exec_gpu/step.h"
#include "core/base/error.h"
#include "exec_gpu/arena.h"
#include "exec_gpu/counted.h"
#include "exec_gpu/staging.h"
#include "exec_gpu/traced.h"
#include "exec_gpu/watchdog.h"
#include "kernels/team.h"
#include <string.h>

/* a byte whose repetition is a NaN in every float type and an invalid token id in int32 */
#define NAN_BYTE 0xff

/* ---------------------------------------------------------------------- one call */

static void
run_host (void *data)
{
  const struct gpu_host_work *work = data;

  weft_team_run (work->team, &work->kernel);
}

static const char *
play_host (const struct gpu_script *s, const struct gpu_call *c)
{
  const char *said = NULL;

  for (uint32_t i = 0; i < c->n && !said; i++)
    said = GPU_CALL (s->m, host, run_host,
                     &g_array_index (s->host, struct gpu_host_work, c->at + i), c->stream);
  return said;
}

static const char *
make_call (const struct gpu_script *s, const struct gpu_call *c)
{
  struct gpu_machine *m = s->m;
  const struct gpu_rank *r = &m->rank[c->row];

  switch ((enum gpu_call_kind) c->kind) {
  case GPU_RECORD:
    return GPU_CALL (m, record, c->event, c->stream);
  case GPU_STAMP:
    return GPU_CALL (m, stamp, c->event, c->stream);
  case GPU_WAIT:
    return GPU_CALL (m, wait, c->stream, c->event);
  case GPU_COPY:
    return GPU_CALL (m, copy, &g_array_index (s->copy, struct weft_gpu_copy, c->at), c->stream);
  case GPU_FILL:
    return GPU_CALL (m, fill, g_array_index (s->copy, struct weft_gpu_copy, c->at).to, NAN_BYTE,
                     g_array_index (s->copy, struct weft_gpu_copy, c->at).bytes, c->stream);
  case GPU_KERNEL:
    return GPU_CALL (m, kernel, &g_array_index (s->kernel, struct weft_kernel, c->at), c->n,
                     &r->scratch[c->lane], c->stream);
  case GPU_HOST:
    return play_host (s, c);
  case GPU_JOIN:
    return GPU_CALL (m, join, g_ptr_array_index (s->join, c->at), c->stream);
  case GPU_EXCHANGE:
    return GPU_CALL (m, exchange, g_ptr_array_index (s->exchange, c->at), c->stream);
  case GPU_GROUP_START:
    return GPU_CALL (m, group_start);
  case GPU_GROUP_END:
    return GPU_CALL (m, group_end);
  case GPU_COLLECTIVE:
    return GPU_CALL (m, collective,
                     &g_array_index (s->collective, struct weft_gpu_collective, c->at), c->stream);
  case GPU_SEND:
    return GPU_CALL (m, send, &g_array_index (s->transfer, struct weft_gpu_transfer, c->at),
                     c->stream);
  case GPU_RECV:
    return GPU_CALL (m, recv, &g_array_index (s->transfer, struct weft_gpu_transfer, c->at),
                     c->stream);
  case GPU_MARK:
    return GPU_CALL (m, mark, gpu_progress (r, c->lane), c->n, c->stream);
  case GPU_COUNTED:
    return gpu_counted_send (s, c);
  case GPU_TOTAL:
    return gpu_counted_sum (s, c);
  case GPU_READ: /* not a call of the vendor: play_call() waits for the event */
  case GPU_N_CALL:
    break;
  }
  g_assert_not_reached ();
}

/* An evaluation skips the kernels and copies of backward and update, but makes all calls that order
 * streams, such as events. */
static gboolean
is_skipped (const struct gpu_script *s, const struct gpu_call *c)
{
  gboolean orders = c->kind == GPU_RECORD || c->kind == GPU_WAIT || c->kind == GPU_STAMP ||
                    c->kind == GPU_GROUP_START || c->kind == GPU_GROUP_END || c->kind == GPU_MARK;

  return !orders && c->op != WEFT_NO_OP && gpu_skips (&s->m->rank[c->row], c->op);
}

/* Whether a call must be made now. If the call belongs to an op: whether the op was issued. If the
 * call belongs to the whole step: whether all earlier calls of the list have been made. */
static gboolean
is_due (const struct gpu_script *s, uint32_t i)
{
  const struct gpu_call *c = &g_array_index (s->call, struct gpu_call, i);

  if (s->played[i])
    return FALSE;
  if (c->op != WEFT_NO_OP)
    return s->m->rank[c->row].issued[c->op];
  return i == s->n_played;
}

static weft_gpu_comm *
comm_of (const struct gpu_script *s, const struct gpu_call *c)
{
  if (c->kind == GPU_COLLECTIVE)
    return g_array_index (s->collective, struct weft_gpu_collective, c->at).comm;
  if (c->kind == GPU_SEND || c->kind == GPU_RECV)
    return g_array_index (s->transfer, struct weft_gpu_transfer, c->at).comm;
  if (c->kind == GPU_COUNTED)
    return ((const struct gpu_counted *) g_ptr_array_index (s->counted, c->at))->comm;
  return NULL;
}

/* Waits until the collective library has enqueued all ops of the ncclGroup whose last call is
 * `end`. Only then may other work be enqueued on the streams of the group. */
static gboolean
await_launch (struct gpu_script *s, uint32_t end, GError **error)
{
  struct gpu_watchdog watchdog = { .what = "a step", .seconds = s->m->base.deadline };

  for (uint32_t i = end; i-- > 0;) {
    const struct gpu_call *c = &g_array_index (s->call, struct gpu_call, i);
    weft_gpu_comm *comm = comm_of (s, c);
    if (c->kind == GPU_GROUP_START)
      return TRUE;
    if (comm && !gpu_watchdog_wait_comm (s->m, &watchdog, comm, error))
      return FALSE;
  }
  return TRUE;
}

static gboolean
wait_for (struct gpu_machine *m, weft_gpu_event *event, gboolean closely, GError **error)
{
  struct gpu_watchdog watchdog = { .what = "a step",
                                   .seconds = m->base.deadline,
                                   .short_pauses = closely,
                                   .expected = closely ? 0 : m->took };
  return gpu_watchdog_wait_event (m, &watchdog, event, error);
}

static gboolean
play_call (struct gpu_script *s, const struct gpu_call *c, GError **error)
{
  const struct gpu_rank *r = &s->m->rank[c->row];

  if (is_skipped (s, c))
    return TRUE;
  const char *said = GPU_CALL (s->m, about, c->row, c->op);
  if (!said && c->kind == GPU_READ)
    return wait_for (s->m, c->event, TRUE, error);
  if (!said && !(said = make_call (s, c)))
    return TRUE;
  if (c->op == WEFT_NO_OP)
    return gpu_ok (s->m, said, error, "rank %u: the step: %s", r->rank, gpu_call_words[c->kind]);
  g_autofree char *label = weft_op_label (r->p, c->op);
  return gpu_ok (s->m, said, error, "rank %u: %s (%s): %s", r->rank,
                 weft_op_words[r->p->op[c->op].kind], label, gpu_call_words[c->kind]);
}

/* After an error inside a group, ends the group: later calls of this thread to NCCL, such as the
 * abort, would otherwise only be added to the open group. Returns FALSE. */
static gboolean
stop (struct gpu_script *s, gboolean in_group)
{
  if (in_group)
    GPU_CALL (s->m, group_end);
  return FALSE;
}

static gboolean
play_calls (struct gpu_script *s, GError **error)
{
  gboolean in_group = FALSE;

  for (uint32_t i = 0; i < s->call->len; i++) {
    if (!is_due (s, i))
      continue;
    const struct gpu_call *c = &g_array_index (s->call, struct gpu_call, i);
    in_group = in_group && c->kind != GPU_GROUP_END;
    if (!play_call (s, c, error) || (c->kind == GPU_GROUP_END && !await_launch (s, i, error)))
      return stop (s, in_group);
    in_group = in_group || c->kind == GPU_GROUP_START;
    s->played[i] = TRUE;
    s->n_played++;
  }
  return TRUE;
}

/* ------------------------------------------------------------------------ graphs */

static weft_gpu_stream *
first_stream (const struct gpu_script *s)
{
  return s->m->rank[s->row].stream[WEFT_LANE_GPU];
}

static gboolean
is_whole (const struct gpu_script *s)
{
  if (s->n_played > 0)
    return FALSE;
  for (uint32_t i = 0; i < s->call->len; i++) {
    const struct gpu_call *c = &g_array_index (s->call, struct gpu_call, i);
    if (c->op != WEFT_NO_OP && !s->m->rank[c->row].issued[c->op])
      return FALSE;
  }
  return TRUE;
}

/* Whether the step runs as a graph. The first step is replayed call by call, because libraries load
 * code and connect at their first use, which cannot be captured. Evaluations are also replayed call
 * by call. */
static gboolean
wants_graph (const struct gpu_script *s)
{
  const struct weft_control *control = s->m->options.control;

  return s->m->own.graph && s->m->steps > 1 && !(control && control->forward_only) && is_whole (s);
}

static gboolean
capture (struct gpu_script *s, GError **error)
{
  weft_gpu_stream *stream = first_stream (s);

  if (!gpu_ok (s->m, GPU_CALL (s->m, capture_start, stream), error, "the graph of a step"))
    return FALSE;
  gboolean ok = play_calls (s, error);
  const char *said = GPU_CALL (s->m, capture_end, stream, &s->graph);
  return ok && gpu_ok (s->m, said, error, "the graph of a step");
}

static gboolean
replay (struct gpu_script *s, GError **error)
{
  if (!s->graph && !capture (s, error))
    return FALSE;
  s->n_played = s->call->len;
  return gpu_ok (s->m, GPU_CALL (s->m, graph_run, s->graph, first_stream (s)), error,
                 "the graph of a step");
}

static gboolean
play (struct gpu_script *s, GError **error)
{
  struct gpu_rank *first = &s->m->rank[s->row];

  if (s->n_played == s->call->len)
    return TRUE;
  if (!gpu_choose (first, error) || !(wants_graph (s) ? replay : play_calls) (s, error))
    return FALSE;
  return s->n_played < s->call->len ||
         gpu_ok (s->m, GPU_CALL (s->m, record, first->tail, first_stream (s)), error,
                 "rank %u: the end of a step", first->rank);
}

/* ----------------------------------------------------------------------- threads */

static void *
player_main (void *data)
{
  struct gpu_script *s = data;
  struct gpu_machine *m = s->m;
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
play_threads (struct gpu_machine *m, GError **error)
{
  pthread_mutex_lock (&m->lock);
  m->n_busy = m->n_script;
  m->round++;
  pthread_cond_broadcast (&m->changed);
  while (m->n_busy)
    pthread_cond_wait (&m->changed, &m->lock);
  pthread_mutex_unlock (&m->lock);
  if (m->blame)
    g_propagate_error (error, g_steal_pointer (&m->blame->error));
  for (uint32_t i = 0; i < m->n_script; i++)
    g_clear_error (&m->script[i].error);
  return !m->blame;
}

/* -------------------------------------------------------------------------- steps */

static gboolean
open_score (struct gpu_script *s, GError **error)
{
  struct gpu_machine *m = s->m;

  s->played = g_new0 (uint8_t, s->call->len + 1);
  if (!gpu_event_open (&m->rank[s->row], m->options.times || m->options.total,
                       &m->rank[s->row].tail, error))
    return FALSE;
  if (m->n_script == 1)
    return TRUE;
  int failed = pthread_create (&s->thread, NULL, player_main, s);
  s->has_thread = !failed;
  return !failed || weft_run_error (error, "rank %u: no thread: %s", m->rank[s->row].rank,
                                    g_strerror (failed));
}

gboolean
gpu_step_open (struct gpu_machine *m, GError **error)
{
  for (uint32_t i = 0; i < m->n_script; i++)
    if (!open_score (&m->script[i], error))
      return FALSE;
  return TRUE;
}

void
gpu_step_close (struct gpu_machine *m)
{
  pthread_mutex_lock (&m->lock);
  m->closing = TRUE;
  pthread_cond_broadcast (&m->changed);
  pthread_mutex_unlock (&m->lock);
  for (uint32_t i = 0; i < m->n_script; i++) {
    struct gpu_script *s = &m->script[i];
    if (s->has_thread)
      pthread_join (s->thread, NULL);
    if (s->graph)
      GPU_CALL (m, graph_close, s->graph);
    g_free (s->played);
  }
}

static void
begin (struct gpu_machine *m)
{
  m->begun = TRUE;
  m->steps++;
  m->since = g_get_monotonic_time ();
  for (uint32_t row = m->first; row < m->first + m->n_here; row++) {
    gpu_staging_close (&m->rank[row]);
    gpu_arena_fill (&m->rank[row]);
  }
  gpu_traced_forget (m);
  for (uint32_t i = 0; i < m->n_script; i++) {
    memset (m->script[i].played, 0, m->script[i].call->len);
    m->script[i].n_played = 0;
  }
}

gboolean
gpu_step_run (struct gpu_machine *m, GError **error)
{
  if (m->broken)
    return weft_run_error (error, "an earlier step has failed: it can only be closed");
  if (!m->begun)
    begin (m);
  gboolean ok = m->n_script > 1 ? play_threads (m, error) : play (&m->script[0], error);
  m->broken = !ok;
  return ok;
}

/* Waits for the end of every stream, not for the event at the end of the step: a step that was run
 * only in part has not recorded this event. */
static gboolean
finish (struct gpu_machine *m, GError **error)
{
  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++) {
      struct gpu_rank *r = &m->rank[row];
      if (r->stream[lane] && !gpu_ok (m, GPU_CALL (m, finish, r->stream[lane]), error,
                                      "rank %u: lane %s", r->rank, weft_lane_words[lane]))
        return FALSE;
    }
  return TRUE;
}

static gboolean
wait_for_scores (struct gpu_machine *m, GError **error)
{
  for (uint32_t i = 0; i < m->n_script; i++)
    if (m->script[i].n_played < m->script[i].call->len)
      return finish (m, error);
  for (uint32_t i = 0; i < m->n_script; i++)
    if (!wait_for (m, m->rank[m->script[i].row].tail, FALSE, error))
      return FALSE;
  return TRUE;
}

gboolean
gpu_step_wait (struct gpu_machine *m, GError **error)
{
  gboolean ok = wait_for_scores (m, error);

  m->took = g_get_monotonic_time () - m->since;
  m->begun = FALSE;
  m->broken = m->broken || !ok;
  return ok;
}
