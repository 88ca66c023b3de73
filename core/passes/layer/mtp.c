/* Multi-token prediction: after the last layer of the model follow extra layers, called depths.
 * Each depth predicts one token further ahead than the previous one (DeepSeek-V3, arXiv 2412.19437,
 * section 2.2; Megatron-Core multi_token_prediction.py). Depth d:
 *
 *   tokens d later -> embedding -> words_norm -.
 *   normed output of depth d - 1 -> stream_norm -+-> proj (2h to h) -> layer -> norm -> output
 *   layer
 *
 * All depths use the embedding and the output layer of the model. The stage with the output layer
 * has a copy of the embedding. The gradients of the copy and of the first stage's embedding are
 * added (optimizer/finish.c). The loss of a depth is the mean over tokens with a target; the last d
 * tokens of a sequence have no target. The gradient of this loss is scaled by
 * mtp_loss_scaling_factor / mtp_num_layers. Losses of depths are reported separately from the
 * model's loss.
 *
 * Megatron-Core shifts tokens on the GPU. Here the host copies shifted tokens to the device.
 *
 * Each tensor parallel rank has some rows of proj. The outputs are all-gathered. If
 * sequence_parallel is on, each rank then continues with its own tokens. */
#include "core/passes/layer/chunk.h"
#include "core/passes/layer/ends.h"

static uint32_t
layer_of (const struct weft_step *s, uint32_t depth)
{
  return (uint32_t) s->model->num_layers + depth - 1;
}

static struct weft_saved *
saved_at (struct weft_step *s, uint32_t micro, uint32_t depth)
{
  return &s->layer->saved[(size_t) micro * s->n_layers + weft_step_slot (s, layer_of (s, depth))];
}

/* ------------------------------------------------------------------------- the joint */

static struct weft_shape
concat_shape (const struct weft_step *s)
{
  return WEFT_SHAPE (s->product_dtype, s->rows, s->width.h, s->width.h);
}

static void
take_part (struct weft_step *s, uint32_t x, uint32_t y, uint32_t row_parts, uint32_t column_parts)
{
  weft_emit (s, WEFT_OP_TAKE_PART, "mtp_proj",
             WEFT_SHAPE (s->product_dtype, s->tokens, s->width.h, row_parts, column_parts),
             WEFT_USES (WEFT_R (x), WEFT_W (y)));
}

/* Input: this rank's columns for all rows. Returns the columns of all ranks for this rank's
 * rows. */
static uint32_t
gather_columns (struct weft_step *s, uint32_t part)
{
  uint32_t tp = s->mesh->tp;

  if (tp == 1)
    return part;
  uint32_t parts = weft_tensor_all_gather (s, part, "mtp_proj");
  uint32_t whole = weft_product (s, s->width.h, "mtp_proj");
  weft_emit (s, WEFT_OP_JOIN_COLUMNS, "mtp_proj",
             WEFT_SHAPE (s->product_dtype, s->tokens, s->width.h / tp, tp, 1),
             WEFT_USES (WEFT_R (parts), WEFT_W (whole)));
  if (!weft_tensor_scatters (s))
    return whole;
  uint32_t mine = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, s->rows * s->width.h,
                                    "mtp_proj");
  take_part (s, whole, mine, tp, 1);
  return mine;
}

/* Backward of gather_columns(): returns the gradient of this rank's columns. */
static uint32_t
scatter_columns (struct weft_step *s, uint32_t dy)
{
  uint32_t tp = s->mesh->tp;

  if (tp == 1)
    return dy;
  dy = weft_tensor_gather_rows (s, dy, "mtp_proj");
  uint32_t part = weft_product (s, s->width.h / tp, "mtp_proj");
  take_part (s, dy, part, 1, tp);
  return part;
}

/* Computes the input of the transformer layer from the embeddings and the previous depth's output.
 * Returns the input. */
