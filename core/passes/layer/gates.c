/* Multiplication of experts' inputs by router weights (moe_apply_probs_on_input), and the gate of
 * shared experts. */
#include "core/passes/layer/moe.h"

static struct weft_shape
rows_shape (const struct weft_step *s)
{
  struct weft_moe z = weft_moe_sizes (s);

  return WEFT_SHAPE (s->product_dtype, z.rows, z.h, z.local, weft_moe_stride (s, &z));
}

uint32_t
weft_moe_weigh (struct weft_step *s, struct weft_saved *saved)
{
  if (!s->model->moe_apply_probs_on_input)
    return saved->xp;
  saved->xw = weft_moe_rows (s, s->product_dtype, s->width.h, "weighed");
  weft_emit (s, WEFT_OP_MOE_WEIGH, "weigh", rows_shape (s),
             WEFT_USES (WEFT_R (saved->xp), WEFT_R (saved->pp), WEFT_R (saved->counts),
                        WEFT_W (saved->xw)));
  return saved->xw;
}

uint32_t
weft_moe_weigh_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dxw,
                         uint32_t *dpp)
{
  if (!s->model->moe_apply_probs_on_input || weft_moe_weighs_at_home (s))
    return dxw;
  uint32_t dxp = weft_moe_rows (s, s->product_dtype, s->width.h, "weighed");
  *dpp = weft_moe_rows (s, s->product_dtype, 1, "dpp");
  weft_emit (s, WEFT_OP_MOE_WEIGH_BWD, "weigh", rows_shape (s),
             WEFT_USES (WEFT_R (saved->xp), WEFT_R (saved->pp), WEFT_R (saved->counts),
                        WEFT_R (dxw), WEFT_W (dxp), WEFT_W (*dpp)));
  return dxp;
}

gboolean
weft_moe_weighs_at_home (const struct weft_step *s)
{
  return s->model->moe_apply_probs_on_input && s->canonical && s->mesh->etp > 1;
}

uint32_t
weft_moe_weigh_at_home (struct weft_step *s, const struct weft_saved *saved, uint32_t dxw,
                        uint32_t *dpp)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t x = weft_rows_pack (s, saved, weft_rows_tokens (s, "weigh"), saved->n2),
           p = weft_rows_pack (s, saved, weft_rows_weights (s, "weigh"), saved->prob),
           dx = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, z.sent * z.h,
                                  "weighed");

  *dpp = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, z.sent, "dpp");
  weft_emit (s, WEFT_OP_MOE_WEIGH_BWD, "weigh",
             WEFT_SHAPE (s->product_dtype, z.sent, z.h, z.experts, weft_moe_stride (s, &z)),
             WEFT_USES (WEFT_R (x), WEFT_R (p), WEFT_R (saved->sent), WEFT_R (dxw), WEFT_W (dx),
                        WEFT_W (*dpp)));
  return dx;
}

static struct weft_shape
gate_shape (const struct weft_step *s)
{
  return WEFT_SHAPE (s->product_dtype, s->rows, s->width.h);
}

uint32_t
weft_moe_gate (struct weft_step *s, struct weft_saved *saved, uint32_t y)
{
  if (!s->model->moe_shared_expert_gate)
    return y;
  saved->sy = y;
  saved->gate = weft_linear (s, "shared_gate", WEFT_SHARED_GATE_WEIGHT, saved->n2, 1, s->width.h);
  uint32_t gated = weft_moe_tokens (s, s->width.h, "gated");
  weft_emit (s, WEFT_OP_GATE, "gate", gate_shape (s),
             WEFT_USES (WEFT_R (y), WEFT_R (saved->gate), WEFT_W (gated)));
  return gated;
}

uint32_t
weft_moe_gate_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dy,
                        uint32_t *dn2)
{
  *dn2 = WEFT_NO_BUF;
  if (!s->model->moe_shared_expert_gate)
    return dy;
  uint32_t dsy = weft_moe_tokens (s, s->width.h, "dgated"),
           dlogit = weft_moe_tokens (s, 1, "dgate");
  weft_emit (s, WEFT_OP_GATE_BWD, "gate", gate_shape (s),
             WEFT_USES (WEFT_R (saved->sy), WEFT_R (saved->gate), WEFT_R (dy), WEFT_W (dsy),
                        WEFT_W (dlogit)));
  *dn2 = weft_linear_backward (s, "shared_gate", WEFT_SHARED_GATE_WEIGHT, dlogit, saved->n2, 1,
                               s->width.h);
  return dsy;
}
