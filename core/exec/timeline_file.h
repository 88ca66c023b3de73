/* timeline_file.h - a timeline as a self-contained file, so that measurements and predictions of
 * different machines and days can be compared.
 *
 * One JSON document, compressed when the path ends in .gz:
 *
 *   { "schema": "weft.timeline/1",
 *     "job": "[model]\n...",           the job as INI text, from which the plan is built again
 *     "executor": "sim", "engine": "3.32", "seconds": s, "folded": true, "contended": false,
 *     "n_activities": n, "wall_seconds": s,
 *     "reserved": { "context": bytes, ... },      only if it was measured
 *     "rows": [ { "rank": 0, "role": 0, "stands_for": 8, "begin": [s, ...], "end": [s, ...] } ] }
 *
 * Times are seconds with 17 significant digits, which represent every double exactly; null is an op
 * that did not run.  begin and end have one element for each op of the role.
 *
 * The job names its model, topology and stack as the user did.  Bundled names and paths are looked
 * up when the file is read.  The timeline is refused if a file is no longer found, or if the plan
 * no longer has as many ops.  Unknown members are ignored. */
#pragma once
#include "core/exec/timeline.h"

/* Largest timeline in a file; a reader holds the whole timeline in memory. */
#define WEFT_TIMELINE_MOST_OPS 2000000u
#define WEFT_TIMELINE_MOST_BYTES (160u << 20)

/* Largest time that a timeline file may contain, in seconds. */
#define WEFT_TIMELINE_MOST_SECONDS 1e9

/* Refuses what weft_timeline_load() would refuse: too many ops, negative times, an op that ends
 * before it begins. */
gboolean weft_timeline_save (const weft_plan *plan, const weft_timeline *timeline, const char *path,
                             GError **error);

/* Reads a timeline from a file and builds the plan of its job. The caller owns both; after an error
 * neither is set. Compressed files are recognised by their first bytes. */
gboolean weft_timeline_load (const char *path, weft_plan **plan, weft_timeline **timeline,
                             GError **error);

/* Like weft_timeline_load(), for a text that is not compressed; errors begin with `name`. */
gboolean weft_timeline_parse (const char *text, gsize length, const char *name, weft_plan **plan,
                              weft_timeline **timeline, GError **error);
