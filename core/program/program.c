/* Builds a program. Callers append rows; the builder turns hazards between lanes (queues) into
 * dependencies, and omits a dependency that other dependencies imply. */
#include "core/program/program.h"
#include "core/base/invariant.h"
#include <string.h>

const char *const weft_buf_kind_words[] = { WEFT_BUF_KIND_LIST (WEFT_WORD_TEXT) NULL };
#define FLAG_WORD(id, bit, word, doc) [bit] = word,
const char *const weft_op_flag_words[] = { WEFT_OP_FLAG_LIST (FLAG_WORD) NULL };
const char *const weft_pool_words[] = { WEFT_POOL_LIST (WEFT_WORD_TEXT) NULL };

/* Last accesses of a buffer: the op that wrote the buffer last, and each lane's newest op that has
 * read the buffer since that write. */
struct hazard {
  uint32_t writer, reader[WEFT_N_LANE];
};

/* Names and shapes that were asked for last, one for each value of a cheap hash: almost all ops ask
 * for one of these, and a table of all takes a tenth of the time of a program. */
enum { N_RECENT = 256 };

struct weft_builder {
  uint32_t role, n_roles;
  GArray *op, *deps, *uses, *buf, *shape, *param, *hazard;
  /* Element `op` of `before` has one number for each lane: the number of ops of this lane that must
   * have ended before `op` starts, by dependencies and lane order (weft_program_order()). */
  GArray *before;
  GArray *pos;
  GPtrArray *name;
  GHashTable *name_index, *shape_index;
  uint16_t recent_name[N_RECENT], recent_shape[N_RECENT]; /* indices; 0 at first */
  uint32_t last[WEFT_N_LANE], lane_n[WEFT_N_LANE];
};

static guint
shape_hash (gconstpointer key)
{
  const uint64_t *word = key;
  uint64_t hash = 0;
  for (size_t i = 0; i < sizeof (struct weft_shape) / 8; i++)
    hash = (hash ^ word[i]) * 0x9e3779b97f4a7c15u;
  return hash >> 32;
}

static gboolean
shape_equal (gconstpointer a, gconstpointer b)
{
  return memcmp (a, b, sizeof (struct weft_shape)) == 0;
}

/* Lengths of the last program of this thread. The next one is likely to be as long, because the
 * stages of a plan are alike: its arrays have this room at once, as growing them takes a tenth of
 * the time of a search. */
static _Thread_local struct {
  guint ops, deps, uses, bufs;
} last_lengths;

weft_builder *
weft_builder_new (uint32_t role, uint32_t n_roles)
{
  weft_builder *b = g_new0 (weft_builder, 1);
  guint ops = last_lengths.ops + 1, bufs = last_lengths.bufs;

  b->role = role;
  b->n_roles = n_roles;
  b->op = g_array_sized_new (FALSE, TRUE, sizeof (struct weft_op), ops);
  b->deps = g_array_sized_new (FALSE, FALSE, sizeof (uint32_t), last_lengths.deps);
  b->uses = g_array_sized_new (FALSE, FALSE, sizeof (struct weft_use), last_lengths.uses);
  b->buf = g_array_sized_new (FALSE, TRUE, sizeof (struct weft_buf), bufs);
  b->shape = g_array_new (FALSE, TRUE, sizeof (struct weft_shape));
  b->param = g_array_new (FALSE, TRUE, sizeof (struct weft_param));
  b->hazard = g_array_sized_new (FALSE, FALSE, sizeof (struct hazard), bufs);
  b->before = g_array_sized_new (FALSE, FALSE, WEFT_N_LANE * sizeof (uint32_t), ops);
  b->pos = g_array_sized_new (FALSE, FALSE, sizeof (uint32_t), ops);
  b->name = g_ptr_array_new_with_free_func (g_free);
  b->name_index = g_hash_table_new (g_str_hash, g_str_equal);
  b->shape_index = g_hash_table_new_full (shape_hash, shape_equal, g_free, NULL);
  memset (b->last, 0xff, sizeof b->last);
  return b;
}

void
weft_builder_free (weft_builder *b)
{
  GArray *arrays[] = { b->op,    b->deps,   b->uses,   b->buf, b->shape,
                       b->param, b->hazard, b->before, b->pos };
  for (size_t i = 0; i < G_N_ELEMENTS (arrays); i++)
    g_array_unref (arrays[i]);
  g_ptr_array_unref (b->name);
  g_hash_table_unref (b->name_index);
  g_hash_table_unref (b->shape_index);
  g_free (b);
}

