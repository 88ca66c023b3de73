/* reserved.h - measures memory of this process's first GPU that is not part of the plan. */
#pragma once
#include "exec_gpu/machine.h"

/* Assigns the memory that was allocated since the last call of this function to the user `who`. For
 * WEFT_RESERVED_SCRATCH, counts only the scratch of kernels, because the memory pools belong to the
 * plan. */
gboolean gpu_reserved_measure (struct gpu_machine *m, enum weft_reserved who, GError **error);

/* Copies the measured numbers of bytes to a timeline. */
void gpu_reserved_report (const struct gpu_machine *m, weft_timeline *t);
