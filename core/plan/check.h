/* check.h - proves a plan before it runs.
 *
 * For each program:
 *   - every read of bytes is ordered after a write of these bytes (permanent buffers are written
 *     before the step);
 *   - host kernels use buffers of the host pool only; copies to and from the host have one operand
 *     in the host pool; all other ops have no operand in it;
 *   - each conflicting pair of uses (they share bytes and one of them writes) is ordered by
 *     dependencies or lane order;
 *   - buffers that share an address are never alive at the same time: all uses of one are ordered
 *     before those of the other.
 * For all roles together:
 *   - the members of a group issue the same collectives (kind, size, type, reduction) in the same
 *     order;
 *   - every send has its receive, in order, with the same size;
 *   - there is no deadlock: a replay with rendezvous runs every op.
 * Cycles are impossible: op numbers are a topological order, which builder and parser enforce.
 *
 * Cost: a few passes over the ops. The checker does not share code with the memory planner. */
#pragma once
#include "core/program/mesh.h"
#include "core/program/program.h"

/* Checks one program: reads, pools of operands, conflicting uses. Returns FALSE with an error that
 * names the ops. */
gboolean weft_check_program (const weft_program *program, GError **error);

/* Checks one program with offsets: buffers that share an address. */
gboolean weft_check_addresses (const weft_program *program, GError **error);

/* Checks the programs of all roles together. */
gboolean weft_check_roles (const struct weft_mesh *mesh, weft_program *const *role, GError **error);
