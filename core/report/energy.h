/* energy.h - joules of one training step, by part.
 *
 * A GPU draws one of a few powers, by what runs on it: section [gpu] of the topology has them. If
 * several kinds of work run at once, the row of WEFT_POWER_LIST that comes last counts. Time in
 * which a communication kernel waits for its peers counts as idle. Network ports, with their share
 * of the switches, and the rest of a node draw constant powers. A job on a part of a node has this
 * part of the node's power. Not included: storage, management, cooling outside the nodes and losses
 * of the supply, which the power usage effectiveness of a site stands for (pue in
 * planner/site.def).
 *
 * exec_sim/energy.h computes the joules of the GPUs from a timeline. */
#pragma once
#include "core/exec/timeline.h"
#include <json-glib/json-glib.h>

/* constant, word, field of the cluster, what it is */
#define WEFT_POWER_LIST(X)                                                                         \
  X (WEFT_POWER_IDLE, "idle", gpu_idle_power, "no kernel and no communication")                    \
  X (WEFT_POWER_COMMUNICATION, "communication", gpu_communication_power, "communication alone")    \
  X (WEFT_POWER_KERNELS, "kernels", gpu_memory_power, "kernels other than matmuls")                \
  X (WEFT_POWER_MATMULS, "matmuls", gpu_matmul_power, "matmuls and attention")
#define WEFT_POWER_ID(id, ...) id,
enum weft_power { WEFT_POWER_LIST (WEFT_POWER_ID) WEFT_N_POWER };
#undef WEFT_POWER_ID

/* From `date` on, a GPU is in this state. */
struct weft_power_change {
  double date; /* seconds since the step began */
  enum weft_power state;
};

typedef struct weft_energy {
  double seconds;                  /* of the step */
  double gpu_s[WEFT_N_POWER];      /* seconds of all GPUs together in each state */
  double gpu_j[WEFT_N_POWER];      /* joules of all GPUs together in each state */
  double links_j, nodes_j;         /* network ports with switches; nodes beside GPUs and ports */
  double gpus, tokens;             /* GPUs of the job, tokens of the step */
  double run_tokens;               /* tokens of a run; NAN: not given */
} weft_energy;

/* Whether the topology of a cluster gives all powers. The error names the keys that it lacks. */
gboolean weft_energy_check (const struct weft_cluster *cluster, GError **error);

/* The power of a GPU in each state. */
void weft_energy_watts (const struct weft_cluster *cluster, uint32_t gpu,
                        double watts[WEFT_N_POWER]);

/* Energy of a step of the plan in which the GPUs have consumed nothing yet. */
weft_energy weft_energy_begin (const weft_plan *plan, const weft_timeline *timeline);

/* The states of the GPU of one row of the timeline in the order of their dates, without repeated
 * states. The first change is at date 0. The caller frees the array of struct weft_power_change. */
GArray *weft_energy_changes (const weft_plan *plan, const weft_timeline *timeline, uint32_t row);

/* Joules of the GPUs, and of everything. */
double weft_energy_gpus (const weft_energy *energy);
double weft_energy_step (const weft_energy *energy);

/* kWh of the run; NAN without run_tokens. */
double weft_energy_run_kwh (const weft_energy *energy);

void weft_energy_print (const weft_energy *energy, GString *out);

/* Adds the member "energy" to the open JSON object:
 *   step_j, token_j     joules of the step, and for each token
 *   gpus                idle_j, communication_j, kernels_j, matmuls_j, total_j
 *   links_j, nodes_j    network ports and switches; nodes beside GPUs and ports
 *   gpu_watts           mean power of a GPU
 *   watts_per_gpu       the same with its share of links and nodes
 *   run_tokens, run_kwh tokens and kWh of a run; null if the tokens are not given */
void weft_energy_to_json (const weft_energy *energy, JsonBuilder *builder);
