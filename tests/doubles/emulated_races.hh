/* emulated_races.hh - threads of a kernel on the emulator (emulated_cuda.hh) as what the thread
 * sanitizer takes for threads: in a build for it every access of a kernel is watched, to shared
 * memory and to that of the device, and two threads that nothing orders may not touch the same
 * bytes unless both read.
 *
 * Ordered are what comes before a launch, its threads, and what comes after it; threads by
 * __syncthreads(), lanes by __syncwarp().  Exchanges of registers (shuffles, products, matrices
 * that a warp loads) order nothing, as on a device.  Two blocks are ordered by nothing, of which
 * those that follow one another are told apart, and of others threads of different numbers that
 * meet at no barrier.
 *
 * The emulator itself is compiled without the sanitizer, for what it does between two threads is
 * none of theirs; in other builds all of this is nothing. */
#pragma once
#include <stddef.h>

#if defined(WEFT_EMULATED_RACES)
enum { EMULATED_RACES = true };

/* The launching host thread calls these: open and close for a grid, open_block for each block. */
void emulated_races_open (void);
void emulated_races_open_block (void);
void emulated_races_close (void);

/* Declares memory as new: a block reuses the shared memory of an earlier, unrelated block. */
void emulated_races_new_memory (const void *from, size_t bytes);

/* The following accesses belong to this thread of the block; to the host.  Each thread has a stack
 * of its own and a number that differs from those in the previous and the next block. */
size_t emulated_races_number (size_t thread);
void emulated_races_become (size_t thread);
void emulated_races_become_host (void);

/* The thread begins; the thread has ended. */
void emulated_races_begin (void);
void emulated_races_end (void);

/* A thread reaches, and leaves, the barrier number `count` of the block (whose = 0) or of a warp (1
 * and more).  Accesses before a barrier are ordered before accesses after it. */
void emulated_races_come (size_t whose, unsigned count);
void emulated_races_go_on (size_t whose, unsigned count);

/* Reports a read by an instruction that the compiler does not instrument. */
void emulated_races_read (const void *from, size_t bytes);

/* Accesses of the thread are not watched while an object of this type exists. */
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
emulated_races_read (const void *, size_t)
{
}
struct emulated_unwatched {
  emulated_unwatched (void)
  {
  }
};
#endif
