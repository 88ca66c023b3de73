/* quantised.h - fp8 weights computed from fp32 master weights: the bytes of the fp8 buffers, and
 * the values that kernels compute with. Both come from the kernels of a step (kernels/fp8.h). */
#pragma once
#include "core/program/program.h"

/* Buffers of a pipeline stage for one fp8 tensor: codes, scale and, if a transposed copy is
 * permanent, transposed codes with their scale. WEFT_NO_BUF: this buffer does not exist, or no
 * buffer contains the whole tensor. */
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

/* Quantises `master`, which has all elements of the tensor. The caller releases *q with
 * weft_quantised_release(). */
void weft_quantised_init (struct weft_quantised *q, const weft_program *p,
                          const struct weft_param *param, const float *master);
void weft_quantised_release (struct weft_quantised *q);

/* Replaces n master weights by the values that their fp8 codes represent. The tensor has one scale,
 * and `largest` is the largest magnitude of the whole tensor. */
void weft_quantised_values (float *value, uint64_t n, float largest);

/* Replaces a whole row of master weights by the values of its MXFP8 blocks, each with a power of
 * two as scale. */
void weft_quantised_row (float *value, uint64_t columns);
