/* fit.h - places pieces of memory whose lifetimes are known (offline dynamic storage allocation).
 *
 * Pieces are placed one after the other. A piece gets the lowest offset at which it overlaps no
 * placed piece that is in use at the same time. Larger pieces are placed first; of pieces of one
 * size, the piece whose use begins first, so that they leave no gaps between them.
 *
 * If the memory becomes larger than the pieces that are in use at one time (their load), all pieces
 * are placed again in another order: pieces that ended above the load come earlier, together with
 * all pieces of their kind (equal size and similar lifetime, as those of other layers and
 * microbatches). The order that gave the smallest memory counts. */
#pragma once
#include <glib.h>
#include <stdint.h>

struct weft_fit_piece {
  uint64_t bytes, offset; /* offset of the piece, written by weft_fit() */
  /* the piece is in use from op `first` up to, but not including, op `end` */
  uint32_t first, end;
};

/* Returns the largest sum of the bytes of pieces that are in use at one time. */
uint64_t weft_fit_load (const struct weft_fit_piece *piece, uint32_t n, uint32_t n_times);

/* Returns the size of the memory that holds all pieces. `n_times`: a number larger than any
 * `first`. `slack`: bytes above the load with which the caller is content, so that no further order
 * is tried. `most`: number of comparisons of a piece with others; G_MAXUINT64 is returned if the
 * first order needs more, and no further order is tried after a quarter of them. */
uint64_t weft_fit (struct weft_fit_piece *piece, uint32_t n, uint32_t n_times, uint64_t slack,
                   uint64_t most);
