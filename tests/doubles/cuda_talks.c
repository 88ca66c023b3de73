/* Checks that the collectives and transfers of ranks with a GPU each are issued in an order without
 * deadlock. */
#include "tests/doubles/cuda_log.h"

/* The launches of a rank that have not been posted, in their order. A rank has one queue for all
 * its collectives, as if its GPU ran only one at a time, and one queue per stream for transfers,
 * because plans send in both directions at once. */
struct queue {
  /* the recorded calls from group_start to group_end: one array of const struct recorded_call * for
   * each launch */
  GPtrArray *launch;
  uint32_t next;
  gboolean posted; /* TRUE: the queue's transfers of launch `next` have been posted */
};

struct talks {
  const cuda_log *log;
  uint32_t n;
  struct queue *queue;
  /* text of a transfer (key_of()) -> how many transfers with this text were posted */
  GHashTable *count;
  GHashTable *stream; /* communicator -> the stream on which its operations were called */
  char *wrong;
};

static gboolean
is_talk (enum recorded_kind kind)
{
  return kind == RECORDED_collective || kind == RECORDED_send || kind == RECORDED_recv;
}

static const struct recorded_thing *
comm_of (const cuda_log *log, const struct recorded_call *c)
{
  if (c->kind == RECORDED_collective)
    return (const void *) g_array_index (log->device->collective, struct weft_gpu_collective,
                                         c->at)
        .comm;
  return (const void *) g_array_index (log->device->transfer, struct weft_gpu_transfer, c->at)
      .comm;
}

static void
add_launch (struct talks *t, const struct recorded_call *first, GArray *launch)
{
  gboolean transfers = first->kind != RECORDED_collective;
  uint32_t at = transfers ? t->log->x->actors->n + cuda_log_stream (t->log, first) : first->row;

  g_ptr_array_add (t->queue[at].launch, launch);
}

/* Fails if a communicator is used on two streams. NCCL runs the operations of a communicator in the
 * order of their calls, on whatever streams. */
static void
keep_stream (struct talks *t, const struct recorded_call *c)
{
  const struct recorded_thing *comm = comm_of (t->log, c),
                              *stream = g_hash_table_lookup (t->stream, comm);

  if (stream && stream != c->stream && !t->wrong) {
    g_autofree char *name = cuda_log_name (t->log, c->row, c->op);
    t->wrong = g_strdup_printf ("%s: its communicator has another stream besides", name);
  }
  g_hash_table_insert (t->stream, (void *) (uintptr_t) comm, (void *) (uintptr_t) c->stream);
}

/* Splits the communication calls of a rank into launches. A shift, which is a send and a receive,
 * is treated like a collective. */
static void
find_launches (struct talks *t, uint32_t row)
{
  GArray *launch = NULL;

  for (uint32_t i = 0; i < t->log->n; i++) {
    const struct recorded_call *c = cuda_log_call (t->log, i);
    if (c->row != row)
      continue;
    if (c->kind == RECORDED_group_start)
      launch = g_array_new (FALSE, FALSE, sizeof c);
    if (is_talk (c->kind)) {
      g_array_append_val (launch, c);
      keep_stream (t, c);
    }
    if (c->kind == RECORDED_group_end && launch->len == 0)
      g_array_unref (launch); /* A launch without calls: no rank sends any rows. */
    else if (c->kind == RECORDED_group_end)
      add_launch (t, g_array_index (launch, const struct recorded_call *, 0), launch);
  }
}

/* Whether two handles, which belong to different ranks, are handles of one communicator. */
static gboolean
is_same_comm (const struct recorded_thing *a, const struct recorded_thing *b)
{
  return a->kind == b->kind && a->parent == b->parent && a->color == b->color && a->n == b->n;
}

static gboolean
is_same_collective (const cuda_log *log, const struct recorded_call *a,
                    const struct recorded_call *b)
{
  const struct weft_gpu_collective *x = &g_array_index (log->device->collective,
                                                         struct weft_gpu_collective, a->at),
                                   *y = &g_array_index (log->device->collective,
                                                         struct weft_gpu_collective, b->at);

  return x->kind == y->kind && x->n == y->n && x->dtype == y->dtype && x->reduce == y->reduce &&
         x->root == y->root && x->scaled == y->scaled;
}

static GArray *
head_of (const struct queue *q)
{
  return q->next < q->launch->len ? g_ptr_array_index (q->launch, q->next) : NULL;
}

static const struct recorded_call *
call_of (const GArray *launch, uint32_t i)
{
  return g_array_index (launch, const struct recorded_call *, i);
}

