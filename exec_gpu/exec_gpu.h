/* exec_gpu.h - the executor for GPUs of any vendor.
 *
 * Ranks have a GPU each, or all ranks share one GPU; then their collectives are kernels and copies
 * on that GPU.  A vendor implements the table of calls.h with its runtime, its kernels and its
 * collective library, in a module that is loaded when an executor is first opened
 * (cuda/exec_cuda.h). */
#pragma once
#include "core/exec/exec.h"
#include "exec_gpu/calls.h"
#include "exec_gpu/gpu_options.h"

/* Opens an executor with a table of calls, which must outlive the executor.  `ops` is the
 * executor's table of functions; all functions except open() are set by WEFT_EXEC_GPU_OPS. */
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

void *weft_exec_gpu_staging (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n);

/* The name of the first GPU; the caller frees it. */
char *weft_exec_gpu_name (const struct weft_gpu_calls *calls);

/* The fields of struct weft_exec_ops that are the same for the GPUs of all vendors. */
#define WEFT_EXEC_GPU_OPS                                                                          \
  .flags = WEFT_EXEC_TIMES | WEFT_EXEC_NUMBERS | WEFT_EXEC_STAMPS | WEFT_EXEC_PROCESSES,           \
  .wait = weft_exec_gpu_wait, .issue = weft_exec_gpu_issue, .run = weft_exec_gpu_run,              \
  .drain = weft_exec_gpu_drain, .close = weft_exec_gpu_close, .read = weft_exec_gpu_read,          \
  .write = weft_exec_gpu_write, .staging = weft_exec_gpu_staging
