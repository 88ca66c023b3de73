/* Checks that no rank waits forever, if every rank has its own GPU and hosts wait for events. The
 * check plays the recorded calls: each host makes its calls in order, each stream runs its items in
 * order, and a launch of communication ends when all peers have posted their calls. */
#include "tests/doubles/cuda_log.h"

/* One entry of a stream in the replay: an event record, a wait for an event, or a launch of
 * communication. */
struct item {
  const struct recorded_call *call;
  const struct item *record; /* set if the entry is a wait: the record entry that it waits for */
  GPtrArray *talk;           /* set if the entry is a launch: its communication calls */
  gboolean posted, done;
};

struct host {
  GPtrArray *call; /* calls of this host in the step, in order */
  uint32_t next;
  struct item *launch; /* the launch of the open group; NULL outside of a group */
};

struct world {
  const cuda_log *log;
  struct host *host;  /* by row */
  GQueue *stream;     /* [stream]: entries that have not run yet, struct item * */
  GPtrArray *item;    /* all entries of all streams, owned by this array */
  GHashTable *record; /* event -> newest entry that records it */
  /* participant of a communication, as text of side_of() -> number of its posted calls */
  GHashTable *posted;
  /* communication call -> number of calls with the same participant before it */
  GHashTable *passed;
};

static void
free_item (void *data)
{
  struct item *item = data;

  if (item->talk)
    g_ptr_array_unref (item->talk);
  g_free (item);
}

static struct item *
new_item (struct world *w, const struct recorded_call *c)
{
  struct item *item = g_new0 (struct item, 1);

  item->call = c;
  g_ptr_array_add (w->item, item);
  return item;
}

static void
give (struct world *w, const struct recorded_call *c, struct item *item)
{
  g_queue_push_tail (&w->stream[cuda_log_stream (w->log, c)], item);
}

/* ------------------------------------------------------------------------- meetings */

/* Returns a text that identifies one participant of a communication call: the communicator and the
 * member (collective), or the communicator, sender, receiver and direction (transfer). In a
 * transfer, member 0 is the caller and member 1 its peer. */
static char *
side_of (const struct world *w, const struct recorded_call *c, uint32_t member)
{
  if (c->kind == RECORDED_collective) {
    const struct recorded_thing *comm =
        (const void *) g_array_index (w->log->device->collective, struct weft_gpu_collective,
                                      c->at)
            .comm;
    return g_strdup_printf ("%d %u %u all %u", comm->color, comm->parent, comm->n, member);
  }
  const struct weft_gpu_transfer *t =
      &g_array_index (w->log->device->transfer, struct weft_gpu_transfer, c->at);
  const struct recorded_thing *comm = (const void *) t->comm;
  gboolean sends = c->kind == RECORDED_send;
  return g_strdup_printf ("%d %u %u %s %u %u", comm->color, comm->parent, comm->n,
                          sends == (member == 0) ? "send" : "recv", sends ? comm->rank : t->peer,
                          sends ? t->peer : comm->rank);
}

static uint32_t
times (GHashTable *table, const void *key)
{
  return GPOINTER_TO_UINT (g_hash_table_lookup (table, key));
}

static void
post (struct world *w, struct item *launch)
{
  for (uint32_t i = 0; i < launch->talk->len; i++) {
    const struct recorded_call *c = g_ptr_array_index (launch->talk, i);
    const struct weft_gpu_collective *x =
        &g_array_index (w->log->device->collective, struct weft_gpu_collective, c->at);
    uint32_t me = c->kind == RECORDED_collective
                      ? ((const struct recorded_thing *) (const void *) x->comm)->rank
                      : 0;
    char *side = side_of (w, c, me);
    uint32_t n = times (w->posted, side) + 1;
    g_hash_table_insert (w->passed, (void *) (uintptr_t) c, GUINT_TO_POINTER (n));
    g_hash_table_insert (w->posted, side, GUINT_TO_POINTER (n));
  }
  launch->posted = TRUE;
}

static gboolean
have_all_come (const struct world *w, const struct recorded_call *c)
{
  uint32_t first = 1, last = 1; /* a transfer waits for its peer only, which is member 1 */

  if (c->kind == RECORDED_collective) {
    const struct weft_gpu_collective *x =
        &g_array_index (w->log->device->collective, struct weft_gpu_collective, c->at);
    first = 0;
    last = ((const struct recorded_thing *) (const void *) x->comm)->n - 1;
  }
  for (uint32_t member = first; member <= last; member++) {
    g_autofree char *side = side_of (w, c, member);
    if (times (w->posted, side) < times (w->passed, c))
      return FALSE;
  }
  return TRUE;
}

static gboolean
is_over (const struct world *w, const struct item *launch)
{
  for (uint32_t i = 0; i < launch->talk->len; i++)
    if (!have_all_come (w, g_ptr_array_index (launch->talk, i)))
      return FALSE;
  return TRUE;
}

