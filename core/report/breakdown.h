/* breakdown.h - what fills the seconds of a step: kernels by class, communication by collective and
 * axis, waits for the host, idle time.
 *
 * A step is a list of activities: a kernel, a collective or a copy, from its begin to its end. The
 * list comes from a predicted timeline or from a measured trace (interop/traces/measured.h), so
 * both have the same classes. At every moment exactly one thing has the time:
 *
 *   - kernels, while one runs (several kernels share the moment equally);
 *   - otherwise communication, while some runs (shared in the same way): it is exposed;
 *   - otherwise the host, if the next activity was not launched yet;
 *   - otherwise nothing: the GPU is idle.
 *
 * So these times add up to the step. The exposed time of one axis in report.h is another number:
 * two axes that are exposed at the same moment count it twice there, and half each here. */
#pragma once
#include "core/exec/timeline.h"

/* Classes of work. Communication classes come last. Each row: constant, word, one line. */
#define WEFT_WORK_LIST(X)                                                                          \
  X (WEFT_WORK_MATMUL, "matmul", "matrix products")                                                \
  X (WEFT_WORK_ATTENTION, "attention", "attention in one kernel")                                  \
  X (WEFT_WORK_NORM, "norm", "layernorm and rmsnorm")                                              \
  X (WEFT_WORK_POINTWISE, "pointwise", "activations, residuals, rotary, dropout, casts, lookups")  \
  X (WEFT_WORK_SOFTMAX, "softmax", "softmax of attention scores, and the loss")                    \
  X (WEFT_WORK_QUANTISE, "quantise", "conversions to fp8, and their scales")                       \
  X (WEFT_WORK_OPTIMIZER, "optimizer", "update of the weights, and the gradient norm")             \
  X (WEFT_WORK_DISPATCH, "dispatch", "routing of tokens to experts, and permutation of rows")      \
  X (WEFT_WORK_COPY, "copy", "copies and fills inside GPU memory")                                 \
  X (WEFT_WORK_OTHER, "other", "kernels of an unknown class")                                      \
  X (WEFT_WORK_ALL_REDUCE, "all_reduce", "all-reduces")                                            \
  X (WEFT_WORK_REDUCE_SCATTER, "reduce_scatter", "reduce-scatters")                                \
  X (WEFT_WORK_ALL_GATHER, "all_gather", "all-gathers")                                            \
  X (WEFT_WORK_ALL_TO_ALL, "all_to_all", "all-to-alls")                                            \
  X (WEFT_WORK_BROADCAST, "broadcast", "broadcasts")                                               \
  X (WEFT_WORK_SEND_RECV, "send_recv", "sends and receives between two ranks")                     \
  X (WEFT_WORK_COMMUNICATION, "communication", "other communication")                              \
  X (WEFT_WORK_HOST_COPY, "host_copy", "copies between GPU and host")
enum weft_work { WEFT_WORK_LIST (WEFT_WORD_ID) WEFT_N_WORK };
extern const char *const weft_work_words[]; /* NULL-terminated */

/* Whether work of a class moves data between GPUs, or between GPU and host. */
static inline gboolean
weft_work_moves (enum weft_work work)
{
  return work >= WEFT_WORK_ALL_REDUCE;
}

/* The class of an op. */
enum weft_work weft_work_of_op (enum weft_op_kind kind);

/* The axis of an activity is the lane of its op, with both lanes of the pipeline as WEFT_LANE_PP;
 * WEFT_LANE_GPU for kernels. This value follows the lanes: communication of an unknown axis. */
enum { WEFT_AXIS_UNKNOWN = WEFT_N_LANE, WEFT_N_AXIS };
const char *weft_axis_word (unsigned axis);

/* Times are seconds. */
struct weft_activity {
  double begin, end;
  double launched;    /* when the host launched it; NaN: not known */
  uint8_t work, axis; /* enum weft_work; enum weft_lane or WEFT_AXIS_UNKNOWN */
  uint8_t silent;     /* TRUE: part of the launch of another activity, so not a call */
};

struct weft_breakdown_cell {
  double calls;
  double busy_s;  /* sum of the lengths of the activities */
  double alone_s; /* share of the step, as defined above; of communication: exposed seconds */
};

/* Numbers of one rank, or of the mean rank. */
struct weft_breakdown {
  double seconds; /* length of the step */
  struct weft_breakdown_cell cell[WEFT_N_WORK][WEFT_N_AXIS];
  double host_s, idle_s;
  double flops[WEFT_N_WORK]; /* FLOPs of the program, by class */
};

/* Computes the breakdown of the activities between `begin` and `end`; parts outside are cut off.
 * Activities that begin before `begin` are no calls. Sorts the array. `flops` stays 0. */
struct weft_breakdown weft_breakdown_of (GArray *activities, double begin, double end);

/* Adds `weight` times a breakdown to a sum. */
void
weft_breakdown_add (struct weft_breakdown *sum, const struct weft_breakdown *one, double weight);

/* Adds `weight` times the FLOPs of a role's program. */
void weft_breakdown_add_flops (struct weft_breakdown *sum, const weft_plan *plan, uint32_t role,
                               double weight);

/* The mean rank of a timeline, over the roles that are TRUE in `roles` (NULL: all); the weights are
 * those of report.h. host_s is the timeline's launch_wait, as far as the rank is idle. */
struct weft_breakdown
weft_breakdown_of_timeline (const weft_plan *plan, const weft_timeline *t, const gboolean *roles);

/* Exposed seconds of an axis: the sum over all classes of communication. */
double weft_breakdown_exposed (const struct weft_breakdown *b, unsigned axis);

/* Seconds in which a kernel runs. */
double weft_breakdown_compute (const struct weft_breakdown *b);
