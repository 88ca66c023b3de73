/* One transformer layer as kernels.
 *
 *   x -> norm1 -> n1 -> qkv (rope) -> attention -> o -> proj -> + x -> x1
 *   x1 -> norm2 -> n2 -> fc1 -> u -> activation -> a -> fc2 -> + x1 -> output
 *
 * Kept for backward: x, n1, qkv, o, lse, x1, n2, u, a.  In 16-bit bytes that is
 * sbh (2 + 2 + 4k/a + 2 + 2 + 2 + 2 + 2 w f/h + 2 f/h) + 4 a s b with w = 2 when the MLP is gated:
 * the "no dropout, flash attention" row of the published formulas (Korthikanti et al., arXiv
 * 2205.05198, section 4).  Norm statistics are rebuilt in backward and cost nothing here.
 *
 * Selective recompute (Megatron-Core recompute_modules):
 *   mlp         keeps x1 alone of the MLP; norm2, fc1 and the activation are run again when its
 *               backward begins.  fc2 is not: backward does not read what it makes.
 *   layernorm   n1 and n2 are made again right before the projection that has read them
 *
 * delay_wgrad_compute: weight gradients of the four projections are put off, with what they read.
 * The residual's gradient is then a new buffer after each norm: the old one is still to be read. */
#include "core/step.h"

struct widths {
  uint64_t t, h, q, qkv, f, up;
};

static struct widths
widths (const struct weft_step *s)
{
  const union weft_model *m = s->model;
  uint64_t q = (uint64_t) m->num_attention_heads * m->kv_channels;

  return (struct widths){ .t = s->tokens,
                          .h = m->hidden_size,
                          .q = q,
                          .qkv = q + 2 * (uint64_t) m->num_query_groups * m->kv_channels,
                          .f = m->ffn_hidden_size,
                          .up = m->ffn_hidden_size * (weft_model_is_gated (m) ? 2 : 1) };
}

static uint32_t
activation (struct weft_step *s, uint64_t columns, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->dtype, s->tokens * columns, name);
}

/* What a matrix product makes or takes. */
static uint32_t
product (struct weft_step *s, uint64_t columns, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, s->tokens * columns, name);
}

/* As products take it; as the residual stream has it. */
static uint32_t
inward (struct weft_step *s, uint32_t buf, const char *name)
{
  return weft_cast (s, buf, s->product_dtype, name);
}

static uint32_t
outward (struct weft_step *s, uint32_t buf, const char *name)
{
  return weft_cast (s, buf, s->dtype, name);
}

static uint32_t
weight (struct weft_step *s, enum weft_layer_param which)
{
  return weft_params_weight (s, weft_params_layer (s, which));
}

/* The norm of the residual stream, as the product behind it takes it. */
static uint32_t
norm (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x)
{
  uint32_t y = activation (s, s->model->hidden_size, name);

  weft_emit (s, WEFT_OP_NORM, name, WEFT_SHAPE (s->dtype, s->tokens, s->model->hidden_size),
             WEFT_USES (WEFT_R (x), WEFT_R (weight (s, which)), WEFT_R (weight (s, which + 1)),
                        WEFT_W (y)));
  return inward (s, y, name);
}

static uint32_t
linear (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x, uint64_t n,
        uint64_t k)
{
  uint32_t param = weft_params_layer (s, which), scale = weft_params_scale (s, param);
  uint32_t y = product (s, n, name), w = weft_cast_weight (s, param);
  struct weft_shape shape = WEFT_SHAPE (s->product_dtype, s->tokens, n, k);
  uint32_t bias = weight (s, which + 1);

  if (scale == WEFT_NO_BUF)
    weft_emit (s, WEFT_OP_MATMUL, name, shape,
               WEFT_USES (WEFT_R (x), WEFT_R (w), WEFT_R (bias), WEFT_W (y)));
  else
    weft_emit (s, WEFT_OP_MATMUL_FP8, name, shape,
               WEFT_USES (WEFT_R (x), WEFT_R (w), WEFT_R (scale), WEFT_R (bias), WEFT_W (y)));
  return y;
}

static uint32_t
add (struct weft_step *s, const char *name, uint32_t a, uint32_t b)
{
  uint32_t y = activation (s, s->model->hidden_size, name);

  weft_emit (s, WEFT_OP_ADD, name, WEFT_SHAPE (s->dtype, s->tokens, s->model->hidden_size),
             WEFT_USES (WEFT_R (a), WEFT_R (b), WEFT_W (y)));
  return y;
}

