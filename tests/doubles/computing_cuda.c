#include "tests/doubles/computing_cuda.h"
#include "exec_gpu/cuda/module/fused.h"
#include "exec_gpu/cuda/module/sums.h"
#include "kernels/cuda/table.h"
#include "tests/doubles/emulated_cuda.h"
#include <string.h>

/* A query of an event fails if the event is not done and no work was enqueued for this long. */
#define PATIENCE (10 * G_USEC_PER_SEC)
#define STUCK "streams wait for each other for ever"

struct weft_gpu_stream {
  uint32_t device;
  GQueue item; /* work items of the stream, struct computing_item * */
  weft_gpu_graph *into;
};

struct weft_gpu_event {
  uint32_t device;
  gboolean timed;
  uint64_t recorded, done; /* number of records that were enqueued, and of those that are done */
  /* number of work items of the device that were done before the newest record */
  uint64_t at;
  weft_gpu_graph *captured;
};

struct node {
  weft_gpu_stream *stream;
  struct computing_item *item;
};

struct weft_gpu_graph {
  weft_gpu_stream *origin;
  GArray *node; /* struct node */
  gboolean ended;
};

struct thread {
  uint32_t device, depth; /* depth: number of open (nested) groups */
  gboolean captures;
  GArray *talk; /* communication calls of the open group, struct computing_talk */
};

static void
free_thread (void *data)
{
  g_array_unref (((struct thread *) data)->talk);
  g_free (data);
}

/* Returns the state of the calling thread. The caller of the function holds the lock. */
static struct thread *
this_thread (computing_cuda *d)
{
  struct thread *t = pthread_getspecific (d->thread);

  if (!t) {
    t = g_new0 (struct thread, 1);
    t->talk = g_array_new (FALSE, FALSE, sizeof (struct computing_talk));
    g_ptr_array_add (d->threads, t);
    pthread_setspecific (d->thread, t);
  }
  return t;
}

/* --------------------------------------------------------------------------- memory */

static const char *
alloc (computing_cuda *d, enum weft_pool pool, uint64_t bytes, void **out)
{
  if (this_thread (d)->captures)
    return "memory is allocated while a graph is captured";
  *out = computing_map (d, pool, bytes);
  d->bytes[pool] += bytes;
  d->n_open++;
  return NULL;
}

static const char *
release (computing_cuda *d, enum weft_pool pool, const void *at)
{
  uint64_t bytes = 0;

  if (!computing_unmap (d, pool, at, &bytes))
    return "memory is freed that is not allocated";
  d->bytes[pool] -= bytes;
  d->n_open--;
  return NULL;
}

/* ---------------------------------------------------------------------------- items */

static struct computing_item *
copy_item (const struct computing_item *item)
{
  struct computing_item *copy = g_memdup2 (item, sizeof *item);

  if (copy->kernel)
    g_rc_box_acquire (copy->kernel);
  if (copy->talk)
    g_array_ref (copy->talk);
  return copy;
}

static void
free_item (void *data)
{
  struct computing_item *item = data;

  if (item->kernel)
    g_rc_box_release (item->kernel);
  if (item->talk)
    g_array_unref (item->talk);
  if (item->meeting)
    g_ptr_array_unref (item->meeting);
  g_free (item);
}

/* Appends a work item to a stream: for a call of the executor, or when a graph is launched. When a
 * wait is appended, the record of its event is chosen; when a communication call is appended, its
 * collective or transfer is chosen. */
static void
give (computing_cuda *d, weft_gpu_stream *stream, struct computing_item *item)
{
  item->number = d->n_given++;
  if (item->kind == COMPUTING_RECORD)
    item->generation = ++item->event->recorded;
  if (item->kind == COMPUTING_WAIT)
    item->generation = item->event->recorded;
  if (item->kind == COMPUTING_LAUNCH) {
    item->meeting = g_ptr_array_new ();
    for (uint32_t i = 0; i < item->talk->len; i++)
      g_ptr_array_add (item->meeting,
                       computing_meet (&g_array_index (item->talk, struct computing_talk, i)));
  }
  g_queue_push_tail (&stream->item, item);
}

