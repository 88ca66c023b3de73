/* mix.h - pseudo-random bits from a number: the finaliser of SplitMix64 (Steele, Lea and Flood
 * 2014).  Every input bit affects every output bit; counters in steps of WEFT_MIX_STEP give a good
 * stream.  Also a 64-bit hash of bytes: FNV-1a (Fowler, Noll and Vo; RFC 9923). */
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

/* Mixes a number that may be 0 or close to other inputs, such as a counter. */
static inline uint64_t
weft_mix (uint64_t x)
{
  return weft_mix_bits (x + WEFT_MIX_STEP);
}

/* Initial value of a hash. weft_hash_byte() adds one byte to it. */
#define WEFT_HASH_BEGIN 0xcbf29ce484222325u

static inline uint64_t
weft_hash_byte (uint64_t hash, uint8_t byte)
{
  return (hash ^ byte) * 0x100000001b3u;
}
