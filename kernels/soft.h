/* soft.h - what the cross entropy of a row needs of its logits, and how it is put together from parts
 * of the vocabulary.
 *
 * Columns come in leaves (leaves.h), whose sums of exponentials are fp32 and are folded.  They are
 * taken against the largest logit of all, or (`own`, Transformer Engine's parallel cross entropy) each
 * against its own largest, and scaled when two meet.  Without leaves there is one sum, in double. */
#pragma once
#include "kernels/kernel.h"
#include "kernels/leaves.h"

struct weft_soft {
  float most;
  double sum; /* of exp (logit - most); a float where there are leaves */
};

/* Columns of a row of logits, of which those past the vocabulary do not count. */
struct weft_soft_row {
  const struct weft_operand *logits;
  uint64_t first, columns; /* element of the operand where the row begins */
  struct weft_leaves leaves;
  gboolean in_leaves;
};

/* The rows of an op whose shape is "rows columns leaves whole": of a vocabulary of `whole` this rank
 * has the columns of its place. */
struct weft_soft_row weft_soft_row (const struct weft_kernel *k, uint64_t row);

/* Columns of this rank that are part of the vocabulary. */
uint64_t weft_soft_columns (const struct weft_kernel *k);

/* Where a target lies in this rank's columns; no less than their number: elsewhere. */
uint64_t weft_soft_target (const struct weft_kernel *k, int32_t target);

float weft_soft_most (const struct weft_soft_row *row);
struct weft_soft weft_soft_against (const struct weft_soft_row *row, float most);
struct weft_soft weft_soft_own (const struct weft_soft_row *row);
struct weft_soft weft_soft_join (struct weft_soft a, struct weft_soft b);

/* The same in a stack of them, for core/base/fold.h. */
void weft_soft_join_top (void *stack, uint32_t below);

/* log of the sum of exponentials. */
double weft_soft_log (struct weft_soft soft);

/* What the gradient of a row's loss is multiplied by.  Multi-token prediction (Megatron-Core
 * multi_token_prediction.py): a depth, which is the last dimension of the op, has fewer targets than
 * tokens, of which its loss is the mean, and a share of the factor. */
static inline double
weft_soft_share (const struct weft_kernel *k)
{
  uint64_t tokens = k->shape.dim[k->kind == WEFT_OP_XENT_GRAD ? 5 : 2];
  double share = 1 / (double) (float) tokens, depth = (double) k->shape.dim[4];
  double sequence = (double) k->model->seq_length;

  if (depth == 0)
    return share;
  return share * k->model->mtp_loss_scaling_factor / (double) k->model->mtp_num_layers * sequence /
         (sequence - depth);
}