static void
put (computing_cuda *d, weft_gpu_stream *stream, const struct computing_item *like)
{
  if (stream->into) {
    struct node node = { stream, copy_item (like) };
    g_array_append_val (stream->into->node, node);
  } else
    give (d, stream, copy_item (like));
}

static const char *
enqueue (computing_cuda *d, weft_gpu_stream *stream, const struct computing_item *like)
{
  if (this_thread (d)->device != stream->device)
    return "work is enqueued on a stream of another device";
  put (d, stream, like);
  return NULL;
}

/* ----------------------------------------------------------------------------- work */

static void
run_kernels (computing_cuda *d, const struct computing_item *item)
{
  const struct weft_cuda_launch *l = item->kernel;

  emulated_order_of_threads (d->rand && g_rand_boolean (d->rand));
  computing_fence (d, l, item->n);
  d->said =
      item->fused ? computing_fused_run (d, item) : weft_cuda_launch_all (item->op, l, item->n);
  computing_unfence (d);
}

/* Runs a host function of a stream. On a GPU a host function runs concurrently with device work, so
 * device memory is inaccessible to it. */
static void
run_host (computing_cuda *d, const struct computing_item *item)
{
  computing_let_host (d, FALSE);
  item->run (item->data);
}

static void
run_record (computing_cuda *d, const struct computing_item *item)
{
  item->event->done = item->generation;
  item->event->at = d->now;
}

static void
run_item (computing_cuda *d, const struct computing_item *item)
{
  switch (item->kind) {
  case COMPUTING_RECORD:
    run_record (d, item);
    break;
  case COMPUTING_COPY:
  case COMPUTING_FILL:
    computing_copy (d, item);
    break;
  case COMPUTING_KERNEL:
    run_kernels (d, item);
    break;
  case COMPUTING_HOST:
    run_host (d, item);
    break;
  case COMPUTING_MARK:
    *item->word = item->value;
    break;
  case COMPUTING_JOIN:
    d->said = weft_cuda_join_terms (&item->join, NULL);
    break;
  case COMPUTING_EXCHANGE:
    d->said = weft_cuda_exchange_rows (&item->exchange, NULL);
    break;
  case COMPUTING_WAIT:
  case COMPUTING_LAUNCH:
    break;
  }
  d->now++;
  d->n_work[item->kind]++;
}

static void
post (computing_cuda *d, struct computing_item *item)
{
  item->posted = TRUE;
  for (uint32_t i = 0; i < item->talk->len && !d->said; i++)
    d->said = computing_come (d, g_ptr_array_index (item->meeting, i),
                              &g_array_index (item->talk, struct computing_talk, i));
}

static gboolean
is_over (const struct computing_item *item)
{
  for (uint32_t i = 0; i < item->meeting->len; i++)
    if (!computing_is_over (g_ptr_array_index (item->meeting, i)))
      return FALSE;
  return TRUE;
}

static gboolean
is_ready (const struct computing_item *item)
{
  if (item->kind == COMPUTING_WAIT)
    return item->event->done >= item->generation;
  return item->kind != COMPUTING_LAUNCH || !item->posted || is_over (item);
}

/* Returns a stream whose first work item can run: the stream of the oldest item, or a random one if
 * the device has a seed. Returns NULL if no item can run. */
static weft_gpu_stream *
choose_stream (computing_cuda *d)
{
  weft_gpu_stream *chosen = NULL;
  uint32_t n = 0;

  for (uint32_t i = 0; i < d->stream->len; i++) {
    weft_gpu_stream *s = g_ptr_array_index (d->stream, i);
    const struct computing_item *item = g_queue_peek_head (&s->item), *best;
    if (!item || !is_ready (item))
      continue;
    best = chosen ? g_queue_peek_head (&chosen->item) : NULL;
    if (d->rand ? g_rand_int_range (d->rand, 0, (gint32) ++n) == 0
                : !best || item->number < best->number)
      chosen = s;
  }
  return chosen;
}

/* Whether device memory must be accessible while a work item runs. Copies and fills make only their
 * own pages accessible, because a state is read and written in many small copies, and mprotect() of
 * all memory would take most of their time. */
