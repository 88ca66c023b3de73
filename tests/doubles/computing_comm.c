/* The communicators of the computing device (computing_cuda.h): collectives and transfers between
 * its streams, or between processes by way of the rendezvous. */
#include "exec_gpu/cuda/module/sums.h"
#include "kernels/float.h"
#include "launch/rendezvous.h"
#include "tests/doubles/computing_cuda.h"
#include <string.h>

/* What all members of a communicator share. Some of the members may be in other processes. */
struct clique {
  /* number of members, and of those members of this process that have opened the communicator */
  uint32_t n, came;
  GBytes *name;
  GPtrArray *meeting; /* collectives of the communicator, in the order of calls */
  /* [from * n + to]: transfers from one member to another, in the order of calls */
  GPtrArray **between;
};

struct weft_gpu_comm {
  computing_cuda *d;
  struct clique *clique;
  uint32_t rank, n_split, n_collective;
  uint32_t *sent, *received; /* [member]: number of transfers with this member so far */
};

/* One collective or transfer of the computing device, with the communication call of each
 * participant. */
struct computing_meeting {
  /* number of participants, and of those whose call is now the first item of its stream */
  uint32_t n, came;
  char *key; /* key under which participants in other processes store their data */
  gboolean over;
  /* [member]: call of each participant; in a transfer, member 0 is the sender and member 1 the
   * receiver */
  struct computing_talk *talk;
  gboolean *here;
};

static void
free_meeting (void *data)
{
  struct computing_meeting *m = data;

  g_free (m->talk);
  g_free (m->here);
  g_free (m->key);
  g_free (m);
}

/* ------------------------------------------- finding the collective or transfer of a call */

static struct computing_meeting *
meeting_at (GPtrArray *list, uint32_t at, uint32_t n)
{
  while (list->len <= at) {
    struct computing_meeting *m = g_new0 (struct computing_meeting, 1);
    m->n = n;
    m->talk = g_new0 (struct computing_talk, n);
    m->here = g_new0 (gboolean, n);
    g_ptr_array_add (list, m);
  }
  return g_ptr_array_index (list, at);
}

/* Returns a collective or a transfer of the communicator, and creates it if it does not exist yet.
 * With way = n * n it is collective number `at` of all n members. With way = from * n + to it is
 * transfer number `at` from member `from` to member `to`. Its key is the same in all processes. */
static struct computing_meeting *
named_meeting (const struct clique *c, uint32_t way, uint32_t at)
{
  gboolean transfer = way < c->n * c->n;
  struct computing_meeting *m =
      meeting_at (transfer ? c->between[way] : c->meeting, at, transfer ? 2 : c->n);

  if (!m->key)
    m->key = g_strdup_printf ("%08x %u %u", g_bytes_hash (c->name), way, at);
  return m;
}

struct computing_talk
computing_transfer (enum weft_op_kind kind, const struct weft_gpu_transfer *t)
{
  return (struct computing_talk){ .kind = kind,
                                  .comm = t->comm,
                                  .from = kind == WEFT_OP_SEND ? t->data : NULL,
                                  .to = kind == WEFT_OP_SEND ? NULL : t->data,
                                  .n = t->n,
                                  .dtype = t->dtype,
                                  .peer = t->peer };
}

struct computing_meeting *
computing_meet (const struct computing_talk *talk)
{
  weft_gpu_comm *c = talk->comm;
  struct clique *q = c->clique;
  uint32_t n = q->n, out = c->rank * n + talk->peer, in = talk->peer * n + c->rank;

  if (talk->kind == WEFT_OP_SEND)
    return named_meeting (q, out, c->sent[talk->peer]++);
  if (talk->kind == WEFT_OP_RECV)
    return named_meeting (q, in, c->received[talk->peer]++);
  return named_meeting (q, n * n, c->n_collective++);
}

gboolean
computing_is_over (const struct computing_meeting *meeting)
{
  return meeting->over;
}

/* -------------------------------------------- checks of calls, and results of collectives */

static gboolean
overlaps (const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
  return (const uint8_t *) a < (const uint8_t *) b + b_bytes &&
         (const uint8_t *) b < (const uint8_t *) a + a_bytes;
}

/* Checks the rule of NCCL's user guide: the buffers of a call are either in place or do not
 * overlap. */
static const char *
look_at_buffers (const struct computing_meeting *m, uint32_t member, uint64_t piece)
{
  const struct computing_talk *t = &m->talk[member];
  gboolean gathers = t->kind == WEFT_OP_ALL_GATHER, swaps = t->kind == WEFT_OP_ALL_TO_ALL;
  gboolean scatters = t->kind == WEFT_OP_REDUCE_SCATTER;
  uint64_t from = piece * (scatters || swaps ? m->n : 1),
           to = piece * (gathers || swaps ? m->n : 1);
  const uint8_t *in_place = gathers    ? (const uint8_t *) t->to + member * piece
                            : scatters ? (const uint8_t *) t->to - member * piece
                                       : t->to;

  if (!overlaps (t->from, from, t->to, to) || (t->from == in_place && !swaps))
    return NULL;
  return "buffers of a collective overlap";
}

