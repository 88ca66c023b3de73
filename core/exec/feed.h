/* feed.h - what the host does for a step of real numbers: tokens in, numbers out, and which ops an
 * evaluation leaves out.  The same for all executors of real numbers. */
#pragma once
#include "core/exec/control.h"
#include "core/plan/plan.h"

/* Whether evaluation skips an op: backward, gradients and update.  Gradients of the newest step
 * stay as they are.  The rule uses only the op and its outputs: all ranks skip the same ops. */
gboolean weft_feed_is_training (const weft_program *p, uint32_t op);

/* Index in the global batch of the first sequence of an op's microbatch. */
int64_t weft_feed_first_sequence (const weft_plan *plan, uint32_t rank, const struct weft_op *row);

/* Writes the token ids that a copy_in brings to a rank; returns their number.  `out` NULL: only
 * counts. */
uint64_t weft_feed_tokens (const weft_plan *plan, uint32_t rank, uint32_t op, const int32_t *tokens,
                           int32_t *out);

/* A rank's record of its gradient norms. */
struct weft_watch {
  double largest_norm;      /* of the first n_norm buckets */
  uint32_t n_norm, n_large; /* n_large: buckets of this step with a norm far above largest_norm */
  gboolean overflow;        /* a gradient of a scaled loss is not finite in this step */
};

/* Reads the result of a copy_out: value[i] holds operand i.  A copy_out brings the metrics or one
 * number that the host waits for: the norm of a bucket, the overflow flag of a scaled loss, or
 * whether sequences are packed (here they never are).  FALSE: a bucket is not finite and the job
 * stops on that (check_for_nan_in_grad). */
gboolean weft_watch_read (struct weft_watch *watch, const weft_plan *plan, uint32_t rank,
                          uint32_t op, const void *const *value, struct weft_metrics *metrics);

/* "rank 3: bucket 2 is not finite": the error of the above.  Always FALSE. */
gboolean weft_watch_refuse (const weft_plan *plan, uint32_t rank, uint32_t op, GError **error);
