/* size_points.h - the points of size.h, which are clusters of one topology and size: which sizes
 * are searched, and what is computed from the result of a search. */
#pragma once
#include "planner/size.h"

/* The smallest number of GPUs, at least the given number, that a cluster can have: a part of one
 * node, or whole nodes. */
uint32_t weft_size_round (const struct weft_cluster *cluster, uint32_t gpus);

/* The next size of a search: twice as many GPUs. If this step leads from less than one node to more
 * than one node, the next size is one whole node. */
uint32_t weft_size_double (const struct weft_cluster *cluster, uint32_t gpus);

/* The largest number of GPUs that the fabric allows, but at most `most`. */
uint32_t weft_size_limit (const struct weft_cluster *cluster, uint32_t most);

/* Sets the number of GPUs of a job, and its batch if the job does not set it. */
gboolean weft_size_resize (struct weft_job *job, uint32_t gpus, double batch_tokens,
                           GError **error);

/* Adds a cluster to the search; does nothing if the cluster is there already. */
void weft_size_add (weft_size *size, unsigned topology, uint32_t gpus,
                    const struct weft_size_options *options);

/* Adds the sizes of a topology that the search tries next. Adds none if no further size can change
 * the answer. */
void weft_size_propose (weft_size *size, unsigned topology,
                        const struct weft_size_options *options);

/* Makes the job of a point before its search. `fixed` TRUE: all settings are those of the strategy
 * that was found for the point, and the search has nothing to choose. Returns FALSE if there is no
 * such cluster; the point is then marked as refused. */
gboolean weft_size_point_job (const weft_size *size, struct weft_size_point *point, gboolean fixed,
                              struct weft_job *job);

/* Computes costs, energy and goodput of points from the results of the searches. */
void weft_size_settle (weft_size *size, GArray *points, const struct weft_size_options *options);

/* Sorts the points; finds the Pareto front and the best point. */
void weft_size_finish (weft_size *size, const struct weft_size_options *options);
