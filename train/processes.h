/* processes.h - what the processes of one training job exchange between steps.
 *
 * All processes must make these calls in the same order. If the job has only one process (peers
 * NULL), nothing is sent and the results are those of this process. */
#pragma once
#include "core/exec/exec.h"

/* Returns an error in every process whose text `what` differs from that of the process of rank
 * 0. */
gboolean weft_processes_check_same (struct weft_rendezvous *peers, const char *key,
                                    const char *what, GError **error);

/* Fills in the bytes that the executors of the other processes have allocated. */
gboolean weft_processes_gather_allocated (weft_exec *x, GError **error);

/* Merges floats: each process passes its own elements and zeros for the others. The process of rank
 * 0 (WEFT_PROCESSES_FIRST) or every process (WEFT_PROCESSES_ALL) gets all elements. */
enum weft_processes_receivers { WEFT_PROCESSES_FIRST, WEFT_PROCESSES_ALL };
gboolean weft_processes_merge_floats (struct weft_rendezvous *peers, const char *key,
                                      enum weft_processes_receivers receivers, float *block,
                                      uint64_t n, GError **error);

/* Gathers begin and end times of the ops of all ranks in the process of rank 0. Times are from the
 * clock of each rank's GPU, counted from the start of the step there. */
gboolean weft_processes_gather_timeline (weft_exec *x, weft_timeline *timeline, GError **error);

struct weft_processes_step {
  double seconds; /* in: deadline for the other processes; 0: wait as long as they are alive */
  struct weft_metrics metrics; /* from the process that computed the loss; `large` is summed over
                                * all ranks */
  gboolean stop;               /* some process was asked to stop */
};

/* After an error in this process: tells the other processes to end, with the reason. If another
 * process ended first, the error text begins with its reason. */
void weft_processes_abort (struct weft_rendezvous *peers, GError **error);

/* Merges the metrics of the newest step or evaluation, called `key`. `stop`: this process was asked
 * to stop. */
gboolean weft_processes_merge_step (weft_exec *x, const char *key, gboolean stop,
                                    struct weft_processes_step *out, GError **error);
