/* lanes.h - runs the issued ops of all ranks in a legal order. */
#pragma once
#include "exec_cpu/machine.h"

void *cpu_thread_main (void *machine); /* runs ranks until the machine closes */

/* Runs all ops that were issued and have not run, on all ranks.  After an error the machine can
 * only be closed. */
gboolean cpu_run_issued (struct cpu_machine *m, GError **error);