/* If all members of a communicator have the same collectives in their next launch, removes this
 * launch from the queues of all members. Returns whether it did. */
static gboolean
meet_collective (struct talks *t, const GArray *mine)
{
  const struct recorded_thing *comm = comm_of (t->log, call_of (mine, 0));
  g_autoptr (GPtrArray) who = g_ptr_array_new ();

  for (uint32_t row = 0; row < t->log->x->actors->n; row++) {
    const GArray *head = head_of (&t->queue[row]);
    if (!head || !is_same_comm (comm_of (t->log, call_of (head, 0)), comm) ||
        head->len != mine->len)
      continue;
    for (uint32_t i = 0; i < head->len; i++)
      if (!is_same_collective (t->log, call_of (head, i), call_of (mine, i)))
        return FALSE;
    g_ptr_array_add (who, &t->queue[row]);
  }
  for (uint32_t i = 0; who->len == comm->n && i < who->len; i++)
    ((struct queue *) g_ptr_array_index (who, i))->next++;
  return who->len == comm->n;
}

/* Returns a text that identifies a transfer: its communicator, direction, sender, receiver, size
 * and type. */
static char *
key_of (const struct talks *t, const struct recorded_call *c, gboolean mine)
{
  const struct weft_gpu_transfer *x =
      &g_array_index (t->log->device->transfer, struct weft_gpu_transfer, c->at);
  const struct recorded_thing *comm = (const void *) x->comm;
  gboolean sends = (c->kind == RECORDED_send) == mine;
  uint32_t from = (c->kind == RECORDED_send) ? comm->rank : x->peer;
  uint32_t to = (c->kind == RECORDED_send) ? x->peer : comm->rank;

  return g_strdup_printf ("%d %u %d %u %u %" G_GUINT64_FORMAT " %u", comm->color, comm->parent,
                          sends, from, to, x->n, x->dtype);
}

static uint32_t
count_of (GHashTable *table, const char *key)
{
  return GPOINTER_TO_UINT (g_hash_table_lookup (table, key));
}

static void
count_up (GHashTable *table, char *key)
{
  uint32_t n = count_of (table, key);
  g_hash_table_insert (table, key, GUINT_TO_POINTER (n + 1));
}

/* Posts all transfers of a launch at once. The launch ends when the peers have posted the matching
 * transfers. Returns whether anything changed. */
static gboolean
meet_transfers (struct talks *t, struct queue *q, const GArray *mine)
{
  if (!q->posted) {
    for (uint32_t i = 0; i < mine->len; i++)
      count_up (t->count, key_of (t, call_of (mine, i), TRUE));
    q->posted = TRUE;
    return TRUE;
  }
  for (uint32_t i = 0; i < mine->len; i++) {
    g_autofree char *own = key_of (t, call_of (mine, i), TRUE),
                    *other = key_of (t, call_of (mine, i), FALSE);
    if (count_of (t->count, other) < count_of (t->count, own))
      return FALSE;
  }
  q->posted = FALSE;
  q->next++;
  return TRUE;
}

static gboolean
meet_any (struct talks *t)
{
  for (uint32_t i = 0; i < t->n; i++) {
    struct queue *q = &t->queue[i];
    const GArray *head = head_of (q);
    if (!head)
      continue;
    gboolean transfers = call_of (head, 0)->kind != RECORDED_collective;
    if (transfers ? meet_transfers (t, q, head) : meet_collective (t, head))
      return TRUE;
  }
  return FALSE;
}

char *
cuda_log_comms (const cuda_log *log)
{
  struct talks t = { .log = log, .n = log->x->actors->n + log->n_stream };

  t.stream = g_hash_table_new (NULL, NULL);
  t.queue = g_new0 (struct queue, t.n);
  t.count = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  for (uint32_t i = 0; i < t.n; i++)
    t.queue[i].launch = g_ptr_array_new_with_free_func ((GDestroyNotify) g_array_unref);
  for (uint32_t row = 0; row < log->x->actors->n; row++)
    find_launches (&t, row);
  while (meet_any (&t))
    continue;
  for (uint32_t i = 0; i < t.n; i++) {
    const GArray *head = head_of (&t.queue[i]);
    if (head && !t.wrong) {
      g_autofree char *name = cuda_log_name (log, call_of (head, 0)->row, call_of (head, 0)->op);
      t.wrong = g_strdup_printf ("%s: nobody to talk to", name);
    }
    g_ptr_array_unref (t.queue[i].launch);
  }
  g_free (t.queue);
  g_hash_table_unref (t.count);
  g_hash_table_unref (t.stream);
  return t.wrong;
}
