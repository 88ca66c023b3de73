/* Data-parallel strategies as tables of what they do: see struct weft_wrapper. */
#include "core/passes/replicas/fsdp.h"
#include "core/passes/replicas/fsdp2.h"
#include "core/job/unit_modules.h"

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
                                 .through = weft_fsdp_through,
                                 SLICED_GRADIENTS },
  [WEFT_WRAPPER_FSDP2] = { .lay_out = weft_layout_pieces_init,
                           .units = TRUE,
                           .shard_grads = TRUE,
                           .shard_weights = TRUE,
                           .overwrites = TRUE,
                           .start = weft_fsdp2_start,
                           .enter_pass = weft_fsdp2_enter_pass,
                           .enter = weft_fsdp2_enter,
                           .before_use = weft_fsdp2_before_use,
                           .leave = weft_fsdp2_leave,
                           .grad_begin = weft_fsdp2_grad_begin,
                           .grad_end = weft_fsdp2_grad_end,
                           .head_begin = weft_fsdp2_head_begin,
                           .head_end = weft_fsdp2_head_end,
                           .leave_pass = weft_fsdp2_leave_pass,
                           .finish = weft_fsdp2_finish,
                           .reduced = weft_fsdp2_reduced,
                           .reduced_head = weft_fsdp2_reduced_head },
  [WEFT_WRAPPER_TORCH_DDP] = { .lay_out = weft_layout_init,
                               .start = weft_torch_ddp_start,
                               .grad_begin = weft_ddp_grad_begin,
                               .grad_end = weft_torch_ddp_grad_end,
                               .head_begin = weft_ddp_head_begin,
                               .head_end = weft_ddp_head_end,
                               .leave_pass = weft_torch_ddp_leave_pass,
                               .finish = weft_torch_ddp_finish,
                               .reduced = weft_ddp_reduced,
                               .reduced_head = weft_ddp_reduced_head },
};

/* One replica has nobody to share with. */
static enum weft_wrapper_kind
kind_of (const struct weft_step *s)
{
  gboolean alone = weft_mesh_group_size (s->mesh, WEFT_GROUP_DP) == 1;
  int level = weft_job_sharding (s->job);

  if (weft_job_is_torch (s->job) && alone)
    return WEFT_WRAPPER_BUCKETS;
  if (weft_job_is_torch (s->job))
    return s->strategy->distributed_config == WEFT_FSDP2 ? WEFT_WRAPPER_FSDP2
                                                         : WEFT_WRAPPER_TORCH_DDP;
  if (!s->strategy->use_megatron_fsdp)
    return WEFT_WRAPPER_BUCKETS;
  if (alone || level < WEFT_SHARD_GRADS)
    return WEFT_WRAPPER_UNITS;
  return level == WEFT_SHARD_GRADS ? WEFT_WRAPPER_UNIT_GRADS : WEFT_WRAPPER_UNIT_PARAMS;
}

/* mp_policy.  Canonical order has one type for all nodes of a sum, that of the reduction.  Otherwise
 * kernels leave gradients in their own type and what is kept is of the type of the weights: fp32.
 * With one replica nothing is wrapped (NeMo Automodel components/distributed/fsdp2.py). */
static void
choose_types (struct weft_step *s, gboolean wrapped)
{
  enum weft_dtype reduce = s->strategy->mp_policy_reduce_dtype;

  if (s->canonical)
    s->grad_dtype = s->main_dtype = reduce;
  if (!wrapped)
    return;
  s->weight_dtype = WEFT_FP32;
  s->main_dtype = s->canonical ? reduce : WEFT_FP32;
  s->output_dtype = s->strategy->mp_policy_output_dtype;
}

void
weft_wrapper_choose (struct weft_step *s)
{
  enum weft_wrapper_kind kind = kind_of (s);

  s->wrapper = &weft_wrappers[kind];
  s->unit_modules =
      s->strategy->use_megatron_fsdp ? weft_job_units (s->job, NULL) : 1u << WEFT_UNIT_LAYER;
  s->shard_optimizer = s->strategy->use_megatron_fsdp
                           ? weft_job_sharding (s->job) >= WEFT_SHARD_OPTIM
                           : s->strategy->use_distributed_optimizer || kind == WEFT_WRAPPER_FSDP2;
  s->on_host = kind == WEFT_WRAPPER_FSDP2 && s->strategy->offload_policy == WEFT_OFFLOAD_CPU;
  if (s->strategy->distributed_config == WEFT_FSDP2)
    choose_types (s, kind == WEFT_WRAPPER_FSDP2);
}
