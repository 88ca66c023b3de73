/* The table of data parallel strategies. Each row is a struct weft_wrapper with the functions of
 * one strategy. */
#include "core/passes/replicas/fsdp.h"
#include "core/passes/replicas/fsdp2.h"
#include "core/job/unit_modules.h"

/* Functions of strategies in which every replica has whole gradients, stored in buckets. */
#define WHOLE_GRADIENTS                                                                            \
  .grad_begin = weft_ddp_grad_begin, .grad_end = weft_ddp_grad_end,                                \
  .head_begin = weft_ddp_head_begin, .head_end = weft_ddp_head_end, .finish = weft_ddp_finish,     \
  .reduced = weft_ddp_reduced, .reduced_head = weft_ddp_reduced_head

#define SLICED_GRADIENTS                                                                           \
  .sharding.shard_grads = TRUE, .grad_begin = weft_fsdp_grad_begin,                                \
  .grad_end = weft_fsdp_grad_end, .head_begin = weft_fsdp_head_begin,                              \
  .head_end = weft_fsdp_head_end, .finish = weft_fsdp_finish, .reduced = weft_fsdp_reduced,        \
  .reduced_head = weft_fsdp_reduced_head

enum weft_wrapper_kind {
  WEFT_WRAPPER_BUCKETS,     /* Megatron-Core's DistributedDataParallel, without FSDP units */
  WEFT_WRAPPER_UNITS,       /* Megatron-FSDP with whole gradients and weights */
  WEFT_WRAPPER_UNIT_GRADS,  /* Megatron-FSDP with sharded gradients */
  WEFT_WRAPPER_UNIT_PARAMS, /* Megatron-FSDP with sharded gradients and weights */
  WEFT_WRAPPER_FSDP2,
  WEFT_WRAPPER_TORCH_DDP,
  WEFT_N_WRAPPER
};

static const struct weft_wrapper wrappers[WEFT_N_WRAPPER] = {
  [WEFT_WRAPPER_BUCKETS] = { .sharding.lay_out = weft_layout_init,
                             .start = weft_ddp_start,
                             .before_read = weft_ddp_before_read,
                             WHOLE_GRADIENTS,
                             .gather_weights = weft_ddp_gather_weights,
                             .gather_chunk = weft_ddp_gather_chunk },
  [WEFT_WRAPPER_UNITS] = { .sharding.lay_out = weft_layout_units_init,
                           .sharding.unit_of = weft_fsdp_unit,
                           .start = weft_fsdp_start,
                           .before_read = weft_ddp_before_read,
                           WHOLE_GRADIENTS,
                           .gather_weights = weft_ddp_gather_weights,
                           .gather_chunk = weft_ddp_gather_first },
  [WEFT_WRAPPER_UNIT_GRADS] = { .sharding.lay_out = weft_layout_units_init,
                                .sharding.unit_of = weft_fsdp_unit,
                                .start = weft_fsdp_start,
                                .before_read = weft_ddp_before_read,
                                SLICED_GRADIENTS,
                                .gather_weights = weft_ddp_gather_weights,
                                .gather_chunk = weft_ddp_gather_first },
  [WEFT_WRAPPER_UNIT_PARAMS] = { .sharding.lay_out = weft_layout_units_init,
                                 .sharding.unit_of = weft_fsdp_unit,
                                 .sharding.shard_weights = TRUE,
                                 .start = weft_fsdp_start,
                                 .before_read = weft_fsdp_before_read,
                                 .after_layer = weft_fsdp_reshard_layer,
                                 .after_module = weft_fsdp_reshard_module,
                                 SLICED_GRADIENTS,
                                 .gather_chunk = weft_fsdp_gather_first },
  [WEFT_WRAPPER_FSDP2] = { .sharding.lay_out = weft_layout_pieces_init,
                           .sharding.unit_of = weft_fsdp_unit,
                           .sharding.shard_grads = TRUE,
                           .sharding.shard_weights = TRUE,
                           .sharding.overwrites = TRUE,
                           .sharding.shard_alone = TRUE,
                           .start = weft_fsdp2_start,
                           .begin_cell = weft_fsdp2_begin_cell,
                           .before_layer = weft_fsdp2_before_layer,
                           .before_read = weft_fsdp2_before_read,
                           .after_layer = weft_fsdp2_after_layer,
                           .grad_begin = weft_fsdp2_grad_begin,
                           .grad_end = weft_fsdp2_grad_end,
                           .head_begin = weft_fsdp2_head_begin,
                           .head_end = weft_fsdp2_head_end,
                           .end_cell = weft_fsdp2_end_cell,
                           .finish = weft_fsdp2_finish,
                           .reduced = weft_fsdp2_reduced,
                           .reduced_head = weft_fsdp2_reduced_head },
  [WEFT_WRAPPER_TORCH_DDP] = { .sharding.lay_out = weft_layout_init,
                               .start = weft_torch_ddp_start,
                               .grad_begin = weft_ddp_grad_begin,
                               .grad_end = weft_torch_ddp_grad_end,
                               .head_begin = weft_ddp_head_begin,
                               .head_end = weft_ddp_head_end,
                               .end_cell = weft_torch_ddp_end_cell,
                               .finish = weft_torch_ddp_finish,
                               .reduced = weft_ddp_reduced,
                               .reduced_head = weft_ddp_reduced_head },
};

