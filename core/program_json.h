/* program_json.h - a program for other programs: JSON (schema weft.program/1) and Graphviz. */
#pragma once
#include "core/program.h"
#include <json-glib/json-glib.h>

/* One object: role, n_roles, ops and buffers.  Numbers of ops and buffers are those of the program;
 * what does not apply (axis, layer, micro, base, an absent operand's buffer, the lifetime of a
 * buffer that nothing uses) is null. */
void weft_program_to_json (const weft_program *program, JsonBuilder *builder);

/* A cluster for each lane; black edges are dependencies, grey ones the order of a lane.  For `dot`.
 * Caller frees. */
char *weft_program_dot (const weft_program *program);
