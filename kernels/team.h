/* team.h - CPU threads that compute a kernel together. Each thread computes a part of the outputs.
 * The outputs are the same bits as with one thread. */
#pragma once
#include "kernels/kernel.h"

struct weft_team;

/* Creates a team of n > 1 threads, including the caller of weft_team_run(). */
struct weft_team *weft_team_new (uint32_t n, GError **error);
void weft_team_free (struct weft_team *team); /* accepts NULL */

/* Runs a kernel on the threads of a team and returns when the kernel is done. The calling thread
 * alone runs small kernels, kernels that cannot be divided and, if `team` is NULL, all kernels. */
void weft_team_run (struct weft_team *team, const struct weft_kernel *k);
