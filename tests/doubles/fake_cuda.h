/* fake_cuda.h - the CUDA runtime and NCCL as exec_cuda/module/calls_cuda.c calls them, for tests: the real
 * headers' functions, by the device that computes.
 *
 * They are as strict as the real ones where a program that was never run on a GPU can be wrong:
 *
 *   runtime   errors stay as the last one of their thread until somebody takes them, that an event has not
 *             come among them, and the next kernel tells them; streams do not block the legacy one; what is
 *             captured asks no event and waits for none; external records are for captures alone
 *   NCCL      communicators do not block: a group only begins, and until it has been asked for often enough
 *             its communicators refuse everything, a split one is not there, and its streams must not be
 *             given work; handles are of the communicator they were made for; what is registered is let go
 *             before its memory and its communicator; several are aborted in one group
 *
 * Whoever breaks a rule is told an error with the rule's words. */
#pragma once
#include "tests/doubles/computing_cuda.h"

/* Functions are of this device from now on; call number `fail_at`, from 1 on, fails, 0: none does.  Then
 * how many were made, and whether nothing is open or under way that should not be, or what. */
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
