/* playing_cudnn.h - a test double of cuDNN's graph API that computes. Descriptors keep their
 * attributes, and a plan runs operation by operation in fp64 on tensors in host memory.
 *
 * It has the operations that attention uses. Intermediate tensors are rounded to their type.
 * Constants are those of kernels/cuda/cudnn.h. */
#pragma once
#include "kernels/cuda/cudnn.h"

enum { PLAYING_CUDNN_WORKSPACE = 512 /* bytes, which each run of a plan overwrites */ };

/* A double of cuDNN 9.19. Heads wider than 256 are refused, as the real library does on current
 * GPUs. */
extern const struct weft_cudnn_calls playing_cudnn;

/* playing_old_cudnn: a release of cuDNN that Weft refuses. playing_former_cudnn: a release whose
 * backward requires sequence lengths that are multiples of 128. */
extern const struct weft_cudnn_calls playing_old_cudnn, playing_former_cudnn;
