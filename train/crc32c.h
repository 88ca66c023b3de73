/* crc32c.h - CRC-32C, the checksum of iSCSI (RFC 3720, 12.1) and of chunks of a checkpoint: it
 * finds every change of up to 32 bits in a row. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct weft_crc32c {
  bool instruction;       /* the processor has one (SSE 4.2): several times as fast */
  uint32_t table[8][256]; /* otherwise: of a byte followed by 0 to 7 bytes of zeros */
};

void weft_crc32c_init (struct weft_crc32c *c);

/* Goes on from `crc`, which is 0 before the first byte. */
uint32_t weft_crc32c (const struct weft_crc32c *c, uint32_t crc, const void *data, size_t n);
