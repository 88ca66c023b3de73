/* playing_cudnn.h - a double of cuDNN's graph API that computes: descriptors keep what they are
 * told, and a plan is run by doing one operation after the other in fp64, where tensors lie in
 * memory of the host.
 *
 * It knows the operations of attention and nothing of their meaning.  What is between operations is
 * rounded to its type; numbers of the interface are those of kernels/cuda/cudnn.h. */
#pragma once
#include "kernels/cuda/cudnn.h"

enum { PLAYING_CUDNN_WORKSPACE = 512 /* bytes, which are overwritten */ };

/* Of version 9.19; heads wider than 256 have no engine, as in the real one on GPUs of today. */
extern const struct weft_cudnn_calls playing_cudnn;

/* The same of a release that is too old, and of one whose backward wants whole blocks of 128
 * tokens. */
extern const struct weft_cudnn_calls playing_old_cudnn, playing_former_cudnn;
