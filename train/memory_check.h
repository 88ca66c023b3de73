/* memory_check.h - whether the memory of a plan fits before an executor allocates it. */
#pragma once
#include "core/plan/plan.h"

/* Checks device and host memory of each rank against the topology, before anything is allocated. */
gboolean weft_memory_check_topology (const weft_plan *plan, GError **error);

/* Also checks that all ranks together fit into the memory of this machine (CPU executor). */
gboolean weft_memory_check_machine (const weft_plan *plan, GError **error);
