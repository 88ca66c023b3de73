/* ready.h - the queue of ranks that threads may run. */
#pragma once
#include "exec_cpu/machine.h"

/* Appends a rank to the queue.  The caller holds the machine's lock. */
void cpu_ready_add (struct cpu_machine *m, uint32_t row);

/* Removes the first rank of the queue, which must not be empty.  The caller holds the lock. */
struct cpu_rank *cpu_ready_take (struct cpu_machine *m);

/* Wakes all ranks of a group after a change that they may be waiting for.  Takes the lock. */
void cpu_ready_wake_group (struct cpu_machine *m, const struct weft_group *group);

/* Wakes one rank after a change that it may be waiting for.  Takes the lock. */
void cpu_ready_wake (struct cpu_machine *m, uint32_t row);
