/* Attention of a layer, between the two linear maps around it: q/k norm, rotary positions, scores,
 * softmax, values. */
#include "core/step.h"

static uint64_t
head_rows (const struct weft_step *s)
{
  return s->tokens * (s->width.heads + s->width.groups);
}

struct weft_shape
weft_attention_shape (const struct weft_step *s)
{
  const union weft_model *m = s->model;
  return WEFT_SHAPE (s->product_dtype, s->tokens / m->seq_length, m->seq_length, s->width.heads,
                     s->width.groups, m->kv_channels);
}

static void
turn_heads (struct weft_step *s, struct weft_saved *saved)
{
  const union weft_model *m = s->model;

  if (m->qk_layernorm) {
    saved->raw = weft_product (s, head_rows (s) / s->tokens * m->kv_channels, "qk_raw");
    weft_emit (s, WEFT_OP_HEAD_NORM, "qk_norm",
               WEFT_SHAPE (s->product_dtype, head_rows (s), m->kv_channels),
               WEFT_USES (WEFT_RW (saved->qkv), WEFT_R (weft_layer_weight (s, WEFT_Q_NORM_WEIGHT)),
                          WEFT_R (weft_layer_weight (s, WEFT_K_NORM_WEIGHT)), WEFT_W (saved->raw)));
  }
  if (m->position_embedding_type == WEFT_ROPE)
    weft_emit (s, WEFT_OP_ROPE, "rope",
               WEFT_SHAPE (s->product_dtype, head_rows (s), m->kv_channels),
               WEFT_USES (WEFT_RW (saved->qkv)));
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

void
weft_layer_attention (struct weft_step *s, struct weft_saved *saved)
{
  turn_heads (s, saved);
  ask_for_packing (s);
  if (s->strategy->attention_backend == WEFT_ATTENTION_UNFUSED) {
    weft_scores_forward (s, saved);
    return;
  }
  saved->o = weft_product (s, s->width.q, "attention");
  saved->lse =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_FP32, s->tokens * s->width.heads, "lse");
  weft_emit (s, WEFT_OP_ATTENTION, "attention", weft_attention_shape (s),
             WEFT_USES (WEFT_R (saved->qkv), WEFT_W (saved->o), WEFT_W (saved->lse)));
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

uint32_t
weft_layer_attention_backward (struct weft_step *s, struct weft_saved *saved, uint32_t d_o)
{
  uint32_t dqkv = weft_product (s, s->width.qkv, "dqkv");

  if (s->strategy->attention_backend == WEFT_ATTENTION_UNFUSED)
    weft_scores_backward (s, saved, d_o, dqkv);
  else
    weft_emit (s, WEFT_OP_ATTENTION_BWD, "attention", weft_attention_shape (s),
               WEFT_USES (WEFT_R (saved->qkv), WEFT_R (saved->o), WEFT_R (saved->lse), WEFT_R (d_o),
                          WEFT_W (dqkv)));
  turn_heads_backward (s, saved, dqkv);
  return dqkv;
}
