/* timeline_page.h - the timeline of a step as a part of a page that zooms, pans and answers what an
 * op is: its data and its script, in the page itself.
 *
 * The data are arrays in one block, compressed with gzip and written as base64. The script
 * (cli/page/timeline.js) reads them by the list in the head: `sections` names each array, its type
 * and its length, in the order of the block. Every array begins at a multiple of 8 bytes and is
 * little-endian.
 *
 *   of a role:  kind lane phase (u8), layer micro name (u16), bytes flops (f32), deps (u32: first
 *               row of `after` of each op, and the end), after (u32), and of its buffers of GPU
 *               memory that own memory: part (u8), size (f64), first last (u32)
 *   of a row:   begin end (f64), seconds since the step began
 *   of the critical path, if it is known: path_row path_op (u32), in order of time */
#pragma once
#include "core/report/critical.h"
#include "core/report/report.h"

/* Whether a buffer takes memory of the GPU while it is in use. */
gboolean weft_cli_takes_memory (const struct weft_buf *buf);

/* Appends the timeline of a report, which must have one. `critical`: its critical path, whose ops
 * the page marks; NULL: it is not known. */
void weft_cli_timeline_page (GString *page, const weft_report *report,
                             const weft_critical *critical);