static const char *
look (const struct computing_meeting *m)
{
  const struct computing_talk *first = &m->talk[0];
  gboolean transfer = first->kind == WEFT_OP_SEND;

  for (uint32_t i = 1; i < m->n; i++) {
    const struct computing_talk *t = &m->talk[i];
    if (t->n != first->n || t->dtype != first->dtype ||
        (!transfer && (t->kind != first->kind || t->reduce != first->reduce ||
                       t->root != first->root || t->factor != first->factor)))
      return "members of a communicator run different collectives";
  }
  for (uint32_t i = 0; i < m->n && !transfer; i++) {
    const char *said = look_at_buffers (m, i, first->n * weft_dtype_bytes (first->dtype));
    if (said)
      return said;
  }
  return NULL;
}

/* Returns a copy of elements [first, first + n) of a member's input, each multiplied by the
 * member's factor (premul_sum) and rounded to the type, as NCCL does. The caller frees the copy. */
static void *
scaled_term (const struct computing_talk *t, uint64_t first, uint64_t n)
{
  float factor = (float) t->factor, *value = g_new (float, n);
  void *out = g_malloc0 (n * weft_dtype_bytes (t->dtype));

  weft_round (t->dtype, 1, &factor);
  for (uint64_t i = 0; i < n; i++) {
    float room;
    value[i] = *weft_floats (t->from, t->dtype, first + i, 1, &room) * factor;
  }
  weft_store (out, t->dtype, 0, n, value);
  g_free (value);
  return out;
}

/* Reduces elements [first, first + n) of the inputs of all members into `out`. */
static const char *
reduce (const struct computing_meeting *m, uint64_t first, uint64_t n, void *out)
{
  const struct computing_talk *t = &m->talk[0];
  g_autofree const void **term = g_new0 (const void *, m->n);
  struct weft_gpu_join join = { .dtype = t->dtype,
                                 .how = t->reduce == WEFT_REDUCE_MIN   ? WEFT_GPU_LEAST
                                        : t->reduce == WEFT_REDUCE_MAX ? WEFT_GPU_MOST
                                                                       : WEFT_GPU_ADD,
                                 .before = 1,
                                 .after = t->reduce == WEFT_REDUCE_AVG ? (float) m->n : 1,
                                 .n_term = m->n,
                                 .term = term,
                                 .out = out,
                                 .n = n };
  gboolean scales = t->reduce == WEFT_REDUCE_PREMUL;

  for (uint32_t i = 0; i < m->n; i++)
    term[i] = scales ? scaled_term (&m->talk[i], first, n)
                     : (const uint8_t *) m->talk[i].from + first * weft_dtype_bytes (t->dtype);
  const char *said = weft_cuda_join_terms (&join, NULL);
  for (uint32_t i = 0; i < m->n && scales; i++)
    g_free ((void *) (uintptr_t) term[i]);
  return said;
}

/* Computes what a collective writes for one member into `out`. */
static const char *
result_of (const struct computing_meeting *m, uint32_t member, void *out)
{
  const struct computing_talk *t = &m->talk[member];
  uint64_t bytes = t->n * weft_dtype_bytes (t->dtype);

  switch (t->kind) {
  case WEFT_OP_ALL_REDUCE:
    return reduce (m, 0, t->n, out);
  case WEFT_OP_REDUCE_SCATTER:
    return reduce (m, member * t->n, t->n, out);
  case WEFT_OP_BROADCAST:
    memcpy (out, m->talk[t->root].from, bytes);
    return NULL;
  case WEFT_OP_ALL_GATHER:
  case WEFT_OP_ALL_TO_ALL:
    for (uint32_t i = 0; i < m->n; i++)
      memcpy ((uint8_t *) out + i * bytes,
              (const uint8_t *) m->talk[i].from +
                  (t->kind == WEFT_OP_ALL_TO_ALL ? member * bytes : 0),
              bytes);
    return NULL;
  default:
    return "NCCL has no such collective";
  }
}

static const char *
exchange_all (const struct computing_meeting *m)
{
  const struct computing_talk *t = &m->talk[0];
  gboolean whole = t->kind == WEFT_OP_ALL_GATHER || t->kind == WEFT_OP_ALL_TO_ALL;
  uint64_t bytes = t->n * weft_dtype_bytes (t->dtype) * (whole ? m->n : 1);
  g_autofree uint8_t *result = g_malloc (bytes * m->n + 1);
  const char *said = NULL;

  for (uint32_t i = 0; i < m->n && !said; i++)
    said = result_of (m, i, result + i * bytes);
  for (uint32_t i = 0; i < m->n && !said; i++)
    memcpy (m->talk[i].to, result + i * bytes, bytes);
  return said;
}

