/* emulated_cuda.h - what a test written in C says to the emulator. */
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

void emulated_order_of_threads (int backwards);

/* A kernel that does what a device would not forgive ends the program, or, where complaints are expected,
 * goes on: the first since then, or NULL. */
void emulated_expect_complaints (int yes);
const char *emulated_complaint (void);

#ifdef __cplusplus
}
#endif
