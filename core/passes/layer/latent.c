/* Multi-latent attention: queries, keys and values are computed from narrow latents (Megatron-Core
 * multi_latent_attention.py; DeepSeek-V2, arXiv 2405.04434, section 2.1).
 *
 *   n1 -> q_down -> ql -> norm -> qn -> q_up -> queries      (or n1 -> q_up without q_lora_rank)
 *   n1 -> kv_down -> split -> kl, key positions;  kl -> norm -> kn -> kv_up -> keys, values
 *   queries, keys, values, key positions -> join -> qkv
 *
 * Stored for backward besides qkv: ql, qn, kl, kn. If mla_up_proj is recomputed, kp (key positions)
 * is stored instead of qkv. All ops after the norms of latents then run again before the backward
 * of attention.
 *
 * Tensor parallel ranks have different heads: q_up and kv_up are cut by rows. Every rank has whole
 * copies of q_down, kv_down and both norms. If sequence_parallel is on, q_down and kv_down process
 * only the rank's own tokens. The inputs of q_up and kv_up, and the parts of keys with rotary
 * positions, are then all-gathered. The gradient of these parts of keys is a sum over all heads, so
 * each rank has a partial sum. */
#include "core/passes/layer/attention.h"
#include "core/passes/layer/moe.h"

static uint64_t
position_width (const struct weft_step *s)
{
  return s->model->qk_pos_emb_head_dim;
}

static uint64_t
query_width (const struct weft_step *s)
{
  return s->width.heads * s->model->kv_channels;
}

static uint64_t
up_width (const struct weft_step *s)
{
  return s->width.heads * (s->model->qk_head_dim + s->model->v_head_dim);
}

static uint32_t
latent_norm (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x,
             uint64_t columns)
{
  uint32_t y = weft_activation (s, columns, name);

  weft_emit (s, WEFT_OP_NORM, name, WEFT_SHAPE (s->dtype, s->rows, columns),
             WEFT_USES (WEFT_R (x), WEFT_R (weft_layer_weight (s, which)),
                        WEFT_R (weft_layer_weight (s, which + 1)), WEFT_W (y)));
  return weft_cast_to_compute (s, y, name);
}

static uint32_t
latent_norm_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                      uint32_t dy, uint32_t x, uint64_t columns)
{
  const uint32_t param[] = { weft_params_layer (s, which), weft_params_layer (s, which + 1) };
  struct weft_norm_operands o = { .x = x, .dresidual = WEFT_NO_BUF, .columns = columns };

  o.dy = weft_cast_to_residual (s, dy, name);
  o.dx = weft_activation (s, columns, name);
  weft_norm_gradients (s, name, param, &o);
  return weft_cast_to_compute (s, o.dx, name);
}

/* ------------------------------------------------------------------------- queries */

static void
query_latent (struct weft_step *s, struct weft_saved *saved)
{
  uint64_t rank = s->model->q_lora_rank;

  if (!rank)
    return;
  uint32_t down = weft_linear (s, "q_down", WEFT_Q_DOWN_WEIGHT, saved->n1, rank, s->width.h);
  saved->ql = weft_cast_to_residual (s, down, "q_down");
  saved->qn = latent_norm (s, "q_latent_norm", WEFT_Q_LATENT_NORM_WEIGHT, saved->ql, rank);
}

static uint32_t
queries (struct weft_step *s, const struct weft_saved *saved)
{
  uint64_t rank = s->model->q_lora_rank;

  return weft_linear (s, "q_up", WEFT_Q_UP_WEIGHT, rank ? saved->qn : saved->n1, query_width (s),
                      rank ? rank : s->width.h);
}

static uint32_t
queries_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dq)
{
  uint64_t rank = s->model->q_lora_rank, h = s->width.h;

  if (!rank)
    return weft_linear_backward (s, "q_up", WEFT_Q_UP_WEIGHT, dq, saved->n1, query_width (s), h);
  uint32_t dqn =
      weft_linear_backward (s, "q_up", WEFT_Q_UP_WEIGHT, dq, saved->qn, query_width (s), rank);
  uint32_t dql =
      latent_norm_backward (s, "q_latent_norm", WEFT_Q_LATENT_NORM_WEIGHT, dqn, saved->ql, rank);
  return weft_linear_backward (s, "q_down", WEFT_Q_DOWN_WEIGHT, dql, saved->n1, rank, h);
}

/* ----------------------------------------------------------------- keys and values */

