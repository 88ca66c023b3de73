#include "tests/doubles/emulated_cuda.hh"
#include "core/base/sanitize.h"
#include "tests/doubles/emulated_cuda.h"
#include "tests/doubles/emulated_pipeline.hh"
#include "tests/doubles/emulated_races.hh"
#include <map>
#include <memory>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <ucontext.h>
#include <vector>
#if WEFT_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK_BYTES = 128 << 10, WARP = 32 };

/* Limits of compute capability 9.0 (CUDA programming guide, "Technical Specifications per Compute
 * Capability"): bytes of shared memory per block, with and without cudaFuncSetAttribute(); blocks
 * of a grid in y and in z; threads of a block. */
enum {
  SHARED_BYTES = 227 << 10,
  SHARED_UNASKED = 48 << 10,
  MOST_BLOCKS = 65535,
  MOST_THREADS = 1024
};
enum { GUARD = 256 /* bytes behind shared memory that kernels must not change */ };

emulated_index threadIdx, blockIdx;
dim3 blockDim, gridDim;
alignas (1024) uint8_t emulated_shared[SHARED_BYTES + GUARD];

/* A saved execution context and its stack. */
struct place {
  ucontext_t context;
  void *stack;
  const void *bottom; /* lowest address of the stack */
  size_t bytes;
  void *fake; /* handle of the address sanitizer for this stack */
};

/* The address sanitizer must be told about each switch from one stack to another. Otherwise it
 * would treat the stacks of other kernel threads as frames that have returned. */
#if WEFT_ADDRESS_SANITIZER
static place *place_left;

static void
leave (place *from, const place *to)
{
  place_left = from;
  __sanitizer_start_switch_fiber (&from->fake, to->bottom, to->bytes);
}

static void
arrive_at (const place *here)
{
  __sanitizer_finish_switch_fiber (here->fake, &place_left->bottom, &place_left->bytes);
}

static void
let_touch (const void *from, size_t bytes, bool touch)
{
  (touch ? __asan_unpoison_memory_region : __asan_poison_memory_region) (from, bytes);
}
#else
static void
leave (place *, const place *)
{
}

static void
arrive_at (const place *)
{
}

static void
let_touch (const void *, size_t, bool)
{
}
#endif

/* Switches between execution contexts. Saves only the callee-saved registers (System V ABI of
 * x86-64). swapcontext() would also make a system call for the signal mask, which would take most
 * of the time of kernels with many shuffles. */
#if defined(__x86_64__)
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
  leave (from, to);
  if (BARE)
    emulated_switch (&from->stack, to->stack);
  else
    swapcontext (&from->context, &to->context);
  arrive_at (from);
}

static void __attribute__ ((noreturn, format (printf, 1, 2)))
die (const char *format, ...)
{
  va_list rest;

  va_start (rest, format);
  fprintf (stderr, "a kernel on the emulator: ");
  vfprintf (stderr, format, rest);
  fprintf (stderr, "\n");
  va_end (rest);
  abort ();
}

struct copy {
  void *to;
  const void *from;
  size_t bytes;
};

enum state { READY, AT_BARRIER, IN_EXCHANGE, ASLEEP, ENDED };

/* A stack on which kernel threads run. Threads that end without waiting run one after the other on
 * one stack. */
struct fibre {
  place here;
  std::unique_ptr<uint8_t[]> stack;
};

struct thread {
  fibre *on;
  emulated_index index;
  uint32_t warp, lane;
  enum state state;
  int line;             /* where the thread waits: source line of its barrier */
  const void *waits_on; /* ASLEEP: the object that wakes the thread */
  /* groups of cp.async of the thread; the last group is not committed yet */
  std::vector<std::vector<copy>> groups;
};

/* A warp: its lanes that are ready to run, the exchange (shuffle, vote, ldmatrix ...) in progress,
 * and the operands of the lanes that have reached the exchange. */
struct warp {
  uint32_t ready; /* lanes that can run, one bit per lane */
  void *lane[WARP];
  emulated_maker *make;
  int line; /* source line of the exchange */
  /* lanes that have reached the current exchange; completed __syncwarp() */
  unsigned come, barriers;
};

static place scheduler;
static std::vector<thread> threads;
static size_t n_begun, n_ended; /* number of threads of the block that have begun and ended */
static unsigned n_barriers;     /* number of completed __syncthreads() of the block */
static std::vector<warp> warps;
/* stacks of kernel threads, which later blocks use again */
static std::vector<std::unique_ptr<fibre>> fibres;
static std::vector<fibre *> idle;
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
  emulated_races_become ((size_t) (t - threads.data ()));
}

