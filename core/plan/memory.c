#include "core/plan/memory.h"
#include "core/plan/fit.h"
#include "core/plan/lifetimes.h"
#include <string.h>

/* A range of free bytes. until[lane]: number of ops of the lane that must end before the bytes are
 * reused. */
struct gap {
  uint64_t from, to;
  uint32_t until[WEFT_N_LANE];
};

/* A region of a pool in which buffers are packed separately from other regions, and the region's
 * free bytes. */
struct region {
  GArray *free; /* array of struct gap, in order of address */
  uint64_t top;
};

/* How buffers are packed. MIXED: all buffers in one region. SPLIT: buffers used within one forward
 * or backward pass lie above the buffers kept for backward. SLABS: like SPLIT, but all buffers that
 * one microbatch keeps for backward in one model chunk are one block (slab). Each microbatch then
 * fits exactly where an earlier microbatch was, and long steps do not fragment. FITTED: the
 * lifetimes of the whole step are known before the first buffer is placed, so buffers are placed by
 * size (fit.h). FITTED takes longest. */
enum packing { MIXED, SPLIT, SLABS, FITTED, N_PACKING };

/* Largest number of comparisons of buffers of a pool in packing FITTED. A step of DeepSeek-V3 with
 * 120 microbatches on one pipeline stage has 1.7 million buffers, which take 60 million comparisons
 * and four seconds. */
#define MOST_COMPARISONS 200000000u

/* A slab: the buffers that one microbatch keeps for backward in a model chunk, or a part of them.
 * The slab is placed when its first buffer is placed. Its bytes are free after the last use of all
 * its buffers. */
struct slab {
  uint64_t bytes, offset;
  uint32_t n, n_closed;
  gboolean placed;
  struct gap place;
};

struct planner {
  weft_program *p;
  uint32_t *before;
  double *start, *end; /* by op: its begin and end in the earliest schedule, seconds */
  /* limit of the GPU pools in bytes; only a plan above this limit may add waits that cost
   * overlap */
  uint64_t most;
  uint64_t used[WEFT_N_POOL];  /* as in struct weft_memory */
  uint64_t slack[WEFT_N_POOL]; /* bytes of padding that are too few to try another packing */
  enum packing packing;
  struct region kept[WEFT_N_POOL], passing[WEFT_N_POOL];
  /* [buffer]: last use of the buffer on each lane; the uses of a view count for the buffer that it
   * views */
  struct gap *last_use;
  GArray *edges;     /* uint32_t[2] */
  GArray *waits;     /* array of struct weft_memory_wait */
  struct slab *slab; /* the slabs, indexed by slab_number(); NULL unless packing has slabs */
  uint32_t n_micro, n_chunk;
  uint64_t *inner; /* [buffer]: offset of the buffer within its slab */
};

static uint64_t
align (uint64_t bytes)
{
  return (bytes + WEFT_ALIGN - 1) / WEFT_ALIGN * WEFT_ALIGN;
}

static void
find_last_uses (struct planner *m)
{
  const weft_program *p = m->p;

  m->last_use = g_new (struct gap, p->n_buf + 1);
  memset (m->last_use, 0, (p->n_buf + 1) * sizeof *m->last_use);
  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
      if (p->uses[u].buf != WEFT_NO_BUF)
        m->last_use[weft_buf_owner (p, p->uses[u].buf)].until[p->op[op].lane] = p->pos[op] + 1;
}

/* The last op of a lane that must end before the bytes of a gap are reused; WEFT_NO_OP: none. */
static uint32_t
last_op (const struct planner *m, const struct gap *gap, int lane)
{
  return gap->until[lane] ? m->p->lane_ops[lane][gap->until[lane] - 1] : WEFT_NO_OP;
}

/* How an op may reuse the bytes of a free gap. */
enum readiness {
  NOT_YET,    /* not ready: the op may not reuse the bytes */
  LATE,       /* ready only with added dependencies, which delay the op in the earliest schedule */
  WITH_EDGES, /* ready only with added dependencies, which do not delay the op */
  READY       /* readiness without added dependencies */
};

