/* processes.h - data that the processes of one training job exchange between steps.
 *
 * All processes must make these calls in the same order. If the job has only one process (peers
 * NULL), nothing is sent and the results are those of this process. */
#pragma once
#include "core/exec/exec.h"

/* Compares a text of all processes, for example the job: fails in every process whose text `what`
 * differs from that of the process of rank 0. `key` names the text in messages to people: "the
 * job". */
gboolean weft_processes_check_same (struct weft_rendezvous *peers, const char *key,
                                    const char *what, GError **error);

/* Copies the numbers of allocated bytes (x->allocated, x->allocated_host) from the processes that
 * own the ranks to all processes. */
gboolean weft_processes_gather_allocated (weft_exec *x, GError **error);

/* Merges n floats in place. Each process passes the elements that its ranks own, and zeros for
 * those of other processes. The process of rank 0 (WEFT_PROCESSES_FIRST) or every process
 * (WEFT_PROCESSES_ALL) receives all elements. */
enum weft_processes_receivers { WEFT_PROCESSES_FIRST, WEFT_PROCESSES_ALL };
gboolean weft_processes_merge_floats (struct weft_rendezvous *peers, const char *key,
                                      enum weft_processes_receivers receivers, float *block,
                                      uint64_t n, GError **error);

/* Gathers begin and end times of the ops of all ranks in the process of rank 0. The times of a rank
 * are those of its GPU's clock, in seconds from the start of the step on that GPU. */
gboolean weft_processes_gather_timeline (weft_exec *x, weft_timeline *timeline, GError **error);

struct weft_processes_step {
  /* set by the caller: time limit for the other processes in seconds; 0: no time limit while all
   * processes are alive */
  double seconds;
  /* of the process that computed the loss; only `large` is the sum over all ranks */
  struct weft_metrics metrics;
  gboolean stop;               /* whether any process was asked to stop the run */
};

/* Ends the other processes after an error in this process, which is the reason that they report. If
 * another process failed first, its reason is put in front of *error. */
void weft_processes_abort (struct weft_rendezvous *peers, GError **error);

/* Merges the metrics of the newest step or evaluation over all processes. `key` names the step in
 * messages: "step 17". `stop`: whether this process was asked to stop. */
gboolean weft_processes_merge_step (weft_exec *x, const char *key, gboolean stop,
                                    struct weft_processes_step *out, GError **error);
