/* cuda_case.h - all cases of CUDA's kernels, for whatever launches them: the emulator, or a GPU.
 *
 * Every call is made twice, and both must leave the same bits: an emulator takes its threads in
 * another order the second time, a GPU does as it likes. */
#pragma once
#include "tests/made/kernel_case.h"

struct cuda_case_device {
  gboolean (*has_kernel) (void *user, enum weft_op_kind kind);
  /* Runs a call whose operands and control lie in memory of the host, and leaves its results there.
   * Scratch is as large as the op says, and what lies behind it stays as it is. */
  void (*launch) (void *user, const struct weft_kernel *k, gboolean again);
  void *user;
  const char *only; /* the word of an op: cases of others are left out; NULL: all */
  /* 10 * major + minor of a GPU, which has not all tensor cores; 0: of the host, which has all */
  int arch;
};

/* Whether the device has a kernel for an op, and cases of it are wanted. */
gboolean cuda_case_has (const struct cuda_case_device *device, enum weft_op_kind kind);

/* Random shapes of the ops that kernel_case.h draws; attention in tiles, with lengths around
 * theirs: against the fp64 references. */
void cuda_case_drawn (const struct cuda_case_device *device);
void cuda_case_tiles (const struct cuda_case_device *device);

/* The other ops, with a shape or two of their own: against the kernels of the CPU. */
void cuda_case_fixed (const struct cuda_case_device *device);

/* A call, by the kernel of the CPU and twice by that of the device, with the same bits where nobody
 * asked for fused attention without deterministic_mode.  No element may be further from the CPU's
 * than rounding to its type and `tolerance` of the largest explain.  Operands are the caller's, who
 * frees them with cuda_case_free(); they hold what the CPU has made, which is all that happens to
 * an op that no cases are wanted of. */
void cuda_case_alike (const struct cuda_case_device *device, const struct weft_kernel *k,
                      double tolerance);
void cuda_case_free (struct weft_kernel *k);

/* Of an operand's memory. */
uint64_t cuda_case_bytes (const struct weft_operand *operand);

/* Random operands for it: numbers of a floating type from -1 to 1, counts from 0 to `most`. */
struct weft_operand cuda_case_floats (GRand *rand, uint64_t n, enum weft_dtype dtype);
struct weft_operand cuda_case_counts (GRand *rand, uint64_t n, uint64_t most);

/* Attention of whole sequences and of parts of them, windows, values of another width. */
void cuda_case_attention (const struct cuda_case_device *device);

/* Attention of whole sequences by the vendor's library, in shapes that it takes on Hopper GPUs. */
void cuda_case_fused_attention (const struct cuda_case_device *device);

/* Attention that keeps its scores. */
void cuda_case_scores (const struct cuda_case_device *device);

/* Numbers of one byte, and products with weights of them. */
void cuda_case_fp8 (const struct cuda_case_device *device);

/* Layers of experts against the fp64 reference; rows of several sources, weights, tallies, products
 * of many rows against the kernels of the CPU. */
void cuda_case_experts (const struct cuda_case_device *device);

/* AdamW that rounds weights by lot. */
void cuda_case_lots (const struct cuda_case_device *device);

/* The last of these alone; and products of codes with scales of tensors and of 128 elements. */
void cuda_case_expert_products (const struct cuda_case_device *device);
void cuda_case_expert_codes (const struct cuda_case_device *device);

/* Fails for a kernel that none of these has a case of. */
void cuda_case_is_complete (const struct cuda_case_device *device);
