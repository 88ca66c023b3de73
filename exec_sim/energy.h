/* energy.h - joules of the GPUs in a predicted step (core/report/energy.h), counted by SimGrid's
 * plugin for the energy of hosts.
 *
 * A second simulation follows the timeline of the first: a meter (bridge.h) for each row, whose
 * state changes when ops begin and end. So dates of the step do not depend on whether its energy is
 * asked for, and every executor that predicts has one. The joules of a row count for all ranks that
 * the row stands for. */
#pragma once
#include "core/report/energy.h"

/* Measures the energy of a step. Refuses a cluster without powers. No simulation may be open. */
gboolean weft_sim_energy (const weft_plan *plan, const weft_timeline *timeline,
                          weft_energy *energy, GError **error);
