/* cudnn_attention.h - causal attention of whole sequences by cuDNN, with the contract of the own kernels
 * (attention.cu): the same operands, the same log of sums.
 *
 * For every shape there is a plan, made once: when the executor asks how much scratch a call needs.  A
 * shape that the library refuses, or that wants more scratch than WEFT_CUDNN_MOST_SCRATCH, is the own
 * kernels'. */
#pragma once
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/launch.h"

/* Backward that gives the same bits in every run keeps gradients of scores: two bytes for each query,
 * key and head. */
#define WEFT_CUDNN_MOST_SCRATCH ((uint64_t) 4 << 30)

/* What a plan is made for.  No padding: it is hashed and compared as bytes. */
struct weft_cudnn_shape {
  uint64_t batch, tokens, heads, groups, width, value; /* value: of heads of values */
  uint64_t window;                                     /* keys that a query sees; 0: all before it */
  uint8_t dtype, backward, same, pad[5];               /* same: the same bits in every run */
};

/* For tables by shape. */
guint weft_cudnn_hash_shape (gconstpointer shape);
gboolean weft_cudnn_same_shape (gconstpointer a, gconstpointer b);

/* Of attention or its backward. */
struct weft_cudnn_shape weft_cudnn_shape_of (const uint64_t *dim, uint8_t dtype, gboolean backward,
                                             gboolean same);

/* The graph of a shape, and a plan for it; g->calls, and g->handle or a device, are the caller's.
 * Pointers by slot are the op's operands.  FALSE with g->error. */
gboolean weft_cudnn_attention_build (weft_cudnn_graph *g, const struct weft_cudnn_shape *shape);

/* Plans of a device: the one that calls of CUDA mean now, or, to make plans and not to run them, one
 * that is only described (weft_cudnn_describe). */
struct weft_cudnn_attention;

/* NULL with *why, which lives for ever. */
struct weft_cudnn_attention *weft_cudnn_attention_new (const struct weft_cudnn_calls *calls,
                                                       const char *device, const char **why);
void weft_cudnn_attention_free (struct weft_cudnn_attention *a);

/* NULL with the bytes of scratch that a call needs, or why it is the own kernels'; lives for ever. */
const char *weft_cudnn_attention_plan (struct weft_cudnn_attention *a,
                                       const struct weft_cudnn_shape *shape, uint64_t *scratch);

/* A shape that has a plan.  NULL, or what went wrong. */
const char *weft_cudnn_attention_run (struct weft_cudnn_attention *a,
                                      const struct weft_cudnn_shape *shape,
                                      const struct weft_cuda_launch *l);
