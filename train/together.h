/* together.h - what processes that train one job agree on, between steps.
 *
 * Each does what follows in the same order; where the executor has no other processes (peers NULL)
 * nothing is said and everything is as this one has it. */
#pragma once
#include "core/exec/exec.h"

/* Refuses processes that were told different things: `what` is all that must be the same. */
gboolean weft_together_same (struct weft_rendezvous *peers, const char *key, const char *what,
                             GError **error);

/* Fills in what the executors of others have allocated. */
gboolean weft_together_allocated (weft_exec *x, GError **error);

/* Floats of which each process has some, and zeros for what others have: rank 0's process gets all of
 * them, or everybody does. */
enum weft_together_who { WEFT_TOGETHER_FIRST, WEFT_TOGETHER_ALL };
gboolean weft_together_floats (struct weft_rendezvous *peers, const char *key,
                               enum weft_together_who who, float *block, uint64_t n,
                               GError **error);

/* When the ops of all ranks ran, for rank 0's process: each by the clock of its own GPU, from the
 * beginning of the step there. */
gboolean weft_together_timeline (weft_exec *x, weft_timeline *timeline, GError **error);

struct weft_together {
  double seconds; /* given: how long others may take; 0: as long as they are alive */
  struct weft_metrics metrics; /* of whoever knows the loss; `large` of all ranks together */
  gboolean stop;               /* somebody was asked to stop */
};

/* After an error: the other processes end too, and are told why.  Where one of them has ended first that is
 * what the error says, and then what came of it here. */
void weft_together_give_up (struct weft_rendezvous *peers, GError **error);

/* The newest step, or evaluation, called `key`; `stop`: this process was asked to. */
gboolean weft_together_step (weft_exec *x, const char *key, gboolean stop,
                             struct weft_together *out, GError **error);
