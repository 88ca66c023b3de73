#include "tests/doubles/emulated_pipeline.hh"
#include "tests/doubles/emulated_cuda.hh"
#include "tests/doubles/emulated_races.hh"
#include <map>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum {
  ELEMENT = 2,
  PIECE = 16,        /* bytes that the swizzle moves together; unit of all bulk copies */
  MOST_IN_BOX = 256, /* elements of a box per dimension */
  MOST_IN_ROW = 128, /* bytes of a box's row with the 128-byte swizzle */
  TO = 128,          /* alignment of the destination of a box */
  GROUP = 128,
  REGISTERS = 64 << 10, /* registers of an SM */
  NAMED = 16,
  MOST_OPEN = 2 /* groups of stores while a turn is passed: the newest, and none */
};

static size_t bytes_of_block;

static void __attribute__ ((noreturn, format (printf, 1, 2))) fail (const char *format, ...)
{
  va_list rest;

  va_start (rest, format);
  fprintf (stderr, "a pipeline on the emulator: ");
  vfprintf (stderr, format, rest);
  fprintf (stderr, "\n");
  va_end (rest);
  abort ();
}

static void
check_shared (const void *at, size_t bytes, size_t aligned)
{
  const uint8_t *from = (const uint8_t *) at;

  if (from < emulated_shared || from + bytes > emulated_shared + bytes_of_block)
    fail ("%zu bytes are outside of shared memory", bytes);
  if ((size_t) (from - emulated_shared) % aligned)
    fail ("an address in shared memory is no multiple of %zu", aligned);
}

/* ---------------------------------------------------------------------------- mbarriers */

struct mbarrier {
  unsigned arrivals, missing; /* arrivals of a phase; those that the present phase lacks */
  int64_t bytes;              /* bytes that the current phase still expects */
  unsigned parity;            /* parity of the current phase */
  bool seen;                  /* by other threads and by copies */
};

static std::map<const uint64_t *, mbarrier> mbarriers;

static mbarrier *
find (const uint64_t *at)
{
  auto found = mbarriers.find (at);

  if (found == mbarriers.end ())
    fail ("an mbarrier was not initialised");
  return &found->second;
}

void
emulated_mbarrier_init (uint64_t *at, unsigned arrivals)
{
  emulated_unwatched own;

  check_shared (at, sizeof *at, sizeof *at);
  if (!arrivals || mbarriers.count (at))
    fail ("an mbarrier is initialised twice, or for no arrivals");
  mbarriers[at] = { arrivals, arrivals, 0, 0, false };
}

void
emulated_mbarriers_are_seen (void)
{
  emulated_unwatched own;

  for (auto &each : mbarriers)
    each.second.seen = true;
}

static void
end_phase (const uint64_t *at, mbarrier *m)
{
  if (m->missing || m->bytes)
    return;
  m->parity = !m->parity;
  m->missing = m->arrivals;
  emulated_wake (at);
}

static void
come (const uint64_t *at, unsigned bytes)
{
  mbarrier *m = find (at);

  if (!m->seen)
    fail ("a thread arrives at an mbarrier that was not made visible");
  if (!m->missing)
    fail ("a thread arrives at an mbarrier whose phase has all its arrivals");
  m->bytes += bytes;
  m->missing--;
  end_phase (at, m);
}

void
emulated_mbarrier_arrive (uint64_t *at)
{
  emulated_races_release (at);
  emulated_unwatched own;
  come (at, 0);
}

void
emulated_mbarrier_expect (uint64_t *at, unsigned bytes)
{
  emulated_races_release (at);
  emulated_unwatched own;
  come (at, bytes);
}

static bool
is_over (const uint64_t *at, unsigned parity)
{
  emulated_unwatched own;

  return find (at)->parity != parity;
}

void
emulated_mbarrier_wait (uint64_t *at, unsigned parity)
{
  while (!is_over (at, parity))
    emulated_sleep (at);
  emulated_races_acquire (at);
}

/* ------------------------------------------------------------------------------- loads */

/* A copy of contiguous bytes (map.at NULL) or of a box; it has not arrived. */
struct load {
  uint8_t *to;
  const uint8_t *from;
  size_t bytes;
  emulated_tensor_map map;
  int32_t place[EMULATED_DIMS];
  const uint64_t *mbarrier;
};

static std::vector<load> loads;

const char *
emulated_make_map (emulated_tensor_map *map, const void *at, const uint64_t *dim,
                   const uint64_t *step, const uint32_t *box)
{
  *map = { (const uint8_t *) at, {}, { ELEMENT }, {} };
  if ((uintptr_t) at % PIECE || box[0] * ELEMENT > MOST_IN_ROW || box[0] * ELEMENT % PIECE)
    return "the first dimension of a tensor map is not laid out in rows of at most 128 bytes";
  for (unsigned d = 0; d < EMULATED_DIMS; d++) {
    map->dim[d] = dim[d];
    map->box[d] = box[d];
    if (d)
      map->step[d] = step[d - 1];
    if (!dim[d] || dim[d] > UINT32_MAX || !box[d] || box[d] > MOST_IN_BOX)
      return "a size of a tensor map is out of range";
    if (d && (map->step[d] % PIECE || map->step[d] >> 40))
      return "a stride of a tensor map is no multiple of 16 bytes, or too large";
  }
  return NULL;
}

