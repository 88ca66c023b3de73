/* caching.h - which memory PyTorch's caching allocator takes from the driver for a sequence of
 * tensors. The rules are those of c10/cuda/CUDACachingAllocator.cpp of PyTorch 1.10 and 1.11,
 * without max_split_size_mb:
 *
 * - sizes are multiples of 512 bytes; blocks of up to 1 MiB and larger ones have separate pools;
 * - a tensor gets the smallest free block of its pool that is large enough (best fit), and the rest
 *   of this block stays free: any rest in the pool of small blocks, a rest of more than 1 MiB in
 *   the other;
 * - if there is none, the driver provides a segment: 2 MiB for small blocks, 20 MiB for less than
 *   10 MiB, otherwise the size in multiples of 2 MiB;
 * - a freed block joins its free neighbours in the same segment, and the segment stays reserved;
 * - if the GPU is full, all segments without a block in use go back to the driver first.
 *
 * A tensor that spans two segments is impossible, so free bytes of several segments cannot serve
 * one large tensor. */
#pragma once
#include <glib.h>
#include <stdint.h>

typedef struct weft_caching weft_caching;

/* An allocator that can reserve `most` bytes. The caller frees it. */
weft_caching *weft_caching_new (double most);
void weft_caching_free (weft_caching *caching);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_caching, weft_caching_free)

/* Allocates a tensor of `bytes` and returns the number of its block, or 0 for an empty tensor.
 * A tensor that does not fit on the GPU exceeds `most`. */
uint32_t weft_caching_take (weft_caching *caching, double bytes);

/* Frees a tensor; block 0 is none. */
void weft_caching_give (weft_caching *caching, uint32_t block);

/* Bytes of all segments: torch.cuda.memory_reserved(). */
double weft_caching_reserved (const weft_caching *caching);
