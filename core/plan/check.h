/* check.h - a plan is proved before it runs.
 *
 * Of one program:
 *   - every read of bytes comes after the write that made them (permanent buffers are made before);
 *   - kernels of the host work on buffers of the host pool, copies to and from the host have one
 *     operand there, everything else has none;
 *   - each conflicting pair of uses (one writes, they share bytes) is ordered by dependencies or
 *     lane order;
 *   - buffers that share an address are never alive at once: all uses of one are ordered before the
 *     other's.
 * Of all roles together:
 *   - members of a group issue the same collectives (kind, size, type, reduction) in the same
 *     order;
 *   - every send has its receive, in order, with the same size;
 *   - nobody waits for ever: a replay with rendezvous runs every op.
 * No cycle: op numbers are a topological order, which parsing and building both enforce.
 *
 * Cost: a few passes over the ops; independent of the memory planner, which it does not trust. */
#pragma once
#include "core/program/mesh.h"
#include "core/program/program.h"

gboolean weft_check_program (const weft_program *program, GError **error);
gboolean weft_check_addresses (const weft_program *program, GError **error);
gboolean weft_check_roles (const struct weft_mesh *mesh, weft_program *const *role, GError **error);
