#include "kernels/eight_bits.h"
#include <math.h>
#include <stdlib.h>

enum { N = 256, EXPONENTS = 7 };

static int
compare (const void *a, const void *b)
{
  float x = *(const float *) a, y = *(const float *) b;
  return (x > y) - (x < y);
}

/* Point i of the division of [0.1, 1] into n parts, as torch.linspace computes it in fp32: from the
 * nearer end. */
static float
point (uint32_t i, uint32_t n)
{
  float step = (1.0f - 0.1f) / (float) n;
  return i < (n + 1) / 2 ? 0.1f + step * (float) i : 1.0f - step * (float) (n - i);
}

static void
fill (float *table, gboolean is_signed)
{
  uint32_t at = 0;

  for (uint32_t e = 0; e < EXPONENTS; e++) {
    uint32_t parts = 1u << (is_signed ? e : e + 1);
    double power = pow (10, (double) e - (EXPONENTS - 1));
    for (uint32_t i = 0; i < parts; i++) {
      float mean = (float) (power * (double) ((point (i, parts) + point (i + 1, parts)) / 2));
      table[at++] = mean;
      if (is_signed)
        table[at++] = -mean;
    }
  }
  table[at++] = 0;
  table[at++] = 1;
  g_assert (at == N);
  qsort (table, N, sizeof *table, compare);
}

const float *
weft_eight_bits_table (gboolean is_signed)
{
  static float tables[2][N];
  static gsize made = 0;

  if (g_once_init_enter (&made)) {
    fill (tables[0], FALSE);
    fill (tables[1], TRUE);
    g_once_init_leave (&made, 1);
  }
  return tables[is_signed != 0];
}

uint8_t
weft_eight_bits_code (const float *table, float x)
{
  uint32_t low = 0, high = N - 1;

  while (high - low > 1) { /* table[low] <= x < table[high], or x is outside the table */
    uint32_t middle = (low + high) / 2;
    if (table[middle] <= x)
      low = middle;
    else
      high = middle;
  }
  uint32_t code = x - table[low] < table[high] - x ? low : high;
  if (table[0] < 0 && x != 0 && signbit (table[code]) != signbit (x))
    code = x > 0 ? code + 1 : code - 1;
  return (uint8_t) code;
}
