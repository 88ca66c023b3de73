/* One transformer layer as kernels.
 *
 *   x -> norm1 -> n1 -> qkv (rope) -> attention -> o -> proj -> + x -> x1
 *   x1 -> norm2 -> n2 -> fc1 -> u -> activation -> a -> fc2 -> + x1 -> output
 *
 * Kept for backward: x, n1, qkv, o, lse, x1, n2, u, a. In 16-bit bytes that is
 *
 *   sbh (2 + 2 + 4k/a + 2 + 2 + 2 + 2 + 2 w f/h + 2 f/h) + 4 a s b, w = 2 with a gated MLP, else 1
 *
 * the "no dropout, flash attention" row of the published formulas (Korthikanti et al., arXiv
 * 2205.05198, section 4).
 * Backward recomputes norm statistics at no cost here. Dropout adds a mask of sbh after attention
 * and one after the MLP. Unfused attention keeps 2 a s^2 b in place of lse, and with dropout 3 a
 * s^2 b more: scores.c.
 *
 * Selective recompute (Megatron-Core recompute_modules):
 *   mlp         keeps only x1 of the MLP; norm2, fc1 and the activation run again when its backward
 *               begins. fc2 does not: backward does not read its output
 *   layernorm   n1 and n2 are computed again right before the map that reads them
 *   mla_up_proj queries, keys and values from latents: latent.c
 *   moe, moe_act, shared_experts: moe.c
 *
 * Multi-latent attention makes qkv in latent.c. A layer of experts has moe.c in place of fc1 and
 * fc2.
 *
 * delay_wgrad_compute, and schedules with a split backward: weight gradients of the four maps are
 * delayed, with what they read. The gradient of the residual stream is then a new buffer after each
 * norm, because the old one is still to be read. */
#include "core/passes/layer/nodes.h"

static void
clear (struct weft_saved *saved)
{
  uint32_t *buf = (uint32_t *) (void *) saved;

  for (unsigned i = 0; i < sizeof *saved / sizeof *buf; i++)
    buf[i] = WEFT_NO_BUF;
}

static void
attend (struct weft_step *s, struct weft_layer_pass *pass)
{
  const struct weft_widths *w = &s->width;
  struct weft_saved *saved = pass->saved;

  clear (saved);
  saved->x = pass->x;
  saved->n1 = weft_norm (s, "norm1", WEFT_NORM1_WEIGHT, pass->x);
  if (s->model->kv_lora_rank)
    weft_latent_forward (s, saved);
  else
    saved->qkv =
        weft_heads_gather (s, weft_linear (s, "qkv", WEFT_QKV_WEIGHT, saved->n1, w->made, w->h));
  weft_layer_attention (s, saved);
  uint32_t p = weft_linear (s, "proj", WEFT_PROJ_WEIGHT, saved->o, w->h, w->own);
  saved->x1 = weft_residual (s, WEFT_DROP_ATTENTION, pass->x, weft_cast_to_residual (s, p, "proj"),
                             &saved->mask_o);
  weft_after_module (s, weft_params_layer (s, WEFT_NORM1_WEIGHT));
}

static void
normalise_again (struct weft_step *s, struct weft_saved *saved)
{
  if (weft_recomputes (s, WEFT_MODULE_LAYERNORM))
    saved->n1 = weft_norm_again (s, "norm1", WEFT_NORM1_WEIGHT, saved->x);
}

static void
attend_backward (struct weft_step *s, struct weft_layer_pass *pass)
{
  const struct weft_widths *w = &s->width;
  struct weft_saved *saved = pass->saved;

  weft_after_module (s, weft_params_layer (s, WEFT_NORM2_WEIGHT));
  uint32_t dp = weft_drop_backward (s, WEFT_DROP_ATTENTION, pass->x, saved->mask_o);
  uint32_t d_o = weft_linear_backward (s, "proj", WEFT_PROJ_WEIGHT, dp, saved->o, w->h, w->own);
  gboolean latent = weft_recomputes (s, WEFT_MODULE_MLA_UP_PROJ);
  if (latent) {
    normalise_again (s, saved);
    weft_latent_again (s, saved);
  }
  uint32_t dqkv = weft_layer_attention_backward (s, saved, d_o);
  if (!latent)
    normalise_again (s, saved);
  uint32_t dn1 = s->model->kv_lora_rank ? weft_latent_backward (s, saved, dqkv)
                                        : weft_linear_backward (s, "qkv", WEFT_QKV_WEIGHT,
                                                                weft_heads_scatter (s, dqkv),
                                                                saved->n1, w->made, w->h);
  pass->x = weft_norm_backward (s, "norm1", WEFT_NORM1_WEIGHT, dn1, saved->x, pass->x);
}

static gboolean
has_experts (const struct weft_step *s, const struct weft_layer_pass *pass)
{
  return weft_model_layer_is_moe (s->model, pass->layer);
}

void
weft_layer_forward_node (struct weft_step *s, struct weft_layer_pass *pass,
                         enum weft_layer_node node)
{
  struct weft_saved *saved = pass->saved;

  s->at.layer = pass->layer;
  if (node == WEFT_NODE_ATTENTION)
    attend (s, pass);
  if (has_experts (s, pass))
    weft_moe_forward_node (s, pass, node);
  else if (node == WEFT_NODE_MLP)
    pass->mlp = weft_layer_mlp (s, saved);
  if (node == WEFT_NODE_ADD)
    pass->x = weft_residual (s, WEFT_DROP_MLP, saved->x1,
                             weft_cast_to_residual (s, pass->mlp, "fc2"), &saved->mask_y);
  s->at.layer = WEFT_NO_LAYER;
}

uint32_t
weft_layer_forward (struct weft_step *s, uint32_t layer, uint32_t x, struct weft_saved *saved)
{
  struct weft_layer_pass pass = { .layer = layer, .saved = saved, .x = x };

  for (int node = 0; node < WEFT_N_NODE; node++)
    weft_layer_forward_node (s, &pass, node);
  return pass.x;
}

void
weft_layer_backward_node (struct weft_step *s, struct weft_layer_pass *pass,
                          enum weft_layer_node node)
{
  struct weft_op at = s->at;

  s->at.layer = pass->layer;
  if (weft_step_delays (s))
    s->at.phase = WEFT_PHASE_INPUT_GRAD;
  if (has_experts (s, pass))
    weft_moe_backward_node (s, pass, node);
  else if (node == WEFT_NODE_MLP)
    pass->x = weft_layer_mlp_backward (s, pass->saved, pass->x);
  if (node == WEFT_NODE_ATTENTION)
    attend_backward (s, pass);
  s->at = at;
}

uint32_t
weft_layer_backward (struct weft_step *s, uint32_t layer, struct weft_saved *saved, uint32_t dres)
{
  struct weft_layer_pass pass = { .layer = layer, .saved = saved, .x = dres };

  for (int node = WEFT_N_NODE; node-- > 0;)
    weft_layer_backward_node (s, &pass, node);
  return pass.x;
}
