/* elementwise.h - elementwise kernels: element i of every output depends only on element i of the
 * inputs.
 *
 * Arrays are processed in stretches (float.h). `run` reads and writes floats, whatever the stored
 * type; results are rounded when they are stored. */
#pragma once
#include "kernels/kernel.h"

struct weft_elementwise {
  /* One letter per operand: r read, w written, u both, - not touched. An operand without data is
   * passed as NULL. */
  const char *access;
  uint64_t n;
  void (*run) (const void *with, float *const *at, uint64_t n);
  const void *with;
};

void weft_elementwise_run (const struct weft_kernel *k, const struct weft_elementwise *flat,
                           uint32_t part, uint32_t parts);
