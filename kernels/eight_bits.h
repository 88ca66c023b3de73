/* eight_bits.h - the numbers that 8-bit moments can represent: "dynamic tree" quantisation
 * (Dettmers 2016, arXiv 1511.04561; with block scales, arXiv 2110.02861).
 *
 * A code is the index of a number in a rising table of 256 numbers from -0.993 (first moment,
 * signed) or from 0 (second moment, unsigned) to 1. The tables are those of bitsandbytes
 * (functional.py, create_dynamic_map with 7 exponent bits): for each power 10^-6 .. 10^0 the means
 * of neighbouring points of an even division of [0.1, 1] into 1, 2, 4 .. 64 parts (unsigned: 2 ..
 * 128), with both signs, and 0 and 1. */
#pragma once
#include "kernels/kernel.h"

/* Returns the table, 256 numbers in rising order, of first (signed) or of second moments. */
const float *weft_eight_bits_table (gboolean is_signed);

/* Returns the code of the number that is nearest to x, from -1 to 1; of two equally near ones the
 * larger. In the signed table the sign of x stays: a code of bitsandbytes never turns a step
 * around. */
uint8_t weft_eight_bits_code (const float *table, float x);
