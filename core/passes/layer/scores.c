/* Attention as separate matrix products and a softmax (attention_backend = unfused), like
 * Megatron-Core's DotProductAttention:
 *
 *   qkv -> scores -> softmax -> p (-> dropout -> pd) -> context -> o
 *
 * Stored for backward: p, and with dropout pd and its mask. With 16-bit activations, a heads,
 * sequence length s and microbatch size b, these tensors have 2 a s^2 b bytes, or 5 a s^2 b bytes
 * with dropout (arXiv 2205.05198, section 4.1). If core_attn is recomputed, none of these tensors
 * is stored: p, pd and the mask are computed again when the backward of attention begins. The
 * product with the values is not computed again, because backward does not read its output. */
#include "core/passes/layer/attention.h"

static uint32_t
square (struct weft_step *s, const char *name)
{
  uint64_t n = s->tokens * s->width.heads * (uint64_t) s->model->seq_length;

  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, n, name);
}

static void
probabilities (struct weft_step *s, struct weft_saved *saved)
{
  uint32_t scores = square (s, "scores");

  weft_emit (s, WEFT_OP_SCORES, "scores", weft_attention_shape (s),
             WEFT_USES (WEFT_R (saved->qkv), WEFT_W (scores)));
  saved->p = square (s, "softmax");
  weft_emit (s, WEFT_OP_SOFTMAX, "softmax", weft_attention_shape (s),
             WEFT_USES (WEFT_R (scores), WEFT_W (saved->p)));
  uint32_t pd = weft_drop (s, WEFT_DROP_PROBABILITIES, saved->p, &saved->mask_p);
  saved->pd = pd == saved->p ? WEFT_NO_BUF : pd;
}

/* Returns the attention probabilities by which values are multiplied: pd if the layer has dropout,
 * p if it has none. */
static uint32_t
weights (const struct weft_saved *saved)
{
  return saved->pd == WEFT_NO_BUF ? saved->p : saved->pd;
}

void
weft_scores_forward (struct weft_step *s, struct weft_saved *saved)
{
  probabilities (s, saved);
  saved->o = weft_product (s, s->width.q, "context");
  weft_emit (s, WEFT_OP_WEIGHT_VALUES, "context", weft_attention_shape (s),
             WEFT_USES (WEFT_R (weights (saved)), WEFT_R (saved->qkv), WEFT_W (saved->o)));
}

void
weft_scores_backward (struct weft_step *s, struct weft_saved *saved, uint32_t d_o, uint32_t dqkv)
{
  if (weft_recomputes (s, WEFT_MODULE_CORE_ATTN)) {
    struct weft_op at = weft_step_again (s);
    probabilities (s, saved);
    s->at = at;
  }
  uint32_t dpd = square (s, "dcontext");
  weft_emit (s, WEFT_OP_WEIGHT_VALUES_BWD, "context", weft_attention_shape (s),
             WEFT_USES (WEFT_R (d_o), WEFT_R (saved->qkv), WEFT_W (dpd)));
  uint32_t dp = weft_drop_backward (s, WEFT_DROP_PROBABILITIES, dpd, saved->mask_p);
  weft_emit (s, WEFT_OP_SOFTMAX_BWD, "softmax", weft_attention_shape (s),
             WEFT_USES (WEFT_RW (dp), WEFT_R (saved->p)));
  weft_emit (s, WEFT_OP_SCORES_BWD, "scores", weft_attention_shape (s),
             WEFT_USES (WEFT_R (dp), WEFT_R (weights (saved)), WEFT_R (d_o), WEFT_R (saved->qkv),
                        WEFT_W (dqkv)));
}
