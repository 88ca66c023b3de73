/* emit.h - appends the calls of one launch (one op, or ops launched together) to a call list:
 * waits, ops and event. */
#pragma once
#include "exec_gpu/machine.h"

/* Appends the calls that begin a step. */
gboolean gpu_emit_start (struct gpu_script *s, GError **error);

/* Appends a launch that needs no other rank: kernels, copies, collectives of one rank. */
gboolean gpu_emit_local (struct gpu_rank_unit at, GError **error);

/* Appends a launch that uses communicators of the collective library. */
gboolean gpu_emit_launch (struct gpu_rank_unit at, GError **error);

/* Appends a collective of all n members, which share a GPU and so need no collective library. */
gboolean gpu_emit_collective (const struct gpu_rank_unit *member, uint32_t n, GError **error);

/* Begins sends and receives of a rank that shares its GPU: appends the waits, and an event that
 * says that the data can be read. */
gboolean gpu_emit_post (struct gpu_rank_unit at, GError **error);

/* Completes the sends and receives that gpu_emit_post() began. All peers must have begun theirs. */
gboolean gpu_emit_leave (struct gpu_rank_unit at, GError **error);

/* Appends the calls that end a step. */
gboolean gpu_emit_end (struct gpu_script *s, GError **error);