/* ----------------------------------------------------------- with ranks of other processes */

static const char *
bring (computing_cuda *d, const struct computing_meeting *m, uint32_t member, const void *data,
       uint64_t bytes)
{
  g_autofree char *key = g_strdup_printf ("%s %u", m->key, member);
  g_autoptr (GBytes) value = g_bytes_new (data, bytes);

  return weft_rendezvous_set (d->peers, key, value, NULL) ? NULL : "another process is gone";
}

/* Waits for the data of a member in another process. Returns NULL if this process has failed. The
 * rendezvous owns the data. */
static GBytes *
fetch (computing_cuda *d, const struct computing_meeting *m, uint32_t member)
{
  g_autofree char *key = g_strdup_printf ("%s %u", m->key, member);

  return weft_rendezvous_get (d->peers, key, NULL);
}

static const char *
come_to_transfer (computing_cuda *d, struct computing_meeting *m, const struct computing_talk *t)
{
  uint64_t bytes = t->n * weft_dtype_bytes (t->dtype);

  m->over = TRUE;
  if (t->kind == WEFT_OP_SEND)
    return bring (d, m, 0, t->from, bytes);
  g_autoptr (GBytes) value = fetch (d, m, 0);
  if (!value || g_bytes_get_size (value) != bytes)
    return "another process has not sent the expected data";
  memcpy (t->to, g_bytes_get_data (value, NULL), bytes);
  return NULL;
}

/* Runs a collective between processes: sends the input of this process's member, fetches the inputs
 * of all other members, and computes the result of this member. */
static const char *
come_to_collective (computing_cuda *d, struct computing_meeting *m, const struct computing_talk *t)
{
  g_autoptr (GPtrArray) values = g_ptr_array_new_with_free_func ((GDestroyNotify) g_bytes_unref);
  gboolean deals = t->kind == WEFT_OP_REDUCE_SCATTER || t->kind == WEFT_OP_ALL_TO_ALL;
  gboolean gathers = t->kind == WEFT_OP_ALL_GATHER || t->kind == WEFT_OP_ALL_TO_ALL;
  uint64_t bytes = t->n * weft_dtype_bytes (t->dtype);
  g_autofree void *result = g_malloc (bytes * (gathers ? m->n : 1));
  const char *said = bring (d, m, t->comm->rank, t->from, bytes * (deals ? m->n : 1));

  for (uint32_t i = 0; i < m->n && !said; i++) {
    GBytes *value = fetch (d, m, i);
    if (!value || g_bytes_get_size (value) != bytes * (deals ? m->n : 1))
      return "another process has not provided the expected data";
    g_ptr_array_add (values, value);
    m->talk[i] = *t;
    m->talk[i].from = g_bytes_get_data (value, NULL);
  }
  if (!said && !(said = result_of (m, t->comm->rank, result)))
    memcpy (t->to, result, bytes * (gathers ? m->n : 1));
  m->over = TRUE;
  return said;
}

const char *
computing_come (computing_cuda *d, struct computing_meeting *m, const struct computing_talk *talk)
{
  if (d->peers && talk->kind != WEFT_OP_SEND && talk->kind != WEFT_OP_RECV)
    return come_to_collective (d, m, talk);
  if (d->peers)
    return come_to_transfer (d, m, talk);
  uint32_t at = talk->kind == WEFT_OP_SEND ? 0 : talk->kind == WEFT_OP_RECV ? 1 : talk->comm->rank;

  if (m->here[at])
    return "two members of a communicator have the same rank";
  m->talk[at] = *talk;
  m->here[at] = TRUE;
  if (++m->came < m->n)
    return NULL;
  const char *said = look (m);
  if (!said && m->talk[0].kind == WEFT_OP_SEND)
    memmove (m->talk[1].to, m->talk[0].from, talk->n * weft_dtype_bytes (talk->dtype));
  else if (!said)
    said = exchange_all (m);
  m->over = TRUE;
  return said;
}

/* ------------------------------------------------------------------------ opening */

static struct clique *
find_clique (computing_cuda *d, GBytes *name, uint32_t n)
{
  struct clique *c;

  for (uint32_t i = 0; i < d->clique->len; i++) {
    c = g_ptr_array_index (d->clique, i);
    if (g_bytes_equal (c->name, name))
      return c->n == n && c->came < n ? c : NULL;
  }
  c = g_new0 (struct clique, 1);
  c->n = n;
  c->name = g_bytes_ref (name);
  c->meeting = g_ptr_array_new_with_free_func (free_meeting);
  c->between = g_new (GPtrArray *, n * n);
  for (uint32_t i = 0; i < n * n; i++)
    c->between[i] = g_ptr_array_new_with_free_func (free_meeting);
  g_ptr_array_add (d->clique, c);
  return c;
}

