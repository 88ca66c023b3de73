/* What precedes and follows the transformer layers: tokens and embedding on the first stage; final
 * norm, output layer and loss on the last stage. */
#include "core/passes/layer/ends.h"
#include "core/job/loss.h"

static uint32_t
end_weight (struct weft_step *s, enum weft_end_param which)
{
  return weft_weight_read (s, weft_params_of_end (s, which));
}

uint32_t
weft_head_param (const struct weft_step *s)
{
  uint32_t own = weft_params_of_end (s, WEFT_HEAD_WEIGHT);
  return own != WEFT_NO_PARAM ? own : weft_params_of_end (s, WEFT_EMBED_WEIGHT);
}

/* Copies the tokens of a microbatch to the device. The copy waits for the kernels appended so far,
 * because they may still use the memory of the copy's buffer. The copy therefore overlaps only
 * kernels that are appended later. */
static uint32_t
load (struct weft_step *s, const char *name, uint64_t ahead)
{
  uint32_t buf = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_INT32, s->tokens, name);

  weft_emit_on (s, WEFT_LANE_H2D,
                (struct weft_op){ .kind = WEFT_OP_COPY_IN, .name = weft_build_name (s->b, name) },
                WEFT_SHAPE (WEFT_INT32, s->tokens, ahead), WEFT_USES (WEFT_W (buf)));
  weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_GPU));
  return buf;
}

static void
load_targets (struct weft_step *s, struct weft_saved_end *end, uint64_t ahead)
{
  end->targets = load (s, "targets", ahead);
  end->arrived = weft_build_last (s->b, WEFT_LANE_H2D);
}

void
weft_ends_load (struct weft_step *s, const struct weft_cell *cell)
{
  struct weft_op at = s->at;

  s->at.micro = cell->micro;
  s->at.chunk = cell->chunk;
  s->at.phase = WEFT_PHASE_FORWARD;
  if (s->chunk[cell->chunk].embedding)
    s->layer->saved_end[cell->micro].ids = load (s, "ids", 0);
  if (s->chunk[cell->chunk].head)
    load_targets (s, &s->layer->saved_end[cell->micro], 0);
  for (uint32_t depth = 1; depth <= s->chunk[cell->chunk].n_mtp; depth++) {
    struct weft_saved_end *end = &weft_mtp_saved (s, cell->micro, depth)->end;
    end->ids = load (s, "ids", depth);
    load_targets (s, end, depth);
  }
  s->at = at;
}

static void
leave_embedding (struct weft_step *s)
{
  weft_after_module (s, weft_params_of_end (s, WEFT_EMBED_WEIGHT));
  weft_after_module (s, weft_params_of_end (s, WEFT_POSITION_WEIGHT));
  weft_after_module (s, weft_params_of_end (s, WEFT_EMBED_NORM_WEIGHT));
}

/* Returns the normed embeddings. Returns x if the model has no norm after the embedding. */
static uint32_t
normalise_words (struct weft_step *s, uint32_t x)
{
  uint64_t h = s->model->hidden_size;

  if (weft_params_of_end (s, WEFT_EMBED_NORM_WEIGHT) == WEFT_NO_PARAM)
    return x;
  uint32_t y = weft_activation (s, h, "embedding_norm");
  weft_emit (s, WEFT_OP_NORM, "embedding_norm", WEFT_SHAPE (s->dtype, s->rows, h),
             WEFT_USES (WEFT_R (x), WEFT_R (end_weight (s, WEFT_EMBED_NORM_WEIGHT)),
                        WEFT_R (end_weight (s, WEFT_EMBED_NORM_BIAS)), WEFT_W (y)));
  return y;
}

static uint32_t
normalise_words_backward (struct weft_step *s, const struct weft_saved_end *end, uint32_t dy)
{
  const uint32_t param[] = { weft_params_of_end (s, WEFT_EMBED_NORM_WEIGHT),
                             weft_params_of_end (s, WEFT_EMBED_NORM_BIAS) };
  struct weft_norm_operands o = { .dy = dy, .x = end->embedded, .dresidual = WEFT_NO_BUF };

  if (param[0] == WEFT_NO_PARAM)
    return dy;
  o.dx = weft_activation (s, s->model->hidden_size, "dembedding");
  weft_norm_gradients (s, "embedding_norm", param, &o);
  return o.dx;
}

