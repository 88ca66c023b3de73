/* cut.h - where what a rank holds of a tensor lies in the whole of it.
 *
 *   rows      of [q | k | v] or [gate | up] each part is cut by itself, so that rank i has its queries
 *             and the keys and values that they look at; a table is cut into equal shares, of which
 *             the last may end with rows that the tensor does not have: padding
 *   columns   rank i has columns [i n, (i + 1) n) of every row
 *   experts   rows of experts one after the other, each a block: of n ranks, `inner` neighbours have the
 *             same ones and cut each block as above; those after them have the next blocks */
#pragma once
#include "core/program/program.h"

/* n elements from `at` on of a rank's part, which are elements from `first` on of the tensor. */
struct weft_cut_run {
  uint64_t at, first, n;
};

/* The first run of elements [at, end) of the part of rank `place`; FALSE where they are padding. */
gboolean weft_cut_run (const struct weft_param *param, uint32_t place, uint64_t at, uint64_t end,
                       struct weft_cut_run *run);

/* Elements [*at, *end) of a part without those that surely lie outside of elements [first, first + n) of
 * the tensor, as `of` says. */
void weft_cut_narrow (const struct weft_param *param, uint32_t place,
                      const struct weft_cut_run *of, uint64_t *at, uint64_t *end);

/* Elements of the whole tensor. */
static inline uint64_t
weft_cut_whole (const struct weft_param *param)
{
  return param->whole_rows * param->whole_columns;
}