static uint16_t
find_name (weft_builder *b, const char *name)
{
  gpointer index;

  if (g_hash_table_lookup_extended (b->name_index, name, NULL, &index))
    return GPOINTER_TO_UINT (index);
  char *copy = g_strdup (name);
  WEFT_INVARIANT (b->name->len < UINT16_MAX);
  g_ptr_array_add (b->name, copy);
  g_hash_table_insert (b->name_index, copy, GUINT_TO_POINTER (b->name->len - 1));
  return b->name->len - 1;
}

/* Most names are literals, so their addresses tell them apart. */
uint16_t
weft_build_name (weft_builder *b, const char *name)
{
  uint16_t *recent = &b->recent_name[GPOINTER_TO_SIZE (name) / 4 % N_RECENT];

  if (*recent >= b->name->len || strcmp (b->name->pdata[*recent], name) != 0)
    *recent = find_name (b, name);
  return *recent;
}

static uint16_t
find_shape (weft_builder *b, const struct weft_shape *shape)
{
  gpointer index;

  if (g_hash_table_lookup_extended (b->shape_index, shape, NULL, &index))
    return GPOINTER_TO_UINT (index);
  WEFT_INVARIANT (b->shape->len < UINT16_MAX);
  g_array_append_vals (b->shape, shape, 1);
  g_hash_table_insert (b->shape_index, g_memdup2 (shape, sizeof *shape),
                       GUINT_TO_POINTER (b->shape->len - 1));
  return b->shape->len - 1;
}

static uint16_t
intern_shape (weft_builder *b, const struct weft_shape *shape)
{
  uint16_t *recent = &b->recent_shape[shape_hash (shape) % N_RECENT];

  if (*recent >= b->shape->len ||
      !shape_equal (&g_array_index (b->shape, struct weft_shape, *recent), shape))
    *recent = find_shape (b, shape);
  return *recent;
}

uint32_t
weft_build_buf (weft_builder *b, const struct weft_buf *row)
{
  struct hazard none;

  memset (&none, 0xff, sizeof none);
  g_array_append_vals (b->hazard, &none, 1);
  g_array_append_vals (b->buf, row, 1);
  WEFT_INVARIANT (b->buf->len < WEFT_NO_BUF);
  return b->buf->len - 1;
}

struct weft_buf *
weft_build_buf_at (weft_builder *b, uint32_t buf)
{
  return &g_array_index (b->buf, struct weft_buf, buf);
}

uint32_t
weft_build_view (weft_builder *b, uint32_t base, uint64_t offset, uint64_t bytes, const char *name)
{
  struct weft_buf row = *weft_build_buf_at (b, base);

  WEFT_INVARIANT (row.base == WEFT_NO_BUF && offset + bytes <= row.bytes);
  row.base = base;
  row.offset = offset;
  row.bytes = bytes;
  row.name = weft_build_name (b, name);
  return weft_build_buf (b, &row);
}

const char *
weft_build_name_at (const weft_builder *b, uint16_t name)
{
  return b->name->pdata[name];
}

uint32_t
weft_build_param (weft_builder *b, const struct weft_param *row)
{
  g_array_append_vals (b->param, row, 1);
  return b->param->len - 1;
}

static uint32_t *
before_row (weft_builder *b, uint32_t op)
{
  return &((uint32_t *) (void *) b->before->data)[(size_t) op * WEFT_N_LANE];
}

/* Sets `row`: for each lane, the number of ops that must have ended when `op` starts, by the order
 * of its own lane. These are the ops that preceded the previous op of the lane, and the previous op
 * itself. A grouped op starts together with the previous op, so the previous op itself is not
 * counted. */
static void
begin_order (uint32_t *row, const uint32_t *previous, const struct weft_op *op, uint32_t pos)
{
  if (previous)
    memcpy (row, previous, WEFT_N_LANE * sizeof *row);
  else
    memset (row, 0, WEFT_N_LANE * sizeof *row);
  if (!(op->flags & WEFT_OP_GROUPED))
    row[op->lane] = pos;
}

static void
merge_order (uint32_t *row, const uint32_t *other, enum weft_lane lane, uint32_t pos)
{
  for (int l = 0; l < WEFT_N_LANE; l++)
    row[l] = MAX (row[l], other[l]);
  row[lane] = MAX (row[lane], pos + 1);
}