/* The number of lanes on which an op that uses the bytes of the gap may still run when `op` starts.
 * This is the inner loop of the memory planner; it has no branches, so that compilers vectorise
 * it. */
static int
lanes_that_run (const struct planner *m, const struct gap *gap, uint32_t op)
{
  const uint32_t *ended = &m->before[(size_t) op * WEFT_N_LANE];
  int n = 0;

  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    n += (int32_t) gap->until[lane] > (int32_t) ended[lane];
  return n;
}

static enum readiness
readiness (const struct planner *m, const struct gap *gap, uint32_t op)
{
  const uint32_t *ended = &m->before[(size_t) op * WEFT_N_LANE];
  enum readiness result = READY;

  if (lanes_that_run (m, gap, op) == 0)
    return READY;
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    if (gap->until[lane] <= ended[lane])
      continue;
    uint32_t last = last_op (m, gap, lane);
    /* Two ops of one lane that are not ordered are in one launch group and run concurrently. */
    if (last >= op || lane == m->p->op[op].lane)
      return NOT_YET;
    result = MIN (result, m->end[last] > m->start[op] ? LATE : WITH_EDGES);
  }
  return result;
}

/* Records that `op` waits for `on`. Only the last op of each lane that `op` waits for is recorded,
 * because earlier ops of the lane have ended by then. */
static void
add_wait (struct planner *m, uint32_t op, uint32_t on)
{
  struct weft_memory_wait row = { op, on };

  for (guint i = m->waits->len; i-- > 0;) {
    struct weft_memory_wait *other = &g_array_index (m->waits, struct weft_memory_wait, i);
    if (other->op != op)
      break;
    if (m->p->op[other->on].lane != m->p->op[on].lane)
      continue;
    other->on = MAX (other->on, on);
    return;
  }
  g_array_append_val (m->waits, row);
}

static void
add_edges (struct planner *m, const struct gap *gap, uint32_t op)
{
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    uint32_t edge[2] = { last_op (m, gap, lane), op };
    if (edge[0] == WEFT_NO_OP || weft_ordered (m->p, m->before, edge[0], op))
      continue;
    g_array_append_val (m->edges, edge);
    if (m->end[edge[0]] > m->start[op])
      add_wait (m, op, edge[0]);
  }
}

/* Seconds at which the last use of a gap's bytes ends in the earliest schedule of the role. */
static double
last_end (const struct planner *m, const struct gap *gap)
{
  double last = 0;

  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    if (gap->until[lane])
      last = MAX (last, m->end[last_op (m, gap, lane)]);
  return last;
}

/* Whether the range of free bytes x is better than y, for ranges of equal readiness. TRUE: the wait
 * for x is shorter, or both waits are equal and x is smaller, so that fewer bytes stay unused. */
static gboolean
is_better (const struct planner *m, enum readiness ready, const struct gap *x, const struct gap *y)
{
  double late = ready == LATE ? last_end (m, x) - last_end (m, y) : 0;

  return late < 0 || (late == 0 && x->to - x->from < y->to - y->from);
}

/* Index of the best range of free bytes (struct gap) that is large enough and whose readiness (enum
 * readiness) for the op is at least `least`; -1 if there is none. A range that needs no added
 * dependencies is preferred. */
static int
best_gap (const struct planner *m, const GArray *free, uint64_t bytes, enum readiness least,
          uint32_t op)
{
  enum readiness best_ready = NOT_YET;
  const struct gap *best = NULL;

  for (guint i = 0; i < free->len; i++) {
    const struct gap *gap = &g_array_index (free, struct gap, i);
    if (gap->to - gap->from < bytes || (best_ready == READY && !is_better (m, READY, gap, best)))
      continue;
    enum readiness ready = readiness (m, gap, op);
    if (ready >= least &&
        (ready > best_ready || (ready == best_ready && is_better (m, ready, gap, best)))) {
      best = gap;
      best_ready = ready;
    }
  }
  return best ? (int) (best - &g_array_index (free, struct gap, 0)) : -1;
}

/* Grows the region by a buffer and returns the buffer's offset. If the region ends with a free gap
 * whose bytes the op may reuse without waiting (READY), the buffer begins in that gap. */