static uint32_t
join (struct weft_step *s, struct weft_saved_mtp *m)
{
  uint64_t h = s->width.h;
  uint32_t words = weft_norm (s, "mtp_words_norm", WEFT_MTP_WORDS_NORM_WEIGHT, m->words),
           stream = weft_norm (s, "mtp_stream_norm", WEFT_MTP_STREAM_NORM_WEIGHT, m->stream);

  m->joined =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, s->rows * 2 * h, "mtp_joined");
  weft_emit (s, WEFT_OP_CONCAT, "mtp_joined", concat_shape (s),
             WEFT_USES (WEFT_R (words), WEFT_R (stream), WEFT_W (m->joined)));
  uint32_t y = weft_linear (s, "mtp_proj", WEFT_MTP_PROJ_WEIGHT, m->joined, h / s->mesh->tp, 2 * h);
  return weft_cast_to_residual (s, gather_columns (s, y), "mtp_proj");
}

/* Backward of join(). Sets parts[] to the gradients of the two norms' outputs: first of the
 * embeddings, then of the residual stream. */
static void
take_apart (struct weft_step *s, const struct weft_saved_mtp *m, uint32_t dy, uint32_t parts[2])
{
  uint64_t h = s->width.h;
  uint32_t dp = scatter_columns (s, weft_cast_to_compute (s, dy, "mtp_proj"));
  uint32_t dx = weft_linear_backward (s, "mtp_proj", WEFT_MTP_PROJ_WEIGHT, dp, m->joined,
                                      h / s->mesh->tp, 2 * h);

  for (int i = 0; i < 2; i++)
    parts[i] =
        weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, s->rows * h, "dmtp_joined");
  weft_emit (s, WEFT_OP_CONCAT_BWD, "mtp_joined", concat_shape (s),
             WEFT_USES (WEFT_R (dx), WEFT_W (parts[0]), WEFT_W (parts[1])));
}

/* ------------------------------------------------------------------------------ passes */

/* Appends the transformer layer of one multi-token prediction depth, with the ops that compute its
 * input. Used in forward and in recompute. */
static void
run_layer (struct weft_step *s, uint32_t micro, uint32_t depth)
{
  struct weft_saved_mtp *m = weft_mtp_saved (s, micro, depth);

  s->at.layer = layer_of (s, depth);
  uint32_t x = join (s, m);
  m->end.x = weft_layer_forward (s, layer_of (s, depth), x, saved_at (s, micro, depth));
  s->at.layer = layer_of (s, depth);
}

void
weft_mtp_forward (struct weft_step *s, uint32_t micro, uint32_t stream)
{
  for (uint32_t depth = 1; depth <= s->model->mtp_num_layers; depth++) {
    struct weft_saved_mtp *m = weft_mtp_saved (s, micro, depth);
    s->at.layer = layer_of (s, depth);
    weft_before_layer (s, layer_of (s, depth));
    m->end.depth = depth;
    m->stream = stream;
    m->words = weft_embed_words (s, &m->end);
    run_layer (s, micro, depth);
    stream = weft_norm_stream (s, "mtp_norm", WEFT_MTP_NORM_WEIGHT, m->end.x);
    m->end.normed = weft_cast (s, stream, s->product_dtype, "mtp_norm");
    weft_after_layer (s, layer_of (s, depth));
  }
  s->at.layer = WEFT_NO_LAYER;
}

static void
run_again (struct weft_step *s, uint32_t micro, uint32_t depth)
{
  struct weft_op at = weft_step_again (s);

  run_layer (s, micro, depth);
  s->at = at;
}

/* The embedding lookups of all multi-token prediction depths. Their gradients are added to one
 * operand, `table`. On the stage that holds the embedding, `table` comes from
 * weft_head_grad_begin(). On another stage, `table` is the gradient of that stage's copy of the
 * embedding. */
struct lookups {
  struct weft_use table;
  /* arrays by depth (extra prediction layer): buffers of token ids, and of gradients of their
   * embeddings */
  uint32_t *ids, *dx;
};

/* Adds the embedding gradient of one multi-token prediction depth (extra prediction layer). In
 * canonical order, the gradients of all depths of one piece of a sequence are one term of the sum.
 * One kernel therefore adds all depths after the backward of depth 1, which runs last. */
