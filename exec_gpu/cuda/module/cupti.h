/* cupti.h - what GPUs did, one kernel, copy and fill after the other, as CUPTI's activity records
 * tell it.
 *
 * A record knows what it belongs to by the id that its thread had pushed when it made the call; in
 * a graph by its node, which knew that when it was made, and its copies know of it.  NCCL launches
 * from threads of its own: those kernels are the launches that were given to their stream, in
 * order, where there are as many; nodes that such threads add to a graph belong to what the thread
 * that began it is about.
 *
 * CUPTI is one for a process, and so is this.  Where the build has found none it says so. */
#pragma once
#include "exec_gpu/calls.h"

struct weft_cupti;

/* CUPTI is loaded, and all is recorded from now on; or what is missing. */
const char *weft_cupti_begin (struct weft_cupti **out);

/* Where there is no `c` nothing is done. */

/* What further calls of this thread belong to; op WEFT_NO_OP: the step. */
void weft_cupti_about (struct weft_cupti *c, uint32_t row, uint32_t op);

/* This thread has given communication to a stream; and the launch that it is of. */
void weft_cupti_talk (struct weft_cupti *c, weft_gpu_stream *stream);
void weft_cupti_launched (struct weft_cupti *c);

/* All that has ended since, by begin; `lost` are records that there was no room for. */
const char *weft_cupti_take (struct weft_cupti *c, weft_gpu_take take, void *user, uint64_t *lost);

#ifdef WEFT_CUPTI_MAJOR
#include <cupti.h>

/* The newest of this toolkit, which begins as the older ones do. */
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

/* CUPTI's functions by their names without "cupti": of the library, or of a test. */
struct weft_cupti_calls {
#define WEFT_CUPTI_MEMBER(name) __typeof__ (cupti##name) *name;
  WEFT_CUPTI_LIST (WEFT_CUPTI_MEMBER)
#undef WEFT_CUPTI_MEMBER
};

/* The same by other functions, which outlive it.  Closing it CUPTI goes on recording. */
const char *weft_cupti_open (const struct weft_cupti_calls *calls, struct weft_cupti **out);
void weft_cupti_close (struct weft_cupti *c);
#endif
