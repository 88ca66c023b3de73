/* crc32c.h - CRC-32C (RFC 3720, section 12.1), the checksum of checkpoint chunks. It detects every
 * error burst of up to 32 bits. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct weft_crc32c {
  /* TRUE: use the SSE 4.2 instruction, which is several times as fast as the table */
  bool instruction;
  uint32_t table[8][256]; /* table[z][b]: CRC of byte b followed by z zero bytes */
};

/* Fills the table and detects the SSE 4.2 instruction. */
void weft_crc32c_init (struct weft_crc32c *c);

/* The checksum of n more bytes. `crc` is the checksum of the preceding bytes, or 0 if there are
 * none. */
uint32_t weft_crc32c (const struct weft_crc32c *c, uint32_t crc, const void *data, size_t n);