static void
words_gradient (struct weft_step *s, uint32_t depth, struct lookups *l)
{
  uint32_t n = (uint32_t) s->model->mtp_num_layers;
  struct weft_embed_lookup words = { l->ids[depth - 1], l->dx[depth - 1], 0 };

  if (s->canonical && depth > 1)
    return;
  if (s->canonical && n > 1)
    words = (struct weft_embed_lookup){ weft_ends_by_chunk (s, l->ids, n, "embedding"),
                                        weft_ends_by_chunk (s, l->dx, n, "embedding"), n };
  weft_embed_words_gradient (s, words, l->table, (struct weft_use) WEFT_RW (WEFT_NO_BUF));
  l->table.read = 1;
}

/* Backward of one multi-token prediction depth. dy_of[0] is the gradient of the depth's normed
 * output. Returns the gradient of the previous depth's normed output, which includes dy_of[1], its
 * gradient from the output layer. */
static uint32_t
depth_backward (struct weft_step *s, uint32_t micro, uint32_t depth, const uint32_t dy_of[2],
                struct lookups *lookups)
{
  struct weft_saved_mtp *m = weft_mtp_saved (s, micro, depth);
  uint32_t layer = layer_of (s, depth), parts[2];

  s->at.layer = s->backward_layer = layer;
  uint32_t dy = weft_norm_backward_apart (s, "mtp_norm", WEFT_MTP_NORM_WEIGHT, dy_of[0], m->end.x,
                                          WEFT_NO_BUF);
  if (weft_recomputes_mtp (s))
    run_again (s, micro, depth);
  dy = weft_layer_backward (s, layer, saved_at (s, micro, depth), dy);
  take_apart (s, m, dy, parts);
  uint32_t dwords = weft_norm_backward_apart (s, "mtp_words_norm", WEFT_MTP_WORDS_NORM_WEIGHT,
                                              parts[0], m->words, WEFT_NO_BUF);
  lookups->ids[depth - 1] = m->end.ids;
  lookups->dx[depth - 1] = weft_embed_words_backward (s, &m->end, dwords);
  words_gradient (s, depth, lookups);
  return weft_norm_backward_apart (s, "mtp_stream_norm", WEFT_MTP_STREAM_NORM_WEIGHT, parts[1],
                                   m->stream, dy_of[1]);
}

/* Returns the gradient of the embedding that multi-token prediction reads: the embedding itself, or
 * this stage's copy of it. */
static struct weft_use
begin_table (struct weft_step *s)
{
  return weft_step_has_embedding (s)
             ? weft_head_grad_begin (s)
             : weft_grad_begin (s, weft_params_of_end (s, WEFT_EMBED_WEIGHT));
}

static void
end_table (struct weft_step *s, struct weft_use table)
{
  if (weft_step_has_embedding (s))
    weft_head_grad_end (s, table);
  else
    weft_grad_end (s, weft_params_of_end (s, WEFT_EMBED_WEIGHT), table);
  weft_after_module (s, weft_params_of_end (s, WEFT_EMBED_WEIGHT));
}

uint32_t
weft_mtp_backward (struct weft_step *s, uint32_t micro, const uint32_t *dn)
{
  uint32_t depth = (uint32_t) s->model->mtp_num_layers, dy = dn[depth];
  g_autofree uint32_t *ids = g_new (uint32_t, depth + 1), *dx = g_new (uint32_t, depth + 1);

  if (depth == 0)
    return dy;
  struct lookups lookups = { begin_table (s), ids, dx };
  for (; depth > 0; depth--) {
    weft_before_layer (s, layer_of (s, depth));
    dy = depth_backward (s, micro, depth, (uint32_t[]){ dy, dn[depth - 1] }, &lookups);
    if (!weft_step_is_split (s))
      weft_layer_run_delayed_wgrads (s);
    weft_after_layer (s, layer_of (s, depth));
  }
  s->at.layer = WEFT_NO_LAYER;
  end_table (s, lookups.table);
  return dy;
}
