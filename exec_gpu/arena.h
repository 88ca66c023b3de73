/* arena.h - allocates the memory and the streams of a rank. */
#pragma once
#include "exec_gpu/machine.h"

/* gpu_arena_open() allocates the memory and the streams of a rank of this process;
 * gpu_arena_close() releases them. */
gboolean gpu_arena_open (struct gpu_rank *r, GError **error);
void gpu_arena_close (struct gpu_rank *r);

/* Assigns addresses without memory, for a rank of another process. */
void gpu_arena_open_addresses (struct gpu_rank *r);

/* Writes control and tokens into the mailbox, before a step. */
void gpu_arena_fill (struct gpu_rank *r);

/* Reads loss and norm from the mailbox, after a step. */
gboolean gpu_arena_read (struct gpu_rank *r, struct weft_metrics *metrics, GError **error);
