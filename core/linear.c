/* The linear maps of a layer: y = x w^T + b, input gradients, and weight gradients, which may be put
 * off until what others wait for is on its way (delay_wgrad_compute,
 * and schedules with cells of their own for weight gradients). */
#include "core/moe.h"
#include "core/step.h"

uint32_t
weft_activation (struct weft_step *s, uint64_t columns, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->dtype, s->tokens * columns, name);
}

uint32_t
weft_product (struct weft_step *s, uint64_t columns, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, s->tokens * columns, name);
}

uint32_t
weft_inward (struct weft_step *s, uint32_t buf, const char *name)
{
  return weft_cast (s, buf, s->product_dtype, name);
}

uint32_t
weft_outward (struct weft_step *s, uint32_t buf, const char *name)
{
  return weft_cast (s, buf, s->dtype, name);
}

uint32_t
weft_layer_weight (struct weft_step *s, enum weft_layer_param which)
{
  return weft_params_weight (s, weft_params_layer (s, which));
}

uint32_t
weft_linear (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x,
             uint64_t n, uint64_t k)
{
  uint32_t param = weft_params_layer (s, which), scale = weft_params_scale (s, param);
  uint32_t y = weft_product (s, n, name), w = weft_cast_weight (s, param);
  struct weft_shape shape = WEFT_SHAPE (s->linear_dtype, s->tokens, n, k);
  uint32_t bias = weft_layer_weight (s, which + 1);

  x = weft_cast (s, x, s->linear_dtype, name);
  if (scale == WEFT_NO_BUF)
    weft_emit (s, WEFT_OP_MATMUL, name, shape,
               WEFT_USES (WEFT_R (x), WEFT_R (w), WEFT_R (bias), WEFT_W (y)));
  else
    weft_emit (s, WEFT_OP_MATMUL_FP8, name, shape,
               WEFT_USES (WEFT_R (x), WEFT_R (w), WEFT_R (scale), WEFT_R (bias), WEFT_W (y)));
  return y;
}

static void
dense_gradient (struct weft_step *s, const struct weft_delayed *d)
{
  struct weft_use dw = weft_grad_begin (s, d->weight), db = weft_grad_begin (s, d->bias);
  struct weft_shape shape = WEFT_SHAPE (s->linear_dtype, s->tokens, d->n, d->k);
  uint32_t x = weft_cast (s, d->x, s->linear_dtype, d->name);

  shape.out_dtype = s->grad_dtype;
  weft_emit (s, WEFT_OP_MATMUL_WGRAD, d->name, shape,
             WEFT_USES (WEFT_R (d->dy), WEFT_R (x), dw, db));
  weft_grad_end (s, d->weight, dw);
  weft_grad_end (s, d->bias, db);
}

static void
weight_gradient (struct weft_step *s, const struct weft_delayed *d)
{
  (d->counts == WEFT_NO_BUF ? dense_gradient : weft_experts_gradient) (s, d);
}

void
weft_linear_gradient (struct weft_step *s, const struct weft_delayed *d)
{
  struct weft_delayed later = *d;

  later.micro = s->at.micro;
  later.chunk = s->at.chunk;
  if (weft_step_delays (s))
    g_array_append_val (s->delayed, later);
  else
    weight_gradient (s, d);
}

void
weft_layer_delayed (struct weft_step *s)
{
  struct weft_op at = s->at;
  guint left = 0;

  s->at.phase = WEFT_PHASE_WEIGHT_GRAD;
  for (guint i = 0; i < s->delayed->len; i++) {
    const struct weft_delayed d = g_array_index (s->delayed, struct weft_delayed, i);
    s->at.layer = d.layer;
    if (d.micro == at.micro && d.chunk == at.chunk)
      weight_gradient (s, &d);
    else
      g_array_index (s->delayed, struct weft_delayed, left++) = d;
  }
  g_array_set_size (s->delayed, left);
  s->at = at;
}

/* Of weights in fp8 the copy that lies the other way round is read. */
static void
input_gradient (struct weft_step *s, const struct weft_delayed *d, uint32_t dx)
{
  struct weft_shape shape = WEFT_SHAPE (s->linear_dtype, s->tokens, d->n, d->k);
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
uint32_t
weft_linear_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                      uint32_t dy, uint32_t x, uint64_t n, uint64_t k)
{
  uint32_t w = weft_params_layer (s, which), bias = weft_params_layer (s, which + 1);
  uint32_t dx = weft_product (s, k, name);

  dy = weft_cast (s, weft_inward (s, dy, name), s->linear_dtype, name);
  struct weft_delayed d = { name, s->at.layer, w, bias, dy, x, n, k, WEFT_NO_BUF, 0, 0 };
  input_gradient (s, &d, dx);
  weft_linear_gradient (s, &d);
  return dx;
}
