/* spread.h - threads for one long loop, such as drawing or converting billions of weights. */
#pragma once
#include <stdint.h>

/* Calls run (data, first, n) for ranges that together are [0, total), on one thread for each
 * processor; on the calling thread alone if there are few elements. Every range begins at an even
 * element. */
void weft_spread (uint64_t total, void (*run) (void *data, uint64_t first, uint64_t n), void *data);
