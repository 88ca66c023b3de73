/* exec_sim.h - the SimGrid executor: contention on links (NVLink, PCIe, NIC, leaf, spine, torus)
 * and for SMs.
 *
 * SimGrid simulates a flat platform of links only. Kernels are timers, whose durations come from
 * Weft's own model of kernel rates (gpu.c). Data movement is SimGrid flows over the explicit links
 * of fabric.h. A collective is one flow per rank and class of links (fabric.h). With the option
 * step_by_step, the same traffic is cut into the rounds of the collective's algorithm.
 * Communication kernels occupy SMs from their launch on, also while they wait for peers; concurrent
 * compute kernels run on the remaining SMs.
 *
 * Slow GPUs, slow links and noise of kernel times: core/plan/disturb.h. With slow GPUs or links,
 * only ranks near them are simulated one by one (core/plan/actors.h); with noise, all ranks are.
 * With the option waits, the timeline says which ranks waited for which. */
#pragma once
#include "core/exec/exec.h"
#include "core/plan/disturb.h"

#define WEFT_SIM_OPTION_LIST(X)                                                                    \
  WEFT_OPTION_UNFOLDED (X)                                                                         \
  WEFT_OPTION_PREDICTED_GRAPH (X)                                                                  \
  X (int64_t, step_by_step, WEFT_TYPE_BOOL, "step-by-step", "false", NULL, NULL, "", NULL,         \
     "simulate collectives round by round, not as fluid flows")                                    \
  X (int64_t, straggler, WEFT_TYPE_TEXT, "straggler", "", NULL, NULL, "", NULL,                \
     "slow kernels: " WEFT_STRAGGLER_FORM)                                                         \
  X (int64_t, link, WEFT_TYPE_TEXT, "link", "", NULL, NULL, "", NULL,                          \
     "slow links: " WEFT_SLOW_LINK_FORM)                                                           \
  X (double, jitter, WEFT_TYPE_REAL, "jitter", "0", "0", "1", "", NULL,                            \
     "noise of kernel times: their standard deviation as a share, such as 0.05")                   \
  X (int64_t, jitter_seed, WEFT_TYPE_INT, "jitter-seed", "1", "0", "9007199254740992", "", NULL,   \
     "seed of the noise")                                                                          \
  X (int64_t, waits, WEFT_TYPE_BOOL, "waits", "false", NULL, NULL, "", NULL, NULL)

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
