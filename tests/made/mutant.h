/* mutant.h - damaged copies of a program, for tests of the checker. */
#pragma once
#include "core/program/program.h"

/* Returns a copy of a program. The caller frees all copies with weft_program_free(). */
weft_program *weft_mutant_copy (const weft_program *p);

/* Returns a copy of p in which op `op` lacks its dependency deps[edge]. */
weft_program *weft_mutant_without_edge (const weft_program *p, uint32_t op, uint32_t edge);
