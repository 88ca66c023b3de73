/* reserved.h - memory of the first GPU of this process that is outside the plan. */
#pragma once
#include "exec_gpu/machine.h"

/* Counts the memory that was allocated since the last call of this function as memory of `who`. For
 * WEFT_RESERVED_SCRATCH, counts only the scratch of kernels: the arenas belong to the plan. */
gboolean gpu_reserved_measure (struct gpu_machine *m, enum weft_reserved who, GError **error);

/* Copies the measured bytes to a timeline. */
void gpu_reserved_report (const struct gpu_machine *m, weft_timeline *t);
