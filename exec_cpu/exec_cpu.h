/* exec_cpu.h - the executor that computes real numbers on any CPU.
 *
 * A rank runs the ops at the heads of its lanes that are ready, one at a time, on a thread that it
 * shares with other ranks.  A rank without a ready op sleeps.  Each rank has one arena for each
 * pool, exactly as planned; a step allocates nothing.  Collectives and transfers read the memory of
 * other ranks. */
#pragma once
#include "core/exec/exec.h"
#include "exec_cpu/cpu_options.h"

extern const struct weft_exec_ops weft_exec_cpu;
