/* reserved.h - memory of the first GPU of this process that is outside the plan. */
#pragma once
#include "exec_gpu/machine.h"

/* Assigns the memory that was allocated since the last call to `who`.  For WEFT_RESERVED_SCRATCH,
 * the arenas have been allocated meanwhile too, and only the scratch of kernels counts. */
gboolean gpu_reserved_measure (struct gpu_machine *m, enum weft_reserved who, GError **error);

/* Copies the measured bytes to a timeline. */
void gpu_reserved_report (const struct gpu_machine *m, weft_timeline *t);