static void
issue (const load &l)
{
  emulated_unwatched own;

  if (!find (l.mbarrier)->seen)
    fail ("a copy counts at an mbarrier that was not made visible");
  /* the destination is NaN until the copy has arrived */
  memset (l.to, 0xff, l.bytes);
  loads.push_back (l);
}

void
emulated_load_box (void *to, const emulated_tensor_map *map, const int32_t *place,
                   uint64_t *mbarrier)
{
  load l = { (uint8_t *) to, NULL, ELEMENT, *map, {}, mbarrier };

  for (unsigned d = 0; d < EMULATED_DIMS; d++)
    l.bytes *= map->box[d];
  memcpy (l.place, place, sizeof l.place);
  check_shared (to, l.bytes, TO);
  issue (l);
}

void
emulated_load_bytes (void *to, const void *from, unsigned bytes, uint64_t *mbarrier)
{
  check_shared (to, bytes, PIECE);
  if (bytes % PIECE || (uintptr_t) from % PIECE)
    fail ("a bulk copy is not aligned to 16 bytes");
  issue ({ (uint8_t *) to, (const uint8_t *) from, bytes, {}, {}, mbarrier });
}

/* Source of element `at` of a box; NULL: it lies beyond the tensor. */
static const uint8_t *
in_tensor (const load &l, const uint32_t *at)
{
  const uint8_t *from = l.map.at;

  for (unsigned d = 0; d < EMULATED_DIMS; d++) {
    int64_t place = (int64_t) l.place[d] + at[d];
    if (place < 0 || (uint64_t) place >= l.map.dim[d])
      return NULL;
    from += (uint64_t) place * l.map.step[d];
  }
  return from;
}

static uint8_t *
swizzled (uint8_t *to)
{
  size_t at = (size_t) (to - emulated_shared);
  return emulated_shared + (at ^ (at >> 7 & 7) << 4);
}

static void
fill_box (const load &l)
{
  for (size_t i = 0; i < l.bytes / ELEMENT; i++) {
    uint32_t at[EMULATED_DIMS];
    size_t left = i;
    for (unsigned d = 0; d < EMULATED_DIMS; d++) {
      at[d] = (uint32_t) (left % l.map.box[d]);
      left /= l.map.box[d];
    }
    const uint8_t *from = in_tensor (l, at);
    uint8_t *piece = swizzled (l.to + i * ELEMENT / PIECE * PIECE) + i * ELEMENT % PIECE;
    memset (piece, 0, ELEMENT);
    if (from)
      memcpy (piece, from, ELEMENT);
  }
}

/* ------------------------------------------------------------------------------ stores */

struct store {
  uint8_t *to;
  const uint8_t *from;
  size_t bytes;
  bool adds, read;
  std::vector<float> data; /* what shared memory contained when the thread waited for the read */
};

/* [thread of the block]: its groups of stores that are not done; the last one is not committed */
static std::vector<std::vector<std::vector<store>>> stores;

static std::vector<std::vector<store>> &
stores_of_thread (void)
{
  if (stores.empty ())
    stores.assign (blockDim.x, std::vector<std::vector<store>> (1));
  return stores[threadIdx.x];
}

void
emulated_store_bytes (void *to, const void *from, unsigned bytes, bool adds)
{
  emulated_unwatched own;

  check_shared (from, bytes, PIECE);
  if (bytes % PIECE || (uintptr_t) to % PIECE)
    fail ("a bulk copy is not aligned to 16 bytes");
  stores_of_thread ().back ().push_back (
      { (uint8_t *) to, (const uint8_t *) from, bytes, adds, false, {} });
}

void
emulated_stores_commit (void)
{
  emulated_unwatched own;

  stores_of_thread ().emplace_back ();
}

static void
read (store *s)
{
  const float *from = (const float *) s->from;

  if (s->read)
    return;
  if (!emulated_is_seen (s->from, s->bytes))
    fail ("a bulk store reads written data without a fence to the async proxy");
  s->data.assign (from, from + s->bytes / sizeof *from);
  s->read = true;
}

void
emulated_stores_have_read (void)
{
  emulated_sleep (&stores); /* a store may read as late as this: see emulated_pipeline_deliver() */
  emulated_unwatched own;
  std::vector<std::vector<store>> &groups = stores_of_thread ();

  for (size_t i = 0; i + 1 < groups.size (); i++)
    for (store &s : groups[i])
      read (&s);
}

void
emulated_stores_are_done (unsigned open)
{
  emulated_unwatched own;
  std::vector<std::vector<store>> &groups = stores_of_thread ();

  for (; groups.size () > open + 1; groups.erase (groups.begin ()))
    for (store &s : groups[0]) {
      read (&s);
      for (size_t i = 0; i < s.data.size (); i++)
        ((float *) s.to)[i] = s.data[i] + (s.adds ? ((float *) s.to)[i] : 0);
    }
}

