/* exec_gpu.h - the executor of GPUs, whatever their vendor.
 *
 * Ranks have a GPU each, or all ranks share one GPU: their collectives are then kernels and copies
 * on that GPU.  The runtime, the kernels and the collective library are a vendor's, behind the
 * table of calls.h: a folder beside this file, whose module the first opening loads
 * (cuda/exec_cuda.h). */
#pragma once
#include "core/exec/exec.h"
#include "exec_gpu/calls.h"
#include "exec_gpu/gpu_options.h"

/* An executor over a table of calls, which outlives it.  `ops` is the vendor's row, whose functions
 * other than open() are those of WEFT_EXEC_GPU_OPS. */
weft_exec *weft_exec_gpu_open (const struct weft_exec_ops *ops, const struct weft_gpu_calls *calls,
                               const weft_plan *plan, const struct weft_exec_options *options,
                               GError **error);

gboolean weft_exec_gpu_wait (weft_exec *x, uint32_t row, enum weft_lane lane, uint32_t op,
                             GError **error);
gboolean weft_exec_gpu_issue (weft_exec *x, uint32_t row, uint32_t op, GError **error);
gboolean weft_exec_gpu_run (weft_exec *x, GError **error);
weft_timeline *weft_exec_gpu_drain (weft_exec *x, GError **error);
void weft_exec_gpu_close (weft_exec *x);
void weft_exec_gpu_read (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n,
                         void *out);
void weft_exec_gpu_write (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n,
                          const void *in);

/* The name of the first GPU; the caller frees it. */
char *weft_exec_gpu_name (const struct weft_gpu_calls *calls);

/* What the rows of all vendors have in common. */
#define WEFT_EXEC_GPU_OPS                                                                          \
  .flags = WEFT_EXEC_TIMES | WEFT_EXEC_NUMBERS | WEFT_EXEC_STAMPS | WEFT_EXEC_PROCESSES,           \
  .wait = weft_exec_gpu_wait, .issue = weft_exec_gpu_issue, .run = weft_exec_gpu_run,              \
  .drain = weft_exec_gpu_drain, .close = weft_exec_gpu_close, .read = weft_exec_gpu_read,          \
  .write = weft_exec_gpu_write
