/* launches.h - measures the host time of kernel and graph launches on this machine. */
#pragma once
#include "core/plan/cost_table.h"
#include "exec_gpu/calls.h"

/* Measures the time in seconds that the host needs to launch work on the GPU, and stores three
 * results in out[enum weft_host_cost]: the launch of one small kernel, the launch of a graph, and
 * each further node of a graph. The time of a node is computed from a graph of many kernels and a
 * graph of one kernel. Each result is that of the fastest of several rounds. Before each round the
 * device is idle, and no round fills the device's launch queue. */
gboolean weft_gpu_time_launches (const struct weft_gpu_calls *calls, double *out, GError **error);
