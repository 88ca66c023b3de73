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

/* Where control can go back to. */
struct place {
  ucontext_t context;
  void *stack;
};

/* A switch of contexts asks the system for the mask of signals each time, and kernels that shuffle are
 * nothing but switches.  Without it a switch is the registers that a function keeps (System V ABI of
 * x86-64); sanitizers know nothing of it. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
enum { BARE = true, KEPT = 6 };

extern "C" void emulated_switch (void **from, void *to);
asm (".text\n"
     "emulated_switch:\n"
     "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
     "  mov %rsp, (%rdi)\n"
     "  mov %rsi, %rsp\n"
     "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
     "  ret\n");
#else
enum { BARE = false, KEPT = 6 };

static void
emulated_switch (void **, void *)
{
}
#endif

static void
go (place *from, place *to)
{
  if (BARE)
    emulated_switch (&from->stack, to->stack);
  else
    swapcontext (&from->context, &to->context);
}

struct copy {
  void *to;
  const void *from;
  size_t bytes;
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
  unsigned exchanges; /* so far */
  std::vector<std::vector<copy>> groups; /* the last is not committed yet */
};

/* What the lanes of each warp have left, in one exchange and in the next: when a lane leaves something
 * in the one after that, all have read. */
struct found {
  uint8_t lane[2][WARP][MOST_BYTES];
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

static fibre *newest;

/* A stack begins here; it never ends. */
static void
live (void)
{
  fibre *me = newest;

  for (;;) {
    run_threads (me);
    idle.push_back (me);
    go (&me->here, &scheduler);
  }
}

/* As if emulated_switch() had been called at the beginning of live(). */
static void
prepare_stack (fibre *f)
{
  uintptr_t top = (uintptr_t) (f->stack.data () + f->stack.size ()) / 16 * 16;
  void **at = (void **) top - 2;

  *at = (void *) live;
  f->here.stack = at - KEPT;
}

static void
prepare_context (fibre *f)
{
  getcontext (&f->here.context);
  f->here.context.uc_stack.ss_sp = f->stack.data ();
  f->here.context.uc_stack.ss_size = f->stack.size ();
  f->here.context.uc_link = NULL;
  makecontext (&f->here.context, live, 0);
}

/* Stacks that lay at equal distances would all want the same lines of the cache. */
static fibre *
new_fibre (void)
{
  static unsigned n;
  fibre *f = newest = new fibre;

  f->stack.resize (STACK_BYTES + n++ % WARP * 5 * 64);
  if (BARE)
    prepare_stack (f);
  else
    prepare_context (f);
  return f;
}

/* Who of the warp goes on when one lane has come to an exchange: the next that has not, or, when all
 * have, the first.  NULL: some are not there yet. */
static thread *
next_lane (const thread *me)
{
  size_t at = (size_t) (me - threads.data ()), first = at / WARP * WARP;
  size_t n = threads.size () - first < WARP ? threads.size () - first : (size_t) WARP;
  bool all = n_begun == threads.size ();

  for (size_t i = 1; i < n && all; i++) {
    thread *t = &threads[first + (at - first + (reversed ? n - i : i)) % n];
    if (t->state == READY)
      return t;
    all = t->state != AT_BARRIER;
  }
  for (size_t i = 0; i < n && all; i++)
    threads[first + i].state = threads[first + i].state == IN_EXCHANGE ? READY : ENDED;
  for (size_t i = 0; i < n && all; i++) {
    thread *t = &threads[first + (reversed ? n - 1 - i : i)];
    if (t->state == READY)
      return t;
  }
  return NULL;
}

static void
stop (enum state state)
{
  thread *me = now;
  me->state = state;
  thread *next = state == IN_EXCHANGE ? next_lane (me) : NULL;
  if (next)
    become (next);
  if (next != me)
    go (&me->on->here, next ? &next->on->here : &scheduler);
}

void
__syncthreads (void)
{
  stop (AT_BARRIER);
}

/* What every lane of the warp has left. */
static uint8_t (*exchange (const void *mine, size_t bytes))[MOST_BYTES]
{
  size_t i = (size_t) (now - threads.data ());
  uint8_t (*lane)[MOST_BYTES] = warps[i / WARP].lane[now->exchanges++ % 2];

  if (bytes > MOST_BYTES)
    abort ();
  memcpy (lane[i % WARP], mine, bytes);
  stop (IN_EXCHANGE);
  return lane;
}

void
emulated_exchange (const void *mine, size_t bytes, unsigned from, void *out)
{
  memcpy (out, exchange (mine, bytes)[from], bytes);
}

void
emulated_gather (const uint32_t *mine, unsigned words, uint32_t *all)
{
  uint8_t (*lane)[MOST_BYTES] = exchange (mine, words * sizeof *mine);

  for (unsigned i = 0; i < WARP; i++)
    memcpy (all + i * words, lane[i], words * sizeof *mine);
}

void
emulated_copy (void *to, const void *from, size_t bytes)
{
  if (now->groups.empty ())
    now->groups.emplace_back ();
  now->groups.back ().push_back ({ to, from, bytes });
  memset (to, 0xff, bytes); /* it may come at any time from now on */
}

void
emulated_copy_commit (void)
{
  if (now->groups.empty ())
    now->groups.emplace_back ();
  now->groups.emplace_back ();
}

static void
arrive (const copy &c)
{
  if (c.from)
    memcpy (c.to, c.from, c.bytes);
  else
    memset (c.to, 0, c.bytes);
  emulated_copy_arrived (c.to);
}

/* All but the newest `open` groups. */
void
emulated_copy_wait (unsigned open)
{
  while (now->groups.size () > open + 1) {
    for (const copy &c : now->groups.front ())
      arrive (c);
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
  t->exchanges = 0;
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
  for (size_t i = first; i < last; i++)
    threads[i].state = threads[i].state == IN_EXCHANGE ? READY : threads[i].state;
  return any;
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

/* A warp goes on until its lanes stand at a barrier, or have ended. */
static bool
run_warp (size_t first)
{
  size_t left = threads.size () - first, n = left < WARP ? left : (size_t) WARP;
  bool moved = false, again = true;

  while (again) {
    again = false;
    for (size_t i = 0; i < n; i++) {
      thread *t = &threads[first + (reversed ? n - 1 - i : i)];
      if (t->state != READY)
        continue;
      resume (t);
      again = true;
    }
    again = finish_exchange (first) || again;
    moved = moved || again;
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
    bool moved = false;
    for (size_t i = 0; i < warps.size (); i++)
      moved = run_warp ((reversed ? warps.size () - 1 - i : i) * WARP) || moved;
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
        emulated_products_open (shared);
        run_block ();
        emulated_products_close ();
      }
}