static uint64_t
grow (struct planner *m, struct region *region, uint64_t bytes, uint32_t op)
{
  GArray *free = region->free;
  uint64_t at = region->top;

  if (free->len) {
    const struct gap *last = &g_array_index (free, struct gap, free->len - 1);
    if (last->to == at && readiness (m, last, op) == READY) {
      at = last->from;
      g_array_set_size (free, free->len - 1);
    }
  }
  region->top = at + bytes;
  return at;
}

static void
merge (struct gap *into, const struct gap *other)
{
  into->from = MIN (into->from, other->from);
  into->to = MAX (into->to, other->to);
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    into->until[lane] = MAX (into->until[lane], other->until[lane]);
}

/* Merges neighbouring free gaps if the readiness of both for an op is at least `least`. Gaps are
 * not merged when they become free: if a transfer still reads some bytes of a merged gap, no byte
 * of it could be reused. */
static void
join (const struct planner *m, GArray *free, enum readiness least, uint32_t op)
{
  for (guint i = 0; i + 1 < free->len;) {
    struct gap *gap = &g_array_index (free, struct gap, i);
    if (gap[0].to != gap[1].from || readiness (m, &gap[0], op) < least ||
        readiness (m, &gap[1], op) < least) {
      i++;
      continue;
    }
    merge (&gap[0], &gap[1]);
    g_array_remove_index (free, i + 1);
  }
}

static int
find_gap (struct planner *m, GArray *free, uint64_t bytes, enum readiness least, uint32_t op)
{
  join (m, free, READY, op);
  int i = best_gap (m, free, bytes, least, op);
  if (i >= 0)
    return i;
  join (m, free, least, op);
  return best_gap (m, free, bytes, least, op);
}

/* Whether a pool would exceed the limit of the GPU pools if it grew by `bytes`. The host pool has
 * no limit. */
static gboolean
is_full (const struct planner *m, enum weft_pool pool, uint64_t bytes)
{
  static const enum weft_pool pools[] = { WEFT_POOL_DEVICE, WEFT_POOL_SYMMETRIC };

  for (unsigned i = 0; i < G_N_ELEMENTS (pools); i++)
    bytes += m->kept[pools[i]].top + m->passing[pools[i]].top;
  return pool != WEFT_POOL_HOST && bytes > m->most;
}

static uint64_t
take (struct planner *m, struct region *region, enum weft_pool pool, uint64_t bytes, uint32_t op)
{
  int i = find_gap (m, region->free, bytes, WITH_EDGES, op);

  if (i < 0 && is_full (m, pool, bytes))
    i = find_gap (m, region->free, bytes, LATE, op);
  if (i < 0)
    return grow (m, region, bytes, op);
  struct gap *gap = &g_array_index (region->free, struct gap, i);
  uint64_t at = gap->from;
  add_edges (m, gap, op);
  gap->from += bytes;
  if (gap->from == gap->to)
    g_array_remove_index (region->free, i);
  return at;
}

static void
give_back (GArray *free, const struct gap *gap)
{
  guint low = 0, high = free->len;

  while (low < high) {
    guint middle = (low + high) / 2;
    if (g_array_index (free, struct gap, middle).from < gap->from)
      low = middle + 1;
    else
      high = middle;
  }
  g_array_insert_vals (free, low, gap, 1);
}

/* Whether a buffer is used only within one forward pass, or only within one backward pass
 * (including recompute), of a microbatch. In a split backward, the pass for weight gradients counts
 * as separate, because it runs long after the pass for input gradients. */
static gboolean
is_passing (const weft_program *p, const struct weft_buf *b)
{
  const struct weft_op *first = &p->op[b->first], *last = &p->op[b->last];
  gboolean waits = last->phase == WEFT_PHASE_WEIGHT_GRAD && first->phase != last->phase;

  return first->micro == last->micro && !waits &&
         (first->phase != WEFT_PHASE_FORWARD || last->phase == WEFT_PHASE_FORWARD);
}

static struct region *
region_of (struct planner *m, const struct weft_buf *b)
{
  return &(m->packing != MIXED && is_passing (m->p, b) ? m->passing : m->kept)[b->pool];
}

