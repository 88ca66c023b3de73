/* collectives.h - the collective algorithms that a job takes from files (knob
 * collective_algorithm_files). */
#pragma once
#include "core/collective/algorithm.h"
#include "core/job/job.h"

/* The algorithm in a file, for the collectives of one kind of group. */
struct weft_job_algorithm {
  char *group; /* word of WEFT_GROUP_LIST (core/program/mesh.h), which the plan looks up */
  weft_algo_text *text;
};

/* Whether the job names any files. */
gboolean weft_job_has_algorithms (const struct weft_job *job);

/* Reads the files that the job names: an array of struct weft_job_algorithm, which the caller
 * frees with g_ptr_array_unref(); empty if there are none. NULL with an error if the knob or a file
 * has errors of notation. */
GPtrArray *weft_job_algorithms (const struct weft_job *job, GError **error);