static void
leave_head (struct weft_step *s)
{
  weft_after_module (s, weft_params_of_end (s, WEFT_FINAL_NORM_WEIGHT));
  weft_after_module (s, weft_head_param (s));
}

/* Adds the embeddings that all tensor parallel ranks have looked up. Each rank has only looked up
 * the words of its part of the vocabulary. Then adds the position embeddings, of which every rank
 * has a copy. */
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
weft_embed_words (struct weft_step *s, struct weft_saved_end *end)
{
  uint64_t h = s->model->hidden_size;
  uint32_t x = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->dtype, s->tokens * h, "embedding");
  uint32_t table = end_weight (s, WEFT_EMBED_WEIGHT),
           positions = end_weight (s, WEFT_POSITION_WEIGHT);
  gboolean shared = s->mesh->tp > 1;

  weft_emit (s, WEFT_OP_EMBED, "embedding", WEFT_SHAPE (s->dtype, s->tokens, h),
             WEFT_USES (WEFT_R (end->ids), WEFT_R (table),
                        WEFT_R (shared ? WEFT_NO_BUF : positions), WEFT_W (x)));
  if (shared)
    x = join_words (s, x, positions);
  end->embedded = x;
  x = normalise_words (s, x);
  leave_embedding (s);
  return weft_drop (s, WEFT_DROP_EMBEDDING, x, &end->mask);
}

uint32_t
weft_embed_forward (struct weft_step *s, uint32_t micro)
{
  return weft_embed_words (s, &s->layer->saved_end[micro]);
}

uint32_t
weft_embed_words_backward (struct weft_step *s, const struct weft_saved_end *end, uint32_t dx)
{
  dx = weft_drop_backward (s, WEFT_DROP_EMBEDDING, dx, end->mask);
  dx = normalise_words_backward (s, end, dx);
  return weft_tensor_gather_rows (s, dx, "embedding");
}

void
weft_embed_words_gradient (struct weft_step *s, struct weft_embed_lookup words,
                           struct weft_use table, struct weft_use positions)
{
  struct weft_shape shape =
      WEFT_SHAPE (s->dtype, s->tokens * MAX (1, words.passes), s->model->hidden_size, words.passes);

  shape.out_dtype = s->grad_dtype;
  weft_emit (s, WEFT_OP_EMBED_BWD, "embedding", shape,
             WEFT_USES (WEFT_R (words.ids), WEFT_R (words.dx), table, positions));
}

/* The backward of the norm after a frozen embedding, if that norm is trained. */
static void
norm_words_backward (struct weft_step *s, const struct weft_saved_end *end, uint32_t dx)
{
  if (weft_params_trains (s, weft_params_of_end (s, WEFT_EMBED_NORM_WEIGHT)))
    normalise_words_backward (s, end, weft_drop_backward (s, WEFT_DROP_EMBEDDING, dx, end->mask));
}

void
weft_embed_backward (struct weft_step *s, uint32_t micro, uint32_t dx)
{
  uint32_t table = weft_params_of_end (s, WEFT_EMBED_WEIGHT),
           position = weft_params_of_end (s, WEFT_POSITION_WEIGHT);
  /* Megatron-FSDP all-gathers the embedding's FSDP unit before this backward, although no kernel
   * reads the unit (megatron_fsdp.py, _pre_backward). */
  weft_weight_gather_unread (s, table);
  weft_weight_gather_unread (s, position);
  if (!weft_job_trains (s->job, WEFT_FREEZE_EMBEDDING)) {
    norm_words_backward (s, &s->layer->saved_end[micro], dx);
    return;
  }
  struct weft_use dtable = weft_grad_begin (s, table), dposition = weft_grad_begin (s, position);

  dx = weft_embed_words_backward (s, &s->layer->saved_end[micro], dx);
  weft_embed_words_gradient (s, (struct weft_embed_lookup){ s->layer->saved_end[micro].ids, dx, 0 },
                             dtable, dposition);
  weft_grad_end (s, position, dposition);
  weft_grad_end (s, table, dtable);
  leave_embedding (s);
}

