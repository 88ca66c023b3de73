/* emulated_cuda.h - what a test written in C says to the emulator. */
#pragma once
#ifdef __cplusplus
extern "C"
#endif
void emulated_order_of_threads (int backwards);
