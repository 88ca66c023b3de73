/* feed.h - what the host does for a step of real numbers: tokens in, numbers out, and which ops an
 * evaluation leaves out.  The same for all executors of real numbers. */
#pragma once
#include "core/exec/control.h"
#include "core/plan/plan.h"

/* Evaluation runs forward; whatever follows from gradients is passed over, and those of the newest
 * step stay.  The rule is the same on all ranks: it looks at the op and what it writes. */
gboolean weft_feed_is_training (const weft_program *p, uint32_t op);

/* Of the global batch, the first sequence that the microbatch of an op has. */
int64_t weft_feed_first_sequence (const weft_plan *plan, uint32_t rank, const struct weft_op *row);

/* The token ids that a copy_in brings to a rank, one after the other; returns how many.  `out`
 * NULL: only counts. */
uint64_t weft_feed_tokens (const weft_plan *plan, uint32_t rank, uint32_t op, const int32_t *tokens,
                           int32_t *out);

/* What a rank has seen of its gradients. */
struct weft_watch {
  double largest_norm;      /* of the buckets seen first */
  uint32_t n_norm, n_large; /* how many those are; buckets of this step far above them */
  gboolean overflow;        /* a gradient of a scaled loss is not finite in this step */
};

/* Takes what a copy_out has brought: value[i] holds operand i.  The metrics, or one number that the
 * host waits for: of a bucket, or of all gradients of a scaled loss, or whether sequences are
 * packed, which they never are here.  FALSE: a bucket is not finite, and the job asks for an end
 * (check_for_nan_in_grad). */
gboolean weft_watch_read (struct weft_watch *watch, const weft_plan *plan, uint32_t rank,
                          uint32_t op, const void *const *value, struct weft_metrics *metrics);

/* "rank 3: bucket 2 is not finite": the error of the above.  Always FALSE. */
gboolean weft_watch_refuse (const weft_plan *plan, uint32_t rank, uint32_t op, GError **error);
