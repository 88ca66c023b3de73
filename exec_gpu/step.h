/* step.h - runs a step: makes the calls of the call lists, or launches the captured graph. */
#pragma once
#include "exec_gpu/machine.h"

gboolean gpu_step_open (struct gpu_machine *m, GError **error);
void gpu_step_close (struct gpu_machine *m);

/* Makes all calls that belong to issued ops and have not yet been made in this step. */
gboolean gpu_step_run (struct gpu_machine *m, GError **error);

/* Waits until the GPUs have executed all work of the step. */
gboolean gpu_step_wait (struct gpu_machine *m, GError **error);
