/* cupti.h - a trace of the kernels, copies and fills that GPUs execute, from CUPTI's activity
 * records.
 *
 * Each thread tells CUPTI the id of the op that it works on (weft_cupti_about).  A record of a call
 * belongs to the op of the calling thread.  In a graph, a node belongs to the op for which the node
 * was added, and a cloned node to the op of the original node.
 *
 * NCCL launches kernels from its own threads, whose records have no id.  If a stream has as many
 * records without an id as communication launches (weft_cupti_launched), records and launches are
 * matched in order.  Nodes that threads of NCCL add to a graph belong to the current op of the
 * thread of Weft that adds nodes to this graph.
 *
 * CUPTI exists once in a process, so only one trace may be open.  In a build without CUPTI,
 * weft_cupti_begin() returns an error message. */
#pragma once
#include "exec_gpu/calls.h"

struct weft_cupti;

/* Loads CUPTI and starts to record.  Returns NULL, or a message about what is missing. */
const char *weft_cupti_begin (struct weft_cupti **out);

/* weft_cupti_about(), _talk() and _launched() do nothing if `c` is NULL. */

/* Sets the op that further calls of this thread belong to; WEFT_NO_OP: the step. */
void weft_cupti_about (struct weft_cupti *c, uint32_t row, uint32_t op);

/* Notes that this thread has enqueued communication on a stream. */
void weft_cupti_talk (struct weft_cupti *c, weft_gpu_stream *stream);

/* Notes that this thread has launched the communication that it passed to weft_cupti_talk() since
 * its last launch. */
void weft_cupti_launched (struct weft_cupti *c);

/* Calls take() for every record that has ended since the last call, ordered by begin.  *lost:
 * number of records that were dropped or have no times.  Returns NULL or an error message. */
const char *weft_cupti_take (struct weft_cupti *c, weft_gpu_take take, void *user, uint64_t *lost);

#ifdef WEFT_CUPTI_MAJOR
#include <cupti.h>

/* The newest kernel record of this toolkit. It begins with the fields of older versions. */
#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 weft_cupti_kernel;
#else
typedef CUpti_ActivityKernel9 weft_cupti_kernel;
#endif

#define WEFT_CUPTI_LIST(X)                                                                         \
  X (ActivityEnable)                                                                               \
  X (ActivityRegisterCallbacks)                                                                    \
  X (ActivityFlushAll)                                                                             \
  X (ActivityGetNextRecord)                                                                        \
  X (ActivityGetNumDroppedRecords)                                                                 \
  X (ActivityPushExternalCorrelationId)                                                            \
  X (ActivityPopExternalCorrelationId)                                                             \
  X (Subscribe)                                                                                    \
  X (EnableCallback)                                                                               \
  X (GetGraphNodeId)                                                                               \
  X (GetDeviceId)                                                                                  \
  X (GetStreamIdEx)                                                                                \
  X (GetResultString)

/* The functions of CUPTI, by their names without "cupti": those of the library or of a test. */
struct weft_cupti_calls {
#define WEFT_CUPTI_MEMBER(name) __typeof__ (cupti##name) *name;
  WEFT_CUPTI_LIST (WEFT_CUPTI_MEMBER)
#undef WEFT_CUPTI_MEMBER
};

/* Like weft_cupti_begin(), but calls the functions in `calls`, which must outlive the trace. */
const char *weft_cupti_open (const struct weft_cupti_calls *calls, struct weft_cupti **out);

/* Frees the trace. The CUPTI library itself continues to record. */
void weft_cupti_close (struct weft_cupti *c);
#endif