bool
emulated_pipeline_deliver (bool newest)
{
  emulated_unwatched own;

  size_t i = loads.size ();

  for (size_t j = 0; j < loads.size (); j++)
    if (emulated_is_awaited (loads[j].mbarrier) && (newest || i == loads.size ()))
      i = j;
  if (i == loads.size ()) {
    bool reads = emulated_is_awaited (&stores);
    emulated_wake (&stores);
    return reads;
  }
  const load l = loads[i];
  mbarrier *m = find (l.mbarrier);
  loads.erase (loads.begin () + (long) i);
  if (l.from)
    memcpy (l.to, l.from, l.bytes);
  else
    fill_box (l);
  m->bytes -= (int64_t) l.bytes;
  if (m->bytes < 0)
    fail ("a copy brings more bytes than its mbarrier expects");
  end_phase (l.mbarrier, m);
  return true;
}

/* ----------------------------------------------------------------- barriers of some threads */

struct named {
  unsigned threads, come, ended;
};

static named of_number[NAMED];

/* Arrives at a named barrier. Returns how many phases had ended before. */
static unsigned
come_named (unsigned number, unsigned threads)
{
  emulated_unwatched own;

  if (!number || number >= NAMED || threads % 32)
    fail ("a named barrier has number %u and %u threads", number, threads);
  named *n = &of_number[number];
  if (n->come && n->threads != threads)
    fail ("threads at named barrier %u want %u and %u threads", number, n->threads, threads);
  unsigned ended = n->ended;
  n->threads = threads;
  if (++n->come == threads) {
    n->come = 0;
    n->ended++;
    emulated_wake (n);
  }
  return ended;
}

void
emulated_named_arrive (unsigned number, unsigned threads)
{
  emulated_races_release (&of_number[number % NAMED]);
  (void) come_named (number, threads);
}

void
emulated_named_sync (unsigned number, unsigned threads)
{
  named *n = &of_number[number % NAMED];

  emulated_races_release (n);
  unsigned ended = come_named (number, threads);
  while (n->ended == ended)
    emulated_sleep (n);
  emulated_races_acquire (n);
}

/* --------------------------------------------------------------------------- registers */

static std::vector<unsigned> registers; /* [thread of the block]: as set; 0: as at the start */

/* Registers per thread at the start: all of an SM, for one block, in multiples of 8. */
static unsigned
at_start (void)
{
  unsigned each = REGISTERS / blockDim.x / 8 * 8;
  return each < 248 ? each : 248;
}

void
emulated_registers (unsigned n, bool takes)
{
  emulated_unwatched own;

  if (registers.empty ())
    registers.assign (blockDim.x, 0);
  if (n % 8 || n < 24 || n > 256)
    fail ("setmaxnreg of %u registers", n);
  if (registers[threadIdx.x] || (takes ? n < at_start () : n > at_start ()))
    fail ("setmaxnreg.%s of %u registers where a thread has %u", takes ? "inc" : "dec", n,
          registers[threadIdx.x] ? registers[threadIdx.x] : at_start ());
  registers[threadIdx.x] = n;
}

static void
check_registers (void)
{
  unsigned all = 0;

  for (size_t i = 0; i < registers.size (); i++) {
    if (registers[i] != registers[i / GROUP * GROUP])
      fail ("threads of a warpgroup have different numbers of registers");
    all += registers[i] ? registers[i] : at_start ();
  }
  if (all > at_start () * registers.size ())
    fail ("a block has %u registers after setmaxnreg, %zu before", all,
          at_start () * registers.size ());
}

/* ------------------------------------------------------------------------------- turns */

uint32_t
emulated_next_ticket (uint32_t *count)
{
  emulated_unwatched own;
  return (*count)++;
}

void
emulated_turn_wait (const uint32_t *turn, uint32_t n)
{
  emulated_races_acquire (turn);
  emulated_unwatched own;
  if (*turn != n)
    fail ("a block waits for turn %u at %u", n, *turn);
}

void
emulated_turn_pass (uint32_t *turn)
{
  emulated_unwatched own;

  if (stores_of_thread ().size () > MOST_OPEN)
    fail ("a block passes its turn before its stores are done");
  emulated_races_release (turn);
  ++*turn;
}

/* ------------------------------------------------------------------------------- blocks */

void
emulated_pipeline_open (size_t shared)
{
  bytes_of_block = shared;
  mbarriers.clear ();
  loads.clear ();
  stores.clear ();
  registers.clear ();
  for (named &n : of_number)
    n = {};
}

void
emulated_pipeline_close (void)
{
  for (auto &each : mbarriers)
    if (each.second.missing != each.second.arrivals || each.second.bytes)
      fail ("a block ends in the middle of a phase of an mbarrier");
  if (!loads.empty ())
    fail ("a block ends before its copies have arrived");
  for (const std::vector<std::vector<store>> &each : stores)
    if (each.size () > 1 || !each[0].empty ())
      fail ("a block ends before its bulk stores are done");
  for (const named &n : of_number)
    if (n.come)
      fail ("a block ends while threads are at a named barrier");
  check_registers ();
}
