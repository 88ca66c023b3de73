/* The two ends of the pipeline: tokens and embedding on the first stage, final norm, head and loss
 * on the last. */
#include "core/passes/step.h"

static uint32_t
end_weight (struct weft_step *s, enum weft_end_param which)
{
  return weft_params_weight (s, s->end_param[which]);
}

/* The output head: its own matrix, or the embedding when both are on one stage. */
static uint32_t
head_param (const struct weft_step *s)
{
  uint32_t own = s->end_param[WEFT_HEAD_WEIGHT];
  return own != WEFT_NO_PARAM ? own : s->end_param[WEFT_EMBED_WEIGHT];
}

/* Tokens of the next microbatch come while this one computes, not earlier: their memory is then
 * free of whoever had it before. */
static uint32_t
load (struct weft_step *s, const char *name)
{
  uint32_t buf = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_INT32, s->tokens, name);

  weft_emit_on (s, WEFT_LANE_H2D,
                (struct weft_op){ .kind = WEFT_OP_COPY_IN, .name = weft_build_name (s->b, name) },
                WEFT_SHAPE (WEFT_INT32, s->tokens), WEFT_USES (WEFT_W (buf)));
  weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_GPU));
  return buf;
}

void
weft_ends_load (struct weft_step *s, const struct weft_cell *cell)
{
  struct weft_op at = s->at;

  s->at.micro = cell->micro;
  s->at.chunk = cell->chunk;
  s->at.phase = WEFT_PHASE_FORWARD;
  if (s->chunk[cell->chunk].embedding)
    s->saved_end[cell->micro].ids = load (s, "ids");
  if (s->chunk[cell->chunk].head)
    s->saved_end[cell->micro].targets = load (s, "targets");
  s->at = at;
}

static void
leave_embedding (struct weft_step *s)
{
  weft_step_through (s, s->end_param[WEFT_EMBED_WEIGHT]);
  weft_step_through (s, s->end_param[WEFT_POSITION_WEIGHT]);
}

static void
leave_head (struct weft_step *s)
{
  weft_step_through (s, s->end_param[WEFT_FINAL_NORM_WEIGHT]);
  weft_step_through (s, head_param (s));
}

/* Ranks that share the vocabulary out look up what they have; what they find is added, and after
 * that positions, which all of them have. */
static uint32_t
join_words (struct weft_step *s, uint32_t x, uint32_t positions)
{
  uint64_t h = s->model->hidden_size;

  if (positions == WEFT_NO_BUF)
    return weft_tensor_reduce_rows (s, x, "embedding");
  weft_tensor_all_reduce (s, x, WEFT_REDUCE_SUM, "embedding");
  uint32_t y = weft_tensor_scatters (s) ? weft_activation (s, h, "embedding") : x;
  weft_emit (s, WEFT_OP_ADD_POSITIONS, "positions",
             WEFT_SHAPE (s->dtype, s->tokens, h, s->tokens / s->rows),
             WEFT_USES (WEFT_R (x), WEFT_R (positions), WEFT_W (y)));
  return y;
}

uint32_t
weft_embed_forward (struct weft_step *s, uint32_t micro)
{
  uint64_t h = s->model->hidden_size;
  uint32_t x = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->dtype, s->tokens * h, "embedding");
  uint32_t table = end_weight (s, WEFT_EMBED_WEIGHT),
           positions = end_weight (s, WEFT_POSITION_WEIGHT);
  gboolean shared = s->mesh->tp > 1;

  weft_emit (s, WEFT_OP_EMBED, "embedding", WEFT_SHAPE (s->dtype, s->tokens, h),
             WEFT_USES (WEFT_R (s->saved_end[micro].ids), WEFT_R (table),
                        WEFT_R (shared ? WEFT_NO_BUF : positions), WEFT_W (x)));
  if (shared)
    x = join_words (s, x, positions);
  leave_embedding (s);
  return weft_drop (s, WEFT_DROP_EMBEDDING, x, &s->saved_end[micro].mask);
}