static uint64_t
head_rows (const struct weft_step *s)
{
  return s->tokens * (s->model->num_attention_heads + s->model->num_query_groups);
}

static struct weft_shape
attention_shape (const struct weft_step *s)
{
  const union weft_model *m = s->model;
  return WEFT_SHAPE (s->product_dtype, s->tokens / m->seq_length, m->seq_length,
                     m->num_attention_heads, m->num_query_groups, m->kv_channels);
}

static void
turn_heads (struct weft_step *s, struct weft_saved *saved)
{
  const union weft_model *m = s->model;

  if (m->qk_layernorm) {
    saved->raw = product (s, head_rows (s) / s->tokens * m->kv_channels, "qk_raw");
    weft_emit (s, WEFT_OP_HEAD_NORM, "qk_norm",
               WEFT_SHAPE (s->product_dtype, head_rows (s), m->kv_channels),
               WEFT_USES (WEFT_RW (saved->qkv), WEFT_R (weight (s, WEFT_Q_NORM_WEIGHT)),
                          WEFT_R (weight (s, WEFT_K_NORM_WEIGHT)), WEFT_W (saved->raw)));
  }
  if (m->position_embedding_type == WEFT_ROPE)
    weft_emit (s, WEFT_OP_ROPE, "rope",
               WEFT_SHAPE (s->product_dtype, head_rows (s), m->kv_channels),
               WEFT_USES (WEFT_RW (saved->qkv)));
}

/* Forward and backward op of each activation, and its label. */
static const struct {
  enum weft_op_kind forward, backward;
  const char *name;
} activations[] = {
  [WEFT_GELU] = { WEFT_OP_GELU, WEFT_OP_GELU_BWD, "gelu" },
  [WEFT_SWIGLU] = { WEFT_OP_SWIGLU, WEFT_OP_SWIGLU_BWD, "swiglu" },
  [WEFT_SQUARED_RELU] = { WEFT_OP_RELU2, WEFT_OP_RELU2_BWD, "relu2" },
  [WEFT_GELU_ERF] = { WEFT_OP_GELU, WEFT_OP_GELU_BWD, "gelu" },
  [WEFT_GEGLU] = { WEFT_OP_SWIGLU, WEFT_OP_SWIGLU_BWD, "geglu" },
  [WEFT_QUICK_GEGLU] = { WEFT_OP_SWIGLU, WEFT_OP_SWIGLU_BWD, "quick_geglu" },
};

/* What of the MLP is kept for its backward, or made again. */
static void
mlp_inner (struct weft_step *s, const struct widths *w, struct weft_saved *saved)
{
  saved->n2 = norm (s, "norm2", WEFT_NORM2_WEIGHT, saved->x1);
  saved->u = linear (s, "fc1", WEFT_FC1_WEIGHT, saved->n2, w->up, w->h);
  saved->a = product (s, w->f, "act");
  weft_emit (s, activations[s->model->activation].forward, activations[s->model->activation].name,
             WEFT_SHAPE (s->product_dtype, w->t, w->f),
             WEFT_USES (WEFT_R (saved->u), WEFT_W (saved->a)));
}

/* Attention of Hugging Face models looks whether sequences were packed, where a batch of one leaves
 * that open: a number on the GPU that the host waits for (transformers modeling_flash_attention_utils.py).
 * patch_is_packed_sequence takes the question away. */
static void
ask_for_packing (struct weft_step *s)
{
  if (s->strategy->distributed_config != WEFT_FSDP2 || s->strategy->patch_is_packed_sequence ||
      s->job->train.micro_batch_size > 1)
    return;
  uint32_t packed = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "packed");
  weft_emit (s, WEFT_OP_ZERO, "packed", WEFT_SHAPE (WEFT_FP32, 1), WEFT_USES (WEFT_W (packed)));
  weft_step_host_reads (s, "packed", packed);
}

