/* launches.h - the host time of launches on this machine. */
#pragma once
#include "core/plan/cost_table.h"
#include "exec_gpu/calls.h"

/* Measures the host seconds of launches of one small kernel, into out[enum weft_host_cost]: of one
 * kernel launch, of the launch of a graph, and of each further node of a graph.  The time of a node
 * follows from the difference between a graph of many kernels and a graph of one.  The quickest of
 * several rounds counts.  Before each round the device is idle, and no round fills its queue. */
gboolean weft_gpu_time_launches (const struct weft_gpu_calls *calls, double *out, GError **error);