/* -------------------------------------------------------------------------- the head */

uint32_t
weft_head_ends (const struct weft_step *s)
{
  return 1 + (uint32_t) s->model->mtp_num_layers;
}

struct weft_saved_end *
weft_head_end (const struct weft_step *s, uint32_t micro, uint32_t depth)
{
  return depth ? &weft_mtp_saved (s, micro, depth)->end : &s->layer->saved_end[micro];
}

uint32_t
weft_head_logits (struct weft_step *s, uint32_t normed, uint32_t weight)
{
  uint64_t h = s->model->hidden_size, v = s->width.vocab;
  uint32_t logits = weft_product (s, v, "logits");

  weft_emit (s, WEFT_OP_MATMUL, "head", WEFT_SHAPE (s->product_dtype, s->tokens, v, h),
             WEFT_USES (WEFT_R (normed), WEFT_R (weight), WEFT_R (WEFT_NO_BUF), WEFT_W (logits)));
  return logits;
}

void
weft_head_cap (struct weft_step *s, uint32_t logits)
{
  if (s->model->final_logit_softcapping > 0)
    weft_emit (s, WEFT_OP_SOFTCAP, "softcap",
               WEFT_SHAPE (s->product_dtype, s->tokens, s->width.vocab),
               WEFT_USES (WEFT_RW (logits)));
}

void
weft_head_dgrad (struct weft_step *s, uint32_t dlogits, uint32_t weight, uint32_t dn)
{
  struct weft_shape shape = WEFT_SHAPE (s->product_dtype, s->tokens, s->width.vocab,
                                        s->model->hidden_size, s->leaves.vocab);

  shape.out_dtype = weft_tensor_partial (s);
  weft_emit (s, WEFT_OP_MATMUL_DGRAD, "head", shape,
             WEFT_USES (WEFT_R (dlogits), WEFT_R (weight), WEFT_W (dn)));
}

/* Appends the logits and the loss of one prediction (the model's own, or one of multi-token
 * prediction). */
static void
predict (struct weft_step *s, struct weft_saved_end *end)
{
  uint32_t all = weft_tensor_gather_rows (s, end->normed, "head");

  end->logits = weft_head_logits (s, all, weft_cast_weight (s, weft_head_param (s)));
  weft_head_cap (s, end->logits);
  weft_loss_forward (s, end);
}

void
weft_head_forward (struct weft_step *s, uint32_t micro, uint32_t x)
{
  uint64_t h = s->model->hidden_size;
  struct weft_saved_end *end = &s->layer->saved_end[micro];
  uint32_t stream = weft_activation (s, h, "final_norm");

  end->x = x;
  weft_emit (s, WEFT_OP_NORM, "final_norm", WEFT_SHAPE (s->dtype, s->rows, h),
             WEFT_USES (WEFT_R (x), WEFT_R (end_weight (s, WEFT_FINAL_NORM_WEIGHT)),
                        WEFT_R (end_weight (s, WEFT_FINAL_NORM_BIAS)), WEFT_W (stream)));
  end->normed = weft_cast (s, stream, s->product_dtype, "final_norm");
  weft_mtp_forward (s, micro, stream);
  /* If the output layer is fused with the loss, forward ends before the output layer: head_chunks.c
   * computes logits and loss when backward begins. */
  if (weft_job_fuses_head (s->job))
    return;
  for (uint32_t depth = 1; depth < weft_head_ends (s); depth++)
    predict (s, weft_head_end (s, micro, depth));
  predict (s, end);
  leave_head (s);
}

static void
emit_head_wgrad (struct weft_step *s, uint32_t dlogits, uint32_t normed, uint32_t passes,
                 struct weft_use dw)
{
  struct weft_shape shape = WEFT_SHAPE (s->product_dtype, s->tokens * MAX (1, passes),
                                        s->width.vocab, s->model->hidden_size, passes);

