/* quantised.h - fp8 weights made from fp32 master weights: the bytes of the buffers and the values
 * kernels compute with, both from the kernels that run in a step (kernels/fp8.h). */
#pragma once
#include "core/program/program.h"

/* Buffers of a role that hold one fp8 tensor: its codes and its scale, and, if they are permanent,
 * the transposed codes and their scale. WEFT_NO_BUF: no such buffer, or none that holds the tensor
 * whole. */
enum weft_quantised_part {
  WEFT_CODES,
  WEFT_SCALE,
  WEFT_CODES_TRANSPOSED,
  WEFT_SCALE_TRANSPOSED,
  WEFT_N_QUANTISED
};

struct weft_quantised {
  uint32_t buf[WEFT_N_QUANTISED];
  uint64_t bytes[WEFT_N_QUANTISED];
  uint8_t *data[WEFT_N_QUANTISED];
};

/* Quantises `master`, all elements of the tensor. Release with weft_quantised_release(). */
void weft_quantised_init (struct weft_quantised *q, const weft_program *p,
                          const struct weft_param *param, const float *master);
void weft_quantised_release (struct weft_quantised *q);

/* Replace master weights by the values that their fp8 codes stand for. _values(): n elements of a
 * tensor with one scale, whose largest magnitude is `largest`. _row(): a whole row of MXFP8 blocks,
 * whose scales are powers of two. */
void weft_quantised_values (float *value, uint64_t n, float largest);
void weft_quantised_row (float *value, uint64_t columns);
