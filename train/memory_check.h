/* memory_check.h - checks that the memory of a plan fits, before an executor allocates it. */
#pragma once
#include "core/exec/exec.h"

/* Bytes of the planned memory of all ranks together, in all pools. */
double weft_memory_total (const weft_plan *plan);

/* Checks the device memory of every rank and the host memory of every node against the topology.
 * For an executor with WEFT_EXEC_HOST it also checks that the planned memory of all ranks together
 * fits into this machine. */
gboolean weft_memory_check (const weft_plan *plan, const struct weft_exec_ops *ops, GError **error);
