/* program_json.h - a program as JSON (schema weft.program/1), and as a graph for Graphviz. */
#pragma once
#include "core/program/program.h"

/* Writes one JSON object with role, n_roles, ops and buffers. Numbers of ops and buffers are their
 * numbers in the program. A member is null if it does not apply: axis, layer, micro, base, buffer
 * of an absent operand, lifetime of an unused buffer.
 *
 * The text goes to `sink` row by row, because a JSON tree of a long program would take
 * gigabytes. */
typedef void (*weft_text_sink) (const char *piece, void *user);
void weft_program_write_json (const weft_program *program, weft_text_sink sink, void *user);

/* Returns a graph as input for the command `dot`: a cluster of nodes per lane, dependencies as
 * black edges, lane order as grey edges. The caller frees the text. */
char *weft_program_dot (const weft_program *program);