static gboolean
needs_memory (enum computing_kind kind)
{
  return kind != COMPUTING_COPY && kind != COMPUTING_FILL && kind != COMPUTING_RECORD &&
         kind != COMPUTING_WAIT && kind != COMPUTING_HOST;
}

static gboolean
work_once (computing_cuda *d)
{
  weft_gpu_stream *s = d->said ? NULL : choose_stream (d);

  if (!s)
    return FALSE;
  struct computing_item *item = g_queue_peek_head (&s->item);
  if (needs_memory (item->kind))
    computing_let_host (d, TRUE);
  if (item->kind == COMPUTING_LAUNCH && !item->posted) {
    post (d, item);
    return TRUE;
  }
  run_item (d, item);
  free_item (g_queue_pop_head (&s->item));
  return TRUE;
}

static gboolean
is_done (const weft_gpu_event *event, weft_gpu_stream *stream)
{
  return event ? event->done >= event->recorded : g_queue_is_empty (&stream->item);
}

/* Runs work until the event is done or, if event is NULL, until the stream is empty. Sets *done to
 * FALSE if the remaining work cannot run (streams wait for each other, or for work that is not
 * enqueued yet). */
static const char *
work (computing_cuda *d, const weft_gpu_event *event, weft_gpu_stream *stream, gboolean *done)
{
  if (this_thread (d)->captures)
    return "the host waits while a graph is captured";
  while (!is_done (event, stream) && work_once (d))
    ;
  computing_let_host (d, FALSE);
  *done = is_done (event, stream);
  return d->said;
}

/* Runs work until the event is done. If no work can run, this is no error as long as calls enqueue
 * new work, because another thread may still enqueue the missing work. */
static const char *
look_for (computing_cuda *d, const weft_gpu_event *event, gboolean *done)
{
  const char *said = work (d, event, NULL, done);

  if (said || *done || d->n_given != d->n_seen)
    d->seen = g_get_monotonic_time ();
  d->n_seen = d->n_given;
  return g_get_monotonic_time () - d->seen < PATIENCE ? said : STUCK;
}

static const char *
finish (computing_cuda *d, weft_gpu_stream *stream)
{
  gboolean done;
  const char *said = work (d, NULL, stream, &done);
  return said || done ? said : STUCK;
}

/* ------------------------------------------------------------------- devices, memory */

#define LOCKED(d, type, value)                                                                     \
  pthread_mutex_lock (&(d)->lock);                                                                 \
  type locked_result = value;                                                                      \
  pthread_mutex_unlock (&(d)->lock);                                                               \
  return locked_result

static const char *
comp_devices (void *self, uint32_t *n)
{
  *n = ((computing_cuda *) self)->devices;
  return NULL;
}

static const char *
comp_describe (void *self, uint32_t device, struct weft_gpu_device *out)
{
  const computing_cuda *d = self;
  const uint64_t bytes = (uint64_t) 1 << 40;

  (void) device;
  *out = (struct weft_gpu_device){ .name = "computing",
                                    .bytes = bytes,
                                    .free = bytes - d->bytes[WEFT_POOL_DEVICE] -
                                            d->bytes[WEFT_POOL_SYMMETRIC],
                                    .sms = 132,
                                    .major = 9 };
  return NULL;
}

static const char *
choose (computing_cuda *d, uint32_t device)
{
  this_thread (d)->device = device;
  return device < d->devices ? NULL : "no such device";
}

static const char *
comp_choose (void *self, uint32_t device)
{
  LOCKED ((computing_cuda *) self, const char *, choose (self, device));
}

static const char *
comp_about (void *self, uint32_t row, uint32_t op)
{
  (void) self, (void) row, (void) op;
  return NULL;
}

static const char *
comp_alloc (void *self, enum weft_pool pool, uint64_t bytes, void **out)
{
  LOCKED ((computing_cuda *) self, const char *, alloc (self, pool, bytes, out));
}

static const char *
comp_release (void *self, enum weft_pool pool, void *at)
{
  LOCKED ((computing_cuda *) self, const char *, release (self, pool, at));
}

/* ------------------------------------------------------------------ streams, events */

