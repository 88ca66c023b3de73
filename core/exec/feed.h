/* feed.h - the host's part of a training step, shared by all executors that compute numbers: the
 * tokens that a step reads, the metrics that it returns, and the ops that an evaluation skips. */
#pragma once
#include "core/exec/control.h"
#include "core/plan/plan.h"

/* Whether an evaluation, which runs only the forward pass, skips an op: backward, gradients and
 * update. Gradients of the newest step stay unchanged. The result depends only on the op and its
 * first operand, so all ranks skip the same ops. */
gboolean weft_feed_is_training (const weft_program *p, uint32_t op);

/* Index in the global batch of the first sequence of the microbatch that an op belongs to. */
int64_t weft_feed_first_sequence (const weft_plan *plan, uint32_t rank, const struct weft_op *row);

/* Writes the token ids that a copy_in op copies to a rank, and returns how many ids there are.
 * `out` NULL: only counts the ids. */
uint64_t weft_feed_tokens (const weft_plan *plan, uint32_t rank, uint32_t op, const int32_t *tokens,
                           int32_t *out);

/* The gradient norms of buckets that one rank has read so far. */
struct weft_watch {
  double largest_norm;      /* largest norm among the first n_norm buckets that were read */
  /* n_large: number of buckets of this step whose norm is far above largest_norm */
  uint32_t n_norm, n_large;
  gboolean overflow;        /* TRUE: in this step a gradient of a scaled loss is not finite */
};

/* Reads the result of a copy_out op: value[i] points to operand i. The op copies either the
 * metrics, or one number that the host waits for: the norm of a bucket, the overflow flag of a
 * scaled loss, or whether sequences are packed (they never are). FALSE: check_for_nan_in_grad is
 * set and the norm of a bucket is not finite, so the job stops. */
gboolean weft_watch_read (struct weft_watch *watch, const weft_plan *plan, uint32_t rank,
                          uint32_t op, const void *const *value, struct weft_metrics *metrics);

/* Sets the error after weft_watch_read() returned FALSE, for example "rank 3: bucket 2 is not
 * finite". Always returns FALSE. */
gboolean weft_watch_refuse (const weft_plan *plan, uint32_t rank, uint32_t op, GError **error);
