/* shorten.h - extrapolates a long step from two short steps.
 *
 * Once the pipeline is full, every further microbatch (every further group of microbatches, if
 * ranks have several chunks) adds the same time to a step. The line through the times of two short
 * steps therefore gives the time of a long step. Memory grows in the same way if the schedule
 * begins with all forward passes; otherwise memory is constant. */
#pragma once
#include "core/report/report.h"

struct weft_shortened {
  uint32_t n;             /* number of short steps: 1 (the job itself) or 2 */
  struct weft_job job[2]; /* the shorter job and the longer job */
  /* how many times the difference of the two the step is longer than that of job[1] */
  double further;
};

/* Makes the job with another number of microbatches of the same size. The result may break a
 * rule. */
struct weft_job weft_shorten_to (const struct weft_job *job, int64_t microbatches);

/* Makes the job with the fewest microbatches from which the needs of each microbatch can be
 * computed: one group, at least two microbatches. */
struct weft_job weft_shorten_most (const struct weft_job *job);

/* Chooses the short steps from which a job's step is extrapolated. */
void weft_shorten (const struct weft_job *job, struct weft_shortened *shortened);

/* Whether memory grows with the number of microbatches. */
gboolean weft_shortened_grows (const struct weft_shortened *shortened);

/* The seconds and bytes of the long step, by extrapolation from the values of the short steps. */
double weft_shortened_seconds (const struct weft_shortened *shortened, const double seconds[2]);
double weft_shortened_bytes (const struct weft_shortened *shortened, const double bytes[2]);

/* Sets seconds, rates, fractions and the communication of each axis in the report of the long step,
 * by extrapolation from the reports of the short steps. `late`: seconds by which ops of the long
 * step wait longer than extrapolated; they count as idle. The memory in the report is not
 * changed. */
void weft_shortened_report (const struct weft_shortened *shortened, const struct weft_job *job,
                            weft_report *const of[2], double late, weft_report *report);
