/* emulated_cuda.h - control of the CUDA emulator from tests in C. */
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Sets the order in which the threads of a block and the blocks of a grid run: forwards, or
 * backwards. */
void emulated_order_of_threads (int backwards);

/* Sets the largest shared memory that a block may have, in bytes; by default 227 KB, which is also
 * the largest value. */
void emulated_set_most_shared (unsigned bytes);

/* Which blocks of a grid run: all; only the last, for arrays too large to process in a test; none,
 * to inspect launches only. */
enum emulated_blocks { EMULATED_ALL, EMULATED_LAST, EMULATED_NONE };
void emulated_run_blocks (enum emulated_blocks which);

/* Number of launches so far of a kernel with this name, over all template arguments. */
uint64_t emulated_launches (const char *kernel);

/* Blocks, and threads of a block, of the last launch of a kernel with this name. */
struct emulated_grid {
  uint64_t blocks;
  uint32_t threads;
};
struct emulated_grid emulated_grid_of (const char *kernel);

/* yes != 0: the test expects errors in the use of wgmma, so they are recorded. 0 (default): such an
 * error ends the program. */
void emulated_expect_complaints (int yes);

/* Returns the first error recorded since emulated_expect_complaints(), or NULL. */
const char *emulated_complaint (void);

/* Returns the number of data races between kernel threads so far. Only a build with the thread
 * sanitizer detects races, and prints them (emulated_races.hh). */
int emulated_races (void);

#ifdef __cplusplus
}
#endif
