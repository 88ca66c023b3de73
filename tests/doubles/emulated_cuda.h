/* emulated_cuda.h - control of the CUDA emulator from tests in C. */
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Order of the threads of a block and the blocks of a grid. */
void emulated_order_of_threads (int backwards);

/* Sets the shared memory limit of a block: at most, and by default, 227 KB. */
void emulated_set_most_shared (unsigned bytes);

/* Which blocks of a grid run: all; only the last, for arrays too large to process in a test; none,
 * to inspect launches only. */
enum emulated_blocks { EMULATED_ALL, EMULATED_LAST, EMULATED_NONE };
void emulated_run_blocks (enum emulated_blocks which);

/* Number of launches so far of a kernel with this name, over all template arguments. */
uint64_t emulated_launches (const char *kernel);

/* A kernel error ends the program. If complaints are expected, it continues: the second function
 * returns the first complaint since then, or NULL. */
void emulated_expect_complaints (int yes);
const char *emulated_complaint (void);

/* Number of data races of kernel threads so far: in a build with the thread sanitizer
 * (emulated_races.hh), which prints them. */
int emulated_races (void);

#ifdef __cplusplus
}
#endif