/* Returns the data parallel strategy of a job. A job with a single replica has a strategy without
 * sharding. */
static enum weft_wrapper_kind
kind_of (const struct weft_job *job, const struct weft_mesh *mesh)
{
  gboolean alone = weft_mesh_group_size (mesh, WEFT_GROUP_DP) == 1;
  int level = weft_job_sharding (job);

  if (weft_job_is_torch (job) && alone)
    return WEFT_WRAPPER_BUCKETS;
  if (weft_job_is_torch (job))
    return job->strategy.distributed_config == WEFT_FSDP2 ? WEFT_WRAPPER_FSDP2
                                                          : WEFT_WRAPPER_TORCH_DDP;
  if (!job->strategy.use_megatron_fsdp)
    return WEFT_WRAPPER_BUCKETS;
  if (alone || level < WEFT_SHARD_GRADS)
    return WEFT_WRAPPER_UNITS;
  return level == WEFT_SHARD_GRADS ? WEFT_WRAPPER_UNIT_GRADS : WEFT_WRAPPER_UNIT_PARAMS;
}

const struct weft_shard_rule *
weft_replicas_sharding (const struct weft_job *job, const struct weft_mesh *mesh)
{
  return &wrappers[kind_of (job, mesh)].sharding;
}

/* Sets the dtypes of FSDP2 (mp_policy). In canonical order all partial sums have the dtype of the
 * reduction. Otherwise kernels write gradients in the dtype of the kernels' operands, and the
 * stored gradient is fp32, like the stored weights. FSDP2 does not wrap a single replica (NeMo
 * Automodel components/distributed/fsdp2.py). */
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
weft_replicas_begin (struct weft_step *s)
{
  enum weft_wrapper_kind kind = kind_of (s->job, s->mesh);
  struct weft_replicas *r = s->replicas = g_new0 (struct weft_replicas, 1);

  r->wrapper = &wrappers[kind];
  r->reducing = g_array_new (FALSE, FALSE, sizeof (struct weft_reduction));
  r->unit_modules =
      s->strategy->use_megatron_fsdp ? weft_job_units (s->job, NULL) : 1u << WEFT_UNIT_LAYER;
  s->sharding = &r->wrapper->sharding;
  s->shard_optimizer = s->strategy->use_megatron_fsdp
                           ? weft_job_sharding (s->job) >= WEFT_SHARD_OPTIM
                           : s->strategy->use_distributed_optimizer || kind == WEFT_WRAPPER_FSDP2;
  s->on_host = kind == WEFT_WRAPPER_FSDP2 && s->strategy->offload_policy == WEFT_OFFLOAD_CPU;
  if (s->strategy->distributed_config == WEFT_FSDP2)
    choose_types (s, kind == WEFT_WRAPPER_FSDP2);
}

void
weft_replicas_build (struct weft_step *s)
{
  weft_params_build (s);
  s->replicas->grad_left = g_new0 (gboolean, weft_params_count (s));
  weft_fp8_weights_build (s);
  weft_params_publish (s);
  weft_sums_build (s);
}

void
weft_replicas_start (struct weft_step *s)
{
  s->replicas->wrapper->start (s);
}

