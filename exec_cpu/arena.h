/* arena.h - gives the buffers of a program memory at their planned addresses. */
#pragma once
#include "exec_cpu/machine.h"

/* Maps the memory pools of a rank, or takes the memory of the pools from options.memory. */
gboolean cpu_arena_open (struct cpu_rank *r, const struct weft_memory *memory, GError **error);

/* Unmaps the pools, also after cpu_arena_open() has failed. */
void cpu_arena_close (struct cpu_rank *r, const struct weft_memory *memory);

/* Sets the number of remaining uses of every buffer to its value at the start of a step. */
void cpu_arena_start (struct cpu_rank *r);

/* Before an op: unpoisons (address sanitizer) the buffers whose first use is this op. With option
 * `poison`, also fills these buffers with NaN. */
void cpu_arena_touch (struct cpu_rank *r, uint32_t op);

/* After an op: poisons the buffers whose last use was this op. With option `poison`, also fills
 * these buffers with NaN. */
void cpu_arena_release (struct cpu_rank *r, uint32_t op);

/* The address of a buffer of a rank. */
uint8_t *cpu_arena_at (const struct cpu_rank *r, uint32_t buf);
