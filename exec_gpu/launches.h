/* launches.h - what the host of a GPU needs to issue things, on this machine. */
#pragma once
#include "core/plan/cost_table.h"
#include "exec_gpu/calls.h"

/* Times calls of one small kernel, into `out` by enum weft_host_cost: each by itself; and as many
 * as one graph, whose launch is told from what a node adds by a graph of one.  The quickest of
 * several rounds counts; before each, the device has nothing left to do, and no round fills its
 * queue. */
gboolean weft_gpu_time_launches (const struct weft_gpu_calls *calls, double *out, GError **error);