static void
set_state (thread *t, enum state state)
{
  warp *w = &warps[t->warp];
  uint32_t bit = 1u << t->lane;

  t->state = state;
  w->ready = state == READY ? w->ready | bit : w->ready & ~bit;
}

static uint32_t
highest (uint32_t bits)
{
  return WARP - 1 - (uint32_t) __builtin_clz (bits);
}

/* Returns the ready lane of the warp that runs next when thread `me` waits or has ended. Returns
 * NULL if no lane is ready, or some threads of the block have not started yet. */
static thread *
next_lane (const thread *me)
{
  uint32_t ready = warps[me->warp].ready, before = ready & ((1u << me->lane) - 1),
           after = ready & ~before;

  if (!ready || n_begun < threads.size ())
    return NULL;
  uint32_t lane = reversed ? highest (before ? before : after)
                           : (uint32_t) __builtin_ctz (after ? after : before);
  return &threads[me->warp * WARP + lane];
}

/* Switches from thread `me` to thread `next`, or to the scheduler if next is NULL. */
static void
hand_over (thread *me, thread *next)
{
  if (next)
    become (next);
  else
    emulated_races_become_host ();
  if (next != me)
    go (&me->on->here, next ? &next->on->here : &scheduler);
}

void
__syncthreads (int line)
{
  unsigned which = n_barriers;

  emulated_races_come (0, which);
  now->line = line;
  set_state (now, AT_BARRIER);
  hand_over (now, next_lane (now));
  emulated_races_go_on (0, which);
}

void
emulated_sleep (const void *on)
{
  now->waits_on = on;
  set_state (now, ASLEEP);
  hand_over (now, next_lane (now));
}

void
emulated_wake (const void *on)
{
  for (thread &t : threads)
    if (t.state == ASLEEP && t.waits_on == on)
      set_state (&t, READY);
}

bool
emulated_is_awaited (const void *object)
{
  for (const thread &t : threads)
    if (t.state == ASLEEP && t.waits_on == object)
      return true;
  return false;
}

/* Returns the index of the thread of the block that starts next. */
static size_t
next_to_begin (void)
{
  return reversed ? threads.size () - 1 - n_begun : n_begun;
}

static void
forget_copies (thread *t)
{
  emulated_unwatched own;

  t->groups.clear ();
}

static void
run_thread (fibre *on)
{
  thread *t = &threads[next_to_begin ()];

  n_begun++;
  t->on = on;
  set_state (t, READY);
  become (t);
  forget_copies (t);
  emulated_races_begin ();
  (*body) ();
  emulated_races_end ();
  /* The thread that ends is `now`. `t` may be another thread, because other threads ran on this
   * stack while the thread waited. */
  set_state (now, ENDED);
  n_ended++;
}

/* Runs threads of the block one after the other on one stack. With the race detector, each thread
 * needs a stack of its own, so only one runs. */
static void
run_threads (fibre *me)
{
  do
    run_thread (me);
  while (!EMULATED_RACES && n_begun < threads.size ());
}

static fibre *comes; /* stack of kernel threads to which the scheduler switches next */

/* The first function that runs on every stack of a kernel thread. It never returns. */
static void
live (void)
{
  fibre *me = comes;

  arrive_at (&me->here);
  for (;;) {
    run_threads (me);
    if (!EMULATED_RACES)
      idle.push_back (me);
    hand_over (now, next_lane (now));
  }
}

/* Prepares a new stack: the first switch to the stack calls live(). */
static void
prepare_stack (fibre *f)
{
  uintptr_t top = (uintptr_t) (f->stack.get () + f->here.bytes) / 16 * 16;
  void **at = (void **) top - 2;

  *at = (void *) live;
  f->here.stack = at - KEPT;
}

static void
prepare_context (fibre *f)
{
  getcontext (&f->here.context);
  f->here.context.uc_stack.ss_sp = f->stack.get ();
  f->here.context.uc_stack.ss_size = f->here.bytes;
  f->here.context.uc_link = NULL;
  makecontext (&f->here.context, live, 0);
}

/* Allocates a stack at a varying offset. Stacks at equal distances would compete for the same cache
 * lines. */
