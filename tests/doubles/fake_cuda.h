/* fake_cuda.h - the CUDA runtime and NCCL as exec_cuda/module/calls_cuda.c calls them, for tests:
 * the real headers' functions, by the device that computes.
 *
 * They are as strict as the real ones where a program that was never run on a GPU can be wrong:
 *
 * CUDA runtime: an error stays the last one of its thread until it is read ("not ready" of an event
 * is one of them), and the next launch reports it. Streams do not block the legacy stream. A
 * capture queries no event and waits for none; external records are for captures alone.
 *
 * NCCL: communicators are nonblocking. A group only begins its calls; until its state has been
 * polled often enough, its communicators refuse everything, the communicator of a split does not
 * exist, and its streams must not be given work. A handle belongs to the communicator it was made
 * for. A registration ends before its memory and its communicator do. Several communicators are
 * aborted in one group.
 *
 * A call that breaks a rule fails with an error that states the rule. */
#pragma once
#include "tests/doubles/computing_cuda.h"

/* Functions are of this device from now on; call number `fail_at`, from 1 on, fails, 0: none does.
 * Then how many were made, and whether nothing is open or under way that should not be, or what. */
void fake_cuda_begin (computing_cuda *device, uint64_t fail_at);
uint64_t fake_cuda_end (const char **left);

/* -------------------------------------------------------------- between the two halves */

extern computing_cuda *fake_device;
#define FAKE_CALL(name, ...) (fake_device->calls.name (fake_device->calls.self, ##__VA_ARGS__))

/* Whether the call under way shall fail; and whether one has. */
gboolean fake_cuda_fails (void);
gboolean fake_cuda_has_failed (void);

/* A launch of NCCL has yet to be given to this stream. */
gboolean fake_nccl_launches_on (const void *stream);
void fake_nccl_begin (void);
const char *fake_nccl_left (void);
