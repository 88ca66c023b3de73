/* nsys.h - SQLite databases that Nsight Systems exports (`nsys export --type sqlite`): "SQLite
 * Schema Reference" of NVIDIA's user guide. Tables that are read:
 *
 *   CUPTI_ACTIVITY_KIND_KERNEL, StringIds      kernels and their names; both must exist
 *   CUPTI_ACTIVITY_KIND_MEMCPY, _MEMSET        copies and fills
 *   CUPTI_ACTIVITY_KIND_RUNTIME                launches, by correlationId
 *   NVTX_EVENTS                                steps: ranges named "step 12", "iteration 12", ...
 *   TARGET_INFO_GPU                            name of the GPU
 *
 * Each GPU of each process is a rank, in the order of device and process. A database has no process
 * groups: axes of communication follow from kinds and counts (measured.h). */
#pragma once
#include "interop/traces/trace.h"

/* Whether the first bytes of a file are those of an SQLite database. */
gboolean weft_nsys_claims (const char *bytes, gsize n);

/* Reads a file, or a database in memory that messages call `name`. */
gboolean weft_nsys_load (weft_trace *trace, const char *path,
                         const struct weft_trace_options *options, GError **error);
gboolean weft_nsys_parse (weft_trace *trace, const void *bytes, gsize n, const char *name,
                          const struct weft_trace_options *options, GError **error);
