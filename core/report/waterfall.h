/* waterfall.h - where MFU is lost: the seconds of a step as a sum of terms, from the model's FLOPs
 * at the printed peak of the GPU down to the idle time.
 *
 *   peak        the model's FLOPs at the peak: the step with an MFU of 100 %
 *   more FLOPs  FLOPs of matmuls and attention that the program executes beyond the model's
 *               (recompute, padding, a stage with more than its share), at the peak; below 0 if the
 *               observed stages have less than their share
 *   matmul, attention
 *               the seconds of these kernels beyond their FLOPs at the peak
 *   other classes of kernels
 *               their seconds
 *   axes        exposed communication (breakdown.h)
 *   host        the GPU waits for the next launch
 *   idle        nothing runs
 *   pipeline    instead of `idle` and of axis pp, if the job has pipeline stages: waits for other
 *               stages. A kernel of NCCL waits for its peer while it holds its stream, so in a
 *               measured trace the bubble is idle time or exposed communication of the pipeline; a
 *               prediction counts all of it as idle.
 *
 * The terms of a breakdown add up to its seconds. */
#pragma once
#include "core/report/breakdown.h"

/* Terms in order: peak, more FLOPs, classes of kernels, axes, host, idle, pipeline. */
enum {
  WEFT_TERM_PEAK,
  WEFT_TERM_MORE,
  WEFT_TERM_WORK,
  WEFT_TERM_AXIS = WEFT_TERM_WORK + WEFT_WORK_ALL_REDUCE,
  WEFT_TERM_HOST = WEFT_TERM_AXIS + WEFT_N_AXIS,
  WEFT_TERM_IDLE,
  WEFT_TERM_PIPELINE,
  WEFT_N_TERM
};

struct weft_waterfall {
  double seconds[WEFT_N_TERM];
};

struct weft_waterfall
weft_waterfall_new (const struct weft_job *job, const struct weft_breakdown *b);

/* The name of a term, for a reader: "matmul below the peak", "exposed tp". The caller frees it. */
char *weft_term_name (unsigned term);

/* Model FLOPs of a step of the job, of the mean GPU (weft_job_flops_per_token). */
double weft_waterfall_model_flops (const struct weft_job *job);
