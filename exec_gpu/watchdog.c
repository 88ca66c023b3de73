/* Waits for work in which other ranks take part. The wait ends at the deadline, or when another
 * process has ended.
 *
 * The waiting thread polls its communicators and the connections to the other processes. When
 * another process asks for the status of this process, the thread sends it. When the deadline has
 * passed, the thread asks all processes for their status. */
#include "exec_gpu/watchdog.h"
#include "core/base/error.h"
#include "exec_gpu/comm.h"
#include "launch/rendezvous.h"

#define LEAST_NAP 20u /* shortest pause between two polls, in microseconds */
#define MOST_NAP 200u
#define LEAST_SPIN 1000 /* microseconds before and after the expected end without pauses ... */
#define SPIN_SHARE 100  /* ... or this part of the expected time, if that is longer */
#define REPORT_SECONDS 3 /* time limit in seconds for the other processes to send their status */

/* Finds the first communication launch of a lane that has not ended; the lane counts its completed
 * launches in a word of the mailbox. */
static const struct gpu_unit *
late_unit (const struct gpu_rank *r, uint32_t lane)
{
  uint32_t done = *(volatile uint32_t *) gpu_progress (r, lane);

  for (uint32_t i = done; i < gpu_units_of (r, lane); i++) {
    const struct gpu_unit *u = gpu_unit_at (r, lane, i);
    const struct weft_op *row = &r->p->op[gpu_unit_op (r, u, 0)];
    if (weft_op_is_comm (row->kind) && gpu_comm_of (r, row) && !u->idle)
      return u;
  }
  return NULL;
}

static void
append_rank (const struct gpu_rank *r, GString *text)
{
  const struct gpu_script *s = gpu_script_of (r->m, r);
  uint32_t played = s->n_played, all = s->call->len;

  if (played < all)
    g_string_append_printf (text, " rank %u has issued %u of %u calls;", r->rank, played, all);
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++) {
    const struct gpu_unit *u = late_unit (r, lane);
    if (!u)
      continue;
    uint32_t op = gpu_unit_op (r, u, 0);
    g_autofree char *label = weft_op_label (r->p, op);
    g_string_append_printf (text, " rank %u has not finished %s %s (op %u);", r->rank,
                            weft_op_words[r->p->op[op].kind], label, op);
  }
}

/* A text that lists the communication that each rank of this process waits for.  The caller frees
 * the text. */
static char *
words_of (const struct gpu_machine *m)
{
  GString *text = g_string_new (NULL);

  for (uint32_t row = m->first; row < m->first + m->n_here && m->begun; row++)
    append_rank (&m->rank[row], text);
  if (text->len == 0)
    g_string_append (text, m->begun ? " no communication is late" : " opens communicators");
  return g_string_free (text, FALSE);
}

static gboolean
report_late (const struct gpu_machine *m, const struct gpu_watchdog *v, GError **error)
{
  g_autofree char *words = words_of (m), *others = NULL;

  if (m->options.peers)
    others = weft_rendezvous_ask_status (m->options.peers, words, REPORT_SECONDS);
  return weft_run_error (error, "%s takes longer than %g s (deadline):%s%s%s", v->what, v->seconds,
                         words, others ? " of the others: " : "", others ? others : "");
}

static gboolean
look_at_peers (const struct gpu_machine *m, GError **error)
{
  gboolean asked = FALSE;

  if (!m->options.peers)
    return TRUE;
  if (!weft_rendezvous_poll (m->options.peers, &asked, error))
    return FALSE;
  if (asked) {
    g_autofree char *words = words_of (m);
    weft_rendezvous_set_status (m->options.peers, words);
  }
  return TRUE;
}

static gboolean
look_at_scores (struct gpu_machine *m, GError **error)
{
  pthread_mutex_lock (&m->lock);
  const struct gpu_script *blame = m->blame;
  pthread_mutex_unlock (&m->lock);
  return !blame || weft_run_error (error, "rank %u has failed", m->rank[blame->row].rank);
}

gulong
gpu_watchdog_pause (const struct gpu_watchdog *v, gint64 elapsed)
{
  gint64 spin = MAX (LEAST_SPIN, v->expected / SPIN_SHARE), left = v->expected - elapsed;

  if (v->expected && ABS (left) < spin)
    return 0;
  return v->short_pauses ? LEAST_NAP : CLAMP (2 * v->pause, LEAST_NAP, MOST_NAP);
}

gboolean
gpu_watchdog_sleep (struct gpu_machine *m, struct gpu_watchdog *v, GError **error)
{
  gint64 elapsed = g_get_monotonic_time () - m->since;
  gulong pause = gpu_watchdog_pause (v, elapsed);

  if (v->seconds > 0 && (double) elapsed > 1e6 * v->seconds)
    return report_late (m, v, error);
  if (v->pause == MOST_NAP &&
      (!look_at_scores (m, error) || !gpu_comm_check_all (m, error) || !look_at_peers (m, error)))
    return FALSE;
  v->pause = CLAMP (2 * v->pause, LEAST_NAP, MOST_NAP);
  if (pause)
    g_usleep (pause);
  else
    g_thread_yield ();
  return TRUE;
}

gboolean
gpu_watchdog_wait_event (struct gpu_machine *m, struct gpu_watchdog *v, weft_gpu_event *event,
                         GError **error)
{
  gboolean done = FALSE;

  for (;;) {
    if (!gpu_ok (m, GPU_CALL (m, query, event, &done), error, "an event of %s", v->what))
      return FALSE;
    if (done)
      return TRUE;
    if (!gpu_watchdog_sleep (m, v, error))
      return FALSE;
  }
}

gboolean
gpu_watchdog_wait_comm (struct gpu_machine *m, struct gpu_watchdog *v, weft_gpu_comm *comm,
                        GError **error)
{
  gboolean ready = FALSE;

  for (;;) {
    if (!gpu_ok (m, GPU_CALL (m, comm_ready, comm, &ready), error, "a communicator"))
      return FALSE;
    if (ready)
      return TRUE;
    if (!gpu_watchdog_sleep (m, v, error))
      return FALSE;
  }
}
