/* Data parallel collectives at slots of the schedule, not where gradients or weights happen to be
 * ready: a stage that communicates computes slower, and it is best if all do so at once
 * (Megatron-Core schedules.py, grad_sync_func and param_sync_func).
 *
 *   weights    of chunks 0 and 1 when a step begins; of chunk q > 1 at forward slot k where slot k
 *              + r, which rank 0 runs now, is the first of chunk q - 1
 *   gradients  of chunk q after backward slot k where slot k - r, which the last rank ran in this
 *              time, is the last of chunk q; those that are left, at the end
 *   gradients without chunks: the first rank as ever, the others after their last backward, while
 *   they
 *              have nothing to do */
#include "core/passes/pipeline/exchange.h"
#include "core/passes/replicas/buckets.h"

static gboolean
gathers (const struct weft_step *s)
{
  return weft_pipeline_interleaves (s) &&
         (s->strategy->align_param_gather || s->strategy->param_sync_func == WEFT_SYNC_ALIGNED);
}

static gboolean
reduces (const struct weft_step *s)
{
  return s->strategy->grad_sync_func == WEFT_SYNC_ALIGNED;
}

void
weft_aligned_start (struct weft_step *s)
{
  for (uint32_t chunk = 0; chunk < 2 && gathers (s); chunk++)
    weft_ddp_gather_chunk (s, chunk);
}

void
weft_aligned_before (struct weft_step *s)
{
  if (!gathers (s))
    return;
  const struct weft_cell *slot =
      weft_slot_at (s, TRUE, (int64_t) weft_slots_over (s, TRUE) + s->role);
  if (slot && slot->micro == 0 && slot->chunk > 0 && slot->chunk + 1u < s->n_chunks)
    weft_ddp_gather_chunk (s, slot->chunk + 1);
}

void
weft_aligned_after (struct weft_step *s, weft_kernels *first)
{
  if (!reduces (s) || !weft_pipeline_interleaves (s))
    return;
  const struct weft_cell *slot =
      weft_slot_at (s, FALSE, (int64_t) weft_slots_over (s, FALSE) - s->role);
  if (!slot || slot->micro + 1u < s->n_micro)
    return;
  first (s);
  weft_ddp_reduce_chunk (s, slot->chunk);
}

gboolean
weft_aligned_holds (const struct weft_step *s)
{
  return reduces (s) && (weft_pipeline_interleaves (s) || s->role > 0);
}
