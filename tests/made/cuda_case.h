/* cuda_case.h - all test cases of the CUDA kernels, run on the emulator or on a GPU.
 *
 * Every call runs twice and must give the same bits. The emulator runs threads in another order the
 * second time; on a GPU nobody controls the order. */
#pragma once
#include "tests/made/kernel_case.h"

struct cuda_case_device {
  gboolean (*has_kernel) (void *user, enum weft_op_kind kind);
  /* Runs a call on the device. Operands and control are in host memory, and results are copied back
   * to the operands. Scratch has exactly the size that the op needs, and the memory behind scratch
   * must not change. `again`: TRUE in the second run of a call. */
  void (*launch) (void *user, const struct weft_kernel *k, gboolean again);
  void *user;
  /* only the cases of this kind of op run, named as in core/ops.def; NULL: all cases */
  const char *only;
  /* compute capability of the GPU, 10 * major + minor; 0: the emulator, which has all
   * instructions */
  int arch;
};

/* Whether the device has a kernel for an op, and the field `only` does not exclude the op. */
gboolean cuda_case_has (const struct cuda_case_device *device, enum weft_op_kind kind);

/* Checks random shapes of the ops that kernel_case.h draws, against the fp64 references. */
void cuda_case_drawn (const struct cuda_case_device *device);

/* Checks tiled attention with sequence lengths around tile sizes, against the fp64 references. */
void cuda_case_tiles (const struct cuda_case_device *device);

/* Checks the ops that cuda_case_drawn() leaves out, with one or two fixed shapes, against the CPU
 * kernels. */
void cuda_case_fixed (const struct cuda_case_device *device);

/* Runs a call on the CPU and twice on the device. Both device runs must give the same bits, except
 * fused attention without deterministic_mode. Fails if an element differs from the CPU result by
 * more than the rounding error of its type plus `tolerance` times the largest element. The operands
 * then contain the CPU results, even if `only` excludes the op. The caller frees the operands with
 * cuda_case_free(). */
void cuda_case_alike (const struct cuda_case_device *device, const struct weft_kernel *k,
                      double tolerance);
void cuda_case_free (struct weft_kernel *k);

/* Returns the size of an operand in bytes. */
uint64_t cuda_case_bytes (const struct weft_operand *operand);

/* Returns random numbers from -1 to 1 (floats), or random integers from 0 to `most` (counts). The
 * caller frees `data`. */
struct weft_operand cuda_case_floats (GRand *rand, uint64_t n, enum weft_dtype dtype);
struct weft_operand cuda_case_counts (GRand *rand, uint64_t n, uint64_t most);

/* Checks attention of whole sequences and of context-parallel parts, with sliding windows and with
 * value heads of another width. */
void cuda_case_attention (const struct cuda_case_device *device);

/* Checks attention by the vendor library (cuDNN), in shapes that it supports on Hopper GPUs. */
void cuda_case_fused_attention (const struct cuda_case_device *device);

/* Checks unfused attention (attention scores in memory) against the CPU kernels. */
void cuda_case_scores (const struct cuda_case_device *device);

/* Checks fp8 quantisation, matmuls with fp8 weights, and matmuls and grouped GEMM of two fp8
 * factors. */
void cuda_case_fp8 (const struct cuda_case_device *device);

/* Checks MoE layers against the fp64 reference. Checks rows of several sources, router weights,
 * load balancing, and grouped GEMM with many rows against the CPU kernels. */
void cuda_case_experts (const struct cuda_case_device *device);

/* Checks AdamW with stochastic rounding of the weights against the CPU kernel. */
void cuda_case_lots (const struct cuda_case_device *device);

/* Checks grouped GEMM kernels, but no other kernels of MoE layers. */
void cuda_case_expert_products (const struct cuda_case_device *device);

/* Checks grouped GEMM kernels with fp8 factors, with scales per tensor and per 128 elements. */
void cuda_case_expert_codes (const struct cuda_case_device *device);

/* Checks matmuls with swiglu against the CPU kernel, with tiles of all kinds. */
void cuda_case_gated (const struct cuda_case_device *device);

/* Fails if a kernel of kernels/cuda has no test case. */
void cuda_case_is_complete (const struct cuda_case_device *device);
