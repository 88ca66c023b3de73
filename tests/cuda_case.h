/* cuda_case.h - all cases of CUDA's kernels, for whatever launches them: the emulator, or a GPU.
 *
 * Every call is made twice, and both must leave the same bits: an emulator takes its threads in
 * another order the second time, a GPU does as it likes. */
#pragma once
#include "tests/kernel_case.h"

struct cuda_case_device {
  gboolean (*has_kernel) (void *user, enum weft_op_kind kind);
  /* Runs a call whose operands and control lie in memory of the host, and leaves its results there.
   * Scratch is as large as the op says, and what lies behind it stays as it is. */
  void (*launch) (void *user, const struct weft_kernel *k, gboolean again);
  void *user;
};

/* Random shapes of the ops that kernel_case.h draws; attention in tiles, with lengths around theirs:
 * against the fp64 references. */
void cuda_case_drawn (const struct cuda_case_device *device);
void cuda_case_tiles (const struct cuda_case_device *device);

/* The other ops, with a shape or two of their own: against the kernels of the CPU. */
void cuda_case_fixed (const struct cuda_case_device *device);

/* Fails for a kernel that none of these has a case of. */
void cuda_case_is_complete (const struct cuda_case_device *device);
