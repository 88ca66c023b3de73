/* timeline_file.h - a timeline as a file that stands for itself: what was measured on one machine
 * is compared on another, a prediction of today with a measurement of next week.
 *
 * One JSON document, compressed when the path ends in .gz:
 *
 *   { "schema": "weft.timeline/1",
 *     "job": "[model]\n...",           the job as INI text, from which the plan is built again
 *     "executor": "sim", "engine": "3.32", "seconds": s, "folded": true, "contended": false,
 *     "n_activities": n, "wall_seconds": s,
 *     "reserved": { "context": bytes, ... },      where it was measured
 *     "rows": [ { "rank": 0, "role": 0, "stands_for": 8, "begin": [s, ...], "end": [s, ...] } ] }
 *
 * Times are seconds with 17 significant digits, which name every double exactly; null is an op that
 * did not run.  begin and end have one place for each op of the role.
 *
 * The job names its model, topology and stack as the user did.  Bundled names and paths are looked
 * up when the file is read; where a file is no longer found, or now leads to another program, the
 * timeline is refused.  Members that are not known are passed over. */
#pragma once
#include "core/exec/timeline.h"

/* A larger timeline is neither written nor read: a reader holds all of it. */
#define WEFT_TIMELINE_MOST_OPS 2000000u
#define WEFT_TIMELINE_MOST_BYTES (160u << 20)

/* Seconds from 0 to this can be read. */
#define WEFT_TIMELINE_MOST_SECONDS 1e9

/* Refuses what weft_timeline_load() would: too many ops, times that are negative or run back. */
gboolean weft_timeline_save (const weft_plan *plan, const weft_timeline *timeline, const char *path,
                             GError **error);

/* The plan of the job in the file, and the timeline; both are the caller's, neither is set after
 * an error.  Compressed files are known by their first bytes. */
gboolean weft_timeline_load (const char *path, weft_plan **plan, weft_timeline **timeline,
                             GError **error);

/* The same from a text that is not compressed; errors begin with `name`. */
gboolean weft_timeline_parse (const char *text, gsize length, const char *name, weft_plan **plan,
                              weft_timeline **timeline, GError **error);
