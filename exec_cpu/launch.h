/* launch.h - runs the ops that need no other rank: kernels and copies. */
#pragma once
#include "exec_cpu/machine.h"

void cpu_launch (struct cpu_rank *r, uint32_t op);

/* Records that an op of any class (kernel, copy, collective, transfer) has ended, and releases its
 * buffers. Times are seconds since the step began. */
void cpu_launch_end (struct cpu_rank *r, uint32_t op, double begin, double end);
