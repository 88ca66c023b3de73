/* mutant.h - copies of a program with something wrong, for tests of the proofs. */
#pragma once
#include "core/program/program.h"

/* Caller frees both with weft_program_free(). */
weft_program *weft_mutant_copy (const weft_program *p);

/* Without deps[edge], which belongs to `op`. */
weft_program *weft_mutant_without_edge (const weft_program *p, uint32_t op, uint32_t edge);
