/* units.h - numbers with prefixes and units: "40e6", "25MiB", "400Gb/s", "3us", "50GB/s".
 *
 * Decimal prefixes k M G T P are powers of 1000, binary prefixes Ki Mi Gi Ti are powers of 1024.
 * After the prefix, a number may have one of the units B, b (bits, divided by 8), B/s, b/s, s, Hz,
 * W, FLOP/s. The unit must be that of the field. A printed number is parsed back to the same
 * value. */
#pragma once
#include <glib.h>
#include <stdint.h>

/* Parses a number with an optional prefix and unit.  The unit must be `unit` ("" for plain numbers)
 * or, for bytes, bits; the result is in `unit`. */
gboolean weft_units_parse (const char *text, const char *unit, double *out, GError **error);

/* The shortest decimal number that parses back to the same double. The caller frees the text. */
char *weft_units_print (double value);

/* A number with prefix and unit, rounded for display: "38.2 GB", "1.25 ms", "312 TFLOP/s". The
 * caller frees the text. */
char *weft_units_human (double value, const char *unit);
