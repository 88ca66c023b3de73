/* One transformer layer as kernels.
 *
 *   x -> norm1 -> n1 -> qkv (rope) -> attention -> o -> proj -> + x -> x1
 *   x1 -> norm2 -> n2 -> fc1 -> u -> activation -> a -> fc2 -> + x1 -> output
 *
 * With norm_placement = post, norm1 follows proj and norm2 follows fc2. With sandwich, norm1 and
 * norm2 are as in the diagram, attention_norm follows proj and mlp_norm follows fc2. With residual
 * = parallel, norm2 reads x instead of x1. With parallel_one_norm, fc1 reads n1.
 *
 * Stored for backward: x, n1, qkv, o, lse, x1, n2, u, a. In bytes, with 16-bit activations (s:
 * sequence length, b: microbatch size, h: hidden size, a: heads, k: key-value groups, f: MLP
 * width):
 *
 *   sbh (2 + 2 + 4k/a + 2 + 2 + 2 + 2 + 2 w f/h + 2 f/h) + 4 a s b, w = 2 with a gated MLP, else 1
 *
 * This is the "no dropout, flash attention" row of the published formulas (Korthikanti et al.,
 * arXiv 2205.05198, section 4). Backward recomputes norm statistics, so they are not stored.
 * Dropout adds a mask of sbh after attention and one after the MLP. Unfused attention stores 2 a
 * s^2 b in place of lse, and with dropout 3 a s^2 b more (scores.c).
 *
 * Selective recompute (Megatron-Core recompute_modules):
 *   mlp         stores only x1 for the MLP; norm2, fc1 and the activation run again when the
 *               backward of the MLP begins. fc2 does not run again, because backward does not read
 *               its output
 *   layernorm   n1 and n2 are computed again before the backward of the linear layer that reads
 *               them
 *   mla_up_proj queries, keys and values are computed again from latents: latent.c
 *   moe, moe_act, shared_experts: moe.c
 *
 * latent.c computes qkv of multi-latent attention. In a layer of experts moe.c replaces fc1 and
 * fc2.
 *
 * With delay_wgrad_compute, and in schedules with a split backward, the weight gradients of qkv,
 * proj, fc1 and fc2 are delayed, and their operands stay in memory until then. The gradient of the
 * residual stream is then a new buffer after each norm, because a delayed weight gradient still
 * reads the old buffer. */
#include "core/passes/layer/attention.h"
#include "core/passes/layer/chunk.h"
#include "core/passes/layer/nodes.h"

/* Returns the parameter of the norm that follows attention (`attention` TRUE) or the MLP
 * (FALSE). */
static enum weft_layer_param
output_norm (const struct weft_step *s, gboolean attention)
{
  if (s->model->norm_placement == WEFT_NORM_POST)
    return attention ? WEFT_NORM1_WEIGHT : WEFT_NORM2_WEIGHT;
  return attention ? WEFT_ATTENTION_NORM_WEIGHT : WEFT_MLP_NORM_WEIGHT;
}

static void
clear (struct weft_saved *saved)
{
  uint32_t *buf = (uint32_t *) (void *) saved;

  for (unsigned i = 0; i < sizeof *saved / sizeof *buf; i++)
    buf[i] = WEFT_NO_BUF;
}

uint32_t
weft_layer_output_norm (struct weft_step *s, gboolean attention, uint32_t y, uint32_t *made)
{
  const char *const names[] = { "mlp_norm", "attention_norm" };

  if (s->model->norm_placement == WEFT_NORM_PRE)
    return y;
  *made = y;
  return weft_norm_stream (s, names[attention], output_norm (s, attention), y);
}

uint32_t
weft_layer_output_norm_backward (struct weft_step *s, gboolean attention, uint32_t made,
                                 uint32_t dy)
{
  const char *const names[] = { "mlp_norm", "attention_norm" };

  if (s->model->norm_placement == WEFT_NORM_PRE)
    return dy;
  return weft_norm_backward_apart (s, names[attention], output_norm (s, attention), dy, made,
                                   WEFT_NO_BUF);
}

/* Returns the input of the qkv linear layer: the output of norm1, or the residual stream if there
 * is no such norm. */
static uint32_t
input (const struct weft_saved *saved)
{
  return saved->n1 != WEFT_NO_BUF ? saved->n1 : saved->x;
}

