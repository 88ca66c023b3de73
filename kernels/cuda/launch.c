#include "core/job/rotary.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/table.h"
#include "kernels/logsumexp.h"
#include "kernels/traits.h"
#include <string.h>

weft_cuda_launcher *const weft_cuda_launchers[WEFT_N_OP] = {
#define KERNEL(id, name, ...) [id] = weft_cuda_##name,
#define CPU_KERNEL(...)
#include "core/ops.def"
};

static _Thread_local int loads_only;

void
weft_cuda_load_only (int on)
{
  loads_only = on;
}

int
weft_cuda_loads_only (void)
{
  return loads_only;
}

/* Number of elements of a head that rotary embedding rotates; in latent attention, those of the
 * position part. */
static uint32_t
turned_width (const struct weft_kernel *k)
{
  switch (k->kind) {
  case WEFT_OP_ROPE:
  case WEFT_OP_ROPE_BWD:
    return 2 * (uint32_t) weft_rotary_pairs (k->model, k->shape.dim[1]);
  case WEFT_OP_LATENT_SPLIT:
  case WEFT_OP_LATENT_SPLIT_BWD:
    return (uint32_t) k->shape.dim[2];
  case WEFT_OP_LATENT_JOIN:
  case WEFT_OP_LATENT_JOIN_BWD:
    return (uint32_t) k->shape.dim[3];
  default:
    return 0;
  }
}

/* Sets the number of rotary pairs of a head and their frequencies (kernels/rope.c). */
static void
set_turns (struct weft_cuda_model *m, const struct weft_kernel *k)
{
  gboolean local =
      (k->kind == WEFT_OP_ROPE || k->kind == WEFT_OP_ROPE_BWD) && k->shape.dim[2] > 0;

  m->pairs = turned_width (k) / 2;
  g_assert (m->pairs <= WEFT_CUDA_MOST_PAIRS);
  for (uint32_t i = 0; i < m->pairs; i++)
    m->frequency[i] = weft_rotary_frequency (k->model, i, 2 * m->pairs, local);
}

static void
set_router (struct weft_cuda_router *r, const union weft_model *m)
{
  gboolean grouped = m->moe_router_num_groups > 0;

  r->sigmoid = m->moe_router_score_function == WEFT_SCORE_SIGMOID;
  r->before = (uint32_t) m->moe_router_pre_softmax;
  r->groups = grouped ? (uint64_t) m->moe_router_num_groups : 1;
  r->best = grouped ? (uint64_t) m->moe_router_group_topk : 1;
  r->scaling = (float) m->moe_router_topk_scaling_factor;
  r->step = m->moe_router_bias_update_rate;
}

/* Sets the fields for attention and embedding that depend on the model's architecture. Fused and
 * unfused attention have the head width in the same dimension of their shape. */
static void
set_traits (struct weft_cuda_model *m, const struct weft_kernel *k)
{
  gboolean embeds = k->kind == WEFT_OP_EMBED || k->kind == WEFT_OP_EMBED_BWD;

  m->attention_scale = weft_attention_scale (k, k->shape.dim[4]);
  m->attention_cap = (float) k->model->attn_logit_softcapping;
  m->logit_cap = (float) k->model->final_logit_softcapping;
  m->embedding_multiplier = embeds ? weft_embedding_multiplier (k) : 1;
  m->position_offset = (uint64_t) k->model->position_offset;
  m->slope_heads = k->model->position_embedding_type == WEFT_ALIBI
                       ? (uint64_t) k->model->num_attention_heads
                       : 0;
  m->first_head = k->tp.at / weft_kernel_group_ranks (k) * weft_kernel_heads (k);
}

static void
set_model (struct weft_cuda_model *m, const struct weft_kernel *k)
{
  m->epsilon = k->model->norm_epsilon;
  m->layernorm = k->model->normalization == WEFT_LAYERNORM;
  m->heads = weft_kernel_heads (k);
  m->groups = weft_kernel_groups (k);
  m->all_heads = (uint64_t) k->model->num_attention_heads;
  m->sequence = weft_kernel_sequence (k);
  m->whole = (uint64_t) k->model->seq_length;
  m->activation = (uint32_t) k->model->activation;
  set_router (&m->router, k->model);
  set_traits (m, k);
  set_turns (m, k);
}

struct weft_cuda_launch
weft_cuda_launch_of (const struct weft_kernel *k)
{
  struct weft_cuda_launch l = { .tp = { k->tp.at, k->tp.of },
                                .cp = { k->cp.at, k->cp.of },
                                .control = k->control,
                                .before = k->before,
                                .decay = (uint32_t) k->decay,
                                .layer = k->draw.layer,
                                .deterministic = (uint8_t) k->deterministic,
                                .sequence = k->draw.sequence,
                                .whole = { k->whole.key, k->whole.start, k->whole.columns,
                                           k->whole.stride, k->whole.offset } };

  G_STATIC_ASSERT (WEFT_CUDA_MOST_OPERANDS == WEFT_MOST_OPERANDS);
  G_STATIC_ASSERT (WEFT_CUDA_DIMS == G_N_ELEMENTS (k->shape.dim));
  for (uint32_t d = 0; d < WEFT_CUDA_DIMS; d++)
    l.dim[d] = k->shape.dim[d];
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    const struct weft_operand *from = &k->operand[o];
    l.operand[o] = (struct weft_cuda_operand){ from->data, from->n, from->dtype, from->accumulate };
  }
  set_model (&l.model, k);
  if (k->kind == WEFT_OP_XENT_BWD || k->kind == WEFT_OP_XENT_GRAD)
    l.share = (float) weft_loss_share (k);
  return l;
}

const char *
weft_cuda_launch_all (enum weft_op_kind kind, const struct weft_cuda_launch *l, uint32_t n)
{
  const char *error = NULL;

  for (uint32_t i = 0, some; i < n && !error; i += some) {
    some = kind == WEFT_OP_ADAM ? MIN (n - i, WEFT_CUDA_MOST_TOGETHER) : 1;
    error = kind == WEFT_OP_ADAM ? weft_cuda_adam_together (&l[i], some)
                                 : weft_cuda_launchers[kind](&l[i]);
  }
  return error;
}

/* ----------------------------------------------------------------------------- scratch */

/* Functions that return the scratch bytes of each op. The declarations are weak: the address is
 * NULL for an op without WEFT_CUDA_SCRATCH(). */
#define KERNEL(id, name, ...)                                                                      \
  __attribute__ ((weak)) uint64_t weft_cuda_scratch_##name (const struct weft_cuda_shape *s);
#define CPU_KERNEL(...)
#include "core/ops.def"

uint64_t
weft_cuda_scratch (enum weft_op_kind kind, const struct weft_shape *shape)
{
  static uint64_t (*const scratch[WEFT_N_OP]) (const struct weft_cuda_shape *s) = {
#define KERNEL(id, name, ...) [id] = weft_cuda_scratch_##name,
#define CPU_KERNEL(...)
#include "core/ops.def"
  };
  struct weft_cuda_shape s = { .dtype = shape->dtype };

  memcpy (s.dim, shape->dim, sizeof s.dim);
  return scratch[kind] ? scratch[kind](&s) : 0;
}
