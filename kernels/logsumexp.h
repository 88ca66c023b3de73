/* logsumexp.h - cross entropy: log-sum-exp of a row of logits, also of a vocabulary-parallel row.
 *
 * Columns are summed in leaves (leaves.h): sums of exponentials are fp32 and added as a tree
 * (core/base/fold.h). Exponentials are relative to the largest logit of the whole row. In
 * weft_logsumexp_own() (Transformer Engine's parallel cross entropy) they are relative to the
 * largest logit of each leaf, and are rescaled when leaves are joined. Without leaves there is one
 * sum, in double. */
#pragma once
#include "kernels/kernel.h"
#include "kernels/leaves.h"

struct weft_logsumexp {
  float most;
  /* sum of exp (logit - most) over the columns; in a sum over leaves, a value that was rounded to
   * float */
  double sum;
};

/* A row of logits, without the padding columns beyond the vocabulary. */
struct weft_logits_row {
  const struct weft_operand *logits;
  uint64_t first, columns; /* first: index in the operand of the first element of the row */
  struct weft_leaves leaves;
  gboolean in_leaves;
};

/* Describes one row of the logits of an op whose dimensions are "rows columns leaves whole". This
 * rank has `columns` columns of the logits; the whole vocabulary has `whole` columns. */
struct weft_logits_row weft_logits_row (const struct weft_kernel *k, uint64_t row);

/* Number of this rank's columns of the logits that belong to the vocabulary, without padding. */
uint64_t weft_logits_columns (const struct weft_kernel *k);

/* Index of a target among this rank's columns; if the target is in the columns of another rank, the
 * index is not less than the number of this rank's columns. */
uint64_t weft_logits_target (const struct weft_kernel *k, int32_t target);

float weft_logsumexp_most (const struct weft_logits_row *row);
struct weft_logsumexp weft_logsumexp_against (const struct weft_logits_row *row, float most);
struct weft_logsumexp weft_logsumexp_own (const struct weft_logits_row *row);
struct weft_logsumexp weft_logsumexp_join (struct weft_logsumexp a, struct weft_logsumexp b);

/* For core/base/fold.h: joins the top two entries of a stack by weft_logsumexp_join(). */
void weft_logsumexp_join_top (void *stack, uint32_t below);

/* Returns the log-sum-exp: the natural logarithm of a sum of exponentials. */
double weft_logsumexp_value (struct weft_logsumexp soft);

/* Factor of a row's loss gradient: 1 / number of tokens. With multi-token prediction (Megatron-Core
 * multi_token_prediction.py), depth d (dimension 4 of the op) has d targets fewer per sequence; its
 * loss is the mean over its targets times mtp_loss_scaling_factor / mtp_num_layers. */
static inline double
weft_loss_share (const struct weft_kernel *k)
{
  uint64_t tokens = k->shape.dim[k->kind == WEFT_OP_XENT_GRAD ? 5 : 2];
  double share = 1 / (double) (float) tokens, depth = (double) k->shape.dim[4];
  double sequence = (double) k->model->seq_length;

  if (depth == 0)
    return share;
  return share * k->model->mtp_loss_scaling_factor / (double) k->model->mtp_num_layers * sequence /
         (sequence - depth);
}
