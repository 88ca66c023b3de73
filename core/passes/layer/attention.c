/* Attention of a transformer layer, between the qkv and the output projection: norms of queries and
 * keys, rotary positions, attention. */
#include "core/passes/layer/attention.h"

static uint64_t
head_rows (const struct weft_step *s)
{
  return s->tokens * (s->width.heads + s->width.groups);
}

/* Whether there are fewer key-value groups than tensor parallel ranks. The rows of the qkv weight
 * are then cut into equal parts, and a cut may divide the keys and values of one group. The outputs
 * are all-gathered. Each rank copies its own queries, and the keys and values of the group that the
 * rank shares with other ranks. In backward the gradients are reduce-scattered (Megatron-Core
 * attention.py, get_query_key_value_tensors).
 *
 * Gradients of keys and values are sums over all queries of a group. In canonical order, each rank
 * that shares a group computes attention for the whole group, as a single rank does, and keeps its
 * own part of the output and of the gradient. For this computation, backward first all-gathers the
 * gradient of the attention output. */
static gboolean
shares_group (const struct weft_step *s)
{
  return s->mesh->tp > (uint32_t) s->model->num_query_groups;
}

static struct weft_shape
sharing_shape (const struct weft_step *s, enum weft_heads_taken taken)
{
  return WEFT_SHAPE (s->product_dtype, s->tokens, s->mesh->tp, s->model->num_attention_heads,
                     s->model->num_query_groups, s->model->kv_channels, taken);
}

static enum weft_heads_taken
taken (const struct weft_step *s)
{
  return s->width.together > 1 ? WEFT_HEADS_OF_GROUP : WEFT_HEADS_OWN;
}

uint32_t
weft_heads_gather (struct weft_step *s, uint32_t made)
{
  if (!shares_group (s))
    return made;
  uint32_t all = weft_tensor_all_gather (s, made, "qkv_heads"),
           qkv = weft_product (s, s->width.qkv, "qkv");
  weft_emit (s, WEFT_OP_TAKE_HEADS, "qkv_heads", sharing_shape (s, taken (s)),
             WEFT_USES (WEFT_R (all), WEFT_W (qkv)));
  return qkv;
}

uint32_t
weft_heads_scatter (struct weft_step *s, uint32_t dqkv)
{
  if (!shares_group (s))
    return dqkv;
  uint32_t parts = s->width.together > 1 ? 1 : s->mesh->tp,
           all = weft_product (s, s->width.made * parts, "dqkv_heads");
  weft_emit (s, WEFT_OP_PUT_HEADS, "qkv_heads", sharing_shape (s, taken (s)),
             WEFT_USES (WEFT_R (dqkv), WEFT_W (all)));
  if (parts == 1)
    return all;
  uint32_t mine = weft_tensor_reduce_scatter (s, all, "dqkv_heads");
  uint32_t sum = weft_build_last (s->b, WEFT_LANE_TP);
  /* matrix products computed in pieces read views of `mine`, so the next kernel needs an explicit
   * dependency */
  weft_next_kernel_waits_for (s, sum);
  return mine;
}

/* Copies this rank's columns of the attention output to saved->o. Used if ranks that share a
 * key-value group have computed attention for the whole group. */
static void
keep_own (struct weft_step *s, struct weft_saved *saved)
{
  if (s->width.together == 1)
    return;
  saved->whole_o = saved->o;
  saved->o = weft_product (s, s->width.own, "attention");
  weft_emit (s, WEFT_OP_TAKE_PART, "o_heads",
             WEFT_SHAPE (s->product_dtype, s->tokens, s->width.q, 1, s->width.together),
             WEFT_USES (WEFT_R (saved->whole_o), WEFT_W (saved->o)));
}

