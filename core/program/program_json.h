/* program_json.h - a program for other programs: JSON (schema weft.program/1) and Graphviz. */
#pragma once
#include "core/program/program.h"

/* One object: role, n_roles, ops and buffers.  Numbers of ops and buffers are those of the program;
 * what does not apply (axis, layer, micro, base, an absent operand's buffer, the lifetime of a
 * buffer that nothing uses) is null.
 *
 * The text comes piece by piece, a row a line: a tree of a long program takes gigabytes. */
typedef void (*weft_text_sink) (const char *piece, void *user);
void weft_program_write_json (const weft_program *program, weft_text_sink sink, void *user);

/* A cluster for each lane; black edges are dependencies, grey ones the order of a lane.  For `dot`.
 * Caller frees. */
char *weft_program_dot (const weft_program *program);
