/* team.h - threads of the CPU that share kernels.  Everyone computes its part of the outputs; the bits
 * are those of one thread. */
#pragma once
#include "kernels/kernel.h"

struct weft_team;

/* n > 1 threads, the caller of weft_team_run() among them. */
struct weft_team *weft_team_new (uint32_t n, GError **error);
void weft_team_free (struct weft_team *team); /* accepts NULL */

/* Runs a kernel and returns when it is done.  Small ones, and those that cannot be shared, are run by
 * the caller alone; without a team (NULL) all are. */
void weft_team_run (struct weft_team *team, const struct weft_kernel *k);
