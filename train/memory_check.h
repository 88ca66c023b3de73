/* memory_check.h - whether the memory of a plan fits before an executor allocates it. */
#pragma once
#include "core/exec/exec.h"

/* Checks device and host memory of each rank against the topology, before anything is allocated.
 * With WEFT_EXEC_HOST all ranks together must also fit into the memory of this machine. */
gboolean weft_memory_check (const weft_plan *plan, const struct weft_exec_ops *ops, GError **error);
