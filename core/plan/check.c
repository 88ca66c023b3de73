/* The proofs about one program: reads after writes, no races, no two live buffers at one address.
 *
 * Bytes are cut into atoms at the borders of all views of a buffer. The ops are visited in order.
 * Each atom stores its last writer and, per lane, the newest reader after that write. Every access
 * must be ordered after the stored writer. A write must also be ordered after the stored readers.
 * Older accesses need no check, because each of them is ordered before a stored access. */
#include "core/plan/check.h"
#include "core/base/error.h"
#include "core/plan/replay.h"
#include <stdlib.h>
#include <string.h>

struct atom {
  uint32_t writer, reader[WEFT_N_LANE];
};

struct race {
  const weft_program *p;
  uint32_t *before;
  uint32_t *first_atom, *n_atoms; /* [buffer]: its accesses; those of its views are included */
  struct atom *atoms;
  uint32_t n_atom;
};

struct border {
  uint32_t owner;
  uint64_t at;
};

static int
by_border (const void *a, const void *b)
{
  const struct border *x = a, *y = b;
  if (x->owner != y->owner)
    return x->owner < y->owner ? -1 : 1;
  return (x->at > y->at) - (x->at < y->at);
}

static uint32_t
find_border (const struct border *border, uint32_t n, uint32_t owner, uint64_t at)
{
  struct border key = { owner, at };
  const struct border *hit = bsearch (&key, border, n, sizeof key, by_border);
  return hit - border;
}

/* Returns the begin and end of every view, and of every buffer that has views: sorted, without
 * duplicates. A buffer without views needs no borders, because it is one atom. */
static struct border *
cut (const weft_program *p, const gboolean *has_view, uint32_t *n_out)
{
  GArray *all = g_array_new (FALSE, FALSE, sizeof (struct border));

  for (uint32_t i = 0; i < p->n_buf; i++) {
    uint32_t owner = weft_buf_owner (p, i);
    if (!has_view[owner])
      continue;
    uint64_t from = i == owner ? 0 : p->buf[i].offset;
    struct border two[] = { { owner, from }, { owner, from + p->buf[i].bytes } };
    g_array_append_vals (all, two, 2);
  }
  if (all->len)
    qsort (all->data, all->len, sizeof (struct border), by_border);
  struct border *border = (struct border *) (void *) all->data;
  uint32_t n = 0;
  for (uint32_t i = 0; i < all->len; i++)
    if (n == 0 || by_border (&border[n - 1], &border[i]) != 0)
      border[n++] = border[i];
  *n_out = n;
  return (struct border *) (void *) g_array_free (all, FALSE);
}

static void
make_atoms (struct race *r)
{
  const weft_program *p = r->p;
  g_autofree gboolean *has_view = g_new0 (gboolean, p->n_buf + 1);
  uint32_t n_border = 0, next;

  for (uint32_t i = 0; i < p->n_buf; i++)
    if (p->buf[i].base != WEFT_NO_BUF)
      has_view[p->buf[i].base] = TRUE;
  g_autofree struct border *border = cut (p, has_view, &n_border);
  r->first_atom = g_new (uint32_t, p->n_buf + 1);
  r->n_atoms = g_new (uint32_t, p->n_buf + 1);
  /* atom number i of a buffer with views begins at border number i; atoms of buffers without views
   * follow */
  next = n_border;
  for (uint32_t i = 0; i < p->n_buf; i++) {
    uint32_t owner = weft_buf_owner (p, i);
    if (!has_view[owner]) {
      r->first_atom[i] = next++;
      r->n_atoms[i] = 1;
      continue;
    }
    uint64_t from = i == owner ? 0 : p->buf[i].offset;
    r->first_atom[i] = find_border (border, n_border, owner, from);
    r->n_atoms[i] =
        find_border (border, n_border, owner, from + p->buf[i].bytes) - r->first_atom[i];
  }
  r->n_atom = next;
  r->atoms = g_new (struct atom, next + 1);
  memset (r->atoms, 0xff, (next + 1) * sizeof *r->atoms);
}

static gboolean
race (const struct race *r, uint32_t first, uint32_t then, uint32_t buf, GError **error)
{
  g_autofree char *a = weft_op_label (r->p, first), *b = weft_op_label (r->p, then);
  g_autofree char *what = weft_buf_label (r->p, buf);

  return weft_bad_input (
      error,
      "role %u: op %u (%s) and op %u (%s) both touch buffer %u (%s), and nothing "
      "orders them: a race",
      r->p->role, first, a, then, b, buf, what);
}

