/* host.h - when the host thread of a rank issues its ops.
 *
 * A rank has one thread that issues kernels, copies and collectives in program order.  Each launch
 * takes the stack's launch_seconds, or as long as measured (cost_table.h); no op begins before it
 * was issued.  Ops that join another launch (WEFT_OP_GROUPED) or another kernel (WEFT_OP_FUSED),
 * that launch nothing, or that run on the host cost no launch.  One op counts as one launch: a
 * framework that needs several kernels for an op has a slower host than this model.
 *
 * The host runs ahead of the device, and waits for it:
 *
 *  - for the token counts of experts, before it issues the exchange of rows (all stacks);
 *  - with host_waits for all other values that it reads, at timers, and for the whole device where
 *    batch_p2p_sync asks for it and the schedule is Megatron-Core's 1f1b;
 *  - with norm_waits for the norm of the gradients, before it issues the optimizer;
 *  - with step_waits for the end of each step.
 *
 * Between two waits lies a launch segment, in which an op is issued at the begin of the segment
 * plus the launches before it.
 *
 * A host that does not wait for the end of a step is ahead of the device when the next step begins,
 * by the host launch lead: the device's time of a step less the host's time to issue it.  It is
 * found by replaying the role alone until the lead stays the same.  The lead of a host that never
 * waits and is faster than its device grows with every step, and no op waits for its launch; with a
 * slower host, a step takes as long as its launches.
 *
 * A graph is one launch of the whole step, in which no op waits for the host. */
#pragma once
#include "core/plan/plan.h"

struct weft_host_segment {
  double before;    /* seconds of launches of all ops before it */
  uint32_t awaited; /* first index into awaited[]; ends where the next segment begins */
};

/* The host of one role. */
typedef struct weft_host {
  uint32_t n_segments;
  struct weft_host_segment *segment; /* n_segments + 1 rows: the last only closes awaited */
  uint32_t *awaited;                 /* ops whose end a segment waits for */
  uint32_t *segment_of;              /* [op] */
  double *upto;                      /* [op]: seconds of launches up to and with the op's own */
  double launches;                   /* of the whole step */
  double lead;                       /* host launch lead, seconds: the first segment begins
                                        so long before the step */
} weft_host;

/* NULL where nothing ever waits for the host: launches cost nothing, a rank is a thread of a CPU,
 * or the device is always behind.  `graph`: the step is one graph. */
weft_host *weft_host_new (const weft_plan *plan, uint32_t role, gboolean graph);
void weft_host_free (weft_host *host);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_host, weft_host_free)

/* By role, for an executor; frees all and the array. */
weft_host **weft_hosts_new (const weft_plan *plan, gboolean graph);
void weft_hosts_free (weft_host **hosts, uint32_t n_roles);

/* An op that the host cannot issue before it has read what the step computed: such a step is no
 * graph.  WEFT_NO_OP: none is. */
uint32_t weft_host_reads (const weft_program *program);

/* How far the host of one rank is; begin is NULL without a host. */
struct weft_host_clock {
  uint32_t open; /* launch segments that have begun */
  double *begin; /* of each */
};
struct weft_host_clock weft_host_clock_new (const weft_host *host);
void weft_host_clock_clear (struct weft_host_clock *clock);

/* The end of an op of this rank, or not a number while it has not ended. */
typedef double (*weft_host_end) (void *user, uint32_t op);

/* Whether it is known when `op` is issued, and when.  Stretches begin as far as ends are known. */
gboolean weft_host_issues (const weft_host *host, struct weft_host_clock *clock, uint32_t op,
                           weft_host_end end, void *user, double *date);

/* Seconds for which lane gpu stood because an op that could have begun had not been issued, in a
 * timeline of that rank: begin and end by op. */
double weft_host_waited (const weft_host *host, const weft_program *program, const double *begin,
                         const double *end);
