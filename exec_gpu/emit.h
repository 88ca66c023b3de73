/* emit.h - appends the calls of a unit to its script: its waits, its ops, its event. */
#pragma once
#include "exec_gpu/machine.h"

/* Appends the calls at the begin of a step. */
gboolean gpu_emit_start (struct gpu_script *s, GError **error);

/* Appends a unit that needs no other rank. */
gboolean gpu_emit_local (struct gpu_rank_unit at, GError **error);

/* Appends a unit that uses communicators. */
gboolean gpu_emit_launch (struct gpu_rank_unit at, GError **error);

/* Appends a collective of all n members, which share a GPU. */
gboolean gpu_emit_collective (const struct gpu_rank_unit *member, uint32_t n, GError **error);

/* Posts a unit of transfers of a rank that shares its GPU. */
gboolean gpu_emit_post (struct gpu_rank_unit at, GError **error);

/* Completes a unit of transfers. The units of all peers have been posted. */
gboolean gpu_emit_leave (struct gpu_rank_unit at, GError **error);

/* Appends the calls at the end of a step. */
gboolean gpu_emit_end (struct gpu_script *s, GError **error);
