/* fit.h - places pieces of memory whose lifetimes are known, largest first (offline dynamic storage
 * allocation). A piece gets the lowest offset at which it overlaps no placed piece that is in use
 * at the same time. Of pieces of one size, the piece whose use begins first is placed first, so
 * pieces of one size leave no gaps between them. */
#pragma once
#include <glib.h>
#include <stdint.h>

struct weft_fit_piece {
  uint64_t bytes, offset; /* offset of the piece, written by weft_fit() */
  /* the piece is in use from op `first` up to, but not including, op `end` */
  uint32_t first, end;
};

/* Returns the size of the memory that holds all pieces, or G_MAXUINT64 if the search would compare
 * more than `most` pairs of pieces. `n_times`: a number larger than any `first`. */
uint64_t weft_fit (struct weft_fit_piece *piece, uint32_t n, uint32_t n_times, uint64_t most);
