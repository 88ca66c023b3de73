#include "tests/emulated_cuda.hh"
#include "tests/emulated_cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <vector>

enum { STACK_BYTES = 128 << 10, SHARED_BYTES = 228 << 10, WARP = 32, MOST_BYTES = 64 };

emulated_index threadIdx, blockIdx;
dim3 blockDim, gridDim;
alignas (1024) uint8_t emulated_shared[SHARED_BYTES];

struct copy {
  void *to;
  const void *from;
};

enum state { READY, AT_BARRIER, IN_EXCHANGE, ENDED };

struct fibre {
  ucontext_t context;
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

static ucontext_t scheduler;
static std::vector<fibre> fibres;
static std::vector<found> warps;
static std::vector<std::vector<uint8_t>> stacks; /* kept from block to block */
static fibre *now;
static const std::function<void ()> *body;
static bool reversed;

void
emulated_order_of_threads (int backwards)
{
  reversed = backwards != 0;
}

static void
run_body (void)
{
  (*body) ();
  now->state = ENDED;
  swapcontext (&now->context, &scheduler);
}

static void
stop (enum state state)
{
  fibre *me = now;
  me->state = state;
  swapcontext (&me->context, &scheduler);
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
  return &warps[(size_t) (now - fibres.data ()) / WARP];
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
  now->groups.back ().push_back ({ to, from });
}

void
emulated_copy_commit (void)
{
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
start (size_t i)
{
  fibre *f = &fibres[i];
  unsigned linear = (unsigned) i;

  f->index = { linear % blockDim.x, linear / blockDim.x % blockDim.y,
               linear / (blockDim.x * blockDim.y) };
  f->state = READY;
  f->groups.assign (1, {});
  getcontext (&f->context);
  f->context.uc_stack.ss_sp = stacks[i].data ();
  f->context.uc_stack.ss_size = stacks[i].size ();
  f->context.uc_link = NULL;
  makecontext (&f->context, run_body, 0);
}

static void
resume (fibre *f)
{
  now = f;
  threadIdx = f->index;
  swapcontext (&scheduler, &f->context);
}

/* Lanes that have ended take no part, as on the device after Volta when the mask leaves them out. */
static bool
finish_exchange (size_t first)
{
  size_t last = first + WARP < fibres.size () ? first + WARP : fibres.size ();
  bool any = false;

  for (size_t i = first; i < last; i++) {
    if (fibres[i].state == READY || fibres[i].state == AT_BARRIER)
      return false;
    any = any || fibres[i].state == IN_EXCHANGE;
  }
  if (!any)
    return false;
  for (size_t i = first; i < last; i++) {
    memcpy (warps[first / WARP].lane[i - first], fibres[i].left, MOST_BYTES);
    fibres[i].state = fibres[i].state == IN_EXCHANGE ? READY : fibres[i].state;
  }
  return true;
}

static bool
finish_barrier (void)
{
  bool any = false;

  for (fibre &f : fibres) {
    if (f.state == READY || f.state == IN_EXCHANGE)
      return false;
    any = any || f.state == AT_BARRIER;
  }
  for (fibre &f : fibres)
    f.state = f.state == AT_BARRIER ? READY : f.state;
  return any;
}

static bool
has_ended (void)
{
  for (const fibre &f : fibres)
    if (f.state != ENDED)
      return false;
  return true;
}

static void
run_block (void)
{
  for (size_t i = 0; i < fibres.size (); i++)
    start (i);
  while (!has_ended ()) {
    bool moved = false;
    for (size_t i = 0; i < fibres.size (); i++) {
      fibre *f = &fibres[reversed ? fibres.size () - 1 - i : i];
      if (f->state != READY)
        continue;
      resume (f);
      moved = true;
    }
    for (size_t warp = 0; warp < fibres.size (); warp += WARP)
      moved = finish_exchange (warp) || moved;
    moved = finish_barrier () || moved;
    if (!moved) {
      fprintf (stderr, "lanes of a warp, or threads of a block, wait for each other for ever\n");
      abort ();
    }
  }
}

void
emulated_run (dim3 grid, dim3 block, const std::function<void ()> &thread)
{
  size_t threads = (size_t) block.x * block.y * block.z;

  blockDim = block;
  gridDim = grid;
  body = &thread;
  fibres.resize (threads);
  warps.resize ((threads + WARP - 1) / WARP);
  while (stacks.size () < threads)
    stacks.emplace_back (STACK_BYTES);
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = { x, y, z };
        memset (emulated_shared, 0xff, SHARED_BYTES); /* NaN: nothing is there before it is written */
        run_block ();
      }
}
