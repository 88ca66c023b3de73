#include "exec_gpu/cuda/module/cupti.h"
#ifdef WEFT_CUPTI_MAJOR
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define KIND CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0
#define BUFFER_BYTES (4u << 20)
#define LIBRARY "libcupti.so." G_STRINGIFY (WEFT_CUPTI_MAJOR)

/* Tracing state of one thread of Weft. */
struct here {
  const struct weft_cupti *of;
  uint64_t id;         /* number of the op that the calls of this thread belong to; 0: no op */
  CUstream talks;      /* stream of the newest communication that this thread has enqueued */
  gboolean has_talked; /* this thread has enqueued communication since its last launch */
};

struct record {
  uint64_t begin, end, id, node, stream;
  uint32_t correlation;
  const char *name; /* interned */
};

struct weft_cupti {
  const struct weft_cupti_calls *calls;
  pthread_mutex_t lock;
  GPtrArray *heres;
  GArray *record;     /* struct record */
  GHashTable *known;  /* correlation id of CUPTI -> number of the op; the table owns the values */
  GHashTable *node;   /* node of a graph -> number of the op; the table owns keys and values */
  /* graph -> tracing state of the thread of Weft that adds nodes to the graph */
  GHashTable *graph;
  /* stream -> GArray of the ops of its communication launches, in order; the table owns the keys */
  GHashTable *launch;
  uint64_t lost;
  const char *said;
};

/* The open trace. A global, because on_callback() and the buffer callbacks need it. */
static struct weft_cupti *current;
static _Thread_local struct here *mine;

/* ---------------------------------------------------------------------------- ids */

static uint64_t
id_of (uint32_t row, uint32_t op)
{
  return ((uint64_t) row + 1) << 32 | op;
}

static struct here *
here_of (struct weft_cupti *c)
{
  if (mine && mine->of == c)
    return mine;
  mine = g_new0 (struct here, 1);
  mine->of = c;
  pthread_mutex_lock (&c->lock);
  g_ptr_array_add (c->heres, mine);
  pthread_mutex_unlock (&c->lock);
  return mine;
}

static void
put_id (GHashTable *table, uint64_t key, uint64_t id)
{
  g_hash_table_insert (table, g_memdup2 (&key, sizeof key), g_memdup2 (&id, sizeof id));
}

/* Looks up the number of an op in a table. 0: the table does not contain the key. */
static uint64_t
get_id (GHashTable *table, uint64_t key)
{
  const uint64_t *id = g_hash_table_lookup (table, &key);

  return id ? *id : 0;
}

/* A key for a stream. CUPTI's numbers of streams are unique only within one GPU. */
static uint64_t
stream_of (uint32_t device, uint32_t stream)
{
  return (uint64_t) device << 32 | stream;
}

/* Finds the key of a stream on the GPU of this thread. FALSE: CUPTI has reported an error. */
static gboolean
find_stream (const struct weft_cupti *c, CUstream stream, uint64_t *out)
{
  uint32_t device, number;

  if (c->calls->GetDeviceId (NULL, &device) != CUPTI_SUCCESS ||
      c->calls->GetStreamIdEx (NULL, stream, 0, &number) != CUPTI_SUCCESS)
    return FALSE;
  *out = stream_of (device, number);
  return TRUE;
}

void
weft_cupti_about (struct weft_cupti *c, uint32_t row, uint32_t op)
{
  struct here *h = c ? here_of (c) : NULL;
  uint64_t id = id_of (row, op), last;

  if (!h || h->id == id)
    return;
  if (h->id)
    c->calls->ActivityPopExternalCorrelationId (KIND, &last);
  c->calls->ActivityPushExternalCorrelationId (KIND, id);
  h->id = id;
}

void
weft_cupti_talk (struct weft_cupti *c, weft_gpu_stream *stream)
{
  struct here *h = c ? here_of (c) : NULL;

  if (!h)
    return;
  h->talks = (CUstream) (void *) stream;
  h->has_talked = TRUE;
}

