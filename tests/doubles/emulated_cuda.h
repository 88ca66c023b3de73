/* emulated_cuda.h - control of the CUDA emulator from tests in C. */
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* From now on, the threads of a block and the blocks of a grid run backwards or forwards. */
void emulated_order_of_threads (int backwards);

/* Sets the largest shared memory of a block in bytes; 227 KB at most and by default. */
void emulated_set_most_shared (unsigned bytes);

/* Which blocks of a grid run: all; only the last, for arrays too large to process in a test; none,
 * to inspect launches only. */
enum emulated_blocks { EMULATED_ALL, EMULATED_LAST, EMULATED_NONE };
void emulated_run_blocks (enum emulated_blocks which);

/* Number of launches so far of a kernel with this name, over all template arguments. */
uint64_t emulated_launches (const char *kernel);

/* yes != 0: errors in the use of wgmma are recorded, because the test expects them. 0 (default):
 * such an error ends the program. */
void emulated_expect_complaints (int yes);

/* Returns the first error recorded since emulated_expect_complaints(), or NULL. */
const char *emulated_complaint (void);

/* Number of data races between kernel threads so far. Only a build with the thread sanitizer
 * detects races; it prints them (emulated_races.hh). */
int emulated_races (void);

#ifdef __cplusplus
}
#endif
