/* step.h - one step. */
#pragma once
#include "exec_gpu/machine.h"

gboolean gpu_step_open (struct gpu_machine *m, GError **error);
void gpu_step_close (struct gpu_machine *m);
gboolean gpu_step_run (struct gpu_machine *m, GError **error);  /* what has been issued */
gboolean gpu_step_wait (struct gpu_machine *m, GError **error); /* for the end of it */
