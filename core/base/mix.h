/* mix.h - random-looking bits from a number: the finaliser of SplitMix64 (Steele, Lea and Flood
 * 2014).  Every bit of z moves all; counters in steps of WEFT_MIX_STEP give a good stream.  And a
 * number from bytes: FNV-1a of 64 bits (Fowler, Noll and Vo; RFC 9923). */
#pragma once
#include <stdint.h>

#define WEFT_MIX_STEP 0x9e3779b97f4a7c15u

static inline uint64_t
weft_mix_bits (uint64_t z)
{
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* Of numbers that may be 0 or close to each other. */
static inline uint64_t
weft_mix (uint64_t x)
{
  return weft_mix_bits (x + WEFT_MIX_STEP);
}

/* A hash begins with this; each byte makes another of it. */
#define WEFT_HASH_BEGIN 0xcbf29ce484222325u

static inline uint64_t
weft_hash_byte (uint64_t hash, uint8_t byte)
{
  return (hash ^ byte) * 0x100000001b3u;
}