static const char *
comp_stream_open (void *self, gboolean urgent, weft_gpu_stream **out)
{
  computing_cuda *d = self;
  weft_gpu_stream *s = g_new0 (weft_gpu_stream, 1);

  (void) urgent;
  pthread_mutex_lock (&d->lock);
  s->device = this_thread (d)->device;
  g_ptr_array_add (d->stream, s);
  d->n_open++;
  pthread_mutex_unlock (&d->lock);
  *out = s;
  return NULL;
}

/* Closes a stream. Its unfinished work is discarded. */
static const char *
comp_stream_close (void *self, weft_gpu_stream *stream)
{
  computing_cuda *d = self;

  pthread_mutex_lock (&d->lock);
  g_queue_clear_full (&stream->item, free_item);
  g_ptr_array_remove (d->stream, stream);
  d->n_open--;
  pthread_mutex_unlock (&d->lock);
  g_free (stream);
  return NULL;
}

static const char *
comp_event_open (void *self, gboolean timed, weft_gpu_event **out)
{
  computing_cuda *d = self;
  weft_gpu_event *e = g_new0 (weft_gpu_event, 1);

  pthread_mutex_lock (&d->lock);
  e->device = this_thread (d)->device;
  d->n_open++;
  pthread_mutex_unlock (&d->lock);
  e->timed = timed;
  *out = e;
  return NULL;
}

static const char *
comp_event_close (void *self, weft_gpu_event *event)
{
  computing_cuda *d = self;

  pthread_mutex_lock (&d->lock);
  d->n_open--;
  pthread_mutex_unlock (&d->lock);
  g_free (event);
  return NULL;
}

/* Records an event. An event that is recorded during capture belongs to the graph, and its time
 * cannot be read. */
static const char *
record (computing_cuda *d, weft_gpu_event *event, weft_gpu_stream *stream)
{
  if (event->device != stream->device)
    return "an event of another device is recorded";
  event->captured = stream->into;
  return enqueue (d, stream, &(struct computing_item){ .kind = COMPUTING_RECORD, .event = event });
}

static const char *
comp_record (void *self, weft_gpu_event *event, weft_gpu_stream *stream)
{
  LOCKED ((computing_cuda *) self, const char *, record (self, event, stream));
}

/* Records an event with a time. During capture this is an external record: the time can be read,
 * and no stream of the graph may wait for the event. */
static const char *
stamp (computing_cuda *d, weft_gpu_event *event, weft_gpu_stream *stream)
{
  event->captured = NULL;
  return enqueue (d, stream, &(struct computing_item){ .kind = COMPUTING_RECORD, .event = event });
}

static const char *
comp_stamp (void *self, weft_gpu_event *event, weft_gpu_stream *stream)
{
  LOCKED ((computing_cuda *) self, const char *, stamp (self, event, stream));
}

/* Makes a stream wait for an event. A stream outside the capture that waits for an event of the
 * capture becomes part of the capture. */
static const char *
wait_for (computing_cuda *d, weft_gpu_stream *stream, weft_gpu_event *event)
{
  if (event->captured && event->captured->ended)
    return "a stream waits for an event of a capture that has ended";
  if (stream->into && stream->into != event->captured)
    return "a captured stream waits for an event that is not captured";
  stream->into = event->captured;
  return enqueue (d, stream, &(struct computing_item){ .kind = COMPUTING_WAIT, .event = event });
}

static const char *
comp_wait (void *self, weft_gpu_stream *stream, weft_gpu_event *event)
{
  LOCKED ((computing_cuda *) self, const char *, wait_for (self, stream, event));
}

static const char *
comp_query (void *self, weft_gpu_event *event, gboolean *done)
{
  LOCKED ((computing_cuda *) self, const char *, look_for (self, event, done));
}

static const char *
comp_finish (void *self, weft_gpu_stream *stream)
{
  LOCKED ((computing_cuda *) self, const char *, finish (self, stream));
}

/* Returns the time between two records: one microsecond for each work item that was done between
 * them. */
static const char *
comp_elapsed (void *self, weft_gpu_event *from, weft_gpu_event *to, double *seconds)
{
  (void) self;
  *seconds = 1e-6 * ((double) to->at - (double) from->at);
  if (!from->timed || !to->timed)
    return "an event was not recorded with a time";
  return from->captured || to->captured ? "an event was captured" : NULL;
}

