/* traced.h - times of ops from those of their kernels. */
#pragma once
#include "exec_gpu/machine.h"

/* Starts to record what GPUs execute; returns why that is impossible, or NULL. */
const char *gpu_traced_open (struct gpu_machine *m);

/* Drops the records made between steps. */
void gpu_traced_forget (struct gpu_machine *m);

gboolean gpu_traced_fill (struct gpu_machine *m, weft_timeline *t, GError **error);