uint32_t
weft_layer_forward (struct weft_step *s, uint32_t layer, uint32_t x, struct weft_saved *saved)
{
  struct widths w = widths (s);

  s->at.layer = layer;
  saved->x = x;
  saved->raw = WEFT_NO_BUF;
  saved->n1 = norm (s, "norm1", WEFT_NORM1_WEIGHT, x);
  saved->qkv = linear (s, "qkv", WEFT_QKV_WEIGHT, saved->n1, w.qkv, w.h);
  turn_heads (s, saved);
  ask_for_packing (s);
  saved->o = product (s, w.q, "attention");
  saved->lse = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_FP32,
                                 w.t * s->model->num_attention_heads, "lse");
  weft_emit (s, WEFT_OP_ATTENTION, "attention", attention_shape (s),
             WEFT_USES (WEFT_R (saved->qkv), WEFT_W (saved->o), WEFT_W (saved->lse)));
  uint32_t p = linear (s, "proj", WEFT_PROJ_WEIGHT, saved->o, w.h, w.q);
  saved->x1 = add (s, "residual1", x, outward (s, p, "proj"));
  weft_step_through (s, weft_params_layer (s, WEFT_NORM1_WEIGHT));
  mlp_inner (s, &w, saved);
  uint32_t m = linear (s, "fc2", WEFT_FC2_WEIGHT, saved->a, w.h, w.f);
  uint32_t y = add (s, "residual2", saved->x1, outward (s, m, "fc2"));
  s->at.layer = WEFT_NO_LAYER;
  return y;
}

static gboolean
runs_again (const struct weft_step *s, enum weft_recompute_module module)
{
  return s->recompute.modules >> module & 1;
}

static void
mlp_again (struct weft_step *s, const struct widths *w, struct weft_saved *saved)
{
  struct weft_op at = weft_step_again (s);

  mlp_inner (s, w, saved);
  s->at = at;
}

static uint32_t
norm_again (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x)
{
  struct weft_op at = weft_step_again (s);
  uint32_t y = norm (s, name, which, x);

  s->at = at;
  return y;
}

static void
weight_gradient (struct weft_step *s, const struct weft_delayed *d)
{
  struct weft_use dw = weft_grad_begin (s, d->weight), db = weft_grad_begin (s, d->bias);
  struct weft_shape shape = WEFT_SHAPE (s->product_dtype, s->tokens, d->n, d->k);

  shape.out_dtype = s->grad_dtype;
  weft_emit (s, WEFT_OP_MATMUL_WGRAD, d->name, shape,
             WEFT_USES (WEFT_R (d->dy), WEFT_R (d->x), dw, db));
  weft_grad_end (s, d->weight, dw);
  weft_grad_end (s, d->bias, db);
}

void
weft_layer_delayed (struct weft_step *s)
{
  struct weft_op at = s->at;

  s->at.phase = WEFT_PHASE_WEIGHT_GRAD;
  for (uint32_t i = 0; i < s->delayed->len; i++) {
    const struct weft_delayed *d = &g_array_index (s->delayed, struct weft_delayed, i);
    s->at.layer = d->layer;
    weight_gradient (s, d);
  }
  g_array_set_size (s->delayed, 0);
  s->at = at;
}

/* Of weights in fp8 the copy that lies the other way round is read. */
static void
input_gradient (struct weft_step *s, const struct weft_delayed *d, uint32_t dx)
{
  struct weft_shape shape = WEFT_SHAPE (s->product_dtype, s->tokens, d->n, d->k);
  uint32_t w = weft_cast_weight (s, d->weight);

  if (weft_params_scale (s, d->weight) == WEFT_NO_BUF) {
    weft_emit (s, WEFT_OP_MATMUL_DGRAD, d->name, shape,
               WEFT_USES (WEFT_R (d->dy), WEFT_R (w), WEFT_W (dx)));
    return;
  }
  uint32_t turned = weft_fp8_turned (s, d->weight);
  weft_emit (s, WEFT_OP_MATMUL_DGRAD_FP8, d->name, shape,
             WEFT_USES (WEFT_R (d->dy), WEFT_R (turned), WEFT_R (s->turned_scale[d->weight]),
                        WEFT_W (dx)));
}

/* dy -> dx through y = x w^T: input gradient first, then the weight gradient, for the bucket. */
static uint32_t
linear_backward (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t dy,
                 uint32_t x, uint64_t n, uint64_t k)
{
  uint32_t w = weft_params_layer (s, which), bias = weft_params_layer (s, which + 1);
  uint32_t dx = product (s, k, name);

  dy = inward (s, dy, name);
  struct weft_delayed d = { name, s->at.layer, w, bias, dy, x, n, k };
  input_gradient (s, &d, dx);
  if (s->strategy->delay_wgrad_compute)
    g_array_append_val (s->delayed, d);
  else
    weight_gradient (s, &d);
  return dx;
}