static void
place_permanent (struct planner *m)
{
  for (uint32_t i = 0; i < m->p->n_buf; i++) {
    struct weft_buf *b = &m->p->buf[i];
    if (!b->permanent || b->base != WEFT_NO_BUF)
      continue;
    b->offset = m->kept[b->pool].top;
    m->kept[b->pool].top += align (b->bytes);
  }
}

/* Each microbatch has two slabs (blocks of buffers kept for backward) in a model chunk: one for
 * buffers of forward, and one for those that a split backward keeps for weight gradients. */
static size_t
slab_number (const struct planner *m, const struct weft_buf *b)
{
  const struct weft_op *first = &m->p->op[b->first];

  return 2 * ((size_t) first->chunk * m->n_micro + b->micro) + (first->phase == WEFT_PHASE_FORWARD);
}

static struct slab *
slab_of (struct planner *m, uint32_t i)
{
  const struct weft_buf *b = &m->p->buf[i];
  gboolean kept = m->packing == SLABS && b->micro != WEFT_NO_MICRO && b->pool == WEFT_POOL_DEVICE;

  return kept && !is_passing (m->p, b) ? &m->slab[slab_number (m, b)] : NULL;
}

static void
lay_out_slabs (struct planner *m)
{
  m->n_micro = m->n_chunk = 1;
  for (uint32_t op = 0; op < m->p->n_op; op++) {
    m->n_chunk = MAX (m->n_chunk, m->p->op[op].chunk + 1u);
    if (m->p->op[op].micro != WEFT_NO_MICRO)
      m->n_micro = MAX (m->n_micro, m->p->op[op].micro + 1u);
  }
  m->slab = g_new0 (struct slab, 2 * (size_t) m->n_chunk * m->n_micro);
  m->inner = g_new0 (uint64_t, m->p->n_buf + 1);
  for (uint32_t i = 0; i < m->p->n_buf; i++) {
    struct slab *slab = weft_buf_is_placed (&m->p->buf[i]) ? slab_of (m, i) : NULL;
    if (!slab)
      continue;
    m->inner[i] = slab->bytes;
    slab->bytes += align (m->p->buf[i].bytes);
    slab->n++;
  }
}

static void
open_buffer (struct planner *m, uint32_t i, uint32_t op)
{
  struct weft_buf *b = &m->p->buf[i];
  struct slab *slab = slab_of (m, i);

  if (!slab) {
    b->offset = take (m, region_of (m, b), b->pool, align (b->bytes), op);
    return;
  }
  if (!slab->placed)
    slab->offset = take (m, region_of (m, b), b->pool, slab->bytes, op);
  slab->placed = TRUE;
  b->offset = slab->offset + m->inner[i];
}

static void
close_buffer (struct planner *m, uint32_t i)
{
  struct weft_buf *b = &m->p->buf[i];
  struct slab *slab = slab_of (m, i);
  struct gap *gap = &m->last_use[i];

  gap->from = b->offset;
  gap->to = b->offset + align (b->bytes);
  if (!slab) {
    give_back (region_of (m, b)->free, gap);
    return;
  }
  if (slab->n_closed == 0)
    slab->place.from = slab->place.to = gap->from;
  merge (&slab->place, gap);
  if (++slab->n_closed == slab->n)
    give_back (region_of (m, b)->free, &slab->place);
}

static void
place_others (struct planner *m)
{
  weft_program *p = m->p;
  g_autofree uint32_t *opens = g_new (uint32_t, p->n_op + 1),
                      *closes = g_new (uint32_t, p->n_op + 1);
  g_autofree uint32_t *next_open = g_new (uint32_t, p->n_buf + 1),
                      *next_close = g_new (uint32_t, p->n_buf + 1);

  weft_chain_buffers (p, FALSE, opens, next_open);
  weft_chain_buffers (p, TRUE, closes, next_close);
  /* Members of a launch group run concurrently, so a member cannot reuse bytes that another member
   * frees. Merging these bytes with other free bytes would delay the reuse of all of them. The
   * bytes that a group frees therefore become free when the group ends. */
  for (uint32_t op = 0, closed = 0; op < p->n_op; op++) {
    for (uint32_t i = opens[op]; i != WEFT_NO_OP; i = next_open[i])
      open_buffer (m, i, op);
    if (op + 1 < p->n_op && p->op[op + 1].flags & WEFT_OP_GROUPED)
      continue;
    for (; closed <= op; closed++)
      for (uint32_t i = closes[closed]; i != WEFT_NO_OP; i = next_close[i])
        close_buffer (m, i);
  }
}

