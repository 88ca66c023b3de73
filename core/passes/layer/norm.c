/* The norms of the residual stream.
 *
 * If sequence_parallel is on, each rank has only some rows of the residual stream. The gradient of
 * a norm's weight on this rank is then a partial sum. Normally partial sums are all-reduced once in
 * each step (optimizer/finish.c), or before each data parallel reduction if gradients are reduced
 * in every microbatch. In canonical order (equal bits for all strategies) one kernel computes the
 * sum over a whole sequence. For this kernel ranks all-gather the operands, and every rank computes
 * the whole sum. */
#include "core/passes/layer/block.h"

uint32_t
weft_norm_stream (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x)
{
  uint32_t y = weft_activation (s, s->model->hidden_size, name);

  weft_emit (s, WEFT_OP_NORM, name, WEFT_SHAPE (s->dtype, s->rows, s->model->hidden_size),
             WEFT_USES (WEFT_R (x), WEFT_R (weft_layer_weight (s, which)),
                        WEFT_R (weft_layer_weight (s, which + 1)), WEFT_W (y)));
  return y;
}

uint32_t
weft_norm (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x)
{
  return weft_cast_to_compute (s, weft_norm_stream (s, name, which, x), name);
}

uint32_t
weft_norm_again (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x)
{
  struct weft_op at = weft_step_again (s);
  uint32_t y = weft_norm (s, name, which, x);

  s->at = at;
  return y;
}

/* Used in canonical order: computes the gradients of a norm's weight (grad[0]) and bias (grad[1])
 * over all tokens of the microbatch. */
static void
whole_gradients (struct weft_step *s, const char *name, const struct weft_norm_operands *o,
                 uint64_t columns, const struct weft_use grad[2])
{
  uint32_t all_dy = weft_tensor_all_gather (s, o->dy, name),
           all_x = weft_tensor_all_gather (s, o->x, name);

  weft_emit (s, WEFT_OP_NORM_WGRAD, name, WEFT_SHAPE (s->dtype, s->tokens, columns),
             WEFT_USES (WEFT_R (all_dy), WEFT_R (all_x), grad[0], grad[1]));
}

static void
input_gradient (struct weft_step *s, const char *name, struct weft_shape shape,
                const uint32_t weight, const struct weft_norm_operands *o)
{
  weft_emit (s, WEFT_OP_NORM_DGRAD, name, shape,
             WEFT_USES (WEFT_R (o->dy), WEFT_R (o->x), WEFT_R (weight), WEFT_R (o->dresidual),
                        WEFT_W (o->dx)));
}

void
weft_norm_gradients (struct weft_step *s, const char *name, const uint32_t param[2],
                     const struct weft_norm_operands *o)
{
  struct weft_use grad[2] = { weft_grad_begin (s, param[0]), weft_grad_begin (s, param[1]) };
  uint64_t columns = o->columns ? o->columns : (uint64_t) s->model->hidden_size;
  struct weft_shape shape = WEFT_SHAPE (s->dtype, s->rows, columns);
  uint32_t weight = weft_weight_read (s, param[0]);

  if (!weft_params_trains (s, param[0]))
    input_gradient (s, name, shape, weight, o);
  else if (weft_tensor_scatters (s) && s->canonical) {
    whole_gradients (s, name, o, columns, grad);
    input_gradient (s, name, shape, weight, o);
  } else {
    weft_emit (s, WEFT_OP_NORM_BWD, name, shape,
               WEFT_USES (WEFT_R (o->dy), WEFT_R (o->x), WEFT_R (weight), WEFT_R (o->dresidual),
                          WEFT_W (o->dx), grad[0], grad[1]));
    for (int i = 0; i < 2 && weft_tensor_scatters (s); i++)
      weft_tensor_share_gradient (s, param[i], grad[i].buf);
  }
  weft_grad_end (s, param[0], grad[0]);
  weft_grad_end (s, param[1], grad[1]);
}

/* Whether the backward of a norm is needed: for its own gradients, or for those below it. */
static gboolean
has_backward (const struct weft_step *s, enum weft_layer_param which)
{
  return weft_params_trains (s, weft_params_layer (s, which)) || weft_params_flows_below (s, which);
}

uint32_t
weft_norm_backward (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t dy,
                    uint32_t x, uint32_t dresidual)
{
  const uint32_t param[] = { weft_params_layer (s, which), weft_params_layer (s, which + 1) };
  struct weft_norm_operands o = { .x = x, .dresidual = dresidual };

  if (!has_backward (s, which))
    return WEFT_NO_BUF;
  o.dy = weft_cast_to_residual (s, dy, name);
  o.dx = weft_step_delays (s) ? weft_activation (s, s->model->hidden_size, "dresidual") : dresidual;
  weft_norm_gradients (s, name, param, &o);
  return o.dx;
}

uint32_t
weft_norm_backward_apart (struct weft_step *s, const char *name, enum weft_layer_param which,
                          uint32_t dy, uint32_t x, uint32_t dresidual)
{
  const uint32_t param[] = { weft_params_layer (s, which), weft_params_layer (s, which + 1) };
  struct weft_norm_operands o = { .x = x, .dresidual = dresidual };

  if (!has_backward (s, which))
    return WEFT_NO_BUF;
  o.dy = weft_cast_to_residual (s, dy, name);
  o.dx = weft_activation (s, s->width.h, "dresidual");
  weft_norm_gradients (s, name, param, &o);
  return o.dx;
}

uint32_t
weft_stream_add (struct weft_step *s, const char *name, uint32_t a, uint32_t b)
{
  uint32_t sum = weft_activation (s, s->model->hidden_size, name);

  weft_emit (s, WEFT_OP_ADD, name, WEFT_SHAPE (s->dtype, s->rows, s->model->hidden_size),
             WEFT_USES (WEFT_R (a), WEFT_R (b), WEFT_W (sum)));
  return sum;
}