/* ---------------------------------------------------------------------------- calls */

static const char *
add (void *self, weft_gpu_stream *stream, const struct computing_item *like)
{
  LOCKED ((computing_cuda *) self, const char *, enqueue (self, stream, like));
}

computing_adder *const computing_add = add;

static const char *
comp_copy (void *self, const struct weft_gpu_copy *copy, weft_gpu_stream *stream)
{
  return add (self, stream, &(struct computing_item){ .kind = COMPUTING_COPY, .copy = *copy });
}

static const char *
comp_fill (void *self, void *at, uint8_t byte, uint64_t bytes, weft_gpu_stream *stream)
{
  return add (self, stream,
              &(struct computing_item){
                  .kind = COMPUTING_FILL, .copy = { .to = at, .bytes = bytes }, .value = byte });
}

/* Enqueues kernels. Copies their arguments now, because a GPU reads the arguments of a launch when
 * the call is made. */
static const char *
comp_kernel (void *self, const struct weft_kernel *k, uint32_t n,
             const struct weft_gpu_scratch *scratch, weft_gpu_stream *stream)
{
  struct weft_cuda_launch *l = g_rc_box_alloc0 (MAX (n, 1) * sizeof *l);

  for (uint32_t i = 0; i < n; i++) {
    g_assert (k[i].kind == k[0].kind);
    l[i] = weft_cuda_launch_of (&k[i]);
    l[i].scratch = scratch->at;
    l[i].scratch_bytes = scratch->bytes;
    l[i].warpgroups = (uint8_t) ((const computing_cuda *) self)->warpgroups;
  }
  struct computing_item item = { .kind = COMPUTING_KERNEL, .kernel = l, .n = n, .op = k[0].kind };
  item.fused = computing_fused_takes (self, k);
  item.same = k->deterministic;
  const char *said = add (self, stream, &item);
  g_rc_box_release (l);
  return said;
}

static const char *
comp_host (void *self, void (*run) (void *data), void *data, weft_gpu_stream *stream)
{
  return add (self, stream,
              &(struct computing_item){ .kind = COMPUTING_HOST, .run = run, .data = data });
}

static const char *
comp_mark (void *self, uint32_t *word, uint32_t value, weft_gpu_stream *stream)
{
  return add (self, stream,
              &(struct computing_item){ .kind = COMPUTING_MARK, .word = word, .value = value });
}

static const char *
comp_join (void *self, const struct weft_gpu_join *join, weft_gpu_stream *stream)
{
  return add (self, stream, &(struct computing_item){ .kind = COMPUTING_JOIN, .join = *join });
}

static const char *
comp_exchange (void *self, const struct weft_gpu_exchange *x, weft_gpu_stream *stream)
{
  return add (self, stream, &(struct computing_item){ .kind = COMPUTING_EXCHANGE, .exchange = *x });
}

/* --------------------------------------------------------------------- communication */

/* Ends a group of communication calls. Calls that follow each other on one stream become one launch
 * on this stream. */
static const char *
end_launch (computing_cuda *d, struct thread *t)
{
  g_autoptr (GArray) all = t->talk;

  t->talk = g_array_new (FALSE, FALSE, sizeof (struct computing_talk));
  for (guint i = 0, n; i < all->len; i += n) {
    const struct computing_talk *first = &g_array_index (all, struct computing_talk, i);
    for (n = 1; i + n < all->len && first[n].on == first->on; n++)
      ;
    g_autoptr (GArray) some = g_array_new (FALSE, FALSE, sizeof *first);
    g_array_append_vals (some, first, n);
    put (d, first->on, &(struct computing_item){ .kind = COMPUTING_LAUNCH, .talk = some });
  }
  return NULL;
}

static const char *
talk (computing_cuda *d, struct computing_talk what, weft_gpu_stream *stream)
{
  struct thread *t = this_thread (d);

  if (t->device != stream->device)
    return "work is enqueued on a stream of another device";
  what.on = stream;
  g_array_append_val (t->talk, what);
  return t->depth ? NULL : end_launch (d, t);
}

