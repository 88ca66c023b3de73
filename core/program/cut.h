/* cut.h - how tensor and expert parallelism divide a weight among ranks, and which elements of the
 * whole tensor a rank's part contains.
 *
 *   rows      each of [q | k | v] or [gate | up] is divided separately, so that a rank has queries
 *             with their keys and values. An embedding is divided into equal shares; the last share
 *             may end with padding, that is rows beyond the tensor
 *   columns   rank i has columns [i n, (i + 1) n) of every row
 *   experts   the rows of each expert are a block. The first `inner` ranks have the same experts,
 *             and divide each block by rows or columns; the next `inner` ranks have the next
 *             experts */
#pragma once
#include "core/job/model.h"
#include "core/program/program.h"

/* A run of n consecutive elements. The first of them has index `at` in a rank's part of the tensor
 * and index `first` in the whole tensor. */
struct weft_cut_run {
  uint64_t at, first, n;
};

/* Sets *run to the first run of consecutive elements in the range [at, end) of the part that
 * belongs to rank number `place`. Returns FALSE if these elements are padding. */
gboolean weft_cut_run (const struct weft_param *param, uint32_t place, uint64_t at, uint64_t end,
                       struct weft_cut_run *run);

/* Narrows the range [*at, *end) of a rank's part to the elements that may lie in the range
 * of->first, of->n of the whole tensor. */
void weft_cut_narrow (const struct weft_param *param, uint32_t place,
                      const struct weft_cut_run *of, uint64_t *at, uint64_t *end);

/* Rows of the keys, as many as rows of the values, in a part of [q | k | v]. The parameter has a
 * tail only if ranks divide it. */
static inline uint64_t
weft_param_tail (const struct weft_param *param, const union weft_model *model)
{
  return param->tail ? param->tail : (uint64_t) (model->num_query_groups * model->kv_channels);
}

/* Number of elements of the whole tensor. */
static inline uint64_t
weft_cut_whole (const struct weft_param *param)
{
  return param->whole_rows * param->whole_columns;
}
