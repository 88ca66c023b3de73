/* team.h - threads that share the kernels of one rank.  Everyone computes its part of the outputs;
 * the bits are those of one thread. */
#pragma once
#include "kernels/kernel.h"

struct cpu_team;

/* n > 1 threads, the caller of cpu_team_run() among them. */
struct cpu_team *cpu_team_new (uint32_t n, GError **error);
void cpu_team_free (struct cpu_team *team); /* accepts NULL */

/* Runs all parts of a kernel and returns when they are done. */
void cpu_team_run (struct cpu_team *team, const struct weft_kernel *k);
