/* loss.h - cross_entropy_fusion_impl = linear: output head and loss are computed in chunks of a
 * microbatch's tokens, so that the logits of only one chunk exist at a time. */
#pragma once
#include "core/job/job.h"

/* Whether the job computes output head and loss in chunks. */
gboolean weft_job_fuses_head (const struct weft_job *job);

/* Tokens of a microbatch on a rank. */
uint64_t weft_job_tokens (const struct weft_job *job);

/* Tokens per chunk, from cross_entropy_chunks or by a rule (loss.c). The last chunk may have
 * fewer. */
uint64_t weft_job_loss_tokens (const struct weft_job *job);

/* Whether canonical order (the same order of summation for every strategy) allows this number of
 * chunks. A chunk must be one leaf of a sequence (kernels/leaves.h), or consist of whole sequences
 * that form a node of the tree of core/base/fold.h. */
gboolean weft_job_loss_leaves (const struct weft_job *job, int64_t chunks);
