/* allocator.h - the memory of software that allocates each tensor when an op needs it, from the
 * caching allocator of PyTorch (c10/cuda/CUDACachingAllocator.cpp), instead of from an arena: this
 * is software of stacks with live_memory (core/stack.def).
 *
 * Allocations and releases follow the order in which the host issues the ops, because blocks are
 * handed from one op to the next without waiting for the device. The sum of the blocks in use is
 * then the sum of the live buffers of the program, each rounded up to a block, plus further tensors
 * of the software: fields of section memory in core/stack.def. No bytes are lost
 * between buffers, but freed blocks remain reserved (cached_share). */
#pragma once
#include "core/job/job.h"
#include "core/program/program.h"

struct weft_allocated {
  double peak;      /* largest sum of the blocks in use, bytes: torch.cuda.max_memory_allocated() */
  double permanent; /* the part of `peak` that is in use during the whole step */
  double shared;    /* largest sum of the other blocks without flat tensors, bytes */
  double flat;      /* sum of all flat tensors, bytes (flat_update in core/stack.def) */
  uint32_t op;      /* first op at which the peak is reached */
  double at_peak[WEFT_N_BUF_KIND]; /* blocks in use at the peak, bytes by kind of buffer. Tensors
                                    * beside the program's count to the kind of the buffers that
                                    * they belong to */
};

struct weft_allocated weft_allocator_run (const struct weft_job *job, const weft_program *program);

/* The same for the first step of a run. With late_moments the state of the optimizer except for the
 * fp32 weights exists only from the first update on, so a step that fits may be followed by one
 * that does not. */
struct weft_allocated weft_allocator_run_first (const struct weft_job *job,
                                                const weft_program *program);

/* Bytes that the allocator has obtained from the driver. Blocks of activations serve one op after
 * another, and some of them are lost to fragments (cached_share). Flat tensors of the update have a
 * block each, because no freed block of an activation is large enough for them, and the blocks of
 * two flat tensors differ in size. If the GPU has no memory left beside `libraries` bytes, the
 * allocator returns freed blocks to the driver before it fails. With optimizer_groups these bytes
 * come from a replay of `program` (core/plan/deepspeed.h). */
double weft_allocator_reserved (const struct weft_job *job, const weft_program *program,
                                const struct weft_allocated *allocated, double libraries);

/* Whether the software holds a buffer as long as the program does. It releases some buffers between
 * their uses, and computes others again for each use. */
gboolean weft_allocator_holds (const struct weft_job *job, const weft_program *program,
                               const struct weft_buf *buf);