static const char *
comp_group_start (void *self)
{
  computing_cuda *d = self;

  pthread_mutex_lock (&d->lock);
  this_thread (d)->depth++;
  pthread_mutex_unlock (&d->lock);
  return NULL;
}

static const char *
end_group (computing_cuda *d)
{
  struct thread *t = this_thread (d);

  g_assert (t->depth > 0);
  return --t->depth ? NULL : end_launch (d, t);
}

static const char *
comp_group_end (void *self)
{
  LOCKED ((computing_cuda *) self, const char *, end_group (self));
}

static const char *
comp_collective (void *self, const struct weft_gpu_collective *c, weft_gpu_stream *stream)
{
  computing_cuda *d = self;
  const struct computing_talk what = { .kind = c->kind,
                                       .comm = c->comm,
                                       .from = c->from,
                                       .to = c->to,
                                       .n = c->n,
                                       .dtype = c->dtype,
                                       .reduce = c->reduce,
                                       .root = c->root,
                                       .factor = c->reduce == WEFT_REDUCE_PREMUL
                                                     ? g_array_index (d->scaled, double, c->scaled)
                                                     : 0 };

  LOCKED (d, const char *, talk (d, what, stream));
}

static const char *
comp_send (void *self, const struct weft_gpu_transfer *t, weft_gpu_stream *stream)
{
  LOCKED ((computing_cuda *) self, const char *,
          talk (self, computing_transfer (WEFT_OP_SEND, t), stream));
}

static const char *
comp_recv (void *self, const struct weft_gpu_transfer *t, weft_gpu_stream *stream)
{
  LOCKED ((computing_cuda *) self, const char *,
          talk (self, computing_transfer (WEFT_OP_RECV, t), stream));
}

/* --------------------------------------------------------------------------- graphs */

static const char *
start_capture (computing_cuda *d, weft_gpu_stream *stream)
{
  weft_gpu_graph *g = g_new0 (weft_gpu_graph, 1);

  g_assert (!stream->into);
  g->origin = stream;
  g->node = g_array_new (FALSE, FALSE, sizeof (struct node));
  stream->into = g;
  this_thread (d)->captures = TRUE;
  d->n_open++;
  return NULL;
}

static const char *
comp_capture_start (void *self, weft_gpu_stream *stream)
{
  LOCKED ((computing_cuda *) self, const char *, start_capture (self, stream));
}

/* Whether the origin stream of a capture waits, directly or through other streams, for all captured
 * work, as CUDA requires. */
static gboolean
is_joined (const weft_gpu_graph *g)
{
  /* the streams and events for which the origin stream waits, directly or through others */
  g_autoptr (GHashTable) reached = g_hash_table_new (NULL, NULL);

  g_hash_table_add (reached, g->origin);
  for (uint32_t i = g->node->len; i-- > 0;) {
    const struct node *node = &g_array_index (g->node, struct node, i);
    if (node->item->kind == COMPUTING_RECORD && g_hash_table_contains (reached, node->item->event))
      g_hash_table_add (reached, node->stream);
    if (!g_hash_table_contains (reached, node->stream))
      return FALSE;
    if (node->item->kind == COMPUTING_WAIT)
      g_hash_table_add (reached, node->item->event);
  }
  return TRUE;
}

static const char *
end_capture (computing_cuda *d, weft_gpu_stream *stream, weft_gpu_graph **out)
{
  weft_gpu_graph *g = stream->into;

  g_assert (g && g->origin == stream);
  this_thread (d)->captures = FALSE;
  for (uint32_t i = 0; i < d->stream->len; i++) {
    weft_gpu_stream *s = g_ptr_array_index (d->stream, i);
    s->into = s->into == g ? NULL : s->into;
  }
  g->ended = TRUE;
  *out = g;
  return is_joined (g) ? NULL : "the stream of a capture does not wait for all that is captured";
}

static const char *
comp_capture_end (void *self, weft_gpu_stream *stream, weft_gpu_graph **out)
{
  LOCKED ((computing_cuda *) self, const char *, end_capture (self, stream, out));
}

