/* states.h - private to optimizer/: the optimizer state of each bucket, and the part of the state
 * that is in host memory. */
#pragma once
#include "core/passes/optimizer/optimizer.h"
#include "core/passes/params/tensors.h"
#include "core/passes/replicas/replicas.h"
#include "core/passes/shard/shard.h"

struct weft_optimizer_part {
  /* by bucket: buffer of fp32 master weights, or WEFT_NO_BUF; NULL until the optimizer states are
   * created */
  uint32_t *master;
  uint32_t *m, *v; /* Adam's moments, in fp32 or as codes of 8 bits; of Muon m, the momentum */
  uint32_t *m_scale, *v_scale; /* scales of 8-bit moments, or WEFT_NO_BUF */
  /* by bucket: fp32 copy of gradients that are reduced in another dtype; WEFT_NO_BUF if they are
   * read as they are */
  uint32_t *grad32;
  /* n_host, by bucket: how many elements at the end of this rank's slice have their optimizer state
   * in host memory */
  uint64_t *n_host;

  /* squared gradient norm of experts that are distributed over expert parallel ranks, or
   * WEFT_NO_BUF */
  uint32_t expert_squares;
  GArray *host_parts;   /* array of struct part (host_optimizer.c), or NULL */
  uint32_t host_factor; /* buffer of the clip factor in host memory, or WEFT_NO_BUF */
  /* newest copy for which the next optimizer update on the CPU must wait */
  uint32_t host_wait;
};

/* Whether Adam multiplies gradients by the clip factor. The factor is 0 if the loss scaler found a
 * gradient that is not finite. */
static inline gboolean
weft_step_has_factor (const struct weft_step *s)
{
  return s->job->train.clip_grad > 0 || s->scales_loss;
}

/* Whether the gradients of bucket k are converted to an fp32 copy. If the stack reads gradients as
 * they are, only a loss scale needs the copy: a quotient in 16 bits would be rounded. */
gboolean weft_optimizer_copies_gradients (const struct weft_step *s, uint32_t k);

/* The dimension `gradient` of WEFT_OP_ADAM for gradients in buffer `grad`. */
uint64_t weft_optimizer_gradient_bytes (const struct weft_step *s, uint32_t grad);

/* muon.c: appends the update of bucket k by Muon, whose momentum has been computed. `grad`: the
 * reduced gradients of the bucket; `factor`: the clip factor or WEFT_NO_BUF. */
void weft_muon_update (struct weft_step *s, uint32_t k, uint32_t grad, uint32_t factor);

/* Number of elements of bucket k whose optimizer state this rank stores. */
uint64_t weft_optimizer_slice (const struct weft_step *s, uint32_t k);

/* host_optimizer.c: sets n_host, that is, chooses the elements that Adam on the CPU updates. */
void weft_host_optimizer_split (struct weft_step *s);

/* Appends the copy of the clip factor to host memory. Returns the host buffer. Returns WEFT_NO_BUF
 * if the job has no clip factor. */
uint32_t weft_host_optimizer_factor (struct weft_step *s);

/* Appends the copies of gradients to the host. The copy of bucket `tied_bucket` also waits for op
 * `tied_reduced`. */
void weft_host_optimizer_send (struct weft_step *s, uint32_t tied_bucket, uint32_t tied_reduced);

/* Appends the CPU update of the host's parts of bucket k. */
void weft_host_optimizer_update (struct weft_step *s, uint32_t k);

/* Appends the copies of the updated weights from host to device. */
void weft_host_optimizer_finish (struct weft_step *s);