/* ----------------------------------------------------------------- all at once */

/* State of packing FITTED, which places all buffers when their lifetimes are known. A lifetime is
 * an interval of an axis, on which every op has a place of its own. An axis is either the order of
 * the program, or the order of begins in the earliest schedule: transfers that run ahead of
 * kernels, as gathers of weights do, have late places on the first one, and a buffer would seem to
 * be in use until then. */
struct fitting {
  struct planner *m;
  uint32_t *place; /* [op]: its place on the axis */
  /* the ops of each lane that are the first use of some buffer */
  GArray *opening[WEFT_N_LANE];
  /* lists of buffers by their first op, as weft_chain_buffers() builds them */
  uint32_t *opens, *next_open;
};

static void
find_opening_ops (struct fitting *f)
{
  const weft_program *p = f->m->p;

  f->opens = g_new (uint32_t, p->n_op + 1);
  f->next_open = g_new (uint32_t, p->n_buf + 1);
  weft_chain_buffers (p, FALSE, f->opens, f->next_open);
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    f->opening[lane] = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  for (uint32_t op = 0; op < p->n_op; op++)
    if (f->opens[op] != WEFT_NO_OP)
      g_array_append_val (f->opening[p->op[op].lane], op);
}

static void
fitting_init (struct fitting *f)
{
  find_opening_ops (f);
  f->place = g_new (uint32_t, f->m->p->n_op + 1);
  for (uint32_t op = 0; op < f->m->p->n_op; op++)
    f->place[op] = op;
}

static void
fitting_clear (struct fitting *f)
{
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    g_array_unref (f->opening[lane]);
  g_free (f->opens);
  g_free (f->next_open);
  g_free (f->place);
}

static int
by_start (gconstpointer a, gconstpointer b, gpointer data)
{
  const double *start = data;
  const uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;

  if (start[x] != start[y])
    return start[x] < start[y] ? -1 : 1;
  return x < y ? -1 : x > y;
}

/* Makes the earliest schedule the axis. */
static void
order_by_start (struct fitting *f)
{
  const uint32_t n = f->m->p->n_op;
  g_autofree uint32_t *op = g_new (uint32_t, n + 1);

  for (uint32_t i = 0; i < n; i++)
    op[i] = i;
  g_qsort_with_data (op, (gint) n, sizeof *op, by_start, f->m->start);
  for (uint32_t i = 0; i < n; i++)
    f->place[op[i]] = i;
}

/* Returns the first place on the axis from which on every op that is the first user of a buffer may
 * reuse the bytes of a free range, with added dependencies that do not delay it. If an op may reuse
 * the bytes, so may later ops of its lane; ops before the last use of the bytes may not. */
static uint32_t
free_from (const struct fitting *f, const struct gap *gap)
{
  uint32_t from = 0, last = 0;

  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    if (gap->until[lane])
      last = MAX (last, last_op (f->m, gap, lane));
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    const uint32_t *op = (const uint32_t *) (void *) f->opening[lane]->data;
    guint low = 0, high = f->opening[lane]->len;
    if (gap->until[lane])
      from = MAX (from, f->place[last_op (f->m, gap, lane)] + 1);
    while (low < high) {
      guint middle = (low + high) / 2;
      if (op[middle] > last && readiness (f->m, gap, op[middle]) >= WITH_EDGES)
        high = middle;
      else
        low = middle + 1;
    }
    if (low)
      from = MAX (from, f->place[op[low - 1]] + 1);
  }
  return from;
}

