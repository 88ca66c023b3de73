/* host.h - host launch model: when the host thread of a rank issues its ops.
 *
 * One thread per rank issues kernels, copies and collectives in program order. Each launch takes
 * the stack's launch_seconds or the measured time (cost_table.h), plus the time of the framework's
 * code (the host_ fields of the stack, divided by the host_speed of the topology), and no op begins
 * before the host has issued it. An op needs no launch of its own if it joins another launch
 * (WEFT_OP_GROUPED), is part of another kernel (WEFT_OP_FUSED), launches nothing, or runs on the
 * host. One op counts as one launch: the host_ fields include the further kernels that a framework
 * uses for an op. Kernels for each expert are launches of their own (launches.h).
 *
 * The host runs ahead of the device, except where it waits for the device:
 *
 * - all stacks: for the row counts of experts, before it issues the all-to-all that needs them;
 * - host_waits: for all other values that it reads and for timers; also for the whole device after
 *   an exchange between stages, if batch_p2p_sync is on and the schedule is one of Megatron-Core's;
 * - norm_waits: for the gradient norm, before it issues the optimizer;
 * - expert_clamp_waits: for the whole device, before it issues an activation of experts that is
 *   priced as that of GPT-OSS;
 * - step_waits: for the end of each step.
 *
 * The ops issued between two such waits are a launch segment. Inside a segment, the issue time of
 * an op is the begin of the segment plus the launch times of the segment's ops up to this op.
 *
 * Between steps: a host that does not wait for the end of a step is ahead of the device when the
 * next step begins, by its lead (the time of the step on the device minus the time to issue it).
 * The model finds the lead by playing the role alone, step after step, until the lead stops
 * changing. If the host never waits and is faster than the device, the lead grows with every step,
 * and no op waits for its launch. If such a host is slower than the device, a step takes as long as
 * its launches.
 *
 * A captured graph is one launch for the whole step: no op waits for the host. */
#pragma once
#include "core/plan/plan.h"

struct weft_launch_segment {
  double before;    /* launch seconds of all ops before this segment */
  /* index in awaited[] of the first op that this segment waits for; the next segment's index is the
   * end */
  uint32_t awaited;
};

/* Launch model of one role (pipeline stage). */
typedef struct weft_host {
  uint32_t n_segment;
  /* n_segment segments, and one entry at the end for the end of `awaited` */
  struct weft_launch_segment *segment;
  uint32_t *awaited;                 /* ops that segments wait for, in the order of segments */
  uint32_t *segment_of;              /* [op] */
  double *upto;                      /* [op]: launch seconds of all ops up to and including this
                                      * op */
  double launches;                   /* launch seconds of the whole step */
  double lead; /* host launch lead in seconds: the first segment begins this long before the step */
} weft_host;

/* Makes the launch model of a role. Returns NULL if no op ever waits for the host: launches take no
 * time, the rank is a CPU thread, or the host is always ahead of the device. `graph`: the step is
 * one captured graph. */
weft_host *weft_host_new (const weft_plan *plan, uint32_t role, gboolean graph);
void weft_host_free (weft_host *host);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_host, weft_host_free)

/* The launch models of all roles, by role; entries may be NULL. */
weft_host **weft_hosts_new (const weft_plan *plan, gboolean graph);

/* Frees all models and the array. `hosts` may be NULL. */
void weft_hosts_free (weft_host **hosts, uint32_t n_roles);

/* The first op that the host can issue only after reading row counts that the step computed;
 * WEFT_NO_OP if there is no such op. A step with such an op cannot be captured as a graph. */
uint32_t weft_host_reads (const weft_program *program);

/* The launch segments that the host of one rank has begun. `begin` is NULL if the rank has no
 * launch model. */
struct weft_host_clock {
  uint32_t open; /* number of segments that have begun */
  double *begin; /* begin of each segment, seconds */
};
struct weft_host_clock weft_host_clock_new (const weft_host *host);
void weft_host_clock_clear (struct weft_host_clock *clock);

/* Function that returns the end of an op of this rank in seconds; NaN if the op has not ended. */
typedef double (*weft_host_end) (void *user, uint32_t op);

/* Whether the time at which the host issues `op` is known. TRUE: *date is that time, in seconds
 * from the begin of the step. This function also begins all launch segments whose awaited ops have
 * ended. */
gboolean weft_host_issues (const weft_host *host, struct weft_host_clock *clock, uint32_t op,
                           weft_host_end end, void *user, double *date);

/* The launch wait of a rank in seconds: the time in which its compute lane was idle and the next op
 * was ready, but not yet issued. `begin` and `end` are the rank's timeline, in seconds by op. */
double weft_host_waited (const weft_host *host, const weft_program *program, const double *begin,
                         const double *end);
