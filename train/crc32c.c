#include "train/crc32c.h"
#include <string.h>

/* Polynomial of CRC-32C (Castagnoli), bit-reversed. */
#define POLYNOMIAL 0x82f63b78u

#ifdef __x86_64__
static bool
has_instruction (void)
{
  return __builtin_cpu_supports ("sse4.2");
}

__attribute__ ((target ("sse4.2"))) static uint32_t
by_instruction (uint32_t crc, const uint8_t *at, size_t n)
{
  uint64_t wide = crc, next;

  for (; n >= 8; n -= 8, at += 8) {
    memcpy (&next, at, sizeof next);
    wide = __builtin_ia32_crc32di (wide, next);
  }
  crc = wide;
  for (; n > 0; n--, at++)
    crc = __builtin_ia32_crc32qi (crc, *at);
  return crc;
}
#else
static bool
has_instruction (void)
{
  return false;
}

static uint32_t
by_instruction (uint32_t crc, const uint8_t *at, size_t n)
{
  (void) at, (void) n;
  return crc;
}
#endif

void
weft_crc32c_init (struct weft_crc32c *c)
{
  c->instruction = has_instruction ();
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; bit++)
      crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
    c->table[0][byte] = crc;
  }
  for (int zeros = 1; zeros < 8; zeros++)
    for (uint32_t byte = 0; byte < 256; byte++) {
      uint32_t before = c->table[zeros - 1][byte];
      c->table[zeros][byte] = before >> 8 ^ c->table[0][before & 0xff];
    }
}

/* Slicing-by-8: 8 independent table lookups for every 8 bytes. */
static uint32_t
by_table (const struct weft_crc32c *c, uint32_t crc, const uint8_t *at, size_t n)
{
  for (; n >= 8; n -= 8, at += 8) {
    uint32_t low, high;
    memcpy (&low, at, sizeof low);
    memcpy (&high, at + 4, sizeof high);
    low ^= crc;
    crc = c->table[7][low & 0xff] ^ c->table[6][low >> 8 & 0xff] ^ c->table[5][low >> 16 & 0xff] ^
          c->table[4][low >> 24] ^ c->table[3][high & 0xff] ^ c->table[2][high >> 8 & 0xff] ^
          c->table[1][high >> 16 & 0xff] ^ c->table[0][high >> 24];
  }
  for (; n > 0; n--, at++)
    crc = crc >> 8 ^ c->table[0][(crc ^ *at) & 0xff];
  return crc;
}

uint32_t
weft_crc32c (const struct weft_crc32c *c, uint32_t crc, const void *data, size_t n)
{
  return ~(c->instruction ? by_instruction (~crc, data, n) : by_table (c, ~crc, data, n));
}
