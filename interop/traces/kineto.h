/* kineto.h - traces in Chrome's event format, as PyTorch's profiler (Kineto) writes them:
 * pytorch/kineto libkineto/src/output_json.cpp. These events are kept:
 *
 *   kernel, gpu_memcpy, gpu_memset    work of a GPU, with stream, correlation and, of NCCL's
 *                                     kernels, the arguments of the collective
 *   cuda_runtime, cuda_driver         launches, by correlation
 *   user_annotation                   steps: "ProfilerStep#12"
 *   cpu_op                            shapes of operands, if they are asked for
 *   collective, p2p                   communication in traces of `weft sim --trace`, whose events
 *                                     have the arguments kind and lane */
#pragma once
#include "interop/traces/trace.h"

/* Reads a file, or a text in memory that messages call `name`, and adds its GPU to the trace. */
gboolean weft_kineto_load (weft_trace *trace, const char *path,
                           const struct weft_trace_options *options, GError **error);
gboolean weft_kineto_parse (weft_trace *trace, const char *text, gsize length, const char *name,
                            const struct weft_trace_options *options, GError **error);
