/* emulated_products.hh - wgmma for kernels on the emulator (emulated_cuda.hh), and calls from the
 * emulator.  kernels/cuda/warpgroup.cuh states the rules for kernels. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* One wgmma by 128 threads: sum (64, columns) = or += a (64, 16) times b (16, columns). fp8 codes
 * have 32 terms instead of 16; two codes are one 16-bit element. */
struct emulated_product {
  float *sum; /* accumulators of this thread: columns / 2 */
  unsigned columns;
  /* decodes an fp8 value of the left or the right matrix; NULL for 16-bit matrices */
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

/* Begin and end of a block with `shared` bytes of dynamic shared memory. */
void emulated_products_open (size_t shared);
void emulated_products_close (void);

/* A cp.async of this thread to `to` has completed. */
void emulated_copy_arrived (const void *to);
