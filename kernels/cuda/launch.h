/* launch.h - what a launcher of a CUDA kernel is given: the call of an op (kernels/kernel.h) in words
 * that C and CUDA C++ both read.  Pointers of operands, of control and of scratch are of the device.
 *
 * Rules of CUDA kernels, beside those of kernels/kernel.h for CPU kernels:
 *  - arithmetic is fp32, rounded once when a result is stored; sums have an order of their own, the
 *    same in every run: no atomic addition of floats;
 *  - a launcher enqueues on the stream and comes back; it allocates nothing and waits for nothing;
 *  - what it needs besides its operands is scratch, whose bytes the op's shape says beforehand
 *    (weft_cuda_scratch); a stream's ops share it, one after the other. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_CUDA_MOST_OPERANDS 8
#define WEFT_CUDA_DIMS 8
#define WEFT_CUDA_MOST_PAIRS 256 /* of a head that is turned: heads of up to 512 */

struct weft_cuda_operand {
  void *data; /* NULL where the op's list allows it */
  uint64_t n; /* elements */
  uint8_t dtype, accumulate;
};

struct weft_cuda_spot {
  uint32_t at, of;
};

/* How experts are chosen (kernels/moe_route.c). */
struct weft_cuda_router {
  uint32_t sigmoid, before; /* before: the softmax is taken over all of them */
  uint64_t groups, best;    /* groups of experts, and how many of them are open; 1 and 1: no groups */
  float scaling;            /* of weights */
  double step;              /* of a bias */
};

/* Of the model, what kernels ask. */
struct weft_cuda_model {
  double epsilon;
  uint64_t heads, groups; /* of this rank */
  uint64_t sequence;      /* tokens that this rank has of each sequence */
  uint64_t whole;         /* tokens of a sequence */
  uint64_t all_heads;     /* of all ranks */
  uint32_t layernorm;     /* or rmsnorm */
  uint32_t pairs;         /* of a head that are turned */
  double frequency[WEFT_CUDA_MOST_PAIRS]; /* of each pair, in radians a position */
  uint32_t activation;                    /* enum weft_activation */
  float attention_scale;                  /* of scores */
  float attention_cap, logit_cap;         /* scores, logits x become c tanh (x / c); 0: no cap */
  float embedding_multiplier;
  uint64_t position_offset;         /* first rows of the table of positions that no token uses */
  uint64_t slope_heads, first_head; /* ALiBi: heads of the model, or 0, and this rank's first */
  struct weft_cuda_router router;
};

struct weft_control;

/* As struct weft_whole of kernels/kernel.h. */
struct weft_cuda_whole {
  uint64_t key, start, columns, stride, offset;
};

struct weft_cuda_launch {
  uint64_t dim[WEFT_CUDA_DIMS];
  struct weft_cuda_operand operand[WEFT_CUDA_MOST_OPERANDS];
  struct weft_cuda_spot tp, cp;
  struct weft_cuda_model model;
  const struct weft_control *control; /* of the device */
  uint32_t before, decay;
  uint32_t layer;
  float share;      /* of a row's loss in the gradient: xent_bwd, xent_grad */
  int64_t sequence; /* draws of dropout: the first of the global batch that is here */
  struct weft_cuda_whole whole;

  void *stream; /* cudaStream_t */
  void *scratch;
  uint64_t scratch_bytes;
  struct weft_cuda_blas *blas;
  uint8_t warpgroups; /* the device has products of warpgroups (warpgroup.cuh), and they are wanted */
};

/* What follows a product: y = gelu (a b), or y = a b times gelu's slope at aux.  Of the unrounded
 * product, or of what is stored: whichever way is the quicker. */
enum weft_cuda_epilogue { WEFT_CUDA_PLAIN, WEFT_CUDA_GELU, WEFT_CUDA_GELU_SLOPE };

/* y = a b: matrices in memory, row by row, `a` (m, k) or, turned, (k, m); `b` (k, n) or, turned,
 * (n, k).  What accumulates is added to. */