static uint32_t
norm_backward (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t dy,
               uint32_t x, uint32_t dresidual)
{
  uint32_t w = weft_params_layer (s, which), bias = weft_params_layer (s, which + 1);
  dy = outward (s, dy, name);
  struct weft_use dw = weft_grad_begin (s, w), db = weft_grad_begin (s, bias);
  uint32_t dx = s->strategy->delay_wgrad_compute
                    ? activation (s, s->model->hidden_size, "dresidual")
                    : dresidual;

  weft_emit (s, WEFT_OP_NORM_BWD, name, WEFT_SHAPE (s->dtype, s->tokens, s->model->hidden_size),
             WEFT_USES (WEFT_R (dy), WEFT_R (x), WEFT_R (weft_params_weight (s, w)),
                        WEFT_R (dresidual), WEFT_W (dx), dw, db));
  weft_grad_end (s, w, dw);
  weft_grad_end (s, bias, db);
  return dx;
}

static void
turn_heads_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dqkv)
{
  const union weft_model *m = s->model;

  if (m->position_embedding_type == WEFT_ROPE)
    weft_emit (s, WEFT_OP_ROPE_BWD, "rope",
               WEFT_SHAPE (s->product_dtype, head_rows (s), m->kv_channels),
               WEFT_USES (WEFT_RW (dqkv)));
  if (!m->qk_layernorm)
    return;
  uint32_t q = weft_params_layer (s, WEFT_Q_NORM_WEIGHT),
           k = weft_params_layer (s, WEFT_K_NORM_WEIGHT);
  struct weft_use dq = weft_grad_begin (s, q), dk = weft_grad_begin (s, k);
  weft_emit (s, WEFT_OP_HEAD_NORM_BWD, "qk_norm",
             WEFT_SHAPE (s->product_dtype, head_rows (s), m->kv_channels),
             WEFT_USES (WEFT_RW (dqkv), WEFT_R (saved->raw), WEFT_R (weft_params_weight (s, q)),
                        WEFT_R (weft_params_weight (s, k)), dq, dk));
  weft_grad_end (s, q, dq);
  weft_grad_end (s, k, dk);
}

static uint32_t
mlp_backward (struct weft_step *s, const struct widths *w, struct weft_saved *saved, uint32_t dres)
{
  if (runs_again (s, WEFT_MODULE_MLP))
    mlp_again (s, w, saved);
  uint32_t da = linear_backward (s, "fc2", WEFT_FC2_WEIGHT, dres, saved->a, w->h, w->f);
  uint32_t du = product (s, w->up, "dact");

  weft_emit (s, activations[s->model->activation].backward, activations[s->model->activation].name,
             WEFT_SHAPE (s->product_dtype, w->t, w->f),
             WEFT_USES (WEFT_R (saved->u), WEFT_R (da), WEFT_W (du)));
  if (runs_again (s, WEFT_MODULE_LAYERNORM) && !runs_again (s, WEFT_MODULE_MLP))
    saved->n2 = norm_again (s, "norm2", WEFT_NORM2_WEIGHT, saved->x1);
  uint32_t dn2 = linear_backward (s, "fc1", WEFT_FC1_WEIGHT, du, saved->n2, w->up, w->h);
  return norm_backward (s, "norm2", WEFT_NORM2_WEIGHT, dn2, saved->x1, dres);
}

uint32_t
weft_layer_backward (struct weft_step *s, uint32_t layer, struct weft_saved *saved, uint32_t dres)
{
  struct widths w = widths (s);
  struct weft_op at = s->at;

  s->at.layer = layer;
  if (s->strategy->delay_wgrad_compute)
    s->at.phase = WEFT_PHASE_INPUT_GRAD;
  dres = mlp_backward (s, &w, saved, dres);
  weft_step_through (s, weft_params_layer (s, WEFT_NORM2_WEIGHT));
  uint32_t d_o = linear_backward (s, "proj", WEFT_PROJ_WEIGHT, dres, saved->o, w.h, w.q);
  uint32_t dqkv = product (s, w.qkv, "dqkv");
  weft_emit (s, WEFT_OP_ATTENTION_BWD, "attention", attention_shape (s),
             WEFT_USES (WEFT_R (saved->qkv), WEFT_R (saved->o), WEFT_R (saved->lse), WEFT_R (d_o),
                        WEFT_W (dqkv)));
  turn_heads_backward (s, saved, dqkv);
  if (runs_again (s, WEFT_MODULE_LAYERNORM))
    saved->n1 = norm_again (s, "norm1", WEFT_NORM1_WEIGHT, saved->x);
  uint32_t dn1 = linear_backward (s, "qkv", WEFT_QKV_WEIGHT, dqkv, saved->n1, w.qkv, w.h);
  dres = norm_backward (s, "norm1", WEFT_NORM1_WEIGHT, dn1, saved->x, dres);
  s->at = at;
  return dres;
}
