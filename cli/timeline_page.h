/* timeline_page.h - the timeline of a step as a part of a page that zooms, pans and answers what an
 * op is: its data and its script, in the page itself.
 *
 * The data of a job are arrays in one block, compressed with gzip and written as base64. The script
 * (cli/page/timeline.js) reads them by the list in the head: `sections` names each array, its type
 * and its length, in the order of the block. Every array begins at a multiple of 8 bytes and is
 * little-endian.
 *
 *   of a role:  kind lane phase (u8), layer micro name text (u16; text: number of its facts), bytes
 *               flops (f32), deps (u32: first row of `after` of each op, and the end), after (u32),
 *               and of its buffers of GPU memory that own memory: part (u8), size (f64), first last
 *               (u32)
 *   of a row:   begin end (f64), seconds since the step began
 *   of the critical path, if it is known: path_row path_op (u32), in order of time */
#pragma once
#include "core/report/critical.h"
#include "core/report/report.h"

/* Whether a buffer takes memory of the GPU while it is in use. */
gboolean weft_cli_takes_memory (const struct weft_buf *buf);

/* A job of a page. */
struct weft_cli_timeline_job {
  const weft_report *report; /* with a timeline */
  /* its critical path, whose ops the page marks; NULL: it is not known */
  const weft_critical *critical;
  const char *title; /* HTML above the timeline; NULL: none */
};

/* Appends the timelines of jobs, one below the other on one axis of time, with the tools that act
 * on all of them. `same`: whether all jobs run the same program, so that an op selected in one is
 * selected in all. */
void weft_cli_timeline_page (GString *page, const struct weft_cli_timeline_job *jobs, unsigned n,
                             gboolean same);

/* Appends a file of cli/page/. */
void weft_cli_page_part (GString *page, const char *name);

/* Appends JSON as a script that the browser does not run. It has no text that would end the
 * script. `class_name`: by which the page finds it. */
void weft_cli_page_json (GString *page, const char *class_name, JsonBuilder *builder);

/* Appends bytes, compressed with gzip and written as base64, as a script that the browser does not
 * run. */
void weft_cli_page_data (GString *page, const char *class_name, const void *bytes, gsize n);
