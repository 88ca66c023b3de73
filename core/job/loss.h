/* loss.h - cross_entropy_fusion_impl = linear: output head and loss chunk by chunk of a microbatch's
 * tokens, so that logits of a chunk are all there are. */
#pragma once
#include "core/job/job.h"

gboolean weft_job_fuses_head (const struct weft_job *job);

/* Tokens that a rank has of a microbatch, and of these a chunk, but for the last one, which may have fewer:
 * by cross_entropy_chunks, or by a rule (loss.c). */
uint64_t weft_job_tokens (const struct weft_job *job);
uint64_t weft_job_loss_tokens (const struct weft_job *job);

/* Whether canonical order can take so many: whole sequences, in nodes of their tree, or the leaves of each. */
gboolean weft_job_loss_leaves (const struct weft_job *job, int64_t chunks);