static gboolean
access (struct race *r, struct atom *atom, uint32_t op, struct weft_use use, GError **error)
{
  const weft_program *p = r->p;

  if (atom->writer == WEFT_NO_OP && use.read && !p->buf[use.buf].permanent) {
    g_autofree char *what = weft_buf_label (p, use.buf), *who = weft_op_label (p, op);
    return weft_bad_input (error, "role %u: op %u (%s) reads buffer %u (%s) before any op wrote it",
                           p->role, op, who, use.buf, what);
  }
  if (atom->writer != WEFT_NO_OP && atom->writer != op &&
      !weft_ordered (p, r->before, atom->writer, op))
    return race (r, atom->writer, op, use.buf, error);
  if (!use.write) {
    atom->reader[p->op[op].lane] = op;
    return TRUE;
  }
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    uint32_t reader = atom->reader[lane];
    if (reader != WEFT_NO_OP && reader != op && !weft_ordered (p, r->before, reader, op))
      return race (r, reader, op, use.buf, error);
  }
  memset (atom, 0xff, sizeof *atom);
  atom->writer = op;
  return TRUE;
}

static gboolean
check_uses (struct race *r, GError **error)
{
  const weft_program *p = r->p;

  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++) {
      struct weft_use use = p->uses[u];
      if (use.buf == WEFT_NO_BUF)
        continue;
      for (uint32_t a = 0; a < r->n_atoms[use.buf]; a++)
        if (!access (r, &r->atoms[r->first_atom[use.buf] + a], op, use, error))
          return FALSE;
    }
  return TRUE;
}

/* Whether an operand of an op must be in host memory. A copy between host and device has one
 * operand in host memory. Any other op has all its operands in host memory if it runs on lane host,
 * and none otherwise. */
static gboolean
belongs_on_host (const struct weft_op *op, uint32_t operand)
{
  if (weft_op_is_pooled_copy (op->kind))
    return operand == !weft_op_enters_device (op->kind);
  return op->lane == WEFT_LANE_HOST;
}

static gboolean
out_of_reach (const weft_program *p, uint32_t op, uint32_t buf, gboolean on_host, GError **error)
{
  g_autofree char *who = weft_op_label (p, op), *what = weft_buf_label (p, buf);

  return weft_bad_input (error,
                         "role %u: op %u (%s) on lane %s uses buffer %u (%s) in pool %s, wanted "
                         "%s memory there",
                         p->role, op, who, weft_lane_words[p->op[op].lane], buf, what,
                         weft_pool_words[p->buf[buf].pool], on_host ? "host" : "device");
}

static gboolean
check_pools (const weft_program *p, GError **error)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++) {
      uint32_t buf = p->uses[u].buf;
      gboolean on_host = belongs_on_host (&p->op[op], u - p->op[op].uses);
      if (buf != WEFT_NO_BUF && (p->buf[buf].pool == WEFT_POOL_HOST) != on_host)
        return out_of_reach (p, op, buf, on_host, error);
    }
  return TRUE;
}

gboolean
weft_check_program (const weft_program *p, GError **error)
{
  struct race r = { .p = p, .before = weft_program_order (p) };

  make_atoms (&r);
  gboolean ok = check_pools (p, error) && check_uses (&r, error);
  g_free (r.before);
  g_free (r.first_atom);
  g_free (r.n_atoms);
  g_free (r.atoms);
  return ok;
}

/* ---------------------------------------------------------------- addresses */

/* First and last op of each lane that uses a buffer; WEFT_NO_OP: no op of the lane uses the
 * buffer. */
struct span {
  uint32_t first[WEFT_N_LANE], last[WEFT_N_LANE];
};

/* An address range and the newest buffer in it. A segment ends where the next segment begins;
 * segments are sorted and cover the whole arena. */
struct segment {
  uint64_t from;
  uint32_t owner; /* newest buffer that has used the segment; WEFT_NO_BUF: none */
};

static struct span *
find_spans (const weft_program *p)
{
  struct span *span = g_new (struct span, p->n_buf + 1);

  memset (span, 0xff, (p->n_buf + 1) * sizeof *span);
  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
      if (p->uses[u].buf != WEFT_NO_BUF) {
        struct span *s = &span[weft_buf_owner (p, p->uses[u].buf)];
        s->first[p->op[op].lane] = MIN (s->first[p->op[op].lane], op);
        s->last[p->op[op].lane] = op;
      }
  return span;
}

static gboolean
still_used (const weft_program *p, uint32_t old, uint32_t last, uint32_t new, uint32_t first,
            GError **error)
{
  g_autofree char *a = weft_buf_label (p, old), *b = weft_buf_label (p, new);

  return weft_bad_input (error,
                         "role %u: buffer %u (%s) overwrites buffer %u (%s), but op %u still "
                         "uses the old one when op %u may start",
                         p->role, new, b, old, a, last, first);
}

