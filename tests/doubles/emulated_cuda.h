/* emulated_cuda.h - what a test written in C says to the emulator. */
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Threads of a block, and blocks of a grid. */
void emulated_order_of_threads (int backwards);

/* Bytes of shared memory that a block may have; 227 KB until something else is said, and not
 * more. */
void emulated_set_most_shared (unsigned bytes);

/* Which blocks of a grid run: all of them; the last alone, for arrays so large that no test could
 * go through them; none, where only launches are looked at. */
enum emulated_blocks { EMULATED_ALL, EMULATED_LAST, EMULATED_NONE };
void emulated_run_blocks (enum emulated_blocks which);

/* Launches, since the program began, of a kernel of that name, whatever its template arguments. */
uint64_t emulated_launches (const char *kernel);

/* A kernel that does what a device would not forgive ends the program, or, where complaints are
 * expected, goes on: the first since then, or NULL. */
void emulated_expect_complaints (int yes);
const char *emulated_complaint (void);

/* Whether threads of a kernel have raced since the program began: in a build with the thread
 * sanitizer (emulated_races.hh), which says where. */
int emulated_races (void);

#ifdef __cplusplus
}
#endif
