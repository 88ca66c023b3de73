#include "core/exec/exec.h"
#include "core/base/error.h"
#include "core/base/invariant.h"

gboolean
weft_exec_check_size (const weft_plan *plan, const weft_actors *a, GError **error)
{
  uint64_t n = 0;

  for (uint32_t row = 0; row < a->n; row++)
    n += plan->role[a->role[row]]->n_op;
  if (n <= WEFT_EXEC_MOST_OPS)
    return TRUE;
  return weft_bad_input (error,
                         "%u of %u ranks are simulated separately and have %" G_GUINT64_FORMAT
                         " ops in total, wanted at most %u ops: use fewer GPUs or microbatches%s",
                         a->n, plan->mesh.n_ranks, n, WEFT_EXEC_MOST_OPS,
                         a->folded ? "" : ", or leave out --unfolded");
}

gboolean
weft_exec_check_graph (const weft_plan *plan, GError **error)
{
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    uint32_t op = weft_host_reads (plan->role[role]);
    if (op != WEFT_NO_OP)
      return weft_bad_input (error,
                             "--graph: %s (op %u) needs counts that the host reads during the "
                             "step; set moe_pad_expert_input_to_capacity, or leave out --graph",
                             weft_op_words[plan->role[role]->op[op].kind], op);
  }
  return TRUE;
}

gboolean
weft_exec_hosts (const weft_plan *plan, gboolean graph, weft_host ***hosts, GError **error)
{
  if (graph && !weft_exec_check_graph (plan, error))
    return FALSE;
  *hosts = weft_hosts_new (plan, graph);
  return TRUE;
}

static gboolean
enqueue (weft_exec *x, const weft_program *p, uint32_t row, uint32_t op, GError **error)
{
  x->fresh = FALSE;
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    if (!x->ops->wait (x, row, p->op[op].lane, p->deps[d], error))
      return FALSE;
  return x->ops->issue (x, row, op, error);
}

gboolean
weft_exec_walk (weft_exec *x, uint32_t row, GError **error)
{
  const weft_program *p = x->plan->role[x->actors->role[row]];

  for (uint32_t op = 0; op < p->n_op; op++)
    if (!enqueue (x, p, row, op, error))
      return FALSE;
  return TRUE;
}

weft_timeline *
weft_exec_step (weft_exec *x, GError **error)
{
  for (uint32_t row = 0; row < x->actors->n; row++)
    if (weft_exec_has (x, row) && !weft_exec_walk (x, row, error))
      return NULL;
  return x->ops->drain (x, error);
}

static gboolean
walk_part (weft_exec *x, const weft_parts *parts, uint32_t part, uint32_t row, GError **error)
{
  uint32_t role = x->actors->role[row];
  const weft_program *p = x->plan->role[role];

  for (uint32_t op = 0; op < p->n_op; op++)
    if (parts->of[role][op] == part && !enqueue (x, p, row, op, error))
      return FALSE;
  return TRUE;
}

gboolean
weft_exec_part (weft_exec *x, const weft_parts *parts, uint32_t part, GError **error)
{
  WEFT_INVARIANT (x->ops->run && part < parts->n);
  for (uint32_t row = 0; row < x->actors->n; row++)
    if (weft_exec_has (x, row) && !walk_part (x, parts, part, row, error))
      return FALSE;
  return x->ops->run (x, error);
}

const struct weft_metrics *
weft_exec_metrics (const weft_exec *x)
{
  for (uint32_t row = x->actors->n; row-- > 0;)
    if (weft_exec_has (x, row) && weft_program_has_loss (x->plan->role[x->actors->role[row]]))
      return &x->metrics[row];
  return NULL;
}

weft_timeline *
weft_exec_end_parts (weft_exec *x, GError **error)
{
  return x->ops->drain (x, error);
}

weft_timeline *
weft_exec_run (const struct weft_exec_ops *ops, const weft_plan *plan,
               const struct weft_exec_options *options, GError **error)
{
  gint64 start = g_get_monotonic_time ();
  weft_exec *x = ops->open (plan, options, error);
  weft_timeline *timeline = x ? weft_exec_step (x, error) : NULL;

  ops->close (x);
  if (timeline)
    timeline->wall_seconds = (g_get_monotonic_time () - start) * 1e-6;
  return timeline;
}
