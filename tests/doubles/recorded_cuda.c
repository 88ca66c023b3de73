#include "tests/doubles/recorded_cuda.h"
#include <string.h>
#include <sys/mman.h>

#define RECORDED_WORD(name, ...) #name,
const char *const recorded_words[] = { WEFT_GPU_CALL_LIST (RECORDED_WORD) NULL };
#undef RECORDED_WORD

gboolean
recorded_is_work (enum recorded_kind kind)
{
  return kind == RECORDED_copy || kind == RECORDED_kernel || kind == RECORDED_host ||
         kind == RECORDED_join || kind == RECORDED_exchange || kind == RECORDED_collective ||
         kind == RECORDED_send || kind == RECORDED_recv;
}

/* ----------------------------------------------------------------------- writing down */

struct thread {
  uint32_t device, row, op;
  gboolean in_group;
};

/* Returns the state of the calling thread. The caller of the function holds the lock. */
static struct thread *
this_thread (recorded_cuda *d)
{
  struct thread *t = pthread_getspecific (d->thread);

  if (!t) {
    t = g_new0 (struct thread, 1);
    t->op = WEFT_NO_OP;
    g_ptr_array_add (d->threads, t);
    pthread_setspecific (d->thread, t);
  }
  return t;
}

static const char *
note_locked (recorded_cuda *d, enum recorded_kind kind, const void *stream, const void *thing,
             uint32_t at)
{
  const struct thread *t = this_thread (d);
  struct recorded_call call = { kind, t->device, t->row, t->op, stream, thing, at };

  d->n_calls++;
  if (d->fail_at && (d->lost_then ? d->n_calls >= d->fail_at : d->n_calls == d->fail_at))
    return "the test wants this call to fail";
  g_array_append_val (d->call, call);
  return NULL;
}

static const char *
note (recorded_cuda *d, enum recorded_kind kind, const void *stream, const void *thing, uint32_t at)
{
  pthread_mutex_lock (&d->lock);
  const char *said = note_locked (d, kind, stream, thing, at);
  pthread_mutex_unlock (&d->lock);
  return said;
}

/* Records a call, and appends its arguments to `list`. Returns NULL, or an error if the test lets
 * the call fail. */
static const char *
note_with (recorded_cuda *d, enum recorded_kind kind, const void *stream, GArray *list,
           const void *what)
{
  pthread_mutex_lock (&d->lock);
  const char *said = note_locked (d, kind, stream, NULL, list->len);
  if (!said)
    g_array_append_vals (list, what, 1);
  pthread_mutex_unlock (&d->lock);
  return said;
}

static const char *
open_thing (recorded_cuda *d, const struct recorded_thing *like, void *out)
{
  pthread_mutex_lock (&d->lock);
  struct recorded_thing *thing = g_memdup2 (like, sizeof *like);
  const char *said = note_locked (d, like->kind, NULL, thing, 0);
  thing->number = d->n_things++;
  thing->device = this_thread (d)->device;
  g_ptr_array_add (d->things, thing);
  if (!said) {
    d->n_open++;
    memcpy (out, &thing, sizeof thing);
  }
  pthread_mutex_unlock (&d->lock);
  return said;
}

/* Records the call that closes a handle. The handle counts as closed even if the call fails. */
static const char *
close_thing (recorded_cuda *d, enum recorded_kind kind, const void *thing)
{
  pthread_mutex_lock (&d->lock);
  d->n_open--;
  const char *said = note_locked (d, kind, NULL, thing, 0);
  pthread_mutex_unlock (&d->lock);
  return said;
}

/* ------------------------------------------------------------------------- the calls */

static const char *
rec_devices (void *self, uint32_t *n)
{
  *n = ((recorded_cuda *) self)->devices;
  return note (self, RECORDED_devices, NULL, NULL, 0);
}

static const char *
rec_describe (void *self, uint32_t device, struct weft_gpu_device *out)
{
  *out = (struct weft_gpu_device){ .name = "recorded", .bytes = (uint64_t) 1 << 40, .sms = 132 };
  return note (self, RECORDED_describe, NULL, NULL, device);
}