uint32_t
weft_build_op (weft_builder *b, const struct weft_op *row, const struct weft_shape *shape)
{
  uint32_t op = b->op->len, previous = b->last[row->lane], pos = b->lane_n[row->lane]++;
  struct weft_op full = *row;

  WEFT_INVARIANT (!(row->flags & WEFT_OP_GROUPED) || previous != WEFT_NO_OP);
  full.shape = intern_shape (b, shape);
  full.deps = b->deps->len;
  full.uses = b->uses->len;
  g_array_append_vals (b->op, &full, 1);
  g_array_append_vals (b->pos, &pos, 1);
  g_array_set_size (b->before, op + 1);
  begin_order (before_row (b, op), previous == WEFT_NO_OP ? NULL : before_row (b, previous), &full,
               pos);
  b->last[row->lane] = op;
  return op;
}

void
weft_build_dep (weft_builder *b, uint32_t dep)
{
  uint32_t op = b->op->len - 1;

  if (dep == WEFT_NO_OP)
    return;
  WEFT_INVARIANT (dep < op);
  const struct weft_op *from = &g_array_index (b->op, struct weft_op, dep);
  const struct weft_op *to = &g_array_index (b->op, struct weft_op, op);
  uint32_t pos = g_array_index (b->pos, uint32_t, dep), *row = before_row (b, op);

  if (row[from->lane] > pos || from->lane == to->lane)
    return;
  g_array_append_val (b->deps, dep);
  merge_order (row, before_row (b, dep), from->lane, pos);
}

void
weft_build_use (weft_builder *b, uint32_t buf, gboolean read, gboolean write)
{
  struct weft_use use = { .buf = buf, .read = read, .write = write };
  uint32_t op = b->op->len - 1;

  g_array_append_val (b->uses, use);
  if (buf == WEFT_NO_BUF)
    return;
  struct hazard *h = &g_array_index (b->hazard, struct hazard, buf);
  if (h->writer != WEFT_NO_OP && h->writer != op)
    weft_build_dep (b, h->writer);
  if (!write) {
    h->reader[g_array_index (b->op, struct weft_op, op).lane] = op;
    return;
  }
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    if (h->reader[lane] != WEFT_NO_OP && h->reader[lane] != op)
      weft_build_dep (b, h->reader[lane]);
  memset (h, 0xff, sizeof *h);
  h->writer = op;
}

void
weft_build_more (weft_builder *b, uint32_t op, uint32_t operand, uint32_t buf)
{
  uint32_t place = g_array_index (b->op, struct weft_op, op).uses + operand;
  struct weft_use *use = &g_array_index (b->uses, struct weft_use, place);
  struct hazard *h = &g_array_index (b->hazard, struct hazard, buf);

  WEFT_INVARIANT (use->buf == WEFT_NO_BUF && use->write && h->writer == WEFT_NO_OP);
  use->buf = buf;
  h->writer = op;
}

void
weft_build_reshape (weft_builder *b, uint32_t op, const struct weft_shape *shape)
{
  g_array_index (b->op, struct weft_op, op).shape = intern_shape (b, shape);
}

const struct weft_shape *
weft_build_shape_at (const weft_builder *b, uint32_t op)
{
  return &g_array_index (b->shape, struct weft_shape,
                         g_array_index (b->op, struct weft_op, op).shape);
}

uint32_t
weft_build_last (const weft_builder *b, enum weft_lane lane)
{
  return b->last[lane];
}

/* Gives every view the memory pool of its base, because a pass may have moved the base to another
 * pool after the view was created. */
static void
place_views (weft_builder *b)
{
  for (uint32_t i = 0; i < b->buf->len; i++) {
    struct weft_buf *view = weft_build_buf_at (b, i);
    if (view->base != WEFT_NO_BUF)
      view->pool = weft_build_buf_at (b, view->base)->pool;
  }
}

/* Takes the elements out of an array, without the room for more. */
static gpointer
steal_all (GArray *array)
{
  gsize bytes = (gsize) array->len * g_array_get_element_size (array);
  gpointer elements = g_array_steal (array, NULL);

  return bytes ? g_realloc (elements, bytes) : elements;
}