struct weft_cuda_gemm {
  uint64_t m, n, k;
  const void *a, *b, *bias; /* bias: n elements of the type of y, or NULL; none of codes in fp32 */
  void *y;
  uint8_t a_turned, b_turned, accumulate;
  uint8_t dtype, y_dtype; /* of a and b; of y */
  uint8_t epilogue;       /* enum weft_cuda_epilogue */
  void *aux;              /* what gelu is of, in the type of y: kept for gelu, unless NULL; read for its slope */
  const float *scale;     /* of the device: what a b is multiplied by, and behind it what y keeps of what
                             it was (0 or 1); NULL: as it is */

  /* Of codes in fp8, which lie along the terms (a as it is, b turned); otherwise NULL. */
  const void *a_scale, *b_scale; /* of the device, as the library wants them: fp8_scales.h */
  uint8_t b_dtype;               /* of b, whose format may be another than that of a */
  uint8_t block;                 /* elements that have one scale; 0: a tensor has */
  uint8_t square;                /* of b as many rows have */
  uint8_t fast;                  /* sums may lose bits on the way */
};

/* NULL, or what went wrong, which lives for ever. */
const char *weft_cuda_multiply (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* What follows a product that has done nothing of it: for gelu it lies in aux, or if that is NULL in y,
 * for its slope in y. */
const char *weft_cuda_follow (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* Every row of y becomes the bias, for a product that is added to it. */
const char *
weft_cuda_put_bias (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* A bias that is kept in another type than the product is converted at the end of the scratch, of which
 * the product then has less. */
const char *weft_cuda_convert_bias (struct weft_cuda_launch *l, const struct weft_cuda_operand *from,
                                    const struct weft_cuda_operand *y, const void **bias);

/* While it is on, launchers of this thread launch nothing of their own but load what they would launch.
 * Kernels are loaded when they are first needed, which may wait for all that runs on the GPU (CUDA
 * programming guide, "Lazy Loading"); and what runs there may be a collective that waits for a GPU whose
 * host is stuck in the same way.  Scratch may be written. */
void weft_cuda_load_only (int on);
int weft_cuda_loads_only (void);

/* Calls of one adam op, at most so many. */
#define WEFT_CUDA_MOST_TOGETHER 24
const char *weft_cuda_adam_together (const struct weft_cuda_launch *l, uint32_t n);

/* Stable: order[i] = where the i-th smallest of n keys stood, keys[i] the key; both hold n elements and
 * lie in scratch from `room` on, which needs weft_cuda_sort_bytes (n) besides. */
uint64_t weft_cuda_sort_bytes (uint64_t n);
const char *weft_cuda_sort (const struct weft_cuda_launch *on, const int32_t *keys, uint64_t n,
                            int32_t *sorted, int32_t *order, void *room);

/* The launcher weft_cuda_WORD of every KERNEL row. */
#define KERNEL(id, name, ...) const char *weft_cuda_##name (const struct weft_cuda_launch *l);
#include "core/ops.def"

/* Bytes of scratch, by what kernels know of their own; weft_cuda_scratch() of table.h asks them. */
uint64_t weft_cuda_scratch_norm (uint64_t rows, uint64_t columns);
uint64_t weft_cuda_scratch_embed (uint64_t tokens, uint64_t hidden);
uint64_t weft_cuda_scratch_xent (uint64_t rows);
uint64_t weft_cuda_scratch_squares (uint64_t n);
uint64_t weft_cuda_scratch_bias (uint64_t rows, uint64_t columns);
uint64_t weft_cuda_scratch_attention (uint64_t queries);
uint64_t weft_cuda_scratch_amax (uint64_t n);
uint64_t weft_cuda_scratch_fp8 (uint64_t weights, uint32_t dtype);
/* rows of either factor, terms, elements of a block. */
uint64_t weft_cuda_scratch_fp8_matmul (const uint64_t rows[2], uint64_t terms, uint64_t block);
uint64_t weft_cuda_scratch_moe_sort (uint64_t choices);
uint64_t weft_cuda_scratch_moe_permute (uint64_t rows);
uint64_t weft_cuda_scratch_moe_group (uint64_t experts, uint64_t sources);
uint64_t weft_cuda_scratch_moe_matmul (uint64_t experts);
/* rows, columns, groups of rows. */
uint64_t weft_cuda_scratch_moe_amax (const uint64_t *dim);

#ifdef __cplusplus
}
#endif
