/* arena.h - the buffers of a program at their planned places. */
#pragma once
#include "exec_cpu/machine.h"

/* Maps the pools of a rank, or uses those of options.memory. */
gboolean cpu_arena_open (struct cpu_rank *r, const struct weft_memory *memory, GError **error);

/* Unmaps the pools, also after cpu_arena_open() has failed. */
void cpu_arena_close (struct cpu_rank *r, const struct weft_memory *memory);


void cpu_arena_start (struct cpu_rank *r);                /* before a step */
void cpu_arena_touch (struct cpu_rank *r, uint32_t op);   /* before an op: buffers become alive */
void cpu_arena_release (struct cpu_rank *r, uint32_t op); /* after an op: buffers die */

/* The address of a buffer. */
uint8_t *cpu_arena_at (const struct cpu_rank *r, uint32_t buf);