void
weft_cupti_launched (struct weft_cupti *c)
{
  struct here *h = c ? here_of (c) : NULL;
  uint64_t stream;

  if (!h || !h->has_talked || !find_stream (c, h->talks, &stream))
    return;
  h->has_talked = FALSE;
  pthread_mutex_lock (&c->lock);
  GArray *ids = g_hash_table_lookup (c->launch, &stream);
  if (!ids)
    g_hash_table_insert (c->launch, g_memdup2 (&stream, sizeof stream),
                         ids = g_array_new (FALSE, FALSE, sizeof (uint64_t)));
  g_array_append_val (ids, h->id);
  pthread_mutex_unlock (&c->lock);
}

/* -------------------------------------------------------------------------- graphs */

static void
on_node (struct weft_cupti *c, const CUpti_GraphData *g)
{
  uint64_t node;
  struct here *h = mine && mine->of == c ? mine : NULL;

  pthread_mutex_lock (&c->lock);
  if (h)
    g_hash_table_insert (c->graph, g->graph, h);
  else
    h = g_hash_table_lookup (c->graph, g->graph);
  if (h && c->calls->GetGraphNodeId (g->node, &node) == CUPTI_SUCCESS)
    put_id (c->node, node, h->id);
  pthread_mutex_unlock (&c->lock);
}

static void
on_clone (struct weft_cupti *c, const CUpti_GraphData *g)
{
  uint64_t from, to;

  if (c->calls->GetGraphNodeId (g->originalNode, &from) != CUPTI_SUCCESS ||
      c->calls->GetGraphNodeId (g->node, &to) != CUPTI_SUCCESS)
    return;
  pthread_mutex_lock (&c->lock);
  if (get_id (c->node, from))
    put_id (c->node, to, get_id (c->node, from));
  pthread_mutex_unlock (&c->lock);
}

static void CUPTIAPI
on_callback (void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
  const CUpti_ResourceData *what = data;

  (void) user;
  if (!current || domain != CUPTI_CB_DOMAIN_RESOURCE)
    return;
  if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED)
    on_node (current, what->resourceDescriptor);
  if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED)
    on_clone (current, what->resourceDescriptor);
}

/* -------------------------------------------------------------------------- records */

/* Stores a trace record. A record without begin and end times counts as lost. */
static void
add_record (struct weft_cupti *c, const struct record *r)
{
  if (r->begin == 0 && r->end == 0)
    c->lost++;
  else
    g_array_append_vals (c->record, r, 1);
}

#define RECORD(x, word)                                                                            \
  &(struct record)                                                                                 \
  {                                                                                                \
    .begin = (x)->start, .end = (x)->end, .node = (x)->graphNodeId,                                \
    .correlation = (x)->correlationId, .stream = stream_of ((x)->deviceId, (x)->streamId),         \
    .name = (word)                                                                                 \
  }

static const char *
copy_word (uint8_t kind)
{
  return kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy to device"
         : kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy to host"
         : kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOD ? "copy on device"
                                                   : "copy";
}

static void
take_record (struct weft_cupti *c, const CUpti_Activity *a)
{
  const void *at = a;
  const weft_cupti_kernel *kernel = at;
  const CUpti_ActivityMemcpy6 *copy = at;
  const CUpti_ActivityMemcpyPtoP4 *across = at;
  const CUpti_ActivityMemset4 *fill = at;
  const CUpti_ActivityExternalCorrelation *known = at;

  switch ((int) a->kind) {
  case CUPTI_ACTIVITY_KIND_KERNEL:
  case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    add_record (c, RECORD (kernel, g_intern_string (kernel->name ? kernel->name : "a kernel")));
    break;
  case CUPTI_ACTIVITY_KIND_MEMCPY:
    add_record (c, RECORD (copy, copy_word (copy->copyKind)));
    break;
  case CUPTI_ACTIVITY_KIND_MEMCPY2:
    add_record (c, RECORD (across, "copy between GPUs"));
    break;
  case CUPTI_ACTIVITY_KIND_MEMSET:
    add_record (c, RECORD (fill, "fill"));
    break;
  case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
    if (known->externalKind == KIND)
      put_id (c->known, known->correlationId, known->externalId);
    break;
  default:
    break;
  }
}

static void CUPTIAPI
on_wanted (uint8_t **buffer, size_t *size, size_t *most)
{
  *buffer = g_malloc (BUFFER_BYTES); /* CUPTI requires an address that is a multiple of 8 */
  *size = BUFFER_BYTES;
  *most = 0;
}

