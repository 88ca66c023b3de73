/* reserved.h - GPU memory that is not the plan's, of the first GPU of this process. */
#pragma once
#include "exec_gpu/machine.h"

/* What has been taken since the last call belongs to `who`.  At WEFT_RESERVED_SCRATCH the arenas
 * have been allocated too, and only the scratch of kernels counts. */
gboolean gpu_reserved_measure (struct gpu_machine *m, enum weft_reserved who, GError **error);

/* Sets the figures of a timeline. */
void gpu_reserved_report (const struct gpu_machine *m, weft_timeline *t);
