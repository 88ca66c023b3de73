/* algorithms.h - the collective algorithms of a plan that are data: each for the collectives of one
 * kind among the members of one group. */
#pragma once
#include "core/collective/algorithm.h"
#include "core/job/job.h"
#include "core/program/mesh.h"
#include "core/program/program.h"

typedef struct weft_algorithms weft_algorithms;

/* Reads the files that the job names and proves each algorithm for the size of its group. NULL with
 * an error if one does not hold. The result has no algorithms if the job names no files. */
weft_algorithms *weft_algorithms_new (const struct weft_job *job, const struct weft_mesh *mesh,
                                      GError **error);
void weft_algorithms_free (weft_algorithms *algorithms);

/* The algorithm for collectives of this kind among the members of a group; NULL: the library's.
 * Groups of other kinds that have the same members use the same algorithm. */
const weft_algo *weft_algorithms_find (const weft_algorithms *algorithms,
                                            const struct weft_group *group, enum weft_op_kind kind);

/* Checks that every algorithm is used: the programs have a collective of its kind in its group. */
gboolean weft_algorithms_check_used (const weft_algorithms *algorithms,
                                     weft_program *const *programs, GError **error);
