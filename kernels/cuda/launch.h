/* launch.h - arguments of a CUDA kernel launcher: the call of an op (kernels/kernel.h) in types
 * that both C and CUDA C++ read. Pointers to operands, control and scratch are device pointers.
 *
 * Rules of CUDA kernels, in addition to those of CPU kernels in kernels/kernel.h:
 * - Arithmetic is fp32, rounded once when a result is stored. Sums have a fixed order of their own,
 *   the same in every run: no floating-point atomics.
 * - A launcher enqueues on the stream and returns; it does not allocate and does not wait.
 * - Memory beyond its operands is scratch, whose size follows from the op's shape
 *   (WEFT_CUDA_SCRATCH); ops of one stream share it, one after the other. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_CUDA_MOST_OPERANDS 8
#define WEFT_CUDA_DIMS 8
#define WEFT_CUDA_MOST_PAIRS 256 /* rotated pairs of a head: heads of up to 512 */

struct weft_cuda_operand {
  void *data; /* NULL only where the op allows it */
  uint64_t n; /* elements */
  uint8_t dtype, accumulate;
};

struct weft_cuda_spot {
  uint32_t at, of;
};

/* How the router selects experts (kernels/moe_route.c). */
struct weft_cuda_router {
  uint32_t sigmoid, before; /* before: take the softmax over all experts before the selection */
  uint64_t groups, best;    /* number of expert groups, and how many of them are eligible; 1 and 1:
                             * no groups */
  float scaling;            /* factor of the weights */
  double step;              /* step of the routing bias */
};

/* Settings of the model that kernels read. */
struct weft_cuda_model {
  double epsilon;
  uint64_t heads, groups;                 /* heads and groups of this rank */
  uint64_t sequence;                      /* tokens of each sequence on this rank */
  uint64_t whole;                         /* tokens of a whole sequence */
  uint64_t all_heads;                     /* heads of all ranks */
  uint32_t layernorm;                     /* 1: layernorm; 0: rmsnorm */
  uint32_t pairs;                         /* rotated pairs of a head */
  double frequency[WEFT_CUDA_MOST_PAIRS]; /* rotary frequency of each pair, radians per position */
  uint32_t activation;                    /* enum weft_activation */
  float attention_scale;                  /* factor of scores */
  float attention_cap, logit_cap;         /* soft caps: c tanh (x / c); 0: none */
  float embedding_multiplier;
  uint64_t position_offset;         /* number of first rows of the position table that no token
                                     * uses */
  uint64_t slope_heads, first_head; /* ALiBi: number of heads of the model, or 0 (no ALiBi); first
                                     * head of this rank */
  struct weft_cuda_router router;
};

struct weft_control;

/* The fields of struct weft_whole (kernels/kernel.h). */
struct weft_cuda_whole {
  uint64_t key, start, columns, stride, offset;
};

struct weft_cuda_launch {
  uint64_t dim[WEFT_CUDA_DIMS];
  struct weft_cuda_operand operand[WEFT_CUDA_MOST_OPERANDS];
  struct weft_cuda_spot tp, cp;
  struct weft_cuda_model model;
  const struct weft_control *control; /* device pointer */
  uint32_t before, decay;
  uint32_t layer;
  float share;      /* factor of a row's loss gradient: xent_bwd, xent_grad */
  int64_t sequence; /* dropout: global index of the first sequence of the microbatch */
  struct weft_cuda_whole whole;

  void *stream; /* cudaStream_t */
  void *scratch;
  uint64_t scratch_bytes;
  struct weft_cuda_blas *blas;
  uint8_t warpgroups;    /* use warpgroup instructions (warpgroup.cuh); the device has them */
  uint8_t deterministic; /* use no library whose order of additions is not documented */
};

/* Epilogue of a product: y = gelu (a b); or y = a b times the slope of gelu at aux; or y = a b, and
 * the sums of the rows of a; or aux = a b, and y (m, n / 2) = swiglu of aux. The input of gelu is
 * either the unrounded or the stored product, whichever is faster. */
enum weft_cuda_epilogue {
  WEFT_CUDA_PLAIN,
  WEFT_CUDA_GELU,
  WEFT_CUDA_GELU_SLOPE,
  WEFT_CUDA_SUMS,
  WEFT_CUDA_GATE
};

/* y = a b with row-major matrices: `a` is (m, k), or (k, m) if transposed; `b` is (k, n), or (n, k)
 * if transposed. May accumulate into y. */
