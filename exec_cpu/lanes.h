/* lanes.h - runs the issued ops of all ranks in a legal order. */
#pragma once
#include "exec_cpu/machine.h"

/* The main function of a thread: runs ready ranks until the machine closes. */
void *cpu_thread_main (void *machine);

/* Runs all ops of all ranks that were issued and have not run.  After an error the machine can only
 * be closed. */
gboolean cpu_run_issued (struct cpu_machine *m, GError **error);
