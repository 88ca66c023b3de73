/* The null executor accepts every op and does nothing. It is used to time the walk over the ops,
 * and for fuzzing. */
#include "core/exec/exec.h"

static const struct weft_field fields[] = { WEFT_NULL_OPTION_LIST (WEFT_OPTION_FIELD) };
static const struct weft_table table = { "option of executor null", fields, G_N_ELEMENTS (fields) };

static weft_exec *
null_open (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  weft_exec *x = g_new0 (weft_exec, 1);
  union weft_null_options own;

  (void) error;
  weft_own_options_read (&options->own, &table, own.at);
  x->ops = &weft_exec_null;
  x->plan = plan;
  x->actors = weft_actors_new (&plan->fabric, &plan->mesh, !own.unfolded);
  return x;
}

static gboolean
null_wait (weft_exec *x, uint32_t row, enum weft_lane lane, uint32_t op, GError **error)
{
  (void) x, (void) row, (void) lane, (void) op, (void) error;
  return TRUE;
}

static gboolean
null_issue (weft_exec *x, uint32_t row, uint32_t op, GError **error)
{
  (void) x, (void) row, (void) op, (void) error;
  return TRUE;
}

static weft_timeline *
null_drain (weft_exec *x, GError **error)
{
  (void) error;
  return weft_timeline_new (x->plan, x->actors, x->ops->name);
}

static void
null_close (weft_exec *x)
{
  if (!x)
    return;
  weft_actors_free (x->actors);
  g_free (x);
}

const struct weft_exec_ops weft_exec_null = {
  .name = "null",
  .doc = "accepts every op and does nothing",
  .flags = WEFT_EXEC_VIRTUAL,
  .options = &table,
  .open = null_open,
  .wait = null_wait,
  .issue = null_issue,
  .drain = null_drain,
  .close = null_close,
};
