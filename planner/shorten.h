/* shorten.h - a long step from two short ones.
 *
 * Once the pipeline is full, a step takes as much longer with each microbatch more (with each group of
 * them where stages have chunks): two short steps and the straight line through them stand for a long
 * one.  So does memory where a schedule begins all forward passes at once; elsewhere it stays. */
#pragma once
#include "core/report/report.h"

struct weft_shortened {
  uint32_t n;             /* jobs to look at: 1, the job itself, or 2 */
  struct weft_job job[2]; /* shorter first */
  double further;         /* groups that are left out after the second */
};

/* The same job with so many microbatches of the same size; rules may refuse it. */
struct weft_job weft_shorten_to (const struct weft_job *job, int64_t microbatches);

void weft_shorten (const struct weft_job *job, struct weft_shortened *shortened);

/* Seconds and bytes of the long step, from those of the jobs. */
double weft_shortened_seconds (const struct weft_shortened *shortened, const double seconds[2]);
double weft_shortened_bytes (const struct weft_shortened *shortened, const double bytes[2]);

/* Seconds, rates and shares of the report of the long step, from those of the jobs.  Memory stays what
 * it is. */
void weft_shortened_report (const struct weft_shortened *shortened, const struct weft_job *job,
                            weft_report *const of[2], weft_report *report);
