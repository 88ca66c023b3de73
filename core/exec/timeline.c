#include "core/exec/timeline.h"
#include <math.h>

const char *const weft_reserved_words[] = { WEFT_RESERVED_LIST (WEFT_WORD_TEXT) NULL };

weft_timeline *
weft_timeline_new (const weft_plan *plan, const weft_actors *a, const char *executor)
{
  weft_timeline *t = g_new0 (weft_timeline, 1);

  t->n = a->n;
  t->rank = g_memdup2 (a->rank, a->n * sizeof *a->rank);
  t->role = g_memdup2 (a->role, a->n * sizeof *a->role);
  t->stands_for = g_memdup2 (a->stands_for, a->n * sizeof *a->stands_for);
  t->begin = g_new (double *, a->n);
  t->end = g_new (double *, a->n);
  t->launch_wait = g_new0 (double, a->n + 1);
  t->executor = executor;
  t->engine = "";
  t->folded = a->folded;
  for (uint32_t i = 0; i < a->n; i++) {
    uint32_t n = plan->role[a->role[i]]->n_op;
    t->begin[i] = g_new (double, n + 1);
    t->end[i] = g_new (double, n + 1);
    for (uint32_t op = 0; op < n; op++)
      t->begin[i][op] = t->end[i][op] = NAN;
    t->n_ops += n;
  }
  return t;
}

void
weft_timeline_free (weft_timeline *t)
{
  for (uint32_t i = 0; i < t->n; i++) {
    g_free (t->begin[i]);
    g_free (t->end[i]);
  }
  g_free (t->begin);
  g_free (t->launch_wait);
  g_free (t->end);
  g_free (t->rank);
  g_free (t->role);
  g_free (t->stands_for);
  if (t->parts)
    g_array_unref (t->parts);
  if (t->strays)
    g_array_unref (t->strays);
  if (t->waits)
    g_array_unref (t->waits);
  g_free (t->row_of);
  g_free (t);
}

uint64_t
weft_timeline_reserved (const weft_timeline *t)
{
  uint64_t bytes = 0;

  for (int i = 0; i < WEFT_N_RESERVED; i++)
    bytes += t->reserved[i];
  return bytes;
}

void
weft_timeline_add_launches (weft_timeline *t, const weft_plan *plan, weft_host *const *hosts)
{
  for (uint32_t i = 0; i < t->n; i++)
    if (hosts[t->role[i]])
      t->launch_wait[i] = weft_host_waited (hosts[t->role[i]], plan->role[t->role[i]], t->begin[i],
                                            t->end[i]);
}

void
weft_timeline_finish (weft_timeline *t, const weft_plan *plan)
{
  t->seconds = 0;
  for (uint32_t i = 0; i < t->n; i++)
    for (uint32_t op = 0; op < plan->role[t->role[i]]->n_op; op++)
      t->seconds = fmax (t->seconds, t->end[i][op]);
}