/* What comes before the backward of a unit gathers it (megatron_fsdp.py, _pre_backward), though this
 * one reads no weights. */
static void
gather_unread (struct weft_step *s, uint32_t param)
{
  if (param != WEFT_NO_PARAM && s->bucket[s->layout.place[param].bucket].unit)
    weft_params_weight (s, param);
}

void
weft_embed_backward (struct weft_step *s, uint32_t micro, uint32_t dx)
{
  uint32_t table = s->end_param[WEFT_EMBED_WEIGHT], position = s->end_param[WEFT_POSITION_WEIGHT];
  gather_unread (s, table);
  gather_unread (s, position);
  dx = weft_drop_backward (s, WEFT_DROP_EMBEDDING, dx, s->saved_end[micro].mask);
  dx = weft_tensor_gather_rows (s, dx, "embedding");
  struct weft_use dtable = weft_grad_begin (s, table), dposition = weft_grad_begin (s, position);
  struct weft_shape shape = WEFT_SHAPE (s->dtype, s->tokens, s->model->hidden_size);

  shape.out_dtype = s->grad_dtype;
  weft_emit (s, WEFT_OP_EMBED_BWD, "embedding", shape,
             WEFT_USES (WEFT_R (s->saved_end[micro].ids), WEFT_R (dx), dtable, dposition));
  weft_grad_end (s, position, dposition);
  weft_grad_end (s, table, dtable);
  leave_embedding (s);
}

void
weft_head_forward (struct weft_step *s, uint32_t micro, uint32_t x)
{
  uint64_t h = s->model->hidden_size, v = s->width.vocab;
  struct weft_saved_end *end = &s->saved_end[micro];

  end->x = x;
  end->normed = weft_activation (s, h, "final_norm");
  weft_emit (s, WEFT_OP_NORM, "final_norm", WEFT_SHAPE (s->dtype, s->rows, h),
             WEFT_USES (WEFT_R (x), WEFT_R (end_weight (s, WEFT_FINAL_NORM_WEIGHT)),
                        WEFT_R (end_weight (s, WEFT_FINAL_NORM_BIAS)), WEFT_W (end->normed)));
  end->normed = weft_cast (s, end->normed, s->product_dtype, "final_norm");
  uint32_t all = weft_tensor_gather_rows (s, end->normed, "head");
  end->logits = weft_product (s, v, "logits");
  weft_emit (s, WEFT_OP_MATMUL, "head", WEFT_SHAPE (s->product_dtype, s->tokens, v, h),
             WEFT_USES (WEFT_R (all), WEFT_R (weft_cast_weight (s, head_param (s))),
                        WEFT_R (WEFT_NO_BUF), WEFT_W (end->logits)));
  weft_loss_forward (s, end);
  leave_head (s);
}

static void
head_wgrad (struct weft_step *s, uint32_t micro, uint32_t normed)
{
  const struct weft_saved_end *end = &s->saved_end[micro];
  uint32_t own = s->end_param[WEFT_HEAD_WEIGHT];
  struct weft_use dw = own == WEFT_NO_PARAM ? weft_head_grad_begin (s) : weft_grad_begin (s, own);
  struct weft_shape shape =
      WEFT_SHAPE (s->product_dtype, s->tokens, s->width.vocab, s->model->hidden_size);

  shape.out_dtype = s->grad_dtype;
  weft_emit (s, WEFT_OP_MATMUL_WGRAD, "head", shape,
             WEFT_USES (WEFT_R (end->logits), WEFT_R (normed), dw, WEFT_RW (WEFT_NO_BUF)));
  if (own == WEFT_NO_PARAM)
    weft_head_grad_end (s, dw);
  else
    weft_grad_end (s, own, dw);
}

void
weft_head_delayed (struct weft_step *s, uint32_t micro)
{
  head_wgrad (s, micro, weft_tensor_gather_rows (s, s->saved_end[micro].normed, "head"));
}