struct weft_cuda_gemm {
  uint64_t m, n, k;
  const void *a, *b, *bias; /* bias: n elements of the type of y, or NULL; must be NULL for fp8
                             * products with an fp32 result */
  void *y;
  uint8_t a_turned, b_turned, accumulate;
  uint8_t dtype, y_dtype; /* type of a and b; type of y */
  uint8_t epilogue;       /* enum weft_cuda_epilogue */
  /* input of gelu, in the type of y: written by GELU unless NULL, read by GELU_SLOPE. GATE: the
   * product, gate beside up, in the type of y. SUMS: room for m elements of the type of y, which
   * the library overwrites with the sums; sums.data, if nothing is added and nothing converted, or
   * else fp32 memory; NULL: the library must not sum */
  void *aux;
  struct weft_cuda_operand sums; /* SUMS: m sums over k, stored or added; `a` is transposed */
  /* device pointer: alpha, the factor of a b, followed by beta (0 or 1), the factor of the old y;
   * NULL: alpha is 1 and beta is `accumulate` */
  const float *scale;

  /* fp8 factors, whose terms must be contiguous (a not transposed, b transposed); otherwise
   * NULL. */
  const void *a_scale, *b_scale; /* device pointers, in the layout of fp8_scales.h */
  uint8_t b_dtype;               /* fp8 format of b, which may differ from that of a */
  uint8_t block;                 /* elements per scale; 0: one scale per tensor */
  uint8_t square;                /* the scales of b are per square */
  uint8_t fast;                  /* allow accumulation with reduced precision */
};

/* Computes a product. Returns NULL, or an error as static text. */
const char *
weft_cuda_multiply (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* Applies the epilogue of a product that ran without it: gelu reads aux, or y if aux is NULL; the
 * slope is applied to y; sums are those of a. */
const char *weft_cuda_follow (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* Whether a kernel of Weft computes the product and the gate of GATE together (gated.cu), and the
 * launch of that kernel. */
int weft_cuda_gated_takes (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);
const char *weft_cuda_gated (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* Brings the sums that a product has left in aux to `sums`, unless they are there. */
const char *
weft_cuda_bring_sums (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* Fills every row of y with the bias, for a product that accumulates. */
const char *
weft_cuda_put_bias (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* Converts a bias of another type than the product, in memory taken from the end of the scratch. */
const char *
weft_cuda_convert_bias (struct weft_cuda_launch *l, const struct weft_cuda_operand *from,
                        const struct weft_cuda_operand *y, const void **bias);

/* While `on`, launchers of this thread load their kernels without launching them. CUDA loads a
 * kernel at its first use, which may wait for all work on the GPU (CUDA programming guide, "Lazy
 * Loading"); if that work is a collective that waits for another GPU whose host is loading a kernel
 * too, both deadlock. Launchers may write their scratch. */
void weft_cuda_load_only (int on);
int weft_cuda_loads_only (void);

/* Largest number of adam calls in one launch. */
#define WEFT_CUDA_MOST_TOGETHER 24
const char *weft_cuda_adam_together (const struct weft_cuda_launch *l, uint32_t n);

/* Stable sort: order[i] = the old index of the i-th smallest of n keys, sorted[i] = that key.
 * `sorted` and `order` have room for n elements, `room` for weft_cuda_sort_bytes (n) bytes of
 * workspace. */
uint64_t weft_cuda_sort_bytes (uint64_t n);
const char *weft_cuda_sort (const struct weft_cuda_launch *on, const int32_t *keys, uint64_t n,
                            int32_t *sorted, int32_t *order, void *room);

/* The launcher weft_cuda_WORD of every KERNEL row. */
#define KERNEL(id, name, ...) const char *weft_cuda_##name (const struct weft_cuda_launch *l);
#define CPU_KERNEL(...)
#include "core/ops.def"

/* WEFT_CUDA_SCRATCH (word, bytes) defines the bytes of scratch of an op, computed from the op's
 * shape `s`, beside the launcher of the op. An op without WEFT_CUDA_SCRATCH needs no scratch. The
 * reference to the launcher makes the compiler refuse a word that is not an op. */
struct weft_cuda_shape {
  uint64_t dim[WEFT_CUDA_DIMS];
  uint32_t dtype; /* type of the operands */
};

#define KERNEL(id, name, ...) uint64_t weft_cuda_scratch_##name (const struct weft_cuda_shape *s);
#define CPU_KERNEL(...)
#include "core/ops.def"
#define WEFT_CUDA_SCRATCH(word, bytes)                                                             \
  uint64_t weft_cuda_scratch_##word (const struct weft_cuda_shape *s)                              \
  {                                                                                                \
    (void) &weft_cuda_##word, (void) s;                                                            \
    return (bytes);                                                                                \
  }

/* Workspace of a product of cuBLASLt: twice what NVIDIA recommends for Hopper, because split-K
 * keeps fp32 sums of each part there. */
#define WEFT_BLAS_SCRATCH (64u << 20)

#ifdef __cplusplus
}
#endif