/* Whether the first use of the new buffer on every lane is ordered after the last use of the old
 * buffer on every lane. All pairs of lanes are checked, because views of one buffer may be written
 * by ops on lanes that do not wait for each other. */
static gboolean
handed_over (const weft_program *p, const uint32_t *before, const struct span *span, uint32_t old,
             uint32_t new, GError **error)
{
  for (int to = 0; to < WEFT_N_LANE; to++) {
    uint32_t first = span[new].first[to];
    for (int from = 0; from < WEFT_N_LANE && first != WEFT_NO_OP; from++) {
      uint32_t last = span[old].last[from];
      if (last != WEFT_NO_OP && (last >= first || !weft_ordered (p, before, last, first)))
        return still_used (p, old, last, new, first, error);
    }
  }
  return TRUE;
}

static int
compare_segments (const void *a, const void *b, void *unused)
{
  const struct segment *x = a, *y = b;

  (void) unused;
  return (x->from > y->from) - (x->from < y->from);
}

static GTreeNode *
add_segment (GTree *map, uint64_t from, uint32_t owner)
{
  struct segment *segment = g_new (struct segment, 1);

  *segment = (struct segment){ from, owner };
  return g_tree_insert_node (map, segment, NULL);
}

/* Returns the segment that starts at address `at`. If no segment starts there, splits the segment
 * that contains `at`. */
static GTreeNode *
split_segment (GTree *map, uint64_t at)
{
  GTreeNode *after = g_tree_upper_bound (map, &(struct segment){ at, WEFT_NO_BUF });
  GTreeNode *node = after ? g_tree_node_previous (after) : g_tree_node_last (map);
  const struct segment *segment = g_tree_node_key (node);

  return segment->from == at ? node : add_segment (map, at, segment->owner);
}

static gboolean
occupy (const weft_program *p, const uint32_t *before, const struct span *span, GTree *map,
        uint32_t buf, GError **error)
{
  const struct weft_buf *b = &p->buf[buf];
  GTreeNode *first = split_segment (map, b->offset), *next;
  const struct segment *end = g_tree_node_key (split_segment (map, b->offset + b->bytes));

  for (GTreeNode *node = first; g_tree_node_key (node) != end; node = next) {
    struct segment *segment = g_tree_node_key (node);
    if (segment->owner != WEFT_NO_BUF &&
        !handed_over (p, before, span, segment->owner, buf, error))
      return FALSE;
    next = g_tree_node_next (node);
    segment->owner = buf;
    if (node != first)
      g_tree_remove (map, segment);
  }
  return TRUE;
}

static int
by_first (const void *a, const void *b, void *program)
{
  const weft_program *p = program;
  uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;
  if (p->buf[x].first != p->buf[y].first)
    return p->buf[x].first < p->buf[y].first ? -1 : 1;
  return (x > y) - (x < y);
}

static gboolean
check_pool (const weft_program *p, const uint32_t *before, const struct span *span,
            enum weft_pool pool, GError **error)
{
  g_autofree uint32_t *order = g_new (uint32_t, p->n_buf + 1);
  g_autoptr (GTree) map = g_tree_new_full (compare_segments, NULL, g_free, NULL);
  uint32_t n = 0;

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    if (b->pool == pool && b->base == WEFT_NO_BUF && b->bytes && b->first != WEFT_NO_OP)
      order[n++] = i;
  }
  g_qsort_with_data (order, n, sizeof *order, by_first, (void *) (uintptr_t) p);
  add_segment (map, 0, WEFT_NO_BUF);
  for (uint32_t i = 0; i < n; i++)
    if (!occupy (p, before, span, map, order[i], error))
      return FALSE;
  return TRUE;
}

/* Extends the use of permanent buffers to the whole step. A permanent buffer is in use before and
 * after the step, so no other buffer may share its bytes. */
static void
extend_permanent (const weft_program *p, struct span *span)
{
  for (uint32_t i = 0; i < p->n_buf; i++)
    if (p->buf[i].permanent && p->n_op) {
      span[i].first[p->op[0].lane] = 0;
      span[i].last[p->op[p->n_op - 1].lane] = p->n_op - 1;
    }
}

gboolean
weft_check_addresses (const weft_program *p, GError **error)
{
  g_autofree uint32_t *before = weft_program_order (p);
  g_autofree struct span *span = find_spans (p);

  extend_permanent (p, span);
  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    if (!check_pool (p, before, span, pool, error))
      return FALSE;
  return TRUE;
}

gboolean
weft_check_roles (const struct weft_mesh *mesh, weft_program *const *role, GError **error)
{
  g_autoptr (weft_actors) actors = weft_actors_new_roles (mesh);
  struct weft_replay replay = { .actors = actors, .role = role };

  return weft_replay_run (&replay, error);
}