static fibre *
new_fibre (void)
{
  static unsigned n;
  emulated_unwatched own;
  fibre *f = new fibre ();
  fibres.emplace_back (f);

  f->here.bytes = STACK_BYTES + n++ % WARP * 5 * 64;
  f->stack.reset (new uint8_t[f->here.bytes]);
  f->here.bottom = f->stack.get ();
  if (BARE)
    prepare_stack (f);
  else
    prepare_context (f);
  return f;
}

void
emulated_all_lanes (unsigned mask)
{
  if (mask != UINT32_MAX)
    die ("the mask of an exchange names lanes %#x of a warp, but all lanes take part", mask);
}

/* Called by a lane that reaches a warp exchange. All lanes must execute the same instruction of the
 * same line. */
static void
come (warp *m, size_t lane, void *mine, emulated_maker *make, int line)
{
  if (!m->come++) {
    m->make = make;
    m->line = line;
  } else if (m->make != make || m->line != line) {
    die ("lanes of a warp are in different exchanges, of lines %d and %d", m->line, line);
  }
  m->lane[lane] = mine;
}

/* Computes the result of a warp exchange for all lanes. The race detector ignores the memory
 * accesses of this function. */
static void
make_unwatched (emulated_maker *make, void *const *lane)
{
  emulated_unwatched own;

  make (lane);
}

void
emulated_meet (void *mine, emulated_maker *make, int line)
{
  thread *me = now;
  warp *w = &warps[me->warp];
  size_t first = me->warp * WARP;

  if (first + WARP > threads.size ())
    die ("an exchange in a warp with fewer than %d lanes", WARP);
  come (w, me->lane, mine, make, line);
  if (w->come < WARP) {
    set_state (me, IN_EXCHANGE);
    hand_over (me, next_lane (me));
    return;
  }
  w->come = 0;
  make_unwatched (make, w->lane);
  for (size_t i = first; i < first + WARP; i++)
    threads[i].state = READY;
  w->ready = UINT32_MAX;
  hand_over (me, &threads[reversed ? first + WARP - 1 : first]);
}

static void
make_nothing (void *const *)
{
}

void
__syncwarp (int line)
{
  warp *w = &warps[now->warp];
  size_t whose = 1 + now->warp;
  unsigned which = w->barriers;

  emulated_races_come (whose, which);
  emulated_meet (NULL, make_nothing, line);
  w->barriers = which + 1;
  emulated_races_go_on (whose, which);
}

static size_t shared_bytes; /* size of the dynamic shared memory of the running block */

/* Begin and end of the static shared memory of all kernels (__shared__ in emulated_cuda.hh). */
extern "C" uint8_t __start_emulated_static[], __stop_emulated_static[];

static void
check_shared (const void *at, size_t bytes)
{
  const uint8_t *from = (const uint8_t *) at;
  bool is_static = from >= __start_emulated_static && from + bytes <= __stop_emulated_static;

  if (!is_static && (from < emulated_shared || from + bytes > emulated_shared + shared_bytes))
    die ("%zu bytes are outside of shared memory, which has %zu bytes", bytes, shared_bytes);
  if ((uintptr_t) at % bytes)
    die ("%zu bytes of shared memory begin at %zu", bytes, (size_t) (from - emulated_shared));
}

void
emulated_read_shared (const void *at, size_t bytes)
{
  check_shared (at, bytes);
  emulated_races_read (at, bytes);
}

static void
keep_copy (const copy &c)
{
  emulated_unwatched own;

  if (now->groups.empty ())
    now->groups.emplace_back ();
  now->groups.back ().push_back (c);
}

void
emulated_copy (void *to, const void *from, size_t bytes)
{
  check_shared (to, bytes);
  if ((uintptr_t) from % bytes)
    die ("%zu bytes are copied from an address that is no multiple of that", bytes);
  keep_copy ({ to, from, bytes });
  /* the destination of a cp.async is NaN until the kernel has waited for the copy */
  memset (to, 0xff, bytes);
}

