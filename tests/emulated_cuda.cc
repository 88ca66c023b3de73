#include "tests/emulated_cuda.hh"
#include "tests/emulated_cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

enum { STACK_BYTES = 128 << 10, SHARED_BYTES = 228 << 10, WARP = 32, MOST_BYTES = 64 };

emulated_index threadIdx, blockIdx;
dim3 blockDim, gridDim;
alignas (1024) uint8_t emulated_shared[SHARED_BYTES];

/* Where control can go back to.  A switch of contexts asks the system for the mask of signals each
 * time; a jump does not, but sanitizers know nothing of jumps between stacks. */
struct place {
  ucontext_t context;
  jmp_buf at;
  bool begun;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { JUMPS = false };
#else
enum { JUMPS = true };
#endif

static void
go (place *from, place *to)
{
  if (!JUMPS) {
    swapcontext (&from->context, &to->context);
    return;
  }
  from->begun = true;
  if (_setjmp (from->at))
    return;
  if (to->begun)
    _longjmp (to->at, 1);
  setcontext (&to->context);
}

struct copy {
  void *to;
  const void *from;
};

enum state { NEW, READY, AT_BARRIER, IN_EXCHANGE, ENDED };

/* A stack that runs threads: one after the other as long as they come to their end without waiting,
 * which most do. */
struct fibre {
  place here;
  std::vector<uint8_t> stack;
};

struct thread {
  fibre *on;
  emulated_index index;
  enum state state;
  uint8_t left[MOST_BYTES];
  std::vector<std::vector<copy>> groups; /* the last is not committed yet */
};

/* What the lanes of each warp have left; the next exchange of the warp overwrites it, when all have
 * read. */
struct found {
  uint8_t lane[WARP][MOST_BYTES];
};

static place scheduler;
static std::vector<thread> threads;
static size_t n_begun, n_ended; /* threads of the block */
static std::vector<found> warps;
static std::vector<fibre *> idle; /* kept from block to block */
static thread *now;
static const std::function<void ()> *body;
static bool reversed;

void
emulated_order_of_threads (int backwards)
{
  reversed = backwards != 0;
}

static void
become (thread *t)
{
  now = t;
  threadIdx = t->index;
}

static void
run_threads (fibre *me)
{
  while (n_begun < threads.size ()) {
    size_t i = n_begun++;
    thread *t = &threads[reversed ? threads.size () - 1 - i : i];
    t->on = me;
    become (t);
    (*body) ();
    now->state = ENDED; /* it may have waited, and others have run since */
    n_ended++;
  }
}

/* Two halves of its address: arguments of makecontext() are ints. */
static void
live (unsigned high, unsigned low)
{
  fibre *me = (fibre *) ((uintptr_t) high << 32 | low);

  for (;;) {
    run_threads (me);
    idle.push_back (me);
    go (&me->here, &scheduler);
  }
}

static fibre *
new_fibre (void)
{
  fibre *f = new fibre;
  uintptr_t at = (uintptr_t) f;

  f->stack.resize (STACK_BYTES);
  f->here.begun = false;
  getcontext (&f->here.context);
  f->here.context.uc_stack.ss_sp = f->stack.data ();
  f->here.context.uc_stack.ss_size = f->stack.size ();
  f->here.context.uc_link = NULL;
  makecontext (&f->here.context, (void (*) (void)) live, 2, (unsigned) (at >> 32), (unsigned) at);
  return f;
}

static void
stop (enum state state)
{
  thread *me = now;
  me->state = state;
  go (&me->on->here, &scheduler);
}

void
__syncthreads (void)
{
  stop (AT_BARRIER);
}

/* After stop() every lane's words are with every lane. */
static void
exchange (const void *mine, size_t bytes)
{
  if (bytes > MOST_BYTES)
    abort ();
  memcpy (now->left, mine, bytes);
  stop (IN_EXCHANGE);
}

static const found *
my_warp (void)
{
  return &warps[(size_t) (now - threads.data ()) / WARP];
}

void
emulated_exchange (const void *mine, size_t bytes, unsigned from, void *out)
{
  exchange (mine, bytes);
  memcpy (out, my_warp ()->lane[from], bytes);
}

void
emulated_gather (const uint32_t *mine, unsigned words, uint32_t *all)
{
  exchange (mine, words * sizeof *mine);
  for (unsigned lane = 0; lane < WARP; lane++)
    memcpy (all + lane * words, my_warp ()->lane[lane], words * sizeof *mine);
}

void
emulated_copy (void *to, const void *from)
{
  if (now->groups.empty ())
    now->groups.emplace_back ();
  now->groups.back ().push_back ({ to, from });
}

void
emulated_copy_commit (void)
{
  if (now->groups.empty ())
    now->groups.emplace_back ();
  now->groups.emplace_back ();
}

/* All but the newest `open` groups. */
void
emulated_copy_wait (unsigned open)
{
  while (now->groups.size () > open + 1) {
    for (const copy &c : now->groups.front ())
      memcpy (c.to, c.from, 16);
    now->groups.erase (now->groups.begin ());
  }
}

static void
prepare (size_t i)
{
  thread *t = &threads[i];
  unsigned linear = (unsigned) i;

  t->index = { linear % blockDim.x, linear / blockDim.x % blockDim.y,
               linear / (blockDim.x * blockDim.y) };
  t->state = NEW;
  t->groups.clear ();
}

static void
resume (thread *t)
{
  become (t);
  t->state = READY;
  go (&scheduler, &t->on->here);
}

/* Until all have come as far as they can alone. */
static void
begin_all (void)
{
  while (n_begun < threads.size ()) {
    fibre *f = idle.empty () ? new_fibre () : idle.back ();
    if (!idle.empty ())
      idle.pop_back ();
    go (&scheduler, &f->here);
  }
}

/* Lanes that have ended take no part, as on the device after Volta when the mask leaves them out. */
static bool
finish_exchange (size_t first)
{
  size_t last = first + WARP < threads.size () ? first + WARP : threads.size ();
  bool any = false;

  for (size_t i = first; i < last; i++) {
    if (threads[i].state == READY || threads[i].state == AT_BARRIER)
      return false;
    any = any || threads[i].state == IN_EXCHANGE;
  }
  if (!any)
    return false;
  for (size_t i = first; i < last; i++) {
    memcpy (warps[first / WARP].lane[i - first], threads[i].left, MOST_BYTES);
    threads[i].state = threads[i].state == IN_EXCHANGE ? READY : threads[i].state;
  }
  return true;
}

static bool
finish_barrier (void)
{
  bool any = false;

  for (const thread &t : threads) {
    if (t.state == READY || t.state == IN_EXCHANGE)
      return false;
    any = any || t.state == AT_BARRIER;
  }
  for (thread &t : threads)
    t.state = t.state == AT_BARRIER ? READY : t.state;
  return any;
}

static bool
resume_ready (void)
{
  bool moved = false;

  for (size_t i = 0; i < threads.size (); i++) {
    thread *t = &threads[reversed ? threads.size () - 1 - i : i];
    if (t->state != READY)
      continue;
    resume (t);
    moved = true;
  }
  return moved;
}

static void
run_block (void)
{
  n_begun = n_ended = 0;
  for (size_t i = 0; i < threads.size (); i++)
    prepare (i);
  begin_all ();
  while (n_ended < threads.size ()) {
    bool moved = resume_ready ();
    for (size_t warp = 0; warp < threads.size (); warp += WARP)
      moved = finish_exchange (warp) || moved;
    moved = finish_barrier () || moved;
    if (!moved) {
      fprintf (stderr, "lanes of a warp, or threads of a block, wait for each other for ever\n");
      abort ();
    }
  }
}

void
emulated_run (dim3 grid, dim3 block, size_t shared, const std::function<void ()> &thread)
{
  size_t n = (size_t) block.x * block.y * block.z;

  if (shared > SHARED_BYTES)
    abort ();
  blockDim = block;
  gridDim = grid;
  body = &thread;
  threads.resize (n);
  warps.resize ((n + WARP - 1) / WARP);
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = { x, y, z };
        memset (emulated_shared, 0xff, shared); /* NaN: nothing is there before it is written */
        run_block ();
      }
}
