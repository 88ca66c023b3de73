/* The MLP of a transformer layer: norm2, fc1, activation function, fc2. */
#include "core/passes/layer/nodes.h"

uint32_t
weft_activate (struct weft_step *s, uint64_t columns, uint32_t u)
{
  uint32_t a = weft_product (s, columns, "act");
  const struct weft_activation_ops *op = &weft_activation_ops[s->model->activation];

  weft_emit (s, op->forward, op->name,
             WEFT_SHAPE (s->product_dtype, s->tokens, columns), WEFT_USES (WEFT_R (u), WEFT_W (a)));
  return a;
}

uint32_t
weft_activate_backward (struct weft_step *s, uint64_t columns, uint32_t u, uint32_t da)
{
  uint32_t du = weft_product (s, weft_model_wide (s->model) * columns, "dact");
  const struct weft_activation_ops *op = &weft_activation_ops[s->model->activation];

  weft_emit (s, op->backward, op->name,
             WEFT_SHAPE (s->product_dtype, s->tokens, columns),
             WEFT_USES (WEFT_R (u), WEFT_R (da), WEFT_W (du)));
  return du;
}

/* Returns the residual stream that the MLP reads: x1, to which the attention output has been added,
 * or with parallel attention the layer's input x. */
static uint32_t
stream (const struct weft_step *s, const struct weft_saved *saved)
{
  return s->model->residual == WEFT_RESIDUAL_SEQUENTIAL ? saved->x1 : saved->x;
}

/* Whether a norm (norm2) runs directly before the MLP. */
static gboolean
has_norm (const struct weft_step *s)
{
  return s->model->norm_placement != WEFT_NORM_POST &&
         s->model->residual != WEFT_RESIDUAL_ONE_NORM;
}

/* Returns the input of fc1: the output of norm2. If attention and MLP share one norm, returns the
 * output of norm1. Without either, returns the residual stream. */
static uint32_t
input (const struct weft_step *s, const struct weft_saved *saved)
{
  if (saved->n2 != WEFT_NO_BUF)
    return saved->n2;
  return s->model->residual == WEFT_RESIDUAL_ONE_NORM ? saved->n1 : saved->x1;
}

/* Appends the ops for the activations that the backward of the MLP reads. Used in forward and in
 * recompute. */
static void
inner (struct weft_step *s, struct weft_saved *saved)
{
  if (has_norm (s))
    saved->n2 = weft_norm (s, "norm2", WEFT_NORM2_WEIGHT, stream (s, saved));
  saved->u = weft_linear (s, "fc1", WEFT_FC1_WEIGHT, input (s, saved), s->width.up, s->width.h);
  saved->a = weft_activate (s, s->width.f, saved->u);
}

uint32_t
weft_layer_mlp (struct weft_step *s, struct weft_saved *saved)
{
  inner (s, saved);
  return weft_linear (s, "fc2", WEFT_FC2_WEIGHT, saved->a, s->width.h, s->width.f);
}

static void
inner_again (struct weft_step *s, struct weft_saved *saved)
{
  struct weft_op at = weft_step_again (s);

  inner (s, saved);
  s->at = at;
}

static void
normalise_again (struct weft_step *s, struct weft_saved *saved)
{
  if (has_norm (s) && weft_recomputes (s, WEFT_MODULE_LAYERNORM) &&
      !weft_recomputes (s, WEFT_MODULE_MLP))
    saved->n2 = weft_norm_again (s, "norm2", WEFT_NORM2_WEIGHT, stream (s, saved));
}

/* Sets pass->x to the gradient of the residual stream before the MLP. dn2 is the gradient of fc1's
 * input; if it is WEFT_NO_BUF, nothing below is trained, and pass->x becomes WEFT_NO_BUF. With
 * residual = parallel_one_norm, sets pass->beside to dn2 instead. If attention and MLP read one
 * residual stream, the backward of attention reads the gradient of the layer's output from
 * pass->branch. */
static void
join_gradients (struct weft_step *s, struct weft_layer_pass *pass, uint32_t dn2)
{
  const struct weft_saved *saved = pass->saved;

  if (dn2 == WEFT_NO_BUF)
    pass->x = WEFT_NO_BUF;
  else if (s->model->residual == WEFT_RESIDUAL_ONE_NORM)
    pass->beside = dn2;
  else if (!has_norm (s))
    pass->x = weft_stream_add (s, "dresidual", weft_cast_to_residual (s, dn2, "fc1"), pass->x);
  else if (s->model->residual == WEFT_RESIDUAL_PARALLEL)
    pass->x = weft_norm_backward_apart (s, "norm2", WEFT_NORM2_WEIGHT, dn2, saved->x, pass->x);
  else
    pass->x = weft_norm_backward (s, "norm2", WEFT_NORM2_WEIGHT, dn2, saved->x1, pass->x);
}

void
weft_layer_mlp_backward (struct weft_step *s, struct weft_layer_pass *pass)
{
  struct weft_saved *saved = pass->saved;
  uint32_t dy = weft_drop_backward (s, WEFT_DROP_MLP, pass->x, saved->mask_y);

  dy = weft_layer_output_norm_backward (s, FALSE, saved->mlp, dy);
  if (dy == WEFT_NO_BUF) {
    pass->x = WEFT_NO_BUF;
    return;
  }
  if (s->model->residual == WEFT_RESIDUAL_ONE_NORM && weft_recomputes (s, WEFT_MODULE_LAYERNORM))
    saved->n1 = weft_norm_again (s, "norm1", WEFT_NORM1_WEIGHT, saved->x);
  if (weft_recomputes (s, WEFT_MODULE_MLP))
    inner_again (s, saved);
  uint32_t da =
      weft_linear_backward (s, "fc2", WEFT_FC2_WEIGHT, dy, saved->a, s->width.h, s->width.f);
  if (da == WEFT_NO_BUF) {
    pass->x = WEFT_NO_BUF;
    return;
  }
  uint32_t du = weft_activate_backward (s, s->width.f, saved->u, da);

  normalise_again (s, saved);
  uint32_t dn2 = weft_linear_backward (s, "fc1", WEFT_FC1_WEIGHT, du, input (s, saved), s->width.up,
                                       s->width.h);
  join_gradients (s, pass, dn2);
}
