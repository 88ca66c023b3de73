/* Data-parallel strategies as tables of what they do: see struct weft_wrapper. */
#include "core/step.h"

/* The bucketed wrapper, gradients whole on every replica. */
#define WHOLE_GRADIENTS                                                                            \
  .grad_begin = weft_ddp_grad_begin, .grad_end = weft_ddp_grad_end,                                \
  .head_begin = weft_ddp_head_begin, .head_end = weft_ddp_head_end, .finish = weft_ddp_finish,     \
  .reduced = weft_ddp_reduced, .reduced_head = weft_ddp_reduced_head

#define SLICED_GRADIENTS                                                                           \
  .shard_grads = TRUE, .grad_begin = weft_fsdp_grad_begin, .grad_end = weft_fsdp_grad_end,         \
  .head_begin = weft_fsdp_head_begin, .head_end = weft_fsdp_head_end, .finish = weft_fsdp_finish,  \
  .reduced = weft_fsdp_reduced, .reduced_head = weft_fsdp_reduced_head

const struct weft_wrapper weft_wrappers[WEFT_N_WRAPPER] = {
  [WEFT_WRAPPER_BUCKETS] = { .lay_out = weft_layout_init,
                             .start = weft_ddp_start,
                             .before_use = weft_ddp_before_use,
                             WHOLE_GRADIENTS,
                             .gather_all = weft_ddp_gather_all },
  [WEFT_WRAPPER_UNITS] = { .lay_out = weft_layout_units_init,
                           .units = TRUE,
                           .start = weft_fsdp_start,
                           .before_use = weft_ddp_before_use,
                           WHOLE_GRADIENTS,
                           .gather_all = weft_ddp_gather_all },
  [WEFT_WRAPPER_UNIT_GRADS] = { .lay_out = weft_layout_units_init,
                                .units = TRUE,
                                .start = weft_fsdp_start,
                                .before_use = weft_ddp_before_use,
                                SLICED_GRADIENTS,
                                .gather_all = weft_ddp_gather_all },
  [WEFT_WRAPPER_UNIT_PARAMS] = { .lay_out = weft_layout_units_init,
                                 .units = TRUE,
                                 .shard_weights = TRUE,
                                 .start = weft_fsdp_start,
                                 .before_use = weft_fsdp_before_use,
                                 .leave = weft_fsdp_leave,
                                 SLICED_GRADIENTS },
};

/* One replica has nobody to share with. */
static enum weft_wrapper_kind
kind_of (const struct weft_step *s)
{
  gboolean alone = weft_mesh_group_size (s->mesh, WEFT_GROUP_DP) == 1;
  int level = weft_job_sharding (s->job);

  if (!s->strategy->use_megatron_fsdp)
    return WEFT_WRAPPER_BUCKETS;
  if (alone || level < WEFT_SHARD_GRADS)
    return WEFT_WRAPPER_UNITS;
  return level == WEFT_SHARD_GRADS ? WEFT_WRAPPER_UNIT_GRADS : WEFT_WRAPPER_UNIT_PARAMS;
}

void
weft_wrapper_choose (struct weft_step *s)
{
  s->wrapper = &weft_wrappers[kind_of (s)];
  s->shard_optimizer = s->strategy->use_megatron_fsdp
                           ? weft_job_sharding (s->job) >= WEFT_SHARD_OPTIM
                           : s->strategy->use_distributed_optimizer;
}
