#include "kernels/kernel.h"

const struct weft_kernel_row weft_kernels[WEFT_N_OP] = {
#define WEFT_KERNEL_ROW(id, name, splits)                                                          \
  [id] = { weft_cpu_##name, weft_ref_##name, weft_extent_##name, splits },
  WEFT_KERNEL_LIST (WEFT_KERNEL_ROW)
#undef WEFT_KERNEL_ROW
};