static uint32_t
gather_gradient (struct weft_step *s, uint32_t d_o)
{
  if (s->width.together == 1)
    return d_o;
  uint32_t all = weft_tensor_all_gather (s, d_o, "o_heads"),
           group = weft_product (s, s->width.q, "do");
  weft_emit (s, WEFT_OP_TAKE_HEADS, "o_heads", sharing_shape (s, WEFT_HEADS_QUERIES),
             WEFT_USES (WEFT_R (all), WEFT_W (group)));
  return group;
}

static struct weft_shape
head_norm_shape (const struct weft_step *s)
{
  return WEFT_SHAPE (s->product_dtype, head_rows (s), s->model->kv_channels,
                     s->model->qk_layernorm_whole ? s->width.heads + s->width.groups : 0);
}

static struct weft_shape
rope_shape (const struct weft_step *s)
{
  return WEFT_SHAPE (s->product_dtype, head_rows (s), s->model->kv_channels,
                     (uint64_t) weft_model_layer_is_local (s->model, s->at.layer));
}

static void
prepare_heads (struct weft_step *s, struct weft_saved *saved)
{
  const union weft_model *m = s->model;

  if (m->kv_lora_rank)
    return;
  if (m->qk_layernorm) {
    saved->raw = weft_product (s, head_rows (s) / s->tokens * m->kv_channels, "qk_raw");
    weft_emit (s, WEFT_OP_HEAD_NORM, "qk_norm", head_norm_shape (s),
               WEFT_USES (WEFT_RW (saved->qkv), WEFT_R (weft_layer_weight (s, WEFT_Q_NORM_WEIGHT)),
                          WEFT_R (weft_layer_weight (s, WEFT_K_NORM_WEIGHT)), WEFT_W (saved->raw)));
  }
  if (weft_model_layer_has_rope (m, s->at.layer))
    weft_emit (s, WEFT_OP_ROPE, "rope", rope_shape (s), WEFT_USES (WEFT_RW (saved->qkv)));
}

/* Hugging Face models check whether a batch of one sequence is packed. For the check the host reads
 * a number from the GPU (transformers modeling_flash_attention_utils.py). The setting
 * patch_is_packed_sequence removes the check. */
static void
check_packing (struct weft_step *s)
{
  if (s->strategy->distributed_config != WEFT_FSDP2 || s->strategy->patch_is_packed_sequence ||
      s->job->train.micro_batch_size > 1)
    return;
  uint32_t packed = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "packed");
  weft_emit (s, WEFT_OP_ZERO, "packed", WEFT_SHAPE (WEFT_FP32, 1), WEFT_USES (WEFT_W (packed)));
  weft_step_host_reads (s, "packed", packed);
}

static struct weft_attention_buffers
attention_of (const struct weft_saved *saved)
{
  return (struct weft_attention_buffers){ saved->qkv, saved->o, saved->lse, saved->whole_o };
}

static void
attend (struct weft_step *s, struct weft_saved *saved)
{
  if (s->strategy->attention_backend == WEFT_ATTENTION_UNFUSED) {
    weft_scores_forward (s, saved);
    return;
  }
  saved->o = weft_product (s, s->width.q, "attention");
  saved->lse =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_FP32, s->tokens * s->width.heads, "lse");
  if (s->mesh->cp > 1) {
    struct weft_attention_buffers a = attention_of (saved);
    weft_context_attention (s, &a);
    saved->qkv = a.qkv;
    saved->whole_o = a.whole_o;
    return;
  }
  weft_emit (s, WEFT_OP_ATTENTION, "attention", weft_attention_shape (s),
             WEFT_USES (WEFT_R (saved->qkv), WEFT_W (saved->o), WEFT_W (saved->lse)));
}

void
weft_layer_attention (struct weft_step *s, struct weft_saved *saved)
{
  prepare_heads (s, saved);
  check_packing (s);
  saved->whole_o = WEFT_NO_BUF;
  attend (s, saved);
  keep_own (s, saved);
}

