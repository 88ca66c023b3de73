/* team.h - CPU threads that share a kernel. Each computes its part of the outputs; the outputs are
 * bitwise equal to those that one thread computes. */
#pragma once
#include "kernels/kernel.h"

struct weft_team;

/* Creates a team of n > 1 threads, including the caller of weft_team_run(). */
struct weft_team *weft_team_new (uint32_t n, GError **error);
void weft_team_free (struct weft_team *team); /* accepts NULL */

/* Runs a kernel and returns when it is done. The calling thread alone runs small kernels, kernels
 * that cannot be split, and, if team is NULL, all kernels. */
void weft_team_run (struct weft_team *team, const struct weft_kernel *k);