/* The buffers of a pool as pieces: array of struct weft_fit_piece, in the order of the buffers. */
static GArray *
pieces_of (const struct fitting *f, enum weft_pool pool)
{
  GArray *pieces = g_array_new (FALSE, FALSE, sizeof (struct weft_fit_piece));

  for (uint32_t i = 0; i < f->m->p->n_buf; i++) {
    const struct weft_buf *b = &f->m->p->buf[i];
    if (!weft_buf_is_placed (b) || b->pool != pool)
      continue;
    struct weft_fit_piece piece = { .bytes = align (b->bytes),
                                    .first = f->place[b->first],
                                    .end = free_from (f, &f->m->last_use[i]) };
    g_array_append_val (pieces, piece);
  }
  return pieces;
}

static uint64_t
load_of (const struct fitting *f, const GArray *pieces)
{
  return weft_fit_load ((const struct weft_fit_piece *) (const void *) pieces->data, pieces->len,
                        f->m->p->n_op);
}

/* The buffers of a pool as pieces, on the axis on which fewer bytes are in use at the same time. */
static GArray *
best_pieces (struct fitting *f, enum weft_pool pool)
{
  GArray *pieces = pieces_of (f, pool);
  const uint64_t enough = f->m->used[pool] + f->m->slack[pool] / 2;
  const uint64_t load = load_of (f, pieces);

  if (f->m->kept[pool].top + load <= enough)
    return pieces;
  struct fitting other = *f;
  other.place = g_new (uint32_t, f->m->p->n_op + 1);
  order_by_start (&other);
  GArray *earliest = pieces_of (&other, pool);
  gboolean is_better_axis = load_of (f, earliest) < load;
  g_free (other.place);
  g_array_unref (is_better_axis ? pieces : earliest);
  return is_better_axis ? earliest : pieces;
}

static gboolean
fit_pool (struct fitting *f, enum weft_pool pool)
{
  struct planner *m = f->m;
  g_autoptr (GArray) pieces = best_pieces (f, pool);
  const struct weft_fit_piece *piece = (const struct weft_fit_piece *) (void *) pieces->data;
  uint32_t n = 0;

  uint64_t top = weft_fit ((struct weft_fit_piece *) (void *) pieces->data, pieces->len, m->p->n_op,
                           m->slack[pool], MOST_COMPARISONS);
  if (top == G_MAXUINT64)
    return FALSE;
  for (uint32_t i = 0; i < m->p->n_buf; i++)
    if (weft_buf_is_placed (&m->p->buf[i]) && m->p->buf[i].pool == pool)
      m->p->buf[i].offset = m->kept[pool].top + piece[n++].offset;
  m->kept[pool].top += top;
  return TRUE;
}

/* Addresses of a pool, and the buffer that was placed there last. */
struct occupant {
  uint64_t from, to;
  uint32_t buffer;
};

/* The number of the first occupant that ends above an address. Occupants are in the order of their
 * addresses, and do not overlap. */
