/* fake_cuda.h - a test double of the CUDA runtime and NCCL for exec_gpu/cuda/module/calls_cuda.c,
 * with the functions of the real headers, on the device that computes (computing_cuda.h).
 *
 * It is as strict as the real libraries where a program never run on a GPU can be wrong:
 *
 * CUDA runtime: an error stays the last error of its thread until it is read ("not ready" of an
 * event is one), and the next launch reports it. Streams do not block the legacy stream. A capture
 * may not query or wait for events; external event records are for captures only.
 *
 * NCCL: communicators are nonblocking. Calls in a group only begin at its end; until its state has
 * been polled often enough, its communicators refuse every call, the communicator of a split does
 * not exist, and its streams must not be given work. A handle belongs to its communicator. Buffers
 * must be deregistered before their memory is freed and their communicator is destroyed. Several
 * communicators are aborted in one group.
 *
 * A call that breaks a rule fails with an error that states the rule. */
#pragma once
#include "tests/doubles/computing_cuda.h"

/* begin: the fake library uses this device from now on; call number `fail_at` (from 1) fails, 0:
 * none. end: returns the number of calls made; *left: what is still open or in flight, or NULL. */
void fake_cuda_begin (computing_cuda *device, uint64_t fail_at);
uint64_t fake_cuda_end (const char **left);

/* --------------------------------------------- shared by fake_cudart.c and fake_nccl.c */

extern computing_cuda *fake_device;
#define FAKE_CALL(name, ...) (fake_device->calls.name (fake_device->calls.self, ##__VA_ARGS__))

/* Whether the current call must fail; whether one has failed. */
gboolean fake_cuda_fails (void);
gboolean fake_cuda_has_failed (void);

/* Whether an NCCL launch is still to be enqueued on this stream. */
gboolean fake_nccl_launches_on (const void *stream);
void fake_nccl_begin (void);
const char *fake_nccl_left (void);
