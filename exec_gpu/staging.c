#include "exec_gpu/staging.h"

static void
warn (GError *error)
{
  g_warning ("%s", error->message); /* after this error, the next step fails */
  g_error_free (error);
}

static gboolean
open_side (struct gpu_rank *r, struct gpu_staging_side *side)
{
  void *at = NULL;

  if (side->at)
    return TRUE;
  if ((!side->copied && GPU_CALL (r->m, event_open, FALSE, &side->copied)) ||
      GPU_CALL (r->m, alloc, WEFT_POOL_HOST, WEFT_EXEC_STAGING, &at))
    return FALSE;
  side->at = at;
  return TRUE;
}

/* Waits until the copy from a buffer has ended. */
static void
wait_for (struct gpu_rank *r, struct gpu_staging_side *side)
{
  gboolean done = FALSE;
  GError *error = NULL;

  while (side->busy && !done) {
    if (!gpu_ok (r->m, GPU_CALL (r->m, query, side->copied, &done), &error, "rank %u", r->rank)) {
      warn (error);
      break;
    }
    if (!done)
      g_thread_yield ();
  }
  side->busy = FALSE;
}

uint8_t *
gpu_staging_take (struct gpu_rank *r)
{
  struct gpu_staging_side *side = &r->staging.side[r->staging.next];

  if (!gpu_choose (r, NULL) || !open_side (r, side))
    return NULL;
  wait_for (r, side);
  return side->at;
}

gboolean
gpu_staging_copy (struct gpu_rank *r, void *to, const void *from, uint64_t n)
{
  struct gpu_staging_side *side = &r->staging.side[r->staging.next];
  weft_gpu_stream *stream = r->stream[WEFT_LANE_GPU];
  const struct weft_gpu_copy copy = { WEFT_GPU_TO_DEVICE, to, from, n };
  GError *error = NULL;

  if (!side->at || from != side->at)
    return FALSE;
  if (!gpu_choose (r, &error) ||
      !gpu_ok (r->m, GPU_CALL (r->m, copy, &copy, stream), &error, "rank %u", r->rank) ||
      !gpu_ok (r->m, GPU_CALL (r->m, record, side->copied, stream), &error, "rank %u", r->rank))
    warn (error);
  else
    side->busy = TRUE;
  r->staging.next ^= 1;
  return TRUE;
}

void
gpu_staging_close (struct gpu_rank *r)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (r->staging.side); i++) {
    struct gpu_staging_side *side = &r->staging.side[i];
    if (!side->copied)
      continue;
    wait_for (r, side);
    GPU_CALL (r->m, event_close, side->copied);
    if (side->at)
      GPU_CALL (r->m, release, WEFT_POOL_HOST, side->at);
    *side = (struct gpu_staging_side){ 0 };
  }
}