/* Appends the input gradients of the norms of queries and keys, in place. */
static void
head_norm_dgrad (struct weft_step *s, const struct weft_saved *saved, uint32_t dqkv,
                 const uint32_t weight[2])
{
  weft_emit (
      s, WEFT_OP_HEAD_NORM_DGRAD, "qk_norm", head_norm_shape (s),
      WEFT_USES (WEFT_RW (dqkv), WEFT_R (saved->raw), WEFT_R (weight[0]), WEFT_R (weight[1])));
}

/* Appends the backward of the norms of queries and keys. The gradient of such a norm's weight is a
 * sum over all heads, so each tensor parallel rank has a partial sum. These partial sums are added
 * over the ranks like the partial sums over rows in norm.c. */
static void
head_norm_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dqkv)
{
  const uint32_t param[] = { weft_params_layer (s, WEFT_Q_NORM_WEIGHT),
                             weft_params_layer (s, WEFT_K_NORM_WEIGHT) };
  struct weft_use grad[2] = { weft_grad_begin (s, param[0]), weft_grad_begin (s, param[1]) };
  uint32_t weight[] = { weft_weight_read (s, param[0]), weft_weight_read (s, param[1]) };
  struct weft_shape shape = head_norm_shape (s);
  gboolean trained = weft_params_trains (s, param[0]);

  if (!trained)
    head_norm_dgrad (s, saved, dqkv, weight);
  else if (s->mesh->tp > 1 && s->canonical) {
    uint32_t all_dqkv = weft_tensor_all_gather (s, dqkv, "qk_norm"),
             all_raw = weft_tensor_all_gather (s, saved->raw, "qk_norm");
    shape.dim[2] = s->mesh->tp;
    shape.dim[3] = s->width.together > 1 ? s->width.together : 0;
    weft_emit (s, WEFT_OP_HEAD_NORM_WGRAD, "qk_norm", shape,
               WEFT_USES (WEFT_R (all_dqkv), WEFT_R (all_raw), grad[0], grad[1]));
    head_norm_dgrad (s, saved, dqkv, weight);
  } else {
    weft_emit (s, WEFT_OP_HEAD_NORM_BWD, "qk_norm", shape,
               WEFT_USES (WEFT_RW (dqkv), WEFT_R (saved->raw), WEFT_R (weight[0]),
                          WEFT_R (weight[1]), grad[0], grad[1]));
    for (int i = 0; i < 2; i++)
      weft_tensor_share_gradient (s, param[i], grad[i].buf);
  }
  weft_grad_end (s, param[0], grad[0]);
  weft_grad_end (s, param[1], grad[1]);
}

static void
prepare_heads_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dqkv)
{
  const union weft_model *m = s->model;

  if (m->kv_lora_rank)
    return;
  if (weft_model_layer_has_rope (m, s->at.layer))
    weft_emit (s, WEFT_OP_ROPE_BWD, "rope", rope_shape (s), WEFT_USES (WEFT_RW (dqkv)));
  if (!m->qk_layernorm)
    return;
  head_norm_backward (s, saved, dqkv);
}

uint32_t
weft_layer_attention_backward (struct weft_step *s, struct weft_saved *saved, uint32_t d_o)
{
  const struct weft_attention_buffers a = attention_of (saved);
  uint32_t o = saved->whole_o == WEFT_NO_BUF ? saved->o : saved->whole_o;
  uint32_t dqkv = weft_product (s, s->width.qkv, "dqkv");

  d_o = gather_gradient (s, d_o);
  if (s->strategy->attention_backend == WEFT_ATTENTION_UNFUSED)
    weft_scores_backward (s, saved, d_o, dqkv);
  else if (s->mesh->cp > 1)
    weft_context_attention_backward (s, &a, d_o, dqkv);
  else
    weft_emit (s, WEFT_OP_ATTENTION_BWD, "attention", weft_attention_shape (s),
               WEFT_USES (WEFT_R (saved->qkv), WEFT_R (o), WEFT_R (saved->lse), WEFT_R (d_o),
                          WEFT_W (dqkv)));
  prepare_heads_backward (s, saved, dqkv);
  return dqkv;
}