static void
take_buffer (struct weft_cupti *c, uint8_t *buffer, size_t bytes)
{
  CUpti_Activity *a = NULL;
  CUptiResult result;

  while ((result = c->calls->ActivityGetNextRecord (buffer, bytes, &a)) == CUPTI_SUCCESS)
    take_record (c, a);
  if (result != CUPTI_ERROR_MAX_LIMIT_REACHED)
    c->calls->GetResultString (result, &c->said);
}

static void CUPTIAPI
on_filled (CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t bytes)
{
  struct weft_cupti *c = current;
  size_t dropped = 0;

  (void) size;
  if (c) {
    pthread_mutex_lock (&c->lock);
    if (bytes > 0)
      take_buffer (c, buffer, bytes);
    if (c->calls->ActivityGetNumDroppedRecords (context, stream, &dropped) == CUPTI_SUCCESS)
      c->lost += dropped;
    pthread_mutex_unlock (&c->lock);
  }
  g_free (buffer);
}

/* -------------------------------------------------------------------------- taking */

static int
by_begin (const void *a, const void *b)
{
  const struct record *x = a, *y = b;

  return (x->begin > y->begin) - (x->begin < y->begin);
}

static void
find_ids (struct weft_cupti *c)
{
  for (uint32_t i = 0; i < c->record->len; i++) {
    struct record *r = &g_array_index (c->record, struct record, i);
    r->id = r->node ? get_id (c->node, r->node) : get_id (c->known, r->correlation);
  }
}

/* Returns the indices of those records of a stream that have neither an op nor a graph node (no
 * thread of Weft launched the work), sorted by begin. The caller unrefs the array. */
static GArray *
foreign (const struct weft_cupti *c, uint64_t stream)
{
  GArray *found = g_array_new (FALSE, FALSE, sizeof (uint32_t));

  for (uint32_t i = 0; i < c->record->len; i++) {
    const struct record *r = &g_array_index (c->record, struct record, i);
    if (r->stream == stream && !r->id && !r->node)
      g_array_append_val (found, i);
  }
  return found;
}

static void
match_launches (struct weft_cupti *c)
{
  GHashTableIter iter;
  void *stream, *launched;

  g_hash_table_iter_init (&iter, c->launch);
  while (g_hash_table_iter_next (&iter, &stream, &launched)) {
    const GArray *ids = launched;
    g_autoptr (GArray) found = foreign (c, *(const uint64_t *) stream);
    for (uint32_t i = 0; i < found->len && found->len == ids->len; i++)
      g_array_index (c->record, struct record, g_array_index (found, uint32_t, i)).id =
          g_array_index (ids, uint64_t, i);
  }
}

static void
tell (const struct record *r, weft_gpu_take take, void *user)
{
  const struct weft_gpu_activity a = { .keyed = r->id != 0,
                                        .row = (uint32_t) (r->id >> 32) - 1,
                                        .op = (uint32_t) r->id,
                                        .name = r->name,
                                        .begin = r->begin,
                                        .end = r->end };

  take (user, &a);
}

/* Flushes completed buffers, then also buffers with records of unfinished work, which have no
 * times. */
