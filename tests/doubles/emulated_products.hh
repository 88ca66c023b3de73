/* emulated_products.hh - wgmma for kernels on the emulator (emulated_cuda.hh), and calls from the
 * emulator.  kernels/cuda/warpgroup.cuh states the rules for kernels. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* One wgmma by 128 threads: adds the product of a (64, 16) and b (16, columns) to sum (64,
 * columns), or replaces sum by the product. With fp8 values there are 32 terms instead of 16; two
 * fp8 values are one 16-bit element. */
struct emulated_product {
  float *sum; /* accumulators of this thread; columns / 2 numbers */
  unsigned columns;
  /* fragments of the left matrix in registers, four words; NULL: a_at describes the matrix */
  const uint32_t *a;
  uint64_t a_at, b;
  bool a_turned, b_turned, adds;
  float (*decoded) (uint16_t bits);
  float (*left_code) (uint8_t code) = NULL, (*right_code) (uint8_t code) = NULL; /* for fp8 */
};

void emulated_products_begin (void);
void emulated_multiply (const emulated_product &product);
void emulated_products_commit (void);
void emulated_products_wait (unsigned open);
void emulated_copies_are_seen (void);

/* Byte offset in shared memory of an element of the matrix with descriptor `bits`: `outer` counts
 * rows of the left or columns of the right matrix. */
uint64_t emulated_matrix_place (uint64_t bits, bool turned, unsigned outer, unsigned term);

/* Called when a block with `shared` bytes of dynamic shared memory begins and ends. */
void emulated_products_open (size_t shared);
void emulated_products_close (void);

/* Called when the data of a cp.async of this thread have arrived at `to`, or when the thread has
 * written there. */
void emulated_copy_arrived (const void *to);

/* Whether the threads that have written this shared memory have executed the fence to the async
 * proxy. */
bool emulated_is_seen (const void *from, size_t bytes);
