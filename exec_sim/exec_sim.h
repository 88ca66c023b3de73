/* exec_sim.h - the SimGrid executor: contention on links (NVLink, PCIe, NIC, leaf, spine, torus)
 * and for SMs.
 *
 * SimGrid simulates a flat platform of links only. Kernels are timers, whose durations come from
 * Weft's own model of kernel rates (gpu.c). Data movement is SimGrid flows over the explicit links
 * of fabric.h. A collective is one flow per rank and class of links (fabric.h). With the option
 * step_by_step, the same traffic is cut into the rounds of the collective's algorithm.
 * Communication kernels occupy SMs from their launch on, also while they wait for peers; concurrent
 * compute kernels run on the remaining SMs. */
#pragma once
#include "core/exec/exec.h"

#define WEFT_SIM_OPTION_LIST(X)                                                                    \
  WEFT_OPTION_UNFOLDED (X)                                                                         \
  WEFT_OPTION_PREDICTED_GRAPH (X)                                                                  \
  X (int64_t, step_by_step, WEFT_TYPE_BOOL, "step-by-step", "false", NULL, NULL, "", NULL,         \
     "simulate collectives round by round, not as fluid flows")

union weft_sim_options {
  struct {
    WEFT_SIM_OPTION_LIST (WEFT_OPTION_MEMBER)
  };
  union weft_value at[0 WEFT_SIM_OPTION_LIST (WEFT_OPTION_ONE)];
};

extern const struct weft_exec_ops weft_exec_sim;

/* The executors that predict a step, NULL-terminated: this one, which is the default, and `clock`
 * of core/exec. */
extern const struct weft_exec_ops *const weft_predictors[];
