/* exec_cpu.h - the executor of real numbers on any CPU.
 *
 * A rank has lanes and runs whatever lane head is ready, one at a time, on a thread that it shares
 * with other ranks; it sleeps when none is.  Memory is one arena a rank, exactly as planned;
 * nothing is allocated inside a step.  Collectives and transfers read the memory of their peers. */
#pragma once
#include "core/exec/exec.h"
#include "exec_cpu/cpu_options.h"

extern const struct weft_exec_ops weft_exec_cpu;
