/* exact.h - sums that do not depend on their order, because only the result is rounded.
 *
 * A sum is a fixed-point number of WEFT_EXACT_WORDS words with 32 bits each, kept in int64 so that
 * carries can be delayed; it holds any sum of up to 2^31 products of two fp32 numbers
 * exactly.  Sums add word by word as integers, so every order and every number of ranks gives the
 * same bits.  (Small superaccumulator: Neal 2015, arXiv 1505.05571.)
 *
 * The canonical loss and gradient norm are such sums. */
#pragma once
#include <glib.h>
#include <stdint.h>

/* Word i has the weight 2^(32 i + WEFT_EXACT_LOW), but the last word counts terms that are not
 * finite. */
#define WEFT_EXACT_WORDS 22
#define WEFT_EXACT_LOW (-352)

/* sum += terms; each |term| is 0, not finite, or within [2^-300, 2^260], as any fp32 number and any
 * product of two fp32 numbers is. */
void weft_exact_add (int64_t sum[WEFT_EXACT_WORDS], const double *term, uint64_t n);

/* The sum as a double, exact except for the last bit; NaN if a term was not finite. */
double weft_exact_value (const int64_t sum[WEFT_EXACT_WORDS]);