static struct weft_shape
split_shape (const struct weft_step *s)
{
  return WEFT_SHAPE (s->product_dtype, s->rows, s->model->kv_lora_rank, position_width (s),
                     weft_tensor_scatters (s) ? s->mesh->tp : 0);
}

static void
key_latent (struct weft_step *s, struct weft_saved *saved)
{
  uint64_t rank = s->model->kv_lora_rank;
  uint32_t down = weft_linear (s, "kv_down", WEFT_KV_DOWN_WEIGHT, saved->n1,
                               rank + position_width (s), s->width.h);
  uint32_t latent = weft_moe_tokens (s, rank, "kv_latent"),
           transposed = weft_moe_tokens (s, position_width (s), "key_position");

  weft_emit (s, WEFT_OP_LATENT_SPLIT, "kv_split", split_shape (s),
             WEFT_USES (WEFT_R (down), WEFT_W (latent), WEFT_W (transposed)));
  saved->kp = weft_tensor_gather_rows (s, transposed, "key_position");
  saved->kl = weft_cast_to_residual (s, latent, "kv_latent");
  saved->kn = latent_norm (s, "kv_latent_norm", WEFT_KV_LATENT_NORM_WEIGHT, saved->kl, rank);
}

static uint32_t
keys_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dkv,
               uint32_t dposition)
{
  uint64_t rank = s->model->kv_lora_rank, all = rank + position_width (s);
  uint32_t dkn =
      weft_linear_backward (s, "kv_up", WEFT_KV_UP_WEIGHT, dkv, saved->kn, up_width (s), rank);
  uint32_t dkl =
      latent_norm_backward (s, "kv_latent_norm", WEFT_KV_LATENT_NORM_WEIGHT, dkn, saved->kl, rank);
  uint32_t ddown = weft_moe_tokens (s, all, "dkv_down");

  weft_emit (s, WEFT_OP_LATENT_SPLIT_BWD, "kv_split", split_shape (s),
             WEFT_USES (WEFT_R (dkl), WEFT_R (dposition), WEFT_W (ddown)));
  return weft_linear_backward (s, "kv_down", WEFT_KV_DOWN_WEIGHT, ddown, saved->n1, all,
                               s->width.h);
}

/* ---------------------------------------------------------------------------- heads */

static struct weft_shape
join_shape (const struct weft_step *s)
{
  return WEFT_SHAPE (s->product_dtype, s->tokens, s->width.heads, s->model->qk_head_dim,
                     position_width (s), s->model->v_head_dim);
}

static void
join (struct weft_step *s, struct weft_saved *saved)
{
  uint32_t q = queries (s, saved), kv = weft_linear (s, "kv_up", WEFT_KV_UP_WEIGHT, saved->kn,
                                                     up_width (s), s->model->kv_lora_rank);

  saved->qkv = weft_product (s, s->width.qkv, "qkv");
  weft_emit (s, WEFT_OP_LATENT_JOIN, "qkv_join", join_shape (s),
             WEFT_USES (WEFT_R (q), WEFT_R (kv), WEFT_R (saved->kp), WEFT_W (saved->qkv)));
}

void
weft_latent_forward (struct weft_step *s, struct weft_saved *saved)
{
  query_latent (s, saved);
  key_latent (s, saved);
  join (s, saved);
}

void
weft_latent_again (struct weft_step *s, struct weft_saved *saved)
{
  struct weft_op at = weft_step_again (s);

  join (s, saved);
  s->at = at;
}

uint32_t
weft_latent_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dqkv)
{
  uint32_t dq = weft_product (s, query_width (s), "dq"),
           dkv = weft_product (s, up_width (s), "dkv"),
           dposition = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, weft_tensor_partial (s),
                                         s->tokens * position_width (s), "dkey_position");
  struct weft_shape shape = join_shape (s);

  shape.dim[5] = s->leaves.attention;
  weft_emit (s, WEFT_OP_LATENT_JOIN_BWD, "qkv_join", shape,
             WEFT_USES (WEFT_R (dqkv), WEFT_W (dq), WEFT_W (dkv), WEFT_W (dposition)));
  dposition = weft_tensor_reduce_rows (s, dposition, "dkey_position");
  dposition = weft_cast_to_compute (s, dposition, "dkey_position");
  uint32_t of_queries = queries_backward (s, saved, dq),
           of_keys = keys_backward (s, saved, dkv, dposition);
  return weft_moe_add (s, "dn1", of_queries, of_keys);
}
