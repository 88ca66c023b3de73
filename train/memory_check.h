/* memory_check.h - checks that the memory of a plan fits, before an executor allocates it. */
#pragma once
#include "core/plan/plan.h"

/* Checks the device memory of every rank and the host memory of every node against the topology. */
gboolean weft_memory_check_topology (const weft_plan *plan, GError **error);

/* Like weft_memory_check_topology(); also checks that the planned memory of all ranks together fits
 * into this machine (for the CPU executor). */
gboolean weft_memory_check_machine (const weft_plan *plan, GError **error);
