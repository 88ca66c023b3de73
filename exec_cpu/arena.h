/* arena.h - the buffers of a program at their planned places. */
#pragma once
#include "exec_cpu/machine.h"

/* cpu_arena_close() accepts what cpu_arena_open() left half open. */
gboolean cpu_arena_open (struct cpu_rank *r, const struct weft_memory *memory, GError **error);
void cpu_arena_close (struct cpu_rank *r, const struct weft_memory *memory);

void cpu_arena_start (struct cpu_rank *r);                /* before a step */
void cpu_arena_touch (struct cpu_rank *r, uint32_t op);   /* before an op: buffers become alive */
void cpu_arena_release (struct cpu_rank *r, uint32_t op); /* after it: buffers die */
uint8_t *cpu_arena_at (const struct cpu_rank *r, uint32_t buf);