static const char *
run_graph (computing_cuda *d, const weft_gpu_graph *g, const weft_gpu_stream *stream)
{
  if (stream != g->origin)
    return "a graph runs on another stream than the captured one";
  for (uint32_t i = 0; i < g->node->len; i++) {
    const struct node *node = &g_array_index (g->node, struct node, i);
    give (d, node->stream, copy_item (node->item));
  }
  return NULL;
}

static const char *
comp_graph_run (void *self, weft_gpu_graph *graph, weft_gpu_stream *stream)
{
  LOCKED ((computing_cuda *) self, const char *, run_graph (self, graph, stream));
}

static const char *
comp_graph_close (void *self, weft_gpu_graph *graph)
{
  for (uint32_t i = 0; i < graph->node->len; i++)
    free_item (g_array_index (graph->node, struct node, i).item);
  g_array_unref (graph->node);
  g_free (graph);
  ((computing_cuda *) self)->n_open--;
  return NULL;
}

/* ----------------------------------------------------------------------- the device */

static gboolean
has_kernel (void *self, enum weft_op_kind kind)
{
  (void) self;
  return weft_cuda_launchers[kind] != NULL;
}

static uint64_t
scratch (void *self, const struct weft_kernel *k)
{
  uint64_t own = weft_cuda_scratch (k->kind, &k->shape),
           producer = weft_fused_producer_scratch (k, ((computing_cuda *) self)->warpgroups);
  return MAX (MAX (own, producer), computing_fused_scratch (self, k));
}

static struct weft_gpu_calls
all_calls (computing_cuda *d)
{
  struct weft_gpu_calls calls = { .self = d,
                                   .has_kernel = has_kernel,
                                   .scratch = scratch,
                                   .devices = comp_devices,
                                   .describe = comp_describe,
                                   .choose = comp_choose,
                                   .about = comp_about,
                                   .alloc = comp_alloc,
                                   .release = comp_release,
                                   .stream_open = comp_stream_open,
                                   .stream_close = comp_stream_close,
                                   .event_open = comp_event_open,
                                   .event_close = comp_event_close,
                                   .record = comp_record,
                                   .stamp = comp_stamp,
                                   .wait = comp_wait,
                                   .copy = comp_copy,
                                   .fill = comp_fill,
                                   .kernel = comp_kernel,
                                   .host = comp_host,
                                   .mark = comp_mark,
                                   .join = comp_join,
                                   .exchange = comp_exchange,
                                   .group_start = comp_group_start,
                                   .group_end = comp_group_end,
                                   .collective = comp_collective,
                                   .send = comp_send,
                                   .recv = comp_recv,
                                   .capture_start = comp_capture_start,
                                   .capture_end = comp_capture_end,
                                   .graph_run = comp_graph_run,
                                   .graph_close = comp_graph_close,
                                   .query = comp_query,
                                   .elapsed = comp_elapsed,
                                   .finish = comp_finish };

  computing_comm_calls (&calls);
  return calls;
}

computing_cuda *
computing_cuda_new (uint32_t seed)
{
  computing_cuda *d = g_new0 (computing_cuda, 1);

  d->calls = all_calls (d);
  d->devices = 64;
  d->rand = seed ? g_rand_new_with_seed (seed) : NULL;
  pthread_mutex_init (&d->lock, NULL);
  pthread_key_create (&d->thread, NULL);
  d->threads = g_ptr_array_new_with_free_func (free_thread);
  d->stream = g_ptr_array_new ();
  d->clique = g_ptr_array_new ();
  d->arena = g_array_new (FALSE, FALSE, sizeof (struct computing_arena));
  d->scaled = g_array_new (FALSE, FALSE, sizeof (double));
  return d;
}

void
computing_cuda_free (computing_cuda *d)
{
  computing_comm_clear (d);
  g_ptr_array_unref (d->stream);
  g_ptr_array_unref (d->threads);
  computing_close_region (d);
  g_array_unref (d->arena);
  g_array_unref (d->scaled);
  pthread_key_delete (d->thread);
  pthread_mutex_destroy (&d->lock);
  if (d->rand)
    g_rand_free (d->rand);
  g_free (d);
}
