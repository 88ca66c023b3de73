/* trace.h - a timeline as a trace that Perfetto and chrome://tracing open: Chrome's JSON event
 * format.
 *
 * An observed rank is a process, a lane a thread; both are sorted like ranks and lanes.  Members of
 * a group of transfers end together, so each but the first has a row of its own: "pp 2", then "pp
 * 3". Slices carry the data of the op (number, phase, layer, microbatch, shape, FLOPs,
 * bytes).  Arrows lead from an op to the ops on other lanes that waited for it, and from a send to
 * its receive. Phases that timers measure are slices of a row "timers".  The counter "memory"
 * stacks the kinds of buffers that are alive on the GPU, permanent ones included.
 *
 * The file is written while it is generated.  A path that ends in .gz is compressed; viewers read
 * both. */
#pragma once
#include "core/exec/timeline.h"

/* More events than this in a trace of several ranks are refused: viewers load a file whole, and
 * an event takes some hundred bytes.  One rank alone is always written. */
#define WEFT_TRACE_MOST_EVENTS 4000000u

/* Writes the first `n_rows` rows of the timeline; 0: all. */
gboolean weft_trace_write (const weft_plan *plan, const weft_timeline *timeline, uint32_t n_rows,
                           const char *path, GError **error);
