/* deepspeed.h - the memory that PyTorch's allocator reserves for a job of DeepSpeed with ZeRO-1 and
 * pipeline stages (optimizer_groups in core/stack.def). It replays the tensors of a run in the
 * order in which the software allocates and frees them: the start, then steps, each of which is the
 * passes of the program and an update. Sources are commit 2151c787 of DeepSpeed (18 February 2022)
 * and its branch olruwase/bf16-updates, and commit 541b967f of Megatron-DeepSpeed; deepspeed.c
 * names the functions.
 *
 * Whether one tensor finds a free block depends on the sizes of all others, so small changes of a
 * job move the result by several percent. So they do in the software. */
#pragma once
#include "core/job/job.h"
#include "core/program/program.h"

/* A tensor that is in use from op `first` to op `last`. */
struct weft_held {
  double bytes;
  uint32_t first, last;
  uint32_t buf;  /* the buffer of the program that it is, or WEFT_NO_BUF */
  uint8_t kind;  /* enum weft_buf_kind */
  gboolean flat; /* a tensor of the update for all parameters, in a block of its own */
};

/* Bytes reserved after some steps of the program on a GPU with room for `most` bytes. `held` is an
 * array of struct weft_held: tensors of the passes, in the order of their allocation within an op,
 * without gradients and tensors of the update. `permanent` bytes exist during the whole run besides
 * weights, gradients and optimizer state. */
double weft_deepspeed_reserved (const struct weft_job *job, const weft_program *program,
                                const GArray *held, double permanent, double most);
