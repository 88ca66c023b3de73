/* cut.h - how tensor and expert parallelism cut a tensor: mapping of a rank's part to the whole.
 *
 *   rows      each part of [q | k | v] or [gate | up] is cut separately, so that rank i has queries
 *             with their keys and values; a table is cut into equal shares, the last of which may
 *             end with rows beyond the tensor: padding
 *   columns   rank i has columns [i n, (i + 1) n) of every row
 *   experts   the rows of each expert are a block; of n ranks, `inner` neighbours have the same
 *             blocks and cut each as above; the next `inner` ranks have the next blocks */
#pragma once
#include "core/program/program.h"

/* n consecutive elements: the first is element `at` of a rank's part and `first` of the tensor. */
struct weft_cut_run {
  uint64_t at, first, n;
};

/* The first run of elements [at, end) of the part of rank `place`; FALSE if they are padding. */
gboolean weft_cut_run (const struct weft_param *param, uint32_t place, uint64_t at, uint64_t end,
                       struct weft_cut_run *run);

/* Narrows elements [*at, *end) of a part to those that may lie in elements [first, first + n) of
 * the tensor, given in `of`. */
void weft_cut_narrow (const struct weft_param *param, uint32_t place,
                      const struct weft_cut_run *of, uint64_t *at, uint64_t *end);

/* Elements of the whole tensor. */
static inline uint64_t
weft_cut_whole (const struct weft_param *param)
{
  return param->whole_rows * param->whole_columns;
}
