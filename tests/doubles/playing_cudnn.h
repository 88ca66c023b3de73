/* playing_cudnn.h - a test double of cuDNN's graph API that computes: descriptors keep their
 * attributes, and a plan runs operation by operation in fp64 on tensors in host memory.
 *
 * It supports the operations that attention uses. Intermediate tensors are rounded to their type;
 * constants are those of kernels/cuda/cudnn.h. */
#pragma once
#include "kernels/cuda/cudnn.h"

enum { PLAYING_CUDNN_WORKSPACE = 512 /* bytes, which a run overwrites */ };

/* Version 9.19; refuses heads wider than 256, as the real library does on current GPUs. */
extern const struct weft_cudnn_calls playing_cudnn;

/* old: a release that Weft does not support. former: its backward needs multiples of 128 tokens. */
extern const struct weft_cudnn_calls playing_old_cudnn, playing_former_cudnn;
