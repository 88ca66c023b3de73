#define _GNU_SOURCE /* memfd_create() */
#include "tests/doubles/fenced.h"
#include "core/base/sanitize.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if WEFT_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

enum { PAGE = 4096, UNIT = 16, UNTOUCHED = 0xa5, MOST_FILLED = 1 << 20 };

struct fenced {
  uint8_t *base;  /* first byte of all pages; the first and the last page cannot be accessed */
  uint64_t pages; /* bytes of the accessible pages between the two inaccessible pages */
  uint64_t before, bytes;
};

static GHashTable *all; /* start address of fenced memory -> its struct fenced */

static void
let_touch (void *at, uint64_t bytes, gboolean touch)
{
#if WEFT_ADDRESS_SANITIZER
  (touch ? __asan_unpoison_memory_region : __asan_poison_memory_region) (at, bytes);
#else
  (void) at, (void) bytes, (void) touch;
#endif
}

/* Returns a file in memory with at least `bytes` bytes of 0xff. */
static int
file_of_ones (uint64_t bytes)
{
  static int file = -1;
  static uint64_t filled;
  g_autofree void *ones = g_malloc (MOST_FILLED);

  memset (ones, 0xff, MOST_FILLED);
  file = file < 0 ? memfd_create ("fenced", 0) : file;
  for (; filled < bytes; filled += MOST_FILLED)
    g_assert (pwrite (file, ones, MOST_FILLED, (off_t) filled) == MOST_FILLED);
  return file;
}

/* Fills the accessible pages with 0xff. A large area shares its pages with a file until they are
 * written: kernels use little of the workspace of a library, and filling all 64 MB of it at every
 * call would take most of the time of the tests. */
static void
fill (const struct fenced *f)
{
  uint8_t *at = f->base + PAGE;

  if (f->pages <= MOST_FILLED) {
    g_assert (mprotect (at, f->pages, PROT_READ | PROT_WRITE) == 0);
    memset (at, 0xff, f->pages);
    return;
  }
  void *shared = mmap (at, f->pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
                       file_of_ones (f->pages), 0);
  g_assert (shared == at);
}

void *
fenced_new (uint64_t bytes, unsigned askew, gboolean at_end)
{
  struct fenced *f = g_new0 (struct fenced, 1);

  f->bytes = bytes;
  f->pages = (askew + bytes + PAGE - 1) / PAGE * PAGE;
  f->before = askew + (at_end ? (f->pages - askew - bytes) / UNIT * UNIT : 0);
  f->base = mmap (NULL, f->pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  g_assert (f->base != MAP_FAILED);
  fill (f);
  memset (f->base + PAGE, UNTOUCHED, f->before);
  memset (f->base + PAGE + f->before + bytes, UNTOUCHED, f->pages - f->before - bytes);
  let_touch (f->base + PAGE, f->pages, FALSE);
  let_touch (f->base + PAGE + f->before, bytes, TRUE);
  if (!all)
    all = g_hash_table_new (NULL, NULL);
  g_hash_table_insert (all, f->base + PAGE + f->before, f);
  return f->base + PAGE + f->before;
}

static void
check_untouched (const struct fenced *f, uint64_t from, uint64_t end)
{
  for (uint64_t i = from; i < end; i++)
    if (f->base[PAGE + i] != UNTOUCHED)
      g_error ("%" G_GUINT64_FORMAT " bytes: byte %" G_GINT64_FORMAT " was written", f->bytes,
               (gint64) (i - f->before));
}

void
fenced_free (void *at)
{
  struct fenced *f = at ? g_hash_table_lookup (all, at) : NULL;

  if (!at)
    return;
  g_assert (f);
  let_touch (f->base + PAGE, f->pages, TRUE);
  check_untouched (f, 0, f->before);
  check_untouched (f, f->before + f->bytes, f->pages);
  munmap (f->base, f->pages + 2 * PAGE);
  g_hash_table_remove (all, at);
  g_free (f);
}