/* Whether the weight gradient of this microbatch comes at the end. */
static gboolean
defer (struct weft_step *s, uint32_t micro)
{
  int64_t most = s->strategy->wgrad_deferral_limit;

  if (!s->strategy->defer_embedding_wgrad_compute || (most && s->deferred->len >= most))
    return FALSE;
  g_array_append_val (s->deferred, micro);
  return TRUE;
}

void
weft_head_deferred (struct weft_step *s)
{
  struct weft_op at = s->at;

  if (s->deferred->len == 0)
    return;
  s->at.layer = WEFT_NO_LAYER;
  s->at.chunk = weft_step_head (s) - s->chunk;
  s->at.phase = WEFT_PHASE_WEIGHT_GRAD;
  for (guint i = 0; i < s->deferred->len; i++) {
    s->at.micro = g_array_index (s->deferred, uint32_t, i);
    weft_head_delayed (s, s->at.micro);
  }
  s->at = at;
}

/* Tokens the loss is a mean over: those of this rank, where the reduction divides by the replicas
 * (Megatron-Core; average_in_collective); of all ranks in canonical order, which divides once.  A loss
 * per token is a sum, whose gradients finish.c divides. */
static uint64_t
mean_over (const struct weft_step *s)
{
  gboolean all = s->canonical && !s->strategy->average_in_collective;
  if (s->strategy->calculate_per_token_loss)
    return 1;
  return s->tokens * s->n_micro * (all ? weft_mesh_group_size (s->mesh, WEFT_GROUP_DP) : 1);
}

/* Megatron-Core multiplies the loss by grad_scale_func before it asks for gradients
 * (pipeline_parallel/schedules.py, backward_step): they begin with the scale. */
static uint32_t
loss_gradient (struct weft_step *s)
{
  if (!s->scales_loss)
    return WEFT_NO_BUF;
  uint32_t gradient = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "loss_gradient");
  weft_emit (s, WEFT_OP_SCALE_LOSS, "grad_scale_func", WEFT_SHAPE (WEFT_FP32, 1),
             WEFT_USES (WEFT_W (gradient)));
  return gradient;
}

uint32_t
weft_head_backward (struct weft_step *s, uint32_t micro)
{
  const struct weft_saved_end *end = &s->saved_end[micro];
  uint64_t h = s->model->hidden_size, v = s->width.vocab;
  struct weft_shape shape = WEFT_SHAPE (s->product_dtype, s->tokens, v, h, s->vocab_leaves);
  uint32_t gradient = loss_gradient (s);
  gboolean later = weft_step_is_split (s) || defer (s, micro);

  weft_emit (s, WEFT_OP_XENT_BWD, "loss",
             WEFT_SHAPE (s->product_dtype, s->tokens, v, mean_over (s), s->model->vocab_size),
             WEFT_USES (WEFT_RW (end->logits), WEFT_R (end->targets), WEFT_R (end->lse),
                        WEFT_R (gradient)));
  uint32_t normed = end->normed;
  if (!later)
    normed = weft_tensor_gather_rows (s, normed, "head");
  shape.out_dtype = weft_tensor_partial (s);
  uint32_t dn = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, shape.out_dtype, s->tokens * h, "head");
  weft_emit (
      s, WEFT_OP_MATMUL_DGRAD, "head", shape,
      WEFT_USES (WEFT_R (end->logits), WEFT_R (weft_cast_weight (s, head_param (s))), WEFT_W (dn)));
  dn = weft_tensor_reduce_rows (s, dn, "head");
  if (!later)
    head_wgrad (s, micro, normed);
  struct weft_norm_operands o = { .x = end->x, .dresidual = WEFT_NO_BUF };
  const uint32_t norm[] = { s->end_param[WEFT_FINAL_NORM_WEIGHT],
                            s->end_param[WEFT_FINAL_NORM_BIAS] };
  dn = weft_inward (s, dn, "final_norm");
  o.dy = weft_cast (s, dn, s->dtype, "final_norm");
  o.dx = weft_activation (s, h, "dresidual");
  weft_norm_gradients (s, "final_norm", norm, &o);
  leave_head (s);
  return o.dx;
}
