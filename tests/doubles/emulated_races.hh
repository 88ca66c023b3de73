/* emulated_races.hh - makes threads of a kernel on the emulator (emulated_cuda.hh) threads of the
 * thread sanitizer.  In a build with the sanitizer, every access of a kernel to shared or device
 * memory is checked: two threads without an order between them must not access the same bytes,
 * unless both read.
 *
 * A launch orders the accesses before it, of its threads, and after it; __syncthreads() orders
 * threads of a block, __syncwarp() lanes of a warp.  Register exchanges (shuffles, matrix products,
 * ldmatrix) order nothing, as on a device.  Blocks are not ordered.  Races are found between
 * consecutive blocks, and between other blocks if the threads have different numbers and no common
 * barrier.
 *
 * The emulator itself is compiled without the sanitizer, because its own accesses belong to no
 * kernel thread.  In other builds, these functions do nothing. */
#pragma once
#include <stddef.h>

#if defined(WEFT_EMULATED_RACES)
enum { EMULATED_RACES = true };

/* Called by the host thread that launches a kernel: open and close for each grid, open_block for
 * each block. */
void emulated_races_open (void);
void emulated_races_open_block (void);
void emulated_races_close (void);

/* Declares memory as new to the race detector, because a block uses the shared memory of an
 * earlier, unrelated block again. */
void emulated_races_new_memory (const void *from, size_t bytes);

/* Returns the number of a thread of the block, which is also the number of its stack. Threads of
 * the previous and the next block have other numbers. */
size_t emulated_races_number (size_t thread);

/* Tells the race detector that the following accesses are made by this thread of the block, or by
 * the host. */
void emulated_races_become (size_t thread);
void emulated_races_become_host (void);

/* Called by a kernel thread when it begins and when it ends. */
void emulated_races_begin (void);
void emulated_races_end (void);

/* A thread reaches, and leaves, the barrier number `count` of the block (whose = 0) or of a warp (1
 * and more).  Accesses before a barrier are ordered before accesses after it. */
void emulated_races_come (size_t whose, unsigned count);
void emulated_races_go_on (size_t whose, unsigned count);

/* Accesses before a release of an object are ordered before accesses after a later acquire of
 * it. */
void emulated_races_release (const void *object);
void emulated_races_acquire (const void *object);

/* Reports a read of memory to the race detector. Needed for instructions that the compiler does not
 * instrument. */
void emulated_races_read (const void *from, size_t bytes);

/* While an object of this type exists, the race detector ignores the accesses of the thread. */
struct emulated_unwatched {
  emulated_unwatched (void);
  ~emulated_unwatched (void);
};
#else
enum { EMULATED_RACES = false };

static inline size_t
emulated_races_number (size_t)
{
  return 0;
}
static inline void
emulated_races_open (void)
{
}
static inline void
emulated_races_open_block (void)
{
}
static inline void
emulated_races_close (void)
{
}
static inline void
emulated_races_new_memory (const void *, size_t)
{
}
static inline void
emulated_races_become (size_t)
{
}
static inline void
emulated_races_become_host (void)
{
}
static inline void
emulated_races_begin (void)
{
}
static inline void
emulated_races_end (void)
{
}
static inline void
emulated_races_come (size_t, unsigned)
{
}
static inline void
emulated_races_go_on (size_t, unsigned)
{
}
static inline void
emulated_races_release (const void *)
{
}
static inline void
emulated_races_acquire (const void *)
{
}
static inline void
emulated_races_read (const void *, size_t)
{
}
struct emulated_unwatched {
  emulated_unwatched (void)
  {
  }
};
#endif
