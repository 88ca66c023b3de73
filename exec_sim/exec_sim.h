/* exec_sim.h - the SimGrid executor: contention on NVLink, PCIe, NIC, leaf and spine links, and on
 * SMs.
 *
 * SimGrid sees a small flat platform of links only.  Kernels are timers of our own rate model
 * (gpu.c); what moves data is a SimGrid flow over the explicit links of fabric.h.  A collective is,
 * for each of its ranks, one or two fluid flows (coll.h), or the same cut into rounds
 * (step_by_step).  Communication kernels hold SMs from the moment they are launched, waiting for
 * others included, and kernels beside them run with the SMs that are left. */
#pragma once
#include "core/exec/exec.h"

extern const struct weft_exec_ops weft_exec_sim;
