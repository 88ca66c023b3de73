/* emulated_products.hh - products of warpgroups, for kernels on the emulator (emulated_cuda.hh),
 * and what the emulator tells them.  kernels/cuda/warpgroup.cuh says what a kernel has to keep
 * to. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* sum (64, columns) = or += a (64, 16) times b (16, columns), by 128 threads; of codes, which are
 * what a term of 16 bits holds two of, 32 terms. */
struct emulated_product {
  float *sum; /* of this thread, columns / 2 */
  unsigned columns;
  const uint32_t *a; /* four words of fragments; NULL: a_at describes the matrix */
  uint64_t a_at, b;
  bool a_turned, b_turned, adds;
  float (*decoded) (uint16_t bits);
  float (*left_code) (uint8_t code) = NULL, (*right_code) (uint8_t code) = NULL; /* instead */
};

void emulated_products_begin (void);
void emulated_multiply (const emulated_product &product);
void emulated_products_commit (void);
void emulated_products_wait (unsigned open);
void emulated_copies_are_seen (void);

/* Where in shared memory an element of a described matrix is read, in bytes: `outer` counts rows of
 * the left and columns of the right matrix. */
uint64_t emulated_matrix_place (uint64_t bits, bool turned, unsigned outer, unsigned term);

/* A block begins and ends; a copy of this thread has come to shared memory. */
void emulated_products_open (size_t shared);
void emulated_products_close (void);
void emulated_copy_arrived (const void *to);