weft_program *
weft_builder_freeze (weft_builder *b)
{
  weft_program *p = g_new0 (weft_program, 1);
  struct weft_op end = { .deps = b->deps->len, .uses = b->uses->len };

  last_lengths.ops = b->op->len;
  last_lengths.deps = b->deps->len;
  last_lengths.uses = b->uses->len;
  last_lengths.bufs = b->buf->len;
  place_views (b);
  p->role = b->role;
  p->n_roles = b->n_roles;
  p->n_op = b->op->len;
  p->n_buf = b->buf->len;
  p->n_shape = b->shape->len;
  p->n_param = b->param->len;
  p->n_name = b->name->len;
  g_array_append_val (b->op, end);
  p->op = steal_all (b->op);
  p->deps = steal_all (b->deps);
  p->uses = steal_all (b->uses);
  p->buf = steal_all (b->buf);
  p->shape = steal_all (b->shape);
  p->param = steal_all (b->param);
  g_ptr_array_add (b->name, NULL);
  p->name = (char **) g_ptr_array_steal (b->name, NULL);
  weft_program_index (p);
  return p;
}

void
weft_program_free (weft_program *p)
{
  if (!p)
    return;
  g_free (p->op);
  g_free (p->deps);
  g_free (p->uses);
  g_free (p->buf);
  g_free (p->shape);
  g_free (p->param);
  g_strfreev (p->name);
  g_free (p->pos);
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    g_free (p->lane_ops[lane]);
  g_free (p);
}

static void
touch (struct weft_buf *buf, uint32_t op)
{
  buf->first = MIN (buf->first, op);
  buf->last = MAX (buf->last, op);
}

static void
index_lifetimes (weft_program *p)
{
  for (uint32_t i = 0; i < p->n_buf; i++) {
    p->buf[i].first = p->buf[i].permanent ? 0 : WEFT_NO_OP;
    p->buf[i].last = p->buf[i].permanent && p->n_op ? p->n_op - 1 : 0;
  }
  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
      if (p->uses[u].buf != WEFT_NO_BUF) {
        touch (&p->buf[p->uses[u].buf], op);
        touch (&p->buf[weft_buf_owner (p, p->uses[u].buf)], op);
      }
}

static void
index_lanes (weft_program *p)
{
  g_free (p->pos);
  p->pos = g_new (uint32_t, p->n_op + 1);
  memset (p->lane_n, 0, sizeof p->lane_n);
  for (uint32_t op = 0; op < p->n_op; op++)
    p->pos[op] = p->lane_n[p->op[op].lane]++;
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    g_free (p->lane_ops[lane]);
    p->lane_ops[lane] = g_new (uint32_t, p->lane_n[lane] + 1);
  }
  for (uint32_t op = 0; op < p->n_op; op++)
    p->lane_ops[p->op[op].lane][p->pos[op]] = op;
}

void
weft_program_index (weft_program *p)
{
  index_lifetimes (p);
  index_lanes (p);
}

/* Computes the row of an op in the order of a program, from those of earlier ops. last[lane]: the
 * last of the earlier ops of each lane. */
static void
order_op (const weft_program *p, uint32_t *before, uint32_t last[WEFT_N_LANE], uint32_t op)
{
  uint32_t *row = before + (size_t) op * WEFT_N_LANE, previous = last[p->op[op].lane];

  begin_order (row, previous == WEFT_NO_OP ? NULL : before + (size_t) previous * WEFT_N_LANE,
               &p->op[op], p->pos[op]);
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++) {
    uint32_t dep = p->deps[d];
    merge_order (row, before + (size_t) dep * WEFT_N_LANE, p->op[dep].lane, p->pos[dep]);
  }
  last[p->op[op].lane] = op;
}

uint32_t *
weft_program_order (const weft_program *p)
{
  uint32_t *before = g_new (uint32_t, (size_t) (p->n_op + 1) * WEFT_N_LANE);
  uint32_t last[WEFT_N_LANE];

  memset (last, 0xff, sizeof last);
  for (uint32_t op = 0; op < p->n_op; op++)
    order_op (p, before, last, op);
  return before;
}

static int
by_second (const void *a, const void *b)
{
  const uint32_t *x = a, *y = b;
  return x[1] != y[1] ? (x[1] > y[1]) - (x[1] < y[1]) : (x[0] > y[0]) - (x[0] < y[0]);
}

/* Drops those of n dependencies of an op, in ascending order, that follow from others and from the
 * op's row in `before`, and adds the rest to the row. Returns the number of the rest. */
