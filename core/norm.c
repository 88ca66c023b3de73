/* The norm before each half of a layer. */
#include "core/step.h"

uint32_t
weft_norm (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x)
{
  uint32_t y = weft_activation (s, s->model->hidden_size, name);

  weft_emit (s, WEFT_OP_NORM, name, WEFT_SHAPE (s->dtype, s->tokens, s->model->hidden_size),
             WEFT_USES (WEFT_R (x), WEFT_R (weft_layer_weight (s, which)),
                        WEFT_R (weft_layer_weight (s, which + 1)), WEFT_W (y)));
  return weft_inward (s, y, name);
}

uint32_t
weft_norm_again (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x)
{
  struct weft_op at = weft_step_again (s);
  uint32_t y = weft_norm (s, name, which, x);

  s->at = at;
  return y;
}

uint32_t
weft_norm_backward (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t dy,
                    uint32_t x, uint32_t dresidual)
{
  uint32_t w = weft_params_layer (s, which), bias = weft_params_layer (s, which + 1);
  dy = weft_outward (s, dy, name);
  struct weft_use dw = weft_grad_begin (s, w), db = weft_grad_begin (s, bias);
  uint32_t dx =
      weft_step_delays (s) ? weft_activation (s, s->model->hidden_size, "dresidual") : dresidual;

  weft_emit (s, WEFT_OP_NORM_BWD, name, WEFT_SHAPE (s->dtype, s->tokens, s->model->hidden_size),
             WEFT_USES (WEFT_R (dy), WEFT_R (x), WEFT_R (weft_params_weight (s, w)),
                        WEFT_R (dresidual), WEFT_W (dx), dw, db));
  weft_grad_end (s, w, dw);
  weft_grad_end (s, bias, db);
  return dx;
}
