/* states.h - private to optimizer/: optimizer state by bucket, and the part of it in host
 * memory. */
#pragma once
#include "core/passes/optimizer/optimizer.h"
#include "core/passes/params/tensors.h"
#include "core/passes/replicas/replicas.h"
#include "core/passes/shard/shard.h"

struct weft_optimizer_part {
  uint32_t *master; /* by bucket: fp32 weights or WEFT_NO_BUF; NULL until they are built */
  uint32_t *m, *v;  /* Adam's moments */
  uint32_t *grad32; /* fp32 copies of gradients that are reduced in another type */
  uint64_t *n_host; /* elements at the end of the slice whose state is in host memory */

  uint32_t expert_squares; /* squared norm of distributed experts, or WEFT_NO_BUF */
  GArray *host_parts;      /* struct part (host_optimizer.c), or NULL */
  uint32_t host_factor;    /* the clip factor in host memory, or WEFT_NO_BUF */
  uint32_t host_wait;      /* copy that the next update on the host waits for */
};

/* Whether Adam multiplies gradients by the clip factor, which is 0 if loss scaling found a gradient
 * that is not finite. */
static inline gboolean
weft_step_has_factor (const struct weft_step *s)
{
  return s->job->train.clip_grad > 0 || s->scales_loss;
}

/* The number of elements of bucket k whose optimizer state this rank stores. */
uint64_t weft_optimizer_slice (const struct weft_step *s, uint32_t k);

/* host_optimizer.c: chooses the elements that the host updates (n_host). */
void weft_host_optimizer_split (struct weft_step *s);

/* Copies the clip factor to host memory. Returns the host buffer, or WEFT_NO_BUF without a
 * factor. */
uint32_t weft_host_optimizer_factor (struct weft_step *s);

/* Copies gradients to the host. The gradients of `tied_bucket` also wait for `tied_reduced`. */
void weft_host_optimizer_send (struct weft_step *s, uint32_t tied_bucket, uint32_t tied_reduced);

/* Updates the parts of bucket k on the host. */
void weft_host_optimizer_update (struct weft_step *s, uint32_t k);

/* Copies the updated weights back to the device. */
void weft_host_optimizer_finish (struct weft_step *s);
