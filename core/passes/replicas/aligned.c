/* Launches data-parallel collectives at slots of the schedule, instead of when a gradient is
 * complete or a weight is read. Collectives slow down the kernels of their stage, which costs least
 * when all stages communicate at the same time (Megatron-Core schedules.py, grad_sync_func and
 * param_sync_func).
 *
 *   weights    chunks 0 and 1 are gathered at the start of the step. On rank r, chunk q > 1 is
 *              gathered before forward slot k, if slot k + r, which rank 0 runs at this time, is
 *              the first slot of chunk q - 1. DistributedDataParallel gathers the whole chunk.
 *              Megatron-FSDP gathers the first unit of the chunk and the units that this gather
 *              prefetches (megatron_fsdp.py, start_param_sync)
 *   weights, not aligned
 *              the first use of a group launches its gather and that of the next group of its
 *              chunk. On later stages, which are not divided into groups, the first microbatch thus
 *              waits for every chunk's gather from begin to end. If the stack gathers ahead, the
 *              step begins with the gather of the first group, and the first use of the last group
 *              of a chunk launches that of the first group of the next chunk
 *   gradients  on rank r, chunk q is reduced after backward slot k, if slot k - r, which rank 0
 *              runs at this time, is the last slot of chunk q. All other chunks are reduced at the
 *              end of the step
 *   gradients without interleaving
 *              the first stage launches reductions as usual; the other stages launch
 *              them after their last backward, when they run no kernels */
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

static void
gather_chunk (struct weft_step *s, uint32_t chunk)
{
  if (s->replicas->wrapper->gather_chunk)
    s->replicas->wrapper->gather_chunk (s, chunk);
}

gboolean
weft_aligned_runs_ahead (const struct weft_step *s)
{
  return s->job->stack.gathers_ahead && s->mesh->pp > 1 && !gathers (s) && !s->sharding->unit_of;
}

void
weft_aligned_start (struct weft_step *s)
{
  for (uint32_t chunk = 0; chunk < 2 && gathers (s); chunk++)
    gather_chunk (s, chunk);
  for (uint32_t q = 0; q < 2 * s->n_chunks && weft_aligned_runs_ahead (s); q += s->n_chunks)
    weft_ddp_gather_ahead (s, q);
}

void
weft_aligned_before (struct weft_step *s)
{
  if (!gathers (s))
    return;
  const struct weft_cell *slot =
      weft_slot_at (s, TRUE, (int64_t) weft_slots_over (s, TRUE) + s->role);
  if (slot && slot->micro == 0 && slot->chunk > 0 && slot->chunk + 1u < s->n_chunks)
    gather_chunk (s, slot->chunk + 1);
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
