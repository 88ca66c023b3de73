/* Launches data parallel collectives at fixed passes of the pipeline schedule, not when a gradient
 * is complete or a weight is read. Collectives slow down the kernels of their stage. This costs
 * least when all stages communicate at the same time (Megatron-Core schedules.py, grad_sync_func
 * and param_sync_func). Forward passes of a pipeline rank are numbered from 0, and so are its
 * backward passes. A chunk is a model chunk (virtual pipeline stage).
 *
 *   weights    Chunks 0 and 1 are all-gathered at the start of the step. On pipeline rank r, chunk
 *              q > 1 is all-gathered before forward pass k, if forward pass k + r, which rank 0
 *              runs at this time, is the first pass of chunk q - 1. DistributedDataParallel gathers
 *              the whole chunk. Megatron-FSDP gathers the first FSDP unit of the chunk and
 *              prefetches the next units (megatron_fsdp.py, start_param_sync).
 *   weights, not aligned
 *              The first read of a launch group of buckets launches the all-gather of this launch
 *              group and of the next launch group of its chunk. Chunks of later stages are a single
 *              launch group. On these stages the first microbatch therefore waits for the whole
 *              all-gather of every chunk. If the software stack gathers ahead, the step begins with
 *              the all-gather of the first launch group. The first read of a chunk's last launch
 *              group then launches the all-gather of the next chunk's first launch group.
 *   gradients  On pipeline rank r, chunk q is reduced after backward pass k, if backward pass k -
 *              r, which rank 0 runs at this time, is the last pass of chunk q. Chunks for which
 *              there is no such pass are reduced at the end of the step.
 *   gradients without interleaving
 *              The first stage launches reductions when gradients are complete. The other stages
 *              launch reductions after their last backward, when they run no kernels. */
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