void
emulated_copy_commit (void)
{
  emulated_unwatched own;

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

/* Waits until all groups of cp.async of the thread are complete, except the newest `open`
 * groups. */
void
emulated_copy_wait (unsigned open)
{
  while (now->groups.size () > open + 1) {
    for (const copy &c : now->groups.front ())
      arrive (c);
    emulated_unwatched own;
    now->groups.erase (now->groups.begin ());
  }
}

static void
resume (thread *t)
{
  become (t);
  go (&scheduler, &t->on->here);
}

static fibre *
idle_fibre (void)
{
  if (idle.empty ())
    return new_fibre ();
  fibre *f = idle.back ();
  idle.pop_back ();
  return f;
}

static fibre *
own_fibre (size_t i)
{
  size_t number = emulated_races_number (i);

  while (fibres.size () <= number)
    new_fibre ();
  return fibres[number].get ();
}

/* Starts all threads of the block. Each thread runs until it ends or must wait for other
 * threads. */
static void
begin_all (void)
{
  while (n_begun < threads.size ()) {
    comes = EMULATED_RACES ? own_fibre (next_to_begin ()) : idle_fibre ();
    go (&scheduler, &comes->here);
  }
}

/* Fails if a lane has ended while other lanes of the warp wait in an exchange. The mask of an
 * exchange names all lanes, so its result is then undefined (CUDA programming guide, "Warp Shuffle
 * Functions"), even if some devices do not wait for ended lanes. */
static void
check_warp (size_t first, size_t n)
{
  size_t ended = n, waits = 0;

  for (size_t i = 0; i < n; i++) {
    enum state state = threads[first + i].state;
    if (state == AT_BARRIER || state == ASLEEP)
      return;
    waits += state == IN_EXCHANGE;
    ended = state == ENDED ? i : ended;
  }
  if (waits)
    die ("lane %zu of a warp has ended while others are in an exchange", ended);
}

/* Fails unless all threads of the block wait at the same barrier (CUDA programming guide,
 * "Synchronization Functions"). Some devices accept less; kernels must not rely on it. */
static void
check_barrier (int line)
{
  for (const thread &t : threads)
    if (t.state == ENDED)
      die ("a thread of a block has ended while others wait at a barrier, of line %d", line);
    else if (t.line != line)
      die ("threads of a block wait at different barriers, of lines %d and %d", line, t.line);
}

static bool
finish_barrier (void)
{
  const thread *any = NULL;

  for (const thread &t : threads) {
    if (t.state == READY || t.state == IN_EXCHANGE || t.state == ASLEEP)
      return false;
    any = t.state == AT_BARRIER ? &t : any;
  }
  if (!any)
    return false;
  check_barrier (any->line);
  n_barriers++;
  for (thread &t : threads)
    set_state (&t, READY);
  return true;
}

/* Runs a ready lane of a warp, and then the other lanes of the warp one after the other, until all
 * of them wait at a barrier or have ended. Returns whether a lane was ready. */
static bool
run_warp (size_t first)
{
  size_t left = threads.size () - first, n = left < WARP ? left : (size_t) WARP;
  bool moved = false;

  for (size_t i = 0; i < n && !moved; i++) {
    thread *t = &threads[first + (reversed ? n - 1 - i : i)];
    moved = t->state == READY;
    if (moved)
      resume (t);
  }
  check_warp (first, n);
  return moved;
}

static void
run_block (void)
{
  n_begun = n_ended = 0;
  n_barriers = 0;
  for (warp &w : warps)
    w.come = w.ready = w.barriers = 0;
  begin_all ();
  while (n_ended < threads.size ()) {
    bool moved = false;
    for (size_t i = 0; i < warps.size (); i++)
      moved = run_warp ((reversed ? warps.size () - 1 - i : i) * WARP) || moved;
    moved = finish_barrier () || moved;
    if (!moved && !emulated_pipeline_deliver (reversed))
      die ("deadlock: lanes of a warp, or threads of a block, wait for each other");
  }
}

/* ------------------------------------------------------------------------------ launches */

/* kernel -> bytes of dynamic shared memory that it has requested with cudaFuncSetAttribute() */
static std::map<const void *, size_t> allowed;
static enum emulated_blocks chosen = EMULATED_ALL;
static size_t most_shared = SHARED_BYTES;

void
emulated_set_most_shared (unsigned bytes)
{
  most_shared = bytes;
}

size_t
emulated_most_shared (void)
{
  return most_shared;
}

void
emulated_run_blocks (enum emulated_blocks which)
{
  chosen = which;
}

static std::map<std::string, uint64_t> launches; /* name of a kernel -> number of its launches */
static std::map<std::string, emulated_grid> grids; /* name of a kernel -> its last launch */
static std::string counted;                        /* name of the kernel that is launched next */

void
emulated_count (const char *kernel)
{
  const char *name = kernel + (*kernel == '(');

  counted = std::string (name, strcspn (name, "<)"));
  launches[counted]++;
}

struct emulated_grid
emulated_grid_of (const char *kernel)
{
  auto found = grids.find (kernel);
  return found == grids.end () ? emulated_grid{} : found->second;
}

uint64_t
emulated_launches (const char *kernel)
{
  auto found = launches.find (kernel);
  return found == launches.end () ? 0 : found->second;
}

const char *
emulated_allow (const void *kernel, size_t bytes)
{
  if (bytes > most_shared)
    return "invalid argument";
  allowed[kernel] = bytes;
  return NULL;
}

static void
check_launch (const void *kernel, dim3 grid, dim3 block, size_t shared)
{
  auto found = allowed.find (kernel);
  size_t most = found == allowed.end () ? 0 : found->second;
  uint64_t n = (uint64_t) block.x * block.y * block.z;

  if (!grid.x || !grid.y || !grid.z || grid.x > INT32_MAX || grid.y > MOST_BLOCKS ||
      grid.z > MOST_BLOCKS)
    die ("a grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
  if (!n || n > MOST_THREADS || block.z > 64)
    die ("a block of %u x %u x %u threads", block.x, block.y, block.z);
  if (shared > SHARED_UNASKED && (shared > most || shared > most_shared))
    die ("a kernel uses %zu bytes of shared memory, but %zu were allowed", shared, most);
}

static void
prepare_threads (size_t n)
{
  threads.resize (n);
  warps.resize ((n + WARP - 1) / WARP);
  for (unsigned i = 0; i < n; i++) {
    threads[i].index = { i % blockDim.x, i / blockDim.x % blockDim.y,
                         i / (blockDim.x * blockDim.y) };
    threads[i].warp = i / WARP;
    threads[i].lane = i % WARP;
  }
}

/* Fills memory with NaN. The compiler must not replace the loop by memset(), because the address
 * sanitizer would report the gaps between arrays. */
static void
    __attribute__ ((no_sanitize ("address"), optimize ("O3", "no-tree-loop-distribute-patterns")))
    forget (uint8_t *from, size_t bytes)
{
  for (size_t i = 0; i < bytes; i++)
    from[i] = 0xff;
  emulated_races_new_memory (from, bytes);
}

static void
forget_shared (size_t shared)
{
  let_touch (emulated_shared, sizeof emulated_shared, true);
  forget (emulated_shared, shared + GUARD);
  forget (__start_emulated_static, (size_t) (__stop_emulated_static - __start_emulated_static));
  let_touch (emulated_shared + shared, sizeof emulated_shared - shared, false);
}

static void
check_guard (size_t shared)
{
  let_touch (emulated_shared, sizeof emulated_shared, true);
  for (size_t i = 0; i < GUARD; i++)
    if (emulated_shared[shared + i] != 0xff)
      die ("a block has written %zu bytes beyond its shared memory", i);
}

static void
run_at (unsigned x, unsigned y, unsigned z, size_t shared)
{
  blockIdx = { x, y, z };
  emulated_races_open_block ();
  forget_shared (shared);
  emulated_products_open (shared);
  emulated_pipeline_open (shared);
  run_block ();
  emulated_products_close ();
  emulated_pipeline_close ();
  check_guard (shared);
}

/* Runs the blocks of a grid, forwards or backwards: kernels must not depend on the order of
 * blocks. */
static void
run_grid (dim3 grid, size_t shared)
{
  uint64_t plane = (uint64_t) grid.x * grid.y, n = plane * grid.z;

  for (uint64_t i = 0; i < n; i++) {
    uint64_t at = reversed ? n - 1 - i : i;
    run_at ((unsigned) (at % grid.x), (unsigned) (at % plane / grid.x), (unsigned) (at / plane),
            shared);
  }
}

void
emulated_run (const void *kernel, dim3 grid, dim3 block, size_t shared,
              const std::function<void ()> &thread)
{
  size_t n = (size_t) block.x * block.y * block.z;

  check_launch (kernel, grid, block, shared);
  grids[counted] = { (uint64_t) grid.x * grid.y * grid.z, (uint32_t) n };
  if (chosen == EMULATED_NONE)
    return;
  blockDim = block;
  gridDim = grid;
  shared_bytes = shared;
  body = &thread;
  prepare_threads (n);
  emulated_races_open ();
  if (chosen == EMULATED_LAST)
    run_at (grid.x - 1, grid.y - 1, grid.z - 1, shared);
  else
    run_grid (grid, shared);
  emulated_races_close ();
}
