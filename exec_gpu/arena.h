/* arena.h - memory and streams of a rank. */
#pragma once
#include "exec_gpu/machine.h"

gboolean gpu_arena_open (struct gpu_rank *r, GError **error);
void gpu_arena_close (struct gpu_rank *r);

/* For a rank of another process: addresses without memory. */
void gpu_arena_open_addresses (struct gpu_rank *r);

/* The mailbox: filled before a step, read after it. */
void gpu_arena_fill (struct gpu_rank *r);
gboolean gpu_arena_read (struct gpu_rank *r, struct weft_metrics *metrics, GError **error);
