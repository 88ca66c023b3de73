/* fused.h - attention of whole sequences by cuDNN.  attention_backend = fused: cuDNN is used if it
 * accepts the shape.  attention_backend = auto: the fastest is used of cuDNN, Weft's kernels, and
 * Weft's kernels with a producer warp (kernels/cuda/producer.h), as far as they support the shape
 * and the GPU.
 *
 * Weft's kernels are used for other shapes and for parts of sequences.  With `fused`, a line on
 * stderr then says why, once for each kind of op.  All calls for one device must come from one
 * thread. */
#pragma once
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/table.h"

/* `calls` are functions of cuDNN or of a test double, and must outlive the result.  NULL: the
 * library is loaded at its first use. */
struct weft_fused;
struct weft_fused *weft_fused_new (const struct weft_cudnn_calls *calls);
void weft_fused_free (struct weft_fused *f);

/* Whether cuDNN runs a kernel.  Makes the plan; *scratch receives the bytes of scratch that cuDNN
 * needs.  With attention_backend = auto, FALSE for a shape that was not measured; *scratch is then
 * set too, so that cuDNN can be measured. */
gboolean
weft_fused_takes (struct weft_fused *f, int device, const struct weft_kernel *k, uint64_t *scratch);

/* Why a kernel with attention_backend = fused cannot run: the library is missing.  NULL: the
 * library is present, or the kernel does not require it.  The text is static. */
const char *weft_fused_missing (struct weft_fused *f, int device, const struct weft_kernel *k);

/* Runs a kernel for which weft_fused_takes() is TRUE.  Returns NULL or an error message. */
const char *weft_fused_run (struct weft_fused *f, int device, const struct weft_kernel *k,
                            const struct weft_cuda_launch *l);

/* With attention_backend = auto: which warpgroup kernels a launch uses (enum weft_cuda_warpgroups),
 * those with a producer warp if they were the fastest.  `most`: what the GPU and the user allow. */
uint8_t
weft_fused_warpgroups (struct weft_fused *f, int device, const struct weft_kernel *k, uint8_t most);

/* Bytes of scratch that attention backward with a producer warp needs; 0 if this kernel neither
 * runs nor is measured. `most`: enum weft_cuda_warpgroups, what the GPU and the user allow. */
uint64_t weft_fused_producer_scratch (const struct weft_kernel *k, uint8_t most);

/* With attention_backend = auto, measures cuDNN and the own kernels on separate operands of the
 * same sizes, with the stream and the scratch of the launch, and stores which was quickest.
 * Does nothing for other kernels, for known shapes, if there is nothing to choose, and if there
 * is no memory for the operands.  cuDNN is measured first; the best choice so far is saved while
 * the next kernel runs.  NULL, or a static text that says which kernel did not end
 * (WEFT_TRIAL_HUNG): it was also printed, and this process cannot use the GPU any more. */
const char *weft_fused_try (struct weft_fused *f, int device, const struct weft_kernel *k,
                            const struct weft_cuda_launch *l, const char *machine);

/* Load and save the choices of attention kernels, in a file for this machine
 * (kernels/cuda/trial.h).  The file is read once for each device, and written if there are new
 * choices. */
void weft_fused_load (struct weft_fused *f, int device, const char *machine);
void weft_fused_save (struct weft_fused *f, int device, const char *machine);
