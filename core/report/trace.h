/* trace.h - a timeline as a trace that Perfetto and chrome://tracing open: Chrome's JSON event
 * format.
 *
 * Each observed rank is a process and each lane is a thread, in the order of ranks and lanes.
 * Members of a group of transfers overlap, so the second and later members have rows of their own:
 * "pp 2", then "pp 3". Slices have the data of the op (number, kind, lane, phase, layer,
 * microbatch, shape, FLOPs, bytes), from which interop/traces/kineto.h reads a trace back. Arrows
 * lead from an op to the ops on other lanes that depend on it, and from a send to its receive.
 * Phases that timers measure are slices of a row "timers". The counter "memory" stacks the bytes of
 * all buffers that are alive on the GPU, by kind, including permanent buffers.
 *
 * The file is written while it is generated. If the path ends in .gz, the file is compressed;
 * viewers read both forms. */
#pragma once
#include "core/exec/timeline.h"

/* Largest number of events in a trace of several ranks: viewers load the whole file, which has some
 * hundred bytes per event. A trace of one rank is always written. */
#define WEFT_TRACE_MOST_EVENTS 4000000u

/* Writes the first `n_rows` rows of the timeline as a trace; `n_rows` 0: all rows. */
gboolean weft_trace_write (const weft_plan *plan, const weft_timeline *timeline, uint32_t n_rows,
                           const char *path, GError **error);
