/* The knob `timers`: the host measures phases of a step, and synchronizes the device at both ends
 * of a phase (Megatron-Core timers.py: Timer.start and Timer.stop). With barrier_with_L1_time a
 * phase of level 1 begins with a barrier over all ranks. Names and levels of phases are those of
 * Megatron-Core (schedules.py, finalize_model_grads.py, optimizer.py, training.py).
 *
 * Each end of a phase is an op on lane gpu. This op waits for the newest op of every lane, and all
 * ops appended later, on any lane, wait for this op. */
#include "core/passes/emit/stream.h"

static gboolean
measures (const struct weft_step *s, int64_t level)
{
  return s->strategy->timers == WEFT_TIMERS_STANDARD && level <= s->strategy->timing_log_level;
}

/* Appends an all-reduce of one number over all ranks, like torch.distributed.barrier(). */
static void
barrier (struct weft_step *s)
{
  uint32_t enqueued = weft_build_last (s->b, WEFT_LANE_GPU);

  if (s->mesh->n_ranks == 1)
    return;
  if (s->stream->barrier == WEFT_NO_BUF)
    s->stream->barrier = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "barrier");
  weft_reduce_all (s, WEFT_GROUP_WORLD, WEFT_REDUCE_MAX, s->stream->barrier, "barrier");
  weft_build_dep (s->b, enqueued);
}

static void
edge (struct weft_step *s, const char *name, uint64_t starts)
{
  s->stream->timed = weft_emit (s, WEFT_OP_TIMER, name, WEFT_SHAPE (WEFT_FP32, starts), NULL, 0);
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    if (lane != WEFT_LANE_GPU)
      weft_build_dep (s->b, weft_build_last (s->b, lane));
}

void
weft_timer_start (struct weft_step *s, int64_t level, const char *name)
{
  if (!measures (s, level))
    return;
  if (level == 1 && s->strategy->barrier_with_L1_time)
    barrier (s);
  edge (s, name, 1);
}

void
weft_timer_stop (struct weft_step *s, int64_t level, const char *name)
{
  if (measures (s, level))
    edge (s, name, 0);
}

gboolean
weft_timer_holds (const struct weft_step *s, enum weft_lane lane)
{
  uint32_t last = weft_build_last (s->b, lane);

  return s->stream->timed != WEFT_NO_OP && lane != WEFT_LANE_GPU &&
         (last == WEFT_NO_OP || last < s->stream->timed);
}