  shape.out_dtype = s->grad_dtype;
  weft_emit (s, WEFT_OP_MATMUL_WGRAD, "head", shape,
             WEFT_USES (WEFT_R (dlogits), WEFT_R (normed), dw, WEFT_RW (WEFT_NO_BUF)));
}

/* Interleaves buffers that have equal numbers of elements for each token. Every sequence is cut
 * into chunks. For each sequence the result contains the rows of the first chunk from every buffer,
 * then the rows of the second chunk from every buffer, and so on. */
uint32_t
weft_ends_by_chunk (struct weft_step *s, const uint32_t *buf, uint32_t n, const char *name)
{
  uint64_t length = (uint64_t) s->model->seq_length,
           rows = s->tokens * weft_chunks (length) / length,
           each = weft_step_elements (s, buf[0]) / rows;
  enum weft_dtype dtype = weft_build_buf_at (s->b, buf[0])->dtype;
  uint32_t all = buf[0];

  for (uint32_t i = 1; i < n; i++) {
    uint32_t more = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, dtype, rows * (i + 1) * each, name);
    weft_emit (s, WEFT_OP_CONCAT, name, WEFT_SHAPE (dtype, rows, i * each, each),
               WEFT_USES (WEFT_R (all), WEFT_R (buf[i]), WEFT_W (more)));
    all = more;
  }
  return all;
}

struct weft_use
weft_head_begin (struct weft_step *s)
{
  uint32_t own = weft_params_of_end (s, WEFT_HEAD_WEIGHT);

  return own == WEFT_NO_PARAM ? weft_head_grad_begin (s) : weft_grad_begin (s, own);
}

void
weft_head_done (struct weft_step *s, struct weft_use dw)
{
  uint32_t own = weft_params_of_end (s, WEFT_HEAD_WEIGHT);

  if (own == WEFT_NO_PARAM)
    weft_head_grad_end (s, dw);
  else
    weft_grad_end (s, own, dw);
}

void
weft_head_wgrad (struct weft_step *s, const uint32_t *dlogits, const uint32_t *normed,
                 struct weft_use dw)
{
  uint32_t n = weft_head_ends (s);

  if (s->canonical && n > 1)
    emit_head_wgrad (s, weft_ends_by_chunk (s, dlogits, n, "head"),
                     weft_ends_by_chunk (s, normed, n, "head"), n, dw);
  for (uint32_t depth = 0; depth < n && (!s->canonical || n == 1); depth++) {
    emit_head_wgrad (s, dlogits[depth], normed[depth], 0, dw);
    dw.read = 1;
  }
}

static void
head_wgrad (struct weft_step *s, const uint32_t *dlogits, const uint32_t *normed)
{
  if (!weft_job_trains (s->job, WEFT_FREEZE_HEAD))
    return;
  struct weft_use dw = weft_head_begin (s);

  weft_head_wgrad (s, dlogits, normed, dw);
  weft_head_done (s, dw);
}

void
weft_head_delayed_wgrad (struct weft_step *s, uint32_t micro)
{
  uint32_t n = weft_head_ends (s);
  g_autofree uint32_t *normed = g_new (uint32_t, n), *dlogits = g_new (uint32_t, n);

  /* if the output layer is fused with the loss, head_chunks.c has already computed the gradients */
  if (weft_job_fuses_head (s->job) || !weft_job_trains (s->job, WEFT_FREEZE_HEAD))
    return;
  for (uint32_t depth = 0; depth < n; depth++) {
    normed[depth] = weft_tensor_gather_rows (s, weft_head_end (s, micro, depth)->normed, "head");
    dlogits[depth] = weft_head_end (s, micro, depth)->logits;
  }
  head_wgrad (s, dlogits, normed);
}

/* Whether the output layer's weight gradient of this microbatch is deferred to the end of the
 * pipeline schedule (defer_embedding_wgrad_compute). */
static gboolean
defer (struct weft_step *s, uint32_t micro)
{
  int64_t most = s->strategy->wgrad_deferral_limit;

  if (!s->strategy->defer_embedding_wgrad_compute || (most && s->layer->deferred->len >= most))
    return FALSE;
  g_array_append_val (s->layer->deferred, micro);
  return TRUE;
}