static const char *
flush (const struct weft_cupti *c)
{
  const char *said = NULL;
  CUptiResult result = c->calls->ActivityFlushAll (0);

  if (result == CUPTI_SUCCESS)
    result = c->calls->ActivityFlushAll (CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  if (result != CUPTI_SUCCESS)
    c->calls->GetResultString (result, &said);
  return said;
}

const char *
weft_cupti_take (struct weft_cupti *c, weft_gpu_take take, void *user, uint64_t *lost)
{
  const char *said = flush (c);

  pthread_mutex_lock (&c->lock);
  g_array_sort (c->record, by_begin);
  find_ids (c);
  match_launches (c);
  for (uint32_t i = 0; i < c->record->len; i++)
    tell (&g_array_index (c->record, struct record, i), take, user);
  *lost = c->lost;
  said = said ? said : c->said;
  c->lost = 0;
  c->said = NULL;
  g_array_set_size (c->record, 0);
  g_hash_table_remove_all (c->known);
  g_hash_table_remove_all (c->launch);
  pthread_mutex_unlock (&c->lock);
  return said;
}

/* ------------------------------------------------------------------------- opening */

/* Enables recording. CUPTI writes external ids only before records of calls; therefore calls of the
 * runtime and of the driver, which NCCL and cuDNN use for launches, are recorded too (CUPTI's
 * sample cupti_external_correlation). */
static CUptiResult
enable (const struct weft_cupti_calls *calls)
{
  static const CUpti_ActivityKind kinds[] = { CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                              CUPTI_ACTIVITY_KIND_MEMCPY,
                                              CUPTI_ACTIVITY_KIND_MEMCPY2,
                                              CUPTI_ACTIVITY_KIND_MEMSET,
                                              CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                              CUPTI_ACTIVITY_KIND_RUNTIME,
                                              CUPTI_ACTIVITY_KIND_DRIVER };
  static const CUpti_CallbackId ids[] = { CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
                                          CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED };
  CUpti_SubscriberHandle subscriber;
  CUptiResult result = calls->Subscribe (&subscriber, on_callback, NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (ids) && result == CUPTI_SUCCESS; i++)
    result = calls->EnableCallback (1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, ids[i]);
  if (result == CUPTI_SUCCESS)
    result = calls->ActivityRegisterCallbacks (on_wanted, on_filled);
  for (unsigned i = 0; i < G_N_ELEMENTS (kinds) && result == CUPTI_SUCCESS; i++)
    result = calls->ActivityEnable (kinds[i]);
  return result;
}

static const char *
refusal_of (const struct weft_cupti_calls *calls, CUptiResult result)
{
  const char *said = "CUPTI gives no reason";

  if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
    return "the driver lets only administrators trace: run as root, or load nvidia.ko with "
           "NVreg_RestrictProfilingToAdminUsers=0";
  calls->GetResultString (result, &said);
  return said;
}

const char *
weft_cupti_open (const struct weft_cupti_calls *calls, struct weft_cupti **out)
{
  struct weft_cupti *c = g_new0 (struct weft_cupti, 1);

  c->calls = calls;
  pthread_mutex_init (&c->lock, NULL);
  c->heres = g_ptr_array_new_with_free_func (g_free);
  c->record = g_array_new (FALSE, FALSE, sizeof (struct record));
  c->known = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, g_free);
  c->node = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, g_free);
  c->graph = g_hash_table_new (NULL, NULL);
  c->launch =
      g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, (GDestroyNotify) g_array_unref);
  current = c;
  CUptiResult result = enable (calls);
  if (result == CUPTI_SUCCESS) {
    *out = c;
    return NULL;
  }
  weft_cupti_close (c);
  return refusal_of (calls, result);
}

void
weft_cupti_close (struct weft_cupti *c)
{
  current = NULL;
  mine = NULL;
  g_ptr_array_unref (c->heres);
  g_array_unref (c->record);
  g_hash_table_unref (c->known);
  g_hash_table_unref (c->node);
  g_hash_table_unref (c->graph);
  g_hash_table_unref (c->launch);
  pthread_mutex_destroy (&c->lock);
  g_free (c);
}

/* The functions of the CUPTI library that was loaded. */
static struct weft_cupti_calls loaded;

const char *
weft_cupti_begin (struct weft_cupti **out)
{
  void *library = dlopen (LIBRARY, RTLD_NOW | RTLD_LOCAL), *symbol;

  if (!library)
    return LIBRARY " cannot be loaded";
#define FIND(name)                                                                                 \
  if (!(symbol = dlsym (library, "cupti" #name)))                                                  \
    return LIBRARY " has no cupti" #name;                                                          \
  memcpy (&loaded.name, &symbol, sizeof symbol);
  WEFT_CUPTI_LIST (FIND)
#undef FIND
  return weft_cupti_open (&loaded, out);
}

#else

const char *
weft_cupti_begin (struct weft_cupti **out)
{
  (void) out;
  return "CUPTI was not found when Weft was built";
}

void
weft_cupti_about (struct weft_cupti *c, uint32_t row, uint32_t op)
{
  (void) c, (void) row, (void) op;
}

void
weft_cupti_talk (struct weft_cupti *c, weft_gpu_stream *stream)
{
  (void) c, (void) stream;
}

void
weft_cupti_launched (struct weft_cupti *c)
{
  (void) c;
}

const char *
weft_cupti_take (struct weft_cupti *c, weft_gpu_take take, void *user, uint64_t *lost)
{
  (void) c, (void) take, (void) user, (void) lost;
  return NULL;
}

#endif
