/* traced.h - computes the times of ops from a trace of their kernels. */
#pragma once
#include "exec_gpu/machine.h"

/* Starts to record the kernels, copies and fills of GPUs. Returns NULL, or why this is not
 * possible. */
const char *gpu_traced_open (struct gpu_machine *m);

/* Discards trace records of work that ran between steps. */
void gpu_traced_forget (struct gpu_machine *m);


/* Sets the times of all ops of a timeline from the trace records of the step. */
gboolean gpu_traced_fill (struct gpu_machine *m, weft_timeline *t, GError **error);