void
weft_replicas_end (struct weft_step *s)
{
  struct weft_replicas *r = s->replicas;

  for (uint32_t i = 0; i <= weft_params_count (s); i++)
    g_clear_pointer (&r->sum[i].held, g_array_unref);
  for (uint32_t k = 0; k <= s->params->layout.n_bucket; k++)
    g_clear_pointer (&r->bucket[k].sum.held, g_array_unref);
  weft_fp8_weights_end (s);
  g_array_unref (r->reducing);
  g_free (r->own);
  g_free (r->bucket);
  g_free (r->group);
  g_free (r->chain);
  g_free (r->sum);
  g_free (r->grad_left);
  g_free (r);
  weft_params_end (s);
}

/* ------------------------------------------------------------------ places of a step */

void
weft_replicas_begin_cell (struct weft_step *s)
{
  s->replicas->n_cell++;
  if (s->replicas->wrapper->begin_cell)
    s->replicas->wrapper->begin_cell (s);
}

void
weft_replicas_end_cell (struct weft_step *s)
{
  if (s->replicas->wrapper->end_cell)
    s->replicas->wrapper->end_cell (s);
}

void
weft_before_layer (struct weft_step *s, uint32_t layer)
{
  if (s->replicas->wrapper->before_layer)
    s->replicas->wrapper->before_layer (s, layer);
}

void
weft_after_layer (struct weft_step *s, uint32_t layer)
{
  if (s->replicas->wrapper->after_layer)
    s->replicas->wrapper->after_layer (s, layer);
  weft_fp8_weights_free_transposed (s, layer);
}

void
weft_after_module (struct weft_step *s, uint32_t param)
{
  if (s->replicas->wrapper->after_module && param != WEFT_NO_PARAM)
    s->replicas->wrapper->after_module (s, param);
}

uint32_t
weft_weight_read (struct weft_step *s, uint32_t param)
{
  if (param == WEFT_NO_PARAM)
    return WEFT_NO_BUF;
  if (s->replicas->wrapper->before_read && weft_params_trains (s, param))
    s->replicas->wrapper->before_read (s, param);
  return s->params->weight_view[param];
}

void
weft_weight_gather_unread (struct weft_step *s, uint32_t param)
{
  if (weft_params_trains (s, param) &&
      s->replicas->bucket[s->params->layout.place[param].bucket].unit)
    weft_weight_read (s, param);
}

struct weft_use
weft_grad_begin (struct weft_step *s, uint32_t param)
{
  if (!weft_params_trains (s, param))
    return (struct weft_use) WEFT_RW (WEFT_NO_BUF);
  return s->replicas->wrapper->grad_begin (s, param);
}

void
weft_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad)
{
  if (weft_params_trains (s, param))
    s->replicas->wrapper->grad_end (s, param, grad);
}

struct weft_use
weft_head_grad_begin (struct weft_step *s)
{
  return s->replicas->wrapper->head_begin (s);
}

void
weft_head_grad_end (struct weft_step *s, struct weft_use grad)
{
  s->replicas->wrapper->head_end (s, grad);
}

/* ---------------------------------------------------------------- for the optimizer */

void
weft_replicas_finish (struct weft_step *s)
{
  s->replicas->wrapper->finish (s);
}

uint32_t
weft_replicas_reduced (struct weft_step *s, uint32_t param)
{
  return s->replicas->wrapper->reduced (s, param);
}

uint32_t
weft_replicas_reduced_head (struct weft_step *s)
{
  return s->replicas->wrapper->reduced_head (s);
}

void
weft_replicas_gather_weights (struct weft_step *s)
{
  if (s->replicas->wrapper->gather_weights)
    s->replicas->wrapper->gather_weights (s);
}

uint32_t
weft_bucket_gradients (const struct weft_step *s, uint32_t k)
{
  return s->replicas->bucket[k].grad_shard;
}

uint32_t
weft_bucket_weights (const struct weft_step *s, uint32_t k)
{
  return s->replicas->bucket[k].weight_shard;
}

uint32_t
weft_bucket_reduced (const struct weft_step *s, uint32_t k)
{
  return s->replicas->bucket[k].reduced;
}

gboolean
weft_bucket_is_exchanged (const struct weft_step *s, uint32_t k)
{
  return s->replicas->bucket[k].exchanged != WEFT_NO_BUF;
}