static void
attend (struct weft_step *s, struct weft_layer_pass *pass)
{
  const struct weft_widths *w = &s->width;
  struct weft_saved *saved = pass->saved;

  clear (saved);
  saved->x = pass->x;
  if (s->model->norm_placement != WEFT_NORM_POST)
    saved->n1 = weft_norm (s, "norm1", WEFT_NORM1_WEIGHT, pass->x);
  if (s->model->kv_lora_rank)
    weft_latent_forward (s, saved);
  else
    saved->qkv = weft_heads_gather (
        s, weft_linear (s, "qkv", WEFT_QKV_WEIGHT, input (saved), w->made, w->h));
  weft_layer_attention (s, saved);
  uint32_t p = weft_linear (s, "proj", WEFT_PROJ_WEIGHT, saved->o, w->h, w->own);
  p = weft_layer_output_norm (s, TRUE, weft_cast_to_residual (s, p, "proj"), &saved->made);
  pass->x = weft_residual (s, WEFT_DROP_ATTENTION, pass->x, p, &saved->mask_o);
  if (s->model->residual == WEFT_RESIDUAL_SEQUENTIAL)
    saved->x1 = pass->x;
  weft_after_module (s, weft_params_layer (s, WEFT_NORM1_WEIGHT));
}

/* Appends the recompute of norm1 for the backward of attention. If attention and MLP share one
 * norm, the backward of the MLP has already recomputed this norm. */
static void
normalise_again (struct weft_step *s, struct weft_saved *saved)
{
  gboolean done = s->model->residual == WEFT_RESIDUAL_ONE_NORM;

  if (s->model->norm_placement != WEFT_NORM_POST && !done &&
      weft_recomputes (s, WEFT_MODULE_LAYERNORM))
    saved->n1 = weft_norm_again (s, "norm1", WEFT_NORM1_WEIGHT, saved->x);
}

/* Ends the backward of a layer: sets pass->x to the gradient of the layer's input. dn1 is the
 * gradient of the attention block's input, or WEFT_NO_BUF if nothing below is trained. */
static void
leave_attention (struct weft_step *s, struct weft_layer_pass *pass, uint32_t dn1)
{
  const struct weft_saved *saved = pass->saved;

  if (dn1 == WEFT_NO_BUF) {
    pass->x = WEFT_NO_BUF;
    return;
  }
  if (s->model->residual == WEFT_RESIDUAL_ONE_NORM)
    dn1 = weft_stream_add (s, "dn1", weft_cast_to_residual (s, dn1, "norm1"),
                           weft_cast_to_residual (s, pass->beside, "norm1"));
  if (s->model->norm_placement == WEFT_NORM_POST)
    pass->x = weft_stream_add (s, "dresidual", weft_cast_to_residual (s, dn1, "qkv"), pass->x);
  else
    pass->x = weft_norm_backward (s, "norm1", WEFT_NORM1_WEIGHT, dn1, saved->x, pass->x);
}

/* Appends the backward of the output projection and what follows it. Returns the gradient of the
 * attention output, or WEFT_NO_BUF if nothing below is trained. */
static uint32_t
project_backward (struct weft_step *s, struct weft_layer_pass *pass)
{
  const struct weft_widths *w = &s->width;
  struct weft_saved *saved = pass->saved;
  uint32_t branch = s->model->residual == WEFT_RESIDUAL_SEQUENTIAL ? pass->x : pass->branch;

  weft_after_module (s, weft_params_of_mlp (s, pass->layer));
  uint32_t dp = weft_drop_backward (s, WEFT_DROP_ATTENTION, branch, saved->mask_o);
  dp = weft_layer_output_norm_backward (s, TRUE, saved->made, dp);
  return dp == WEFT_NO_BUF
             ? dp
             : weft_linear_backward (s, "proj", WEFT_PROJ_WEIGHT, dp, saved->o, w->h, w->own);
}

static void
attend_backward (struct weft_step *s, struct weft_layer_pass *pass)
{
  const struct weft_widths *w = &s->width;
  struct weft_saved *saved = pass->saved;
  uint32_t d_o = pass->x == WEFT_NO_BUF ? WEFT_NO_BUF : project_backward (s, pass);

  if (d_o == WEFT_NO_BUF) {
    pass->x = WEFT_NO_BUF;
    return;
  }
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
                                                                input (saved), w->made, w->h);
  leave_attention (s, pass, dn1);
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
  if (node == WEFT_NODE_ADD) {
    uint32_t y =
        weft_layer_output_norm (s, FALSE, weft_cast_to_residual (s, pass->mlp, "fc2"), &saved->mlp);
    pass->x = weft_residual (s, WEFT_DROP_MLP, pass->x, y, &saved->mask_y);
  }
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
  if (node == WEFT_N_NODE - 1)
    pass->branch = pass->x;
  if (weft_step_delays (s))
    s->at.phase = WEFT_PHASE_INPUT_GRAD;
  if (has_experts (s, pass))
    weft_moe_backward_node (s, pass, node);
  else if (node == WEFT_NODE_MLP)
    weft_layer_mlp_backward (s, pass);
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
