/* Times of ops, computed from the trace of their kernels, copies and fills instead of events: an op
 * begins with the begin of its first record and ends with the end of its last one.  Ops of one
 * launch have the same times.  If one member executes a collective, all members have its times.  An
 * op without device work has length 0 at the end of the previous op of its lane. */
#include "exec_gpu/traced.h"
#include <math.h>

/* Begin and end of a launch in seconds. All ops of the launch have these times. */
struct span {
  double begin, end;
};

struct taking {
  struct gpu_machine *m;
  weft_timeline *t;
  uint64_t zero;     /* time in nanoseconds of the begin of the first record */
  GHashTable *stray; /* name -> 1 + index */
};

const char *
gpu_traced_open (struct gpu_machine *m)
{
  if (!m->calls->trace_open)
    return "CUPTI was not found when Weft was built";
  return m->calls->trace_open (m->calls->self);
}

static void
take_nothing (void *user, const struct weft_gpu_activity *a)
{
  (void) user, (void) a;
}

void
gpu_traced_forget (struct gpu_machine *m)
{
  uint64_t lost;

  if (m->traced)
    m->calls->trace_take (m->calls->self, take_nothing, NULL, &lost);
}

/* --------------------------------------------------------------------------- taking */

static void
add_stray (struct taking *x, const struct weft_timeline_part *part)
{
  uint32_t at = GPOINTER_TO_UINT (g_hash_table_lookup (x->stray, part->name));

  if (at == 0) {
    struct weft_timeline_stray stray = { .name = part->name };
    g_array_append_val (x->t->strays, stray);
    at = x->t->strays->len;
    g_hash_table_insert (x->stray, (void *) (uintptr_t) part->name, GUINT_TO_POINTER (at));
  }
  struct weft_timeline_stray *s = &g_array_index (x->t->strays, struct weft_timeline_stray, at - 1);
  s->n++;
  s->seconds += part->end - part->begin;
}

static gboolean
is_ours (const struct gpu_machine *m, const struct weft_gpu_activity *a)
{
  if (!a->keyed || a->row < m->first || a->row >= m->first + m->n_here)
    return FALSE;
  return a->op == WEFT_NO_OP || a->op < m->rank[a->row].p->n_op;
}

/* Receives a record of the trace. Records are ordered by begin. */
static void
take_activity (void *user, const struct weft_gpu_activity *a)
{
  struct taking *x = user;
  x->zero = x->zero ? x->zero : a->begin;
  const struct weft_timeline_part part = {
    .row = a->row,
    .op = a->op,
    .name = a->name,
    .begin = 1e-9 * (double) (int64_t) (a->begin - x->zero),
    .end = 1e-9 * (double) (int64_t) (MAX (a->end, a->begin) - x->zero),
  };

  if (!is_ours (x->m, a))
    add_stray (x, &part);
  else if (a->op != WEFT_NO_OP)
    g_array_append_val (x->t->parts, part);
}

/* ---------------------------------------------------------------------------- spans */

static uint64_t
key_of (uint32_t row, uint32_t op)
{
  return (uint64_t) row << 32 | op;
}

/* Maps every op whose times are recorded to the times of its launch. All ops of one launch share
 * one entry. */
static GHashTable *
find_spans (const struct gpu_machine *m, struct span *span)
{
  GHashTable *of = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, NULL);

  for (uint32_t i = 0; i < m->stamp->len; i++) {
    const struct gpu_stamp *s = &g_array_index (m->stamp, struct gpu_stamp, i);
    uint64_t key = key_of (s->row, s->op);
    span[s->unit] = (struct span){ INFINITY, -INFINITY };
    g_hash_table_insert (of, g_memdup2 (&key, sizeof key), &span[s->unit]);
  }
  return of;
}

static void
widen (const struct taking *x, GHashTable *of)
{
  for (uint32_t i = 0; i < x->t->parts->len; i++) {
    const struct weft_timeline_part *part =
        &g_array_index (x->t->parts, struct weft_timeline_part, i);
    uint64_t key = key_of (part->row, part->op);
    struct span *span = g_hash_table_lookup (of, &key);
    if (!span)
      continue;
    span->begin = fmin (span->begin, part->begin);
    span->end = fmax (span->end, part->end);
  }
}

/* Sets the times of the ops of a lane, in order. An op without trace records begins and ends at the
 * end of the previous op. */
static void
fill_lane (const struct taking *x, GHashTable *of, const struct gpu_rank *r, uint32_t lane)
{
  double at = 0;

  for (uint32_t i = 0; i < r->p->lane_n[lane]; i++) {
    uint32_t op = r->p->lane_ops[lane][i];
    uint64_t key = key_of (r->row, op);
    const struct span *span = g_hash_table_lookup (of, &key);
    if (!span || !r->issued[op])
      continue;
    gboolean some = span->begin <= span->end;
    x->t->begin[r->row][op] = some ? span->begin : at;
    x->t->end[r->row][op] = at = some ? fmax (span->end, span->begin) : at;
  }
}

gboolean
gpu_traced_fill (struct gpu_machine *m, weft_timeline *t, GError **error)
{
  g_autoptr (GHashTable) stray = g_hash_table_new (g_str_hash, g_str_equal);
  g_autofree struct span *span = g_new (struct span, m->n_unit + 1);
  g_autoptr (GHashTable) of = find_spans (m, span);
  struct taking x = { .m = m, .t = t, .stray = stray };

  t->parts = g_array_new (FALSE, FALSE, sizeof (struct weft_timeline_part));
  t->strays = g_array_new (FALSE, FALSE, sizeof (struct weft_timeline_stray));
  if (!gpu_ok (m, m->calls->trace_take (m->calls->self, take_activity, &x, &t->lost), error,
               "times of kernels"))
    return FALSE;
  widen (&x, of);
  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
      fill_lane (&x, of, &m->rank[row], lane);
  return TRUE;
}