/* ---------------------------------------------------------------------- who goes on */

/* Runs the first entry of a stream if it can run. Returns whether anything changed. */
static gboolean
run_stream (struct world *w, GQueue *stream)
{
  struct item *item = g_queue_peek_head (stream);

  if (!item || (item->record && !item->record->done))
    return FALSE;
  if (item->talk && !item->posted) {
    post (w, item);
    return TRUE;
  }
  if (item->talk && !is_over (w, item))
    return FALSE;
  item->done = TRUE;
  g_queue_pop_head (stream);
  return TRUE;
}

static gboolean
is_talk (const struct recorded_call *c)
{
  return c->kind == RECORDED_collective || c->kind == RECORDED_send || c->kind == RECORDED_recv;
}

static void
end_group (struct world *w, struct host *h)
{
  if (h->launch->talk->len)
    give (w, g_ptr_array_index (h->launch->talk, 0), h->launch);
  h->launch = NULL;
}

static void
take_record (struct world *w, const struct recorded_call *c)
{
  struct item *item = new_item (w, c);

  g_hash_table_insert (w->record, (void *) (uintptr_t) c->thing, item);
  give (w, c, item);
}

static void
take_wait (struct world *w, const struct recorded_call *c)
{
  struct item *item = new_item (w, c);

  item->record = g_hash_table_lookup (w->record, c->thing);
  give (w, c, item);
}

/* Makes the next call of a host, if it can be made now: a query of an event waits until the event
 * is done. Returns whether the call was made. */
static gboolean
run_host (struct world *w, struct host *h)
{
  if (h->next == h->call->len)
    return FALSE;
  const struct recorded_call *c = g_ptr_array_index (h->call, h->next);
  const struct item *record = g_hash_table_lookup (w->record, c->thing);
  if (c->kind == RECORDED_query && !(record && record->done))
    return FALSE;
  h->next++;
  if (c->kind == RECORDED_group_start) {
    h->launch = new_item (w, c);
    h->launch->talk = g_ptr_array_new ();
  } else if (c->kind == RECORDED_group_end) {
    end_group (w, h);
  } else if (is_talk (c)) {
    g_ptr_array_add (h->launch->talk, (void *) (uintptr_t) c);
  } else if (c->kind == RECORDED_record) {
    take_record (w, c);
  } else if (c->kind == RECORDED_wait) {
    take_wait (w, c);
  }
  return TRUE;
}

static gboolean
run_any (struct world *w)
{
  gboolean moved = FALSE;

  for (uint32_t row = 0; row < w->log->x->actors->n; row++)
    while (run_host (w, &w->host[row]))
      moved = TRUE;
  for (uint32_t i = 0; i < w->log->n_stream; i++)
    while (run_stream (w, &w->stream[i]))
      moved = TRUE;
  return moved;
}

static char *
find_stuck (const struct world *w)
{
  for (uint32_t row = 0; row < w->log->x->actors->n; row++) {
    const struct host *h = &w->host[row];
    if (h->next == h->call->len)
      continue;
    const struct recorded_call *c = g_ptr_array_index (h->call, h->next);
    g_autofree char *name = cuda_log_name (w->log, row, c->op);
    return g_strdup_printf ("%s: its host waits for ever", name);
  }
  for (uint32_t i = 0; i < w->log->n_stream; i++) {
    const struct item *item = g_queue_peek_head (&w->stream[i]);
    if (!item)
      continue;
    g_autofree char *name = cuda_log_name (w->log, item->call->row, item->call->op);
    return g_strdup_printf ("%s: its stream waits for ever", name);
  }
  return NULL;
}

char *
cuda_log_hosts (const cuda_log *log)
{
  uint32_t n = log->x->actors->n;
  struct world w = { .log = log,
                     .host = g_new0 (struct host, n),
                     .stream = g_new0 (GQueue, log->n_stream + 1),
                     .item = g_ptr_array_new_with_free_func (free_item),
                     .record = g_hash_table_new (NULL, NULL),
                     .posted = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL),
                     .passed = g_hash_table_new (NULL, NULL) };

  for (uint32_t row = 0; row < n; row++)
    w.host[row].call = g_ptr_array_new ();
  for (uint32_t i = 0; i < log->n; i++)
    g_ptr_array_add (w.host[cuda_log_call (log, i)->row].call,
                     (void *) (uintptr_t) cuda_log_call (log, i));
  while (run_any (&w))
    continue;
  char *wrong = find_stuck (&w);
  for (uint32_t row = 0; row < n; row++)
    g_ptr_array_unref (w.host[row].call);
  for (uint32_t i = 0; i < log->n_stream; i++)
    g_queue_clear (&w.stream[i]);
  g_ptr_array_unref (w.item);
  g_hash_table_unref (w.record);
  g_hash_table_unref (w.posted);
  g_hash_table_unref (w.passed);
  g_free (w.host);
  g_free (w.stream);
  return wrong;
}