static const char *
join_clique (computing_cuda *d, GBytes *name, uint32_t n, uint32_t rank, weft_gpu_comm **out)
{
  struct clique *clique = find_clique (d, name, n);

  if (!clique || rank >= n)
    return "a communicator of other members has this name";
  weft_gpu_comm *c = g_new0 (weft_gpu_comm, 1);
  clique->came++;
  c->d = d;
  c->clique = clique;
  c->rank = rank;
  c->sent = g_new0 (uint32_t, n);
  c->received = g_new0 (uint32_t, n);
  d->n_open++;
  *out = c;
  return NULL;
}

static const char *
comp_comm_id (void *self, struct weft_gpu_id *out)
{
  uint32_t n = ((computing_cuda *) self)->clique->len + 1;

  memset (out, 0, sizeof *out);
  memcpy (out, &n, sizeof n);
  return NULL;
}

static const char *
comp_comm_open (void *self, const struct weft_gpu_member *member, weft_gpu_comm **out)
{
  g_autoptr (GBytes) name = g_bytes_new (member->id, sizeof *member->id);

  return join_clique (self, name, member->n, member->rank, out);
}

/* Splits a communicator. All members of the new communicator compute the same name for it: from the
 * parent's name, the number of the split, and the color. Returns NULL, or an error. */
static const char *
comp_comm_split (void *self, weft_gpu_comm *parent, int color, const struct weft_gpu_member *m,
                 weft_gpu_comm **out)
{
  uint64_t words[] = { g_bytes_hash (parent->clique->name), parent->n_split++, (uint64_t) color };
  g_autoptr (GBytes) name = g_bytes_new (words, sizeof words);

  *out = NULL;
  return color < 0 ? NULL : join_clique (self, name, m->n, m->rank, out);
}

static const char *
comp_comm_close (void *self, weft_gpu_comm *comm)
{
  ((computing_cuda *) self)->n_open--;
  g_free (comm->sent);
  g_free (comm->received);
  g_free (comm);
  return NULL;
}

static const char *
comp_comm_ready (void *self, weft_gpu_comm *comm, gboolean *ready)
{
  *ready = comm->clique->came == comm->clique->n || ((computing_cuda *) self)->peers;
  return *ready ? NULL : "a member of a communicator is missing";
}

static const char *
comp_comm_finish (void *self, weft_gpu_comm *comm)
{
  (void) self, (void) comm;
  return NULL;
}

static const char *
comp_window_open (void *self, weft_gpu_comm *comm, void *at, uint64_t bytes, gboolean symmetric,
                  weft_gpu_window **out)
{
  (void) comm, (void) bytes, (void) symmetric;
  ((computing_cuda *) self)->n_open++;
  *out = at;
  return at ? NULL : "a window of nothing";
}

static const char *
comp_window_close (void *self, weft_gpu_comm *comm, weft_gpu_window *window)
{
  (void) comm, (void) window;
  ((computing_cuda *) self)->n_open--;
  return NULL;
}

static const char *
comp_scaled_open (void *self, weft_gpu_comm *comm, enum weft_dtype dtype, double factor, int *out)
{
  computing_cuda *d = self;

  (void) comm, (void) dtype;
  g_array_append_val (d->scaled, factor);
  *out = (int) d->scaled->len - 1;
  d->n_open++;
  return NULL;
}

static const char *
comp_scaled_close (void *self, weft_gpu_comm *comm, int scaled)
{
  (void) comm, (void) scaled;
  ((computing_cuda *) self)->n_open--;
  return NULL;
}

void
computing_comm_calls (struct weft_gpu_calls *calls)
{
  calls->comm_id = comp_comm_id;
  calls->comm_open = comp_comm_open;
  calls->comm_split = comp_comm_split;
  calls->comm_close = calls->comm_abort = comp_comm_close;
  calls->comm_ready = comp_comm_ready;
  calls->comm_finish = comp_comm_finish;
  calls->window_open = comp_window_open;
  calls->window_close = comp_window_close;
  calls->scaled_open = comp_scaled_open;
  calls->scaled_close = comp_scaled_close;
}

void
computing_comm_clear (computing_cuda *d)
{
  for (uint32_t i = 0; i < d->clique->len; i++) {
    struct clique *c = g_ptr_array_index (d->clique, i);
    for (uint32_t pair = 0; pair < c->n * c->n; pair++)
      g_ptr_array_unref (c->between[pair]);
    g_free (c->between);
    g_ptr_array_unref (c->meeting);
    g_bytes_unref (c->name);
    g_free (c);
  }
  g_ptr_array_unref (d->clique);
}
