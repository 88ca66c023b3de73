/* program_json.h - a program as JSON (schema weft.program/1) and for Graphviz. */
#pragma once
#include "core/program/program.h"

/* One object: role, n_roles, ops and buffers. Numbers of ops and buffers are those of the program;
 * a member that does not apply (axis, layer, micro, base, buffer of an absent operand, lifetime of
 * an unused buffer) is null.
 *
 * The text is passed to `sink` row by row, because a JSON tree of a long program would take
 * gigabytes. */
typedef void (*weft_text_sink) (const char *piece, void *user);
void weft_program_write_json (const weft_program *program, weft_text_sink sink, void *user);

/* A cluster per lane; black edges are dependencies, grey ones lane order. Input for `dot`. The
 * caller frees it. */
char *weft_program_dot (const weft_program *program);
