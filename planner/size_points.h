/* size_points.h - the clusters of size.h: which sizes are searched, and what follows from the
 * result of a search. */
#pragma once
#include "planner/size.h"

/* The nearest number of GPUs, not below, that a cluster can have: a part of one node, or whole
 * nodes. */
uint32_t weft_size_round (const struct weft_cluster *cluster, uint32_t gpus);

/* Twice as many GPUs; a whole node between less and more than a node. */
uint32_t weft_size_double (const struct weft_cluster *cluster, uint32_t gpus);

/* The largest number of GPUs, at most `most`, that the fabric allows. */
uint32_t weft_size_limit (const struct weft_cluster *cluster, uint32_t most);

/* Sets the size of the cluster, and the batch if the job does not give it. */
gboolean weft_size_resize (struct weft_job *job, uint32_t gpus, double batch_tokens,
                           GError **error);

/* Adds a cluster that is not searched yet; does nothing if it is there already. */
void weft_size_add (weft_size *size, unsigned topology, uint32_t gpus,
                    const struct weft_size_options *options);

/* Adds the next sizes of a topology; none if all are known that matter. */
void weft_size_propose (weft_size *size, unsigned topology,
                        const struct weft_size_options *options);

/* The job of a point before the search. `fixed`: with the strategy of the point, and no setting is
 * open. Returns FALSE if there is no such cluster; then the point is refused. */
gboolean weft_size_point_job (const weft_size *size, struct weft_size_point *point, gboolean fixed,
                              struct weft_job *job);

/* Computes what follows from the results of the searches. */
void weft_size_settle (weft_size *size, GArray *points, const struct weft_size_options *options);

/* Sorts the points; finds the Pareto front and the best point. */
void weft_size_finish (weft_size *size, const struct weft_size_options *options);
