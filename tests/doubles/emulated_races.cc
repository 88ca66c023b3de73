#include "tests/doubles/emulated_races.hh"
#include "tests/doubles/emulated_cuda.h"
#if !defined(WEFT_EMULATED_RACES)
int
emulated_races (void)
{
  return false;
}
#else
#include <sanitizer/tsan_interface.h>
#include <stdint.h>
#include <stdio.h>
#include <vector>

/* Functions of ThreadSanitizer. Some declare memory as new that the emulator uses again; others
 * exclude memory accesses from race detection. */
extern "C" {
void __tsan_java_init (uintptr_t heap, uintptr_t bytes);
void __tsan_java_alloc (uintptr_t at, uintptr_t bytes);
void __tsan_java_free (uintptr_t at, uintptr_t bytes);
void AnnotateIgnoreReadsBegin (const char *file, int line);
void AnnotateIgnoreReadsEnd (const char *file, int line);
void AnnotateIgnoreWritesBegin (const char *file, int line);
void AnnotateIgnoreWritesEnd (const char *file, int line);
void AnnotateIgnoreSyncBegin (const char *file, int line);
void AnnotateIgnoreSyncEnd (const char *file, int line);
void __tsan_read_range (void *at, unsigned long bytes);
void __tsan_on_report (void *report);
/* bounds of the static data of the program, which contain the emulated shared memory */
extern char __data_start[], _end[];
}

enum {
  NOT_SYNC = 1 /* flag of a switch between fibres: the switch does not order memory accesses */,
  WORD = 8,
  MOST_BARRIERS = 1 + 1024 / 32
};

static std::vector<void *> fibres;
/* 0 and 1 in turn: consecutive blocks use different fibre and barrier objects of the thread
 * sanitizer */
static unsigned turn;
static void *host;
/* The addresses of these objects stand for synchronisation objects of ThreadSanitizer. */
static char begun, ended, barriers[MOST_BARRIERS][4];
static bool in_kernel, raced;

int
emulated_races (void)
{
  return raced;
}

void
__tsan_on_report (void *)
{
  raced = raced || in_kernel;
}

emulated_unwatched::emulated_unwatched (void)
{
  AnnotateIgnoreReadsBegin (__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin (__FILE__, __LINE__);
}

emulated_unwatched::~emulated_unwatched (void)
{
  AnnotateIgnoreWritesEnd (__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd (__FILE__, __LINE__);
}

void
emulated_races_open (void)
{
  static bool once;

  if (!once)
    __tsan_java_init ((uintptr_t) __data_start / WORD * WORD,
                      ((uintptr_t) _end - (uintptr_t) __data_start) / WORD * WORD + 2 * WORD);
  once = true;
  host = __tsan_get_current_fiber ();
  in_kernel = true;
  __tsan_release (&begun);
}

void
emulated_races_open_block (void)
{
  turn = !turn;
}

void
emulated_races_close (void)
{
  __tsan_acquire (&ended);
  in_kernel = false;
}

void
emulated_races_new_memory (const void *from, size_t bytes)
{
  uintptr_t at = (uintptr_t) from / WORD * WORD,
            end = ((uintptr_t) from + bytes + WORD - 1) / WORD * WORD;

  if (end == at)
    return;
  __tsan_java_free (at, end - at);
  __tsan_java_alloc (at, end - at);
}

size_t
emulated_races_number (size_t thread)
{
  return 2 * thread + turn;
}

void
emulated_races_become (size_t thread)
{
  size_t number = emulated_races_number (thread);

  while (fibres.size () <= number) {
    char name[64];
    snprintf (name, sizeof name, "%zu of every second block", fibres.size () / 2);
    fibres.push_back (__tsan_create_fiber (0));
    __tsan_set_fiber_name (fibres.back (), name);
  }
  __tsan_switch_to_fiber (fibres[number], NOT_SYNC);
}

void
emulated_races_become_host (void)
{
  __tsan_switch_to_fiber (host, NOT_SYNC);
}

void
emulated_races_begin (void)
{
  __tsan_acquire (&begun);
}

void
emulated_races_end (void)
{
  __tsan_release (&ended);
}

/* Returns the sync object of a barrier. Consecutive barriers use two objects in turn, because a
 * fast thread may reach the next barrier before the slowest thread has left this barrier. */
static void *
barrier (size_t whose, unsigned count)
{
  return &barriers[whose][2 * turn + count % 2];
}

void
emulated_races_come (size_t whose, unsigned count)
{
  __tsan_release (barrier (whose, count));
}

void
emulated_races_go_on (size_t whose, unsigned count)
{
  __tsan_acquire (barrier (whose, count));
}

void
emulated_races_release (const void *object)
{
  __tsan_release ((void *) object);
}

void
emulated_races_acquire (const void *object)
{
  __tsan_acquire ((void *) object);
}

void
emulated_races_read (const void *from, size_t bytes)
{
  __tsan_read_range ((void *) from, bytes);
}
#endif
