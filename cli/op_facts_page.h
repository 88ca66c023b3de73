/* op_facts_page.h - the facts of an op (core/report/op_facts.h) as text and as data of a page, with
 * the numbers of topology and stack, and the comments of their files, which name the sources. */
#pragma once
#include "core/report/op_facts.h"
#include <json-glib/json-glib.h>

/* The files of topology and stack of a job. */
typedef struct weft_cli_sources weft_cli_sources;

/* Reads the files. A file that cannot be read, such as one of another machine whose numbers a
 * timeline has, gives no sources. */
weft_cli_sources *weft_cli_sources_new (const struct weft_job *job);
void weft_cli_sources_free (weft_cli_sources *sources);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_cli_sources, weft_cli_sources_free)

/* A number of a job with its source: "gpu_bf16 = 794 TFLOP/s (dgx-h100.ini: measured: ...)". The
 * caller frees the text. */
char *weft_cli_source_text (const weft_cli_sources *sources, const struct weft_cost_field *field);

/* Prints the facts of an op of a role. */
void weft_cli_op_facts_print (const weft_plan *plan, uint32_t role, uint32_t op);
void weft_cli_op_facts_json (const weft_plan *plan, uint32_t role, uint32_t op);

/* Adds to the open object of a page's head: `texts`, for each role the facts of its ops, and
 * `fields`, the numbers that they name. The result is, for each role, the number of each op in its
 * `texts`: arrays of n_op uint16_t. Ops of one kind, shape, name and group share a text. The caller
 * frees the array. */
GPtrArray *weft_cli_op_facts_add (JsonBuilder *builder, const weft_plan *plan);
