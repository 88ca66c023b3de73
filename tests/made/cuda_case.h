/* cuda_case.h - all test cases of the CUDA kernels, run on the emulator or on a GPU.
 *
 * Every call runs twice and must give the same bits: the emulator changes the order of threads the
 * second time, a GPU schedules as it likes. */
#pragma once
#include "tests/made/kernel_case.h"

struct cuda_case_device {
  gboolean (*has_kernel) (void *user, enum weft_op_kind kind);
  /* Runs a call whose operands and control are in host memory, and leaves its results there.
   * Scratch has exactly the size the op asks for, and memory behind it must not change. */
  void (*launch) (void *user, const struct weft_kernel *k, gboolean again);
  void *user;
  const char *only; /* word of an op: skip cases of others; NULL: all */
  /* 10 * major + minor of a GPU, which limits its tensor cores; 0: the emulator, which has all */
  int arch;
};

/* Whether the device has a kernel for an op and its cases are wanted. */
gboolean cuda_case_has (const struct cuda_case_device *device, enum weft_op_kind kind);

/* Random shapes of the ops that kernel_case.h draws, and tiled attention with lengths around tile
 * sizes, against the fp64 references. */
void cuda_case_drawn (const struct cuda_case_device *device);
void cuda_case_tiles (const struct cuda_case_device *device);

/* The other ops, with one or two fixed shapes, against the CPU kernels. */
void cuda_case_fixed (const struct cuda_case_device *device);

/* Runs a call on the CPU and twice on the device; both device runs must give the same bits, except
 * fused attention without deterministic_mode. Fails if an element differs from the CPU's by more
 * than rounding to its type and `tolerance` of the largest element. The caller frees the operands
 * with cuda_case_free(); they hold the CPU's results, also for an op whose cases are not wanted. */
void cuda_case_alike (const struct cuda_case_device *device, const struct weft_kernel *k,
                      double tolerance);
void cuda_case_free (struct weft_kernel *k);

/* Bytes of an operand. */
uint64_t cuda_case_bytes (const struct weft_operand *operand);

/* Random operands: floating-point numbers from -1 to 1, counts from 0 to `most`. */
struct weft_operand cuda_case_floats (GRand *rand, uint64_t n, enum weft_dtype dtype);
struct weft_operand cuda_case_counts (GRand *rand, uint64_t n, uint64_t most);

/* Attention of whole sequences and context-parallel parts, sliding windows, values of another
 * width. */
void cuda_case_attention (const struct cuda_case_device *device);

/* Attention by the vendor library (cuDNN), in shapes that it supports on Hopper GPUs. */
void cuda_case_fused_attention (const struct cuda_case_device *device);

/* Unfused attention. */
void cuda_case_scores (const struct cuda_case_device *device);

/* fp8 quantisation, and products with fp8 weights. */
void cuda_case_fp8 (const struct cuda_case_device *device);

/* MoE layers against the fp64 reference; rows of several sources, router weights, load balancing,
 * and grouped GEMM with many rows against the CPU kernels. */
void cuda_case_experts (const struct cuda_case_device *device);

/* AdamW with stochastic rounding. */
void cuda_case_lots (const struct cuda_case_device *device);

/* Only grouped GEMM, including fp8 factors with per-tensor and 128-element scales. */
void cuda_case_expert_products (const struct cuda_case_device *device);
void cuda_case_expert_codes (const struct cuda_case_device *device);

/* Fails if a kernel has no test case. */
void cuda_case_is_complete (const struct cuda_case_device *device);
