/* fit.h - places pieces of memory whose lifetimes are known, largest first (offline dynamic storage
 * allocation). A piece gets the lowest offset at which it overlaps no placed piece that lives at
 * the same time; of pieces of one size, the one that lives first is placed first. Pieces of one
 * size thus leave no gaps between them, whatever their order in time. */
#pragma once
#include <glib.h>
#include <stdint.h>

struct weft_fit_piece {
  uint64_t bytes, offset; /* offset: written by weft_fit() */
  uint32_t first, end;    /* the piece is in use during [first, end) */
};

/* Returns the size of the memory, or G_MAXUINT64 if the search would compare more than `most` pairs
 * of pieces. `n_times`: more than any `first`. */
uint64_t weft_fit (struct weft_fit_piece *piece, uint32_t n, uint32_t n_times, uint64_t most);
