/* With cross_entropy_fusion_impl = linear, the tokens of a microbatch are divided into chunks when
 * its backward begins. The output layer, the loss and their gradients are computed for one chunk
 * after the other, so that only the logits of one chunk are in memory. For each chunk:
 *
 *   logits; loss, and gradient of logits in place; input gradient; weight gradient, added to the
 *   sum
 *
 * Forward ends with the final norm. Ops of this file that compute logits and loss have the phase of
 * forward, because an evaluation step runs only ops of this phase. Liger Kernel (arXiv 2410.10989,
 * section 3.2) computes gradients inside forward. llm.c and this file compute logits, loss and
 * gradients when backward begins. No gradients are then stored for microbatches whose backward has
 * not begun. Megatron-Core computes logits a second time in backward, which costs one more matrix
 * product.
 *
 * In canonical order a sum over tokens is a binary tree over sequences, and a chunk is a node of
 * the tree. Chunks are added in the order of the tree. A chunk is a whole sequence, or a leaf
 * (piece of a sequence); the leaves of a sequence are added in zigzag order. */
#include "core/passes/layer/ends.h"
#include "core/job/loss.h"
#include "core/base/zigzag.h"

struct rows {
  uint64_t first, n;
};

/* State of the output layer and its losses for one microbatch. */
struct head {
  uint64_t tokens;
  uint32_t n_chunks, n_ends, micro, weight, gradient;
  enum weft_phase phase; /* phase of the ops that compute gradients */
  /* Arrays with one entry per loss. normed: input of the output layer for all tokens; dn: gradient
   * of normed; part: input of the output layer for the current chunk of tokens; dlogits: logits of
   * the current chunk, later the gradient of these logits. */
  uint32_t *normed, *dn, *part, *dlogits;
  struct weft_use dw;
  struct weft_sum *sum; /* in canonical order: the weight gradients of the chunks of tokens */
};

/* Returns a view of the rows of a chunk of tokens. */
static uint32_t
part_of (struct weft_step *s, const struct head *h, uint32_t buf, struct rows rows)
{
  const struct weft_buf row = *weft_build_buf_at (s->b, buf);
  uint64_t each = row.bytes / h->tokens;

  if (rows.n == h->tokens)
    return buf;
  return weft_build_view (s->b, buf, rows.first * each, rows.n * each,
                          weft_build_name_at (s->b, row.name));
}

/* Returns the tokens of the i-th chunk of a microbatch. */
static struct rows
rows_of (const struct weft_step *s, const struct head *h, uint32_t i)
{
  uint64_t each = weft_job_loss_tokens (s->job);
  uint64_t sequences = (uint64_t) s->job->train.micro_batch_size;
  uint32_t leaves = h->n_chunks / (uint32_t) sequences;

  if (s->canonical && h->n_chunks > sequences)
    i = i / leaves * leaves + weft_zigzag (i % leaves, leaves);
  return (struct rows){ i * each, MIN (each, h->tokens - i * each) };
}

/* Appends logits, loss and input gradient of one prediction, for one chunk (some tokens of the
 * microbatch). The chunk's ops read views of buffers that a copy or an all-gather has written as a
 * whole. They therefore need explicit dependencies on that copy or all-gather. */
static void
predict (struct weft_step *s, struct head *h, uint32_t depth, struct rows rows)
{
  struct weft_saved_end end = *weft_head_end (s, h->micro, depth);

  h->part[depth] = part_of (s, h, h->normed[depth], rows);
  end.targets = part_of (s, h, end.targets, rows);
  s->at.phase = WEFT_PHASE_FORWARD;
  end.logits = h->dlogits[depth] = weft_head_logits (s, h->part[depth], h->weight);
  weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_TP));
  weft_build_dep (s->b, end.arrived);
  weft_head_cap (s, end.logits);
  weft_loss_both (s, &end, h->gradient);
  s->at.phase = h->phase;
  weft_head_dgrad (s, end.logits, h->weight, part_of (s, h, h->dn[depth], rows));
}

static void
add_weight_gradient (struct weft_step *s, struct head *h, uint32_t i)
{
  uint32_t leaf = s->canonical ? weft_sum_leaf (s, h->sum) : WEFT_NO_BUF;

  weft_head_wgrad (s, h->dlogits, h->part, s->canonical ? (struct weft_use) WEFT_W (leaf) : h->dw);
  if (s->canonical)
    weft_sum_add_piece (s, h->sum, i, leaf);
  h->dw.read = 1;
}

/* Reads the output layer's weight once in the phase of forward and once in the phase of backward.
 * An evaluation step needs the first read, because such a step runs only ops of the phase of
 * forward. The second read makes FSDP prefetch the units that backward reads next. */
static void
begin (struct weft_step *s, struct head *h)
{
  s->at.phase = WEFT_PHASE_FORWARD;
  h->gradient = weft_loss_gradient (s);
  h->weight = weft_cast_weight_here (s, weft_head_param (s));
  for (uint32_t depth = 0; depth < h->n_ends; depth++) {
    uint32_t normed = weft_head_end (s, h->micro, depth)->normed;
    h->normed[depth] = weft_tensor_gather_rows (s, normed, "head");
  }
  s->at.phase = h->phase;
  weft_weight_read (s, weft_head_param (s));
  for (uint32_t depth = 0; depth < h->n_ends; depth++)
    h->dn[depth] = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, weft_tensor_partial (s),
                                     h->tokens * s->model->hidden_size, "head");
  h->dw = weft_head_begin (s);
  h->sum = weft_sum_new_pieces (s, h->dw.buf, h->n_chunks);
}

static void
end (struct weft_step *s, struct head *h)
{
  weft_sum_free (h->sum);
  weft_head_done (s, h->dw);
  for (uint32_t depth = 0; depth < h->n_ends; depth++)
    h->dn[depth] = weft_tensor_reduce_rows (s, h->dn[depth], "head");
}

/* Appends the ops of chunk i of a microbatch's tokens. While the ops are appended, s->tokens is the
 * number of tokens of the chunk. */
static void
run_chunk (struct weft_step *s, struct head *h, uint32_t i)
{
  struct rows rows = rows_of (s, h, i);

  s->tokens = rows.n;
  for (uint32_t depth = 0; depth < h->n_ends; depth++)
    predict (s, h, depth, rows);
  add_weight_gradient (s, h, i);
  s->tokens = h->tokens;
}

void
weft_head_chunks (struct weft_step *s, uint32_t micro, uint32_t *dn)
{
  uint32_t n = weft_head_ends (s);
  g_autofree uint32_t *normed = g_new (uint32_t, n), *part = g_new (uint32_t, n),
                      *dlogits = g_new (uint32_t, n);
  uint64_t each = weft_job_loss_tokens (s->job);
  struct head h = { .tokens = s->tokens,
                    .n_chunks = (uint32_t) ((s->tokens + each - 1) / each),
                    .n_ends = n,
                    .micro = micro,
                    .phase = s->at.phase,
                    .normed = normed,
                    .dn = dn,
                    .part = part,
                    .dlogits = dlogits };

  begin (s, &h);
  for (uint32_t i = 0; i < h.n_chunks; i++)
    run_chunk (s, &h, i);
  end (s, &h);
}
