#include "train/crc32c.h"
#include <string.h>

/* Castagnoli's polynomial, lowest bit first. */
#define POLYNOMIAL 0x82f63b78u

void
weft_crc32c_init (struct weft_crc32c *c)
{
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

/* Eight bytes at once: a look-up for each instead of one after the other. */
uint32_t
weft_crc32c (const struct weft_crc32c *c, uint32_t crc, const void *data, size_t n)
{
  const uint8_t *at = data;

  crc = ~crc;
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
  return ~crc;
}
