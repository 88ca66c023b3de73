/* Dropout of embeddings, of the outputs of attention and MLP (hidden_dropout), and of attention
 * probabilities (attention_dropout). A mask of one byte for each element is stored for backward.
 * Recompute computes the mask again with an equal result. Whether an element is dropped depends on
 * seed, step, layer, place of dropout, and the element's index in the global batch
 * (kernels/dropout.h), but not on the strategy. */
#include "core/passes/layer/block.h"
#include <math.h>

static double
rate (const struct weft_step *s, enum weft_drop_site site)
{
  return site == WEFT_DROP_PROBABILITIES ? s->strategy->attention_dropout
                                         : s->strategy->hidden_dropout;
}

/* Returns the shape of a dropout op. Attention probabilities have a row for each token and head. */
static struct weft_shape
shape_of (const struct weft_step *s, enum weft_drop_site site)
{
  uint64_t drop = (uint64_t) (rate (s, site) * 0x1p32);

  if (site == WEFT_DROP_PROBABILITIES)
    return WEFT_SHAPE (s->product_dtype, s->tokens * s->width.heads, s->tokens,
                       s->model->seq_length, site, drop);
  return WEFT_SHAPE (s->dtype, s->rows, s->tokens, s->model->hidden_size, site, drop);
}

static uint64_t
elements (const struct weft_shape *shape)
{
  return shape->dim[0] * shape->dim[2];
}

/* Creates the output buffer of a dropout op, and its mask. Returns the output and sets *mask. */
static uint32_t
room (struct weft_step *s, const struct weft_shape *shape, const char *name, uint32_t *mask)
{
  uint64_t n = elements (shape);

  *mask = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_UINT8, n, "mask");
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, shape->dtype, n, name);
}

uint32_t
weft_drop (struct weft_step *s, enum weft_drop_site site, uint32_t x, uint32_t *mask)
{
  struct weft_shape shape = shape_of (s, site);

  *mask = WEFT_NO_BUF;
  if (rate (s, site) == 0)
    return x;
  uint32_t y = room (s, &shape, "dropped", mask);
  weft_emit (s, WEFT_OP_DROPOUT, "dropout", shape,
             WEFT_USES (WEFT_R (x), WEFT_W (y), WEFT_W (*mask)));
  return y;
}

uint32_t
weft_residual (struct weft_step *s, enum weft_drop_site site, uint32_t a, uint32_t b,
               uint32_t *mask)
{
  const char *name = site == WEFT_DROP_ATTENTION ? "residual1" : "residual2";
  struct weft_shape shape = shape_of (s, site);

  if (rate (s, site) == 0) {
    uint32_t sum = weft_activation (s, s->model->hidden_size, name);
    weft_emit (s, WEFT_OP_ADD, name, WEFT_SHAPE (s->dtype, s->rows, s->model->hidden_size),
               WEFT_USES (WEFT_R (a), WEFT_R (b), WEFT_W (sum)));
    return sum;
  }
  uint32_t y = room (s, &shape, name, mask);
  weft_emit (s, WEFT_OP_DROPOUT_ADD, name, shape,
             WEFT_USES (WEFT_R (a), WEFT_R (b), WEFT_W (y), WEFT_W (*mask)));
  return y;
}

uint32_t
weft_drop_backward (struct weft_step *s, enum weft_drop_site site, uint32_t dy, uint32_t mask)
{
  struct weft_shape shape = shape_of (s, site);

  if (mask == WEFT_NO_BUF)
    return dy;
  uint32_t dx =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, shape.dtype, elements (&shape), "dropout");
  weft_emit (s, WEFT_OP_DROPOUT_BWD, "dropout", shape,
             WEFT_USES (WEFT_R (dy), WEFT_R (mask), WEFT_W (dx)));
  return dx;
}