static uint32_t
drop_implied (const weft_program *p, uint32_t *before, uint32_t op, uint32_t *dep, uint32_t n)
{
  uint32_t *row = before + (size_t) op * WEFT_N_LANE, first = n;

  for (uint32_t i = n; i-- > 0;)
    if (!weft_ordered (p, before, dep[i], op)) {
      merge_order (row, before + (size_t) dep[i] * WEFT_N_LANE, p->op[dep[i]].lane, p->pos[dep[i]]);
      dep[--first] = dep[i];
    }
  memmove (dep, dep + first, (n - first) * sizeof *dep);
  return n - first;
}

uint32_t
weft_program_add_deps (weft_program *p, const uint32_t (*pairs)[2], uint32_t n_pairs)
{
  const uint32_t n_before = p->op[p->n_op].deps;

  if (n_pairs == 0)
    return 0;
  g_autofree uint32_t (*sorted)[2] = g_memdup2 (pairs, n_pairs * sizeof *pairs);
  g_autofree uint32_t *before = g_new (uint32_t, (size_t) (p->n_op + 1) * WEFT_N_LANE);
  uint32_t *deps = g_new (uint32_t, n_before + n_pairs), n = 0, next = 0;
  uint32_t last[WEFT_N_LANE];

  memset (last, 0xff, sizeof last);
  qsort (sorted, n_pairs, sizeof *sorted, by_second);
  for (uint32_t op = 0; op < p->n_op; op++) {
    uint32_t from = p->op[op].deps, to = p->op[op + 1].deps, added = 0;
    order_op (p, before, last, op);
    p->op[op].deps = n;
    for (uint32_t d = from; d < to; d++)
      deps[n++] = p->deps[d];
    for (; next < n_pairs && sorted[next][1] == op; next++)
      deps[n + added++] = sorted[next][0];
    n += drop_implied (p, before, op, deps + n, added);
  }
  p->op[p->n_op].deps = n;
  g_free (p->deps);
  p->deps = g_renew (uint32_t, deps, n);
  return n - n_before;
}

uint32_t
weft_program_group_end (const weft_program *p, enum weft_lane lane, uint32_t first)
{
  uint32_t last = first + 1;

  while (last < p->lane_n[lane] && p->op[p->lane_ops[lane][last]].flags & WEFT_OP_GROUPED)
    last++;
  return last;
}

struct weft_shape
weft_program_launch_shape (const weft_program *p, uint32_t op)
{
  const uint32_t *lane = p->lane_ops[p->op[op].lane];
  struct weft_shape shape = *weft_op_shape (p, op);
  uint32_t at = p->pos[op], size = weft_dtype_bytes (shape.dtype);
  double bytes = weft_op_bytes (p, op);

  while (p->op[lane[at]].flags & WEFT_OP_GROUPED)
    bytes += weft_op_bytes (p, lane[--at]);
  shape.dim[0] = ((uint64_t) bytes + size - 1) / size;
  return shape;
}

gboolean
weft_program_has_loss (const weft_program *p)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_XENT || p->op[op].kind == WEFT_OP_XENT_GRAD ||
        p->op[op].kind == WEFT_OP_XENT_END)
      return TRUE;
  return FALSE;
}

double
weft_op_flops (const weft_program *p, uint32_t op)
{
  return weft_op_info[p->op[op].kind].flops (weft_op_shape (p, op));
}

double
weft_op_bytes (const weft_program *p, uint32_t op)
{
  return weft_op_info[p->op[op].kind].bytes (weft_op_shape (p, op));
}

static char *
label (const weft_program *p, uint16_t name, uint16_t layer, uint16_t micro)
{
  GString *text = g_string_new (NULL);

  if (layer != WEFT_NO_LAYER)
    g_string_append_printf (text, "L%u ", layer);
  g_string_append (text, p->name[name]);
  if (micro != WEFT_NO_MICRO)
    g_string_append_printf (text, " m%u", micro);
  return g_string_free (text, FALSE);
}

char *
weft_op_label (const weft_program *p, uint32_t op)
{
  return label (p, p->op[op].name, p->op[op].layer, p->op[op].micro);
}

char *
weft_buf_label (const weft_program *p, uint32_t buf)
{
  return label (p, p->buf[buf].name, p->buf[buf].layer, p->buf[buf].micro);
}
