#include "exec_gpu/machine.h"
#include "core/base/error.h"

const char *const gpu_call_words[] = { GPU_CALL_LIST (WEFT_WORD_TEXT) NULL };

gboolean
gpu_ok (struct gpu_machine *m, const char *said, GError **error, const char *what, ...)
{
  va_list args;

  if (!said)
    return TRUE;
  va_start (args, what);
  g_autofree char *about = g_strdup_vprintf (what, args);
  va_end (args);
  m->broken = TRUE;
  return weft_run_error (error, "%s: %s", about, said);
}

gboolean
gpu_choose (struct gpu_rank *r, GError **error)
{
  return gpu_ok (r->m, GPU_CALL (r->m, choose, r->device), error, "rank %u: GPU %u", r->rank,
                 r->device);
}

gboolean
gpu_skips (const struct gpu_rank *r, uint32_t op)
{
  const struct weft_control *control = r->m->options.control;
  return control && control->forward_only && weft_feed_is_training (r->p, op);
}

/* The GPU is chosen first: an event must belong to the GPU of the streams that record it. */
gboolean
gpu_event_open (struct gpu_rank *r, gboolean timed, weft_gpu_event **out, GError **error)
{
  struct gpu_machine *m = r->m;

  if (!gpu_choose (r, error) ||
      !gpu_ok (m, GPU_CALL (m, event_open, timed, out), error, "rank %u: an event", r->rank))
    return FALSE;
  g_ptr_array_add (m->event, *out);
  return TRUE;
}
