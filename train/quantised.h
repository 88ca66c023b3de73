/* quantised.h - what a tensor in fp8 is, made of its fp32 master: the bytes of its buffers, and the
 * values that kernels compute with.  Both are those of the kernels of a step (kernels/fp8.h). */
#pragma once
#include "core/program/program.h"

/* Buffers of a role that hold a tensor: its codes, its scale, and where they stand permanently the
 * copy that lies the other way round and its scale.  WEFT_NO_BUF: there is none, or no whole one. */
enum weft_quantised_part { WEFT_CODES, WEFT_SCALE, WEFT_TURNED, WEFT_TURNED_SCALE, WEFT_N_QUANTISED };

struct weft_quantised {
  uint32_t buf[WEFT_N_QUANTISED];
  uint64_t bytes[WEFT_N_QUANTISED];
  uint8_t *data[WEFT_N_QUANTISED];
};

/* All elements of `master`.  The caller releases. */
void weft_quantised_init (struct weft_quantised *q, const weft_program *p,
                          const struct weft_param *param, const float *master);
void weft_quantised_release (struct weft_quantised *q);

/* Masters become values: n elements of a tensor whose largest magnitude is `largest`; a whole row in
 * blocks with powers of two. */
void weft_quantised_values (float *value, uint64_t n, float largest);
void weft_quantised_row (float *value, uint64_t columns);
