/* feed.h - the host's part of a step with real numbers, shared by all executors that have them:
 * tokens in, metrics out, and the ops that an evaluation skips. */
#pragma once
#include "core/exec/control.h"
#include "core/plan/plan.h"

/* Whether evaluation skips an op: backward, gradients and update.  Gradients of the newest step
 * stay as they are.  The rule uses only the op and its first operand, so all ranks skip the same
 * ops. */
gboolean weft_feed_is_training (const weft_program *p, uint32_t op);

/* Index in the global batch of the first sequence of an op's microbatch. */
int64_t weft_feed_first_sequence (const weft_plan *plan, uint32_t rank, const struct weft_op *row);

/* Writes the token ids that a copy_in op copies to a rank; returns their number.  `out` NULL: only
 * counts them. */
uint64_t weft_feed_tokens (const weft_plan *plan, uint32_t rank, uint32_t op, const int32_t *tokens,
                           int32_t *out);

/* The gradient norms that one rank has read so far. */
struct weft_watch {
  double largest_norm;      /* largest norm of the first n_norm buckets */
  uint32_t n_norm, n_large; /* n_large: buckets of this step with a norm far above largest_norm */
  gboolean overflow;        /* a gradient of a scaled loss is not finite in this step */
};

/* Reads the result of a copy_out: value[i] points to operand i.  A copy_out copies the metrics, or
 * one number that the host waits for: the norm of a bucket, the overflow flag of a scaled loss, or
 * whether sequences are packed (they never are).  FALSE: the norm of a bucket is not finite, and
 * check_for_nan_in_grad stops the job. */
gboolean weft_watch_read (struct weft_watch *watch, const weft_plan *plan, uint32_t rank,
                          uint32_t op, const void *const *value, struct weft_metrics *metrics);

/* Sets the error after weft_watch_read() returned FALSE: "rank 3: bucket 2 is not finite".  Always
 * returns FALSE. */
gboolean weft_watch_refuse (const weft_plan *plan, uint32_t rank, uint32_t op, GError **error);
