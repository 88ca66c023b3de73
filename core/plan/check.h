/* check.h - proves a plan before it runs.
 *
 * For each program:
 *   - every read of bytes is ordered after a write of these bytes (permanent buffers are written
 *     before the step);
 *   - host kernels use buffers of the host pool only; copies to and from the host have one operand
 *     in the host pool; all other ops have no operand in the host pool;
 *   - two uses that share bytes, at least one of which writes, are ordered by dependencies or lane
 *     order;
 *   - buffers that share an address are never alive at the same time: all uses of one buffer are
 *     ordered before all uses of the other buffer.
 * For all roles together:
 *   - the members of a group issue the same collectives (kind, size, type, reduction) in the same
 *     order;
 *   - every send matches a receive of the same size, and matching sends and receives have the same
 *     order;
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

/* Checks the buffer offsets of one program: buffers that share an address must not be alive at the
 * same time. Returns FALSE with an error that names the buffers and ops. */
gboolean weft_check_addresses (const weft_program *program, GError **error);

/* Checks the programs of all roles together: matching collectives and transfers, no deadlock. */
gboolean weft_check_roles (const struct weft_mesh *mesh, weft_program *const *role, GError **error);
