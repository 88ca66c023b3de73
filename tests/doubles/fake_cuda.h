/* fake_cuda.h - a test double of the CUDA runtime and NCCL for exec_gpu/cuda/module/calls_cuda.c.
 * It has the functions of the real headers, and runs on the computing device (computing_cuda.h). It
 * checks rules of the real libraries that a program which never ran on a GPU can break.
 *
 * CUDA runtime: an error remains the last error of its thread until it is read, and the next launch
 * reports it; "not ready" of an event is such an error. Streams do not block the legacy stream. A
 * capture must not query or wait for events; external event records are for captures only.
 *
 * NCCL: communicators are nonblocking. Calls in a group begin at its end. After that, and until the
 * state of a communicator of the group has been polled several times, the communicators of the
 * group refuse every call, communicators of a split do not exist, and no work may be enqueued on
 * the streams of the group. A handle belongs to its communicator. Buffers must be deregistered
 * before their memory is freed and before their communicator is destroyed. Several communicators
 * must be aborted in one group.
 *
 * A call that breaks a rule fails with an error that states the rule. */
#pragma once
#include "tests/doubles/computing_cuda.h"

/* From now on, the doubles of CUDA and NCCL use this device. Call number `fail_at` (counted from 1)
 * fails; 0: no call fails. */
void fake_cuda_begin (computing_cuda *device, uint64_t fail_at);

/* Returns the number of calls since fake_cuda_begin(). Sets *left to a description of a resource
 * that is still open or in flight, or of a broken rule; NULL if there is none. */
uint64_t fake_cuda_end (const char **left);

/* --------------------------------------------- shared by fake_cudart.c and fake_nccl.c */

extern computing_cuda *fake_device;
#define FAKE_CALL(name, ...) (fake_device->calls.name (fake_device->calls.self, ##__VA_ARGS__))

/* Counts a call to CUDA or NCCL. Returns whether this call must fail. */
gboolean fake_cuda_fails (void);

/* Whether the call that fake_cuda_begin() lets fail has been made. */
gboolean fake_cuda_has_failed (void);

/* Whether a launch of NCCL on this stream is still pending, that is, not enqueued yet. */
gboolean fake_nccl_launches_on (const void *stream);

/* What fake_cuda_begin() and fake_cuda_end() do for NCCL. */
void fake_nccl_begin (void);
const char *fake_nccl_left (void);
