/* emit.h - a unit as calls: its waits, its ops, its event. */
#pragma once
#include "exec_gpu/machine.h"

gboolean gpu_emit_start (struct gpu_script *s, GError **error);
gboolean gpu_emit_local (struct gpu_rank_unit at, GError **error);
gboolean gpu_emit_launch (struct gpu_rank_unit at, GError **error); /* over communicators */

/* For ranks that share a GPU. collective: a unit of all members; post: posts a group of transfers;
 * leave: completes it after all its peers were posted. */
gboolean gpu_emit_collective (const struct gpu_rank_unit *member, uint32_t n, GError **error);
gboolean gpu_emit_post (struct gpu_rank_unit at, GError **error);
gboolean gpu_emit_leave (struct gpu_rank_unit at, GError **error);
gboolean gpu_emit_end (struct gpu_script *s, GError **error);
