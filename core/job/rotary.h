/* rotary.h - frequencies of rotary position embedding (Su et al. 2021, arXiv:2104.09864, section
 * 3.2.2). */
#pragma once
#include "core/job/model.h"

/* Radians per position of pair `i` of `width` / 2, where `width` elements of a head are rotated:
 * base^(-2 i / width), reduced by the model's rotary_scaling:
 *
 *   linear  divided by the factor (Chen et al. 2023, arXiv:2306.15595)
 *   llama3  by the number of turns over the original context: below low_freq_factor divided by the
 *           factor, above high_freq_factor unchanged, between them interpolated linearly
 *           (Llama 3.1, meta-llama/llama-models models/llama3/model.py)
 *   other   unknown: training refuses it
 *
 * `local`: for a layer of weft_model_layer_is_local() the base is rotary_base_local, without
 * scaling.
 *
 * A token at position p is rotated by p times this value. */
double weft_rotary_frequency (const union weft_model *m, uint32_t i, uint32_t width,
                              gboolean local);

/* Number of rotated pairs of elements in a head with `width` elements. The number is rounded,
 * because a share such as 0.4 of 80 is not exact in binary. */
uint64_t weft_rotary_pairs (const union weft_model *m, uint64_t width);