static guint
find_occupant (const GArray *occupants, uint64_t at)
{
  guint low = 0, high = occupants->len;

  while (low < high) {
    guint middle = (low + high) / 2;
    if (g_array_index (occupants, struct occupant, middle).to <= at)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Makes a buffer the occupant of its addresses. Its first user, `op`, waits for the last users of
 * the buffers that were there before; later buffers at these addresses need not wait for those. */
static void
occupy (struct planner *m, GArray *occupants, uint32_t buffer, uint32_t op)
{
  const struct weft_buf *b = &m->p->buf[buffer];
  const struct occupant new = { b->offset, b->offset + align (b->bytes), buffer };
  const guint first = find_occupant (occupants, new.from);
  const struct occupant *o = &g_array_index (occupants, struct occupant, first);
  struct occupant piece[3];
  guint n = 0, n_old = 0;

  for (; first + n_old < occupants->len && o[n_old].from < new.to; n_old++)
    add_edges (m, &m->last_use[o[n_old].buffer], op);
  if (n_old && o[0].from < new.from)
    piece[n++] = (struct occupant){ o[0].from, new.from, o[0].buffer };
  piece[n++] = new;
  if (n_old && o[n_old - 1].to > new.to)
    piece[n++] = (struct occupant){ new.to, o[n_old - 1].to, o[n_old - 1].buffer };
  if (n_old)
    g_array_remove_range (occupants, first, n_old);
  g_array_insert_vals (occupants, first, piece, n);
}

/* Adds dependencies: the first users of a buffer wait for the last users of earlier buffers at the
 * same address. */
static void
add_all_edges (const struct fitting *f)
{
  const weft_program *p = f->m->p;
  GArray *occupants[WEFT_N_POOL];

  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    occupants[pool] = g_array_new (FALSE, FALSE, sizeof (struct occupant));
  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t i = f->opens[op]; i != WEFT_NO_OP; i = f->next_open[i])
      occupy (f->m, occupants[p->buf[i].pool], i, op);
  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    g_array_unref (occupants[pool]);
}

/* Packing FITTED: places all buffers of a pool by size. Returns FALSE if that would take too
 * long. */
static gboolean
fit_all (struct planner *m)
{
  struct fitting f = { .m = m };
  gboolean ok = TRUE;

  fitting_init (&f);
  for (int pool = 0; pool < WEFT_N_POOL && ok; pool++)
    ok = fit_pool (&f, pool);
  if (ok)
    add_all_edges (&f);
  fitting_clear (&f);
  return ok;
}

static void
start_regions (struct planner *m)
{
  for (int pool = 0; pool < WEFT_N_POOL; pool++) {
    m->kept[pool] = (struct region){ g_array_new (FALSE, FALSE, sizeof (struct gap)), 0 };
    m->passing[pool] = (struct region){ g_array_new (FALSE, FALSE, sizeof (struct gap)), 0 };
  }
  m->edges = g_array_new (FALSE, FALSE, 2 * sizeof (uint32_t));
  m->waits = g_array_new (FALSE, FALSE, sizeof (struct weft_memory_wait));
}

static void
end_regions (struct planner *m)
{
  for (int pool = 0; pool < WEFT_N_POOL; pool++) {
    g_array_unref (m->kept[pool].free);
    g_array_unref (m->passing[pool].free);
  }
  g_array_unref (m->edges);
  g_clear_pointer (&m->waits, g_array_unref);
}

/* In each pool, places the region of buffers used within one pass above the region of buffers kept
 * for backward, and sets the size of the pool. */
static void
stack_regions (struct planner *m, uint64_t planned[WEFT_N_POOL])
{
  gboolean stacked = m->packing == SPLIT || m->packing == SLABS;

  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    planned[pool] = m->kept[pool].top + m->passing[pool].top;
  for (uint32_t i = 0; stacked && i < m->p->n_buf; i++) {
    struct weft_buf *b = &m->p->buf[i];
    if (weft_buf_is_placed (b) && is_passing (m->p, b))
      b->offset += m->kept[b->pool].top;
  }
}

static uint64_t
place (struct planner *m, enum packing packing, uint64_t planned[WEFT_N_POOL])
{
  uint64_t sum = 0;

  m->packing = packing;
  start_regions (m);
  if (packing == SLABS)
    lay_out_slabs (m);
  place_permanent (m);
  gboolean ok = packing != FITTED || fit_all (m);
  if (packing != FITTED)
    place_others (m);
  stack_regions (m, planned);
  g_clear_pointer (&m->slab, g_free);
  g_clear_pointer (&m->inner, g_free);
  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    sum += planned[pool];
  return ok ? sum : G_MAXUINT64;
}

/* The smallest placement of buffers found so far, stored while another packing is tried. */
struct placement {
  uint64_t *offset; /* by buffer: its offset */
  uint64_t planned[WEFT_N_POOL];
  GArray *edges, *waits;
};

static void
clear_placement (struct placement *old)
{
  g_clear_pointer (&old->offset, g_free);
  g_clear_pointer (&old->edges, g_array_unref);
  g_clear_pointer (&old->waits, g_array_unref);
}

static void
keep_placement (const struct planner *m, const uint64_t planned[WEFT_N_POOL], struct placement *old)
{
  clear_placement (old);
  old->offset = g_new (uint64_t, m->p->n_buf + 1);
  for (uint32_t i = 0; i < m->p->n_buf; i++)
    old->offset[i] = m->p->buf[i].offset;
  memcpy (old->planned, planned, sizeof old->planned);
  old->edges = g_array_ref (m->edges);
  old->waits = g_array_ref (m->waits);
}

static void
restore_placement (struct planner *m, uint64_t planned[WEFT_N_POOL], struct placement *old)
{
  for (uint32_t i = 0; i < m->p->n_buf; i++)
    m->p->buf[i].offset = old->offset[i];
  memcpy (planned, old->planned, sizeof old->planned);
  g_array_unref (m->edges);
  g_array_unref (m->waits);
  m->edges = g_steal_pointer (&old->edges);
  m->waits = g_steal_pointer (&old->waits);
}

/* Tries packings in turn, and stops at one whose padding is at most half a percent. */
static void
place_best (struct planner *m, const enum packing *order, int n, struct weft_memory *memory)
{
  uint64_t enough = 0, best = G_MAXUINT64;
  gboolean is_best = FALSE;
  struct placement old = { 0 };

  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    enough += memory->used[pool] + m->slack[pool];
  for (int i = 0; i < n && best > enough; i++) {
    if (is_best)
      keep_placement (m, memory->planned, &old);
    if (i > 0)
      end_regions (m);
    uint64_t bytes = place (m, order[i], memory->planned);
    is_best = bytes < best;
    best = MIN (best, bytes);
    if (order[i] == FITTED && is_best)
      break;
  }
  if (!is_best)
    restore_placement (m, memory->planned, &old);
  clear_placement (&old);
}

static uint64_t
on_gpu (const uint64_t bytes[WEFT_N_POOL])
{
  return bytes[WEFT_POOL_DEVICE] + bytes[WEFT_POOL_SYMMETRIC];
}

/* Places the buffers anew such that ops wait for memory, so that the GPU pools do not exceed `most`
 * bytes. Restores the placement without waits if they exceed it nevertheless. FITTED places no
 * buffer where its op would wait. */
static void
place_waiting (struct planner *m, uint64_t most, struct weft_memory *memory)
{
  static const enum packing order[] = { SLABS, SPLIT, MIXED };
  struct placement old = { 0 };

  keep_placement (m, memory->planned, &old);
  end_regions (m);
  m->most = most;
  place_best (m, order, G_N_ELEMENTS (order), memory);
  if (on_gpu (memory->planned) > most)
    restore_placement (m, memory->planned, &old);
  clear_placement (&old);
}

/* SLABS is quick and has almost no gaps if microbatches follow each other evenly. FITTED usually
 * gives the smallest arena otherwise; the others are tried if it would take too long. */
static const enum packing without_waits[N_PACKING] = { SLABS, FITTED, SPLIT, MIXED };

void
weft_memory_plan (weft_program *p, const double *seconds, uint64_t most, struct weft_memory *memory)
{
  struct planner m = { .p = p, .before = weft_program_order (p), .most = G_MAXUINT64 };

  m.start = g_new (double, p->n_op + 1);
  m.end = g_new (double, p->n_op + 1);
  weft_earliest_schedule (p, seconds, m.start, m.end);
  find_last_uses (&m);
  weft_memory_live (p, memory);
  weft_bytes_in_use (p, m.start, m.end, memory->used);
  for (int pool = 0; pool < WEFT_N_POOL; pool++) {
    memory->used[pool] = MAX (memory->used[pool], memory->live[pool]);
    m.slack[pool] = memory->used[pool] / 200;
  }
  memcpy (m.used, memory->used, sizeof m.used);
  place_best (&m, without_waits, N_PACKING, memory);
  if (on_gpu (memory->planned) > most && on_gpu (memory->live) <= most)
    place_waiting (&m, most, memory);
  memory->n_wait = m.waits->len;
  if (memory->n_wait)
    memory->wait =
        (struct weft_memory_wait *) (void *) g_array_free (g_steal_pointer (&m.waits), FALSE);
  memory->n_reuse_deps =
      weft_program_add_deps (p, (const uint32_t (*)[2]) (void *) m.edges->data, m.edges->len);
  end_regions (&m);
  g_free (m.before);
  g_free (m.start);
  g_free (m.end);
  g_free (m.last_use);
}

void
weft_memory_clear (struct weft_memory *memory)
{
  g_clear_pointer (&memory->wait, g_free);
  memory->n_wait = 0;
}
