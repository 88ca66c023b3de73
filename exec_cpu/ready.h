/* ready.h - ranks that threads may run. */
#pragma once
#include "exec_cpu/machine.h"

/* Under the machine's lock: a rank is put behind those that wait for a thread; the first of
 * them. */
void cpu_ready_add (struct cpu_machine *m, uint32_t row);
struct cpu_rank *cpu_ready_take (struct cpu_machine *m);

/* After a change that other ranks may be waiting for: of a group, of one rank. */
void cpu_ready_wake_group (struct cpu_machine *m, const struct weft_group *group);
void cpu_ready_wake (struct cpu_machine *m, uint32_t row);
