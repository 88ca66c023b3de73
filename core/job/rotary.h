/* rotary.h - how fast rotary positions turn (Su et al. 2021, arXiv:2104.09864, section 3.2.2). */
#pragma once
#include "core/job/model.h"

/* Radians per position by which pair `i` of `width` / 2 turns, where `width` elements of a head are
 * rotated: base^(-2 i / width), made slower by the model's rotary_scaling:
 *
 *   linear  divided by the factor (Chen et al. 2023, arXiv:2306.15595)
 *   llama3  turns over the original positions decide: below low_freq_factor divided by the factor,
 *           above high_freq_factor unchanged, between them a blend of the two, linear in the turns
 *           (Llama 3.1, meta-llama/llama-models models/llama3/model.py)
 *   other   not known: whoever trains refuses it first
 *
 * `local`: in a layer of weft_model_layer_is_local() the base is rotary_base_local, and nothing is
 * scaled.
 *
 * Positions themselves stay whole numbers: a token at p is turned by p times this. */
double weft_rotary_frequency (const union weft_model *m, uint32_t i, uint32_t width,
                              gboolean local);

/* Pairs of a head of that width that are turned.  A share like 0.4 of 80 is a little off in
 * binary. */
uint64_t weft_rotary_pairs (const union weft_model *m, uint64_t width);