void
weft_head_run_deferred_wgrads (struct weft_step *s)
{
  struct weft_op at = s->at;

  if (s->layer->deferred->len == 0)
    return;
  s->at.layer = WEFT_NO_LAYER;
  s->at.chunk = weft_step_head (s) - s->chunk;
  s->at.phase = WEFT_PHASE_WEIGHT_GRAD;
  for (guint i = 0; i < s->layer->deferred->len; i++) {
    s->at.micro = g_array_index (s->layer->deferred, uint32_t, i);
    weft_head_delayed_wgrad (s, s->at.micro);
  }
  s->at = at;
}

/* Whether backward continues below the output layer: the final norm, or something below it, is
 * trained. */
static gboolean
leaves_head (const struct weft_step *s)
{
  return weft_job_trains (s->job, WEFT_FREEZE_NORM) || weft_job_enters_layers (s->job);
}

/* Returns the gradient of the output layer's input, or WEFT_NO_BUF if nothing below is trained. If
 * `normed` is not NULL, sets *normed to the all-gathered input of the output layer. */
static uint32_t
predict_backward (struct weft_step *s, const struct weft_saved_end *end, uint32_t gradient,
                  uint32_t *normed)
{
  uint32_t dn = WEFT_NO_BUF;

  if (leaves_head (s))
    dn = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, weft_tensor_partial (s),
                           s->tokens * s->model->hidden_size, "head");
  weft_loss_backward (s, end, gradient);
  if (normed)
    *normed = weft_tensor_gather_rows (s, end->normed, "head");
  if (dn == WEFT_NO_BUF)
    return dn;
  weft_head_dgrad (s, end->logits, weft_cast_weight (s, weft_head_param (s)), dn);
  return weft_tensor_reduce_rows (s, dn, "head");
}

static void
whole_backward (struct weft_step *s, uint32_t micro, uint32_t *dn)
{
  uint32_t gradient = weft_loss_is_fused (s) ? WEFT_NO_BUF : weft_loss_gradient (s);
  uint32_t n = weft_head_ends (s);
  gboolean later =
      weft_step_is_split (s) || !weft_job_trains (s->job, WEFT_FREEZE_HEAD) || defer (s, micro);
  g_autofree uint32_t *normed = g_new (uint32_t, n), *dlogits = g_new (uint32_t, n);

  /* the loop follows the order of autograd: the model's own loss, which forward computed last,
   * comes first */
  for (uint32_t i = 0; i < n; i++) {
    uint32_t depth = i ? n - i : 0;
    const struct weft_saved_end *end = weft_head_end (s, micro, depth);
    dn[depth] = predict_backward (s, end, gradient, later ? NULL : &normed[depth]);
    dlogits[depth] = end->logits;
  }
  if (!later)
    head_wgrad (s, dlogits, normed);
}

uint32_t
weft_head_backward (struct weft_step *s, uint32_t micro)
{
  const struct weft_saved_end *end = &s->layer->saved_end[micro];
  uint32_t n = weft_head_ends (s);
  g_autofree uint32_t *dn = g_new (uint32_t, n);

  (weft_job_fuses_head (s->job) ? weft_head_chunks : whole_backward) (s, micro, dn);
  if (!leaves_head (s)) {
    leave_head (s);
    return WEFT_NO_BUF;
  }
  for (uint32_t depth = 0; depth < n; depth++) {
    dn[depth] = weft_cast_to_compute (s, dn[depth], "final_norm");
    dn[depth] = weft_cast (s, dn[depth], s->dtype, "final_norm");
  }
  struct weft_norm_operands o = { .x = end->x, .dresidual = WEFT_NO_BUF };
  const uint32_t norm[] = { weft_params_of_end (s, WEFT_FINAL_NORM_WEIGHT),
                            weft_params_of_end (s, WEFT_FINAL_NORM_BIAS) };
  o.dy = weft_mtp_backward (s, micro, dn);
  o.dx = weft_activation (s, s->model->hidden_size, "dresidual");
  weft_norm_gradients (s, "final_norm", norm, &o);
  leave_head (s);
  return weft_job_enters_layers (s->job) ? o.dx : WEFT_NO_BUF;
}
