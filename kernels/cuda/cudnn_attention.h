/* cudnn_attention.h - causal attention of whole sequences by cuDNN, with the contract of Weft's own
 * kernels (attention.cu): same operands, same log-sum-exp.
 *
 * A plan is made once per shape, when the executor asks for the scratch size. Shapes that the
 * library refuses, or that need more scratch than WEFT_CUDNN_MOST_SCRATCH, use Weft's own
 * kernels. */
#pragma once
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/launch.h"

/* Deterministic backward stores gradients of scores: two bytes per query, key and head. */
#define WEFT_CUDNN_MOST_SCRATCH ((uint64_t) 4 << 30)

/* Key of a plan in a hash table. The struct has no padding bytes, because it is hashed and compared
 * as bytes. */
struct weft_cudnn_shape {
  /* width: width of query and key heads; value: width of value heads */
  uint64_t batch, tokens, heads, groups, width, value;
  uint64_t window;                                     /* sliding window in keys; 0: none */
  uint8_t dtype, backward, same, pad[5];               /* same: deterministic */
};

/* Hash and equality of struct weft_cudnn_shape, for hash tables. */
guint weft_cudnn_hash_shape (gconstpointer shape);
gboolean weft_cudnn_same_shape (gconstpointer a, gconstpointer b);

/* The key of a forward or backward call. `dim`: dimensions of the op; `same`: whether the results
 * must be the same bits in every run. */
struct weft_cudnn_shape weft_cudnn_shape_of (const uint64_t *dim, uint8_t dtype, gboolean backward,
                                             gboolean same);

/* Builds the graph of a shape, and a plan for the graph. The caller sets g->calls, and g->handle or
 * a device. A slot is an operand number of the op. FALSE: failed; g->error is the reason. */
gboolean weft_cudnn_attention_build (weft_cudnn_graph *g, const struct weft_cudnn_shape *shape);

/* The plans of one device: the current CUDA device, or one that is only described
 * (weft_cudnn_describe()), for plans that are not run. */
struct weft_cudnn_attention;

/* Opens the plans of one device. On failure returns NULL, and *why is a static text. */
struct weft_cudnn_attention *weft_cudnn_attention_new (const struct weft_cudnn_calls *calls,
                                                       const char *device, const char **why);
void weft_cudnn_attention_free (struct weft_cudnn_attention *a);

/* Looks for the plan of a shape, and makes it at the first call. Returns NULL and the scratch bytes
 * of a call; or a static text that says why Weft's own kernel must be used. */
const char *weft_cudnn_attention_plan (struct weft_cudnn_attention *a,
                                       const struct weft_cudnn_shape *shape, uint64_t *scratch);

/* Runs the plan of a shape, which weft_cudnn_attention_plan() must have made. Returns NULL, or an
 * error text. */
const char *weft_cudnn_attention_run (struct weft_cudnn_attention *a,
                                      const struct weft_cudnn_shape *shape,
                                      const struct weft_cuda_launch *l);
