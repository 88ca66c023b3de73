/* The two ends of the pipeline: tokens and embedding on the first stage, final norm, head and loss
 * on the last. */
#include "core/step.h"

static uint32_t
activation (struct weft_step *s, uint64_t columns, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->dtype, s->tokens * columns, name);
}

static uint32_t
product (struct weft_step *s, uint64_t columns, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, s->tokens * columns, name);
}

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

uint32_t
weft_embed_forward (struct weft_step *s, uint32_t micro)
{
  uint32_t x = activation (s, s->model->hidden_size, "embedding");

  weft_emit (s, WEFT_OP_EMBED, "embedding", WEFT_SHAPE (s->dtype, s->tokens, s->model->hidden_size),
             WEFT_USES (WEFT_R (s->saved_end[micro].ids),
                        WEFT_R (end_weight (s, WEFT_EMBED_WEIGHT)),
                        WEFT_R (end_weight (s, WEFT_POSITION_WEIGHT)), WEFT_W (x)));
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
  uint64_t h = s->model->hidden_size, v = s->model->vocab_size;
  struct weft_saved_end *end = &s->saved_end[micro];

  end->x = x;
  end->normed = activation (s, h, "final_norm");
  weft_emit (s, WEFT_OP_NORM, "final_norm", WEFT_SHAPE (s->dtype, s->tokens, h),
             WEFT_USES (WEFT_R (x), WEFT_R (end_weight (s, WEFT_FINAL_NORM_WEIGHT)),
                        WEFT_R (end_weight (s, WEFT_FINAL_NORM_BIAS)), WEFT_W (end->normed)));
  end->normed = weft_cast (s, end->normed, s->product_dtype, "final_norm");
  end->logits = product (s, v, "logits");
  weft_emit (s, WEFT_OP_MATMUL, "head", WEFT_SHAPE (s->product_dtype, s->tokens, v, h),
             WEFT_USES (WEFT_R (end->normed), WEFT_R (weft_cast_weight (s, head_param (s))),
                        WEFT_R (WEFT_NO_BUF), WEFT_W (end->logits)));
  end->lse = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_FP32, s->tokens, "loss_lse");
  weft_emit (s, WEFT_OP_XENT, "loss", WEFT_SHAPE (s->product_dtype, s->tokens, v),
             WEFT_USES (WEFT_R (end->logits), WEFT_R (end->targets), WEFT_W (end->lse),
                        WEFT_RW (s->count), WEFT_RW (s->loss)));
  leave_head (s);
}

static void
head_wgrad (struct weft_step *s, const struct weft_saved_end *end)
{
  uint32_t own = s->end_param[WEFT_HEAD_WEIGHT];
  struct weft_use dw = own == WEFT_NO_PARAM ? weft_head_grad_begin (s) : weft_grad_begin (s, own);
  struct weft_shape shape =
      WEFT_SHAPE (s->product_dtype, s->tokens, s->model->vocab_size, s->model->hidden_size);

  shape.out_dtype = s->grad_dtype;
  weft_emit (s, WEFT_OP_MATMUL_WGRAD, "head", shape,
             WEFT_USES (WEFT_R (end->logits), WEFT_R (end->normed), dw, WEFT_RW (WEFT_NO_BUF)));
  if (own == WEFT_NO_PARAM)
    weft_head_grad_end (s, dw);
  else
    weft_grad_end (s, own, dw);
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

uint32_t
weft_head_backward (struct weft_step *s, uint32_t micro)
{
  const struct weft_saved_end *end = &s->saved_end[micro];
  uint64_t h = s->model->hidden_size, v = s->model->vocab_size;

  weft_emit (s, WEFT_OP_XENT_BWD, "loss",
             WEFT_SHAPE (s->product_dtype, s->tokens, v, mean_over (s)),
             WEFT_USES (WEFT_RW (end->logits), WEFT_R (end->targets), WEFT_R (end->lse)));
  uint32_t dn = product (s, h, "head");
  weft_emit (
      s, WEFT_OP_MATMUL_DGRAD, "head", WEFT_SHAPE (s->product_dtype, s->tokens, v, h),
      WEFT_USES (WEFT_R (end->logits), WEFT_R (weft_cast_weight (s, head_param (s))), WEFT_W (dn)));
  head_wgrad (s, end);
  uint32_t w = s->end_param[WEFT_FINAL_NORM_WEIGHT], bias = s->end_param[WEFT_FINAL_NORM_BIAS];
  struct weft_use dw = weft_grad_begin (s, w), db = weft_grad_begin (s, bias);
  uint32_t dx = activation (s, h, "dresidual");
  dn = weft_cast (s, dn, s->dtype, "final_norm");
  weft_emit (s, WEFT_OP_NORM_BWD, "final_norm", WEFT_SHAPE (s->dtype, s->tokens, h),
             WEFT_USES (WEFT_R (dn), WEFT_R (end->x), WEFT_R (weft_params_weight (s, w)),
                        WEFT_R (WEFT_NO_BUF), WEFT_W (dx), dw, db));
  weft_grad_end (s, w, dw);
  weft_grad_end (s, bias, db);
  leave_head (s);
  return dx;
}