static const char *
rec_choose (void *self, uint32_t device)
{
  recorded_cuda *d = self;

  pthread_mutex_lock (&d->lock);
  this_thread (d)->device = device;
  const char *said = note_locked (d, RECORDED_choose, NULL, NULL, device);
  pthread_mutex_unlock (&d->lock);
  return said;
}

/* Sets the rank and the op to which the following calls belong. The executor's device has no such
 * call, so this function is not recorded. */
static const char *
rec_about (void *self, uint32_t row, uint32_t op)
{
  recorded_cuda *d = self;

  pthread_mutex_lock (&d->lock);
  struct thread *t = this_thread (d);
  t->row = row;
  t->op = op;
  pthread_mutex_unlock (&d->lock);
  return NULL;
}

static const char *
rec_alloc (void *self, enum weft_pool pool, uint64_t bytes, void **out)
{
  recorded_cuda *d = self;
  struct recorded_arena arena = { .pool = pool, .bytes = bytes };

  pthread_mutex_lock (&d->lock);
  const char *said = note_locked (d, RECORDED_alloc, NULL, NULL, d->arena->len);
  arena.device = this_thread (d)->device;
  if (!said) {
    arena.at = mmap (NULL, bytes, pool == WEFT_POOL_HOST ? PROT_READ | PROT_WRITE : PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    g_assert (arena.at != MAP_FAILED);
    g_array_append_val (d->arena, arena);
    d->n_open++;
    *out = arena.at;
  }
  pthread_mutex_unlock (&d->lock);
  return said;
}

static const char *
rec_release (void *self, enum weft_pool pool, void *at)
{
  recorded_cuda *d = self;

  pthread_mutex_lock (&d->lock);
  for (uint32_t i = 0; i < d->arena->len; i++) {
    struct recorded_arena *arena = &g_array_index (d->arena, struct recorded_arena, i);
    if (arena->at != at)
      continue;
    g_assert (arena->pool == pool);
    munmap (at, arena->bytes);
    arena->at = NULL;
    d->n_open--;
  }
  const char *said = note_locked (d, RECORDED_release, NULL, NULL, 0);
  pthread_mutex_unlock (&d->lock);
  return said;
}

static const char *
rec_stream_open (void *self, gboolean urgent, weft_gpu_stream **out)
{
  struct recorded_thing like = { .kind = RECORDED_stream_open, .flag = urgent };
  return open_thing (self, &like, out);
}

static const char *
rec_stream_close (void *self, weft_gpu_stream *stream)
{
  return close_thing (self, RECORDED_stream_close, stream);
}

static const char *
rec_event_open (void *self, gboolean timed, weft_gpu_event **out)
{
  struct recorded_thing like = { .kind = RECORDED_event_open, .flag = timed };
  return open_thing (self, &like, out);
}

static const char *
rec_event_close (void *self, weft_gpu_event *event)
{
  return close_thing (self, RECORDED_event_close, event);
}

/* Advances the clock of a stream by the duration of its newest work. */
static void
pass (recorded_cuda *d, weft_gpu_stream *stream, double seconds)
{
  pthread_mutex_lock (&d->lock);
  ((struct recorded_thing *) (void *) stream)->clock += seconds;
  pthread_mutex_unlock (&d->lock);
}

static const char *
note_date (recorded_cuda *d, enum recorded_kind kind, weft_gpu_event *event,
           weft_gpu_stream *stream)
{
  struct recorded_thing *at = (struct recorded_thing *) (void *) event;

  pass (d, stream, at->flag ? d->stamp : 0);
  pthread_mutex_lock (&d->lock);
  at->clock = ((struct recorded_thing *) (void *) stream)->clock;
  pthread_mutex_unlock (&d->lock);
  return note (d, kind, stream, event, 0);
}

static const char *
rec_record (void *self, weft_gpu_event *event, weft_gpu_stream *stream)
{
  return note_date (self, RECORDED_record, event, stream);
}

static const char *
rec_stamp (void *self, weft_gpu_event *event, weft_gpu_stream *stream)
{
  g_assert (((struct recorded_thing *) (void *) event)->flag);
  return note_date (self, RECORDED_stamp, event, stream);
}

static const char *
rec_wait (void *self, weft_gpu_stream *stream, weft_gpu_event *event)
{
  recorded_cuda *d = self;
  struct recorded_thing *at = (struct recorded_thing *) (void *) stream;

  pthread_mutex_lock (&d->lock);
  at->clock = MAX (at->clock, ((struct recorded_thing *) (void *) event)->clock);
  pthread_mutex_unlock (&d->lock);
  return note (self, RECORDED_wait, stream, event, 0);
}

/* If a copy transfers row counts to the host, sets these counts to 1. */
static void
count_ones (recorded_cuda *d, const struct weft_gpu_copy *copy)
{
  pthread_mutex_lock (&d->lock);
  uint32_t row = this_thread (d)->row, op = this_thread (d)->op;
  pthread_mutex_unlock (&d->lock);
  if (copy->way != WEFT_GPU_TO_HOST || op == WEFT_NO_OP)
    return;
  const weft_program *p = d->counted->role[weft_mesh_stage (&d->counted->mesh, row)];
  uint32_t first = p->op[op].uses;
  if (p->op[op].kind != WEFT_OP_COPY_OUT || p->uses[first].buf == WEFT_NO_BUF ||
      p->buf[p->uses[first].buf].dtype != WEFT_INT64)
    return;
  for (uint64_t i = 0; i < copy->bytes / sizeof (int64_t); i++)
    ((int64_t *) copy->to)[i] = 1;
}

static const char *
rec_copy (void *self, const struct weft_gpu_copy *copy, weft_gpu_stream *stream)
{
  if (((recorded_cuda *) self)->seconds)
    pass (self, stream, ((recorded_cuda *) self)->byte * copy->bytes);
  if (((recorded_cuda *) self)->counted)
    count_ones (self, copy);
  return note_with (self, RECORDED_copy, stream, ((recorded_cuda *) self)->copy, copy);
}

static const char *
rec_fill (void *self, void *at, uint8_t byte, uint64_t bytes, weft_gpu_stream *stream)
{
  (void) byte;
  g_assert (bytes);
  return note (self, RECORDED_fill, stream, at, 0);
}

static const char *
rec_kernel (void *self, const struct weft_kernel *k, uint32_t n,
            const struct weft_gpu_scratch *scratch, weft_gpu_stream *stream)
{
  recorded_cuda *d = self;
  struct recorded_kernel kernel = { g_memdup2 (k, n * sizeof *k), n };

  g_assert (n == 0 || scratch->bytes == 0 || scratch->at);
  for (uint32_t i = 0; i < n && d->seconds; i++)
    pass (d, stream, d->seconds (&k[i]));
  const char *said = note_with (d, RECORDED_kernel, stream, d->kernel, &kernel);
  if (said)
    g_free (kernel.k);
  return said;
}

static const char *
rec_host (void *self, void (*run) (void *data), void *data, weft_gpu_stream *stream)
{
  recorded_cuda *d = self;
  struct recorded_kernel kernel = { g_memdup2 (data, sizeof *kernel.k), 1 };

  g_assert (run);
  const char *said = note_with (d, RECORDED_host, stream, d->kernel, &kernel);
  if (said)
    g_free (kernel.k);
  return said;
}

static const char *
rec_mark (void *self, uint32_t *word, uint32_t value, weft_gpu_stream *stream)
{
  const char *said = note_with (self, RECORDED_mark, stream, ((recorded_cuda *) self)->mark, &word);

  if (!said && !((recorded_cuda *) self)->never_ends)
    *word = value;
  return said;
}

static const char *
rec_join (void *self, const struct weft_gpu_join *join, weft_gpu_stream *stream)
{
  return note_with (self, RECORDED_join, stream, ((recorded_cuda *) self)->join, join);
}

static const char *
rec_exchange (void *self, const struct weft_gpu_exchange *x, weft_gpu_stream *stream)
{
  return note_with (self, RECORDED_exchange, stream, ((recorded_cuda *) self)->exchange, x);
}

static const char *
rec_comm_id (void *self, struct weft_gpu_id *out)
{
  uint64_t now = (uint64_t) g_get_monotonic_time ();

  memset (out, 7, sizeof *out);
  memcpy (out->bytes + 8, &now, sizeof now); /* every call returns a different id */
  return note (self, RECORDED_comm_id, NULL, NULL, 0);
}

/* Checks a new communicator against those that other members have created for the same group: all
 * must state the same size and CTA limit. */
static void
look_at_members (recorded_cuda *d, const struct recorded_thing *like)
{
  pthread_mutex_lock (&d->lock);
  for (uint32_t i = d->things->len; i-- > 0;) {
    const struct recorded_thing *other = g_ptr_array_index (d->things, i);
    if (other->kind != like->kind || other->parent != like->parent)
      break;
    if (other->color == like->color)
      g_assert (other->n == like->n && other->ctas == like->ctas);
  }
  pthread_mutex_unlock (&d->lock);
}

static const char *
rec_comm_open (void *self, const struct weft_gpu_member *member, weft_gpu_comm **out)
{
  struct recorded_thing like = { .kind = RECORDED_comm_open,
                                 .n = member->n,
                                 .rank = member->rank,
                                 .ctas = member->most_ctas };

  g_assert (member->id->bytes[0] == 7);
  ((recorded_cuda *) self)->id = *member->id;
  look_at_members (self, &like);
  return open_thing (self, &like, out);
}

/* Splits a communicator. The k-th splits that its members make create the same new communicator. */
static const char *
rec_comm_split (void *self, weft_gpu_comm *parent, int color, const struct weft_gpu_member *m,
                weft_gpu_comm **out)
{
  struct recorded_thing *world = (struct recorded_thing *) (void *) parent;
  struct recorded_thing like = { .kind = RECORDED_comm_split,
                                 .n = m->n,
                                 .rank = m->rank,
                                 .ctas = m->most_ctas,
                                 .parent = ++world->parent,
                                 .color = color };

  *out = NULL;
  if (color >= 0)
    look_at_members (self, &like);
  return color < 0 ? note (self, RECORDED_comm_split, NULL, parent, 0)
                   : open_thing (self, &like, out);
}

static const char *
rec_comm_ready (void *self, weft_gpu_comm *comm, gboolean *ready)
{
  recorded_cuda *d = self;
  struct recorded_thing *thing = (struct recorded_thing *) (void *) comm;

  *ready = !d->never_ready && thing->looks++ >= d->slow;
  return note (self, RECORDED_comm_ready, NULL, comm, 0);
}

/* New work on a communicator: the caller must poll the communicator again before other calls. */
static void
keep_busy (weft_gpu_comm *comm)
{
  ((struct recorded_thing *) (void *) comm)->looks = 0;
}

static const char *
rec_comm_finish (void *self, weft_gpu_comm *comm)
{
  keep_busy (comm);
  return note (self, RECORDED_comm_finish, NULL, comm, 0);
}

static const char *
rec_comm_close (void *self, weft_gpu_comm *comm)
{
  return close_thing (self, RECORDED_comm_close, comm);
}

/* Aborts a communicator. Several communicators must be aborted in one group; aborted one by one,
 * they could wait for each other. */
static const char *
rec_comm_abort (void *self, weft_gpu_comm *comm)
{
  recorded_cuda *d = self;

  pthread_mutex_lock (&d->lock);
  g_assert (this_thread (d)->in_group || d->fail_at);
  pthread_mutex_unlock (&d->lock);
  return close_thing (self, RECORDED_comm_abort, comm);
}

static const char *
rec_window_open (void *self, weft_gpu_comm *comm, void *at, uint64_t bytes, gboolean symmetric,
                 weft_gpu_window **out)
{
  struct recorded_thing like = { .kind = RECORDED_window_open,
                                 .flag = symmetric,
                                 .parent =
                                     ((struct recorded_thing *) (void *) comm)->number + 1 };

  g_assert (comm && at && bytes);
  return open_thing (self, &like, out);
}

static const char *
rec_window_close (void *self, weft_gpu_comm *comm, weft_gpu_window *window)
{
  (void) comm;
  return close_thing (self, RECORDED_window_close, window);
}

static const char *
rec_scaled_open (void *self, weft_gpu_comm *comm, enum weft_dtype dtype, double factor, int *out)
{
  const char *said = note (self, RECORDED_scaled_open, NULL, comm, 0);

  g_assert (factor > 0 && factor <= 1 && dtype != WEFT_INT64);
  *out = 100;
  ((recorded_cuda *) self)->n_open += !said;
  return said;
}

static const char *
rec_scaled_close (void *self, weft_gpu_comm *comm, int scaled)
{
  g_assert (scaled == 100);
  return close_thing (self, RECORDED_scaled_close, comm);
}

static const char *
rec_group_start (void *self)
{
  recorded_cuda *d = self;

  pthread_mutex_lock (&d->lock);
  struct thread *t = this_thread (d);
  const char *said = note_locked (d, RECORDED_group_start, NULL, NULL, 0);
  g_assert (!t->in_group);
  t->in_group = !said;
  pthread_mutex_unlock (&d->lock);
  return said;
}

/* Ends the group of the calling thread, even if the call then fails. */
static const char *
rec_group_end (void *self)
{
  recorded_cuda *d = self;

  pthread_mutex_lock (&d->lock);
  struct thread *t = this_thread (d);
  g_assert (t->in_group);
  t->in_group = FALSE;
  const char *said = note_locked (d, RECORDED_group_end, NULL, NULL, 0);
  pthread_mutex_unlock (&d->lock);
  return said;
}

static const char *
rec_collective (void *self, const struct weft_gpu_collective *c, weft_gpu_stream *stream)
{
  keep_busy (c->comm);
  pass (self, stream, ((recorded_cuda *) self)->byte * c->n * weft_dtype_bytes (c->dtype));
  return note_with (self, RECORDED_collective, stream, ((recorded_cuda *) self)->collective, c);
}

static const char *
rec_send (void *self, const struct weft_gpu_transfer *t, weft_gpu_stream *stream)
{
  keep_busy (t->comm);
  return note_with (self, RECORDED_send, stream, ((recorded_cuda *) self)->transfer, t);
}

static const char *
rec_recv (void *self, const struct weft_gpu_transfer *t, weft_gpu_stream *stream)
{
  keep_busy (t->comm);
  return note_with (self, RECORDED_recv, stream, ((recorded_cuda *) self)->transfer, t);
}

static const char *
rec_capture_start (void *self, weft_gpu_stream *stream)
{
  return note (self, RECORDED_capture_start, stream, NULL, 0);
}

static const char *
rec_capture_end (void *self, weft_gpu_stream *stream, weft_gpu_graph **out)
{
  struct recorded_thing like = { .kind = RECORDED_capture_end };

  (void) stream;
  return open_thing (self, &like, out);
}

static const char *
rec_graph_run (void *self, weft_gpu_graph *graph, weft_gpu_stream *stream)
{
  return note (self, RECORDED_graph_run, stream, graph, 0);
}

static const char *
rec_graph_close (void *self, weft_gpu_graph *graph)
{
  return close_thing (self, RECORDED_graph_close, graph);
}

static const char *
rec_query (void *self, weft_gpu_event *event, gboolean *done)
{
  *done = !((recorded_cuda *) self)->never_ends;
  return note (self, RECORDED_query, NULL, event, 0);
}

static const char *
rec_elapsed (void *self, weft_gpu_event *from, weft_gpu_event *to, double *seconds)
{
  const struct recorded_thing *begin = (struct recorded_thing *) (void *) from;
  const struct recorded_thing *end = (struct recorded_thing *) (void *) to;

  g_assert (begin->flag && end->flag);
  *seconds = ((recorded_cuda *) self)->seconds ? end->clock - begin->clock : 1e-6 * end->number;
  return note (self, RECORDED_elapsed, NULL, to, 0);
}

static const char *
rec_finish (void *self, weft_gpu_stream *stream)
{
  return note (self, RECORDED_finish, stream, NULL, 0);
}

static gboolean
has_kernel (void *self, enum weft_op_kind kind)
{
  return g_strcmp0 (((recorded_cuda *) self)->no_kernel, weft_op_words[kind]) != 0;
}

static uint64_t
scratch (void *self, const struct weft_kernel *k)
{
  (void) self;
  return k->kind == WEFT_OP_MATMUL ? 4096 : 0;
}

/* --------------------------------------------------------------------------- the device */

static void
clear_kernel (void *data)
{
  g_free (((struct recorded_kernel *) data)->k);
}

recorded_cuda *
recorded_cuda_new (void)
{
  recorded_cuda *d = g_new0 (recorded_cuda, 1);

#define RECORDED_CALL(name, ...) .name = rec_##name,
  d->calls = (struct weft_gpu_calls){ .self = d,
                                       .has_kernel = has_kernel,
                                       .scratch = scratch,
                                       .canonical = TRUE,
                                       WEFT_GPU_CALL_LIST (RECORDED_CALL) };
#undef RECORDED_CALL
  d->devices = 64;
  pthread_mutex_init (&d->lock, NULL);
  pthread_key_create (&d->thread, NULL);
  d->threads = g_ptr_array_new_with_free_func (g_free);
  d->call = g_array_new (FALSE, FALSE, sizeof (struct recorded_call));
  d->arena = g_array_new (FALSE, FALSE, sizeof (struct recorded_arena));
  d->things = g_ptr_array_new_with_free_func (g_free);
  d->kernel = g_array_new (FALSE, FALSE, sizeof (struct recorded_kernel));
  g_array_set_clear_func (d->kernel, clear_kernel);
  d->copy = g_array_new (FALSE, FALSE, sizeof (struct weft_gpu_copy));
  d->join = g_array_new (FALSE, FALSE, sizeof (struct weft_gpu_join));
  d->exchange = g_array_new (FALSE, FALSE, sizeof (struct weft_gpu_exchange));
  d->collective = g_array_new (FALSE, FALSE, sizeof (struct weft_gpu_collective));
  d->transfer = g_array_new (FALSE, FALSE, sizeof (struct weft_gpu_transfer));
  d->mark = g_array_new (FALSE, FALSE, sizeof (uint32_t *));
  return d;
}

static const char *
trace_open (void *self)
{
  (void) self;
  return NULL;
}

static const char *
trace_take (void *self, weft_gpu_take take, void *user, uint64_t *lost)
{
  const recorded_cuda *d = self;

  for (uint32_t i = 0; i < d->activity->len; i++)
    take (user, &g_array_index (d->activity, struct weft_gpu_activity, i));
  *lost = d->lost;
  return NULL;
}

void
recorded_cuda_trace (recorded_cuda *d)
{
  d->activity = g_array_new (FALSE, FALSE, sizeof (struct weft_gpu_activity));
  d->calls.trace_open = trace_open;
  d->calls.trace_take = trace_take;
}

void
recorded_cuda_forget (recorded_cuda *d)
{
  GArray *lists[] = { d->call,     d->kernel,     d->copy,     d->join,
                      d->exchange, d->collective, d->transfer, d->mark };

  for (unsigned i = 0; i < G_N_ELEMENTS (lists); i++)
    g_array_set_size (lists[i], 0);
}

void
recorded_cuda_free (recorded_cuda *d)
{
  GArray *lists[] = { d->call,     d->kernel,     d->copy,     d->join, d->arena,
                      d->exchange, d->collective, d->transfer, d->mark };

  if (d->activity)
    g_array_unref (d->activity);
  for (uint32_t i = 0; i < d->threads->len; i++)
    g_assert (!((struct thread *) g_ptr_array_index (d->threads, i))->in_group);
  for (unsigned i = 0; i < G_N_ELEMENTS (lists); i++)
    g_array_unref (lists[i]);
  g_ptr_array_unref (d->things);
  g_ptr_array_unref (d->threads);
  pthread_key_delete (d->thread);
  pthread_mutex_destroy (&d->lock);
  g_free (d);
}
